// SPDX-License-Identifier: Apache-2.0
//
// From accumulators to the output: a warp's part of the tile through shared memory, rows of the
// output in pieces of 16 bytes. The usual epilogues have a path of their own, which is three times
// as fast.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/common/gates.cuh"
#include "kernels/common/output.cuh"
#include "kernels/mma/config.hpp"
#include "kernels/mma/params.hpp"
#include "kernels/mma/tile.cuh"

namespace convoy::mma {

/// What a warp stores of its tile, and through which memory.
struct WarpPart {
  int phase;
  int pixel, pixel_end;     ///< Of its phase.
  std::int64_t filter;      ///< The first, of all groups.
  std::int64_t filter_end;  ///< Of its group.
};

// ---- The usual epilogues ------------------------------------------------------------------------

/// The larger of each of two pairs; NaN where either is.
template <typename Out>
__device__ __forceinline__ std::uint32_t larger2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t larger;
  if constexpr (std::is_same_v<Out, __nv_bfloat16>) {
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  }
  return larger;
}

/// scale · sum + bias, an activation other than tanh, then + beta · residual, as 16-bit values: all
/// in registers, two filters of a pixel at a time, and through 16 rows of 128 bytes of shared
/// memory for whole 16-byte cells. Cell c of row r lies at place c ^ turned(r).
template <typename Out, int kFragments, int kTiles>
struct PairStore {
  static constexpr int kPasses = kTiles / 2;  ///< Of a warp's lanes over 16 rows of cells.

  const Params& p;
  const WarpPart& part;
  unsigned char* rows;
  int lane = static_cast<int>(threadIdx.x % 32);

  /// Row % 8, its bits in reverse: neighbouring rows of 2 or 4 cells then fall on different banks.
  __device__ __forceinline__ static int turned(int row) {
    return row % 2 * 4 + row / 2 % 2 * 2 + row / 4 % 2;
  }
  /// The pair that this lane's fragments have in `row` and `tile`, and a cell.
  __device__ __forceinline__ std::uint32_t* pair(int row, int tile) const {
    return reinterpret_cast<std::uint32_t*>(rows + row * 128 + (tile ^ turned(row)) * 16 +
                                            lane % 4 * 4);
  }
  __device__ __forceinline__ uint4* cell(int row, int column) const {
    return reinterpret_cast<uint4*>(rows + row * 128 + (column ^ turned(row)) * 16);
  }

