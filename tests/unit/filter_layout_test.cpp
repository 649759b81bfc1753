// SPDX-License-Identifier: Apache-2.0
#include "core/filter_layout.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "expect_error.hpp"

namespace convoy {
namespace {

/// K, T, R, S, C of an element, packed into one number.
float tag(std::int64_t k, std::int64_t t, std::int64_t r, std::int64_t s, std::int64_t c) {
  return static_cast<float>((((k * 10 + t) * 10 + r) * 10 + s) * 10 + c);
}

Conv3dProblemShape problem_3d() {
  Conv3dProblemShape p;
  p.in_depth = p.in_height = p.in_width = 8;
  p.in_channels = 6;
  p.out_channels = 4;
  p.groups = 2;
  p.filter = {2, 3, 4};
  return p;
}

TEST(FilterLayout, RepacksEveryLayoutOfThreeDimensions) {
  const ConvGeometry g = geometry_of(problem_3d());
  const std::int64_t K = 4, T = 2, R = 3, S = 4, C = 3;
  std::vector<float> expected, kctrs, trscf;
  for (int k = 0; k < K; ++k)
    for (int t = 0; t < T; ++t)
      for (int r = 0; r < R; ++r)
        for (int s = 0; s < S; ++s)
          for (int c = 0; c < C; ++c) expected.push_back(tag(k, t, r, s, c));
  for (int k = 0; k < K; ++k)
    for (int c = 0; c < C; ++c)
      for (int t = 0; t < T; ++t)
        for (int r = 0; r < R; ++r)
          for (int s = 0; s < S; ++s) kctrs.push_back(tag(k, t, r, s, c));
  for (int t = 0; t < T; ++t)
    for (int r = 0; r < R; ++r)
      for (int s = 0; s < S; ++s)
        for (int c = 0; c < C; ++c)
          for (int k = 0; k < K; ++k) trscf.push_back(tag(k, t, r, s, c));

  std::vector<float> out(expected.size());
  const std::pair<FilterLayout, const std::vector<float>*> cases[] = {
      {FilterLayout::ktrsc, &expected},
      {FilterLayout::kctrs, &kctrs},
      {FilterLayout::trscf, &trscf}};
  for (const auto& [layout, filter] : cases) {
    std::fill(out.begin(), out.end(), -1.0f);
    repack_filter(out.data(), filter->data(), DType::fp32, layout, g);
    EXPECT_EQ(out, expected) << to_string(layout);
  }
}

TEST(FilterLayout, MovesSixteenBitElementsUnchanged) {
  const Conv2dProblemShape p{.in_height = 4,
                             .in_width = 4,
                             .in_channels = 2,
                             .out_channels = 3,
                             .filter_h = 1,
                             .filter_w = 2};
  // KCRS: k, c, s. Signalling NaN patterns must survive.
  const std::vector<std::uint16_t> kcrs = {0, 1, 2, 3, 10, 11, 12, 13, 0x7f81, 21, 22, 0xff81};
  const std::vector<std::uint16_t> krsc = {0, 2, 1, 3, 10, 12, 11, 13, 0x7f81, 22, 21, 0xff81};
  std::vector<std::uint16_t> out(kcrs.size());
  repack_filter(out.data(), kcrs.data(), DType::bf16, FilterLayout::kcrs, geometry_of(p));
  EXPECT_EQ(out, krsc);
}

TEST(FilterLayout, RefusesTheOtherRank) {
  const Conv2dProblemShape flat{.in_height = 4, .in_width = 4, .in_channels = 2, .out_channels = 3};
  for (FilterLayout layout : {FilterLayout::ktrsc, FilterLayout::kctrs, FilterLayout::trscf}) {
    test::expect_error(Status::invalid_argument, {to_string(layout), "2-D", "KRSC, KCRS, RSCF"},
                       [&] { filter_strides(geometry_of(flat), layout); });
  }
  for (FilterLayout layout : {FilterLayout::krsc, FilterLayout::kcrs, FilterLayout::rscf}) {
    test::expect_error(Status::invalid_argument, {to_string(layout), "3-D", "KTRSC"},
                       [&] { filter_strides(geometry_of(problem_3d()), layout); });
  }
}

}  // namespace
}  // namespace convoy
