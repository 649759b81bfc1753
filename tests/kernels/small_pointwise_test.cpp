// SPDX-License-Identifier: Apache-2.0
//
// pointwise.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace convoy::test