  /// Call `body(row, column, element)` for this lane's cells of 16 pixels; element −1: not in the
  /// output.
  template <typename Body>
  __device__ __forceinline__ void for_cells(int first_pixel, const Body& body) const {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = (pass * 32 + lane) / kTiles, column = (pass * 32 + lane) % kTiles;
      const int pixel = first_pixel + row;
      const std::int64_t filter = part.filter + column * 8;
      const bool exists = pixel < part.pixel_end && filter < part.filter_end;
      body(row, column,
           exists ? output_number(p, pixel, part.phase) * p.output.channels + filter : -1);
    }
  }

  /// A pair of 16 pixels x the warp's filters where rows of the output can begin anywhere:
  /// neighbouring lanes have neighbouring pairs.
  struct RaggedPair {
    std::uint32_t* place;  ///< In shared memory.
    std::int64_t element;  ///< Of the output,
    int count;             ///< and how many of the pair are in it: 0 to 2.
  };
  __device__ __forceinline__ RaggedPair ragged_pair(int first_pixel, int number) const {
    constexpr int kPairs = 4 * kTiles;  // Of a row.
    const int row = (number * 32 + lane) / kPairs, column = (number * 32 + lane) % kPairs;
    const int pixel = first_pixel + row;
    const std::int64_t filter = part.filter + column * 2, left = part.filter_end - filter;
    const bool exists = pixel < part.pixel_end && left > 0;
    return {
        .place = reinterpret_cast<std::uint32_t*>(cell(row, column / 4)) + column % 4,
        .element = exists ? output_number(p, pixel, part.phase) * p.output.channels + filter : 0,
        .count = exists ? (left > 1 ? 2 : 1) : 0};
  }
  /// Whether all rows, of every group, begin at an even element.
  __device__ __forceinline__ bool has_even_rows() const {
    return p.filters % 2 == 0;
  }

  /// The residual of such rows to the pairs' places, some loads under way at a time.
  __device__ __forceinline__ void load_ragged(int first_pixel) const {
    const auto* const residual = static_cast<const unsigned short*>(p.output.residual);
    const bool even = has_even_rows();
    constexpr int kAtOnce = kTiles % 4 == 0 ? 8 : 4;
#pragma unroll 1
    for (int first = 0; first < 2 * kTiles; first += kAtOnce) {
      std::uint32_t pairs[kAtOnce] = {};
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const RaggedPair at = ragged_pair(first_pixel, first + i);
        const unsigned short* const from = residual + at.element;
        if (even) {
          if (at.count > 0) pairs[i] = *reinterpret_cast<const std::uint32_t*>(from);
        } else {
          if (at.count > 0) pairs[i] = from[0];
          if (at.count > 1) pairs[i] |= std::uint32_t{from[1]} << 16;
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) *ragged_pair(first_pixel, first + i).place = pairs[i];
    }
  }
  /// What lies at the pairs' places to such rows.
  __device__ __forceinline__ void store_ragged(int first_pixel) const {
    auto* const output = static_cast<unsigned short*>(p.output.data);
    const bool even = has_even_rows();
#pragma unroll 4
    for (int i = 0; i < 2 * kTiles; ++i) {
      const RaggedPair at = ragged_pair(first_pixel, i);
      const std::uint32_t pair = *at.place;
      unsigned short* const to = output + at.element;
      if (even) {
        if (at.count > 0) *reinterpret_cast<std::uint32_t*>(to) = pair;
      } else {
        if (at.count > 0) to[0] = static_cast<unsigned short>(pair);
        if (at.count > 1) to[1] = static_cast<unsigned short>(pair >> 16);
      }
    }
  }

  /// Of this lane's pairs. NOTE: x + −0 is x, also where x is −0.
  __device__ __forceinline__ void load_biases(float2 (&biases)[kTiles]) const {
    const EpilogueParams& e = p.output.epilogue;
    constexpr int kWarpFilters = 8 * kTiles;
    float loaded[(kWarpFilters + 31) / 32];  // A filter a lane.
    if (e.bias != nullptr) {
#pragma unroll
      for (int i = 0; i * 32 < kWarpFilters; ++i) {
        const std::int64_t filter = part.filter + i * 32 + lane;
        const bool exists = filter < part.filter_end && i * 32 + lane < kWarpFilters;
        loaded[i] = exists ? load_bias(e, static_cast<int>(filter)) : -0.0f;
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      biases[tile] = make_float2(-0.0f, -0.0f);
      if (e.bias == nullptr) continue;
      const int first = tile * 8 % 32 + lane % 4 * 2;
      biases[tile].x = __shfl_sync(~0u, loaded[tile * 8 / 32], first);
      biases[tile].y = __shfl_sync(~0u, loaded[tile * 8 / 32], first + 1);
    }
  }

  /// The values of 16 pixels, through the pairs' places, where a residual waits.
  __device__ __forceinline__ void finish(float (&v)[kTiles][4],
                                         const float2 (&biases)[kTiles]) const {
    const EpilogueParams& e = p.output.epilogue;
    const auto map = [&v](auto&& function) {
#pragma unroll
      for (auto& tile : v) {
#pragma unroll
        for (float& x : tile) x = function(x);
      }
    };
    const auto add_residual = [&] {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 added = unpack2<Out>(*pair(lane / 4 + half * 8, tile));
          v[tile][half * 2] = fmaf(e.beta, added.x, v[tile][half * 2]);
          v[tile][half * 2 + 1] = fmaf(e.beta, added.y, v[tile][half * 2 + 1]);
        }
      }
    };
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float bias = i % 2 == 0 ? biases[tile].x : biases[tile].y;
        v[tile][i] = fmaf(v[tile][i], e.scale, bias);
      }
    }
    if (e.has_residual && e.residual_first) add_residual();
    if (e.activation == Activation::relu) {
      map([](float x) { return x <= 0.0f ? 0.0f : x; });  // NaN passes through.
    } else if (e.activation == Activation::leaky_relu) {
      map([&e](float x) { return x * (x > 0.0f ? 1.0f : e.parameter_a); });
    } else if (e.activation == Activation::clamp) {
      map([&e](float x) {
        const float low = x < e.parameter_a ? e.parameter_a : x;  // NaN passes through.
        return low > e.parameter_b ? e.parameter_b : low;
      });
    } else if (e.activation == Activation::hardswish) {
      map([](float x) { return x * fminf(fmaxf(x + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f); });
    } else if (e.activation == Activation::sigmoid) {
      map([](float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); });
    } else if (e.activation == Activation::silu) {
      map([](float x) { return __fdividef(x, 1.0f + __expf(-x)); });
    } else if (e.activation == Activation::gelu || e.activation == Activation::gelu_tanh) {
      map([&e](float x) { return gelu_of(x, e.gelu); });
    }
    if (e.has_residual && !e.residual_first) add_residual();
  }

  /// scale · sum + bias, at most ReLU, of pixels that follow each other in the output: without
  /// loops, so that sums stay in their registers, and in few instructions, as they come cold.
  __device__ __forceinline__ void store_linear(const float (&sums)[kFragments][kTiles][4]) const {
    const EpilogueParams& e = p.output.epilogue;
    float2 biases[kTiles];
    load_biases(biases);
    auto* const output = static_cast<Out*>(p.output.data);
    const float lowest = e.activation == Activation::relu ? 0.0f : -INFINITY;
    const std::uint32_t floor = pack2<Out>(lowest, lowest);
    // This lane's cells of 16 pixels, and how many pixels follow there.
    Out* to[kPasses];
    int rows_left[kPasses];
    const std::int64_t pitch = 16 * p.output.channels;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = (pass * 32 + lane) / kTiles, column = (pass * 32 + lane) % kTiles;
      const int pixel = part.pixel + row;
      const std::int64_t filter = part.filter + column * 8;
      to[pass] = output + pixel * p.output.channels + filter;
      rows_left[pass] = filter < part.filter_end ? part.pixel_end - pixel : 0;
    }
