// SPDX-License-Identifier: Apache-2.0
//
// Depthwise convolution with any filter: of any extents, stride, dilation, padding and upsampling,
// with a cache, on any number of channels, with any number of filters a channel. A block takes a
// slab of output channels and some strips of four neighbouring output pixels. Its filters pass
// through shared memory as fp32, a chunk of taps after the other. Where there are few strips,
// several threads share the filter rows of one and add their sums up in the end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/common/device_geometry.cuh"
#include "kernels/common/fast_divide.hpp"
#include "kernels/common/load_if.cuh"
#include "kernels/common/output.cuh"

namespace convoy::small {

inline constexpr int kDepthwiseAnyThreads = 256;
inline constexpr int kDepthwiseAnyBlocks = 2;  // Of a multiprocessor.
inline constexpr int kDepthwiseAnyStrip = 4;   // Output pixels of a thread, along the width.
inline constexpr int kDepthwiseAnyTaps = 160;  // In shared memory at a time.

/// Most output channels of a block whose threads have `vector` of them each: one 128-byte line of a
/// pixel, or what a warp has.
constexpr int depthwise_any_slab(int vector) {
  return std::min(64, 32 * vector);
}

/// Floats from one tap of a slab's filters to the next in shared memory.
// NOTE: neighbouring taps of a channel, which lie next to each other in memory, fall on different
// banks, and float4 can be read.
constexpr int depthwise_any_pitch(int vector) {
  return depthwise_any_slab(vector) + 4;
}

struct DepthwiseAnyArguments {
  const void* activation;
  const void* cache;
  const void* filter;
  DeviceGeometry geometry;
  ConvOutput output;
  FastDivide filter_rows;       ///< R
  FastDivide lanes;             ///< Threads of a pixel, each with its channels.
  int parts;                    ///< Threads of a strip: a power of two.
  int strips_of_block;          ///< parts · strips · lanes: at most the threads.
  int chunk_rows;               ///< Filter rows (of all frames) in shared memory at a time,
  int chunk_columns;            ///< and columns of them: all where there are several rows.
  std::uint32_t strips_of_row;  ///< ceil(Q / 4)
  std::uint32_t strips;         ///< N·Z·P·strips_of_row
};

#ifdef __CUDACC__

/// What of all filters' rows is in shared memory.
struct DepthwiseChunk {
  int row, rows, column, columns;
};

/// kVector elements of a pixel.
template <typename Element, int kVector>
struct DepthwiseAnyVector {
  static constexpr int kBytes = kVector * int{sizeof(Element)};
  alignas(std::min(kBytes, 16)) Element values[kVector];

