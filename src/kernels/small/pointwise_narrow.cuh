// SPDX-License-Identifier: Apache-2.0
//
// 1×1 convolutions to few filters (heads of segmentation, the narrow ends of bottlenecks): pixels
// are read once, and little is written. A warp multiplies tiles of 32 pixels by all filters, a unit
// of 32 or 64 channels at a time, and has copies of its next units under way always:
//
//   fill    cp.async of unit n + stages − 1 into the warp's ring
//   wait    for unit n, by the warp alone: no barrier
//   MMAs    32 pixels, the unit's channels, 8 to 32 filters, which lie in shared memory as
//           fragments
//   store   behind a tile's last unit: epilogue, the outputs side by side into a buffer, from there
//           by whole lines
//
// The order of a dot product's elements is free, and so is that of the filters among the columns of
// the MMA: a lane's share of a pixel is 8 or 16 neighbouring channels, of its outputs 2 to 8
// neighbouring filters.
#pragma once

#include "kernels/common/device_code.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/common/short_epilogue.cuh"
#include "kernels/small/output_words.cuh"

namespace convoy::small {

inline constexpr int kNarrowPixels = 32;  ///< Of a tile: two MMAs, four rows of a lane.
/// 16-byte chunks of a pixel in a unit of channels, each of two MMA steps: pixels of more channels
/// come by whole lines.
inline constexpr int kNarrowFewChunks = 4, kNarrowChunks = 8;
inline constexpr int kNarrowMostWarps = 12;
/// Of a warp's ring, as many as 12 warps have room for.
__host__ __device__ constexpr int narrow_stages(int chunks) {
  return chunks == kNarrowChunks ? 4 : 6;
}
__host__ __device__ constexpr int narrow_stage_bytes(int chunks) {
  return kNarrowPixels * chunks * 16;
}

struct NarrowLayout {
  int channels, filters;
  int chunks;        ///< Of a unit,
  int units;         ///< of channels.
  int filter_bytes;  ///< As fragments.
  int bias_bytes;    ///< fp32.
  int buffer_bytes;  ///< Of a warp: a tile's outputs.

  __host__ __device__ int ring_bytes() const {
    return narrow_stages(chunks) * narrow_stage_bytes(chunks) + buffer_bytes;
  }
  __host__ __device__ int shared_bytes(int warps) const {
    return filter_bytes + bias_bytes + warps * ring_bytes();
  }
};

struct NarrowArguments {
  const void* activation;
  const void* filter;
  std::int64_t pixels;
  std::int64_t tiles;
  NarrowLayout layout;
  ConvOutput output;
};

#ifdef __CUDACC__

/// Where a lane stands in MMA fragments: its row of each eight, its share of a unit's channels.
struct NarrowLane {
  int lane = static_cast<int>(ptx::lane_id());
  int row = lane / 4;
  int quad = lane % 4;
};

/// 16 bytes of neighbouring channels, `left` of which exist, in copies of kBytes; zeros behind.
template <int kBytes>
__device__ __forceinline__ void narrow_copy(std::uint32_t to, const std::uint8_t* from, int left,
                                            const void* somewhere) {
#pragma unroll
  for (int byte = 0; byte < 16; byte += kBytes) {
    const bool exists = byte < left * 2;
    copy_async<kBytes>(to + byte, exists ? from + byte : somewhere, exists);
  }
}

/// Where a chunk of a pixel lies in a stage. NOTE: lanes that read together are of two rows and of
/// every second chunk: swizzled by the row they meet all banks.
template <int kChunks>
__device__ __forceinline__ int narrow_place(int pixel, int chunk) {
  const int swizzle = kChunks == kNarrowChunks ? pixel & 7 : 0;
  return (pixel * kChunks + (chunk ^ swizzle)) * 16;
}

/// Bytes of a unit's filters, of one MMA: fragments of 16 bytes a lane.
template <int kChunks>
inline constexpr int kNarrowMmaBytes = 512 * (kChunks / 4);

/// Begin to copy the filters, by all threads, as the MMAs' fragments: lane 4n + quad has of column
/// n the chunks that it has of a pixel; rows of zeros behind the last filter.
// NOTE: column n of MMA j is filter 2m·(n / 2) + 2j + n % 2, of m MMAs: columns 2·quad and
// 2·quad + 1 of all of them, which are a lane's outputs, are neighbours.
template <int kBytes, int kChunks, int kMmas>
__device__ __forceinline__ void narrow_filters(const NarrowArguments& a, std::uint8_t* filters,
                                               float* bias) {
  const NarrowLayout& l = a.layout;
  const int threads = static_cast<int>(blockDim.x);
  constexpr int kShare = kChunks / 4;  // Chunks of a lane.
  const int chunks = l.units * kChunks;
  const auto* const from = static_cast<const std::uint8_t*>(a.filter);
  const std::uint32_t to = ptx::shared_address(filters);
  for (int i = static_cast<int>(threadIdx.x); i < 8 * kMmas * chunks; i += threads) {
    const int filter = i / chunks, chunk = i - filter * chunks;
    const int mma = filter % (2 * kMmas) / 2;
    const int column = filter / (2 * kMmas) * 2 + filter % 2;
    const int unit = chunk / kChunks, quad = chunk % kChunks / kShare, part = chunk % kShare;
    const int slot = ((unit * kMmas + mma) * kShare + part) * 32 + column * 4 + quad;
    const int left = filter < l.filters ? l.channels - chunk * 8 : 0;
    narrow_copy<kBytes>(to + slot * 16, from + (std::int64_t{filter} * l.channels + chunk * 8) * 2,
                        left, from);
  }
  copy_async_commit();
  for (int i = static_cast<int>(threadIdx.x); i < 8 * kMmas; i += threads) {
    const bool exists = a.output.epilogue.bias != nullptr && i < l.filters;
    // NOTE: -0 leaves every sum as it is, zeros of either sign too.
    bias[i] = exists ? load_bias(a.output.epilogue, i) : -0.0f;
  }
}

/// What a warp fills or multiplies next: a unit of one of its tiles.
struct NarrowStep {
  std::int64_t tile;
  int unit = 0;

