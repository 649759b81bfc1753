// SPDX-License-Identifier: Apache-2.0
//
// The implicit GEMM of every GPU with tensor cores since Ampere: mma.sync, ldmatrix, cp.async.
//
//   output[pixel, filter] = Σ over taps and channels  input[pixel under tap, channel] ·
//                                                     filter[filter, tap, channel]
//
// A CTA computes one tile, block_m pixels × block_n filters; all its warps do the same, in steps of
// 128 bytes along the reduction:
//
//   list      where the input has the tile's pixels under the next tap; padding, cache and
//             upsampling are settled here
//   gather    copy 128 bytes of each of those pixels, and of each filter, into a stage of the ring
//   multiply  a stage of some steps ago: fragments into registers, tensor cores
//   store     the accumulators with the epilogue, through shared memory, at the end
//
// Rows of a stage are 128 bytes, eight cells of 16. Cell c of row r lies at place c ^ (r % 8), so
// that the eight rows of a fragment fall on different banks.
#pragma once

#include "kernels/common/device_code.cuh"
#include "kernels/common/device_geometry.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/common/split_tf32.hpp"
#include "kernels/mma/config.hpp"
#include "kernels/mma/epilogue.cuh"
#include "kernels/mma/params.hpp"

namespace convoy::mma {

// ---- Tiles and their steps ----------------------------------------------------------------------

template <Config kConfig>
__device__ __forceinline__ Tile tile_of(const Params& p, int number) {
  const int groups = p.filter_tiles.divide(number);
  const int phases = p.groups.divide(groups);
  const int pixels = p.phases.divide(phases);
  return {.pixel = pixels * kConfig.block_m,
          .phase = p.phases.remainder(phases, pixels),
          .group = p.groups.remainder(groups, phases),
          .filter = p.filter_tiles.remainder(number, groups) * kConfig.block_n};
}

/// Steps [begin, end) of the reduction are this block's.
struct Steps {
  int begin, end;
};
__device__ __forceinline__ Steps steps_of_block(const Params& p) {
  const int begin = static_cast<int>(blockIdx.y) * p.steps_per_split;
  return {begin, min(begin + p.steps_per_split, p.steps)};
}

// ---- List: where the input has a pixel ----------------------------------------------------------

/// A place in the list: copies from the first element of the activation, or with kInCache of the
/// cache; kZeros where the tap reads zeros.
inline constexpr std::uint32_t kInCache = 1u << 31;
inline constexpr std::uint32_t kZeros = ~0u;

/// Input coordinates (image, frame, row, column) of a pixel's first tap; image −1 past the last
/// pixel.
__device__ __forceinline__ int4 first_tap(const Params& p, const Tile& tile, int row) {
  const int pixel = tile.pixel + row;
  if (pixel >= p.pixels) return make_int4(-1, 0, 0, 0);
  const int4 o = output_position(p, pixel);
  return make_int4(o.x, o.y * p.stride[0] - p.pad[0], o.z * p.stride[1] - p.pad[1] + tile.phase / 2,
                   o.w * p.stride[2] - p.pad[2] + tile.phase % 2);
}

/// The place of the pixel whose first tap is `first`, under `tap`.
__device__ __forceinline__ std::uint32_t place_under_tap(const Params& p, int4 first, int tap) {
  const int tap_row = p.filter_extent[2].divide(tap);
  const int tap_frame = p.filter_extent[1].divide(tap_row);
  int d = first.y + tap_frame * p.dilation[0];
  int h = first.z + p.filter_extent[1].remainder(tap_row, tap_frame) * p.dilation[1];
  int w = first.w + p.filter_extent[2].remainder(tap, tap_row) * p.dilation[2];
  const bool exists = first.x >= 0 && tap_frame < static_cast<int>(p.filter_extent[0].divisor);
  if (!exists || !map_coordinate(d, p.seen[0], p.pad_mode[0]) ||
      !map_coordinate(h, p.seen[1], p.pad_mode[1]) ||
      !map_coordinate(w, p.seen[2], p.pad_mode[2])) {
    return kZeros;
  }
  const bool cached = d < p.cached_frames;
  const int frame =
      cached ? first.x * p.cached_frames + d : first.x * p.frames + d - p.cached_frames;
  const std::uint32_t row = frame * p.height + (h >> p.upsample_shift);
  const std::uint32_t place = row * p.row_copies + (w >> p.upsample_shift) * p.pixel_copies;
  return cached ? place | kInCache : place;
}

/// The input of a tile: the first channel of its group.
template <Config kConfig>
struct Input {
  const unsigned char* activation;
  const unsigned char* cache;

