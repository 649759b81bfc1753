// SPDX-License-Identifier: Apache-2.0
// A static object runs a plan, for the first time, as the program ends.
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "convoy/convoy.hpp"

namespace {

alignas(64) float input[8 * 8 * 16], filter[16 * 3 * 3 * 16], output[6 * 6 * 16];

struct RunsAtExit {
  std::optional<convoy::Plan> plan;
  std::optional<convoy::PackedFilter> packed;

  ~RunsAtExit() {
    try {
      plan->run({.output = output, .activation = input, .filter = *packed});
      if (output[0] == 144.0f) return;
      std::printf("output[0] = %g\n", double(output[0]));
    } catch (const std::exception& error) {
      std::printf("%s\n", error.what());
    }
    std::fflush(stdout);
    std::_Exit(1);
  }
};

// NOTE: made before the library's own static objects, so destroyed after them.
RunsAtExit at_exit;

}  // namespace

int main() {
  for (float& x : input) x = 1.0f;
  for (float& x : filter) x = 1.0f;
  at_exit.plan =
      plan(convoy::Conv2dProblemShape{.in_height = 8,
                                      .in_width = 8,
                                      .in_channels = 16,
                                      .out_channels = 16,
                                      .filter_h = 3,
                                      .filter_w = 3},
           {.dtype = convoy::DType::fp32, .device = convoy::Device::cpu, .packed_filter = true});
  at_exit.packed = at_exit.plan->pack_filter(filter, convoy::FilterLayout::krsc);
  return 0;
}
