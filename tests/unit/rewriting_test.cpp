// SPDX-License-Identifier: Apache-2.0
#include "core/rewriting.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace convoy {
namespace {

/// The input elements, by their place in memory, that each output element takes in, with the place
/// of the filter element that each meets; zeros in padding are left out.
std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> products(const ConvGeometry& g) {
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> all;
  const auto seen = g.seen();
  for (std::int64_t m = 0; m < g.gemm_m(); ++m) {
    const std::int64_t q = m % g.out[2], p = m / g.out[2] % g.out[1];
    const std::int64_t z = m / g.out[2] / g.out[1] % g.out[0];
    const std::int64_t n = m / g.out[2] / g.out[1] / g.out[0];
    std::vector<std::pair<std::int64_t, std::int64_t>> taken;
    std::int64_t tap = 0;
    for (std::int64_t t = 0; t < g.filter[0]; ++t) {
      for (std::int64_t r = 0; r < g.filter[1]; ++r) {
        for (std::int64_t s = 0; s < g.filter[2]; ++s, ++tap) {
          const std::int64_t d = z * g.stride[0] - g.pad_begin[0] + t * g.dilation[0];
          const std::int64_t h = p * g.stride[1] - g.pad_begin[1] + r * g.dilation[1];
          const std::int64_t w = q * g.stride[2] - g.pad_begin[2] + s * g.dilation[2];
          if (d < 0 || d >= seen[0] || h < 0 || h >= seen[1] || w < 0 || w >= seen[2]) continue;
          // The cache as negative places.
          const bool cached = d < g.cached_frames;
          const std::int64_t frame =
              cached ? n * g.cached_frames + d : n * g.in[0] + d - g.cached_frames;
          const std::int64_t pixel = (frame * g.in[1] + h) * g.in[2] + w;
          for (std::int64_t c = 0; c < g.in_channels; ++c) {
            const std::int64_t place = pixel * g.in_channels + c;
            taken.emplace_back(cached ? -1 - place : place, tap * g.in_channels + c);
          }
        }
      }
    }
    std::sort(taken.begin(), taken.end());
    all.push_back(std::move(taken));
  }
  return all;
}

/// All forms of the problem multiply the same elements.
std::vector<ConvGeometry> checked_forms(const ConvGeometry& g) {
  const auto expected = products(g);
  std::vector<ConvGeometry> forms;
  for (const Rewriting& rewriting : rewritings(g)) {
    const ConvGeometry& form = forms.emplace_back(rewriting.geometry);
    if (rewriting.keeps_pixels) {
      EXPECT_EQ(form.batch, g.batch);
      EXPECT_EQ(form.in_channels, g.in_channels);
    }
    EXPECT_EQ(form.rank, g.rank);
    EXPECT_EQ(form.out_channels, g.out_channels);
    EXPECT_LE(form.taps(), g.taps());
    EXPECT_EQ(products(form), expected);
    // Legal as it stands: validation gives the same output extents.
    Conv3dProblemShape shape{.batch = form.batch,
                             .in_depth = form.in[0],
                             .in_height = form.in[1],
                             .in_width = form.in[2],
                             .in_channels = form.in_channels,
                             .out_channels = form.out_channels,
                             .filter = form.filter,
                             .pad_begin = form.pad_begin,
                             .pad_end = form.pad_end,
                             .stride = form.stride,
                             .dilation = form.dilation,
                             .pad_mode = form.pad_mode,
                             .cached_frames = form.cached_frames};
    EXPECT_EQ(geometry_of(shape).out, form.out);
    if (form.rank == 2) {
      EXPECT_EQ(form.in[0], 1);
    }
  }
  return forms;
}

bool has_none(const ConvGeometry& g) {
  return rewritings(g).empty();
}

ConvGeometry image(std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t filter_h,
                   std::int64_t filter_w, std::int64_t stride_h, std::int64_t stride_w,
                   std::int64_t pad_h = 0, std::int64_t pad_w = 0) {
  return geometry_of(Conv2dProblemShape{.batch = n,
                                        .in_height = h,
                                        .in_width = w,
                                        .in_channels = 3,
                                        .out_channels = 5,
                                        .filter_h = filter_h,
                                        .filter_w = filter_w,
                                        .pad_h = pad_h,
                                        .pad_w = pad_w,
                                        .stride_h = stride_h,
                                        .stride_w = stride_w});
}

TEST(Rewriting, PatchesOfAnImage) {
  const auto forms = checked_forms(image(2, 8, 12, 4, 4, 4, 4));
  ASSERT_EQ(forms.size(), 2u);
  EXPECT_EQ(forms[0].in_channels, 12);
  EXPECT_EQ(forms[0].filter, (std::array<std::int64_t, 3>{1, 4, 1}));
  // Each row of patches is an image of its own.
  EXPECT_EQ(forms[1].batch, 4);
  EXPECT_EQ(forms[1].in, (std::array<std::int64_t, 3>{1, 4, 3}));
  EXPECT_EQ(forms[1].out, (std::array<std::int64_t, 3>{1, 1, 3}));
}

TEST(Rewriting, PatchThatSpansTheVolumeIsOneByOne) {
  Conv3dProblemShape shape{.batch = 7,
                           .in_depth = 2,
                           .in_height = 6,
                           .in_width = 4,
                           .in_channels = 3,
                           .out_channels = 5,
                           .filter = {2, 6, 4},
                           .stride = {2, 6, 4}};
  const auto forms = checked_forms(geometry_of(shape));
  ASSERT_EQ(forms.size(), 1u);
  EXPECT_EQ(forms[0].taps(), 1);
  EXPECT_EQ(forms[0].in_channels, 2 * 6 * 4 * 3);
  EXPECT_EQ(forms[0].gemm_m(), 7);
}

TEST(Rewriting, PatchesOfFramesBecomeDilation) {
  Conv3dProblemShape shape{.batch = 2,
                           .in_depth = 4,
                           .in_height = 6,
                           .in_width = 9,
                           .in_channels = 2,
                           .out_channels = 5,
                           .filter = {2, 3, 3},
                           .stride = {2, 3, 3}};
  const auto forms = checked_forms(geometry_of(shape));
  ASSERT_EQ(forms.size(), 2u);
  EXPECT_EQ(forms[1].batch, 4);
  EXPECT_EQ(forms[1].dilation[0], 2);
}

TEST(Rewriting, PaddingOfWholeStrides) {
  EXPECT_EQ(checked_forms(image(1, 5, 8, 3, 4, 2, 2, 1, 2)).size(), 1u);
  EXPECT_EQ(checked_forms(image(1, 5, 8, 3, 4, 2, 2, 1, 1)).size(), 0u);  // Half a stride.
}

TEST(Rewriting, RowsWhoseEndNothingReads) {
  EXPECT_EQ(checked_forms(image(1, 1, 11, 1, 4, 1, 4)).size(), 1u);
  EXPECT_EQ(checked_forms(image(1, 2, 11, 1, 4, 1, 4)).size(), 0u);  // The pitch is 11.
}

TEST(Rewriting, ColumnsThatAreNoneMoveTheHeightUp) {
  const auto forms = checked_forms(image(2, 16, 1, 4, 1, 2, 1));
  ASSERT_EQ(forms.size(), 1u);
  EXPECT_EQ(forms[0].in, (std::array<std::int64_t, 3>{1, 1, 8}));
  EXPECT_EQ(forms[0].in_channels, 6);
}

TEST(Rewriting, TheCacheStaysInFront) {
  Conv3dProblemShape shape{.batch = 2,
                           .in_depth = 2,
                           .in_height = 3,
                           .in_width = 4,
                           .in_channels = 2,
                           .out_channels = 5,
                           .filter = {3, 1, 2},
                           .stride = {1, 1, 2},
                           .cached_frames = 2};
  const auto forms = checked_forms(geometry_of(shape));
  ASSERT_EQ(forms.size(), 1u);
  EXPECT_EQ(forms[0].cached_frames, 2);
}

// Pitches may be named where they are those of dense tensors, too.
TEST(Rewriting, DenseTensorsStayDense) {
  ConvGeometry g = image(2, 28, 12, 7, 6, 7, 6);
  g.input_pixel_pitch = g.in_channels;
  g.input_row_pitch = g.in[2] * g.in_channels;
  g.output_row_pitch = g.out[2] * g.out_channels;
  g.output_frame_pitch = g.out[1] * g.output_row_pitch;
  const std::vector<ConvGeometry> forms = checked_forms(g);
  ASSERT_FALSE(forms.empty());
  for (const ConvGeometry& form : forms) EXPECT_TRUE(form.dense_input() && form.dense_output());
  ConvGeometry overlapping = g;
  overlapping.input_pixel_pitch = 1;
  EXPECT_TRUE(has_none(overlapping));
  g.output_row_pitch *= 2;
  EXPECT_TRUE(has_none(g));
}

Conv3dProblemShape temporal(std::int64_t stride) {
  return {.batch = 2,
          .in_depth = 7,
          .in_height = 2,
          .in_width = 5,
          .in_channels = 3,
          .out_channels = 4,
          .filter = {3, 1, 1},
          .pad_begin = {4, 0, 0},
          .pad_end = {1, 0, 0},
          .stride = {stride, 1, 1},
          .dilation = {2, 1, 1}};
}

TEST(Rewriting, FramesAsRows) {
  for (const std::int64_t stride : {1, 2}) {
    const ConvGeometry g = geometry_of(temporal(stride));
    const auto forms = rewritings(g);
    ASSERT_EQ(forms.size(), 1u);
    EXPECT_TRUE(forms[0].keeps_pixels);
    const ConvGeometry form = checked_forms(g).at(0);
    EXPECT_EQ(form.in, (std::array<std::int64_t, 3>{1, 7, 10}));
    EXPECT_EQ(form.filter, (std::array<std::int64_t, 3>{1, 3, 1}));
  }
  Conv3dProblemShape grouped = temporal(1);
  grouped.in_channels = grouped.out_channels = grouped.groups = 4;
  EXPECT_EQ(rewritings(geometry_of(grouped)).size(), 1u);
}

// Frames of a cache lie elsewhere; taps across a frame keep its rows apart.
TEST(Rewriting, FramesThatStayFrames) {
  Conv3dProblemShape cached = temporal(1);
  cached.pad_begin[0] = 2;
  cached.cached_frames = 2;
  EXPECT_TRUE(has_none(geometry_of(cached)));
  Conv3dProblemShape tall = temporal(1);
  tall.filter[1] = 2;
  EXPECT_TRUE(has_none(geometry_of(tall)));
  Conv3dProblemShape padded = temporal(1);
  padded.pad_end[2] = 1;
  EXPECT_TRUE(has_none(geometry_of(padded)));
  Conv3dProblemShape replicated = temporal(1);
  replicated.pad_mode[0] = PadMode::replicate;
  EXPECT_TRUE(has_none(geometry_of(replicated)));
}

TEST(Rewriting, NothingToRewrite) {
  EXPECT_TRUE(has_none(image(1, 9, 9, 3, 3, 1, 1)));
  EXPECT_TRUE(has_none(image(1, 9, 9, 3, 3, 2, 2)));
  ConvGeometry grouped = image(1, 8, 8, 2, 2, 2, 2);
  grouped.in_channels = grouped.out_channels = grouped.groups = 4;
  EXPECT_TRUE(has_none(grouped));
}

}  // namespace
}  // namespace convoy
