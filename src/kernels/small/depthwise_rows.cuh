// SPDX-License-Identifier: Apache-2.0
//
// Depthwise convolution with a filter that fits registers: 5×5, 7×7, 3×3×3, and 1-D ones (and 3×3
// where it is dilated, or of fp32 with channels in no fours). A thread owns a few channels of a few
// neighbouring output columns and walks down a chunk of output rows: each input row is loaded and
// converted once and added to all output rows that see it, whose sums slide through registers. The
// filter stays in registers.
//
// Rows and columns are what the host makes of the problem: of a 1-D filter the axis that it lies
// along is walked, whichever that is, and all inner ones are columns. A dilated axis is as many
// undilated ones, interleaved.
#pragma once

#include <array>

#include "kernels/common/device_geometry.cuh"
#include "kernels/common/fast_divide.hpp"
#include "kernels/common/load_if.cuh"
#include "kernels/common/output.cuh"
#include "kernels/common/short_epilogue.cuh"

namespace convoy::small {

inline constexpr int kDepthwiseRowsThreads = 128;

/// What a kernel is built for.
struct DepthwiseShape {
  int frames;    ///< Filter elements along depth,
  int rows;      ///< along the axis that is walked,
  int columns;   ///< and across.
  int stride;    ///< Along both; of 1-D filters along rows alone.
  int channels;  ///< Of a thread: one vector.
  int strip;     ///< Output columns of a thread.
  int blocks;    ///< Of a multiprocessor, which bounds registers.
  int ahead;     ///< Rows that are loaded while as many are added.

  /// Output rows whose sums a thread holds.
  constexpr int live_rows() const { return (rows + stride - 1) / stride; }
};

/// What depthwise_rows_kernel is built for, with elements of two bytes; of fp32 vectors are
/// shorter.
// NOTE: what bounds `channels` and `blocks` is registers: filter, sums and two input rows.
inline constexpr std::array kDepthwiseShapes = {
    // frames, rows, columns, stride, channels, strip, blocks, ahead
    DepthwiseShape{1, 3, 3, 1, 4, 4, 3, 1},  DepthwiseShape{1, 3, 3, 2, 4, 4, 3, 1},
    DepthwiseShape{1, 5, 5, 1, 2, 4, 3, 1},  DepthwiseShape{1, 5, 5, 2, 2, 4, 3, 1},
    DepthwiseShape{1, 7, 7, 1, 2, 4, 2, 1},  DepthwiseShape{1, 7, 7, 2, 2, 4, 2, 1},
    DepthwiseShape{3, 3, 3, 1, 2, 4, 2, 1},  DepthwiseShape{1, 3, 1, 1, 4, 1, 4, 4},
    DepthwiseShape{1, 4, 1, 1, 4, 1, 4, 4},  DepthwiseShape{1, 5, 1, 1, 4, 1, 4, 4},
    DepthwiseShape{1, 7, 1, 1, 4, 1, 4, 4},  DepthwiseShape{1, 9, 1, 1, 2, 1, 4, 4},
    DepthwiseShape{1, 15, 1, 1, 2, 1, 4, 4}, DepthwiseShape{1, 31, 1, 1, 2, 1, 3, 2}};

template <typename Element>
constexpr DepthwiseShape shape_for(DepthwiseShape shape) {
  if (sizeof(Element) == 4) shape.channels = 2;
  return shape;
}

struct DepthwiseRowsArguments {
  const void* activation;
  const void* cache;
  const void* filter;
  ConvOutput output;
  bool is_short;  ///< The epilogue.
  int in_rows, in_columns, out_rows, out_columns;
  int pad_rows, pad_columns;
  int dilation_rows, dilation_columns;
  int column_stride;  ///< Of 1-D filters.
  int cached_rows;    ///< In front of the others, in `cache`: of filters along depth.
  int chunk_rows;     ///< Output rows of a thread.
  int in_frames, pad_frames, frame_stride, frame_dilation;  ///< Of 3-D filters.
  int items;                                                ///< Threads with work.
  /// An item is (image, chunk, phase of rows, phase of columns, slab, strip, lane), lane fastest.
  FastDivide lanes, strips, slabs, column_phases, row_phases, chunks, out_frames;
  std::int64_t channels;
};

#ifdef __CUDACC__

/// kCount neighbouring elements as they are moved: whole words.
// NOTE: as a struct of 16-bit elements each is a register of its own, which waits for its load.
template <typename Element, int kCount>
struct alignas(sizeof(Element) * kCount) DepthwiseVector {
  static constexpr int kOfWord = 4 / sizeof(Element);
  static constexpr int kWords = kCount / kOfWord;
  static_assert(kCount % kOfWord == 0, "whole words");
  std::uint32_t words[kWords];

