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
//   gather    copy 128 bytes of each pixel under its tap, and of each filter, into a stage of the
//             ring; input.cuh says where the input has them
//   multiply  a stage of some steps ago: fragments into registers, tensor cores
//   store     the accumulators with the epilogue, through shared memory, at the end
//
// Rows of a stage are 128 bytes, eight cells of 16. Cell c of row r lies at place c ^ (r % 8), so
// that the eight rows of a fragment fall on different banks.
#pragma once

#include "kernels/common/device_code.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/common/split_tf32.hpp"
#include "kernels/mma/config.hpp"
#include "kernels/mma/epilogue.cuh"
#include "kernels/mma/input.cuh"
#include "kernels/mma/params.hpp"
#include "kernels/mma/tile.cuh"

namespace convoy::mma {

// ---- Gather: from global memory into a stage ----------------------------------------------------

/// Fill kCount places of shared memory, `to(i)`, from global memory, kBytes each; nothing where not
/// `runs`.
template <int kBytes, int kCount, typename To>
__device__ __forceinline__ void copy(bool runs, const To& to, const Source (&from)[kCount]) {
  if constexpr (kBytes == 2) {  // cp.async moves 4 bytes at least.
    if (!runs) return;
    std::uint16_t values[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = from[i].exists ? *reinterpret_cast<const std::uint16_t*>(from[i].address)
                                 : std::uint16_t{0};
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      asm volatile("st.shared.u16 [%0], %1;" ::"r"(to(i)), "h"(values[i]) : "memory");
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      copy_async_if<kBytes>(runs, to(i), from[i].address, from[i].exists);
    }
  }
}

/// What a thread copies of every stage: one column, rows `row`, `row` + rows_at_once, ... of the
/// pixels, as Places has them, and of the filters.
template <Config kConfig, typename Places>
struct Gatherer {
  static constexpr int kBytes = kConfig.copy_bytes;
  static constexpr int kRows = kConfig.rows_at_once();

  int row, column;
  std::uint32_t ring;  ///< Shared address of the copy for `row` in the first stage.
  Places places;
  const unsigned char* filter;           ///< First tap of the tile's first filter.
  int filters[kConfig.block_n / kRows];  ///< From there to those of the rows, in copies.

  __device__ __forceinline__ Gatherer(const Params& p, const Tile& tile, const Steps& steps,
                                      unsigned char* shared)
      : row(static_cast<int>(threadIdx.x) / kConfig.row_copies()),
        column(static_cast<int>(threadIdx.x) % kConfig.row_copies()),
        ring(ptx::shared_address(shared) + row * kRowBytes + in_row(row)),
        places(p, tile, steps, shared + kConfig.ring_bytes(), row),
        filter(static_cast<const unsigned char*>(p.filter) + tile.phase * p.phase_pitch +
               (std::int64_t{tile.group} * p.filters + tile.filter) * p.filter_pitch +
               p.filter_offset) {
    const int pitch = static_cast<int>(p.filter_pitch / kBytes);
    // NOTE: rows past the last filter are others again, whose sums nobody stores: a copy then needs
    // no condition. Not all the same one, which so many copies at once would wait for.
#pragma unroll
    for (int i = 0; i < kConfig.block_n / kRows; ++i) filters[i] = (row + i * kRows) * pitch;
    if (p.filters - tile.filter >= kConfig.block_n) return;
#pragma unroll
    for (int i = 0; i < kConfig.block_n / kRows; ++i) {
      const int filter = row + i * kRows;
      filters[i] = p.last_filters.remainder(filter, p.last_filters.divide(filter)) * pitch;
    }
  }

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
    typename Places::Step places;
    const unsigned char* filter;  ///< Of the tile's first filter.
    bool runs, exists;            ///< A step that does not run is not copied.
  };
  __device__ __forceinline__ Step at_step(const Params& p, int step, int end) const {
    const int copy = step * kConfig.row_copies() + column;
    return {.places = places.at(p, copy),
            .filter = filter + static_cast<std::int64_t>(copy) * kBytes,
            .runs = step < end,
            .exists = copy < p.reduction_copies};
  }

