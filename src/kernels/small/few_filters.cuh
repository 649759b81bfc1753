// SPDX-License-Identifier: Apache-2.0
//
// Convolutions of few filters (conv_out: 128→3, 96→3, 320→4). An implicit GEMM would fetch every
// input pixel T·R·S times from L2 for an N of 3. Here TMA brings an input tile with its halo into
// shared memory once (coordinates outside the tensor read as zeros: the padding), and the GEMM is
// turned round: N holds the taps along depth and width too,
//   Y[pixel, (t, s, k)] = Σ_r Σ_c X[pixel row + r, pixel column, c] · W[k, t, r, s, c],
// so that each fragment of X feeds T·S·K columns. The output is then a sum of shifted columns,
//   D[z, p, q, k] = Σ_t Σ_s Y_(frame z + t)[(p, q + s), (t, s, k)],
// taken in fp32 through shared memory. A block walks along depth: each frame is read once and added
// to the T outputs that see it.
//
// Up to 16 warps are consumers, each with its own output rows (so that no consumer waits for
// another). Stages hold 64 channels of the input tile, which one more warp loads by TMA
// (`few_filters_kernel`), or, before Hopper, the consumers by cp.async (few_filters_async.cuh).
#pragma once

#include "kernels/common/device_code.cuh"
#include "kernels/common/device_geometry.cuh"
#include "kernels/common/output.cuh"
#include "kernels/common/pipeline.cuh"
#include "kernels/common/ptx.cuh"

namespace convoy::small {

/// Most consumer warps, each with `rows` output rows (registers are the limit).
constexpr int few_filters_most_consumers(int rows) {
  return rows == 1 ? 16 : 8;
}
inline constexpr int kFewFiltersColumns =
    32;  // Input columns of a tile, halo included: two fragments.
inline constexpr int kFewFiltersChannels = 64;  // Channels of a stage: one 128-byte swizzle span.
inline constexpr int kFewFiltersStages = 2;
inline constexpr int kFewFiltersStripBytes = kFewFiltersColumns * kFewFiltersChannels * 2;
// NOTE: two columns apart are 8 banks apart, so that fragments are written without conflict.
inline constexpr int kFewFiltersExchangePitch = kFewFiltersColumns + 4;

/// Everything about a launch that the host works out.
struct FewFiltersLayout {
  int consumers;        ///< Warps.
  int filter[3];        ///< T, R, S
  int first_tap;        ///< Of the filter's taps along depth: those in front meet padding only.
  int filter_depth;     ///< T of the filter as it lies in memory.
  int pad[3];           ///< Before.
  int pad_behind[2];    ///< Rows and columns of padding behind.
  PadMode pad_mode[3];  ///< Zero where there is no padding.
  int in[2];            ///< H, W
  int frames;           ///< Cached and new.
  int cached_frames;
  int channels;       ///< C
  int filters;        ///< K
  int out[3];         ///< Z, P, Q
  int steps;          ///< C in steps of 16, the last zero-filled.
  int filter_pitch;   ///< Elements from one row of the filter matrix to the next.
  int strip_columns;  ///< Output columns of a warp's row: 32 − (S − 1).
  /// A tile is as many output rows as the warps take, a strip each; or, of an output of one row
  /// under a filter of one, as many strips side by side, each loaded with its own halo.
  bool side_by_side;
  int tile_columns;  ///< Of output pixels.
  int depth_chunk;   ///< Output frames of a work item.
  int tiles_p, tiles_q, tiles_z;
  int tiles;  ///< N·tiles_z·tiles_p·tiles_q

