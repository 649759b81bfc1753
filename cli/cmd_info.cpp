// SPDX-License-Identifier: Apache-2.0
// convoy info: what this build holds and what it sees of the machine.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "convoy/convoy.hpp"
#include "io/jpeg.hpp"
#include "json_output.hpp"
#include "shape_file.hpp"
#include "text.hpp"

namespace convoy::cli {
namespace {

/// "cpu (oneDNN 2.6.3)", or "cpu: " and why it is not there.
std::vector<std::string> describe_backends() {
  std::vector<std::string> out;
  for (const BackendInfo& backend : backends()) {
    out.push_back(backend.absent.empty() ? backend.name : text(backend.name, ": ", backend.absent));
  }
  return out;
}

std::string describe(const DeviceInfo& device) {
  if (device.kind == Device::cpu) {
    return text("cpu: ", device.name, ", ", device.multiprocessors, " threads");
  }
  return text("cuda:", device.index, ": ", device.name, ", compute capability ",
              device.compute_capability / 10, ".", device.compute_capability % 10, ", ",
              device.multiprocessors, " SMs, ", device.l2_bytes >> 20, " MiB of L2");
}

/// Kinds of files that this build reads.
std::vector<std::string> describe_files() {
  std::vector<std::string> out = {".npy", ".safetensors", ".png"};
  if (io::can_read_jpeg()) out.insert(out.end(), {".jpg", ".jpeg"});
  return out;
}

int run_info(bool as_json) {
  std::string no_cuda;
  std::vector<std::string> devices = {describe(cpu_device())};
  const int count = cuda_device_count(&no_cuda);
  for (int index = 0; index < count; ++index) devices.push_back(describe(*cuda_device(index)));

  nlohmann::ordered_json json = {{"version", version()},
                                 {"backends", describe_backends()},
                                 {"devices", devices},
                                 {"files", describe_files()},
                                 {"shape_sets", list_shape_sets()}};
  nlohmann::ordered_json names = empty_array();
  for (const KernelInfo& kernel : kernels()) {
    names.push_back({{"name", kernel.name}, {"device", to_string(kernel.device)}});
  }
  json["kernels"] = std::move(names);
  if (count == 0) json["no_cuda_device"] = no_cuda;
  if (as_json) {
    print(json);
    return kSuccess;
  }

  std::printf("convoy %s\n", version());
  std::printf("backends:\n");
  for (const std::string& backend : describe_backends()) std::printf("  %s\n", backend.c_str());
  std::printf("devices:\n");
  for (const std::string& device : devices) std::printf("  %s\n", device.c_str());
  if (count == 0) std::printf("  %s\n", no_cuda.c_str());
  std::printf("files:\n ");
  for (const std::string& kind : describe_files()) std::printf(" %s", kind.c_str());
  std::printf("\nkernels:\n");
  for (const KernelInfo& kernel : kernels()) {
    std::printf("  %-4s %s\n", to_string(kernel.device), kernel.name.c_str());
  }
  std::printf("shape sets:\n");
  for (const std::string& name : list_shape_sets()) std::printf("  %s\n", name.c_str());
  return kSuccess;
}

}  // namespace

void add_info_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("info", "version, backends, devices, and the kernels compiled in");
  auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "print JSON on stdout");
  command->callback([as_json, &exit_code] { exit_code = run_info(*as_json); });
}

}  // namespace convoy::cli
