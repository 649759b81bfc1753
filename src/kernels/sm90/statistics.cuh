// SPDX-License-Identifier: Apache-2.0
//
// Statistics of what the Hopper epilogue stores, for a GroupNorm that follows: number, mean and sum
// of squared deviations of the rounded outputs, by slices of kSliceFilters filters.
//
// Every slice has a shift, a value of its first pixels, so that a large mean costs no digits. A
// warp sums deviations from it and their squares, lane by lane, as it stages the pieces of a tile;
// at the tile's end the lanes of a slice add theirs. Behind the last tile of an image it writes
// what all its tiles come to; statistics.cu merges the warps. Every order is fixed.
#pragma once

#include "kernels/common/epilogue.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/sm90/config.hpp"
#include "kernels/sm90/params.hpp"
#include "kernels/sm90/tile.cuh"

namespace convoy::sm90 {

/// Of all paths but EpiloguePath::statistics: nothing.
template <Config kConfig, EpiloguePath kPath>
struct WarpStatistics {
  __device__ __forceinline__ void end_tile() {}
  __device__ __forceinline__ void finish(const Params&, const Tile&, int, int,
                                         const std::uint8_t*) {}
};

/// Lane i of a warp has the slice of filters 8·e + 4·(i / 2 % 2), e = i / 4 · 2 + i % 2.
template <Config kConfig>
struct WarpStatistics<kConfig, EpiloguePath::statistics> {
  static constexpr int kColumns = kConfig.pieces_per_block();
  static constexpr int kEights = 8;  // of filters, in a piece
  static constexpr int kAll = kColumns * kEights;
  static_assert(kConfig.piece_halves() * 4 == kEights && kConfig.has_halo() && kAll == 16);
  using Out = Element<kConfig.out>;
  static constexpr bool kHalf = std::is_same_v<Out, __half>;
  using Pair = std::conditional_t<kHalf, __half2, __nv_bfloat162>;

  float pixels = 0.0f;              ///< Of all blocks that were taken.
  float sum = 0.0f, square = 0.0f;  ///< Of deviations, of this lane's slice.
  // Of a tile: of this lane's filters of each eight.
  float sums[kColumns][kEights] = {}, squares[kColumns][kEights] = {};

