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
#include "kernels/common/for_each_number.cuh"
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
/// `runs`. kKeep: what is read comes through L1 and stays there.
template <int kBytes, bool kKeep = false, int kCount, typename To>
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
      if constexpr (kKeep) {
        asm volatile(
            "{\n .reg .pred runs, zeros;\n setp.ne.b32 runs, %2, 0;\n setp.eq.b32 zeros, %3, 0;\n"
            " @runs cp.async.ca.shared.global [%0], [%1], %4, zeros;\n}" ::"r"(to(i)),
            "l"(from[i].address), "r"(static_cast<int>(runs)),
            "r"(static_cast<int>(from[i].exists)), "n"(kBytes)
            : "memory");
      } else {
        copy_async_if<kBytes>(runs, to(i), from[i].address, from[i].exists);
      }
    }
  }
}

/// What a thread copies of every stage: one column, rows `row`, `row` + rows_at_once, ... of the
/// pixels, as Places has them, and of the filters.
template <Config kConfig, typename Places_, Epilogues kEpilogues>
struct Gatherer {
  using Places = Places_;
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
    bool taps_first;              ///< Params::taps_first
  };
  __device__ __forceinline__ Step at_step(const Params& p, int step, int end) const {
    const ReductionCopy copy = Places::copy_of(p, step, column);
    const int number = copy.number(p);
    return {.places = places.at(p, copy),
            .filter = filter + std::int64_t{number} * kBytes,
            .runs = step < end,
            .exists = number < p.reduction_copies,
            .taps_first = p.taps_first};
  }

  /// Copy part `kPart` of `kParts` of a step: of the thread's pixels and filters as many each.
  template <int kPart, int kParts>
  __device__ __forceinline__ void gather(const Step& step, int stage) const {
    const std::uint32_t to = ring + stage * kConfig.stage_bytes();
    constexpr Part kPixels(kConfig.block_m / kRows, kPart, kParts);
    constexpr Part kFilters(kConfig.block_n / kRows, kPart, kParts);
    if constexpr (kPixels.count > 0) {
      Source pixels[kPixels.count];
      places.template find<kPixels.first>(step.places, pixels);
      const auto row_at = [&](int i) { return to + to_row((kPixels.first + i) * kRows); };
      // NOTE: with a path around L1 beside it, for steps whose pixels no other step reads, the loop
      // of linear kernels is 0.5 % faster, since the compiler orders it otherwise, and that of the
      // others 1.7 % slower; the path itself gains nothing that was measured.
      if constexpr (Places::kTapsFirst && kEpilogues == Epilogues::linear) {
        copy<kBytes, true>(step.runs && step.taps_first, row_at, pixels);
        copy<kBytes>(step.runs && !step.taps_first, row_at, pixels);
      } else {
        copy<kBytes, Places::kTapsFirst>(step.runs, row_at, pixels);
      }
    }
    if constexpr (kFilters.count > 0) {
      Source of_filters[kFilters.count];
#pragma unroll
      for (int i = 0; i < kFilters.count; ++i) {
        of_filters[i] = {copies_from<kBytes>(step.filter, filters[kFilters.first + i]),
                         step.exists};
      }
      copy<kBytes>(
          step.runs,
          [&](int i) { return to + kConfig.act_bytes() + to_row((kFilters.first + i) * kRows); },
          of_filters);
    }
  }

  /// The `part`-th of `parts` of some rows.
  struct Part {
    int first, count;
    constexpr Part(int rows, int part, int parts)
        : first(part * rows / parts), count((part + 1) * rows / parts - first) {}
  };
};

// ---- Multiply: a stage on the tensor cores ------------------------------------------------------

/// What a warp takes of a stage for one MMA step: 16 pixels × 32 bytes each, 16 filters × 32 bytes
/// each.
using Fragment = std::uint32_t[4];
template <Config kConfig>
using PixelFragments = Fragment[kConfig.warp_m() / 16];
template <Config kConfig>
using FilterFragments = Fragment[kConfig.warp_n() / 16];

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

/// Loads fragments of step `k` of a stage.
template <Config kConfig>
struct FragmentLoads {
  std::uint32_t pixels, filters;

  // NOTE: a row lies at a multiple of its length, so cell 2k + c is one exclusive or away from c.
  __device__ __forceinline__ FragmentLoads(const FragmentPlaces<kConfig>& places,
                                           std::uint32_t stage, int k)
      : pixels((stage + places.pixels) ^ (k * kStepBytes)),
        filters((stage + places.filters) ^ (k * kStepBytes)) {}

  __device__ __forceinline__ void load_pixels(int i, Fragment& f) const {
    ptx::load_matrix_x4(pixels + i * 16 * kRowBytes, f[0], f[1], f[2], f[3]);
  }
  __device__ __forceinline__ void load_filters(int j, Fragment& f) const {
    ptx::load_matrix_x4(filters + j * 16 * kRowBytes, f[0], f[1], f[2], f[3]);
  }
  __device__ __forceinline__ void load_all(PixelFragments<kConfig>& to_pixels,
                                           FilterFragments<kConfig>& to_filters) const {
#pragma unroll
    for (int i = 0; i < kConfig.warp_m() / 16; ++i) load_pixels(i, to_pixels[i]);
#pragma unroll
    for (int j = 0; j < kConfig.warp_n() / 16; ++j) load_filters(j, to_filters[j]);
  }
};