#pragma unroll
    for (int fragment = 0; fragment < kFragments; ++fragment) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const float(&v)[4] = sums[fragment][tile];
        const float2 bias = biases[tile];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const std::uint32_t both = pack2<Out>(fmaf(v[half * 2], e.scale, bias.x),
                                                fmaf(v[half * 2 + 1], e.scale, bias.y));
          *pair(lane / 4 + half * 8, tile) = larger2<Out>(both, floor);
        }
      }
      __syncwarp();
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const int row = (pass * 32 + lane) / kTiles, column = (pass * 32 + lane) % kTiles;
        if (fragment * 16 < rows_left[pass])
          *reinterpret_cast<uint4*>(to[pass]) = *cell(row, column);
        to[pass] += pitch;
      }
      __syncwarp();
    }
  }

  /// Any activation but tanh.
  __device__ __forceinline__ void store(const float (&sums)[kFragments][kTiles][4]) const {
    const EpilogueParams& e = p.output.epilogue;
    float2 biases[kTiles];
    load_biases(biases);
    const auto* const residual = static_cast<const Out*>(p.output.residual);
    auto* const output = static_cast<Out*>(p.output.data);
    // One copy of the code: registers are picked by constant indices.
#pragma unroll 1
    for (int fragment = 0; fragment < kFragments; ++fragment) {
      const int first_pixel = part.pixel + fragment * 16;
      if (e.has_residual) {
        if (p.output.vectors) {
          for_cells(first_pixel, [&](int row, int column, std::int64_t element) {
            *cell(row, column) = element < 0 ? make_uint4(0, 0, 0, 0)
                                             : *reinterpret_cast<const uint4*>(residual + element);
          });
        } else {
          load_ragged(first_pixel);
        }
        __syncwarp();
      }
      float v[kTiles][4] = {};
#pragma unroll
      for (int i = 0; i < kFragments; ++i) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int j = 0; j < 4; ++j) v[tile][j] = i == fragment ? sums[i][tile][j] : v[tile][j];
        }
      }
      finish(v, biases);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        *pair(lane / 4, tile) = pack2<Out>(v[tile][0], v[tile][1]);
        *pair(lane / 4 + 8, tile) = pack2<Out>(v[tile][2], v[tile][3]);
      }
      __syncwarp();
      if (p.output.vectors) {
        for_cells(first_pixel, [&](int row, int column, std::int64_t element) {
          if (element >= 0) *reinterpret_cast<uint4*>(output + element) = *cell(row, column);
        });
      } else {
        store_ragged(first_pixel);
      }
      __syncwarp();
    }
  }
};

