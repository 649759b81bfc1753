// SPDX-License-Identifier: Apache-2.0
//
// few_filters and few_filters_async.
#include <gtest/gtest.h>

#include <array>

#include "small_case.hpp"

namespace convoy::test {
namespace {

TEST_F(Small, HaloFewFilters) {
  const auto halo = [](const ConvGeometry& g, DType dtype = DType::bf16) {
    expect_right(with_kernel(g, "few_filters", dtype));
  };
  halo(shape_2d(1, 33, 61, 64, 3, 3, 1));               // One stage of channels; ragged tiles.
  halo(shape_2d(2, 16, 30, 128, 3, 3, 1));              // Whole tiles, two stages, two images.
  halo(shape_2d(1, 9, 31, 320, 4, 3, 1), DType::fp16);  // Five stages.
  halo(shape_2d(1, 5, 7, 8, 1, 3, 1));                  // Fewer channels than one step.
  halo(shape_2d(1, 20, 40, 96, 16, 3, 1));              // 48 columns; the last stage half full.
  halo(shape_2d(1, 12, 40, 72, 12, 1, 0));              // 1×1: no halo.
  halo(shape_2d(1, 20, 40, 24, 8, 7, 3));               // 56 columns, seven rows of halo.
  halo(shape_2d(1, 20, 40, 32, 3, 3, 0));               // No padding.
  halo(shape_2d(1, 1, 1, 16, 3, 3, 2));                 // The output is larger than the input.
  halo(shape_3d(2, 4, 0, 18, 35, 96, 3));               // Cached frames in front.
  halo(shape_3d(0, 1, 2, 18, 35, 96, 3));               // Causal padding instead of the cache.
  halo(shape_3d(1, 4, 1, 18, 35, 32, 4), DType::fp16);  // Some of both.
  halo(shape_3d(0, 9, 1, 5, 35, 16, 7));                // 63 columns; depth is cut into chunks.
}

// Loaded by cp.async: ragged tiles, rests of channels, frames, strips side by side, all padding.
TEST_F(Small, FewFiltersAsync) {
  if (is_spared(with_kernel(shape_2d(1, 6, 33, 16, 5, 3, 1), "few_filters_async"))) {
    GTEST_SKIP() << "few_filters takes its place on this GPU";
  }
  const auto check = [](ConvGeometry g, std::array<PadMode, 3> modes = {},
                        DType dtype = DType::bf16) {
    g.pad_mode = modes;
    expect_right(with_kernel(g, "few_filters_async", dtype));
  };
  constexpr PadMode kZero = PadMode::zero;
  check(shape_2d(2, 33, 61, 72, 3, 3, 1));                   // Straight-line sums, two stages.
  check(shape_2d(1, 1, 1, 16, 3, 3, 2));                     // The output is larger.
  check(shape_2d(1, 9, 31, 136, 4, 3, 1), {}, DType::fp16);  // 12 of 16 columns, three stages.
  check(shape_2d(1, 12, 40, 72, 24, 1, 0));                  // 1×1, 32 columns.
  check(shape_3d(2, 4, 0, 18, 35, 96, 3), {}, DType::fp16);  // Cached frames in front.
  if (shared_memory() > (128 << 10)) {
    check(shape_2d(1, 20, 40, 24, 8, 7, 3));  // 56 columns.
    check(shape_3d(0, 9, 1, 5, 35, 16, 7));   // 63; depth is cut into chunks.
  }
  for (const PadMode mode : {PadMode::replicate, PadMode::reflect}) {
    check(shape_2d(1, 37, 67, 72, 3, 3, 1), {kZero, mode, mode});
    check(shape_2d(1, 4, 5, 16, 4, 5, 2), {kZero, mode, mode});
    check(shape_3d(0, 4, 2, 9, 33, 24, 3), {mode, kZero, mode});
    check(shape_3d(2, 2, 1, 3, 31, 16, 2), {PadMode::replicate, mode, mode});
    const Conv2dProblemShape row{.in_height = 1,
                                 .in_width = 400,
                                 .in_channels = 16,
                                 .out_channels = 2,
                                 .filter_w = 7,
                                 .pad_w = 3,
                                 .pad_mode = mode};
    check(geometry_of(row), {kZero, kZero, mode});
  }
  expect_right_with_every_epilogue(
      with_kernel(shape_2d(1, 6, 33, 16, 5, 3, 1), "few_filters_async"));
}

// Padding that is copied inside a tile: on every side, beside zeros, of strips side by side, of
// frames, with more tiles than one.
TEST_F(Small, FewFiltersBorders) {
  for (const PadMode mode : {PadMode::replicate, PadMode::reflect}) {
    const auto check = [&](ConvGeometry g, std::array<PadMode, 3> modes) {
      g.pad_mode = modes;
      expect_right(with_kernel(g, "few_filters"));
    };
    check(shape_2d(2, 37, 67, 72, 3, 3, 1), {PadMode::zero, mode, mode});
    check(shape_2d(1, 4, 5, 16, 4, 5, 2), {PadMode::zero, mode, mode});
    check(shape_3d(0, 4, 2, 9, 33, 24, 3), {mode, PadMode::zero, mode});
    check(shape_3d(1, 3, 1, 20, 30, 136, 3), {mode, mode, PadMode::zero});
    check(shape_3d(2, 2, 1, 3, 31, 16, 2), {PadMode::replicate, mode, mode});
    Conv2dProblemShape row{.in_height = 1,
                           .in_width = 400,
                           .in_channels = 16,
                           .out_channels = 2,
                           .filter_w = 7,
                           .pad_w = 3,
                           .pad_mode = mode};
    expect_right(with_kernel(geometry_of(row), "few_filters"));
  }
}

}  // namespace
}  // namespace convoy::test