/// An fp32 fragment to TF32.
__device__ __forceinline__ void round_to_tf32(Fragment& fragment) {
#pragma unroll
  for (std::uint32_t& x : fragment) x = rounded_to_tf32(x);
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

/// An fp32 fragment to its upper part in TF32, and the lower one.
__device__ __forceinline__ void split_fragment(Fragment& upper, Fragment& lower) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Tf32Parts parts = split_tf32(upper[i]);
    upper[i] = parts.hi;
    lower[i] = parts.lo;
  }
}

/// 16 pixels of a warp's MMA step, to the accuracy of fp32: three products of the operands' parts.
/// NOTE: tensor cores cut their sums off, towards zero, so that errors of a long reduction add up
/// (docs/lab/2026-11-22-split-operands.md). Here they sum no more than a step, its small products
/// first; fp32 adders, which round to nearest, do the rest.
template <Config kConfig>
__device__ __forceinline__ void multiply_row_split(float (&sums_of_row)[kConfig.warp_n() / 8][4],
                                                   Fragment& upper_pixels,
                                                   const FilterFragments<kConfig>& upper,
                                                   const FilterFragments<kConfig>& lower) {
  constexpr int kTiles = kConfig.warp_n() / 8;
  Fragment lower_pixels;
  split_fragment(upper_pixels, lower_pixels);
  float sums[kTiles][4];
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    const auto& filters = upper[j / 2];
    mma_16x8x8_tf32_first(sums[j], lower_pixels, filters[j % 2 * 2], filters[j % 2 * 2 + 1]);
  }
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    const auto& filters = lower[j / 2];
    mma_16x8x8_tf32(sums[j], upper_pixels, filters[j % 2 * 2], filters[j % 2 * 2 + 1]);
  }
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    const auto& filters = upper[j / 2];
    mma_16x8x8_tf32(sums[j], upper_pixels, filters[j % 2 * 2], filters[j % 2 * 2 + 1]);
  }
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sums_of_row[j][e] += sums[j][e];
  }
}

/// One MMA step of a warp, 16 pixels after 16 pixels. `after_row(i)` is called behind those of i.
template <Config kConfig, typename AfterRow>
__device__ __forceinline__ void multiply(Accumulators<kConfig>& accumulators,
                                         PixelFragments<kConfig>& pixels,
                                         FilterFragments<kConfig>& filters,
                                         const AfterRow& after_row) {
  constexpr int kTiles = kConfig.warp_n() / 8;
  [[maybe_unused]] FilterFragments<kConfig> lower;
#pragma unroll
  for (int j = 0; j < kTiles / 2; ++j) {
    if constexpr (kConfig.split) {
      split_fragment(filters[j], lower[j]);
    } else if constexpr (kConfig.in == DType::fp32) {
      round_to_tf32(filters[j]);
    }
  }
  for_each_number<kConfig.warp_m() / 16>([&](auto number) {
    constexpr int i = number.value;
    if constexpr (kConfig.split) {
      multiply_row_split<kConfig>(accumulators.sums[i], pixels[i], filters, lower);
    } else {
      if constexpr (kConfig.in == DType::fp32) round_to_tf32(pixels[i]);
        // There and back, so that neighbouring MMAs share an operand: 1 % faster.
#pragma unroll
      for (int turn = 0; turn < kTiles; ++turn) {
        const int j = i % 2 == 0 ? turn : kTiles - 1 - turn;
        multiply_add<kConfig.in>(accumulators.sums[i][j], pixels[i], filters[j / 2][j % 2 * 2],
                                 filters[j / 2][j % 2 * 2 + 1]);
      }
    }
    after_row(number);
  });
}

// ---- A tile's sums ------------------------------------------------------------------------------

