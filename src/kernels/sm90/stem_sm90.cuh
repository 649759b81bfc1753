// SPDX-License-Identifier: Apache-2.0
//
// Convolutions of few input channels (conv_in: 4→320, 16→384, 16→512) by warpgroup MMA. With
// C·T·R·S of a few hundred, writing the output is most of the work; so a block keeps the filters of
// kN output channels in shared memory for its lifetime, and each of its four warpgroups walks over
// tiles of 8×8 output pixels by itself: load the input patch under the next tile, multiply, store.
// Nothing but the filters is shared, so one warpgroup's stores overlap another's MMAs.
//
// The patch is never unrolled to an im2col matrix. It lies in shared memory as cells of 16 bytes
// (8 channels of a pixel), a plane for each 8 channels, pixels of a row side by side. Eight cells
// in a row are then a core matrix of an unswizzled wgmma operand: the 8×8 tile is its M = 64 (the
// stride between core matrices along M is a patch row), and a filter tap is an offset of the
// operand's address. A K step of 16 is a pair of cells at any two places of the patch, since the
// stride between core matrices along K is free too: nothing is padded, whatever C is.
//
// Four channels (half a cell) are brought to that form on the way in: a cell then holds two
// neighbouring taps for an output column, so that a filter row is one run of S·4 elements.
#pragma once

#include "kernels/common/fast_divide.hpp"
#include "kernels/common/ptx.cuh"
#include "kernels/portable/device_code.cuh"
#include "kernels/portable/output.cuh"
#include "kernels/portable/tile_walk.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace convoy::sm90 {

inline constexpr int kStemGroups = 4;  // Warpgroups of a block.
inline constexpr int kStemThreads = 128 * kStemGroups;
inline constexpr int kStemSide = 8;       // A tile is 8×8 output pixels.
inline constexpr int kStemMaxSteps = 56;  // K steps of 16.

/// Everything about a launch that the host works out. A cell is 16 bytes.
struct StemLayout {
  // The problem, of taps along depth those that meet a frame.
  int filter[3], stride[3], dilation[3];
  int pad[3];
  int frames, cached_frames;  ///< Of an image: cached and new; cached.
  int height, width, channels;
  int filters;
  int out[3];
  // The patch, in cells.
  int planes;         ///< Of a pixel, or of a run of S·4 elements.
  int rows, columns;  ///< Per frame.
  int plane_pitch;
  int patch_cells;   ///< Of one patch buffer.
  int zero_cells;    ///< At its end: what the last step reads where cells are odd in number.
  int rows_at_once;  ///< Patch rows that a warpgroup loads side by side.
  FastDivide planes_divide, lanes_divide;
  int chunks;                  ///< Cells of a filter.
  std::uint32_t stride_cells;  ///< From one output row's patch row to the next's.
  // The work.
  int tiles;  ///< N·Z·tile rows·tile columns
  TileWalk walk;
  TilePosition step;  ///< From a warpgroup's tile to its next.
  int steps;
  /// Of each K step: offset of its first cells in the patch, and from there to its second cells,
  /// times 2^16: the low half of an operand descriptor without the patch's address.
  std::uint32_t step_cells[kStemMaxSteps];

  // Shared memory, in bytes: staging of each warp's stores, patches, filters, bias.
  static constexpr int stage_bytes(int block_n) { return block_n == 64 ? 3072 : block_n * 32; }
  __host__ __device__ int filter_bytes(int block_n) const { return 2 * steps * block_n * 16; }
  __host__ __device__ int shared_bytes(int block_n) const {
    return 1024 + 4 * kStemGroups * stage_bytes(block_n) + 2 * kStemGroups * patch_cells * 16 +
           filter_bytes(block_n) + block_n * 4 + 8;
  }
};

struct StemArguments {
  CUtensorMap output_map;  ///< Of a direct launch.
  const void* activation;
  const void* cache;
  const void* filter;  ///< Packed: of each block, cell (chunk, filter) at chunk·kN + filter.
  StemLayout layout;
  ConvOutput output;
};