  // Shared memory, in bytes. Stages come first: the swizzle wants them aligned to 1024.
  __host__ __device__ int stage_rows(int rows) const { return consumers * rows + filter[1] - 1; }
  __host__ __device__ int stage_bytes(int rows) const {
    return stage_rows(rows) * kFewFiltersColumns * kFewFiltersChannels * 2;
  }
  __host__ __device__ int filter_bytes(int columns) const { return columns * filter_pitch * 2; }
  __host__ __device__ int exchange_bytes(int columns) const {
    return consumers * columns * kFewFiltersExchangePitch * 4;
  }
  __host__ __device__ int sums_bytes(int rows) const {
    return consumers * rows * filter[0] * filters * kFewFiltersColumns * 4;
  }
  __host__ __device__ int shared_bytes(int rows, int columns) const {
    return 1024 + kFewFiltersStages * stage_bytes(rows) + filter_bytes(columns) +
           exchange_bytes(columns) + sums_bytes(rows) + 2 * kFewFiltersStages * 8;
  }
};

/// What consumers are told, whoever loads their stages.
struct FewFiltersCommon {
  const void* filter;
  ConvOutput output;
  FewFiltersLayout layout;
};

struct FewFiltersArguments {
  CUtensorMap activation;
  CUtensorMap cache;  ///< Where there is none, the activation's again; never read.
  FewFiltersCommon common;
};

#ifdef __CUDACC__

// A work item: an image, a chunk of output frames, a tile of output rows and columns.
struct FewFiltersTile {
  int n, z_begin, z_end, p, q;
};
__device__ __forceinline__ FewFiltersTile few_filters_tile(const FewFiltersLayout& l, int tile,
                                                           int strips) {
  FewFiltersTile t;
  t.q = tile % l.tiles_q * l.tile_columns;
  tile /= l.tiles_q;
  t.p = tile % l.tiles_p * (l.side_by_side ? 1 : strips);
  tile /= l.tiles_p;
  t.z_begin = tile % l.tiles_z * l.depth_chunk;
  t.z_end = min(t.z_begin + l.depth_chunk, l.out[0]);
  t.n = tile / l.tiles_z;
  return t;
}

/// Where things lie in shared memory.
template <int kColumns, int kRows>
struct FewFiltersShared {
  unsigned char* stages;
  int stage_bytes;
  void* filters;
  float* exchanges;
  float* sums;
  ptx::Barrier* barriers;

  __device__ __forceinline__ explicit FewFiltersShared(const FewFiltersLayout& l) {
    extern __shared__ unsigned char shared_unaligned[];
    stages = shared_unaligned + (1024 - ptx::shared_address(shared_unaligned) % 1024) % 1024;
    stage_bytes = l.stage_bytes(kRows);
    unsigned char* const behind = stages + kFewFiltersStages * stage_bytes;
    filters = behind;
    exchanges = reinterpret_cast<float*>(behind + l.filter_bytes(kColumns));
    sums = exchanges + l.consumers * kColumns * kFewFiltersExchangePitch;
    barriers = reinterpret_cast<ptx::Barrier*>(reinterpret_cast<unsigned char*>(sums) +
                                               l.sums_bytes(kRows));
  }
};

/// A consumer warp: products of its rows of a stage with the filters, sums of its outputs.
/// kTiles: columns of the GEMM in eights, T·S·K ≤ 8·kTiles. kRows: output rows of a warp.
/// kT, kS, kK: the filter's T, S and K where the kernel is built for them, else 0: the sums over
/// shifted columns are then straight-line code.
template <typename Element, int kTiles, int kRows, int kT, int kS, int kK>
struct FewFiltersWarp {
  static constexpr int kColumns = 8 * kTiles;
  using Shared = FewFiltersShared<kColumns, kRows>;
  using Accumulators = float[kRows][2][kTiles][4];

  const FewFiltersCommon& arguments;
  const FewFiltersLayout& l;
  int warp, lane;
  Element* filters;
  std::uint32_t filter_row;  ///< This lane's of the first fragment: a shared address.
  float* exchange;
  float* sums;  ///< Of this warp's outputs, [row][frame % T][k][column].
  // This lane's matrix row in a fragment is pixel lane % 16 (+ 16) of the warp's first input row: a
  // shared address in the first stage. The pixel's 16-byte chunks are swizzled by its low three
  // bits.
  std::uint32_t pixel_row;
  std::uint32_t chunks[kFewFiltersChannels / 16];

  __device__ __forceinline__ FewFiltersWarp(const FewFiltersCommon& a, const Shared& shared,
                                            int warp_index, int lane_index)
      : arguments(a), l(a.layout), warp(warp_index), lane(lane_index) {
    filters = static_cast<Element*>(shared.filters);
    filter_row = ptx::shared_address(filters + (lane / 16 * 8 + lane % 8) * l.filter_pitch +
                                     lane / 8 % 2 * 8);
    exchange = shared.exchanges + warp * kColumns * kFewFiltersExchangePitch;
    sums = shared.sums + warp * kRows * taps_t() * slot_floats() + lane;
    pixel_row =
        ptx::shared_address(shared.stages) + (warp * kRows * kFewFiltersColumns + lane % 16) * 128;
#pragma unroll
    for (int c = 0; c < kFewFiltersChannels / 16; ++c) {
      chunks[c] = ((c * 2 + lane / 16) ^ (lane % 8)) * 16;
    }
  }

