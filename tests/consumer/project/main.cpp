// SPDX-License-Identifier: Apache-2.0
// A 1x1 convolution that doubles and a norm, through the installed C++ interface; the CPU backend
// is asked for by several threads at once. Where that cannot be had: "no CPU backend: " and the
// reason.
#include <convoy/convoy.hpp>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

extern "C" int check_c_interface(void);

namespace {

const convoy::Conv2dProblemShape kProblem{
    .in_height = 2, .in_width = 3, .in_channels = 1, .out_channels = 1};
const convoy::PlanOptions kOptions{.dtype = convoy::DType::fp32, .device = convoy::Device::cpu};

/// Empty, or what is wrong.
std::string double_on_cpu() {
  const convoy::Plan plan = convoy::plan(kProblem, kOptions);
  alignas(16) const float in[6] = {1, 2, 3, 4, 5, 6};
  alignas(16) float out[6] = {};
  alignas(16) const float two = 2;
  alignas(16) unsigned char workspace[1 << 16];
  if (plan.workspace_bytes() > sizeof workspace) return "a large workspace";
  plan.run({.output = out, .activation = in, .filter = &two, .workspace = workspace});
  for (int i = 0; i < 6; ++i) {
    if (out[i] != 2 * in[i]) return "element " + std::to_string(i) + " is wrong";
  }
  return {};
}

/// The reason of a norm that cannot be planned; empty if it can.
std::string norm_refusal() {
  try {
    const convoy::GroupNormProblem problem{.pixels = 4, .channels = 2, .groups = 1};
    convoy::plan(problem, {.dtype = convoy::DType::fp32, .device = convoy::Device::cpu});
    return {};
  } catch (const convoy::Error& error) {
    return error.status() == convoy::Status::unsupported ? error.what() : "another status";
  }
}

int refuse_throughout(const std::string& reason) {
  std::printf("no CPU backend: %s\n", reason.c_str());
  // Everything else says the same.
  std::string line;
  for (const convoy::Candidate& candidate : convoy::candidates(kProblem, kOptions)) {
    if (candidate.kernel == "onednn") line = candidate.reason;
  }
  std::string backend;
  for (const convoy::BackendInfo& info : convoy::backends()) {
    if (info.name == "cpu") backend = info.absent;
  }
  if (line.empty() || reason.find(line) == std::string::npos || backend != line ||
      norm_refusal().find(line) == std::string::npos) {
    std::printf("not said alike: '%s', '%s', '%s'\n", line.c_str(), backend.c_str(),
                norm_refusal().c_str());
    return 1;
  }
  try {
    convoy::plan(kProblem, kOptions);
  } catch (const convoy::Error& error) {
    return error.status() == convoy::Status::unsupported ? 0 : 1;
  }
  std::printf("planned all the same\n");
  return 1;
}

}  // namespace

int main() {
  std::printf("convoy %s\n", convoy::version());
  if (check_c_interface() != 0) return 1;
  std::vector<convoy::Support> supports(8);
  std::vector<std::thread> threads;
  for (convoy::Support& support : supports) {
    threads.emplace_back([&support] { support = convoy::supports(kProblem, kOptions); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const convoy::Support& support : supports) {
    if (support.supported != supports[0].supported || support.reason != supports[0].reason) {
      std::printf("threads hear different answers\n");
      return 1;
    }
  }
  if (!supports[0]) {
    // A build without the backend has no kernel of it.
    if (convoy::kernels().empty()) return 0;
    return refuse_throughout(supports[0].reason);
  }
  const std::string wrong = double_on_cpu() + norm_refusal();
  std::printf("CPU backend: %s\n", wrong.empty() ? "right" : wrong.c_str());
  return wrong.empty() ? 0 : 1;
}
