// SPDX-License-Identifier: Apache-2.0
//
// Convolutions of few input channels (conv_in: 4→320, 16→384, 16→512) by warpgroup MMA. With
// C·T·R·S of a few hundred, writing the output is most of the work; so a block keeps the filters of
// kN output channels in shared memory for its lifetime, and each of its four warpgroups walks over
// tiles of 8×8 output pixels by itself: load the input patch under the next tile, multiply, store.
// Nothing but the filters is shared, so one warpgroup's stores overlap another's MMAs. A filter's
// column in the block is chosen so that a thread's fragments are 16 bytes of the output.
//
// The patch is never unrolled to an im2col matrix. It lies in shared memory as cells of 16 bytes
// (8 channels of a pixel), a plane for each 8 channels, pixels of a row side by side. Eight cells
// in a row are then a core matrix of an unswizzled wgmma operand: the 8×8 tile is its M = 64 (the
// stride between core matrices along M is a patch row), and a filter tap is an offset of the
// operand's address. A K step of 16 is a pair of cells at any two places of the patch, since the
// stride between core matrices along K is free too: nothing is padded, whatever C is.
//
// Pixels that are no whole cells are brought to that form on the way in: an output column has its
// own cells, which hold the run of S·C elements that a filter row meets. Of four channels a cell is
// two neighbouring taps, each an asynchronous copy of 8 bytes. Any other run begins at any element
// of memory and comes through registers: words of 32 bits, loaded before the MMAs of the tile in
// front of it and shifted into their place after them.
#pragma once

#include "kernels/common/device_code.cuh"
#include "kernels/common/output.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/common/short_epilogue.cuh"
#include "kernels/common/tile_walk.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace convoy::sm90 {

inline constexpr int kStemWarpgroups = 4;  // Warpgroups of a block.
inline constexpr int kStemThreads = 128 * kStemWarpgroups;
inline constexpr int kStemSide = 8;         // A tile is 8×8 output pixels.
inline constexpr int kStemMaxSteps = 56;    // K steps of 16.
inline constexpr int kStemFilterParts = 3;  // Of a block's filters, each with a barrier.
inline constexpr int kStemRunsAhead = 6;    // Rounds of patch rows that runs are loaded ahead.

/// What the cells of a patch are, and so how they come.
enum class StemCells {
  pixels,  ///< 8 channels of a pixel.
  fours,   ///< Two taps of an output column, of four channels each.
  runs,    ///< 8 elements of an output column's run, of any number of channels.
};

/// How the output is stored.
enum class StemStore {
  bias,        ///< With no epilogue but a bias, of the input's type, in fours.
  activation,  ///< The same with a short epilogue without residual (common/short_epilogue.cuh).
  any,
};

/// Everything about a launch that the host works out. A cell is 16 bytes.
// NOTE: in the order in which a block asks for it; each line of parameters is one more wait.
struct StemLayout {
  // The patch. A warpgroup loads some of its rows side by side.
  std::uint32_t row_multiplier;    ///< ⌈2^16 / cells of a patch row⌉, to divide by that number.
  std::uint32_t plane_multiplier;  ///< The same of the planes.
  int row_cells, planes;           ///< Planes: of a pixel, or of a run of S·C elements.
  int rows_at_once, row_rounds;
  int rows, columns;  ///< Per frame.
  int plane_pitch;    ///< In cells,
  int patch_row;      ///< and that of a patch row.
  int patch_cells;    ///< Of one patch buffer.
  // The work.
  int tiles;  ///< N·Z·tile rows·tile columns
  TileWalk walk;
  // The input, of taps along depth those that meet a frame. Pitches in bytes.
  std::int64_t row_pitch, rows_pitch;   ///< Of one row, of rows_at_once.
  std::int64_t frame_pitch, tap_pitch;  ///< Of one frame, of a tap along depth.
  int pixel_pitch;
  int channels;
  int tile_stride[2], pad[3];  ///< From a tile to the next below it, and beside it.
  int stride[3], dilation[3];
  int filter[3];
  int frames, cached_frames;  ///< Of an image: cached and new; cached.
  int height, width;
  int filters;
  int out[3];
  int steps;
  int part_steps;              ///< Of the filters, a multiple of 3.
  int first_frames;            ///< Frames that the first part meets.
  std::uint32_t stride_cells;  ///< From one output row's patch row to the next's.
  TilePosition step;           ///< From a warpgroup's tile to its next.
  int zero_cells;  ///< At the end of a patch: what the last step reads where cells are odd in
                   ///< number.
  int chunks;      ///< Cells of a filter.
  int run;         ///< Elements of a run,
  int loads;       ///< and rounds of patch rows that runs are loaded in, of all frames.
  std::uint32_t round_multiplier;  ///< ⌈2^16 / row_rounds⌉
  int turn_step;  ///< Step at which a warpgroup lets the next one begin, in the first round.
  /// Of each K step: offset of its first cells in the patch, and from there to its second cells,
  /// times 2^16: the low half of an operand descriptor without the patch's address.
  std::uint32_t step_cells[kStemMaxSteps];

