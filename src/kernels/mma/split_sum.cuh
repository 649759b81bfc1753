// SPDX-License-Identifier: Apache-2.0
//
// The sum of the splits: what follows a launch whose blocks share the reductions of their tiles.
#pragma once

#include "kernels/common/output.cuh"

namespace convoy::mma {

/// What the second kernel of a split launch gets.
struct SplitSums {
  const float* sums;         ///< Of the first split, [pixels, K].
  std::int64_t split_pitch;  ///< Floats from a split to the next.
  int splits;
  std::int64_t pixels;  ///< Of the whole output.
  ConvOutput output;
};

inline constexpr int kSumThreads = 256;

/// output = epilogue(sum of the splits), always in the order of the splits. A thread takes eight
/// filters of a pixel at a time.
__global__ void __launch_bounds__(kSumThreads)
    sum_splits_kernel(const __grid_constant__ SplitSums s) {
  const std::int64_t pieces = (s.output.channels + 7) / 8;
  const std::int64_t end = s.pixels * pieces;
  const std::int64_t step = std::int64_t{gridDim.x} * kSumThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kSumThreads + threadIdx.x; i < end; i += step) {
    const std::int64_t pixel = i / pieces, filter = i % pieces * 8;
    const int count = static_cast<int>(min(s.output.channels - filter, std::int64_t{8}));
    const float* from = s.sums + pixel * s.output.channels + filter;
    float v[8] = {};
    for (int split = 0; split < s.splits; ++split, from += s.split_pitch) {
      if (s.output.vectors) {
        const float4 low = *reinterpret_cast<const float4*>(from);
        const float4 high = *reinterpret_cast<const float4*>(from + 4);
        const float part[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] += part[j];
      } else {
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] += j < count ? from[j] : 0.0f;
      }
    }
    store_channels(s.output, v, pixel, filter, count);
  }
}

}  // namespace convoy::mma