  __device__ __forceinline__ Input(const Params& p, const Tile& tile) {
    const std::int64_t group = std::int64_t{tile.group} * p.tap_copies.divisor * kConfig.copy_bytes;
    activation = static_cast<const unsigned char*>(p.activation) + group;
    cache = static_cast<const unsigned char*>(p.cache) + group;
  }
  /// Copy `channel` at a place.
  __device__ __forceinline__ const unsigned char* at(std::uint32_t place,
                                                     std::uint32_t channel) const {
    const std::uint64_t copies = (place & ~kInCache) + channel;
    return (place >= kInCache ? cache : activation) + copies * kConfig.copy_bytes;
  }
};

/// A place as the list has it: its address, nullptr for zeros, which takes the copies few
/// instructions; or the place itself (Config::lists_addresses).
template <Config kConfig>
using ListedPlace =
    std::conditional_t<kConfig.lists_addresses(), const unsigned char*, std::uint32_t>;
__device__ __forceinline__ bool is_zeros(const unsigned char* place) {
  return place == nullptr;
}
__device__ __forceinline__ bool is_zeros(std::uint32_t place) {
  return place == kZeros;
}

/// The list, a ring of taps: `places[tap & mask][row of the tile]`. Each thread keeps one pixel and
/// writes its places.
template <Config kConfig>
struct PlaceList {
  static constexpr int kTapsAtOnce = kConfig.threads() / kConfig.block_m;

  ListedPlace<kConfig>* places;
  Input<kConfig> input;
  int4 first;  ///< Of this thread's pixel.
  int listed;  ///< Taps below are in the list.

  /// Write the taps that `step` reads and that are not there yet.
  __device__ __forceinline__ void extend_to(const Params& p, int step) {
    const int end = p.tap_copies.divide((step + 1) * kConfig.row_copies() - 1) + 1;
    const int row = static_cast<int>(threadIdx.x) % kConfig.block_m;
    for (int tap = listed + static_cast<int>(threadIdx.x) / kConfig.block_m; tap < end;
         tap += kTapsAtOnce) {
      const std::uint32_t place = place_under_tap(p, first, tap);
      ListedPlace<kConfig>& entry = places[(tap & p.list_mask) * kConfig.list_pitch() + row];
      if constexpr (kConfig.lists_addresses()) {
        entry = is_zeros(place) ? nullptr : input.at(place, 0);
      } else {
        entry = place;
      }
    }
    listed = end;
  }
};

template <Config kConfig>
__device__ __forceinline__ PlaceList<kConfig> start_list(const Params& p, const Tile& tile,
                                                         const Steps& steps,
                                                         unsigned char* shared) {
  return {.places = reinterpret_cast<ListedPlace<kConfig>*>(shared + kConfig.ring_bytes()),
          .input = Input<kConfig>(p, tile),
          .first = first_tap(p, tile, static_cast<int>(threadIdx.x) % kConfig.block_m),
          .listed = p.tap_copies.divide(steps.begin * kConfig.row_copies())};
}

// ---- Gather: from global memory into a stage ----------------------------------------------------

/// Fill kCount places of shared memory, `to(i)`, from global memory, `from(i)`, kBytes each; zeros
/// where not `exists(i)`: then the address is not used.
template <int kBytes, int kCount, typename To, typename From, typename Exists>
__device__ __forceinline__ void copy_or_zero(const To& to, const From& from, const Exists& exists) {
  if constexpr (kBytes == 2) {  // cp.async moves 4 bytes at least.
    std::uint16_t values[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = exists(i) ? *reinterpret_cast<const std::uint16_t*>(from(i)) : std::uint16_t{0};
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      asm volatile("st.shared.u16 [%0], %1;" ::"r"(to(i)), "h"(values[i]) : "memory");
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) copy_async<kBytes>(to(i), from(i), exists(i));
  }
}

/// What a thread copies of every stage: one column, rows `row`, `row` + rows_at_once, ...
template <Config kConfig>
struct Gatherer {
  static constexpr int kBytes = kConfig.copy_bytes;
  static constexpr int kRows = kConfig.rows_at_once();

