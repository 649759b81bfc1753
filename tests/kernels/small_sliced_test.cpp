// SPDX-License-Identifier: Apache-2.0
//
// sliced_k.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "small_case.hpp"

namespace convoy::test {
namespace {

class SlicedK : public Small {
 protected:
  /// All of them that this device can run.
  static std::vector<std::string> kernels() {
    std::vector<std::string> found;
    for (const Candidate& candidate :
         candidates_of(with_kernel(shape_2d(1, 4, 4, 8, 8, 1, 0), ""))) {
      if (candidate.reason.empty() && candidate.kernel.starts_with("sliced_k_")) {
        found.push_back(candidate.kernel);
      }
    }
    return found;
  }
  /// Every kernel takes its turn with one of the three types.
  static void expect_right_on_all(const ConvGeometry& g) {
    static int turn = 0;
    for (const std::string& kernel : kernels()) {
      const auto dtype = static_cast<DType>(turn++ % 3);
      ConvCase test = with_kernel(g, kernel, dtype);
      test.options.allow_tf32 = dtype == DType::fp32;
      expect_right(test);
    }
  }
  static std::string reason(const ConvCase& test, const char* kernel = "sliced_k_16x16") {
    for (const Candidate& candidate : candidates_of(test)) {
      if (candidate.kernel == kernel) return candidate.reason;
    }
    return "not listed";
  }
};

TEST_F(SlicedK, Kernels) {
  const std::vector<std::string> found = kernels();
  const bool has_clusters = compute_capability() >= 90;
  EXPECT_EQ(found.size(), has_clusters ? 12 : 0);
}

// Less than a turn, turns that not all warps have, rounds; the last of each in part.
TEST_F(SlicedK, Reductions) {
  for (const int channels : {8, 40, 136, 520, 1416}) {
    expect_right_on_all(shape_2d(1, 5, 7, channels, 20, 1, 0));
  }
}

// Less than a tile, one and a part of the next; filters that no vector of four holds.
TEST_F(SlicedK, Extents) {
  expect_right_on_all(shape_2d(1, 1, 1, 64, 1, 1, 0));
  expect_right_on_all(shape_2d(3, 5, 7, 64, 70, 1, 0));
  expect_right_on_all(shape_2d(1, 16, 16, 32, 64, 1, 0));
  expect_right_on_all(shape_2d(2, 3, 11, 24, 67, 1, 0));
}

TEST_F(SlicedK, Taps) {
  expect_right_on_all(shape_2d(2, 7, 9, 24, 36, 3, 1));
  expect_right_on_all(shape_2d(1, 14, 13, 16, 40, 3, 1, 2));
  expect_right_on_all(shape_2d(1, 9, 8, 40, 18, 1, 0, 2));  // One tap, not at its place.
  expect_right_on_all(shape_2d(1, 3, 3, 8, 16, 5, 4));      // Outputs of padding alone.
  // The second tap lies 2^31 pixels behind the first, which lies as many in front of the input.
  ConvGeometry far = shape_2d(1, 64, 64, 8, 16, 1, 0);
  far.filter[1] = 2;
  far.pad_begin[1] = far.dilation[1] = 1 << 25;
  expect_right_on_all(far);
  expect_right_on_all(shape_3d(0, 3, 2, 6, 5, 16, 24));     // Causal,
  expect_right_on_all(temporal(4, 3, 1, 3, 5, 32, 20, 2));  // strided along frames.
  expect_right_on_all(geometry_of(Conv2dProblemShape{.batch = 2,
                                                     .in_height = 9,
                                                     .in_width = 17,
                                                     .in_channels = 8,
                                                     .out_channels = 20,
                                                     .filter_h = 2,
                                                     .filter_w = 7,
                                                     .pad_h = 3,
                                                     .pad_w = 2,
                                                     .stride_h = 3,
                                                     .stride_w = 2,
                                                     .dilation_h = 4,
                                                     .dilation_w = 2}));
}

TEST_F(SlicedK, Epilogues) {
  for (const std::string& kernel : kernels()) {
    ConvCase test = with_kernel(shape_2d(1, 5, 7, 72, 36, 1, 0), kernel);
    expect_right_with_short_epilogues(test);
    test.problem = problem_of(shape_2d(1, 5, 7, 72, 35, 1, 0));  // By any epilogue's code.
    expect_right_with_short_epilogues(test);
  }
  ConvCase test = with_kernel(shape_2d(1, 5, 7, 72, 36, 1, 0), kernels().back(), DType::fp16);
  test.exact = false;
  expect_right_with_every_epilogue(test);
  test.options.dtype = DType::fp32;
  test.options.allow_tf32 = true;
  expect_right_with_every_epilogue(test);
}

TEST_F(SlicedK, Refusals) {
  EXPECT_EQ(reason(with_kernel(shape_2d(1, 8, 8, 12, 8, 1, 0), "")),
            "in_channels = 12; legal: a multiple of 8; nearest: 16");
  ConvCase test = with_kernel(shape_2d(1, 8, 8, 8, 8, 3, 1), "", DType::fp32);
  EXPECT_NE(reason(test).find("allow_tf32"), std::string::npos);
  test.options.allow_tf32 = true;
  EXPECT_EQ(reason(test), "");
  ConvGeometry reflected = shape_2d(1, 8, 8, 8, 8, 3, 1);
  reflected.pad_mode = {PadMode::zero, PadMode::reflect, PadMode::reflect};
  EXPECT_EQ(reason(with_kernel(reflected, "")), "padding mode of height = reflect; legal: zero");
  EXPECT_EQ(reason(with_kernel(shape_3d(1, 3, 1, 6, 5, 16, 24), "")),
            "cached_frames = 1; legal: 0");
  ConvGeometry grouped = shape_2d(1, 8, 8, 16, 16, 3, 1);
  grouped.groups = 2;
  EXPECT_EQ(reason(with_kernel(grouped, "")), "groups = 2; legal: 1");
}

}  // namespace
}  // namespace convoy::test