  // Shared memory, in bytes: patches, filters, bias, barriers.
  __host__ __device__ int filter_bytes(int block_n) const { return 2 * steps * block_n * 16; }
  __host__ __device__ int shared_bytes(int block_n) const {
    return 128 + 2 * kStemWarpgroups * patch_cells * 16 + filter_bytes(block_n) + block_n * 4 +
           8 * kStemFilterParts;
  }
};

struct StemArguments {
  const void* filter;  ///< Packed: of each block, cell (chunk, filter) at chunk·kN + filter.
  const void* activation;
  const void* cache;
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
  int row, column, plane;
  std::uint32_t to;   ///< Bytes from the patch to the cell.
  std::int64_t from;  ///< Bytes from the first pixel of the patch to the cell's.
};

template <StemCells kCells>
__device__ __forceinline__ StemLane stem_lane(const StemLayout& l, int thread) {
  StemLane lane;
  lane.row = static_cast<int>(thread * l.row_multiplier >> 16);
  const int cell = thread - lane.row * l.row_cells;
  if constexpr (kCells == StemCells::runs) {  // The 8 output columns of a plane side by side.
    lane.plane = cell / kStemSide;
    lane.column = cell % kStemSide;
  } else {
    lane.column = static_cast<int>(cell * l.plane_multiplier >> 16);
    lane.plane = cell - lane.column * l.planes;
  }
  lane.to = (lane.plane * l.plane_pitch + lane.row * l.patch_row + lane.column) * 16;
  if (kCells != StemCells::pixels) lane.column *= l.stride[2];
  lane.from = lane.row * l.row_pitch + lane.column * l.pixel_pitch +
              (kCells == StemCells::fours ? 0 : lane.plane * 16);
  if (lane.row >= l.rows_at_once) lane.row = l.rows;  // Nothing to do.
  return lane;
}

/// Where a lane's cells of the patch under a tile come from.
struct StemSource {
  int d, h, w;         ///< The patch's first tap.
  const char* cached;  ///< The lane's first cell, were it of a frame of the cache,
  const char* seen;    ///< and of another one.
};
__device__ __forceinline__ StemSource stem_source(const StemArguments& arguments,
                                                  const StemLane& lane, const TilePosition& at) {
  const StemLayout& l = arguments.layout;
  StemSource source;
  source.d = at.z * l.stride[0] - l.pad[0];
  source.h = at.p * l.tile_stride[0] - l.pad[1];
  source.w = at.q * l.tile_stride[1] - l.pad[2];
  const std::int64_t corner = source.d * l.frame_pitch + source.h * l.row_pitch +
                              std::int64_t{source.w} * l.pixel_pitch + lane.from;
  source.cached =
      static_cast<const char*>(arguments.cache) + corner + at.n * l.cached_frames * l.frame_pitch;
  source.seen = static_cast<const char*>(arguments.activation) + corner +
                (at.n * (l.frames - l.cached_frames) - l.cached_frames) * l.frame_pitch;
  return source;
}

__device__ __forceinline__ void store_cell(std::uint32_t address, const std::uint32_t (&cell)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(cell[0]),
               "r"(cell[1]), "r"(cell[2]), "r"(cell[3])
               : "memory");
}

/// Of a patch of runs, what a lane loads ahead: the words of 32 bits that hold its cells.
template <int kAhead>
struct StemRuns {
  std::uint32_t words[kAhead][5];
  std::uint32_t odd;    ///< Bit i: load i begins in the upper half of its first word.
  std::uint32_t valid;  ///< Bit e: element e of the lane's cells exists.
  StemSource source;

