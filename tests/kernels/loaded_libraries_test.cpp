// SPDX-License-Identifier: Apache-2.0
// What runs on the GPU alone loads no CPU backend.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "convoy/convoy.h"
#include "convoy/convoy.hpp"

namespace convoy {
namespace {

bool is_loaded(const std::string& library) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(library) != std::string::npos) return true;
  }
  return false;
}

TEST(LoadedLibraries, TheCpuBackendIsLoadedWhenItIsAskedFor) {
  std::string reason;
  if (cuda_device_count(&reason) == 0) GTEST_SKIP() << reason;
  ASSERT_TRUE(is_loaded("libconvoy.so"));
  const Conv2dProblemShape problem{
      .in_height = 8, .in_width = 8, .in_channels = 64, .out_channels = 64};
  ASSERT_TRUE(supports(problem));
  EXPECT_EQ(plan(problem).info().backend.rfind("cuda:0", 0), 0u);
  const GroupNormProblem norm{.pixels = 16, .channels = 32};
  EXPECT_EQ(plan(norm).info().backend.rfind("cuda:0", 0), 0u);
  convoy_conv2d_shape_t shape;
  convoy_conv2d_shape_init(&shape, sizeof shape);
  shape.in_height = shape.in_width = 8;
  shape.in_channels = shape.out_channels = 64;
  EXPECT_EQ(convoy_supports_conv2d(&shape, nullptr), CONVOY_OK);
  EXPECT_FALSE(is_loaded("libconvoy_cpu")) << "loaded without need";
  EXPECT_FALSE(is_loaded("libdnnl"));

  EXPECT_TRUE(supports(problem, {.device = Device::cpu}));
  EXPECT_TRUE(is_loaded("libconvoy_cpu"));
}

}  // namespace
}  // namespace convoy
