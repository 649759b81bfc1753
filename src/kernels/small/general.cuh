// SPDX-License-Identifier: Apache-2.0
//
// The general implicit GEMM: any extents, channel counts, strides, dilations, groups, padding
// modes, upsampling and cached frames. It gathers through ordinary addresses, element by element
// where it must, so that nothing legal is refused; the specialised kernels are there for speed.
//   tensor-core version: bf16 and fp16, 128 pixels × 64 filters × 32 deep, mma.sync;
//   FMA version: fp32, 64 × 64 × 16.
#pragma once

#include "kernels/common/device_code.cuh"
#include "kernels/common/device_geometry.cuh"
#include "kernels/common/output.cuh"
#include "kernels/common/ptx.cuh"

namespace convoy::small {

struct GeneralArguments {
  const void* activation;
  const void* cache;
  const void* filter;
  DeviceGeometry geometry;
  ConvOutput output;
  std::int64_t filter_tiles;  // Tiles of one group's filters.
  std::int64_t tiles;         // Tiles of everything.
};

inline constexpr int kGeneralThreads = 256;
inline constexpr int kGeneralFilters = 64;  // Of a tile, in both versions.

// One tile of the output: first pixel, group, first filter of the group.
struct GeneralTile {
  std::int64_t pixel;
  std::int64_t group;
  std::int64_t filter;
};
template <int BLOCK_M, int BLOCK_N>
__device__ __forceinline__ GeneralTile general_tile(const GeneralArguments& arguments,
                                                    std::int64_t tile) {
  // Filter tiles run fastest: blocks that share pixels run together and share them in L2.
  const std::int64_t filter = tile % arguments.filter_tiles;
  tile /= arguments.filter_tiles;
  return {tile / arguments.geometry.groups * BLOCK_M, tile % arguments.geometry.groups,
          filter * BLOCK_N};
}

// Input coordinates of a pixel's first tap; n < 0 past the last pixel.
__device__ __forceinline__ int4 first_tap_of_pixel(const DeviceGeometry& g, std::int64_t m) {
  if (m >= g.pixels) return make_int4(-1, 0, 0, 0);
  const OutputPixel o = output_pixel(g, m);
  return make_int4(o.n, o.z * g.stride[0] - g.pad[0], o.p * g.stride[1] - g.pad[1],
                   o.q * g.stride[2] - g.pad[2]);
}

// A position along the reduction, (t, r, s, c) with c fastest.
struct ReductionPosition {
  int t = 0, r = 0, s = 0, c = 0;