#ifdef __CUDACC__

/// Descriptor of an unswizzled K-major operand (PTX ISA "Matrix Descriptor Format"): core matrices
/// of 8 rows × 16 bytes, `k_cells` from one to the next along K, `row_cells` from 8 rows to the
/// next.
__device__ __forceinline__ std::uint64_t descriptor_of_cells(std::uint32_t low,
                                                             std::uint32_t row_cells) {
  return std::uint64_t{row_cells} << 32 | low;
}

/// Where a thread of a warpgroup loads: which cell of which patch rows.
struct StemLane {
  int plane, column, row;
};

template <bool kRuns, typename Element>
__device__ __forceinline__ void load_stem_patch(const StemArguments& arguments, Element* patch,
                                                const StemLane& lane, const TilePosition& at) {
  const StemLayout& l = arguments.layout;
  const auto* activation = static_cast<const Element*>(arguments.activation);
  const auto* cache = static_cast<const Element*>(arguments.cache);
  const int new_frames = l.frames - l.cached_frames;
  const int h = at.p * kStemSide * l.stride[1] - l.pad[1] + lane.row;
  const int w =
      at.q * kStemSide * l.stride[2] - l.pad[2] + (kRuns ? lane.column * l.stride[2] : lane.column);
  const int row_pitch = l.width * l.channels;
  int d = at.z * l.stride[0] - l.pad[0];
  std::uint32_t to = ptx::shared_address(patch) +
                     (lane.plane * l.plane_pitch + lane.row * l.columns + lane.column) * 16;
  for (int t = 0; t < l.filter[0]; ++t, d += l.dilation[0], to += l.rows * l.columns * 16) {
    const bool cached = d < l.cached_frames;
    const Element* frame = cached ? cache : activation;
    const int index = cached ? at.n * l.cached_frames + d : at.n * new_frames + d - l.cached_frames;
    const bool frame_exists = static_cast<unsigned>(d) < static_cast<unsigned>(l.frames);
    const Element* from = frame + (std::int64_t{index} * l.height + h) * row_pitch +
                          (kRuns ? w * 4 : w * l.channels + lane.plane * 8);
    std::uint32_t cell = to;
    for (int i = lane.row; i < l.rows; i += l.rows_at_once) {
      const bool row_exists =
          frame_exists && static_cast<unsigned>(h + i - lane.row) < static_cast<unsigned>(l.height);
      if constexpr (kRuns) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int s = lane.plane * 2 + half, shift = s * l.dilation[2];
          const bool exists = row_exists && s < l.filter[2] &&
                              static_cast<unsigned>(w + shift) < static_cast<unsigned>(l.width);
          copy_async<8>(cell + half * 8, exists ? from + shift * 4 : activation, exists);
        }
      } else {
        const bool exists = row_exists && static_cast<unsigned>(w) < static_cast<unsigned>(l.width);
        copy_async<16>(cell, exists ? from : activation, exists);
      }
      cell += l.rows_at_once * l.columns * 16;
      from += l.rows_at_once * row_pitch;
    }
  }
}

/// Copy `bytes` (a multiple of 16) from global to shared memory, completing on the barrier.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, std::uint32_t bytes,
                                          ptx::Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(ptx::shared_address(shared)),
      "l"(global), "r"(bytes), "r"(ptx::shared_address(barrier))
      : "memory");
}