  __device__ __forceinline__ int taps_t() const {
    return kT > 0 ? kT : l.filter[0];
  }
  __device__ __forceinline__ int taps_r() const {
    return l.filter[1];
  }
  __device__ __forceinline__ int taps_s() const {
    return kS > 0 ? kS : l.filter[2];
  }
  __device__ __forceinline__ int filters_k() const {
    return kK > 0 ? kK : l.filters;
  }
  __device__ __forceinline__ int slot_floats() const {
    return filters_k() * kFewFiltersColumns;
  }

  /// The filter as the GEMM's second matrix: row (t, s, k), column (r, c), zeros around. A share of
  /// it; complete when all consumers have come to a barrier.
  __device__ __forceinline__ void load_filters() const {
    const int padded_channels = l.steps * 16;
    for (int row = warp; row < kColumns; row += l.consumers) {
      const int k = row % filters_k(), s = row / filters_k() % taps_s(),
                t = row / filters_k() / taps_s();
      const auto* from =
          static_cast<const Element*>(arguments.filter) +
          ((std::int64_t{k} * l.filter_depth + l.first_tap + t) * taps_r() * taps_s() + s) *
              l.channels;
      std::uint32_t to = ptx::shared_address(filters + row * l.filter_pitch);
      for (int r = 0; r < taps_r(); ++r, from += taps_s() * l.channels, to += padded_channels * 2) {
        for (int c = lane * 8; c < padded_channels; c += 32 * 8) {
          const bool exists = t < taps_t() && c < l.channels;
          copy_async<16>(to + c * 2, exists ? from + c : arguments.filter, exists);
        }
      }
    }
    copy_async_commit();
  }

  /// Output `step` meets its first frame now.
  __device__ __forceinline__ void begin(int step) const {
    for (int row = 0; row < kRows; ++row) {
      float* slot = sums + (row * taps_t() + step % taps_t()) * slot_floats();
      for (int k = 0; k < filters_k(); ++k) slot[k * kFewFiltersColumns] = 0.0f;
    }
  }

  /// Adds the products of the channels in a stage. `stage_at`: its offset from the first;
  /// `channel_stage`: which channels it holds.
  __device__ __forceinline__ void multiply(std::uint32_t stage_at, int channel_stage,
                                           Accumulators& accumulators) const {
    const int padded_channels = l.steps * 16;
    const int steps =
        min(kFewFiltersChannels / 16, l.steps - channel_stage * (kFewFiltersChannels / 16));
    std::uint32_t input = pixel_row + stage_at;
    std::uint32_t b_at = filter_row + channel_stage * kFewFiltersChannels * 2;
#pragma unroll 1
    for (int r = 0; r < taps_r();
         ++r, input += kFewFiltersColumns * 128, b_at += padded_channels * 2) {
#pragma unroll
      for (int c = 0; c < kFewFiltersChannels / 16; ++c) {
        if (c >= steps) break;
        std::uint32_t a[kRows][2][4];
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            ptx::load_matrix_x4(input + (i * kFewFiltersColumns + half * 16) * 128 + chunks[c],
                                a[i][half][0], a[i][half][1], a[i][half][2], a[i][half][3]);
          }
        }
#pragma unroll
        for (int j = 0; j < kTiles; j += 2) {
          std::uint32_t b[4];
          ptx::load_matrix_x4(b_at + (c * 16 + j * 8 * l.filter_pitch) * 2, b[0], b[1], b[2], b[3]);
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              mma_16x8x16<Element>(accumulators[i][half][j], a[i][half], b[0], b[1]);
              mma_16x8x16<Element>(accumulators[i][half][j + 1], a[i][half], b[2], b[3]);
            }
          }
        }
      }
    }
  }

  /// Turn fragments into columns, then add each output pixel's shifted columns.
  __device__ __forceinline__ void add_columns(const Accumulators& accumulators,
                                              const FewFiltersTile& tile, int step) const {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      __syncwarp();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          float* to =
              exchange + (j * 8 + lane % 4 * 2) * kFewFiltersExchangePitch + half * 16 + lane / 4;
          to[0] = accumulators[row][half][j][0];
          to[kFewFiltersExchangePitch] = accumulators[row][half][j][1];
          to[8] = accumulators[row][half][j][2];
          to[kFewFiltersExchangePitch + 8] = accumulators[row][half][j][3];
        }
      }
      __syncwarp();
      if (lane < l.strip_columns) {
        for (int t = 0; t < taps_t(); ++t) {
          if (step - t < tile.z_begin || step - t >= tile.z_end) continue;
          float* slot = sums + (row * taps_t() + (step - t) % taps_t()) * slot_floats();
          const float* from =
              exchange + t * taps_s() * filters_k() * kFewFiltersExchangePitch + lane;
          for (int k = 0; k < filters_k(); ++k) {
            float sum = slot[k * kFewFiltersColumns];
            for (int s = 0; s < taps_s(); ++s) {
              sum += from[(s * filters_k() + k) * kFewFiltersExchangePitch + s];
            }
            slot[k * kFewFiltersColumns] = sum;
          }
        }
      }
    }
  }

  /// Outputs of frame `z` have met their last frame.
  __device__ __forceinline__ void store(const FewFiltersTile& tile, int z) const {
    if (lane >= l.strip_columns) return;
#pragma unroll 1
    for (int row = 0; row < kRows; ++row) {
      const int strip = warp * kRows + row;
      const int p = tile.p + (l.side_by_side ? 0 : strip);
      const int q = tile.q + (l.side_by_side ? strip * l.strip_columns : 0) + lane;
      if (p >= l.out[1] || q >= l.out[2]) break;
      const std::int64_t pixel =
          ((std::int64_t{tile.n} * l.out[0] + z) * l.out[1] + p) * l.out[2] + q;
      const float* slot = sums + (row * taps_t() + z % taps_t()) * slot_floats();
#pragma unroll 1
      for (int k = 0; k < filters_k(); k += 4) {
        const int count = min(4, filters_k() - k);
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = i < count ? slot[(k + i) * kFewFiltersColumns] : 0.0f;
        store_channels(arguments.output, v, pixel, k, count);
      }
    }
  }
};