  // True if the position is on another tap than before.
  __device__ __forceinline__ bool advance(const DeviceGeometry& g, int elements) {
    c += elements;
    if (c < g.channels) return false;
    while (c >= g.channels && t < g.filter[0]) {
      c -= g.channels;
      if (++s == g.filter[2]) {
        s = 0;
        if (++r == g.filter[1]) {
          r = 0;
          ++t;
        }
      }
    }
    return true;
  }
  __device__ __forceinline__ bool inside(const DeviceGeometry& g) const { return t < g.filter[0]; }
};

// The pixel under a tap, first channel of the group, or null for zeros.
template <typename Element>
__device__ __forceinline__ const Element* tap_pixel(const DeviceGeometry& g,
                                                    const Element* activation, const Element* cache,
                                                    int4 first, const ReductionPosition& k,
                                                    std::int64_t group) {
  if (first.x < 0 || !k.inside(g)) return nullptr;
  const Element* row = input_row(g, activation, cache, first.x, first.y + k.t * g.dilation[0],
                                 first.z + k.r * g.dilation[1]);
  const Element* pixel = pixel_of_row(g, row, first.w + k.s * g.dilation[2]);
  return pixel == nullptr ? nullptr : pixel + group * g.channels;
}

// ---- Tensor-core version --------------------------------------------------------------------

struct GeneralMmaTile {
  static constexpr int BLOCK_M = 128, BLOCK_N = kGeneralFilters, BLOCK_K = 32, STAGES = 3;
  // NOTE: rows of 80 bytes: 16-byte aligned, and eight of them fall on different banks.
  static constexpr int kPitch = BLOCK_K + 8;
  static constexpr int kStageElements = (BLOCK_M + BLOCK_N) * kPitch;
  static constexpr int kPipelineBytes = STAGES * kStageElements * 2;
  static constexpr int kSharedBytes = kPipelineBytes + BLOCK_M * static_cast<int>(sizeof(int4));
  static_assert(kPipelineBytes >= 8 * kStagingFloats<4> * 4, "the epilogue stages in the pipeline");
};

// Copy kVector elements to shared memory, or zeros.
template <int kVector, typename Element>
__device__ __forceinline__ void gather(Element* shared, const Element* global,
                                       const Element* anywhere) {
  if constexpr (kVector == 1) {
    *shared = global != nullptr ? *global : from_float<Element>(0.0f);
  } else {
    copy_async<kVector * 2>(ptx::shared_address(shared), global != nullptr ? global : anywhere,
                            global != nullptr);
  }
}

/// kVector: elements gathered at once; divides the channels and all pitches.
template <typename Element, int kVector>
__global__ void __launch_bounds__(kGeneralThreads)
    general_mma_kernel(const __grid_constant__ GeneralArguments arguments) {
  using Tile = GeneralMmaTile;
  constexpr int BLOCK_M = Tile::BLOCK_M, BLOCK_N = Tile::BLOCK_N, BLOCK_K = Tile::BLOCK_K;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const pipeline = reinterpret_cast<Element*>(shared);
  auto* const first_taps = reinterpret_cast<int4*>(shared + Tile::kPipelineBytes);

  const DeviceGeometry& g = arguments.geometry;
  const auto* activation = static_cast<const Element*>(arguments.activation);
  const auto* cache = static_cast<const Element*>(arguments.cache);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  // Each thread gathers one column of every tile, at several rows.
  constexpr int kColumns = BLOCK_K / kVector;
  constexpr int kRowStep = kGeneralThreads / kColumns;
  constexpr int kRows = BLOCK_M / kRowStep;
  const int column = thread % kColumns * kVector;
  const int first_row = thread / kColumns;
  const int steps = static_cast<int>((g.reduction + BLOCK_K - 1) / BLOCK_K);

  for (std::int64_t index = blockIdx.x; index < arguments.tiles; index += gridDim.x) {
    const GeneralTile tile = general_tile<BLOCK_M, BLOCK_N>(arguments, index);
    const auto* filter = static_cast<const Element*>(arguments.filter) +
                         (tile.group * g.filters + tile.filter) * g.filter_pitch + g.filter_offset;
    const std::int64_t filters_left = g.filters - tile.filter;

    __syncthreads();
    for (int row = thread; row < BLOCK_M; row += kGeneralThreads) {
      first_taps[row] = first_tap_of_pixel(g, tile.pixel + row);
    }
    __syncthreads();

    // The pixels under the current tap; they change with the tap only.
    const Element* pixels[kRows];
    ReductionPosition position;
    position.advance(g, column);
    bool new_tap = true;
    int gathered = 0;
    const auto gather_step = [&] {
      if (gathered < steps) {
        Element* a = pipeline + gathered % Tile::STAGES * Tile::kStageElements;
        Element* b = a + BLOCK_M * Tile::kPitch;
        if (new_tap) {
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
            pixels[i] = tap_pixel(g, activation, cache, first_taps[first_row + i * kRowStep],
                                  position, tile.group);
          }
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          gather<kVector>(a + (first_row + i * kRowStep) * Tile::kPitch + column,
                          pixels[i] != nullptr ? pixels[i] + position.c : nullptr, activation);
        }
        const std::int64_t k = std::int64_t{gathered} * BLOCK_K + column;
#pragma unroll
        for (int row = first_row; row < BLOCK_N; row += kRowStep) {
          const bool valid = row < filters_left && k < g.reduction;
          gather<kVector>(b + row * Tile::kPitch + column,
                          valid ? filter + row * g.filter_pitch + k : nullptr, activation);
        }
        new_tap = position.advance(g, BLOCK_K);
      }
      ++gathered;
      copy_async_commit();
    };
#pragma unroll
    for (int stage = 0; stage < Tile::STAGES - 1; ++stage) gather_step();

    // 4 × 2 warps of 32 pixels × 32 filters.
    const int warp_row = warp / 2 * 32, warp_column = warp % 2 * 32;
    float accumulators[2][4][4] = {};
    for (int step = 0; step < steps; ++step) {
      copy_async_wait<Tile::STAGES - 2>();
      __syncthreads();
      gather_step();
      const Element* a = pipeline + step % Tile::STAGES * Tile::kStageElements;
      const Element* b = a + BLOCK_M * Tile::kPitch;
#pragma unroll
      for (int k = 0; k < BLOCK_K; k += 16) {
        std::uint32_t fa[2][4], fb[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const Element* at =
              a + (warp_row + i * 16 + lane % 16) * Tile::kPitch + k + lane / 16 * 8;
          ptx::load_matrix_x4(ptx::shared_address(at), fa[i][0], fa[i][1], fa[i][2], fa[i][3]);
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const Element* at = b + (warp_column + j * 16 + lane / 16 * 8 + lane % 8) * Tile::kPitch +
                              k + lane / 8 % 2 * 8;
          ptx::load_matrix_x4(ptx::shared_address(at), fb[j][0], fb[j][1], fb[j][2], fb[j][3]);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            mma_16x8x16<Element>(accumulators[i][j], fa[i], fb[j / 2][j % 2 * 2],
                                 fb[j / 2][j % 2 * 2 + 1]);
          }
        }
      }
    }