// ---- A tile -------------------------------------------------------------------------------------

/// Have the tile's residual in L2 by the time that it is stored.
template <Config kConfig>
__device__ __forceinline__ void prefetch_residual(const Params& p, const Tile& tile) {
  if (!p.output.epilogue.has_residual) return;
  constexpr int kLine = 64;  // Channels: 128 bytes. NOTE: of fp32 every other line will do.
  constexpr int kLines = (kConfig.block_n + kLine - 1) / kLine;
  const std::int64_t element = p.output.dtype == DType::fp32 ? 4 : 2;
  const auto* const residual = static_cast<const unsigned char*>(p.output.residual);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kConfig.block_m * kLines;
       i += kConfig.threads()) {
    const int pixel = tile.pixel + i / kLines, filter = tile.filter + i % kLines * kLine;
    if (pixel >= tile.pixel_end || filter >= p.filters) continue;
    const std::int64_t channel = std::int64_t{tile.group} * p.filters + filter;
    const auto* const line =
        residual + (output_number(p, pixel, tile.phase) * p.output.channels + channel) * element;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
  }
}

/// Store the tile, each warp its part through its own piece of `staging`.
template <Config kConfig, Epilogues kEpilogues, int kFragments, int kTiles>
__device__ __forceinline__ void store_tile(const Params& p, const Tile& tile,
                                           const float (&sums)[kFragments][kTiles][4],
                                           unsigned char* staging) {
  constexpr int kWarpBytes = std::max(kStagingFloats<kTiles> * 4, 16 * 128);
  static_assert(kConfig.stage_bytes() >= kConfig.warps() * kWarpBytes,
                "mma::Config: a stage holds 16 pixels of each warp as fp32");
  const int warp = static_cast<int>(threadIdx.x / 32);
  const std::int64_t group = std::int64_t{tile.group} * p.filters;
  const WarpPart part{.phase = tile.phase,
                      .pixel = tile.pixel + warp % kConfig.warps_m * kConfig.warp_m(),
                      .pixel_end = tile.pixel_end,
                      .filter = group + tile.filter + warp / kConfig.warps_m * kConfig.warp_n(),
                      .filter_end = group + p.filters};
  unsigned char* const own = staging + warp * kWarpBytes;

  if constexpr (kConfig.in != DType::fp32) {
    using Out = std::conditional_t<kConfig.in == DType::bf16, __nv_bfloat16, __half>;
    const PairStore<Out, kFragments, kTiles> pairs{p, part, own};
    if constexpr (kEpilogues == Epilogues::linear) return pairs.store_linear(sums);
    if (is_usual(p, kConfig.in)) {
      if (kEpilogues == Epilogues::all && is_linear(p)) return pairs.store_linear(sums);
      return pairs.store(sums);
    }
  }
  ConvOutput output = p.output;  // Of this split.
  output.data = static_cast<unsigned char*>(output.data) + blockIdx.y * p.split_pitch;
  store_warp_tile(
      output, sums, reinterpret_cast<float*>(own),
      [&](int fragment, int row) {
        const int pixel = part.pixel + fragment * 16 + row;
        return pixel < part.pixel_end ? output_number(p, pixel, part.phase) : -1;
      },
      part.filter, part.filter_end);
}

}  // namespace convoy::mma