/// Whether some rows or columns that an item's stages hold lie outside the input and are not zeros.
__device__ __forceinline__ bool few_filters_has_border(const FewFiltersLayout& l,
                                                       const FewFiltersTile& tile, int rows,
                                                       int columns) {
  const int row = tile.p - l.pad[1], column = tile.q - l.pad[2];
  return (l.pad_mode[1] != PadMode::zero && (row < 0 || row + rows > l.in[0])) ||
         (l.pad_mode[2] != PadMode::zero && (column < 0 || column + columns > l.in[1]));
}

/// Call `copy(to, from)` for each row (or column) of the `count` from input coordinate `first` on
/// that lies in the padding, where the one that it copies is among them.
template <typename Copy>
__device__ __forceinline__ void for_each_padded(int first, int count, int extent, int behind,
                                                PadMode mode, const Copy& copy) {
  const auto pad = [&](int i) {
    int x = first + i;
    if (map_coordinate(x, extent, mode) && x >= first && x < first + count) copy(i, x - first);
  };
  for (int i = 0; i < min(-first, count); ++i) pad(i);
  for (int i = max(extent - first, 0); i < min(count, extent + behind - first); ++i) pad(i);
}

/// Replicate and reflect: complete a stage, in which TMA left zeros outside the input, by all
/// consumers. Columns first, then rows with their corners.
__device__ __forceinline__ void few_filters_fill_border(const FewFiltersLayout& l,
                                                        const FewFiltersTile& tile, int rows,
                                                        unsigned char* stage, int thread) {
  const int unit = thread % 8;  // of 16 bytes; 8 threads a pixel
  const auto copy_pixel = [&](int to, int from) {
    const auto place = [&](int pixel) {
      return reinterpret_cast<uint4*>(stage + pixel * 128 + (unit ^ (pixel & 7)) * 16);
    };
    *place(to) = *place(from);
  };
  const auto threads = static_cast<std::uint32_t>(l.consumers * 32);
  if (l.pad_mode[2] != PadMode::zero) {
    // Strips that lie side by side are of one row each, which begins further right.
    for (int row = thread / 8; row < rows; row += l.consumers * 4) {
      const int first = tile.q - l.pad[2] + (l.side_by_side ? row * l.strip_columns : 0);
      for_each_padded(first, kFewFiltersColumns, l.in[1], l.pad_behind[1], l.pad_mode[2],
                      [&](int to, int from) {
                        copy_pixel(row * kFewFiltersColumns + to, row * kFewFiltersColumns + from);
                      });
    }
    ptx::named_barrier_sync(1, threads);
  }
  if (l.pad_mode[1] != PadMode::zero) {
    for_each_padded(
        tile.p - l.pad[1], rows, l.in[0], l.pad_behind[0], l.pad_mode[1], [&](int to, int from) {
          for (int column = thread / 8; column < kFewFiltersColumns; column += l.consumers * 4) {
            copy_pixel(to * kFewFiltersColumns + column, from * kFewFiltersColumns + column);
          }
        });
  }
  // What was written here is before the copy that comes into this stage next.
  ptx::fence_async_shared();
  ptx::named_barrier_sync(1, threads);
}