    copy_async_wait<0>();
    __syncthreads();
    const std::int64_t first_pixel = tile.pixel + warp_row;
    store_warp_tile(
        arguments.output, accumulators, reinterpret_cast<float*>(shared) + warp * kStagingFloats<4>,
        [&](int fragment, int row) {
          const std::int64_t pixel = first_pixel + fragment * 16 + row;
          return pixel < g.pixels ? pixel : std::int64_t{-1};
        },
        tile.group * g.filters + tile.filter + warp_column, (tile.group + 1) * g.filters);
  }
}

// ---- FMA version ----------------------------------------------------------------------------

struct GeneralFmaTile {
  static constexpr int BLOCK_M = 64, BLOCK_N = kGeneralFilters, BLOCK_K = 16;
};

/// kVector: 4 or 1 elements gathered at once; divides the channels and all pitches.
template <int kVector>
__global__ void __launch_bounds__(kGeneralThreads)
    general_fma_kernel(const __grid_constant__ GeneralArguments arguments) {
  using Tile = GeneralFmaTile;
  constexpr int BLOCK_M = Tile::BLOCK_M, BLOCK_N = Tile::BLOCK_N, BLOCK_K = Tile::BLOCK_K;
  // Transposed tiles, so that a thread reads its pixels and filters as float4.
  __shared__ __align__(16) float a[BLOCK_K][BLOCK_M + 4];
  __shared__ __align__(16) float b[BLOCK_K][BLOCK_N + 4];
  __shared__ int4 first_taps[BLOCK_M];

  const DeviceGeometry& g = arguments.geometry;
  const auto* activation = static_cast<const float*>(arguments.activation);
  const auto* cache = static_cast<const float*>(arguments.cache);
  const int thread = static_cast<int>(threadIdx.x);
  constexpr int kColumns = BLOCK_K / kVector;
  constexpr int kRowStep = kGeneralThreads / kColumns;
  const int column = thread % kColumns * kVector;
  const int first_row = thread / kColumns;
  const auto steps = (g.reduction + BLOCK_K - 1) / BLOCK_K;
  const int my_row = thread / 16 * 4, my_column = thread % 16 * 4;

  for (std::int64_t index = blockIdx.x; index < arguments.tiles; index += gridDim.x) {
    const GeneralTile tile = general_tile<BLOCK_M, BLOCK_N>(arguments, index);
    const float* filter = static_cast<const float*>(arguments.filter) +
                          (tile.group * g.filters + tile.filter) * g.filter_pitch + g.filter_offset;
    const std::int64_t filters_left = g.filters - tile.filter;

    __syncthreads();
    if (thread < BLOCK_M) first_taps[thread] = first_tap_of_pixel(g, tile.pixel + thread);
    __syncthreads();

    ReductionPosition position;
    position.advance(g, column);
    float accumulators[4][4] = {};
    for (std::int64_t step = 0; step < steps; ++step) {
      const auto transpose = [&](float(&to)[BLOCK_K][BLOCK_M + 4], int row, const float* from) {
        alignas(16) float v[kVector] = {};
        if (from != nullptr) {
          if constexpr (kVector == 4) {
            *reinterpret_cast<float4*>(v) = *reinterpret_cast<const float4*>(from);
          } else {
            v[0] = *from;
          }
        }
#pragma unroll
        for (int i = 0; i < kVector; ++i) to[column + i][row] = v[i];
      };
#pragma unroll
      for (int row = first_row; row < BLOCK_M; row += kRowStep) {
        const float* pixel = tap_pixel(g, activation, cache, first_taps[row], position, tile.group);
        transpose(a, row, pixel != nullptr ? pixel + position.c : nullptr);
      }
      const std::int64_t k = step * BLOCK_K + column;
#pragma unroll
      for (int row = first_row; row < BLOCK_N; row += kRowStep) {
        const bool valid = row < filters_left && k < g.reduction;
        transpose(b, row, valid ? filter + row * g.filter_pitch + k : nullptr);
      }
      position.advance(g, BLOCK_K);
      __syncthreads();
#pragma unroll
      for (int k = 0; k < BLOCK_K; ++k) {
        const float4 va = *reinterpret_cast<const float4*>(&a[k][my_row]);
        const float4 vb = *reinterpret_cast<const float4*>(&b[k][my_column]);
        const float pa[4] = {va.x, va.y, va.z, va.w}, pb[4] = {vb.x, vb.y, vb.z, vb.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) accumulators[i][j] = fmaf(pa[i], pb[j], accumulators[i][j]);
        }
      }
      __syncthreads();
    }

    // One copy of the epilogue's code: registers are picked by constant indices.
#pragma unroll 1
    for (int row = 0; row < 4; ++row) {
      float v[4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = i == row ? accumulators[i][j] : v[j];
      }
      const std::int64_t pixel = tile.pixel + my_row + row;
      const std::int64_t left = filters_left - my_column;
      if (pixel >= g.pixels || left <= 0) continue;
      store_channels(arguments.output, v, pixel, tile.group * g.filters + tile.filter + my_column,
                     left < 4 ? static_cast<int>(left) : 4);
    }
  }
}

}  // namespace convoy::small