  const ListedPlace<kConfig>* places;
  Input<kConfig> input;
  const unsigned char* filter;  ///< First tap of filter `row` of the tile.
  int filters;                  ///< Filters of the tile from `row` on.
  int row, column;
  std::uint32_t ring;  ///< Shared address of the copy for `row` in the first stage.

  /// Where the thread's column lies in a row.
  __device__ __forceinline__ int in_row(int of_row) const {
    return (column * kBytes) ^ (of_row % 8 * 16);
  }
  /// From the thread's copy for `row` to that for the row `down` further: a constant, where it lies
  /// alike in all of its rows.
  __device__ __forceinline__ int to_row(int down) const {
    const int turned = kRows % 8 == 0 ? 0 : in_row(row + down) - in_row(row);
    return down * kRowBytes + turned;
  }

  /// What all rows of a step have in common.
  struct Step {
    const ListedPlace<kConfig>* places;  ///< Of pixel `row`.
    std::uint32_t channel;               ///< In copies.
    const unsigned char* filter;         ///< Of filter `row`.
    bool exists, in_filters;             ///< Past the end zeros are copied.
  };
  __device__ __forceinline__ Step at_step(const Params& p, int step, int end) const {
    const int copy = step * kConfig.row_copies() + column;
    const int tap = p.tap_copies.divide(copy);
    return {.places = places + (tap & p.list_mask) * kConfig.list_pitch() + row,
            .channel = static_cast<std::uint32_t>(p.tap_copies.remainder(copy, tap)),
            .filter = filter + static_cast<std::int64_t>(copy) * kBytes,
            .exists = step < end,
            .in_filters = step < end && copy < p.reduction_copies};
  }

  /// Copy part `kPart` of `kParts` of a step.
  template <int kPart, int kParts>
  __device__ __forceinline__ void gather(const Params& p, const Step& step, int stage) const {
    const std::uint32_t pixels = ring + stage * kConfig.stage_bytes();
    constexpr int kPixels = rows_of_part(kConfig.block_m / kRows, kPart, kParts);
    ListedPlace<kConfig> place[kPixels + 1];
#pragma unroll
    for (int i = 0; i < kPixels; ++i) place[i] = step.places[(kPart + i * kParts) * kRows];
    const auto address = [&](int i) {
      if constexpr (kConfig.lists_addresses()) {
        return place[i] + std::uint64_t{step.channel} * kBytes;
      } else {
        return input.at(place[i], step.channel);
      }
    };
    copy_or_zero<kBytes, kPixels>(
        [&](int i) { return pixels + to_row((kPart + i * kParts) * kRows); }, address,
        [&](int i) { return step.exists && !is_zeros(place[i]); });
    copy_or_zero<kBytes, rows_of_part(kConfig.block_n / kRows, kPart, kParts)>(
        [&](int i) { return pixels + kConfig.act_bytes() + to_row((kPart + i * kParts) * kRows); },
        [&](int i) { return step.filter + (kPart + i * kParts) * kRows * p.filter_pitch; },
        [&](int i) { return step.in_filters && (kPart + i * kParts) * kRows < filters; });
  }

