// SPDX-License-Identifier: Apache-2.0
//
// few_filters for GPUs without TMA: the consumers load their stages themselves, by cp.async, the
// next one while they multiply this one. Padding of every mode is gathered by its coordinates.
#pragma once

#include "kernels/small/few_filters.cuh"

namespace convoy::small {

struct FewFiltersAsyncArguments {
  FewFiltersCommon common;
  const void* activation;
  const void* cache;
};

#ifdef __CUDACC__

/// A stage in the sequence of a block: a work item, a frame under it, 64 channels.
struct FewFiltersPlace {
  int index;  ///< Of the item; `tiles` or more: past the last.
  FewFiltersTile tile;
  int step, frame;
  int stage = 0;

  __device__ __forceinline__ FewFiltersPlace(const FewFiltersLayout& l, int strips, int taps_t)
      : index(static_cast<int>(blockIdx.x)) {
    if (index >= l.tiles) return;
    tile = few_filters_tile(l, index, strips);
    step = tile.z_begin;
    find_frame(l, strips, taps_t);
  }
  __device__ __forceinline__ bool exists(const FewFiltersLayout& l) const {
    return index < l.tiles;
  }
  __device__ __forceinline__ void advance(const FewFiltersLayout& l, int strips, int taps_t) {
    if (++stage < (l.channels + kFewFiltersChannels - 1) / kFewFiltersChannels) return;
    stage = 0;
    ++step;
    find_frame(l, strips, taps_t);
  }

 private:
  // On to the first frame at `step` or behind it that is not of zeros.
  __device__ __forceinline__ void find_frame(const FewFiltersLayout& l, int strips, int taps_t) {
    for (;;) {
      for (; step < tile.z_end + taps_t - 1; ++step) {
        frame = step - l.pad[0];
        if (map_coordinate(frame, l.frames, l.pad_mode[0])) return;
      }
      index += static_cast<int>(gridDim.x);
      if (index >= l.tiles) return;
      tile = few_filters_tile(l, index, strips);
      step = tile.z_begin;
    }
  }
};

/// Starts the copies of this thread's share of a stage: 16 bytes of every so many pixels, where
/// TMA with 128-byte swizzle would put them.
template <typename Element>
__device__ __forceinline__ void few_filters_load(const FewFiltersAsyncArguments& a,
                                                 const FewFiltersPlace& place, int rows,
                                                 unsigned char* stage, int thread) {
  const FewFiltersLayout& l = a.common.layout;
  const bool cached = place.frame < l.cached_frames;
  const auto* const from = static_cast<const Element*>(cached ? a.cache : a.activation);
  const std::int64_t frame = cached ? std::int64_t{place.tile.n} * l.cached_frames + place.frame
                                    : std::int64_t{place.tile.n} * (l.frames - l.cached_frames) +
                                          place.frame - l.cached_frames;
  const int unit = thread % 8;
  const int channel = place.stage * kFewFiltersChannels + unit * 8;
  const int first_row = place.tile.p - l.pad[1], first_column = place.tile.q - l.pad[2];
  for (int pixel = thread / 8; pixel < rows * kFewFiltersColumns; pixel += l.consumers * 4) {
    const int row = pixel / kFewFiltersColumns, column = pixel % kFewFiltersColumns;
    // Strips that lie side by side are of one row each, which begins further right.
    int h = first_row + (l.side_by_side ? 0 : row);
    int w = first_column + column + (l.side_by_side ? row * l.strip_columns : 0);
    const bool exists = map_coordinate(h, l.in[0], l.pad_mode[1]) &&
                        map_coordinate(w, l.in[1], l.pad_mode[2]) && channel < l.channels;
    const std::int64_t at = ((frame * l.in[0] + h) * l.in[1] + w) * l.channels + channel;
    copy_async<16>(ptx::shared_address(stage + pixel * 128 + (unit ^ (pixel & 7)) * 16),
                   exists ? from + at : from, exists);
  }
}

/// Template arguments: `FewFiltersWarp`'s.
template <typename Element, int kTiles, int kRows, int kT, int kS, int kK>
__global__ void __launch_bounds__(few_filters_most_consumers(kRows) * 32, 1)
    few_filters_async_kernel(const __grid_constant__ FewFiltersAsyncArguments arguments) {
  const FewFiltersLayout& l = arguments.common.layout;
  const int strips = l.consumers * kRows;
  const int taps_t = kT > 0 ? kT : l.filter[0];
  const int stage_rows = l.stage_rows(kRows);
  const int channel_stages = (l.channels + kFewFiltersChannels - 1) / kFewFiltersChannels;
  const FewFiltersShared<8 * kTiles, kRows> shared(l);
  const int thread = static_cast<int>(threadIdx.x);
  const FewFiltersWarp<Element, kTiles, kRows, kT, kS, kK> me(arguments.common, shared, thread / 32,
                                                              thread % 32);

  me.load_filters();
  FewFiltersPlace next(l, strips, taps_t);  // The stage to load.
  int next_buffer = 0;
  const auto load_next = [&] {
    if (next.exists(l)) {
      few_filters_load<Element>(arguments, next, stage_rows,
                                shared.stages + next_buffer * shared.stage_bytes, thread);
      next.advance(l, strips, taps_t);
    }
    copy_async_commit();
    next_buffer ^= 1;
  };
  load_next();

  for (int index = static_cast<int>(blockIdx.x); index < l.tiles;
       index += static_cast<int>(gridDim.x)) {
    const FewFiltersTile tile = few_filters_tile(l, index, strips);
    // `step` counts padded frames: it meets frame step − pad, and completes output step − (T − 1).
    for (int step = tile.z_begin; step < tile.z_end + taps_t - 1; ++step) {
      me.begin(step);
      int frame = step - l.pad[0];
      if (map_coordinate(frame, l.frames, l.pad_mode[0])) {
        float accumulators[kRows][2][kTiles][4] = {};
        for (int stage = 0; stage < channel_stages; ++stage) {
          const int stage_at = (next_buffer ^ 1) * shared.stage_bytes;
          copy_async_wait<0>();
          // The copies of all threads have come, and nobody reads the other stage any longer.
          __syncthreads();
          load_next();
          me.multiply(stage_at, stage, accumulators);
        }
        me.add_columns(accumulators, tile, step);
      }
      if (const int z = step - (taps_t - 1); z >= tile.z_begin) me.store(tile, z);
      __syncwarp();
    }
  }
}

#endif  // __CUDACC__

}  // namespace convoy::small
