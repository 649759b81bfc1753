// SPDX-License-Identifier: Apache-2.0
//
// Depthwise convolution by square and cubic filters, of which TMA brings the input under a tile of
// the output into shared memory, zeros where it lies outside the image. A block keeps the filters
// of a slab of at most 64 channels and walks over its tiles:
//
//   warp 0       tensor copies of tile n + stages       barriers `full` of a stage
//   warps 1..8   two channels a thread, of a group as many threads as the slab has pairs of them;
//                one output row of a strip at a time, a tile's dealt round the groups, then the
//                next tile's                         barriers `empty`
//
// A tile of volumes is walked along the depth, a stage an input frame: an output frame waits for
// the frames under its taps and hands back those that no later one takes in.
//
// Shared memory answers in some thirty cycles, so that a thread holds no row in advance and no
// filter: each weight is read where it is multiplied. That leaves room for many warps.
#pragma once

#include <cuda.h>

#include "kernels/common/fast_divide.hpp"
#include "kernels/common/load_if.cuh"
#include "kernels/common/output.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/small/depthwise_rows.cuh"
#include "kernels/small/patch_extents.hpp"

namespace convoy::small {

inline constexpr int kTileConsumers = 8;  ///< Warps that multiply.
inline constexpr int kTileThreads = 32 * (kTileConsumers + 1);
/// Of a pixel in a stage. NOTE: slabs may have less; the rest is then not read. So the pitch of
/// pixels is known, and of 80 channels two slabs of 40 leave no thread idle.
inline constexpr int kTileChannels = 64;
inline constexpr int kNarrowTileChannels = 32;  ///< Of volumes that have no more.
inline constexpr int kTileMostStages = 8;
/// Floats of a tap's weights in shared memory. NOTE: two more than there are, so that taps of a
/// channel, which come from memory side by side, are stored to different banks.
inline constexpr int kTileWeightPitch = kTileChannels + 2;

/// How a problem is cut up. Rows and columns are those of the output, where not said.
struct DepthwiseTileLayout {
  int channels;     ///< Of a slab: a multiple of 8.
  int groups;       ///< Of threads: each works on a unit.
  int images;       ///< Of a tile, 1 of volumes,
  int frames;       ///< frames, 1 of images,
  int rows;         ///< rows
  int strips;       ///< and strips of columns: a unit is one of a row.
  int box_rows;     ///< Of the input under a tile,
  int box_columns;  ///< and columns.
  int tiles;        ///< Of a slab of channels.
  int stages;
  int stage_bytes;
  FastDivide by_lanes;            ///< Of a group.
  FastDivide by_rows, by_strips;  ///< A unit is (image, row, strip),
  FastDivide tiles_deep;          ///< a tile (images or image and frames, down, across).
  FastDivide tiles_down, tiles_across;

  __host__ __device__ int units() const { return images * rows * strips; }
};

struct DepthwiseTileArguments {
  CUtensorMap activation;  ///< Channels, columns, rows, frames of volumes, images.
  const void* filter;
  ConvOutput output;
  bool is_short;  ///< The epilogue.
  std::int64_t channels;
  int images;
  int in_frames, out_frames;  ///< Of volumes.
  int in_rows, out_rows, out_columns;
  int pad_frames, pad_rows, pad_columns;
  int stride_frames;
  DepthwiseTileLayout layout;
};

/// Shared memory: weights of the slab, barriers, stages. `taps`: of the whole filter.
__host__ __device__ constexpr int depthwise_tile_weight_bytes(int taps) {
  return taps * kTileWeightPitch * 4;
}
__host__ __device__ constexpr int depthwise_tile_stages_at(int taps) {
  const int barriers = 2 * kTileMostStages * static_cast<int>(sizeof(ptx::Barrier));
  return static_cast<int>(round_up(depthwise_tile_weight_bytes(taps) + barriers, 128));
}

#ifdef __CUDACC__

/// Where a tile begins.
struct DepthwiseTile {
  int image, frame, row, column;
};

template <bool kVolume, int kStrip>
__device__ __forceinline__ DepthwiseTile depthwise_tile(const DepthwiseTileLayout& l, int index) {
  const int line = l.tiles_across.divide(index);
  const int across = l.tiles_across.remainder(index, line);
  const int slice = l.tiles_down.divide(line);
  const int row = l.tiles_down.remainder(line, slice) * l.rows;
  const int column = across * l.strips * kStrip;
  if constexpr (!kVolume) return {slice * l.images, 0, row, column};
  const int image = l.tiles_deep.divide(slice);
  return {image, l.tiles_deep.remainder(slice, image) * l.frames, row, column};
}

/// The slab's filters, of `count` channels from `from` on, into shared memory as fp32, by all
/// threads: [tap][channel]. All loads are under way together.
template <typename Element, int kOfFilter>
__device__ __forceinline__ void load_tile_weights(const Element* from, int count, float* weights) {
  constexpr int kVectors = (kTileChannels * kOfFilter / 8 + kTileThreads - 1) / kTileThreads;
  const int thread = static_cast<int>(threadIdx.x);
  uint4 loaded[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int vector = thread + i * kTileThreads;
    loaded[i] = load_if<uint4>(vector * 8 < count * kOfFilter, from + vector * 8);
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int first = (thread + i * kTileThreads) * 8;
    const std::uint32_t words[4] = {loaded[i].x, loaded[i].y, loaded[i].z, loaded[i].w};
    if (first >= count * kOfFilter) break;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float2 pair = unpack2<Element>(words[e / 2]);
      weights[(first + e) % kOfFilter * kTileWeightPitch + (first + e) / kOfFilter] =
          e % 2 == 0 ? pair.x : pair.y;
    }
  }
}

