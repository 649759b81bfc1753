// SPDX-License-Identifier: Apache-2.0
// A 1x1 convolution that doubles, through the installed C++ interface.
#include <convoy/convoy.hpp>
#include <cstdio>
#include <vector>

extern "C" int check_c_interface(void);

int main() {
  convoy::Conv2dProblemShape problem{
      .in_height = 2, .in_width = 3, .in_channels = 1, .out_channels = 1};
  const convoy::Support support =
      convoy::supports(problem, {.dtype = convoy::DType::fp32, .device = convoy::Device::cpu});
  if (support) {
    const convoy::Plan plan =
        convoy::plan(problem, {.dtype = convoy::DType::fp32, .device = convoy::Device::cpu});
    alignas(16) float in[6] = {1, 2, 3, 4, 5, 6};
    alignas(16) float out[6] = {};
    alignas(16) float two = 2;
    std::vector<unsigned char> workspace(plan.workspace_bytes() + 16);
    plan.run({.output = out, .activation = in, .filter = &two, .workspace = workspace.data()});
    for (int i = 0; i < 6; ++i) {
      if (out[i] != 2 * in[i]) {
        std::printf("element %d is %g\n", i, double(out[i]));
        return 1;
      }
    }
  } else {
    std::printf("no CPU backend: %s\n", support.reason.c_str());
  }
  std::printf("convoy %s\n", convoy::version());
  return check_c_interface();
}