  /// Copy part `kPart` of `kParts` of a step: every kParts-th row.
  template <int kPart, int kParts>
  __device__ __forceinline__ void gather(const Step& step, int stage) const {
    const std::uint32_t to = ring + stage * kConfig.stage_bytes();
    constexpr int kPixels = rows_of_part(kConfig.block_m / kRows, kPart, kParts);
    constexpr int kFilters = rows_of_part(kConfig.block_n / kRows, kPart, kParts);
    const auto row_at = [&](int i) { return to + to_row((kPart + i * kParts) * kRows); };
    if constexpr (kPixels > 0) {
      Source pixels[kPixels];
      places.template find<kPart, kParts>(step.places, pixels);
      copy<kBytes>(step.runs, row_at, pixels);
    }
    if constexpr (kFilters > 0) {
      Source of_filters[kFilters];
#pragma unroll
      for (int i = 0; i < kFilters; ++i) {
        of_filters[i] = {copies_from<kBytes>(step.filter, filters[kPart + i * kParts]),
                         step.exists};
      }
      copy<kBytes>(
          step.runs, [&](int i) { return row_at(i) + kConfig.act_bytes(); }, of_filters);
    }
  }

  /// Of `rows` turns, those that are kPart's: every kParts-th.
  static constexpr int rows_of_part(int rows, int part, int parts) {
    return (rows - part + parts - 1) / parts;
  }
};

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

/// Where a lane finds its rows of fragments in a stage. A lane names one row of 16 bytes: of pixels
/// row lane % 16 and cell lane / 16, of filters row lane % 8 + lane / 16 · 8 and cell lane / 8 % 2.
template <Config kConfig>
struct FragmentPlaces {
  std::uint32_t pixels, filters;

  __device__ __forceinline__ FragmentPlaces() {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int pixel = warp % kConfig.warps_m * kConfig.warp_m() + lane % 16;
    const int filter = warp / kConfig.warps_m * kConfig.warp_n() + lane % 8 + lane / 16 * 8;
    pixels = pixel * kRowBytes + (lane / 16 ^ lane % 8) * 16;
    filters = kConfig.act_bytes() + filter * kRowBytes + (lane / 8 % 2 ^ lane % 8) * 16;
    // NOTE: the compiler would work them out in every step.
    asm volatile("" : "+r"(pixels), "+r"(filters));
  }
};

/// Load the fragments of step `k` of a stage.
template <Config kConfig>
__device__ __forceinline__ void load_fragments(Fragments<kConfig>& fragments,
                                               const FragmentPlaces<kConfig>& places,
                                               std::uint32_t stage, int k) {
  // NOTE: a row lies at a multiple of its length, so cell 2k + c is one exclusive or away from c.
  const std::uint32_t pixels = (stage + places.pixels) ^ (k * kStepBytes);
  const std::uint32_t filters = (stage + places.filters) ^ (k * kStepBytes);
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
  // There and back, so that neighbouring MMAs share an operand: 1 % faster.
  constexpr int kTiles = kConfig.warp_n() / 8;
#pragma unroll
  for (int i = 0; i < kConfig.warp_m() / 16; ++i) {
#pragma unroll
    for (int turn = 0; turn < kTiles; ++turn) {
      const int j = i % 2 == 0 ? turn : kTiles - 1 - turn;
      const auto& filters = fragments.filters[j / 2];
      multiply_add<kConfig.in>(accumulators.sums[i][j], fragments.pixels[i], filters[j % 2 * 2],
                               filters[j % 2 * 2 + 1]);
    }
  }
}

// ---- A tile's sums ------------------------------------------------------------------------------

/// Begin a tile: its first stages, all but one, are on their way. The ring is free.
template <Config kConfig, typename Places>
__device__ __forceinline__ Gatherer<kConfig, Places> start_gathering(const Params& p,
                                                                     const Tile& tile,
                                                                     const Steps& steps,
                                                                     unsigned char* shared) {
  Gatherer<kConfig, Places> gatherer(p, tile, steps, shared);
#pragma unroll 1
  for (int stage = 0; stage < kConfig.stages - 1; ++stage) {
    const int step = steps.begin + stage;
    gatherer.places.make_ready(p, step);
    const auto copies = gatherer.at_step(p, step, steps.end);
    gatherer.template gather<0, 1>(copies, stage);
    copy_async_commit();
  }
  gatherer.places.extend_to(p, steps.begin + kConfig.stages - 1);
  return gatherer;
}

