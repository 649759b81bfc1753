// SPDX-License-Identifier: Apache-2.0
//
// The Hopper kernel as users instantiate it: compute and store ops on registers and on the staged
// tile, with linear and with patched tiles, and ragged filters that are stored without TMA.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "convoy/sm90/conv_fprop.cuh"

namespace convoy {
namespace {

using bf16 = __nv_bfloat16;

// v -> 2v + (m mod 5) - n: depends on every coordinate, exact in bf16 for what the tests compute.
template <bool kRegisters>
struct Tag {
  static constexpr bool kEnabled = true;
  static constexpr bool kOnRegisters = kRegisters;
  template <int kWidth>
  __device__ void operator()(std::int64_t m, int n, float (&values)[kWidth]) const {
    for (int i = 0; i < kWidth; ++i) {
      values[i] = 2.0f * values[i] + static_cast<float>(m % 5) - static_cast<float>(n + i);
    }
  }
};

// Count what is stored, and copy it negated.
template <bool kReplaces>
struct Copy {
  static constexpr bool kEnabled = true;
  static constexpr bool kReplacesStore = kReplaces;
  bf16* copy;
  int filters;
  template <typename Out, int kWidth>
  __device__ void operator()(std::int64_t m, int n, const Out (&values)[kWidth]) const {
    for (int i = 0; i < kWidth && n + i < filters; ++i) {
      copy[m * filters + n + i] = __float2bfloat16(-__bfloat162float(values[i]));
    }
  }
};

struct Buffers {
  bf16* activation = nullptr;
  bf16* filter = nullptr;
  bf16* output = nullptr;
  bf16* copy = nullptr;
  ~Buffers() {
    for (bf16* p : {activation, filter, output, copy}) cudaFree(p);
  }
};

template <typename Config, typename ComputeOp, bool kReplaces>
void check(std::int64_t h, std::int64_t w, std::int64_t c, std::int64_t k) {
  int major = 0;
  int minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) != cudaSuccess ||
      major != 9 || minor != 0) {
    GTEST_SKIP() << "no Hopper GPU";
  }
  const Conv2dProblemShape problem{.in_height = h,
                                   .in_width = w,
                                   .in_channels = c,
                                   .out_channels = k,
                                   .filter_h = 3,
                                   .filter_w = 3,
                                   .pad_h = 1,
                                   .pad_w = 1};
  std::vector<bf16> a(static_cast<std::size_t>(h * w * c));
  std::vector<bf16> b(static_cast<std::size_t>(k * 9 * c));
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = __float2bfloat16(static_cast<float>(static_cast<int>(i * 7 % 11 % 3) - 1));
  }
  for (std::size_t i = 0; i < b.size(); ++i) {
    b[i] = __float2bfloat16(static_cast<float>(static_cast<int>(i * 5 % 13 % 3) - 1));
  }
  const std::size_t count = static_cast<std::size_t>(h * w * k);
  Buffers device;
  ASSERT_EQ(cudaMalloc(&device.activation, a.size() * 2), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&device.filter, b.size() * 2), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&device.output, count * 2), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&device.copy, count * 2), cudaSuccess);
  cudaMemcpy(device.activation, a.data(), a.size() * 2, cudaMemcpyHostToDevice);
  cudaMemcpy(device.filter, b.data(), b.size() * 2, cudaMemcpyHostToDevice);
  cudaMemset(device.output, 0xff, count * 2);
  cudaMemset(device.copy, 0xff, count * 2);

  using Store = Copy<kReplaces>;
  sm90::conv_fprop<Config>(device.output, device.activation, device.filter, problem, {},
                           ComputeOp{}, Store{device.copy, static_cast<int>(k)});
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  std::vector<bf16> output(count);
  std::vector<bf16> copy(count);
  cudaMemcpy(output.data(), device.output, count * 2, cudaMemcpyDeviceToHost);
  cudaMemcpy(copy.data(), device.copy, count * 2, cudaMemcpyDeviceToHost);

  for (std::int64_t m = 0; m < h * w; ++m) {
    for (std::int64_t n = 0; n < k; ++n) {
      float sum = 0;
      for (std::int64_t r = 0; r < 3; ++r) {
        for (std::int64_t s = 0; s < 3; ++s) {
          const std::int64_t y = m / w + r - 1;
          const std::int64_t x = m % w + s - 1;
          if (y < 0 || y >= h || x < 0 || x >= w) continue;
          for (std::int64_t i = 0; i < c; ++i) {
            sum += __bfloat162float(a[static_cast<std::size_t>((y * w + x) * c + i)]) *
                   __bfloat162float(b[static_cast<std::size_t>((n * 9 + r * 3 + s) * c + i)]);
          }
        }
      }
      // The op on the staged tile sees values already rounded to bf16.
      if (!ComputeOp::kOnRegisters) sum = __bfloat162float(__float2bfloat16(sum));
      const float want = __bfloat162float(
          __float2bfloat16(2.0f * sum + static_cast<float>(m % 5) - static_cast<float>(n)));
      const auto i = static_cast<std::size_t>(m * k + n);
      ASSERT_EQ(__bfloat162float(copy[i]), -want) << "pixel " << m << " filter " << n;
      if (kReplaces) {
        ASSERT_TRUE(std::isnan(__bfloat162float(output[i]))) << "the store was to be replaced";
      } else {
        ASSERT_EQ(__bfloat162float(output[i]), want) << "pixel " << m << " filter " << n;
      }
    }
  }
}

TEST(Sm90Api, ComputeOpOnRegisters) {
  check<sm90::Default<bf16>, Tag<true>, false>(9, 13, 24, 40);
}
TEST(Sm90Api, ComputeOpOnTheStagedTile) {
  check<sm90::Default<bf16>, Tag<false>, false>(9, 13, 24, 40);
}
TEST(Sm90Api, StoreOpReplacesTheStore) {
  check<sm90::Default<bf16>, Tag<true>, true>(9, 13, 24, 40);
}
TEST(Sm90Api, PatchedTiles) {
  check<sm90::DefaultHalo<bf16>, Tag<true>, false>(9, 13, 24, 40);
}
TEST(Sm90Api, RaggedFiltersWithoutTma) {
  check<sm90::DefaultHalo<bf16>, Tag<false>, false>(9, 13, 24, 37);
}

}  // namespace
}  // namespace convoy