  __device__ __forceinline__ void load(const Element* from) {
    if constexpr (kWords == 4) {
      const uint4 v = *reinterpret_cast<const uint4*>(from);
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else if constexpr (kWords == 2) {
      const uint2 v = *reinterpret_cast<const uint2*>(from);
      words[0] = v.x, words[1] = v.y;
    } else {
      words[0] = *reinterpret_cast<const std::uint32_t*>(from);
    }
  }
  /// Or zeros where they do not exist: nothing is read there.
  __device__ __forceinline__ void load_if(bool exists, const Element* from) {
    static_assert(kWords <= 2);
    if constexpr (kWords == 2) {
      const auto v = convoy::load_if<uint2>(exists, from);
      words[0] = v.x, words[1] = v.y;
    } else {
      words[0] = convoy::load_if<std::uint32_t>(exists, from);
    }
  }
  // NOTE: by an instruction that stays whole: as assignments, words were stored one by one, half a
  // sector each.
  __device__ __forceinline__ void store(Element* to) const {
    const auto address = __cvta_generic_to_global(to);
    if constexpr (kWords == 4) {
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(words[0]),
                   "r"(words[1]), "r"(words[2]), "r"(words[3])
                   : "memory");
    } else if constexpr (kWords == 2) {
      asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(words[0]), "r"(words[1])
                   : "memory");
    } else {
      asm volatile("st.global.b32 [%0], %1;" ::"l"(address), "r"(words[0]) : "memory");
    }
  }
  __device__ __forceinline__ void unpack(float (&v)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (kOfWord == 2) {
        const float2 pair = unpack2<Element>(words[i]);
        v[2 * i] = pair.x, v[2 * i + 1] = pair.y;
      } else {
        v[i] = __uint_as_float(words[i]);
      }
    }
  }
  __device__ __forceinline__ void pack(const float (&v)[kCount]) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (kOfWord == 2) {
        words[i] = pack2<Element>(v[2 * i], v[2 * i + 1]);
      } else {
        words[i] = __float_as_uint(v[i]);
      }
    }
  }
};

template <typename Element, DepthwiseShape kShape>
class DepthwiseRows {
 public:
  static constexpr int kChannels = kShape.channels, kStrip = kShape.strip;
  static constexpr int kInputs = (kStrip - 1) * kShape.stride + kShape.columns;  // Columns.
  static constexpr int kLive = kShape.live_rows();
  using Vector = DepthwiseVector<Element, kChannels>;
  using Row = Vector[kShape.frames][kInputs];  // As loaded.
  using Sums = float[kStrip][kChannels];