  __device__ __forceinline__ void advance(int units, std::int64_t step) {
    if (++unit < units) return;
    unit = 0;
    tile += step;
  }
};

/// A unit of 32 pixels into a stage: neighbouring lanes copy neighbouring chunks of a pixel.
template <int kBytes, int kChunks>
__device__ __forceinline__ void narrow_fill(const NarrowArguments& a, int lane,
                                            const NarrowStep& step, std::uint32_t stage) {
  if (step.tile < a.tiles) {
    constexpr int kRows = 32 / kChunks;  // Pixels of an instruction.
    const int channels = a.layout.channels;
    const int row = lane / kChunks, chunk = lane % kChunks;
    const std::int64_t pixel = step.tile * kNarrowPixels + row;
    const int channel = (step.unit * kChunks + chunk) * 8;
    const auto* const activation = static_cast<const std::uint8_t*>(a.activation);
    const std::uint8_t* const from = activation + (pixel * channels + channel) * 2;
#pragma unroll
    for (int i = 0; i < kNarrowPixels; i += kRows) {
      const int left = pixel + i < a.pixels ? channels - channel : 0;
      narrow_copy<kBytes>(stage + narrow_place<kChunks>(i + row, chunk), from + i * 2 * channels,
                          left, activation);
    }
  }
  copy_async_commit();
}

template <int kMmas>
using NarrowSums = float[2][kMmas][4];

/// A unit of 32 pixels times all filters of it.
template <typename Element, int kChunks, int kMmas>
__device__ __forceinline__ void narrow_multiply(const NarrowLane& me, const std::uint8_t* stage,
                                                const std::uint8_t* filters,
                                                NarrowSums<kMmas>& sums) {
  constexpr int kShare = kChunks / 4;
#pragma unroll
  for (int part = 0; part < kShare; ++part) {
    uint4 rows[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = narrow_place<kChunks>(i * 8 + me.row, me.quad * kShare + part);
      rows[i] = *reinterpret_cast<const uint4*>(stage + at);
    }
#pragma unroll
    for (int j = 0; j < kMmas; ++j) {
      const uint4 columns =
          *reinterpret_cast<const uint4*>(filters + ((j * kShare + part) * 32 + me.lane) * 16);
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const uint4 &low = rows[2 * b], &high = rows[2 * b + 1];
        const std::uint32_t first[4] = {low.x, high.x, low.y, high.y};
        const std::uint32_t second[4] = {low.z, high.z, low.w, high.w};
        mma_16x8x16<Element>(sums[b][j], first, columns.x, columns.y);
        mma_16x8x16<Element>(sums[b][j], second, columns.z, columns.w);
      }
    }
  }
}

