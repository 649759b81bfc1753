// SPDX-License-Identifier: Apache-2.0
//
// pointwise, pointwise_narrow.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "small_case.hpp"

namespace convoy::test {
namespace {

TEST_F(Small, PointwiseFewChannels) {
  const auto pointwise = [](const ConvGeometry& g, DType dtype = DType::bf16) {
    expect_right(with_kernel(g, "pointwise", dtype));
  };
  pointwise(shape_2d(1, 16, 16, 16, 16, 1, 0));              // Whole blocks.
  pointwise(shape_2d(3, 7, 13, 16, 11, 1, 0));               // Ragged pixels and filters.
  pointwise(shape_2d(1, 9, 15, 32, 32, 1, 0), DType::fp16);  // Two steps.
  pointwise(shape_2d(1, 9, 15, 32, 20, 1, 0));
  pointwise(shape_2d(1, 9, 15, 8, 8, 1, 0));  // Half a step.
  pointwise(shape_2d(1, 7, 13, 8, 3, 1, 0), DType::fp16);
  ConvCase with_bias = with_kernel(shape_2d(1, 9, 15, 32, 20, 1, 0), "pointwise");
  with_bias.bias = true;  // In the plain kernel, and rounded before it is added in the other one.
  expect_right(with_bias);
  with_bias.epilogue.rounding = EpilogueRounding::each_step;
  expect_right(with_bias);
}

TEST_F(Small, PointwiseManyFilters) {
  const auto pointwise = [](const ConvGeometry& g, DType dtype = DType::bf16) {
    expect_right(with_kernel(g, "pointwise", dtype));
  };
  pointwise(shape_2d(1, 9, 15, 8, 32, 1, 0));  // Half a step, two blocks of filters.
  pointwise(shape_2d(2, 7, 13, 16, 48, 1, 0), DType::fp16);
  pointwise(shape_2d(1, 9, 15, 24, 20, 1, 0));   // A step and a half, 16 filters and 4.
  pointwise(shape_2d(1, 9, 15, 40, 132, 1, 0));  // Three steps.
  pointwise(shape_2d(1, 7, 13, 56, 24, 1, 0), DType::fp16);
  pointwise(shape_2d(1, 9, 15, 64, 37, 1, 0));    // Odd K: the general epilogue.
  pointwise(shape_2d(1, 40, 51, 24, 132, 1, 0));  // Several turns of a block on 8 multiprocessors,
  pointwise(shape_2d(2, 99, 61, 8, 72, 1, 0));    // and more blocks than are resident.
  ConvCase test = with_kernel(shape_2d(1, 9, 15, 24, 68, 1, 0), "pointwise");
  test.bias = true;
  expect_right_with_short_epilogues(test);
  test.exact = false;
  test.epilogue.activation = Activation::sigmoid;  // In the general kernel.
  expect_right(test);
}

class PointwiseNarrow : public Small {
 protected:
  static ConvCase narrow(const ConvGeometry& g, DType dtype = DType::bf16) {
    return with_kernel(g, "pointwise_narrow", dtype);
  }
};

// Units of 32 channels, whole and in part, of 64; copies of 4 bytes; 1, 2 and 4 MMAs a unit.
TEST_F(PointwiseNarrow, ChannelsAndFilters) {
  expect_right(narrow(shape_2d(1, 16, 16, 32, 8, 1, 0)));
  expect_right(narrow(shape_2d(1, 16, 16, 8, 16, 1, 0), DType::fp16));
  expect_right(narrow(shape_2d(1, 9, 15, 24, 3, 1, 0)));
  expect_right(narrow(shape_2d(1, 9, 15, 64, 32, 1, 0)));
  expect_right(narrow(shape_2d(1, 9, 15, 72, 19, 1, 0), DType::fp16));
  expect_right(narrow(shape_2d(1, 9, 15, 480, 1, 1, 0)));
  expect_right(narrow(shape_2d(1, 9, 15, 2, 5, 1, 0)));
  expect_right(narrow(shape_2d(1, 9, 15, 36, 18, 1, 0)));
  expect_right(narrow(shape_2d(1, 9, 15, 270, 17, 1, 0), DType::fp16));
}

// The last tile ends anywhere, with less than 16 bytes of outputs.
TEST_F(PointwiseNarrow, LastTiles) {
  for (const int pixels : {1, 2, 7, 8, 31, 33, 1025}) {
    expect_right(narrow(shape_2d(1, 1, pixels, 16, 1, 1, 0)));
    expect_right(narrow(shape_2d(1, 1, pixels, 40, 27, 1, 0)));
    ConvCase test = narrow(shape_2d(1, 1, pixels, 10, 3, 1, 0));
    test.residual = true;
    test.epilogue.beta = 2.0f;
    expect_right(test);
  }
}

// Warps of several tiles, rings that come round; fewer tiles than warps.
TEST_F(PointwiseNarrow, ManyTiles) {
  expect_right(narrow(shape_2d(3, 160, 171, 16, 24, 1, 0)));
  expect_right(narrow(shape_2d(1, 99, 97, 136, 32, 1, 0), DType::fp16));
  expect_right(narrow(shape_2d(1, 128, 255, 4, 8, 1, 0)));
  ConvCase test = narrow(shape_2d(1, 120, 171, 64, 11, 1, 0));
  test.residual = true;
  test.epilogue.beta = 2.0f;
  test.residual_in_place = true;
  expect_right(test);
}

TEST_F(PointwiseNarrow, Epilogues) {
  for (const auto& [channels, filters] : {std::pair{24, 7}, std::pair{40, 16}, std::pair{6, 32}}) {
    expect_right_with_scaled_epilogues(narrow(shape_2d(1, 9, 15, channels, filters, 1, 0)));
  }
}

TEST_F(PointwiseNarrow, Refusals) {
  const auto refusal = [](const ConvCase& test) { return refusal_of(test, "pointwise_narrow"); };
  EXPECT_EQ(refusal(narrow(shape_2d(1, 9, 15, 64, 32, 1, 0))), "");
  EXPECT_EQ(refusal(narrow(shape_2d(1, 9, 15, 7, 8, 1, 0))),
            "in_channels = 7; legal: a multiple of 2; nearest: 8");
  EXPECT_EQ(refusal(narrow(shape_2d(1, 9, 15, 8, 40, 1, 0))),
            "out_channels = 40; legal: at most 32; nearest: 32");
  EXPECT_EQ(refusal(narrow(shape_2d(1, 9, 15, 4104, 8, 1, 0))),
            "in_channels = 4104; legal: at most 4096; nearest: 4096");
  EXPECT_NE(refusal(narrow(shape_2d(1, 9, 15, 4096, 32, 1, 0))).find("shared memory"),
            std::string::npos);
  EXPECT_NE(refusal(narrow(shape_2d(1, 9, 15, 8, 8, 3, 1))).find("filter, stride, padding of"),
            std::string::npos);
}

}  // namespace
}  // namespace convoy::test