  // NOTE: what lies beyond a run, or beyond the row, is loaded with it where a word holds both, and
  // masked, so that a neighbour's Inf never meets a zero filter element.
  __device__ __forceinline__ void begin_tile(const StemArguments& arguments, const StemLane& lane,
                                             const TilePosition& at) {
    const StemLayout& l = arguments.layout;
    source = stem_source(arguments, lane, at);
    const int first = (source.w + lane.column) * l.channels + lane.plane * 8;
    const int from = max(-first, 0);
    const int to = min(min(l.width * l.channels - first, l.run - lane.plane * 8), 8);
    valid = from < to ? (1u << to) - (1u << from) : 0u;
    begin(arguments, lane, 0);
  }

  __device__ __forceinline__ void begin(const StemArguments& arguments, const StemLane& lane,
                                        int first_load) {
    const StemLayout& l = arguments.layout;
    odd = 0;
    int t = static_cast<int>(first_load * l.round_multiplier >> 16);
    int round = first_load - t * l.row_rounds;
    int row = lane.row + round * l.rows_at_once;
    bool frame_exists = false;
    const char* from = nullptr;
    const auto enter_frame = [&] {
      const int d = source.d + t * l.dilation[0];
      frame_exists = static_cast<unsigned>(d) < static_cast<unsigned>(l.frames);
      from = (d < l.cached_frames ? source.cached : source.seen) + t * l.tap_pitch;
    };
    enter_frame();
    from += round * l.rows_pitch;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int k = 0; k < 5; ++k) words[i][k] = 0;
      if (first_load + i >= l.loads) break;
      const bool exists = frame_exists && row < l.rows &&
                          static_cast<unsigned>(source.h + row) < static_cast<unsigned>(l.height);
      const auto address = reinterpret_cast<std::uintptr_t>(from);
      const std::uint32_t shift = static_cast<std::uint32_t>(address) >> 1 & 1;
      odd |= shift << i;
      const std::uint32_t needed = exists ? valid << shift : 0u;
      const auto* const aligned = reinterpret_cast<const std::uint32_t*>(from - 2 * shift);
#pragma unroll
      for (int k = 0; k < 5; ++k) {
        if (needed & 3u << 2 * k) words[i][k] = __ldg(aligned + k);
      }
      row += l.rows_at_once;
      from += l.rows_pitch;
      if (++round == l.row_rounds) {
        round = 0, row = lane.row, ++t;
        enter_frame();
      }
    }
  }

  __device__ __forceinline__ void finish(const StemLayout& l, const StemLane& lane,
                                         std::uint32_t patch, int first_load) const {
    std::uint32_t mask[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      mask[k] = (valid >> 2 * k & 1 ? 0x0000ffffu : 0u) | (valid >> 2 * k & 2 ? 0xffff0000u : 0u);
    }
    int t = static_cast<int>(first_load * l.round_multiplier >> 16);
    int round = first_load - t * l.row_rounds;
    int row = lane.row + round * l.rows_at_once;
    const std::uint32_t row_bytes = static_cast<std::uint32_t>(l.patch_row) * 16;
    std::uint32_t to =
        patch + lane.to + static_cast<std::uint32_t>(t * l.rows + row - lane.row) * row_bytes;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first_load + i >= l.loads) break;
      const std::uint32_t shift = (odd >> i & 1) * 16;
      std::uint32_t cell[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        cell[k] = __funnelshift_r(words[i][k], words[i][k + 1], shift) & mask[k];
      }
      if (row < l.rows) store_cell(to, cell);
      row += l.rows_at_once;
      to += static_cast<std::uint32_t>(l.rows_at_once) * row_bytes;
      if (++round == l.row_rounds) {
        round = 0, row = lane.row, ++t;
        to = patch + lane.to + static_cast<std::uint32_t>(t * l.rows) * row_bytes;
      }
    }
  }

  // What was begun, and the loads beyond it.
  __device__ __forceinline__ void finish_tile(const StemArguments& arguments, const StemLane& lane,
                                              std::uint32_t patch) {
    finish(arguments.layout, lane, patch, 0);
#pragma unroll 1
    for (int load = kAhead; load < arguments.layout.loads; load += kAhead) {
      begin(arguments, lane, load);
      finish(arguments.layout, lane, patch, load);
    }
  }
};