/// Begin a tile: its first stages, all but one, are on their way. The ring is free.
template <Config kConfig, typename Gatherer>
__device__ __forceinline__ Gatherer start_gathering(const Params& p, const Tile& tile,
                                                    const Steps& steps, unsigned char* shared) {
  Gatherer gatherer(p, tile, steps, shared);
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
template <Config kConfig, typename Gatherer>
__device__ __forceinline__ void main_loop(const Params& p, Gatherer& gatherer, const Steps& steps,
                                          Accumulators<kConfig>& accumulators,
                                          unsigned char* shared) {
  constexpr int kStages = kConfig.stages;
  // NOTE: of two warps that share a scheduler one lists while the other multiplies, if the list
  // comes first; in front of the barrier all would wait. Where several blocks share a
  // multiprocessor, the other blocks multiply meanwhile, and the list there is 3 % faster.
  constexpr bool kAlone = kConfig.is_alone();
  constexpr int kTurns = kRowBytes / kStepBytes;  // MMA steps of a step.
  constexpr int kPixels = kConfig.warp_m() / 16, kFilters = kConfig.warp_n() / 16;
  // NOTE: the warps of a wide tile, which has a multiprocessor to itself, come to the same place at
  // once: their loads and copies go one by one between the MMAs, where else the compiler puts them
  // in rows, which wait for each other. Where blocks share a multiprocessor, and where filters and
  // pixels are matrices, fewer instructions are worth more.
  constexpr bool kOneByOne = Gatherer::Places::kTapsFirst;
  constexpr int kBuffers = kOneByOne ? 1 : 2;  // Of pixels: loaded as soon as they are used.
  copy_async_wait<kStages - 2>();
  __syncthreads();
  PixelFragments<kConfig> pixels[kBuffers];
  FilterFragments<kConfig> filters[2];
  const FragmentPlaces<kConfig> places;
  const std::uint32_t ring = ptx::shared_address(shared);
  FragmentLoads<kConfig>(places, ring, 0).load_all(pixels[0], filters[0]);
  int stage = 0, free_stage = kStages - 1;
  auto copies = gatherer.at_step(p, steps.begin + kStages - 1, steps.end);

  // The MMAs of a turn, the fragments of the next one, which are of stage `of_next`, and a part of
  // the copies.
  const auto turn = [&](auto number, std::uint32_t of_next) {
    constexpr int kTurn = number.value, kNext = (kTurn + 1) % kTurns;
    const FragmentLoads<kConfig> loads(places, of_next, kNext);
    auto& next_pixels = pixels[kNext % kBuffers];
    auto& next_filters = filters[kNext % 2];
    if constexpr (!kOneByOne) {
      loads.load_all(next_pixels, next_filters);
      if constexpr (kNext != 0) gatherer.template gather<kTurn, kTurns>(copies, free_stage);
    }
    multiply<kConfig>(accumulators, pixels[kTurn % kBuffers], filters[kTurn % 2], [&](auto row) {
      if constexpr (kOneByOne) {
        constexpr int kRow = row.value;
        loads.load_pixels(kRow, next_pixels[kRow]);
#pragma unroll
        for (int j = 0; j < kFilters; ++j) {
          if (j * (kPixels - 1) / kFilters == kRow) loads.load_filters(j, next_filters[j]);
        }
        gatherer.template gather<kNext * kPixels + kRow, kTurns * kPixels>(copies, free_stage);
      }
    });
  };
  if constexpr (kOneByOne) gatherer.template gather<0, kTurns>(copies, free_stage);
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
    if constexpr (!kOneByOne) copies = gatherer.at_step(p, ahead, steps.end);
    turn(std::integral_constant<int, 0>{}, now);
    turn(std::integral_constant<int, 1>{}, now);
    turn(std::integral_constant<int, 2>{}, now);
    if constexpr (!kOneByOne) gatherer.template gather<kTurns - 1, kTurns>(copies, free_stage);
    copy_async_commit();

    free_stage = stage;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (!kAlone) gatherer.places.extend_to(p, ahead + 1);
    copy_async_wait<kStages - 2>();
    __syncthreads();
    if constexpr (kOneByOne) copies = gatherer.at_step(p, ahead + 1, steps.end);
    turn(std::integral_constant<int, 3>{}, ring + stage * kConfig.stage_bytes());
  }
  if (is_short) {
    // NOTE: k = 0 is loaded once more: were the loop's fragments used here, the compiler would put
    // MMAs of k = 3 in front of the barrier, where they hide no loads: 5 % slower.
#pragma unroll 1
    for (int k = 0; k * kStepCopies < rest; ++k) {
      PixelFragments<kConfig> last_pixels;
      FilterFragments<kConfig> last_filters;
      FragmentLoads<kConfig>(places, ring + stage * kConfig.stage_bytes(), k)
          .load_all(last_pixels, last_filters);
      multiply<kConfig>(accumulators, last_pixels, last_filters, [](auto) {});
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
/// `Packed`: a PackedConfig.
template <typename Packed, template <Config> typename PlacesOf, Epilogues kEpilogues>
__global__ void __launch_bounds__(Packed::kConfig.threads(), Packed::kConfig.ctas_per_sm())
    conv_fprop_kernel(const __grid_constant__ Params p) {
  constexpr Config kConfig = Packed::kConfig;
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const staging = shared + (kConfig.stages - 1) * kConfig.stage_bytes();

  const Steps steps = steps_of_block(p);
  const auto start = [&](const Tile& tile) {
    if constexpr (kEpilogues != Epilogues::linear) prefetch_residual<kConfig>(p, tile);
    return start_gathering<kConfig, Gatherer<kConfig, PlacesOf<kConfig>, kEpilogues>>(
        p, tile, steps, shared);
  };
  int number = static_cast<int>(blockIdx.x);
  Tile tile = tile_of<kConfig>(p, number);
  auto gatherer = start(tile);
  while (true) {
    Accumulators<kConfig> accumulators;
    main_loop<kConfig>(p, gatherer, steps, accumulators, shared);
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