/// Two neighbouring channels. NOTE: of bf16 two instructions; unpack2 takes three.
template <typename Element>
__device__ __forceinline__ float2 tile_floats(std::uint32_t word) {
  if constexpr (dtype_of<Element> == DType::bf16) {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
  } else {
    return unpack2<Element>(word);
  }
}

/// A strip of one output row: `words` its first input, `row` the row of that in an image of
/// `in_rows`; rows outside the image are passed over.
template <typename Element, int kTaps, int kStride, int kChannels, int kStrip>
__device__ __forceinline__ void multiply_tile_unit(float (&sums)[kStrip][2],
                                                   const std::uint32_t* words, int row_words,
                                                   int row, int in_rows, const float* weights) {
  constexpr int kColumns = (kStrip - 1) * kStride + kTaps;
#pragma unroll 1
  for (int i = 0; i < kTaps; ++i, words += row_words, weights += kTaps * kTileWeightPitch) {
    if (static_cast<unsigned>(row + i) >= static_cast<unsigned>(in_rows)) continue;
    float2 x[kColumns];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      x[j] = tile_floats<Element>(words[j * (kChannels / 2)]);
    }
#pragma unroll
    for (int s = 0; s < kTaps; ++s) {
      const float2 w = *reinterpret_cast<const float2*>(weights + s * kTileWeightPitch);
#pragma unroll
      for (int q = 0; q < kStrip; ++q) {
        sums[q][0] = fmaf(x[q * kStride + s].x, w.x, sums[q][0]);
        sums[q][1] = fmaf(x[q * kStride + s].y, w.y, sums[q][1]);
      }
    }
  }
}

/// Blocks of a multiprocessor that registers leave room for.
__host__ __device__ constexpr int depthwise_tile_blocks(int stride) {
  return stride == 1 ? 3 : 2;
}