/// kN: filters of a block, 64 or 128. kRuns: cells are pieces of runs of S·4 elements. kDirect: no
/// epilogue but a bias, output of the input's type, stored by TMA.
// NOTE: the direct kernel is one of its own because code that a launch meets for the first time
// costs some 2 ns an instruction (measured on an H200 with a cold L2), more where it jumps.
template <typename Element, int kN, bool kRuns, bool kDirect>
__global__ void __launch_bounds__(kStemThreads, 1)
    stem_kernel(const __grid_constant__ StemArguments arguments) {
  const StemLayout& l = arguments.layout;
  constexpr int kStageBytes = StemLayout::stage_bytes(kN);
  extern __shared__ unsigned char shared_unaligned[];
  unsigned char* const shared =
      shared_unaligned + (1024 - ptx::shared_address(shared_unaligned) % 1024) % 1024;
  unsigned char* const patches_begin = shared + 4 * kStemGroups * kStageBytes;
  auto* const filters =
      reinterpret_cast<Element*>(patches_begin + 2 * kStemGroups * l.patch_cells * 16);
  auto* const bias =
      reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(filters) + l.filter_bytes(kN));

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = static_cast<int>(ptx::warp_id());
  const int group = warp / 4;
  const int first_filter = static_cast<int>(blockIdx.x) * kN;
  auto* const filters_full = reinterpret_cast<ptx::Barrier*>(bias + kN);
  if (thread == 0) {
    ptx::barrier_init(filters_full, 1);
    ptx::fence_barrier_init();
    const int step_bytes = 2 * kN * 16, bytes = l.steps * step_bytes;
    ptx::barrier_arrive_expect(filters_full, static_cast<std::uint32_t>(bytes));
    const auto* from =
        static_cast<const unsigned char*>(arguments.filter) + std::int64_t{blockIdx.x} * bytes;
    // NOTE: in two pieces that differ from block to block, so that blocks do not all wait for the
    // same lines.
    const int split = static_cast<int>(blockIdx.y) % l.steps * step_bytes;
    bulk_load(filters + split / 2, from + split, static_cast<std::uint32_t>(bytes - split),
              filters_full);
    if (split > 0) bulk_load(filters, from, static_cast<std::uint32_t>(split), filters_full);
    if (kDirect) ptx::prefetch_tensor_map(&arguments.output_map);
  }

  StemLane where;
  where.row = l.lanes_divide.divide(thread % 128);
  const int cell = l.lanes_divide.remainder(thread % 128, where.row);
  where.column = l.planes_divide.divide(cell);
  where.plane = l.planes_divide.remainder(cell, where.column);
  if (where.row >= l.rows_at_once) where.row = l.rows;  // Nothing to do.

  // Tiles go round the blocks first, so that blocks differ by one tile at most.
  const int tile_step = static_cast<int>(gridDim.y) * kStemGroups;
  int tile = static_cast<int>(blockIdx.y) + group * static_cast<int>(gridDim.y);
  TilePosition at = l.walk.position(tile);

  auto* const patches = reinterpret_cast<Element*>(patches_begin) + group * 2 * l.patch_cells * 8;
  // Two tiles ahead: `next` is the one to load.
  TilePosition next = at;
  int next_tile = tile;
  const auto load_next = [&](std::uint32_t into) {
    if (next_tile < l.tiles) {
      load_stem_patch<kRuns>(arguments, patches + into * l.patch_cells * 8, where, next);
    }
    copy_async_commit();
    next_tile += tile_step;
    next = l.walk.advance(next, l.step);
  };