  /// Zeros where the pixel does not exist: nothing is read there.
  __device__ __forceinline__ void load_if(bool exists, const Element* from) {
    using Word = std::conditional_t<kBytes == 2, std::uint16_t,
                                    std::conditional_t<kBytes == 4, std::uint32_t, uint4>>;
    static_assert(kBytes % sizeof(Word) == 0);
#pragma unroll
    for (std::size_t i = 0; i < kBytes / sizeof(Word); ++i) {
      reinterpret_cast<Word*>(values)[i] =
          convoy::load_if<Word>(exists, reinterpret_cast<const Word*>(from) + i);
    }
  }
};

/// The input column that a tap in column `w` reads, or a negative number for a zero.
// NOTE: without branches, unlike pixel_of_row: a strip's loads are under way together.
__device__ __forceinline__ int padded_column(const DeviceGeometry& g, int w) {
  const int last = g.seen[2] - 1;
  const int mirrored = w < 0 ? -w : w;
  const int reflected = mirrored > last ? 2 * last - mirrored : mirrored;
  const int nearest = min(max(w, 0), last);
  w = g.pad_mode[2] == PadMode::reflect ? reflected : w;
  w = g.pad_mode[2] == PadMode::replicate ? nearest : w;
  return w > last ? -1 : w >> g.upsample_shift;
}

/// Where channel `c` of a slab's filters lies in shared memory.
// NOTE: of threads with eight channels the first four of all lie together, then the others: eight
// threads' float4 are 128 bytes in a row, without a conflict of banks.
template <int kVector>
__device__ __forceinline__ int depthwise_any_place(int c) {
  return kVector == 8 ? c / 4 % 2 * (depthwise_any_slab(kVector) / 2) + c / 8 * 4 + c % 4 : c;
}

/// This thread's weights of a tap, of which the first is at `from`.
template <int kVector>
__device__ __forceinline__ void load_depthwise_any_weights(float (&w)[kVector], const float* from) {
  if constexpr (kVector == 8) {
    const float4 low = *reinterpret_cast<const float4*>(from);
    const float4 high = *reinterpret_cast<const float4*>(from + depthwise_any_slab(8) / 2);
    w[0] = low.x, w[1] = low.y, w[2] = low.z, w[3] = low.w;
    w[4] = high.x, w[5] = high.y, w[6] = high.z, w[7] = high.w;
  } else if constexpr (kVector == 2) {
    const float2 both = *reinterpret_cast<const float2*>(from);
    w[0] = both.x, w[1] = both.y;
  } else {
    w[0] = *from;
  }
}

/// A chunk of the slab's filters into shared memory, [tap][channel]; zeros past the last filter.
template <typename Element, int kVector>
__device__ __forceinline__ void load_filters(const DepthwiseAnyArguments& arguments, float* weights,
                                             int slab, const DepthwiseChunk& chunk) {
  constexpr int kAtOnce = 8;  // Loads under way.
  const DeviceGeometry& g = arguments.geometry;
  const int filters = g.groups * g.filters;
  const int taps = chunk.rows * chunk.columns;
  const int elements = static_cast<int>(arguments.lanes.divisor) * kVector * taps;
  const auto* from = static_cast<const Element*>(arguments.filter) + g.filter_offset +
                     std::int64_t{chunk.row} * g.filter[2] + chunk.column;
  for (int first = static_cast<int>(threadIdx.x); first < elements;
       first += kAtOnce * kDepthwiseAnyThreads) {
    Element loaded[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kDepthwiseAnyThreads;
      const int channel = slab + at / taps;
      const bool exists = at < elements && channel < filters;
      loaded[i] = exists ? from[channel * g.filter_pitch + at % taps] : from_float<Element>(0.0f);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kDepthwiseAnyThreads;
      if (at < elements) {
        weights[at % taps * depthwise_any_pitch(kVector) +
                depthwise_any_place<kVector>(at / taps)] = to_float(loaded[i]);
      }
    }
  }
}

/// kVector output channels of a thread: 8, 2 or 1; of several filters a channel, 1. kColumns,
/// kStride: taps of a filter row that are taken at a time, undilated, and the stride along the
/// width, where the kernel is built for them, so that each input column is loaded once for all
/// these taps; else 0 and 1.
template <typename Element, int kVector, int kColumns, int kStride>
__global__ void __launch_bounds__(kDepthwiseAnyThreads, kDepthwiseAnyBlocks)
    depthwise_any_kernel(const __grid_constant__ DepthwiseAnyArguments arguments) {
  constexpr int kStrip = kDepthwiseAnyStrip, kThreads = kDepthwiseAnyThreads;
  constexpr int kPitch = depthwise_any_pitch(kVector);
  using Vector = DepthwiseAnyVector<Element, kVector>;

  extern __shared__ __align__(16) float weights[];  // A chunk of filters; in the end, sums.
  const DeviceGeometry& g = arguments.geometry;
  const int thread = static_cast<int>(threadIdx.x);
  const int threads_of_part = kThreads / arguments.parts;
  const int part = thread / threads_of_part, own = thread % threads_of_part;
  const int place = arguments.lanes.divide(own);
  const int lane = arguments.lanes.remainder(own, place);
  const int slab =
      static_cast<int>(blockIdx.y) * static_cast<int>(arguments.lanes.divisor) * kVector;
  const int channel = slab + lane * kVector;
  const int in_channel = kVector == 1 ? channel / g.filters : channel;
  const auto* activation = static_cast<const Element*>(arguments.activation) + in_channel;
  const auto* cache = static_cast<const Element*>(arguments.cache) + in_channel;
  const int rows = g.filter[0] * g.filter[1];
  const bool keeps_filters = arguments.parts == 1 && arguments.chunk_rows >= rows &&
                             arguments.chunk_columns >= g.filter[2];

  const auto add = [&](float(&sum)[kVector], const Vector& x, const float(&w)[kVector]) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum[j] = fmaf(to_float(x.values[j]), w[j], sum[j]);
  };