  // The input from frame `frame` on of image `image`; columns from `column` on, in steps of the
  // dilation. Rows count from the first of the image, in steps of their dilation; `end`: the
  // first that is not needed.
  __device__ __forceinline__ DepthwiseRows(const DepthwiseRowsArguments& a, int image, int frame,
                                           int column, int end, std::int64_t channel)
      : a_(a),
        end_(min(a.in_rows, end)),
        column_pitch_(a.dilation_columns * a.channels),
        row_pitch_(a.in_columns * a.channels) {
    const std::int64_t first = column * a.channels + channel;
#pragma unroll
    for (int t = 0; t < kShape.frames; ++t) {
      const int d = kShape.frames > 1 ? frame + t * a.frame_dilation : 0;
      exists_[t] =
          kShape.frames == 1 || static_cast<unsigned>(d) < static_cast<unsigned>(a.in_frames);
      const std::int64_t rows = kShape.frames > 1
                                    ? (std::int64_t{image} * a.in_frames + d) * a.in_rows
                                    : std::int64_t{image} * (a.in_rows - a.cached_rows);
      input_[t] = static_cast<const Element*>(a.activation) + rows * row_pitch_ + first;
    }
    if constexpr (kShape.frames == 1) {
      cache_ = static_cast<const Element*>(a.cache) +
               std::int64_t{image} * a.cached_rows * row_pitch_ + first;
    }
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      inside_[i] = static_cast<unsigned>(column + i * a.dilation_columns) <
                   static_cast<unsigned>(a.in_columns);
    }
    load_filter(channel);
  }

  __device__ __forceinline__ void load(Row& row, int h) const {
    const bool exists = static_cast<unsigned>(h) < static_cast<unsigned>(end_);
    const bool cached = kShape.frames == 1 && h < a_.cached_rows;
#pragma unroll
    for (int t = 0; t < kShape.frames; ++t) {
      const Element* from =
          cached ? cache_ + h * row_pitch_
                 : input_[t] + (kShape.frames == 1 ? h - a_.cached_rows : h) * row_pitch_;
#pragma unroll
      for (int i = 0; i < kInputs; ++i) {
        row[t][i] = Vector{};
        if (exists && exists_[t] && inside_[i]) {
          row[t][i].load(from + i * column_pitch_);
        }
      }
    }
  }

  // Add row `j` of the `stride` rows of a step to the sums of the output rows that see it, of which
  // those in front of the chunk (`step` < live) and behind it are left out. After a step's last
  // row sums[i] belong to output row step - i of the chunk; sums[kLive - 1] are complete.
  __device__ __forceinline__ void add(Sums (&sums)[kLive], const Row& row, int j, int step,
                                      int chunk_rows) const {
    // Some sixteen multiply-adds share a check. NOTE: none for the smallest filters: what is left
    // out is little, and the compiler needs the room to convert as it adds.
    constexpr int kOfSums = kShape.frames * kShape.columns * kStrip * kChannels;
    constexpr int kChecked = kLive <= 3 && kShape.frames == 1 ? kLive
                             : kOfSums >= 16                  ? 1
                                                              : 16 / kOfSums;
    float x[kShape.frames][kInputs][kChannels];
#pragma unroll
    for (int t = 0; t < kShape.frames; ++t) {
#pragma unroll
      for (int i = 0; i < kInputs; ++i) row[t][i].unpack(x[t][i]);
    }
#pragma unroll
    for (int end = kLive; end > 0; end -= kChecked) {
      const int begin = end > kChecked ? end - kChecked : 0;
      if (kChecked < kLive && (step < begin || step - (end - 1) >= chunk_rows)) continue;
#pragma unroll
      for (int i = end - 1; i >= begin; --i) {
        const int r = i * kShape.stride + j;
        if (r < kShape.rows) add_row(sums, i, j == 0, x, r);
      }
    }
  }

 private:
  // sums[i] = the sums so far + row · filter row r. The first row of a step moves them on.
  __device__ __forceinline__ void add_row(Sums (&sums)[kLive], int i, bool move,
                                          const float (&x)[kShape.frames][kInputs][kChannels],
                                          int r) const {
#pragma unroll
    for (int q = 0; q < kStrip; ++q) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        float sum = !move ? sums[i][q][c] : i > 0 ? sums[i > 0 ? i - 1 : 0][q][c] : 0.0f;
#pragma unroll
        for (int t = 0; t < kShape.frames; ++t) {
#pragma unroll
          for (int s = 0; s < kShape.columns; ++s) {
            sum = fmaf(x[t][q * kShape.stride + s][c], weights_[t][r][s][c], sum);
          }
        }
        sums[i][q][c] = sum;
      }
    }
  }

  // [channel][t][r][s], of all channels of the thread in one run: words of two elements.
  __device__ __forceinline__ void load_filter(std::int64_t channel) {
    constexpr int kTaps = kShape.frames * kShape.rows * kShape.columns;
    const Element* from = static_cast<const Element*>(a_.filter) + channel * kTaps;
    constexpr int kWord = 4 / sizeof(Element);
#pragma unroll
    for (int first = 0; first < kTaps * kChannels; first += kWord) {
      DepthwiseVector<Element, kWord> word;
      word.load(from + first);
      float v[kWord];
      word.unpack(v);
#pragma unroll
      for (int i = first; i < first + kWord; ++i) {
        const int tap = i % kTaps, row = tap / kShape.columns;
        weights_[row / kShape.rows][row % kShape.rows][tap % kShape.columns][i / kTaps] =
            v[i - first];
      }
    }
  }

  const DepthwiseRowsArguments& a_;
  const Element* input_[kShape.frames];
  const Element* cache_ = nullptr;
  bool exists_[kShape.frames];
  int end_;
  std::int64_t column_pitch_, row_pitch_;
  bool inside_[kInputs];
  float weights_[kShape.frames][kShape.rows][kShape.columns][kChannels];
};