#pragma unroll 1
  for (std::uint32_t buffer = 0; buffer < 2; ++buffer) load_next(buffer);
  if (l.zero_cells > 0) {
#pragma unroll 1
    for (int buffer = 1; buffer <= 2; ++buffer) {
#pragma unroll 1
      for (int i = thread % 128; i < l.zero_cells; i += 128) {
        *reinterpret_cast<uint4*>(patches + (buffer * l.patch_cells - l.zero_cells + i) * 8) =
            make_uint4(0, 0, 0, 0);
      }
    }
  }
  const bool add_bias = kDirect && arguments.output.epilogue.bias != nullptr;
  if (add_bias && thread < kN) {
    bias[thread] = first_filter + thread < l.filters
                       ? load_bias(arguments.output.epilogue, first_filter + thread)
                       : 0.0f;
  }
  copy_async_wait<1>();
  ptx::fence_async_shared();
  __syncthreads();
  ptx::barrier_wait(filters_full, 0);

  unsigned char* const stage = shared + warp * kStageBytes;
  const std::uint32_t patch_cell = ptx::shared_address(patches) / 16;
  const std::uint32_t filter_low =
      ptx::shared_address(filters) / 16 | static_cast<std::uint32_t>(kN) << 16;
  std::uint32_t buffer = 0;
  for (; tile < l.tiles; tile += tile_step, at = l.walk.advance(at, l.step), buffer ^= 1) {
    float accumulators[kN / 2];
    const std::uint32_t patch_low = patch_cell + buffer * l.patch_cells;
    // NOTE: fence, MMAs, commit and wait stay in one basic block, else ptxas drains each MMA.
    const auto multiply = [&]<int kSteps>(int i) {
      wgmma_fence();
#pragma unroll
      for (int j = i; j < i + kSteps; ++j) {
        Wgmma<Element, kN>::mma(accumulators,
                                descriptor_of_cells(patch_low + l.step_cells[j], l.stride_cells),
                                descriptor_of_cells(filter_low + j * 2 * kN, 8), j > 0);
      }
      wgmma_commit();
      wgmma_wait<1>();
    };
    int i = 0;
#pragma unroll 1
    for (; i + 3 <= l.steps; i += 3) multiply.template operator()<3>(i);
#pragma unroll 1
    for (; i < l.steps; ++i) multiply.template operator()<1>(i);

    wgmma_wait<0>();
    // All four warps have read the patch: load the one after the next in its place.
    ptx::named_barrier_sync(1 + group, 128);
    load_next(buffer);

    const int p = at.p * kStemSide + warp % 4 * 2, q = at.q * kStemSide;
    const int frame = at.n * l.out[0] + at.z;
    if constexpr (kDirect) {
      if (add_bias) {
#pragma unroll
        for (int j = 0; j < kN / 8; ++j) {
          const float2 b = *reinterpret_cast<const float2*>(bias + j * 8 + lane % 4 * 2);
          accumulators[4 * j] += b.x;
          accumulators[4 * j + 1] += b.y;
          accumulators[4 * j + 2] += b.x;
          accumulators[4 * j + 3] += b.y;
        }
      }
      // Two rows of 8 pixels, in spans of 64 filters with the 128-byte swizzle.
      if (lane == 0) ptx::tma_store_wait_read<0>();
      __syncwarp();
      const std::uint32_t row = ptx::shared_address(stage) + lane % 16 * 128;
#pragma unroll
      for (int j = 0; j < kN / 8; j += 2) {
        const float* v = accumulators + 4 * j;
        ptx::store_matrix_x4(row + j / 8 * 2048 + ((j % 8 + lane / 16) ^ lane % 8) * 16,
                             pack2<Element>(v[0], v[1]), pack2<Element>(v[2], v[3]),
                             pack2<Element>(v[4], v[5]), pack2<Element>(v[6], v[7]));
      }
      ptx::fence_async_shared();
      __syncwarp();
      if (lane == 0) {
#pragma unroll
        for (int j = 0; j < kN / 64; ++j) {
          if (first_filter + j * 64 < l.filters) {
            ptx::tma_store_4d(&arguments.output_map, stage + j * 2048, first_filter + j * 64, q, p,
                              frame);
          }
        }
        ptx::tma_store_commit();
      }
    } else {
      const std::int64_t first_pixel = (std::int64_t{frame} * l.out[1] + p) * l.out[2] + q;
      store_warp_tile(
          arguments.output, reinterpret_cast<const float(&)[kN / 32][4][4]>(accumulators),
          reinterpret_cast<float*>(stage),
          [&](int, int i) {
            const bool inside = p + i / 8 < l.out[1] && q + i % 8 < l.out[2];
            return inside ? first_pixel + i / 8 * std::int64_t{l.out[2]} + i % 8 : std::int64_t{-1};
          },
          first_filter, l.filters, 32);
    }
    copy_async_wait<1>();
    ptx::fence_async_shared();
    ptx::named_barrier_sync(1 + group, 128);
  }
  if (kDirect && lane == 0) ptx::tma_store_wait_read<0>();
}

#endif  // __CUDACC__

}  // namespace convoy::sm90
