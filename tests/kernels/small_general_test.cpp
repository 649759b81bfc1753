// SPDX-License-Identifier: Apache-2.0
//
// general, and what it reads and writes: filters in every layout, folded filters, the next cache.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "convoy/dtype.hpp"
#include "kernels/common/filter_packing.hpp"
#include "small_case.hpp"

namespace convoy::test {
namespace {

TEST_F(Small, General) {
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    const auto general = [&](const ConvGeometry& g) {
      expect_right(with_kernel(g, "general", dtype));
    };
    general(shape_2d(1, 15, 17, 64, 80, 3, 1));      // Vectors of 8.
    general(shape_2d(1, 15, 17, 6, 5, 3, 1));        // Vectors of 2, few filters.
    general(shape_2d(1, 15, 17, 7, 65, 3, 2, 2));    // Element by element, odd everything.
    general(shape_2d(1, 32, 48, 3, 24, 16, 0, 16));  // Patch embedding: width folded into channels.
    general(shape_2d(1, 20, 31, 3, 24, 4, 0, 3));    // Overlapping patches, folded.
    general(shape_3d(2, 2, 0, 7, 9, 12, 20));        // Cached frames.
    ConvGeometry grouped = shape_2d(1, 10, 11, 24, 36, 3, 1);
    grouped.groups = 3;
    general(grouped);
    for (const PadMode mode : {PadMode::replicate, PadMode::reflect}) {
      ConvGeometry padded = shape_2d(1, 9, 11, 16, 24, 5, 2);
      padded.pad_mode = {PadMode::zero, mode, mode};
      general(padded);
    }
    Conv2dProblemShape upsampled{.in_height = 6,
                                 .in_width = 7,
                                 .in_channels = 16,
                                 .out_channels = 24,
                                 .filter_h = 3,
                                 .filter_w = 3,
                                 .pad_h = 1,
                                 .pad_w = 1,
                                 .upsample = 2};
    general(geometry_of(upsampled));
  }
}

TEST_F(Small, FilterLayouts) {
  for (const FilterLayout layout : {FilterLayout::krsc, FilterLayout::kcrs, FilterLayout::rscf}) {
    for (const DType dtype : {DType::bf16, DType::fp32}) {
      ConvCase test = with_kernel(shape_2d(1, 6, 7, 10, 12, 3, 1), "general", dtype);
      test.filter_layout = layout;
      expect_right(test);
    }
  }
  ConvCase test = with_kernel(shape_3d(0, 3, 2, 5, 6, 8, 12), "general");
  test.filter_layout = FilterLayout::kctrs;
  expect_right(test);
  test.filter_layout = FilterLayout::trscf;
  expect_right(test);
}

TEST_F(Small, NextCache) {
  for (const std::int64_t channels : {3, 16}) {
    for (const std::int64_t cached : {0, 1, 2}) {
      for (const std::int64_t frames : {1, 2, 4}) {
        ConvCase test =
            with_kernel(shape_3d(cached, frames, 2 - cached, 5, 6, channels, 4), "general");
        test.next_cache = true;
        expect_right(test);
      }
    }
  }
}

// Four 2×2 phase convolutions of the small input are the 3×3 convolution of the upsampled one.
void check_folded_filters(UpsampleFolding folding) {
  Conv2dProblemShape shape{.in_height = 4,
                           .in_width = 5,
                           .in_channels = 3,
                           .out_channels = 2,
                           .filter_h = 3,
                           .filter_w = 3,
                           .pad_h = 1,
                           .pad_w = 1,
                           .upsample = 2};
  ConvGeometry g = geometry_of(shape);
  g.upsample_folding = folding;
  const int terms = folding == UpsampleFolding::exact ? 2 : 1;
  ASSERT_EQ(upsample_folding_refusal(g), "");
  std::mt19937 random(5);
  std::vector<float> filter(2 * 3 * 3 * 3), input(4 * 5 * 3);
  // Sums of these need more bits than bf16 has, and fewer than two of it.
  for (float& x : filter) x = float(int(random() % 511) - 255);
  for (float& x : input) x = float(int(random() % 7) - 3);
  void *source = nullptr, *packed = nullptr;
  const std::size_t bytes = upsampled_filter_bytes(g, DType::bf16);
  ASSERT_EQ(bytes, 4u * 2 * 2 * 2 * 3 * terms * 2);
  std::vector<std::uint16_t> stored(filter.size());
  for (std::size_t i = 0; i < filter.size(); ++i)
    store_element(stored.data(), i, DType::bf16, filter[i]);
  ASSERT_EQ(cudaMalloc(&source, stored.size() * 2), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&packed, bytes), cudaSuccess);
  cudaMemcpy(source, stored.data(), stored.size() * 2, cudaMemcpyHostToDevice);
  pack_upsampled_filter(packed, source, FilterLayout::krsc, g, DType::bf16, nullptr);
  std::vector<std::uint16_t> phases(bytes / 2);
  ASSERT_EQ(cudaMemcpy(phases.data(), packed, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
  cudaFree(source);
  cudaFree(packed);

  const auto at = [&](int h, int w, int c) {
    return h < 0 || w < 0 || h >= 4 || w >= 5 ? 0.0f : input[(h * 5 + w) * 3 + c];
  };
  int rounded = 0;
  const auto floor_half = [](int x) { return x < 0 ? (x - 1) / 2 : x / 2; };
  for (int p = 0; p < 8; ++p) {
    for (int q = 0; q < 10; ++q) {
      for (int k = 0; k < 2; ++k) {
        float direct = 0, folded = 0, magnitude = 0;
        for (int r = 0; r < 3; ++r) {
          for (int s = 0; s < 3; ++s) {
            for (int c = 0; c < 3; ++c) {
              const float x = at(floor_half(p + r - 1), floor_half(q + s - 1), c);
              direct += x * filter[((k * 3 + r) * 3 + s) * 3 + c];
              magnitude += std::fabs(x * filter[((k * 3 + r) * 3 + s) * 3 + c]);
            }
          }
        }
        const int a = p % 2, b = q % 2;
        for (int term = 0; term < terms; ++term) {
          for (int u = 0; u < 2; ++u) {
            for (int v = 0; v < 2; ++v) {
              for (int c = 0; c < 3; ++c) {
                const int filter_of_term = ((a * 2 + b) * 2 + k) * terms + term;
                folded += at(p / 2 - 1 + a + u, q / 2 - 1 + b + v, c) *
                          load_element(phases.data(), ((filter_of_term * 2 + u) * 2 + v) * 3 + c,
                                       DType::bf16);
              }
            }
          }
        }
        if (folding == UpsampleFolding::exact) {
          ASSERT_EQ(direct, folded) << "p " << p << " q " << q << " k " << k;
        } else {
          ASSERT_NEAR(direct, folded, magnitude / 256) << "p " << p << " q " << q << " k " << k;
          rounded += direct != folded ? 1 : 0;
        }
      }
    }
  }
  EXPECT_EQ(rounded > 0, folding == UpsampleFolding::fast);
}

TEST_F(Small, FoldedUpsamplingFilters) {
  check_folded_filters(UpsampleFolding::exact);
  check_folded_filters(UpsampleFolding::fast);
}

}  // namespace
}  // namespace convoy::test