/// Frames [t, frames_end) of the patch under the tile `at`.
// NOTE: a few hundred cycles before the first MMA. What an iteration does not need is outside the
// loops, and two rounds are side by side: there are seldom more.
template <StemCells kCells>
__device__ __forceinline__ void load_stem_patch(const StemArguments& arguments, std::uint32_t patch,
                                                const StemLane& lane, const TilePosition& at, int t,
                                                int frames_end) {
  const StemLayout& l = arguments.layout;
  StemSource source = stem_source(arguments, lane, at);
  const int h = source.h, w = source.w;
  int d = source.d + t * l.dilation[0];
  const char* cached = source.cached + t * l.tap_pitch;
  const char* seen = source.seen + t * l.tap_pitch;
  const auto is_column = [&](int column) {
    return static_cast<unsigned>(w + column) < static_cast<unsigned>(l.width);
  };
  const bool column_exists = is_column(lane.column);
  const std::uint32_t rows_step = static_cast<std::uint32_t>(l.rows_at_once * l.patch_row) * 16;
  const std::uint32_t frame_step = static_cast<std::uint32_t>(l.rows * l.patch_row) * 16;
  std::uint32_t to = patch + lane.to + t * frame_step;
#pragma unroll 1
  for (; t < frames_end; ++t) {
    const bool frame_exists = static_cast<unsigned>(d) < static_cast<unsigned>(l.frames);
    const char* from = d < l.cached_frames ? cached : seen;
    std::uint32_t cell = to;
    int row = lane.row;
#pragma unroll 1
    for (int round = 0; round < l.row_rounds; round += 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (row < l.rows) {
          const bool row_exists =
              frame_exists && static_cast<unsigned>(h + row) < static_cast<unsigned>(l.height);
          // NOTE: nothing is read through the pointer of a cell that does not exist.
          if constexpr (kCells == StemCells::fours) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const int s = lane.plane * 2 + half, shift = s * l.dilation[2];
              const bool exists = row_exists && s < l.filter[2] && is_column(lane.column + shift);
              copy_async<8>(cell + half * 8, from + shift * 8, exists);
            }
          } else {
            copy_async<16>(cell, from, row_exists && column_exists);
          }
        }
        row += l.rows_at_once;
        cell += rows_step;
        from += l.rows_pitch;
      }
    }
    d += l.dilation[0];
    to += frame_step;
    cached += l.tap_pitch;
    seen += l.tap_pitch;
  }
}

/// Filter of a block's column: of 32 neighbours, the 8 in a thread's fragments are in a row.
__host__ __device__ inline int stem_filter_of_column(int column) {
  return (column & ~30) | (column >> 2 & 6) | (column << 2 & 24);
}

/// Store eight filters of a pixel, of which `left` exist, a multiple of four.
__device__ __forceinline__ void store_eight(void* to, const std::uint32_t (&pairs)[4], int left,
                                            bool aligned) {
  if (aligned) {
    *static_cast<uint4*>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    return;
  }
  *static_cast<uint2*>(to) = make_uint2(pairs[0], pairs[1]);
  if (left > 4) static_cast<uint2*>(to)[1] = make_uint2(pairs[2], pairs[3]);
}

