// SPDX-License-Identifier: Apache-2.0
//
// Convolutions of few input channels in fp32 (image stems, conv_in): direct, by FMA, no rounding to
// TF32. A block keeps filters in shared memory for its lifetime and walks over tiles of output
// pixels, whose input patch it copies to shared memory a tile ahead; it multiplies a tile by strips
// of 8, 16 or 32 filters. A thread has 8 (or 2) pixels x 8 filters in registers: for each element
// of the reduction as many values of the patch and two vectors of filters from shared memory, and
// 64 (or 16) FMAs.
#pragma once

#include "kernels/common/short_epilogue.cuh"
#include "kernels/common/tile_walk.cuh"
#include "kernels/small/patch_arguments.hpp"
#include "kernels/small/patch_load.cuh"

namespace convoy::small {

inline constexpr int kFmaFilters = 8;  // Of a thread, in two fours: lanes store whole sectors.
inline constexpr int kFmaMaxThreads = 128;

/// Everything about a launch that the host works out. Sizes in elements unless said otherwise.
struct FewChannelsFmaLayout : PatchLayout {
  int thread_pixels = 8;    ///< 8, or 2 where pixels are few.
  int strip = 32;           ///< Filters that are multiplied at a time: 8, 16 or 32.
  int strips = 1;           ///< Of a block.
  int columns_log2 = 5;     ///< Of the tile's columns: pixels of a tile go row by row.
  int runs_of_row = 1;      ///< Runs of neighbouring elements in a filter row: 1, or its taps,
  int run_elements = 0;     ///< of so many elements,
  int run_step = 0;         ///< in the patch from one to the next.
  int filter_elements = 0;  ///< Of a block.
  int patch_elements = 0;   ///< Of one of two patches.
  TileWalk walk;
  int filter_sets = 1;  ///< Blocks that have all filters between them.
  int tiles = 0;        ///< N·Z·tile rows·tile columns

  __host__ __device__ int shared_bytes() const {
    return (filter_elements + 2 * patch_elements) * 4;
  }
};

using FewChannelsFmaArguments = PatchArguments<FewChannelsFmaLayout>;

#ifdef __CUDACC__

template <int kPixels>
using FmaTile = float[kPixels][kFmaFilters];

/// The block's filters, from `first_filter` on, as [strip][reduction][filter], zeros behind the
/// last; they come with the first patch.
__device__ __forceinline__ void load_fma_filters(const FewChannelsFmaArguments& arguments,
                                                 float* filters, int first_filter) {
  const DeviceGeometry& g = arguments.geometry;
  const FewChannelsFmaLayout& l = arguments.layout;
  const auto* const source = static_cast<const float*>(arguments.filter) + g.filter_offset;
  const int reduction = static_cast<int>(g.reduction);
  const int in_strip = static_cast<int>(threadIdx.x) % l.strip;
  const int step = static_cast<int>(blockDim.x) / l.strip;
  for (int strip = 0; strip < l.strips; ++strip, filters += reduction * l.strip) {
    const int filter = first_filter + strip * l.strip + in_strip;
    const bool exists = filter < g.filters;
    const float* const from = source + (exists ? filter : 0) * g.filter_pitch;
    for (int k = static_cast<int>(threadIdx.x) / l.strip; k < reduction; k += step) {
      copy_async<4>(ptx::shared_address(filters + k * l.strip + in_strip), from + k, exists);
    }
  }
}

/// An element of the reduction: `offset` behind each pixel's place in the patch, and its filters.
template <int kGroups, int kPixels>
__device__ __forceinline__ void multiply(FmaTile<kPixels>& sums,
                                         const float* const (&pixels)[kPixels], int offset,
                                         const float* filters) {
  float values[kPixels], weights[kFmaFilters];
#pragma unroll
  for (int i = 0; i < kPixels; ++i) values[i] = pixels[i][offset];
  *reinterpret_cast<float4*>(weights) = *reinterpret_cast<const float4*>(filters);
  *reinterpret_cast<float4*>(weights + 4) = *reinterpret_cast<const float4*>(filters + 4 * kGroups);
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
#pragma unroll
    for (int j = 0; j < kFmaFilters; ++j) sums[i][j] = fmaf(values[i], weights[j], sums[i][j]);
  }
}

/// Epilogue and store of a thread's sums: four filters from `channel` on, and four `kStep` further,
/// of pixels `first` + places[i], or of none where that bit of `inside` is not set.
template <int kStep, int kPixels>
__device__ __forceinline__ void store_fma_tile(const ConvOutput& out, FmaTile<kPixels>& sums,
                                               int channel, std::int64_t first,
                                               const int (&places)[kPixels], std::uint32_t inside) {
  const int filters = static_cast<int>(out.channels);
  if (out.dtype == DType::fp32 && filters % 4 == 0 && is_short(out.epilogue, DType::fp32)) {
#pragma unroll
    for (int half = 0; half < 2; ++half, channel += kStep) {
      if (channel >= filters) break;
      float v[kPixels][4];
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) v[i][j] = sums[i][half * 4 + j];
      }
      const std::int64_t origin = first * filters + channel;
      const auto element = [&](int i) {
        return inside >> i & 1 ? origin + places[i] * filters : std::int64_t{-1};
      };
      if (!out.plain) apply_short_epilogue<float>(out, v, channel, element);
      float* const to = static_cast<float*>(out.data) + origin;
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
        if (!(inside >> i & 1)) continue;
        *reinterpret_cast<float4*>(to + places[i] * filters) =
            make_float4(v[i][0], v[i][1], v[i][2], v[i][3]);
      }
    }
    return;
  }
  // One copy of the epilogue's code: registers are picked by constant indices.