  /// Of `rows` turns, those that are kPart's: every kParts-th.
  static constexpr int rows_of_part(int rows, int part, int parts) {
    return (rows - part + parts - 1) / parts;
  }
};

template <Config kConfig>
__device__ __forceinline__ Gatherer<kConfig> start_gathering(const Params& p, const Tile& tile,
                                                             unsigned char* shared) {
  const int row = static_cast<int>(threadIdx.x) / kConfig.row_copies();
  const std::int64_t first = std::int64_t{tile.group} * p.filters + tile.filter + row;
  Gatherer<kConfig> gatherer{
      .places = reinterpret_cast<const ListedPlace<kConfig>*>(shared + kConfig.ring_bytes()),
      .input = Input<kConfig>(p, tile),
      .filter = static_cast<const unsigned char*>(p.filter) + tile.phase * p.phase_pitch +
                first * p.filter_pitch + p.filter_offset,
      .filters = p.filters - tile.filter - row,
      .row = row,
      .column = static_cast<int>(threadIdx.x) % kConfig.row_copies(),
      .ring = ptx::shared_address(shared) + row * kRowBytes};
  gatherer.ring += gatherer.in_row(row);
  return gatherer;
}

// ---- Multiply: a stage on the tensor cores ------------------------------------------------------

/// What a warp takes of a stage for one MMA step: 16 pixels × 32 bytes each, 16 filters × 32 bytes
/// each.
template <Config kConfig>
struct Fragments {
  std::uint32_t pixels[kConfig.warp_m() / 16][4];
  std::uint32_t filters[kConfig.warp_n() / 16][4];
};

/// The sums of a warp: 16 pixels × 8 filters each.
template <Config kConfig>
struct Accumulators {
  float sums[kConfig.warp_m() / 16][kConfig.warp_n() / 8][4] = {};
};

/// Load the fragments of step `k` of a stage. A lane names one row of 16 bytes: of pixels row
/// lane % 16 and cell lane / 16, of filters row lane % 8 + lane / 16 · 8 and cell lane / 8 % 2.
template <Config kConfig>
__device__ __forceinline__ void load_fragments(Fragments<kConfig>& fragments,
                                               const unsigned char* stage, int k) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int pixel = warp % kConfig.warps_m * kConfig.warp_m() + lane % 16;
  const int filter = warp / kConfig.warps_m * kConfig.warp_n() + lane % 8 + lane / 16 * 8;
  // NOTE: a row lies at a multiple of its length, so cell 2k + c is one exclusive or away from c.
  const std::uint32_t pixels =
      (ptx::shared_address(stage) + pixel * kRowBytes + (lane / 16 ^ lane % 8) * 16) ^
      (k * kStepBytes);
  const std::uint32_t filters = (ptx::shared_address(stage) + kConfig.act_bytes() +
                                 filter * kRowBytes + (lane / 8 % 2 ^ lane % 8) * 16) ^
                                (k * kStepBytes);
#pragma unroll
  for (int i = 0; i < kConfig.warp_m() / 16; ++i) {
    auto& f = fragments.pixels[i];
    ptx::load_matrix_x4(pixels + i * 16 * kRowBytes, f[0], f[1], f[2], f[3]);
  }
#pragma unroll
  for (int j = 0; j < kConfig.warp_n() / 16; ++j) {
    auto& f = fragments.filters[j];
    ptx::load_matrix_x4(filters + j * 16 * kRowBytes, f[0], f[1], f[2], f[3]);
  }
}

/// Fp32 fragments to TF32.
template <Config kConfig>
__device__ __forceinline__ void round_to_tf32(Fragments<kConfig>& fragments) {
  const auto round = [](std::uint32_t(&fragment)[4]) {
#pragma unroll
    for (std::uint32_t& x : fragment) x = rounded_to_tf32(x);
  };
#pragma unroll
  for (auto& fragment : fragments.pixels) round(fragment);
#pragma unroll
  for (auto& fragment : fragments.filters) round(fragment);
}