// NOTE: a function of its own, since its code, inlined, would be most of each of these kernels.
template <int kChannels>
__device__ __noinline__ void finish_depthwise(const ConvOutput& out,
                                              OutputVector<float, kChannels> sums,
                                              std::int64_t pixel, std::int64_t channel) {
  store_channels(out, sums.values, pixel, channel, kChannels);
}

/// `columns` pixels of a strip of an output row, `pitch` pixels apart, as they are.
template <typename Element, typename Arguments, int kStrip, int kChannels>
__device__ __forceinline__ void store_depthwise_strip(const Arguments& a,
                                                      const float (&sums)[kStrip][kChannels],
                                                      std::int64_t pixel, int pitch, int columns,
                                                      std::int64_t channel) {
  Element* to = static_cast<Element*>(a.output.data) + pixel * a.channels + channel;
#pragma unroll
  for (int i = 0; i < kStrip; ++i) {
    DepthwiseVector<Element, kChannels> stored;
    stored.pack(sums[i]);
    if (i < columns) stored.store(to + i * pitch * a.channels);
  }
}

/// The same with any epilogue.
template <typename Arguments, int kStrip, int kChannels>
__device__ __forceinline__ void finish_depthwise_strip(const Arguments& a,
                                                       const float (&sums)[kStrip][kChannels],
                                                       std::int64_t pixel, int pitch, int columns,
                                                       std::int64_t channel) {
  // One copy of the epilogue's code: registers are picked by constant indices.
#pragma unroll 1
  for (int column = 0; column < columns; ++column) {
    OutputVector<float, kChannels> v{};
#pragma unroll
    for (int i = 0; i < kStrip; ++i) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) v.values[c] = i == column ? sums[i][c] : v.values[c];
    }
    finish_depthwise<kChannels>(a.output, v, pixel + std::int64_t{column} * pitch, channel);
  }
}

/// One output row of a thread, whose sums are not needed any more: `columns` of the strip, `pitch`
/// pixels apart.
template <typename Element, typename Arguments, int kStrip, int kChannels>
__device__ __forceinline__ void store_depthwise_row(const Arguments& a,
                                                    float (&sums)[kStrip][kChannels],
                                                    std::int64_t pixel, int pitch, int columns,
                                                    std::int64_t channel) {
  if (a.is_short && a.output.dtype == dtype_of<Element>) {
    if (a.output.epilogue.has_residual) {
      store_short_with_residual<Element>(a.output, sums, pixel * a.channels + channel,
                                         pitch * a.channels, columns, channel);
      return;
    }
    if (!a.output.plain) apply_short_epilogue<Element>(a.output, sums, channel, NoResidual{});
    store_depthwise_strip<Element>(a, sums, pixel, pitch, columns, channel);
    return;
  }
  finish_depthwise_strip(a, sums, pixel, pitch, columns, channel);
}