/// kN: filters of a block, 32, 64 or 128.
// NOTE: ways to store have kernels of their own because code that a launch meets for the first time
// costs some 2 ns an instruction (measured on an H200 with a cold L2), more where it jumps.
template <typename Element, int kN, StemCells kCells, StemStore kStore>
__global__ void __launch_bounds__(kStemThreads, 1)
    stem_kernel(const __grid_constant__ StemArguments arguments) {
  const StemLayout& l = arguments.layout;
  extern __shared__ unsigned char shared_unaligned[];
  const std::uint32_t patches_begin = (ptx::shared_address(shared_unaligned) + 127) & ~127u;
  unsigned char* const shared =
      shared_unaligned + (patches_begin - ptx::shared_address(shared_unaligned));
  unsigned char* const filters = shared + 2 * kStemWarpgroups * l.patch_cells * 16;
  auto* const bias = reinterpret_cast<float*>(filters + l.filter_bytes(kN));
  auto* const filters_full = reinterpret_cast<ptx::Barrier*>(bias + kN);

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warpgroup_thread = static_cast<int>(threadIdx.x % 128);
  const int warp = static_cast<int>(ptx::warp_id());
  const int warpgroup = static_cast<int>(static_cast<unsigned>(warp) / 4);
  const int first_filter = static_cast<int>(blockIdx.x) * kN;
  if (thread == kStemThreads - 128) {
#pragma unroll
    for (int part = 0; part < kStemFilterParts; ++part) ptx::barrier_init(filters_full + part, 1);
    ptx::fence_barrier_init();
    constexpr int kStepBytes = 2 * kN * 16;
    const auto* from = static_cast<const unsigned char*>(arguments.filter) +
                       std::int64_t{blockIdx.x} * (l.steps * kStepBytes);
    unsigned char* to = filters;
    ptx::Barrier* full = filters_full;
#pragma unroll 1
    for (int step = 0; step < l.steps; step += l.part_steps) {
      const int bytes = min(l.part_steps, l.steps - step) * kStepBytes;
      ptx::barrier_arrive_expect(full, static_cast<std::uint32_t>(bytes));
      ptx::bulk_load(to, from, static_cast<std::uint32_t>(bytes), full);
      to += bytes, from += bytes, ++full;
    }
  }

  // Tiles go round the blocks first, so that blocks differ by one tile at most.
  const StemLane where = stem_lane<kCells>(l, warpgroup_thread);
  constexpr bool kRuns = kCells == StemCells::runs;
  const int tile_step = static_cast<int>(gridDim.y) * kStemWarpgroups;
  int tile = static_cast<int>(blockIdx.y) + warpgroup * static_cast<int>(gridDim.y);
  TilePosition at = l.walk.position(tile);
  const std::uint32_t patches = patches_begin + warpgroup * 2 * l.patch_cells * 16;
  const std::uint32_t filter_low =
      ptx::shared_address(filters) / 16 | static_cast<std::uint32_t>(kN) << 16;
  const bool add_bias = kStore != StemStore::any && arguments.output.epilogue.bias != nullptr;
  // Loads are a tile ahead: of the first tile, the frames that the first part of the filters
  // meets, then its others, then whole tiles; of runs all of the first tile, then what a lane loads
  // ahead of others. NOTE: one place for all loads, since code that runs for the first time is what
  // a load waits for.
  StemRuns<kStemRunsAhead> runs;
  TilePosition next = at;
  int next_tile = tile;
  std::uint32_t next_patch = patches;
  for (int turn = 0;;) {
#pragma unroll 1
    do {
      if constexpr (kRuns) {
        if (next_tile < l.tiles && turn != 1) {
          runs.begin_tile(arguments, where, next);
          if (turn == 0) runs.finish_tile(arguments, where, next_patch);
        }
      } else {
        const int first_frame = turn == 1 ? l.first_frames : 0;
        const int frames_end = turn == 0 ? l.first_frames : l.filter[0];
        if (next_tile < l.tiles && first_frame < frames_end) {
          load_stem_patch<kCells>(arguments, next_patch, where, next, first_frame, frames_end);
        }
        copy_async_commit();
      }
      if (turn > 0) {
        next_tile += tile_step;
        next = l.walk.advance(next, l.step);
        next_patch = patches + (turn & 1) * l.patch_cells * 16;
      }
      ++turn;
    } while (turn < 3);
    const bool first = turn == 3;
    if (first) {
      if (l.zero_cells > 0) [[unlikely]] {
#pragma unroll 1
        for (int buffer = 1; buffer <= 2; ++buffer) {
#pragma unroll 1
          for (int i = warpgroup_thread; i < l.zero_cells; i += 128) {
            *reinterpret_cast<uint4*>(
                shared + ((warpgroup * 2 + buffer) * l.patch_cells - l.zero_cells + i) * 16) =
                make_uint4(0, 0, 0, 0);
          }
        }
      }
      if (add_bias && thread < kN) [[unlikely]] {
        bias[thread] = first_filter + thread < l.filters
                           ? load_bias(arguments.output.epilogue, first_filter + thread)
                           : 0.0f;
      }
      copy_async_wait<2>();
      ptx::fence_async_shared();
      __syncthreads();
      if (tile >= l.tiles) break;
      // NOTE: in the first round a warpgroup begins when the one before it is done (at once where
      // MMAs are many), else all end together and nothing is stored until then.
      if (warpgroup > 0) ptx::named_barrier_sync(1 + kStemWarpgroups + warpgroup, 256);
    } else if constexpr (!kRuns) {
      copy_async_wait<1>();
      ptx::fence_async_shared();
      ptx::named_barrier_sync(1 + warpgroup, 128);
    }

    float accumulators[kN / 2];
    const std::uint32_t patch_low = (patches >> 4) + (turn & 1 ^ 1) * l.patch_cells;
    // NOTE: fence, MMAs, commit and wait stay in one basic block, else ptxas drains each MMA; the
    // empty asm keeps the compiler from peeling off the first step.
    int accumulate = 0;
    asm("" : "+r"(accumulate));
    const auto multiply = [&]<int kSteps>(int i) {
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        Wgmma<Element, kN>::mma(
            accumulators, descriptor_of_cells(patch_low + l.step_cells[i + j], l.stride_cells),
            descriptor_of_cells(filter_low + (i + j) * 2 * kN, 8), j > 0 || accumulate != 0);
      }
      wgmma_commit();
      wgmma_wait<1>();
      accumulate = 1;
      asm("" : "+r"(accumulate));
    };
    const auto let_next_warpgroup_begin = [&](int i) {
      if (first && i == l.turn_step && warpgroup + 1 < kStemWarpgroups &&
          tile + static_cast<int>(gridDim.y) < l.tiles) {
        ptx::named_barrier_arrive(2 + kStemWarpgroups + warpgroup, 256);
      }
    };
    int i = 0;
#pragma unroll 1
    for (int part = 0; i < l.steps; ++part) {
      if (first) {
        if (!kRuns && part == 1) {
          copy_async_wait<1>();
          ptx::fence_async_shared();
          ptx::named_barrier_sync(1 + warpgroup, 128);
        }
        ptx::barrier_wait(filters_full + part, 0);
      }
      let_next_warpgroup_begin(i);
      const int end = min(i + l.part_steps, l.steps);
#pragma unroll 1
      for (; i + 9 <= end; i += 9) multiply.template operator()<9>(i);
#pragma unroll 1
      for (; i + 3 <= end; i += 3) multiply.template operator()<3>(i);
#pragma unroll 1
      for (; i < end; ++i) multiply.template operator()<1>(i);
    }
    let_next_warpgroup_begin(i);
    wgmma_wait<0>();

    // A thread has 8 neighbouring filters of 2 pixels, kN / 32 times.
    const int p = at.p * kStemSide + warp % 4 * 2, q = at.q * kStemSide + lane / 4;
    const int channel = first_filter + lane % 4 * 8;
    const std::int64_t pixel = (std::int64_t{at.n * l.out[0] + at.z} * l.out[1] + p) * l.out[2] + q;
    if constexpr (kStore != StemStore::any) {
      if (add_bias) {
#pragma unroll
        for (int a = 0; a < kN / 32; ++a) {
          const float* const b = bias + a * 32 + lane % 4 * 8;
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float2 pair = *reinterpret_cast<const float2*>(b + 2 * j);
            float* const v = accumulators + 16 * a + 4 * j;
            v[0] += pair.x;
            v[1] += pair.y;
            v[2] += pair.x;
            v[3] += pair.y;
          }
        }
      }
      if constexpr (kStore == StemStore::activation) {
        apply_short_activation<Element>(arguments.output.epilogue, accumulators);
      }
      Element* out = static_cast<Element*>(arguments.output.data) + pixel * l.filters + channel;
      const bool aligned = l.filters % 8 == 0;
#pragma unroll
      for (int row = 0; row < 2; ++row, out += std::int64_t{l.out[2]} * l.filters) {
        if (p + row >= l.out[1] || q >= l.out[2]) continue;
#pragma unroll
        for (int a = 0; a < kN / 32; ++a) {
          const float* const v = accumulators + 16 * a + 2 * row;
          const int left = l.filters - channel - a * 32;
          if (left <= 0) continue;
          const std::uint32_t pairs[] = {pack2<Element>(v[0], v[1]), pack2<Element>(v[4], v[5]),
                                         pack2<Element>(v[8], v[9]), pack2<Element>(v[12], v[13])};
          store_eight(out + a * 32, pairs, left, aligned);
        }
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kN / 16; ++i) {
        // Registers take constant indices only.
        float v[8];
#pragma unroll
        for (int j = 0; j < kN / 16; ++j) {
          if (i != j) continue;
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            v[e] = accumulators[j / 2 * 16 + e / 2 * 4 + j % 2 * 2 + e % 2];
          }
        }
        const int first_channel = channel + i / 2 * 32, left = l.filters - first_channel;
        if (p + i % 2 < l.out[1] && q < l.out[2] && left > 0) {
          store_channels(arguments.output, v, pixel + i % 2 * std::int64_t{l.out[2]}, first_channel,
                         min(left, 8));
        }
      }
    }
    tile += tile_step;
    if (tile >= l.tiles) break;
    at = l.walk.advance(at, l.step);
    if constexpr (kRuns) {
      runs.finish_tile(arguments, where, patches + (turn & 1) * l.patch_cells * 16);
      ptx::fence_async_shared();
    }
    // All four warps have read the patch: the next load may take its place.
    ptx::named_barrier_sync(1 + warpgroup, 128);
  }
}

#endif  // __CUDACC__

}  // namespace convoy::sm90
