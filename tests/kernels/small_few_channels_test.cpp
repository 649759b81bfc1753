// SPDX-License-Identifier: Apache-2.0
//
// few_channels, few_channels_fma and narrow_input.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "small_case.hpp"

namespace convoy::test {
namespace {

TEST_F(Small, PatchFewChannels) {
  const auto patch = [](const ConvGeometry& g, DType dtype = DType::bf16) {
    expect_right(with_kernel(g, "few_channels", dtype));
  };
  patch(shape_2d(2, 41, 37, 3, 64, 7, 3, 2));           // The stem of ResNet, odd extents.
  patch(shape_2d(1, 33, 20, 3, 70, 3, 1));              // Stride·C odd; ragged filters.
  patch(shape_2d(1, 33, 20, 1, 8, 5, 2), DType::fp16);  // One channel.
  patch(shape_2d(2, 16, 24, 4, 320, 3, 1));             // SDXL's conv_in.
  patch(shape_2d(1, 16, 24, 16, 512, 3, 1));            // Flux's conv_in.
  patch(shape_2d(1, 16, 24, 6, 33, 3, 1, 3));           // Six channels, stride 3, odd K.
  patch(shape_2d(1, 40, 40, 24, 64, 3, 1));             // Chunks by tap, three a pixel.
  patch(shape_2d(1, 8, 8, 16, 16, 1, 0));               // post_quant_conv: 16 filters a block.
  patch(shape_2d(1, 100, 300, 16, 9, 3, 1));            // The same, ragged, in tall tiles.
  patch(shape_2d(1, 64, 48, 3, 96, 4, 0, 4));           // Patch embedding of 4×4.
  patch(shape_3d(2, 1, 0, 17, 20, 16, 384));            // Wan's conv_in.
  patch(shape_3d(0, 2, 2, 9, 20, 3, 32), DType::fp16);  // Causal RGB.
  Conv2dProblemShape dilated{.in_height = 30,
                             .in_width = 30,
                             .in_channels = 3,
                             .out_channels = 16,
                             .filter_h = 3,
                             .filter_w = 3,
                             .pad_h = 2,
                             .pad_w = 3,
                             .dilation_h = 2,
                             .dilation_w = 3};
  patch(geometry_of(dilated));  // Chunks by tap with a mask.
}

TEST_F(Small, PatchWalksOverManyTiles) {
  // More tiles than blocks, and 16-row tiles.
  ConvCase test = with_kernel(shape_2d(2, 512, 400, 3, 64, 3, 1), "few_channels");
  test.sample = 50000;
  expect_right(test);
  test.problem = problem_of(shape_2d(3, 300, 300, 16, 128, 3, 1, 2));
  expect_right(test);
}

TEST_F(Small, FewChannelsByFma) {
  const auto fma = [](const ConvGeometry& g) {
    expect_right(with_kernel(g, "few_channels_fma", DType::fp32));
  };
  fma(shape_2d(2, 41, 37, 3, 64, 7, 3, 2));   // The stem of ResNet, odd extents.
  fma(shape_2d(1, 33, 20, 3, 70, 3, 1));      // Ragged filters, the last block has few.
  fma(shape_2d(1, 33, 20, 1, 8, 5, 2));       // One channel, 8 filters a block.
  fma(shape_2d(1, 100, 300, 1, 3, 3, 1));     // Fewer filters than a store has.
  fma(shape_2d(1, 31, 45, 2, 16, 3, 1, 2));   // 16 filters a block.
  fma(shape_2d(2, 16, 24, 4, 320, 3, 1));     // SDXL's conv_in: vectors of channels.
  fma(shape_2d(1, 16, 24, 16, 48, 3, 1));     // Pixels that are spread over the banks.
  fma(shape_2d(1, 16, 24, 6, 33, 3, 1, 3));   // Six channels, stride 3, odd K.
  fma(shape_2d(1, 40, 40, 24, 64, 3, 1));     // Runs by tap.
  fma(shape_2d(1, 64, 48, 3, 96, 4, 0, 4));   // Patch embedding of 4x4.
  fma(shape_3d(2, 1, 0, 17, 20, 16, 384));    // Wan's conv_in.
  fma(shape_3d(0, 2, 2, 9, 20, 3, 32));       // Causal RGB.
  fma(shape_2d(1, 1, 4000, 2, 24, 1, 0, 1));  // A line.
  ConvGeometry padded = shape_2d(2, 9, 11, 3, 24, 5, 2);
  for (const PadMode mode : {PadMode::replicate, PadMode::reflect}) {
    padded.pad_mode = {PadMode::zero, mode, mode};
    fma(padded);
  }
  Conv2dProblemShape shape{.in_height = 30,
                           .in_width = 30,
                           .in_channels = 3,
                           .out_channels = 16,
                           .filter_h = 3,
                           .filter_w = 3,
                           .pad_h = 2,
                           .pad_w = 3,
                           .dilation_h = 2,
                           .dilation_w = 3};
  fma(geometry_of(shape));  // Runs by tap that begin anywhere.
  shape.upsample = 2;
  fma(geometry_of(shape));
  expect_right_with_short_epilogues(
      with_kernel(shape_2d(2, 20, 33, 3, 24, 3, 1), "few_channels_fma", DType::fp32));
  expect_right_with_short_epilogues(
      with_kernel(shape_2d(1, 20, 33, 3, 13, 3, 1), "few_channels_fma", DType::fp32));
  // More tiles than blocks.
  ConvCase test = with_kernel(shape_2d(2, 4 * multiprocessors(), 400, 3, 64, 3, 1),
                              "few_channels_fma", DType::fp32);
  test.sample = 50000;
  expect_right(test);
}

TEST_F(Small, NarrowInput) {
  const auto narrow = [](const ConvGeometry& g, DType dtype = DType::bf16) {
    expect_right(with_kernel(g, "narrow_input", dtype));
  };
  narrow(shape_2d(2, 41, 37, 3, 64, 7, 3, 2));            // The stem of ResNet, odd extents.
  narrow(shape_2d(1, 33, 70, 3, 70, 3, 1));               // Ragged filters: staged as floats.
  narrow(shape_2d(1, 18, 37, 3, 180, 3, 1));              // Rows of 8 bytes: stored in fours.
  narrow(shape_2d(1, 9, 35, 4, 20, 3, 1), DType::fp16);   // The same of a strip of 32.
  narrow(shape_2d(1, 33, 20, 1, 8, 5, 2), DType::fp16);   // One channel: eight copies.
  narrow(shape_2d(1, 20, 40, 1, 40, 3, 1, 2));            // Four copies, two elements apart.
  narrow(shape_2d(1, 20, 40, 1, 16, 4, 0, 4));            // Two copies.
  narrow(shape_2d(1, 20, 67, 2, 24, 3, 1, 3));            // Two channels as four, odd stride.
  narrow(shape_2d(2, 16, 24, 4, 320, 3, 1));              // SDXL's conv_in: five strips.
  narrow(shape_2d(1, 16, 24, 6, 33, 3, 1, 3));            // Six channels, stride 3, odd K.
  narrow(shape_2d(1, 17, 33, 8, 96, 3, 1), DType::fp16);  // Whole pixels of 16 bytes.
  narrow(shape_2d(1, 9, 40, 8, 32, 1, 0));                // A 1x1 filter.
  narrow(shape_3d(0, 2, 2, 9, 20, 3, 32), DType::fp16);   // Causal RGB.
  narrow(shape_3d(2, 1, 0, 9, 20, 5, 48));                // Cached frames in front.
  Conv2dProblemShape tall{.in_height = 30,
                          .in_width = 40,
                          .in_channels = 3,
                          .out_channels = 16,
                          .filter_h = 3,
                          .filter_w = 3,
                          .pad_h = 2,
                          .pad_w = 1,
                          .dilation_h = 2};
  narrow(geometry_of(tall));
  tall.upsample = 2;
  narrow(geometry_of(tall));
  // More tiles than blocks.
  ConvCase test = with_kernel(shape_2d(2, 4 * multiprocessors(), 400, 3, 64, 3, 1), "narrow_input");
  test.sample = 50000;
  expect_right(test);
}

// Rows and columns far past a small image: one reflection of them lies outside it again, in memory
// that is not the tensor's.
TEST_F(Small, ReflectedPaddingUnderATileThatReachesPastTheOutput) {
  const auto reflected = [](int channels, int filters, const char* kernel) {
    ConvGeometry g = shape_2d(2, 2, 3, channels, filters, 3, 1);
    g.pad_mode = {PadMode::zero, PadMode::reflect, PadMode::reflect};
    expect_right(with_kernel(g, kernel));
  };
  for (const int channels : {3, 6, 16}) reflected(channels, 8, "few_channels");
  for (const int channels : {1, 3, 6}) reflected(channels, 8, "narrow_input");
  reflected(6, 8, "general");
}

TEST_F(Small, InfinityStaysUnderItsTaps) {
  for (const char* kernel : {"few_channels", "narrow_input"}) {
    expect_infinity_under_its_taps(kernel, false);
  }
}

}  // namespace
}  // namespace convoy::test