/// sums += pixels · filters, 16 × 8 over 32 bytes of the reduction.
template <DType kIn>
__device__ __forceinline__ void multiply_add(float (&sums)[4], const std::uint32_t (&pixels)[4],
                                             std::uint32_t filters0, std::uint32_t filters1) {
  if constexpr (kIn == DType::bf16) {
    mma_16x8x16<__nv_bfloat16>(sums, pixels, filters0, filters1);
  } else if constexpr (kIn == DType::fp16) {
    mma_16x8x16<__half>(sums, pixels, filters0, filters1);
  } else {
    mma_16x8x8_tf32(sums, pixels, filters0, filters1);
  }
}

/// Fp32 fragments to their upper parts in TF32, and the lower ones.
__device__ __forceinline__ void split_fragment(std::uint32_t (&upper)[4],
                                               std::uint32_t (&lower)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Tf32Parts parts = split_tf32(upper[i]);
    upper[i] = parts.hi;
    lower[i] = parts.lo;
  }
}

/// One MMA step of a warp, to the accuracy of fp32: three products of the operands' parts.
/// NOTE: tensor cores cut their sums off, towards zero, so that errors of a long reduction add up
/// (docs/lab/2026-11-22-split-operands.md). Here they sum no more than a step, its small products
/// first; fp32 adders, which round to nearest, do the rest.
template <Config kConfig>
__device__ __forceinline__ void multiply_split(Accumulators<kConfig>& accumulators,
                                               Fragments<kConfig>& upper) {
  constexpr int kTiles = kConfig.warp_n() / 8;
  std::uint32_t lower_filters[kTiles / 2][4];
#pragma unroll
  for (int j = 0; j < kTiles / 2; ++j) split_fragment(upper.filters[j], lower_filters[j]);
#pragma unroll
  for (int i = 0; i < kConfig.warp_m() / 16; ++i) {
    std::uint32_t lower_pixels[4];
    split_fragment(upper.pixels[i], lower_pixels);
    float sums[kTiles][4];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const auto& filters = upper.filters[j / 2];
      mma_16x8x8_tf32_first(sums[j], lower_pixels, filters[j % 2 * 2], filters[j % 2 * 2 + 1]);
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const auto& filters = lower_filters[j / 2];
      mma_16x8x8_tf32(sums[j], upper.pixels[i], filters[j % 2 * 2], filters[j % 2 * 2 + 1]);
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const auto& filters = upper.filters[j / 2];
      mma_16x8x8_tf32(sums[j], upper.pixels[i], filters[j % 2 * 2], filters[j % 2 * 2 + 1]);
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) accumulators.sums[i][j][e] += sums[j][e];
    }
  }
}

/// One MMA step of a warp.
template <Config kConfig>
__device__ __forceinline__ void multiply(Accumulators<kConfig>& accumulators,
                                         Fragments<kConfig>& fragments) {
  if constexpr (kConfig.split) return multiply_split(accumulators, fragments);
  if constexpr (kConfig.in == DType::fp32) round_to_tf32(fragments);
#pragma unroll
  for (int i = 0; i < kConfig.warp_m() / 16; ++i) {
#pragma unroll
    for (int j = 0; j < kConfig.warp_n() / 8; ++j) {
      const auto& filters = fragments.filters[j / 2];
      multiply_add<kConfig.in>(accumulators.sums[i][j], fragments.pixels[i], filters[j % 2 * 2],
                               filters[j % 2 * 2 + 1]);
    }
  }
}

// ---- A tile's sums ------------------------------------------------------------------------------

/// What brings the stages of one tile.
template <Config kConfig>
struct Loads {
  PlaceList<kConfig> list;
  Gatherer<kConfig> gatherer;
};

