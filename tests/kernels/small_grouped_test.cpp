// SPDX-License-Identifier: Apache-2.0
//
// grouped and grouped_patch.
#include <gtest/gtest.h>

#include "small_case.hpp"

namespace convoy::test {
namespace {

TEST_F(Small, Grouped) {
  const auto grouped = [](ConvGeometry g, std::int64_t groups, DType dtype = DType::bf16) {
    g.groups = groups;
    expect_right(with_kernel(g, "grouped", dtype));
  };
  grouped(shape_2d(2, 9, 13, 128, 128, 3, 1), 32);           // ResNeXt: four a group.
  grouped(shape_2d(1, 9, 13, 80, 80, 3, 1, 2), 10);          // Eight; a block partly filled.
  grouped(shape_2d(1, 8, 8, 48, 48, 3, 0), 3, DType::fp16);  // 16: groups are whole steps.
  grouped(shape_2d(1, 7, 9, 32, 32, 1, 0), 16);              // Two; 1×1.
  grouped(shape_2d(2, 11, 9, 88, 88, 3, 1, 2), 11);          // Eight; half of the last step.
  grouped(shape_2d(1, 7, 9, 36, 36, 3, 1), 9);               // Four; a quarter of it.
  grouped(shape_3d(1, 2, 1, 6, 7, 32, 32), 8);               // Depth, a cache.
  const Conv2dProblemShape dilated{.in_height = 12,
                                   .in_width = 10,
                                   .in_channels = 32,
                                   .out_channels = 32,
                                   .filter_h = 3,
                                   .filter_w = 3,
                                   .pad_h = 2,
                                   .pad_w = 1,
                                   .dilation_h = 2,
                                   .dilation_w = 3};
  grouped(geometry_of(dilated), 4);
}

TEST_F(Small, GroupedPatch) {
  const auto grouped = [](ConvGeometry g, std::int64_t groups, DType dtype = DType::bf16) {
    g.groups = groups;
    expect_right(with_kernel(g, "grouped_patch", dtype));
  };
  grouped(shape_2d(2, 9, 13, 128, 128, 3, 1), 4);              // 32 a group, two a block.
  grouped(shape_2d(3, 7, 7, 192, 192, 3, 1), 3, DType::fp16);  // 64; a tile holds two images.
  grouped(shape_2d(1, 6, 9, 256, 256, 3, 1), 2);               // 128: two blocks of filters.
  grouped(shape_2d(1, 13, 18, 96, 96, 3, 1, 2), 3);            // Stride 2.
  grouped(shape_2d(1, 12, 20, 72, 72, 3, 1), 3);               // 24: odd chunks, three tiles.
  grouped(shape_2d(1, 9, 13, 80, 80, 3, 2), 10);               // Eight.
  grouped(shape_2d(1, 9, 13, 80, 80, 5, 2), 5);                // 16; the last block partly filled.
  grouped(shape_2d(2, 8, 30, 64, 192, 3, 1), 4);               // 16 channels, 48 filters.
  grouped(shape_2d(2, 8, 30, 320, 80, 3, 1), 2);               // 160 channels, 40 filters.
  grouped(shape_2d(2, 17, 31, 224, 224, 1, 0), 7);             // 1×1: one row of pixels.
  grouped(shape_3d(2, 4, 0, 6, 7, 64, 64), 2);                 // Depth, a cache.
  ConvGeometry reflected = shape_2d(1, 9, 11, 32, 32, 3, 1);
  reflected.pad_mode = {PadMode::zero, PadMode::reflect, PadMode::replicate};
  grouped(reflected, 2);
  ConvGeometry dilated = shape_2d(1, 20, 21, 64, 64, 3, 2);
  dilated.dilation = {1, 2, 2};
  grouped(dilated, 2);
  grouped(shape_2d(2, 40, 50, 64, 64, 3, 1), 2);  // Blocks walk over many tiles.
}

// One group: a long row of pixels.
TEST_F(Small, PatchesOfLines) {
  const auto line = [](std::int64_t w, std::int64_t c, std::int64_t k, std::int64_t taps,
                       std::int64_t dilation, DType dtype = DType::bf16) {
    Conv2dProblemShape shape{.batch = 2,
                             .in_height = 1,
                             .in_width = w,
                             .in_channels = c,
                             .out_channels = k,
                             .filter_w = taps,
                             .pad_w = taps / 2 * dilation,
                             .dilation_w = dilation};
    expect_right(with_kernel(geometry_of(shape), "grouped_patch", dtype));
  };
  line(1000, 32, 32, 7, 3);
  line(700, 24, 40, 11, 5, DType::fp16);
}

}  // namespace
}  // namespace convoy::test
