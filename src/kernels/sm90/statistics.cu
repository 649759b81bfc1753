// SPDX-License-Identifier: Apache-2.0
//
// Merges what the warps of a launch with statistics have left: a block for each group of an image.
#include "kernels/sm90/statistics.hpp"

#include "kernels/common/launch.hpp"
#include "kernels/common/ptx.cuh"

namespace convoy::sm90 {
namespace {

constexpr int kThreads = 256;

struct Moments {
  float count, mean, squares;
};

__device__ __forceinline__ Moments merged(const Moments& a, const Moments& b) {
  if (a.count == 0.0f) return b;
  if (b.count == 0.0f) return a;
  const float total = a.count + b.count, delta = b.mean - a.mean, weight = b.count / total;
  return {total, fmaf(delta, weight, a.mean),
          a.squares + b.squares + delta * (delta * (a.count * weight))};
}

__global__ void __launch_bounds__(kThreads)
    merge_statistics_kernel(const __grid_constant__ StatisticsMerge merge, float2* output) {
  __shared__ Moments all[kThreads];
  ptx::dependent_launch_wait();
  ptx::dependent_launch_trigger();
  const StatisticsParams& s = merge.partials;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t image = blockIdx.x / static_cast<unsigned>(merge.groups);
  const int group = static_cast<int>(blockIdx.x % static_cast<unsigned>(merge.groups));
  Moments mine = {0.0f, 0.0f, 0.0f};
  for (int i = 0; i < merge.group_slices; ++i) {
    const int slice = group * merge.group_slices + i;
    const int tile = slice / merge.tile_slices;
    // Of the image's last tiles those that have these filters.
    const int first_tile = s.image_tiles - s.slots;
    const int ahead = tile - first_tile % merge.filter_tiles;
    const int first = ahead < 0 ? ahead + merge.filter_tiles : ahead;
    for (int warp = thread;; warp += kThreads) {
      const std::int64_t slot = first + static_cast<std::int64_t>(warp / 4) * merge.filter_tiles;
      if (slot >= s.slots) break;
      const std::int64_t record = (image * s.slots + slot) * 4 + warp % 4;
      const float2 partial = s.partials[record * merge.tile_slices + slice % merge.tile_slices];
      mine = merged(mine, {s.pixels[record] * kSliceFilters, partial.x, partial.y});
    }
  }
  all[thread] = mine;
  __syncthreads();
  for (int stride = kThreads / 2; stride > 0; stride /= 2) {
    if (thread < stride) all[thread] = merged(all[thread], all[thread + stride]);
    __syncthreads();
  }
  if (thread == 0) output[blockIdx.x] = make_float2(all[0].mean, all[0].squares / all[0].count);
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
