// SPDX-License-Identifier: Apache-2.0
#include "core/geometry.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "expect_error.hpp"

namespace convoy {
namespace {

using test::expect_error;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

Conv2dProblemShape small_2d() {
  return {.batch = 2,
          .in_height = 9,
          .in_width = 7,
          .in_channels = 6,
          .out_channels = 4,
          .filter_h = 3,
          .filter_w = 3,
          .pad_h = 1,
          .pad_w = 1};
}

Conv3dProblemShape small_3d() {
  Conv3dProblemShape p;
  p.batch = 2;
  p.in_depth = 4;
  p.in_height = 9;
  p.in_width = 7;
  p.in_channels = 6;
  p.out_channels = 4;
  p.filter = {3, 3, 3};
  p.pad_begin = {2, 1, 1};
  p.pad_end = {0, 1, 1};
  return p;
}

/// The 2-D problem with one change must be refused with these words.
template <typename Change>
void refuse_2d(std::initializer_list<const char*> parts, Change&& change) {
  Conv2dProblemShape p = small_2d();
  change(p);
  expect_error(Status::invalid_argument, parts, [&] { p.validate(); });
}

template <typename Change>
void refuse_3d(std::initializer_list<const char*> parts, Change&& change) {
  Conv3dProblemShape p = small_3d();
  change(p);
  expect_error(Status::invalid_argument, parts, [&] { p.validate(); });
}

TEST(Geometry, SamePaddingKeepsTheExtent) {
  const Conv2dProblemShape p = small_2d();
  EXPECT_EQ(p.out_height(), 9);
  EXPECT_EQ(p.out_width(), 7);
  EXPECT_EQ(p.gemm_m(), 2 * 9 * 7);
  EXPECT_EQ(p.gemm_n(), 4);
  EXPECT_EQ(p.gemm_k(), 6 * 9);
}

TEST(Geometry, EveryFieldOfTwoDimensions) {
  Conv2dProblemShape p = small_2d();
  p.stride_h = 2;
  p.dilation_w = 2;
  p.pad_h_end = 3;
  p.pad_w_end = 0;
  p.groups = 2;
  // Rows: 9 + 1 + 3 - 3 = 10, every second one. Columns: 7 + 1 + 0 - 5 = 3.
  EXPECT_EQ(p.out_height(), 6);
  EXPECT_EQ(p.out_width(), 4);
  EXPECT_EQ(p.gemm_k(), 3 * 9);
  p.upsample = 2;
  EXPECT_EQ(p.out_height(), (18 + 4 - 3) / 2 + 1);
  EXPECT_EQ(p.out_width(), 14 + 1 - 5 + 1);
}

TEST(Geometry, Tiles) {
  const Conv2dProblemShape p = small_2d();  // M = 126, N = 4, C = 6, nine taps.
  EXPECT_EQ(p.num_m_tiles(126), 1);
  EXPECT_EQ(p.num_m_tiles(125), 2);
  EXPECT_EQ(p.num_m_tiles(1), 126);
  EXPECT_EQ(p.num_n_tiles(128), 1);
  EXPECT_EQ(p.num_n_tiles(3), 2);
  EXPECT_EQ(p.num_k_tiles(4), 9 * 2);
  EXPECT_EQ(p.num_k_tiles(6), 9);
  expect_error(Status::invalid_argument, {"tile_m = 0", "at least 1"}, [&] { p.num_m_tiles(0); });
  expect_error(Status::invalid_argument, {"tile_n = -1"}, [&] { p.num_n_tiles(-1); });
  expect_error(Status::invalid_argument, {"tile_k = 0"}, [&] { p.num_k_tiles(0); });
  const Conv3dProblemShape q = small_3d();
  EXPECT_EQ(q.num_m_tiles(q.gemm_m()), 1);
  EXPECT_EQ(q.num_n_tiles(2), 2);
  EXPECT_EQ(q.num_k_tiles(4), 27 * 2);
}

TEST(Geometry, CausalPaddingAndCacheInThreeDimensions) {
  Conv3dProblemShape p = small_3d();
  EXPECT_EQ(p.out_depth(), 4);
  EXPECT_EQ(p.out_height(), 9);
  EXPECT_EQ(p.out_width(), 7);
  EXPECT_EQ(p.gemm_m(), 2 * 4 * 9 * 7);
  EXPECT_EQ(p.gemm_k(), 6 * 27);
  p.pad_begin[0] = 0;
  p.cached_frames = 2;
  EXPECT_EQ(p.out_depth(), 4);
  p.stride = {2, 3, 1};
  p.dilation = {1, 2, 3};
  EXPECT_EQ(p.out_depth(), 2);
  EXPECT_EQ(p.out_height(), (9 + 2 - 5) / 3 + 1);
  EXPECT_EQ(p.out_width(), 7 + 2 - 7 + 1);
}

TEST(Geometry, EmptyBatchAndNoFiltersAreLegal) {
  Conv2dProblemShape p = small_2d();
  p.batch = 0;
  EXPECT_EQ(p.gemm_m(), 0);
  EXPECT_EQ(p.num_m_tiles(128), 0);
  EXPECT_TRUE(geometry_of(p).empty());
  p = small_2d();
  p.out_channels = 0;
  EXPECT_EQ(p.gemm_n(), 0);
  EXPECT_TRUE(geometry_of(p).empty());
  EXPECT_FALSE(geometry_of(small_2d()).empty());
}

TEST(Geometry, RefusesExtentsThatAreZeroOrNegative) {
  refuse_2d({"batch = -1", "at least 0"}, [](auto& p) { p.batch = -1; });
  refuse_2d({"in_height = 0", "at least 1", "nearest: 1"}, [](auto& p) { p.in_height = 0; });
  refuse_2d({"in_width = -7"}, [](auto& p) { p.in_width = -7; });
  refuse_2d({"in_channels = 0"}, [](auto& p) { p.in_channels = 0; });
  refuse_2d({"out_channels = -4", "at least 0"}, [](auto& p) { p.out_channels = -4; });
  refuse_2d({"filter_h = 0"}, [](auto& p) { p.filter_h = 0; });
  refuse_2d({"filter_w = -3"}, [](auto& p) { p.filter_w = -3; });
  refuse_2d({"pad_h = -1"}, [](auto& p) { p.pad_h = -1; });
  refuse_2d({"pad_w = -1"}, [](auto& p) { p.pad_w = -1; });
  refuse_2d({"pad_h_end = -2"}, [](auto& p) { p.pad_h_end = -2; });
  refuse_2d({"pad_w_end = -2"}, [](auto& p) { p.pad_w_end = -2; });
  refuse_2d({"stride_h = 0"}, [](auto& p) { p.stride_h = 0; });
  refuse_2d({"stride_w = -1"}, [](auto& p) { p.stride_w = -1; });
  refuse_2d({"dilation_h = 0"}, [](auto& p) { p.dilation_h = 0; });
  refuse_2d({"dilation_w = -1"}, [](auto& p) { p.dilation_w = -1; });
  refuse_2d({"groups = 0"}, [](auto& p) { p.groups = 0; });
  refuse_2d({"upsample = 0", "1 or 2", "nearest: 1"}, [](auto& p) { p.upsample = 0; });
  refuse_2d({"upsample = 3", "nearest: 2"}, [](auto& p) { p.upsample = 3; });
  refuse_2d({"pad_mode", "7"}, [](auto& p) { p.pad_mode = static_cast<PadMode>(7); });

  refuse_3d({"in_depth = 0"}, [](auto& p) { p.in_depth = 0; });
  refuse_3d({"cached_frames = -1"}, [](auto& p) { p.cached_frames = -1; });
  refuse_3d({"filter[0] = 0"}, [](auto& p) { p.filter[0] = 0; });
  refuse_3d({"pad_begin[1] = -1"}, [](auto& p) { p.pad_begin[1] = -1; });
  refuse_3d({"pad_end[2] = -1"}, [](auto& p) { p.pad_end[2] = -1; });
  refuse_3d({"stride[0] = 0"}, [](auto& p) { p.stride[0] = 0; });
  refuse_3d({"dilation[2] = 0"}, [](auto& p) { p.dilation[2] = 0; });
}

TEST(Geometry, RefusesAFilterLargerThanThePaddedInput) {
  // 9 rows and one of padding on each side: 11.
  refuse_2d({"filter_h = 12", "spans 12", "padded input has 11", "nearest: filter_h = 11",
             "1 more of padding"},
            [](auto& p) { p.filter_h = 12; });
  refuse_2d({"dilation_w = 5", "spans 11", "has 9", "nearest: filter_w = 2"},
            [](auto& p) { p.dilation_w = 5; });
  refuse_3d({"filter[0] = 7", "padded input has 6"}, [](auto& p) { p.filter[0] = 7; });
  Conv2dProblemShape exact = small_2d();
  exact.filter_h = 11;
  EXPECT_EQ(exact.out_height(), 1);
}

TEST(Geometry, RefusesGroupsThatDoNotDivide) {
  refuse_2d({"groups = 4", "in_channels = 6", "nearest: 2"}, [](auto& p) { p.groups = 4; });
  refuse_2d({"groups = 3", "out_channels = 4", "nearest: 2"}, [](auto& p) { p.groups = 3; });
  refuse_2d({"groups = 12", "in_channels = 6"}, [](auto& p) { p.groups = 12; });
}

TEST(Geometry, RefusesReflectionPastTheInput) {
  refuse_2d({"pad_h = 9", "reflect", "at most 8"}, [](auto& p) {
    p.pad_mode = PadMode::reflect;
    p.pad_h = 9;
  });
  refuse_2d({"pad_w_end = 7", "at most 6"}, [](auto& p) {
    p.pad_mode = PadMode::reflect;
    p.pad_w_end = 7;
  });
  Conv2dProblemShape edge = small_2d();
  edge.pad_mode = PadMode::reflect;
  edge.pad_h = 8;
  EXPECT_EQ(edge.out_height(), 9 + 16 - 2);
  // Replication has no such limit.
  edge.pad_mode = PadMode::replicate;
  edge.pad_h = 100;
  EXPECT_EQ(edge.out_height(), 9 + 200 - 2);
}

TEST(Geometry, RefusesEveryOverflow) {
  refuse_2d({"upsample * in_height", "64 bits"}, [](auto& p) {
    p.in_height = kMax / 2 + 1;
    p.upsample = 2;
  });
  refuse_2d({"dilation * (filter - 1)"}, [](auto& p) { p.dilation_h = kMax; });
  refuse_2d({"filter span"}, [](auto& p) {
    p.filter_h = 2;
    p.dilation_h = kMax;
  });
  refuse_2d({"padded input"}, [](auto& p) { p.pad_h = kMax; });
  refuse_2d({"padded input"}, [](auto& p) {
    p.in_width = kMax;
    p.pad_w_end = 1;
  });
  refuse_2d({"activation bytes", "64 bits"}, [](auto& p) { p.batch = kMax / 8; });
  refuse_2d({"activation bytes"}, [](auto& p) {
    p.in_height = std::int64_t{1} << 31;
    p.in_width = std::int64_t{1} << 31;
  });
  // An empty batch does not hide it.
  refuse_2d({"activation bytes"}, [](auto& p) {
    p.batch = 0;
    p.in_height = std::int64_t{1} << 31;
    p.in_width = std::int64_t{1} << 31;
  });
  refuse_2d({"filter bytes"}, [](auto& p) { p.out_channels = kMax / 32; });
  refuse_2d({"output bytes"}, [](auto& p) {
    p.pad_mode = PadMode::zero;
    p.pad_h = std::int64_t{1} << 30;
    p.pad_w = std::int64_t{1} << 30;
  });
  refuse_3d({"cached_frames + in_depth"}, [](auto& p) { p.cached_frames = kMax; });
  refuse_3d({"next cache"}, [](auto& p) {
    p.in_height = p.in_width = std::int64_t{1} << 15;
    p.filter[0] = std::int64_t{1} << 31;
    p.pad_begin[0] = (std::int64_t{1} << 31) - 4;
    p.in_channels = 1;
    p.out_channels = 0;
  });
  refuse_2d({"4611686018427387904"}, [](auto& p) { p.batch = std::int64_t{1} << 62; });
}

TEST(Geometry, LargeTensorsThatFitAreLegal) {
  // Past 2^31 elements, and past 2^32 bytes.
  const Conv3dProblemShape p{.batch = 1,
                             .in_depth = 124,
                             .in_height = 1282,
                             .in_width = 722,
                             .in_channels = 16,
                             .out_channels = 16,
                             .filter = {1, 3, 3},
                             .pad_begin = {0, 1, 1},
                             .pad_end = {0, 1, 1}};
  EXPECT_EQ(p.gemm_m(), std::int64_t{124} * 1282 * 722);
  EXPECT_EQ(geometry_of(p).output_elements(), std::int64_t{124} * 1282 * 722 * 16);
}

TEST(Geometry, ShapeStrings) {
  EXPECT_EQ(small_2d().to_string(), "n2h9w7c6k4r3s3ph1pw1");
  Conv2dProblemShape p = small_2d();
  p.pad_h_end = 2;
  p.stride_w = 2;
  p.dilation_h = 3;
  p.groups = 2;
  p.upsample = 2;
  p.pad_mode = PadMode::reflect;
  EXPECT_EQ(p.to_string(), "n2h9w7c6k4r3s3ph1phe2dh3mh2pw1sw2mw2g2up2");
  EXPECT_EQ(small_3d().to_string(), "n2d4h9w7c6k4t3r3s3pd2pde0ph1pw1");
  Conv3dProblemShape q = small_3d();
  q.pad_begin[0] = 0;
  q.cached_frames = 2;
  EXPECT_EQ(q.to_string(), "n2d4h9w7c6k4t3r3s3ph1pw1cache2");
}

}  // namespace
}  // namespace convoy
