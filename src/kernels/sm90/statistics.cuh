// SPDX-License-Identifier: Apache-2.0
//
// Statistics of what the Hopper epilogue stores, for a GroupNorm that follows: number, mean and sum
// of squared deviations of the rounded outputs, by slices of kSliceFilters filters.
//
// A warp takes them piece by piece from the registers that it is about to stage, as deviations from
// a value of the slice, so that a large mean costs no digits, and merges them into those of its
// tiles so far (Chan, Golub, LeVeque 1979). Behind the last tile of an image it writes them;
// statistics.cu merges the warps. Every order is fixed.
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
  __device__ __forceinline__ void finish(const Params&, const Tile&, int, int) {}
};

/// Lane i of a warp has the slice of filters 8·(i / 4) + 4·(i % 4 / 2) of every piece.
template <Config kConfig>
struct WarpStatistics<kConfig, EpiloguePath::statistics> {
  static constexpr int kColumns = kConfig.pieces_per_block();
  static constexpr int kEights = 8;  // of filters, in a piece
  static_assert(kConfig.piece_halves() * 4 == kEights && kConfig.has_halo());
  using Out = Element<kConfig.out>;

  float pixels = 0.0f;  ///< Of all blocks that were taken.
  float mean[kColumns] = {}, squares[kColumns] = {};

  /// A piece of 2 rows of 8 pixels from (row, pixel) on: value 4j + 2h + e of a lane is row
  /// lane / 4 + 8h and filter 8j + 2·(lane % 4) + e. `column`: which one of its block of rows; the
  /// last one ends the block.
  __device__ __forceinline__ void take(const Params& p, int row, int pixel, int column,
                                       const float (&v)[4 * kEights]) {
    std::uint32_t words[2 * kEights];  // As they are stored.
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) words[i] = pack2<Out>(v[2 * i], v[2 * i + 1]);
    const int columns = min(max(p.out[2] - pixel, 0), 8);
    const int here = columns * min(max(p.out[1] - row, 0), 2);
    if (here == 16) {
      take_rows<true>(column, words, 16.0f, true, true);
    } else if (here > 0) {
      const bool inside = static_cast<int>(ptx::lane_id()) / 4 < columns;
      take_rows<false>(column, words, static_cast<float>(here), inside,
                       inside && row + 1 < p.out[1]);
    }
    if (column == kColumns - 1) pixels += static_cast<float>(here);
  }

  /// The tile is done: behind the last one of its image write what it all comes to.
  __device__ __forceinline__ void finish(const Params& p, const Tile& tile, int index,
                                         int warp_in_warpgroup) {
    const StatisticsParams& s = p.statistics;
    const int slot = index - (tile.batch + 1) * s.image_tiles + s.slots;
    if (slot < 0) return;
    const int lane = static_cast<int>(ptx::lane_id());
    const std::int64_t record =
        (static_cast<std::int64_t>(tile.batch) * s.slots + slot) * 4 + warp_in_warpgroup;
    if (lane == 0) s.pixels[record] = pixels;
    if (lane % 2 == 0) {
      float2* const partials = s.partials + record * (kConfig.block_n / kSliceFilters) + lane / 2;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) partials[i * 16] = make_float2(mean[i], squares[i]);
    }
    pixels = 0.0f;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) mean[i] = squares[i] = 0.0f;
  }

 private:
  // NOTE: by columns of constant numbers: registers must not be indexed at run time.
  template <bool kWhole>
  __device__ __forceinline__ void take_rows(int column, const std::uint32_t (&words)[2 * kEights],
                                            float here, bool first_row, bool second_row) {
    const int lane = static_cast<int>(ptx::lane_id());
    float shift[kEights], sum[kEights], square[kEights];
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      float2 a = unpack2<Out>(words[2 * j]), b = unpack2<Out>(words[2 * j + 1]);
      // The slice's first value, which is one of a pixel inside.
      shift[j] = __shfl_sync(0xffffffffu, a.x, lane & 2);
      a = {a.x - shift[j], a.y - shift[j]};
      b = {b.x - shift[j], b.y - shift[j]};
      if (!kWhole && !first_row) a = {0.0f, 0.0f};
      if (!kWhole && !second_row) b = {0.0f, 0.0f};
      sum[j] = (a.x + a.y) + (b.x + b.y);
      square[j] = fmaf(a.x, a.x, fmaf(a.y, a.y, fmaf(b.x, b.x, b.y * b.y)));
    }
    // Over the rows: at each step a lane keeps half of the eights and gives away the others.
#pragma unroll
    for (int n = kEights / 2; n > 0; n /= 2) {
      const bool upper = (lane & 4 * n) != 0;
#pragma unroll
      for (int j = 0; j < n; ++j) {
        shift[j] = upper ? shift[j + n] : shift[j];
        sum[j] = exchange(sum[j], sum[j + n], upper, 4 * n);
        square[j] = exchange(square[j], square[j + n], upper, 4 * n);
      }
    }
    sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], 1);
    square[0] += __shfl_xor_sync(0xffffffffu, square[0], 1);

    const float total = pixels + here;
    const float weight = __fdividef(here, total);
    const float mean_here = sum[0] * __fdividef(1.0f, kSliceFilters * here);
    // NOTE: not by a maximum, which would lose a NaN.
    float squares_here = fmaf(-sum[0], mean_here, square[0]);
    squares_here = squares_here < 0.0f ? 0.0f : squares_here;
    const float delta = shift[0] + mean_here - mean[column];
    mean[column] = fmaf(delta, weight, mean[column]);
    // NOTE: the first time the factor is 0, and delta² may be infinite.
    squares[column] += fmaf(delta, delta * (pixels * weight * kSliceFilters), squares_here);
  }

  static __device__ __forceinline__ float exchange(float low, float high, bool upper, int lanes) {
    const float kept = upper ? high : low;
    return kept + __shfl_xor_sync(0xffffffffu, upper ? low : high, lanes);
  }
};

}  // namespace convoy::sm90