/// Begin a tile: its first stages, all but one, are on their way. The ring is free.
template <Config kConfig>
__device__ __forceinline__ Loads<kConfig> start_loads(const Params& p, const Tile& tile,
                                                      const Steps& steps, unsigned char* shared) {
  Loads<kConfig> loads{start_list<kConfig>(p, tile, steps, shared),
                       start_gathering<kConfig>(p, tile, shared)};
#pragma unroll 1
  for (int stage = 0; stage < kConfig.stages - 1; ++stage) {
    const int step = steps.begin + stage;
    loads.list.extend_to(p, step);
    __syncthreads();
    const auto copies = loads.gatherer.at_step(p, step, steps.end);
    loads.gatherer.template gather<0, 1>(p, copies, stage);
    copy_async_commit();
  }
  loads.list.extend_to(p, steps.begin + kConfig.stages - 1);
  return loads;
}

/// The tile's sums over this block's steps. Copies run stages − 1 steps ahead, the list one more;
/// fragments are loaded one MMA step ahead. One barrier a step: behind it the stage that comes next
/// is there for all, and nobody reads the stage before any more.
/// NOTE: what would pass the last step is copied as zeros and not multiplied: without branches the
/// compiler mixes loads, addresses and MMAs of the whole step.
template <Config kConfig>
__device__ __forceinline__ void main_loop(const Params& p, Loads<kConfig>& loads,
                                          const Steps& steps, Accumulators<kConfig>& accumulators,
                                          unsigned char* shared) {
  constexpr int kStages = kConfig.stages;
  // NOTE: of two warps that share a scheduler one lists while the other multiplies, if the list
  // comes first; in front of the barrier all would wait. Where several blocks share a
  // multiprocessor, the other blocks multiply meanwhile, and the list there is 3 % faster.
  constexpr bool kAlone = kConfig.is_persistent();
  constexpr int kParts = kAlone ? 4 : 3;
  const Gatherer<kConfig>& gatherer = loads.gatherer;
  copy_async_wait<kStages - 2>();
  __syncthreads();
  Fragments<kConfig> even, odd;
  load_fragments(even, shared, 0);
  int stage = 0, free_stage = kStages - 1;
#pragma unroll 1
  for (int step = steps.begin; step < steps.end; ++step) {
    const unsigned char* const now = shared + stage * kConfig.stage_bytes();
    const int ahead = step + kStages - 1;
    if (kAlone) loads.list.extend_to(p, ahead + 1);
    const auto copies = gatherer.at_step(p, ahead, steps.end);

    load_fragments(odd, now, 1);
    gatherer.template gather<0, kParts>(p, copies, free_stage);
    multiply(accumulators, even);

    load_fragments(even, now, 2);
    gatherer.template gather<1, kParts>(p, copies, free_stage);
    multiply(accumulators, odd);

    load_fragments(odd, now, 3);
    gatherer.template gather<2, kParts>(p, copies, free_stage);
    if (!kAlone) copy_async_commit();
    multiply(accumulators, even);
    if constexpr (kAlone) {
      gatherer.template gather<3, kParts>(p, copies, free_stage);
      copy_async_commit();
    }

    free_stage = stage;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (!kAlone) loads.list.extend_to(p, ahead + 1);
    copy_async_wait<kStages - 2>();
    __syncthreads();
    load_fragments(even, shared + stage * kConfig.stage_bytes(), 0);
    multiply(accumulators, odd);
  }
  copy_async_wait<0>();
  __syncthreads();
}

// ---- Infinities and NaNs of split operands -----------------------------------------------------

/// One output's sum over this block's steps, product by product. `row` is of the tile, `filter` of
/// the group.
template <Config kConfig>
__device__ __forceinline__ float sum_by_fma(const Params& p, const Tile& tile, const Steps& steps,
                                            int row, int filter) {
  const int channels = static_cast<int>(p.tap_copies.divisor) * kConfig.copy_elements();
  const int end = min(steps.end * kConfig.block_k(), p.reduction_copies * kConfig.copy_elements());
  const std::int64_t group = std::int64_t{tile.group} * channels;
  const auto* const weights = reinterpret_cast<const float*>(
      static_cast<const unsigned char*>(p.filter) + tile.phase * p.phase_pitch +
      (std::int64_t{tile.group} * p.filters + filter) * p.filter_pitch + p.filter_offset);
  const int4 first = first_tap(p, tile, row);
  float sum = 0.0f;
  for (int k = steps.begin * kConfig.block_k(); k < end;) {
    const int tap = k / channels;
    const int tap_end = min((tap + 1) * channels, end);
    const std::uint32_t place = place_under_tap(p, first, tap);
    const auto* const pixel =
        static_cast<const float*>(place >= kInCache ? p.cache : p.activation) + group +
        std::int64_t{place & ~kInCache} * kConfig.copy_elements() - tap * channels;
    for (; k < tap_end; ++k) {
      if (place != kZeros) sum = fmaf(pixel[k], weights[k], sum);
    }
  }
  return sum;
}