  bool has_filters = false;
  const auto strips_of_block = static_cast<std::uint32_t>(arguments.strips_of_block);
  for (std::uint32_t first = blockIdx.x * strips_of_block; first < arguments.strips;
       first += gridDim.x * strips_of_block) {
    const std::uint32_t strip = first + static_cast<std::uint32_t>(place);
    const bool is_idle = place >= arguments.strips_of_block || strip >= arguments.strips ||
                         channel >= g.groups * g.filters;
    const std::uint32_t row = strip / arguments.strips_of_row;
    const int q0 = static_cast<int>(strip % arguments.strips_of_row) * kStrip;
    const int p = static_cast<int>(row % g.out[1]);
    const int z = static_cast<int>(row / g.out[1] % g.out[0]);
    const int n = static_cast<int>(row / g.out[1] / g.out[0]);
    float sums[kStrip][kVector] = {};

    const auto add_chunk = [&](const DepthwiseChunk& chunk) {
      const int first_w = q0 * g.stride[2] - g.pad[2] + chunk.column * g.dilation[2];
      for (int i = part; i < chunk.rows; i += arguments.parts) {
        const int t = arguments.filter_rows.divide(chunk.row + i);
        const int r = arguments.filter_rows.remainder(chunk.row + i, t);
        const Element* input =
            input_row(g, activation, cache, n, z * g.stride[0] - g.pad[0] + t * g.dilation[0],
                      p * g.stride[1] - g.pad[1] + r * g.dilation[1]);
        if (input == nullptr) continue;
        const auto load = [&](Vector& x, int w) {
          const int column = padded_column(g, w);
          x.load_if(column >= 0, input + column * g.pixel_pitch);
        };
        const float* weight =
            weights + i * chunk.columns * kPitch + lane * (kVector == 8 ? 4 : kVector);
        int s = 0;
        if constexpr (kColumns > 0) {
          constexpr int kWindow = (kStrip - 1) * kStride + kColumns;
          for (; s + kColumns <= chunk.columns; s += kColumns, weight += kColumns * kPitch) {
            const bool is_outside = first_w + s >= g.seen[2] || first_w + s + kWindow <= 0;
            if (is_outside && g.pad_mode[2] == PadMode::zero) continue;
            // All loads first, so that they are under way together.
            Vector x[kWindow];
            const bool is_inside = first_w + s >= 0 && first_w + s + kWindow <= g.in[2];
            if (is_inside && g.upsample_shift == 0) {
              const Element* pixel = input + (first_w + s) * g.pixel_pitch;
#pragma unroll
              for (int j = 0; j < kWindow; ++j, pixel += g.pixel_pitch) x[j].load_if(true, pixel);
            } else {
#pragma unroll
              for (int j = 0; j < kWindow; ++j) load(x[j], first_w + s + j);
            }
#pragma unroll
            for (int k = 0; k < kColumns; ++k) {
              float w[kVector];
              load_depthwise_any_weights(w, weight + k * kPitch);
#pragma unroll
              for (int j = 0; j < kStrip; ++j) add(sums[j], x[j * kStride + k], w);
            }
          }
        }
        for (; s < chunk.columns; ++s, weight += kPitch) {
          Vector x[kStrip];
#pragma unroll
          for (int j = 0; j < kStrip; ++j) {
            load(x[j], first_w + j * g.stride[2] + s * g.dilation[2]);
          }
          float w[kVector];
          load_depthwise_any_weights(w, weight);
#pragma unroll
          for (int j = 0; j < kStrip; ++j) add(sums[j], x[j], w);
        }
      }
    };

    for (int r = 0; r < rows; r += arguments.chunk_rows) {
      for (int s = 0; s < g.filter[2]; s += arguments.chunk_columns) {
        const DepthwiseChunk chunk{.row = r,
                                   .rows = min(arguments.chunk_rows, rows - r),
                                   .column = s,
                                   .columns = min(arguments.chunk_columns, g.filter[2] - s)};
        if (!has_filters) {
          __syncthreads();  // The last ones, or sums, are read.
          load_filters<Element, kVector>(arguments, weights, slab, chunk);
          __syncthreads();
          has_filters = keeps_filters;
        }
        if (!is_idle) add_chunk(chunk);
      }
    }

    // The sums of a strip's threads, [value][thread].
    if (arguments.parts > 1) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kStrip * kVector; ++i) {
        weights[i * kThreads + thread] = sums[i / kVector][i % kVector];
      }
      __syncthreads();
    }
    if (is_idle) continue;
      // One copy of the epilogue's code: registers are picked by constant indices.
#pragma unroll 1
    for (int pixel = part; pixel < kStrip && q0 + pixel < g.out[2]; pixel += arguments.parts) {
      float v[kVector] = {};
      if (arguments.parts == 1) {
#pragma unroll
        for (int i = 0; i < kStrip; ++i) {
#pragma unroll
          for (int j = 0; j < kVector; ++j) v[j] = i == pixel ? sums[i][j] : v[j];
        }
      } else {
        for (int from = own; from < kThreads; from += threads_of_part) {
#pragma unroll
          for (int j = 0; j < kVector; ++j)
            v[j] += weights[(pixel * kVector + j) * kThreads + from];
        }
      }
      store_channels(arguments.output, v, std::int64_t{row} * g.out[2] + q0 + pixel, channel,
                     kVector);
    }
  }
}

#endif  // __CUDACC__

}  // namespace convoy::small