/// Epilogue and stores of a tile, by way of the warp's buffer.
template <typename Element, int kMmas>
__device__ __forceinline__ void narrow_store(const NarrowArguments& a, const NarrowLane& me,
                                             std::int64_t tile, const NarrowSums<kMmas>& sums,
                                             const float* bias, std::uint8_t* buffer) {
  constexpr int kFilters = 2 * kMmas;  // Of a lane.
  const int filters = a.layout.filters, filter = me.quad * kFilters;
  const std::int64_t first = tile * kNarrowPixels;
  const int pixels = static_cast<int>(min(std::int64_t{kNarrowPixels}, a.pixels - first));
  const bool whole = filters % kFilters == 0;
  const auto left = [&](int i) { return i * 8 + me.row < pixels ? filters - filter : 0; };
  const auto byte = [&](int i) { return ((i * 8 + me.row) * filters + filter) * 2; };

  std::uint32_t words[4][kMmas] = {};
  if (a.output.epilogue.has_residual) {
    // NOTE: read, never written: move_outputs() is for both.
    auto* const source = const_cast<std::uint8_t*>(
        static_cast<const std::uint8_t*>(a.output.residual) + first * filters * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) move_outputs<true>(source + byte(i), words[i], left(i), whole);
  }
  float biases[kFilters], v[4][kFilters];
#pragma unroll
  for (int i = 0; i < kFilters; ++i) biases[i] = bias[filter + i];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int e = 0; e < kFilters; ++e) v[i][e] = sums[i / 2][e / 2][i % 2 * 2 + e % 2];
  }
  apply_scaled_short_epilogue<Element, true>(a.output.epilogue, v, biases, words);
  __syncwarp();  // The tile before this one has left the buffer.
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int e = 0; e < kMmas; ++e) words[i][e] = pack2<Element>(v[i][2 * e], v[i][2 * e + 1]);
    move_outputs<false>(buffer + byte(i), words[i], left(i), whole);
  }
  __syncwarp();
  const int bytes = pixels * filters * 2;
  auto* const to = static_cast<std::uint8_t*>(a.output.data) + first * filters * 2;
  for (int i = me.lane * 16; i + 16 <= bytes; i += 512) {
    *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(buffer + i);
  }
  for (int i = (bytes & ~15) + me.lane * 2; i < bytes; i += 64) {
    *reinterpret_cast<std::uint16_t*>(to + i) = *reinterpret_cast<const std::uint16_t*>(buffer + i);
  }
}

/// kBytes: of a copy, 16 or 4, a divisor of a pixel's bytes. kChunks: of a unit. kMmas: MMA columns
/// of 8 filters, all of them. Behind it a short epilogue, outputs of the input's type.
template <typename Element, int kBytes, int kChunks, int kMmas>
__global__ void __launch_bounds__(kNarrowMostWarps * 32, 1)
    pointwise_narrow_kernel(const __grid_constant__ NarrowArguments a) {
  constexpr int kStages = narrow_stages(kChunks), kStageBytes = narrow_stage_bytes(kChunks);
  extern __shared__ __align__(128) std::uint8_t shared[];
  const NarrowLayout& l = a.layout;
  const NarrowLane me;
  const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(ptx::warp_id());
  std::uint8_t* const filters = shared;
  auto* const bias = reinterpret_cast<float*>(filters + l.filter_bytes);
  std::uint8_t* const ring = filters + l.filter_bytes + l.bias_bytes + warp * l.ring_bytes();
  std::uint8_t* const buffer = ring + kStages * kStageBytes;
  const std::uint32_t ring_address = ptx::shared_address(ring);

  // NOTE: tiles that follow each other are in different blocks: few are everywhere, and every block
  // has all its threads to fetch the filters.
  const std::int64_t tile_step = std::int64_t{gridDim.x} * warps;
  NarrowStep filled{.tile = std::int64_t{warp} * gridDim.x + blockIdx.x};
  NarrowStep now = filled;
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    narrow_fill<kBytes, kChunks>(a, me.lane, filled, ring_address + stage * kStageBytes);
    filled.advance(l.units, tile_step);
  }
  narrow_filters<kBytes, kChunks, kMmas>(a, filters, bias);
  copy_async_wait<0>();
  __syncthreads();

  NarrowSums<kMmas> sums = {};
  int stage = 0, free_stage = kStages - 1;
  while (now.tile < a.tiles) {
    copy_async_wait<kStages - 2>();
    __syncwarp();  // All lanes' copies of this stage are there, and the one before it is free.
    narrow_fill<kBytes, kChunks>(a, me.lane, filled, ring_address + free_stage * kStageBytes);
    filled.advance(l.units, tile_step);
    narrow_multiply<Element, kChunks, kMmas>(me, ring + stage * kStageBytes,
                                             filters + now.unit * kMmas * kNarrowMmaBytes<kChunks>,
                                             sums);
    if (now.unit + 1 == l.units) {
      narrow_store<Element, kMmas>(a, me, now.tile, sums, bias, buffer);
#pragma unroll
      for (int i = 0; i < 2 * kMmas * 4; ++i) sums[i / (kMmas * 4)][i / 4 % kMmas][i % 4] = 0.0f;
    }
    now.advance(l.units, tile_step);
    free_stage = stage;
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
}

#endif  // __CUDACC__

}  // namespace convoy::small