#pragma unroll 1
  for (int half = 0; half < 2; ++half, channel += kStep) {
    const int count = min(filters - channel, 4);
    if (count <= 0) break;
    float bias[4];
    load_biases(out.epilogue, bias, channel, count);
#pragma unroll 1
    for (int pixel = 0; pixel < kPixels; ++pixel) {
      if (!(inside >> pixel & 1)) continue;
      float v[4] = {};
      int place = 0;
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
        if (i == pixel) place = places[i];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float value = half == 0 ? sums[i][j] : sums[i][4 + j];
          v[j] = i == pixel ? value : v[j];
        }
      }
      store_channels(out, v, bias, first + place, channel, count);
    }
  }
}

/// kGroups: lanes that share a pixel, so that a strip has 8·kGroups filters. kPixels: of a thread.
template <int kGroups, int kPixels>
__global__ void __launch_bounds__(kFmaMaxThreads, kPixels == 8 ? 3 : 6)
    few_channels_fma_kernel(const __grid_constant__ FewChannelsFmaArguments arguments) {
  constexpr int kStrip = kFmaFilters * kGroups;
  constexpr int kPixelStep = 32 / kGroups;  // From a thread's pixel to its next.
  const DeviceGeometry& g = arguments.geometry;
  const FewChannelsFmaLayout& l = arguments.layout;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const filters = reinterpret_cast<float*>(shared);
  auto* const patches = filters + l.filter_elements;
  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread % kGroups;
  const int first_filter = static_cast<int>(blockIdx.x) % l.filter_sets * l.strips * kStrip;

  const auto load_patch = [&](int tile, const TilePosition& at, int buffer) {
    if (tile < l.tiles) {
      float* const patch = patches + buffer * l.patch_elements;
      const int d = at.z * g.stride[0] - g.pad[0];
      const int h = at.p * l.tile_rows * g.stride[1] - g.pad[1];
      const int w = at.q * l.tile_columns * g.stride[2] - g.pad[2];
      const int threads = static_cast<int>(blockDim.x);
      if (l.vector == 4) {
        load_patch_rows<4>(arguments, patch, at.n, d, h, w, threads);
      } else {
        load_patch_rows<1>(arguments, patch, at.n, d, h, w, threads);
      }
    }
    copy_async_commit();
  };
  const int first_tile = static_cast<int>(blockIdx.x) / l.filter_sets;
  const int tile_step = static_cast<int>(gridDim.x) / l.filter_sets;
  const TilePosition step = l.walk.position(tile_step);
  TilePosition next = l.walk.position(first_tile);
  load_fma_filters(arguments, filters, first_filter);
  load_patch(first_tile, next, 0);

  // This thread's pixels, of the tile row by row.
  const int first_pixel = thread / 32 * (kPixels * kPixelStep) + thread % 32 / kGroups;
  int taps[kPixels];    // Of each the first tap, in the patch.
  int places[kPixels];  // In the output, from the tile's first pixel on.
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    const int pixel = first_pixel + i * kPixelStep;
    const int row = pixel >> l.columns_log2, column = pixel - (row << l.columns_log2);
    taps[i] = row * g.stride[1] * l.row_pitch + column * g.stride[2] * l.pixel_pitch;
    places[i] = row * g.out[2] + column;
  }

  int buffer = 0;
  for (int tile = first_tile; tile < l.tiles; tile += tile_step, buffer ^= 1) {
    const TilePosition at = next;
    next = l.walk.advance(at, step);
    load_patch(tile + tile_step, next, buffer ^ 1);
    copy_async_wait<1>();
    __syncthreads();

    const int p = at.p * l.tile_rows, q = at.q * l.tile_columns;
    std::uint32_t inside = (1u << kPixels) - 1;
    if (p + l.tile_rows > g.out[1] || q + l.tile_columns > g.out[2]) {
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
        const int pixel = first_pixel + i * kPixelStep;
        const int row = pixel >> l.columns_log2, column = pixel - (row << l.columns_log2);
        if (p + row >= g.out[1] || q + column >= g.out[2]) inside &= ~(1u << i);
      }
    }
    const std::int64_t first =
        ((std::int64_t{at.n} * g.out[0] + at.z) * g.out[1] + p) * g.out[2] + q;

    const float* weights = filters + group * 4;
#pragma unroll 1
    for (int strip = 0; strip < l.strips; ++strip) {
      FmaTile<kPixels> sums = {};
      const float* frame = patches + buffer * l.patch_elements;
      for (int t = 0; t < g.filter[0]; ++t, frame += l.rows * l.row_pitch) {
        const float* row = frame;
        for (int r = 0; r < g.filter[1]; ++r, row += g.dilation[1] * l.row_pitch) {
          const float* run = row;
          for (int s = 0; s < l.runs_of_row; ++s, run += l.run_step) {
            const float* pixels[kPixels];
#pragma unroll
            for (int i = 0; i < kPixels; ++i) pixels[i] = run + taps[i];
#pragma unroll 3
            for (int e = 0; e < l.run_elements; ++e, weights += kStrip) {
              multiply<kGroups, kPixels>(sums, pixels, e, weights);
            }
          }
        }
      }
      store_fma_tile<4 * kGroups, kPixels>(
          arguments.output, sums, first_filter + strip * kStrip + group * 4, first, places, inside);
    }
    // The next round overwrites this patch.
    __syncthreads();
  }
  copy_async_wait<0>();
}

#endif  // __CUDACC__

}  // namespace convoy::small
