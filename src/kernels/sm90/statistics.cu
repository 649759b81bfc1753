// SPDX-License-Identifier: Apache-2.0
//
// Merges what the warps of a launch with statistics have left: a block for each group of an image.
#include "kernels/sm90/statistics.hpp"

#include "kernels/common/launch.hpp"
#include "kernels/common/ptx.cuh"

namespace convoy::sm90 {
namespace {

constexpr int kThreads = 512, kAtOnce = 4;

struct Moments {
  float count, mean, squares;
};

__device__ __forceinline__ Moments merged(const Moments& a, const Moments& b) {
  if (a.count == 0.0f) return b;
  if (b.count == 0.0f) return a;
  const float total = a.count + b.count, delta = b.mean - a.mean;
  const float weight = __fdividef(b.count, total);
  return {total, fmaf(delta, weight, a.mean),
          a.squares + b.squares + delta * (delta * (a.count * weight))};
}

/// Of all lanes, in the first.
__device__ __forceinline__ Moments over_warp(Moments mine) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    mine = merged(mine, {__shfl_down_sync(0xffffffffu, mine.count, lanes),
                         __shfl_down_sync(0xffffffffu, mine.mean, lanes),
                         __shfl_down_sync(0xffffffffu, mine.squares, lanes)});
  }
  return mine;
}

__global__ void __launch_bounds__(kThreads)
    merge_statistics_kernel(const __grid_constant__ StatisticsMerge merge, float2* output) {
  __shared__ Moments all[kThreads / 32];
  ptx::dependent_launch_wait();
  ptx::dependent_launch_trigger();
  const StatisticsParams& s = merge.partials;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t image = blockIdx.x / static_cast<unsigned>(merge.groups);
  const int group = static_cast<int>(blockIdx.x % static_cast<unsigned>(merge.groups));
  // Records of all slices of the group, one behind another; kAtOnce of a thread are on their way.
  const int total = merge.group_slices * merge.slice_records;
  Moments mine = {0.0f, 0.0f, 0.0f};
  for (int i = thread; i < total; i += kAtOnce * kThreads) {
    Moments found[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int at = i + j * kThreads;
      found[j].count = 0.0f;
      const int of_group = merge.by_records.divide(at);
      const int warp = merge.by_records.remainder(at, of_group);
      const int slice = group * merge.group_slices + of_group;
      const int tile = merge.by_slices.divide(slice);
      // Of the image's last tiles those that have these filters.
      const int ahead = tile - merge.first_tile;
      const std::int64_t slot = (ahead < 0 ? ahead + merge.filter_tiles : ahead) +
                                static_cast<std::int64_t>(warp / 4) * merge.filter_tiles;
      if (at >= total || slot >= s.slots) continue;
      const std::int64_t record = (image * s.slots + slot) * 4 + warp % 4;
      const float2 partial =
          s.partials[record * merge.tile_slices + merge.by_slices.remainder(slice, tile)];
      found[j] = {s.pixels[record] * kSliceFilters, partial.x, partial.y};
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) mine = merged(mine, found[j]);
  }
  mine = over_warp(mine);
  if (thread % 32 == 0) all[thread / 32] = mine;
  __syncthreads();
  if (thread >= 32) return;
  mine = over_warp(thread < kThreads / 32 ? all[thread] : Moments{0.0f, 0.0f, 0.0f});
  if (thread == 0) output[blockIdx.x] = make_float2(mine.mean, mine.squares / mine.count);
}

}  // namespace

void merge_statistics(const StatisticsMerge& merge, float2* output, cudaStream_t stream) {
  launch_kernel(merge_statistics_kernel,
                {.name = "merge_statistics",
                 .grid = dim3(static_cast<unsigned>(merge.batch * merge.groups)),
                 .block = kThreads,
                 .stream = stream,
                 .overlapped = true},
                merge, output);
}

}  // namespace convoy::sm90