// NOTE: by its index, since nvcc 13.0 writes no stub for a kernel whose parameter is of class type.
template <typename Element, int kKernel>
__global__ void __launch_bounds__(kDepthwiseRowsThreads, kDepthwiseShapes[kKernel].blocks)
    depthwise_rows_kernel(const __grid_constant__ DepthwiseRowsArguments a) {
  constexpr DepthwiseShape kShape = shape_for<Element>(kDepthwiseShapes[kKernel]);
  using Rows = DepthwiseRows<Element, kShape>;
  const int item = static_cast<int>(blockIdx.x * kDepthwiseRowsThreads + threadIdx.x);
  if (item >= a.items) return;
  int rest = item;
  const auto next = [&rest](const FastDivide& extent) {
    const int quotient = extent.divide(rest), digit = extent.remainder(rest, quotient);
    rest = quotient;
    return digit;
  };
  const int lane = next(a.lanes), strip = next(a.strips), slab = next(a.slabs);
  const int column_phase = next(a.column_phases), row_phase = next(a.row_phases);
  const int chunk = next(a.chunks);
  const std::int64_t channel =
      (slab * static_cast<std::int64_t>(a.lanes.divisor) + lane) * kShape.channels;

  // Output columns and rows of the phase, dilation apart.
  const int q = column_phase + strip * kShape.strip * a.dilation_columns;
  const int columns =
      min(kShape.strip, (a.out_columns - q + a.dilation_columns - 1) / a.dilation_columns);
  const int p = row_phase + chunk * a.chunk_rows * a.dilation_rows;
  const int rows = min(a.chunk_rows, (a.out_rows - p + a.dilation_rows - 1) / a.dilation_rows);
  if (columns <= 0 || rows <= 0) return;

  const int image = kShape.frames > 1 ? a.out_frames.divide(rest) : rest;
  const int frame =
      kShape.frames > 1 ? a.out_frames.remainder(rest, image) * a.frame_stride - a.pad_frames : 0;
  const int column_stride = kShape.strip == 1 ? a.column_stride : kShape.stride;
  int h = p * kShape.stride - a.pad_rows;
  const int end = h + ((rows - 1) * kShape.stride + kShape.rows - 1) * a.dilation_rows + 1;
  const Rows input(a, image, frame, q * column_stride - a.pad_columns, end, channel);

  typename Rows::Sums sums[Rows::kLive] = {};
  std::int64_t pixel = (std::int64_t{rest} * a.out_rows + p) * a.out_columns + q;
  const int steps = rows + Rows::kLive - 1;
  const auto load = [&](typename Rows::Row& row) {
    input.load(row, h);
    h += a.dilation_rows;
  };
  const auto add = [&](const typename Rows::Row& row, int j, int step) {
    input.add(sums, row, j, step, rows);
    if (j == kShape.stride - 1 && step >= Rows::kLive - 1 && step < steps) {
      store_depthwise_row<Element>(a, sums[Rows::kLive - 1], pixel, a.dilation_columns, columns,
                                   channel);
      pixel += std::int64_t{a.dilation_rows} * a.out_columns;
    }
  };
  // A group of rows is loaded while the one before is added. NOTE: two groups by turns, so that no
  // row is copied, where the code stays short.
  constexpr int kGroup = kShape.ahead;
  constexpr int kTurns = Rows::kLive <= 3 || kShape.stride == 2 ? 2 : 1;
  static_assert(kShape.stride <= kTurns && (kShape.stride == 1 || kGroup == 1),
                "what row of a step a row is, is known");
  typename Rows::Row groups[2][kGroup];
#pragma unroll
  for (int i = 0; i < kGroup; ++i) load(groups[0][i]);
  for (int first = 0; first < steps * kShape.stride; first += kGroup * kTurns) {
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) load(groups[(turn + 1) % 2][i]);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const int row = turn * kGroup + i;
        add(groups[turn][i], row % kShape.stride, (first + row) / kShape.stride);
      }
      if constexpr (kTurns == 1) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
#pragma unroll
          for (int t = 0; t < kShape.frames; ++t) {
#pragma unroll
            for (int c = 0; c < Rows::kInputs; ++c) groups[0][i][t][c] = groups[1][i][t][c];
          }
        }
      }
    }
  }
}

#endif  // __CUDACC__

}  // namespace convoy::small