/// Template arguments: `FewFiltersWarp`'s.
template <typename Element, int kTiles, int kRows, int kT, int kS, int kK>
__global__ void __launch_bounds__((few_filters_most_consumers(kRows) + 1) * 32, 1)
    few_filters_kernel(const __grid_constant__ FewFiltersArguments arguments) {
  const FewFiltersLayout& l = arguments.common.layout;
  const int strips = l.consumers * kRows;
  const int taps_t = kT > 0 ? kT : l.filter[0];
  const FewFiltersShared<8 * kTiles, kRows> shared(l);
  ptx::Barrier* const full = shared.barriers;
  ptx::Barrier* const empty = full + kFewFiltersStages;

  const int thread = static_cast<int>(threadIdx.x);
  const int warp = static_cast<int>(ptx::warp_id());
  const int lane = thread % 32;

  if (thread == 0) {
    ptx::prefetch_tensor_map(&arguments.activation);
    for (int stage = 0; stage < kFewFiltersStages; ++stage) {
      ptx::barrier_init(&full[stage], 1);
      ptx::barrier_init(&empty[stage], static_cast<std::uint32_t>(l.consumers));
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();

  // Both roles walk the same sequence: work items, frames under them, 64 channels at a time.
  // `step` counts padded frames: it meets frame step − pad, and completes output step − (T − 1).
  const int channel_stages = (l.channels + kFewFiltersChannels - 1) / kFewFiltersChannels;
  PipelineState<kFewFiltersStages> pipe;

  if (warp == l.consumers) {
    if (ptx::elect_one()) {
      for (int index = static_cast<int>(blockIdx.x); index < l.tiles;
           index += static_cast<int>(gridDim.x)) {
        const FewFiltersTile tile = few_filters_tile(l, index, strips);
        for (int step = tile.z_begin; step < tile.z_end + taps_t - 1; ++step) {
          int frame = step - l.pad[0];
          if (!map_coordinate(frame, l.frames, l.pad_mode[0])) continue;
          const bool cached = frame < l.cached_frames;
          for (int stage = 0; stage < channel_stages; ++stage, pipe.advance()) {
            ptx::barrier_wait(&empty[pipe.index], pipe.producer_parity());
            ptx::barrier_arrive_expect(&full[pipe.index],
                                       static_cast<std::uint32_t>(shared.stage_bytes));
            const int copies = l.side_by_side ? strips : 1;
            for (int copy = 0; copy < copies; ++copy) {
              ptx::tma_load_5d(
                  shared.stages + pipe.index * shared.stage_bytes + copy * kFewFiltersStripBytes,
                  cached ? &arguments.cache : &arguments.activation, &full[pipe.index],
                  ptx::kL2EvictNormal, stage * kFewFiltersChannels,
                  tile.q + copy * l.strip_columns - l.pad[2], tile.p - l.pad[1],
                  cached ? frame : frame - l.cached_frames, tile.n);
            }
          }
        }
      }
    }
    return;
  }

  // While the first copies are under way.
  const FewFiltersWarp<Element, kTiles, kRows, kT, kS, kK> me(arguments.common, shared, warp, lane);
  me.load_filters();
  copy_async_wait<0>();
  ptx::named_barrier_sync(1, static_cast<std::uint32_t>(l.consumers * 32));

  const int stage_rows = l.stage_rows(kRows);
  for (int index = static_cast<int>(blockIdx.x); index < l.tiles;
       index += static_cast<int>(gridDim.x)) {
    const FewFiltersTile tile = few_filters_tile(l, index, strips);
    const bool has_border =
        few_filters_has_border(l, tile, stage_rows, l.tile_columns + me.taps_s() - 1);
    for (int step = tile.z_begin; step < tile.z_end + taps_t - 1; ++step) {
      me.begin(step);
      int frame = step - l.pad[0];
      if (map_coordinate(frame, l.frames, l.pad_mode[0])) {
        float accumulators[kRows][2][kTiles][4] = {};
        for (int stage = 0; stage < channel_stages; ++stage, pipe.advance()) {
          ptx::barrier_wait(&full[pipe.index], pipe.parity());
          __syncwarp();
          const int stage_at = pipe.index * shared.stage_bytes;
          if (has_border) {
            few_filters_fill_border(l, tile, stage_rows, shared.stages + stage_at, thread);
          }
          me.multiply(stage_at, stage, accumulators);
          __syncwarp();
          if (lane == 0) ptx::barrier_arrive(&empty[pipe.index]);
        }
        me.add_columns(accumulators, tile, step);
      }
      if (const int z = step - (taps_t - 1); z >= tile.z_begin) me.store(tile, z);
    }
  }
}

#endif  // __CUDACC__

}  // namespace convoy::small