/// kFrames: taps of the filter along the depth; 1: of images. kTaps: along rows and columns.
/// kChannels: of a pixel in a stage. kStrip: output columns of a unit.
template <typename Element, int kFrames, int kTaps, int kStride, int kChannels, int kStrip>
__global__ void __launch_bounds__(kTileThreads, depthwise_tile_blocks(kStride))
    depthwise_tile_kernel(const __grid_constant__ DepthwiseTileArguments a) {
  constexpr bool kVolume = kFrames > 1;
  constexpr int kOfFilter = kFrames * kTaps * kTaps;
  extern __shared__ __align__(128) std::uint8_t shared[];
  const DepthwiseTileLayout& l = a.layout;
  auto* const weights = reinterpret_cast<float*>(shared);
  auto* const full =
      reinterpret_cast<ptx::Barrier*>(shared + depthwise_tile_weight_bytes(kOfFilter));
  ptx::Barrier* const empty = full + l.stages;
  std::uint8_t* const stages = shared + depthwise_tile_stages_at(kOfFilter);
  const int warp = static_cast<int>(ptx::warp_id()), lane = static_cast<int>(ptx::lane_id());
  const std::int64_t first_channel = std::int64_t{blockIdx.y} * l.channels;

  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&a.activation);
    for (int i = 0; i < l.stages; ++i) {
      ptx::barrier_init(&full[i], 1);
      ptx::barrier_init(&empty[i], kTileConsumers);
    }
    ptx::fence_barrier_init();
  }
  ptx::dependent_launch_trigger();
  // NOTE: nothing before this line reads or writes what an earlier kernel may still write or read.
  ptx::dependent_launch_wait();
  const auto frames_of = [&](const DepthwiseTile& tile) {
    return kVolume ? min(l.frames, a.out_frames - tile.frame) : 1;
  };
  const int first = static_cast<int>(blockIdx.x), step = static_cast<int>(gridDim.x);
  int next_index = first, next_frame = 0;  // What is copied next.
  const auto load = [&](int stage) {
    const DepthwiseTile tile = depthwise_tile<kVolume, kStrip>(l, next_index);
    std::uint8_t* const to = stages + stage * l.stage_bytes;
    const int channel = static_cast<int>(first_channel);
    const int column = tile.column * kStride - a.pad_columns;
    const int row = tile.row * kStride - a.pad_rows;
    ptx::barrier_arrive_expect(&full[stage], l.images * l.box_rows * l.box_columns * kChannels *
                                                 static_cast<int>(sizeof(Element)));
    if constexpr (kVolume) {
      ptx::tma_load_5d(to, &a.activation, &full[stage], ptx::kL2EvictNormal, channel, column, row,
                       tile.frame * a.stride_frames - a.pad_frames + next_frame, tile.image);
      if (++next_frame < (frames_of(tile) - 1) * a.stride_frames + kFrames) return;
      next_frame = 0;
    } else {
      ptx::tma_load_4d(to, &a.activation, &full[stage], ptx::kL2EvictNormal, channel, column, row,
                       tile.image);
    }
    next_index += step;
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < l.stages && next_index < l.tiles; ++i) load(i);
  }
  load_tile_weights<Element, kOfFilter>(
      static_cast<const Element*>(a.filter) + first_channel * kOfFilter,
      static_cast<int>(min(std::int64_t{l.channels}, a.channels - first_channel)), weights);
  __syncthreads();

  int stage = 0;
  std::uint32_t parity = 0;
  const auto advance = [&] {
    if (++stage == l.stages) {
      stage = 0;
      parity ^= 1;
    }
  };
  if (warp == 0) {
    if (lane != 0) return;
    while (next_index < l.tiles) {
      ptx::barrier_wait(&empty[stage], parity);
      load(stage);
      advance();
    }
    return;
  }

  const int thread = static_cast<int>(threadIdx.x) - 32;
  const int group = l.by_lanes.divide(thread), pair = l.by_lanes.remainder(thread, group);
  const std::int64_t channel = first_channel + 2 * pair;
  const bool works = group < l.groups && channel < a.channels;
  const int row_words = l.box_columns * (kChannels / 2);
  // Of the frame that lies `t` behind the first under the filter.
  const auto stage_of = [&](int t) {
    return stage + t < l.stages ? stage + t : stage + t - l.stages;
  };
  int unit = group;
  for (int index = first; index < l.tiles; index += step) {
    const DepthwiseTile tile = depthwise_tile<kVolume, kStrip>(l, index);
    const int frames = frames_of(tile);
    for (int frame = 0; frame < frames; ++frame) {
#pragma unroll
      for (int t = 0; t < kFrames; ++t) {
        ptx::barrier_wait(&full[stage_of(t)], parity ^ (stage + t < l.stages ? 0u : 1u));
      }
      const int z = tile.frame + frame;
      const int first_frame = z * a.stride_frames - a.pad_frames;
      for (; works && unit < l.units(); unit += l.groups) {
        const int line = l.by_strips.divide(unit), strip = l.by_strips.remainder(unit, line);
        const int in_tile = l.by_rows.divide(line), row = l.by_rows.remainder(line, in_tile);
        const int image = tile.image + in_tile;
        const int p = tile.row + row, q = tile.column + strip * kStrip;
        const int columns = min(kStrip, a.out_columns - q);
        if (image >= a.images || p >= a.out_rows || columns <= 0) continue;
        float sums[kStrip][2] = {};
        const int first_word = (in_tile * l.box_rows + row * kStride) * row_words +
                               strip * kStrip * kStride * (kChannels / 2) + pair;
#pragma unroll 1
        for (int t = 0; t < kFrames; ++t) {
          if (kVolume &&
              static_cast<unsigned>(first_frame + t) >= static_cast<unsigned>(a.in_frames)) {
            continue;
          }
          multiply_tile_unit<Element, kTaps, kStride, kChannels>(
              sums,
              reinterpret_cast<const std::uint32_t*>(stages + stage_of(t) * l.stage_bytes) +
                  first_word,
              row_words, p * kStride - a.pad_rows, a.in_rows,
              weights + t * kTaps * kTaps * kTileWeightPitch + 2 * pair);
        }
        const std::int64_t line_of_output =
            kVolume ? (std::int64_t{image} * a.out_frames + z) * a.out_rows + p
                    : std::int64_t{image} * a.out_rows + p;
        store_depthwise_row<Element>(a, sums, line_of_output * a.out_columns + q, 1, columns,
                                     channel);
      }
      unit -= l.units();  // Of the next frame or tile.
      __syncwarp();
      const int done = frame + 1 < frames ? a.stride_frames : kFrames;
      for (int i = 0; i < (kVolume ? done : 1); ++i) {
        if (lane == 0) ptx::barrier_arrive(&empty[stage]);
        advance();
      }
    }
  }
}

#endif  // __CUDACC__

}  // namespace convoy::small