/// The tile's sums over this block's steps. Copies run stages − 1 steps ahead, a list one more;
/// fragments are loaded one MMA step ahead. One barrier a step: behind it the stage that comes next
/// is there for all, and nobody reads the stage before any more.
/// NOTE: steps behind the last one are not copied, by a predicate: without branches the compiler
/// mixes loads, addresses and MMAs of the whole step.
template <Config kConfig, typename Places>
__device__ __forceinline__ void main_loop(const Params& p, Gatherer<kConfig, Places>& gatherer,
                                          const Steps& steps, Accumulators<kConfig>& accumulators,
                                          unsigned char* shared) {
  constexpr int kStages = kConfig.stages;
  // NOTE: of two warps that share a scheduler one lists while the other multiplies, if the list
  // comes first; in front of the barrier all would wait. Where several blocks share a
  // multiprocessor, the other blocks multiply meanwhile, and the list there is 3 % faster.
  constexpr bool kAlone = kConfig.is_alone();
  constexpr int kParts = 4;  // Of a step's copies, one for each MMA step.
  copy_async_wait<kStages - 2>();
  __syncthreads();
  Fragments<kConfig> even, odd;
  const FragmentPlaces<kConfig> places;
  const std::uint32_t ring = ptx::shared_address(shared);
  load_fragments(even, places, ring, 0);
  int stage = 0, free_stage = kStages - 1;
  // The last step may have fewer MMA steps than the others.
  constexpr int kStepCopies = kStepBytes / kConfig.copy_bytes;
  const int rest = p.reduction_copies - (steps.end - 1) * kConfig.row_copies();
  const bool is_short = rest <= kConfig.row_copies() - kStepCopies;
  const int whole = is_short ? steps.end - 1 : steps.end;
#pragma unroll 1
  for (int step = steps.begin; step < whole; ++step) {
    const std::uint32_t now = ring + stage * kConfig.stage_bytes();
    const int ahead = step + kStages - 1;
    if (kAlone) gatherer.places.extend_to(p, ahead + 1);
    const auto copies = gatherer.at_step(p, ahead, steps.end);

    load_fragments(odd, places, now, 1);
    gatherer.template gather<0, kParts>(copies, free_stage);
    multiply(accumulators, even);

    load_fragments(even, places, now, 2);
    gatherer.template gather<1, kParts>(copies, free_stage);
    multiply(accumulators, odd);

    load_fragments(odd, places, now, 3);
    gatherer.template gather<2, kParts>(copies, free_stage);
    multiply(accumulators, even);

    gatherer.template gather<3, kParts>(copies, free_stage);
    copy_async_commit();

    free_stage = stage;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (!kAlone) gatherer.places.extend_to(p, ahead + 1);
    copy_async_wait<kStages - 2>();
    __syncthreads();
    load_fragments(even, places, ring + stage * kConfig.stage_bytes(), 0);
    multiply(accumulators, odd);
  }
  if (is_short) {
    // NOTE: k = 0 is loaded once more: were `even` used here, the compiler would put MMAs of k = 3
    // in front of the barrier, where they hide no loads: 5 % slower.
#pragma unroll 1
    for (int k = 0; k * kStepCopies < rest; ++k) {
      Fragments<kConfig> fragments;
      load_fragments(fragments, places, ring + stage * kConfig.stage_bytes(), k);
      multiply(accumulators, fragments);
    }
  }
  // All have read their last stage. No copies are under way: behind the last step there were none.
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

/// A block computes its tile; where it can, it goes on to the tile that lies a grid further, if
/// there is one, whose first stages come while the sums of this one are stored, through the stage
/// that they leave free.
template <typename PackedConfig, template <Config> typename PlacesOf, Epilogues kEpilogues>
__global__ void __launch_bounds__(PackedConfig::kConfig.threads(),
                                  PackedConfig::kConfig.ctas_per_sm())
    conv_fprop_kernel(const __grid_constant__ Params p) {
  constexpr Config kConfig = PackedConfig::kConfig;
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const staging = shared + (kConfig.stages - 1) * kConfig.stage_bytes();

  const Steps steps = steps_of_block(p);
  const auto start = [&](const Tile& tile) {
    if constexpr (kEpilogues != Epilogues::linear) prefetch_residual<kConfig>(p, tile);
    return start_gathering<kConfig, PlacesOf<kConfig>>(p, tile, steps, shared);
  };
  int number = static_cast<int>(blockIdx.x);
  Tile tile = tile_of<kConfig>(p, number);
  auto gatherer = start(tile);
  while (true) {
    Accumulators<kConfig> accumulators;
    main_loop(p, gatherer, steps, accumulators, shared);
    if constexpr (kConfig.split) redo_unusual(p, tile, steps, accumulators);
    // NOTE: where the epilogue needs registers, it is worked out again.
    const Tile done = kEpilogues == Epilogues::linear ? tile : tile_of<kConfig>(p, number);
    number += static_cast<int>(gridDim.x);
    const bool more = kConfig.can_persist(kEpilogues) && number < p.tiles;
    if (more) {
      tile = tile_of<kConfig>(p, number);
      gatherer = start(tile);
    }
    store_tile<kConfig, kEpilogues>(p, done, accumulators.sums, staging);
    if (!more) break;
  }
}

}  // namespace convoy::mma