  /// A piece of 2 rows of 8 pixels from (row, pixel) on: value 4j + 2h + e of a lane is row
  /// lane / 4 + 8h and filter 8j + 2·(lane % 4) + e. `column`: which one of its block of rows; the
  /// last one ends the block. `staged`: the same piece; `shifts`: this warp's.
  __device__ __forceinline__ void take(const Params& p, int row, int pixel, int column,
                                       const float (&v)[4 * kEights], const std::uint8_t* staged,
                                       std::uint8_t* shifts) {
    const int lane = static_cast<int>(ptx::lane_id());
    const int columns = min(max(p.out[2] - pixel, 0), 8);
    const int here = columns * min(max(p.out[1] - row, 0), 2);
    std::uint32_t words[2 * kEights];  // As they are stored.
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) words[i] = pack2<Out>(v[2 * i], v[2 * i + 1]);
    auto* const of_slices =
        reinterpret_cast<uint4*>(shifts) + (lane / 2 % 2 * kColumns + column) * 2;
    // NOTE: nothing has been taken yet, so that a choice by pixels outside does no harm.
    if (pixels == 0.0f) choose_shifts(staged, reinterpret_cast<std::uint32_t*>(of_slices));
    const uint4 low = of_slices[0], high = of_slices[1];
    const std::uint32_t shift[kEights] = {low.x,  low.y,  low.z,  low.w,
                                          high.x, high.y, high.z, high.w};
    if (here < 16) {
      const bool first = lane / 4 < columns && row < p.out[1];
      const bool second = first && row + 1 < p.out[1];
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
        if (!first) words[2 * j] = shift[j];
        if (!second) words[2 * j + 1] = shift[j];
      }
    }
    // NOTE: by columns of constant numbers: registers must not be indexed at run time.
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (c != column) continue;
#pragma unroll
      for (int i = 0; i < 2 * kEights; ++i) {
        const float2 d = deviations(words[i], shift[i / 2]);
        sums[c][i / 2] += d.x;
        sums[c][i / 2] += d.y;
        squares[c][i / 2] = fmaf(d.x, d.x, squares[c][i / 2]);
        squares[c][i / 2] = fmaf(d.y, d.y, squares[c][i / 2]);
      }
    }
    if (column == kColumns - 1) pixels += static_cast<float>(here);
  }

  /// All pieces of a tile were taken: each slice's sums go to its lane, which adds them to those of
  /// the tiles before. At each step a lane keeps half of the eights and gives away the others.
  __device__ __forceinline__ void end_tile() {
    float a[kAll], b[kAll];
#pragma unroll
    for (int i = 0; i < kAll; ++i) {
      a[i] = sums[i / kEights][i % kEights];
      b[i] = squares[i / kEights][i % kEights];
      sums[i / kEights][i % kEights] = squares[i / kEights][i % kEights] = 0.0f;
    }
    fold<8>(a, b);
    fold<4>(a, b);
    fold<2>(a, b);
    fold<1>(a, b);
    sum += a[0];
    square += b[0];
  }

  /// The tile is done: behind the last one of its image write what it all comes to.
  __device__ __forceinline__ void finish(const Params& p, const Tile& tile, int index,
                                         int warp_in_warpgroup, const std::uint8_t* shifts) {
    const StatisticsParams& s = p.statistics;
    const int slot = index - (tile.batch + 1) * s.image_tiles + s.slots;
    if (slot < 0) return;
    const int lane = static_cast<int>(ptx::lane_id());
    const int eight = lane / 4 * 2 + lane % 2, upper = lane / 2 % 2;
    const std::int64_t record =
        (static_cast<std::int64_t>(tile.batch) * s.slots + slot) * 4 + warp_in_warpgroup;
    if (lane == 0) s.pixels[record] = pixels;
    // NOTE: without pixels there may be no shift yet.
    float shift = 0.0f, each = 0.0f;
    if (pixels > 0.0f) {
      shift = unpack2<Out>(reinterpret_cast<const std::uint32_t*>(shifts)[upper * kAll + eight]).x;
      each = __fdividef(1.0f / kSliceFilters, pixels);
    }
    const float mean = sum * each;
    // NOTE: not by a maximum, which would lose a NaN.
    const float around = fmaf(-sum, mean, square);
    s.partials[record * (kConfig.block_n / kSliceFilters) + eight * 2 + upper] =
        make_float2(shift + mean, around < 0.0f ? 0.0f : around);
    pixels = sum = square = 0.0f;
  }

 private:
  /// A slice's first value where those of its first row of 8 pixels are within a factor of two of
  /// it, else 0; twice in a word.
  static __device__ __forceinline__ void choose_shifts(const std::uint8_t* staged,
                                                       std::uint32_t* shifts) {
    const int lane = static_cast<int>(ptx::lane_id()), row = lane / 4;
    const std::uint32_t mine = (lane & 2) != 0 ? 0xccccccccu : 0x33333333u;
    __syncwarp();
#pragma unroll 1
    for (int j = 0; j < kEights; ++j) {
      const std::uint32_t word = *reinterpret_cast<const std::uint32_t*>(
          staged + row * kConfig.piece_row_bytes() + (j ^ row) * 16 + lane % 4 * 4);
      const float2 v = unpack2<Out>(word);
      const float first = __shfl_sync(0xffffffffu, v.x, lane & 2);
      const float bound = 0.5f * fabsf(first);
      const bool near = fabsf(v.x - first) <= bound && fabsf(v.y - first) <= bound;
      const bool all = (__ballot_sync(0xffffffffu, near) & mine) == mine;
      shifts[j] = all ? pack2<Out>(first, first) : 0u;  // The same from 16 lanes.
      __syncwarp();
    }
  }

  /// Both values of a word less the shift.
  // NOTE: bf16 at once, which is exact within a factor of two of the shift and rounds to bf16
  // elsewhere. In fp16 a difference could overflow.
  static __device__ __forceinline__ float2 deviations(std::uint32_t word, std::uint32_t shift) {
    if constexpr (kHalf) {
      const float2 v = unpack2<Out>(word);
      const float s = unpack2<Out>(shift).x;
      return {v.x - s, v.y - s};
    } else {
      const Pair d =
          __hsub2(*reinterpret_cast<const Pair*>(&word), *reinterpret_cast<const Pair*>(&shift));
      return unpack2<Out>(*reinterpret_cast<const std::uint32_t*>(&d));
    }
  }

  template <int kKept>
  static __device__ __forceinline__ void fold(float (&a)[kAll], float (&b)[kAll]) {
    constexpr int kLanes = kKept > 1 ? 2 * kKept : 1;
    std::uint32_t upper = (ptx::lane_id() & kLanes) != 0 ? 0xffffffffu : 0u;
    // NOTE: opaque, and selections by bits: ptxas makes branches of others, shuffles in both arms.
    asm("" : "+r"(upper));
#pragma unroll
    for (int j = 0; j < kKept; ++j) {
      a[j] = exchange(a[j], a[j + kKept], upper, kLanes);
      b[j] = exchange(b[j], b[j + kKept], upper, kLanes);
    }
  }

  static __device__ __forceinline__ float exchange(float low, float high, std::uint32_t upper,
                                                   int lanes) {
    const std::uint32_t a = __float_as_uint(low), b = __float_as_uint(high);
    const float kept = __uint_as_float((a & ~upper) | (b & upper));
    const float given = __uint_as_float((b & ~upper) | (a & upper));
    return kept + __shfl_xor_sync(0xffffffffu, given, lanes);
  }
};

}  // namespace convoy::sm90