/// Sums that are no finite numbers, once more. NOTE: an infinity's lower part is a NaN, and its
/// product with another's lower part an infinity of either sign or a NaN; so every sum that has
/// one in it comes here, as does what rounds to an infinity where it is split.
template <Config kConfig>
__device__ __forceinline__ void redo_unusual(const Params& p, const Tile& tile, const Steps& steps,
                                             Accumulators<kConfig>& accumulators) {
  constexpr int kFragments = kConfig.warp_m() / 16, kTiles = kConfig.warp_n() / 8;
  float zero = 0.0f;  // A NaN with any of them.
  const auto for_each = [&](auto&& body) {
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) body((i * kTiles + j) * 4 + e, accumulators.sums[i][j][e]);
      }
    }
  };
  for_each([&](int, float sum) { zero = fmaf(sum, 0.0f, zero); });
  if (zero == 0.0f) return;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  // One copy of the code: registers are picked by constant indices.
#pragma unroll 1
  for (int n = 0; n < kFragments * kTiles * 4; ++n) {
    float sum = 0.0f;
    for_each([&](int index, float value) { sum = index == n ? value : sum; });
    if (isfinite(sum)) continue;
    const int row = warp % kConfig.warps_m * kConfig.warp_m() + n / (kTiles * 4) * 16 +
                    n % 4 / 2 * 8 + lane / 4;
    const int filter = tile.filter + warp / kConfig.warps_m * kConfig.warp_n() +
                       n / 4 % kTiles * 8 + lane % 4 * 2 + n % 2;
    if (tile.pixel + row >= p.pixels || filter >= p.filters) continue;
    sum = sum_by_fma<kConfig>(p, tile, steps, row, filter);
    for_each([&](int index, float& value) { value = index == n ? sum : value; });
  }
}

// ---- The kernel ---------------------------------------------------------------------------------

/// A block computes its tile; with Config::is_persistent it goes on to the tile that lies a grid
/// further, whose first stages come while the sums of this one are stored, through the stage that
/// they leave free.
template <typename PackedConfig>
__global__ void __launch_bounds__(PackedConfig::kConfig.threads(),
                                  PackedConfig::kConfig.ctas_per_sm())
    conv_fprop_kernel(const __grid_constant__ Params p) {
  constexpr Config kConfig = PackedConfig::kConfig;
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const staging = shared + (kConfig.stages - 1) * kConfig.stage_bytes();

  const Steps steps = steps_of_block(p);
  int number = static_cast<int>(blockIdx.x);
  Tile tile = tile_of<kConfig>(p, number);
  Loads<kConfig> loads = start_loads<kConfig>(p, tile, steps, shared);
  while (true) {
    Accumulators<kConfig> accumulators;
    main_loop(p, loads, steps, accumulators, shared);
    if constexpr (kConfig.split) redo_unusual(p, tile, steps, accumulators);
    const Tile done = tile;
    number += static_cast<int>(gridDim.x);
    const bool more = kConfig.is_persistent() && number < p.tiles;
    if (more) {
      tile = tile_of<kConfig>(p, number);
      loads = start_loads<kConfig>(p, tile, steps, shared);
    }
    store_tile<kConfig>(p, done, accumulators.sums, staging);
    if (!more) break;
  }
}

}  // namespace convoy::mma
