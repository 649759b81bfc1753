// SPDX-License-Identifier: Apache-2.0
//
// Hopper's kernel of few channels by warpgroup MMA.
#include "kernel_case.hpp"
#include "support/guarded_buffer.hpp"

namespace convoy::test {
namespace {

class Sm90Stem : public ::testing::Test {
 protected:
  void SetUp() override {
    if (compute_capability() != 90) GTEST_SKIP() << "needs compute capability 9.0";
  }
};

TEST_F(Sm90Stem, FewChannels) {
  const auto stem = [](const ConvGeometry& g, DType dtype = DType::bf16) {
    ConvCase test = with_kernel(g, "sm90_stem", dtype);
    test.options.packed_filter = true;
    expect_right(test);
  };
  stem(shape_2d(1, 16, 24, 16, 512, 3, 1));            // Flux's conv_in: whole tiles.
  stem(shape_2d(2, 19, 21, 16, 72, 3, 1));             // Ragged pixels and filters.
  stem(shape_2d(2, 16, 24, 4, 320, 3, 1));             // SDXL's conv_in: runs of 12 elements.
  stem(shape_2d(1, 17, 24, 4, 64, 5, 2, 2));           // Runs of 20, strided both ways.
  stem(shape_2d(1, 9, 11, 4, 40, 2, 0), DType::fp16);  // One cell a run, two of them.
  stem(shape_2d(1, 9, 11, 4, 40, 1, 0));               // Half a cell is all there is.
  stem(shape_2d(1, 20, 12, 8, 64, 3, 1));              // Nine cells: an odd last step.
  stem(shape_2d(1, 12, 20, 32, 136, 3, 1));            // Four planes, three blocks of filters.
  stem(shape_2d(1, 12, 20, 64, 24, 1, 0));             // 1×1.
  stem(shape_2d(1, 12, 20, 16, 37, 3, 1));             // Odd K: stored one by one.
  stem(shape_3d(2, 1, 0, 17, 20, 16, 384));            // Wan's conv_in.
  stem(shape_3d(1, 3, 1, 9, 20, 16, 64), DType::fp16);
  stem(shape_3d(0, 1, 2, 9, 20, 16, 64));    // Taps that meet padding only are left out.
  stem(shape_2d(1, 20, 28, 64, 72, 3, 1));   // Patch rows one at a time; 128 filters do not fit.
  stem(shape_3d(2, 1, 0, 17, 20, 8, 72));    // A piece of the filters ends within a frame.
  stem(shape_2d(2, 60, 50, 16, 40, 3, 1));   // Several tiles a warpgroup on 8 multiprocessors,
  stem(shape_3d(2, 1, 0, 33, 60, 16, 136));  // the same with frames that come apart.
  Conv2dProblemShape dilated{.in_height = 30,
                             .in_width = 31,
                             .in_channels = 16,
                             .out_channels = 64,
                             .filter_h = 3,
                             .filter_w = 3,
                             .pad_h = 2,
                             .pad_w = 3,
                             .stride_h = 2,
                             .dilation_h = 2,
                             .dilation_w = 3};
  stem(geometry_of(dilated));
}

TEST_F(Sm90Stem, WalksOverManyTiles) {
  ConvCase many = with_kernel(shape_2d(2, 256, 200, 16, 128, 3, 1), "sm90_stem");
  many.options.packed_filter = true;
  many.sample = 50000;
  expect_right(many);
}

TEST_F(Sm90Stem, EveryOutputTypeAndEpilogue) {
  ConvCase test = with_kernel(shape_2d(1, 10, 33, 4, 24, 3, 1), "sm90_stem");
  test.options.packed_filter = true;
  expect_right_with_every_epilogue(test);
}

}  // namespace
}  // namespace convoy::test
