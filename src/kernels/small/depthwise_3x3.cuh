// SPDX-License-Identifier: Apache-2.0
//
// Depthwise 3×3, the usual case by far. A thread owns 4 channels of 4 neighbouring output columns
// and walks down a chunk of output rows with its 36 filter elements in registers: each input row is
// loaded and converted once and added to the (up to three) output rows that see it. Where the layer
// is so small that all its output rows find threads at once, a thread computes one: what takes time
// then is the way to device memory, and all loads of the thread take it together.
#pragma once

#include "kernels/common/device_code.cuh"
#include "kernels/common/device_geometry.cuh"
#include "kernels/common/fast_divide.hpp"
#include "kernels/common/output.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/common/short_epilogue.cuh"
#include "kernels/small/depthwise_rows.cuh"

namespace convoy::small {

inline constexpr int kDepthwiseThreads = 128;
inline constexpr int kDepthwiseColumns = 4;   // Output columns of a thread.
inline constexpr int kDepthwiseChannels = 4;  // Channels of a thread.

/// Blocks of a multiprocessor, which bounds registers.
constexpr int depthwise_blocks(std::size_t element_bytes) {
  return element_bytes == 4 ? 3 : 4;
}

struct Depthwise3x3Arguments {
  const void* activation;
  const void* filter;
  ConvOutput output;
  bool is_short;  ///< The epilogue.
  int in_height, in_width, out_height, out_width;
  int pad_height, pad_width;
  int chunk_rows;  ///< Output rows of a thread.
  int items;       ///< Threads with work: frames · row chunks · column strips · C / 4.
  FastDivide channels_divide, strips_divide, chunks_divide;
  std::int64_t channels;
};

/// Of the kernel whose blocks share input rows. `items` and `channels_divide` are not used.
struct DepthwiseRingArguments {
  Depthwise3x3Arguments of;   ///< strips_divide: of a block.
  FastDivide lanes, vectors;  ///< Threads and 16-byte vectors of a column.
  FastDivide column_chunks;   ///< blockIdx.x: (columns, rows, frame), columns fastest.
};

/// Input rows in shared memory.
inline constexpr int kDepthwiseRing = 6;

constexpr int depthwise_ring_columns(int strips) {
  return strips * kDepthwiseColumns + 2;
}

#ifdef __CUDACC__

template <typename Element, int kStride>
class DepthwiseColumns {
 public:
  static constexpr int kInputs = (kDepthwiseColumns - 1) * kStride + 3;
  using Vector = DepthwiseVector<Element, kDepthwiseChannels>;
  using Row = Vector[kInputs];  // As loaded.
  using Sums = float[kDepthwiseColumns][kDepthwiseChannels];

  __device__ __forceinline__ DepthwiseColumns(const Depthwise3x3Arguments& a, int frame,
                                              int last_row, int first_column, std::int64_t channel)
      : height_(min(a.in_height, last_row + 1)),
        channels_(a.channels),
        row_pitch_(a.in_width * a.channels) {
    const int w = first_column * kStride - a.pad_width;
    input_ = static_cast<const Element*>(a.activation) + frame * (a.in_height * row_pitch_) +
             w * a.channels + channel;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      inside_[i] = static_cast<unsigned>(w + i) < static_cast<unsigned>(a.in_width);
    }
    // [channel][r][s], 36 elements of four channels.
    const auto* filter = static_cast<const Element*>(a.filter) + channel * 9;
#pragma unroll
    for (int i = 0; i < 9; ++i) filter_[i].load(filter + i * kDepthwiseChannels);
  }

  /// Before the first `add`; waits for the filter.
  __device__ __forceinline__ void convert_filter() {
    float v[9][kDepthwiseChannels];
#pragma unroll
    for (int i = 0; i < 9; ++i) filter_[i].unpack(v[i]);
#pragma unroll
    for (int i = 0; i < 36; ++i) {
      weights_[i % 9 / 3][i % 3][i / 9] = v[i / kDepthwiseChannels][i % kDepthwiseChannels];
    }
  }

  __device__ __forceinline__ void load(Row& row, int h) const {
    const bool exists = static_cast<unsigned>(h) < static_cast<unsigned>(height_);
    const Element* from = input_ + h * row_pitch_;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      row[i] = {};
      if (exists && inside_[i]) row[i].load(from + i * channels_);
    }
  }

  /// to = from + row · filter row r.
  __device__ __forceinline__ void add(Sums& to, const Sums& from, const Row& row, int r) const {
#pragma unroll
    for (int column = 0; column < kDepthwiseColumns; ++column) {
#pragma unroll
      for (int s = 0; s < 3; ++s) {
        float x[kDepthwiseChannels];
        row[column * kStride + s].unpack(x);
#pragma unroll
        for (int c = 0; c < kDepthwiseChannels; ++c) {
          to[column][c] = fmaf(x[c], weights_[r][s][c], s == 0 ? from[column][c] : to[column][c]);
        }
      }
    }
  }

 private:
  const Element* input_;
  int height_;
  std::int64_t channels_, row_pitch_;
  bool inside_[kInputs];
  Vector filter_[9];  // As loaded.
  float weights_[3][3][kDepthwiseChannels];
};

/// Which epilogues a kernel is built for.
// NOTE: where rows slide through registers, code for a bias costs layers without one a tenth.
enum class DepthwiseEnd { any, plain_or_long, only_short };

template <typename Element, DepthwiseEnd kEnd>
__device__ __forceinline__ void store_depthwise(const Depthwise3x3Arguments& a,
                                                float (&sums)[kDepthwiseColumns][4],
                                                std::int64_t pixel, int columns,
                                                std::int64_t channel) {
  constexpr bool kShort = kEnd != DepthwiseEnd::plain_or_long;
  const bool in_registers =
      kEnd == DepthwiseEnd::only_short ||
      ((kShort ? a.is_short : a.output.plain) && a.output.dtype == dtype_of<Element>);
  if (in_registers) {
    const std::int64_t first = pixel * a.channels + channel;
    if (kShort && a.output.epilogue.has_residual) {
      store_short_with_residual<Element>(a.output, sums, first, a.channels, columns, channel);
      return;
    }
    if (kShort && !a.output.plain) {
      apply_short_epilogue<Element>(a.output, sums, channel, NoResidual{});
    }
    Element* to = static_cast<Element*>(a.output.data) + first;
#pragma unroll
    for (int i = 0; i < kDepthwiseColumns; ++i) {
      DepthwiseVector<Element, kDepthwiseChannels> stored;
      stored.pack(sums[i]);
      if (i < columns) stored.store(to + i * a.channels);
    }
    return;
  }
  if constexpr (kEnd != DepthwiseEnd::only_short) {
    // One copy of the epilogue's code: registers are picked by constant indices.
#pragma unroll 1
    for (int column = 0; column < columns; ++column) {
      float v[4] = {};
#pragma unroll
      for (int i = 0; i < kDepthwiseColumns; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) v[c] = i == column ? sums[i][c] : v[c];
      }
      store_channels(a.output, v, pixel + column, channel, 4);
    }
  }
}

/// kOneRow: chunk_rows is 1. kEnd: only_short where the output is of the same type.
template <typename Element, int kStride, bool kOneRow, DepthwiseEnd kEnd>
__global__ void __launch_bounds__(kDepthwiseThreads, depthwise_blocks(sizeof(Element)))
    depthwise_3x3_kernel(const __grid_constant__ Depthwise3x3Arguments a) {
  const int item = static_cast<int>(blockIdx.x * kDepthwiseThreads + threadIdx.x);
  if (item >= a.items) return;
  // Channels fastest, so that a warp's accesses are coalesced.
  const int strip_item = a.channels_divide.divide(item);
  const std::int64_t channel = a.channels_divide.remainder(item, strip_item) * kDepthwiseChannels;
  const int chunk_item = a.strips_divide.divide(strip_item);
  const int q = a.strips_divide.remainder(strip_item, chunk_item) * kDepthwiseColumns;
  const int frame = a.chunks_divide.divide(chunk_item);
  const int p = a.chunks_divide.remainder(chunk_item, frame) * a.chunk_rows;
  const int rows = min(a.chunk_rows, a.out_height - p);
  const int columns = min(kDepthwiseColumns, a.out_width - q);
  std::int64_t pixel = (std::int64_t{frame} * a.out_height + p) * a.out_width + q;
  int h = p * kStride - a.pad_height;

  using Columns = DepthwiseColumns<Element, kStride>;
  // No row is loaded beyond the last one that this thread needs.
  Columns input(a, frame, h + (rows - 1) * kStride + 2, q, channel);
  typename Columns::Sums sums, first = {}, none = {};
  typename Columns::Row row, next;
  if constexpr (kOneRow) {
    typename Columns::Row last;
    input.load(row, h);
    input.load(next, h + 1);
    input.load(last, h + 2);
    input.convert_filter();
    input.add(sums, none, row, 0);
    input.add(sums, sums, next, 1);
    input.add(sums, sums, last, 2);
    store_depthwise<Element, kEnd>(a, sums, pixel, columns, channel);
    return;
  }
  input.convert_filter();
  input.load(row, h);
  if constexpr (kStride == 1) {
    // `first` and `second` have met the first filter row, or the first two.
    typename Columns::Sums second = {};
    for (int i = 0; i < rows + 2; ++i) {
      input.load(next, ++h);
      input.add(sums, second, row, 2);
      input.add(second, first, row, 1);
      input.add(first, none, row, 0);
      if (i >= 2) {
        store_depthwise<Element, kEnd>(a, sums, pixel, columns, channel);
        pixel += a.out_width;
      }
#pragma unroll
      for (int j = 0; j < Columns::kInputs; ++j) row[j] = next[j];
    }
  } else {
    input.add(first, none, row, 0);
    input.load(row, ++h);
    for (int i = 0; i < rows; ++i, pixel += a.out_width) {
      input.load(next, ++h);
      input.add(sums, first, row, 1);
      input.load(row, ++h);
      input.add(sums, sums, next, 2);
      input.add(first, none, next, 0);
      store_depthwise<Element, kEnd>(a, sums, pixel, columns, channel);
    }
  }
}

/// The same, of stride 1, where there is much to do: a block walks down a band of columns of its
/// channels, whose input rows, halo included, are copied into a ring in shared memory several rows
/// ahead. blockIdx.y: which channels. Whole strips · lanes are at most the block's threads.
template <typename Element, DepthwiseEnd kEnd>
__global__ void __launch_bounds__(kDepthwiseThreads, 4)
    depthwise_3x3_ring_kernel(const __grid_constant__ DepthwiseRingArguments arguments) {
  constexpr int kVector = 8;
  constexpr int kCopies = 3;  // (4 · strips + 2) · lanes / 2 vectors at most.
  const Depthwise3x3Arguments& a = arguments.of;
  extern __shared__ __align__(16) unsigned char shared[];
  const int thread = static_cast<int>(threadIdx.x);
  const int lanes = static_cast<int>(arguments.lanes.divisor);
  const int strips = static_cast<int>(a.strips_divide.divisor);
  const int row_bytes =
      depthwise_ring_columns(strips) * lanes * kDepthwiseChannels * int{sizeof(Element)};
  const int first_channel = static_cast<int>(blockIdx.y) * lanes * kDepthwiseChannels;

  const int band = arguments.column_chunks.divide(static_cast<int>(blockIdx.x));
  const int first_q = arguments.column_chunks.remainder(static_cast<int>(blockIdx.x), band) *
                      strips * kDepthwiseColumns;
  const int frame = a.chunks_divide.divide(band);
  const int p = a.chunks_divide.remainder(band, frame) * a.chunk_rows;
  const int rows = min(a.chunk_rows, a.out_height - p);
  int h = p - a.pad_height;
  const int end = min(a.in_height, h + rows + 2);

  const int row_pitch = a.in_width * static_cast<int>(a.channels);
  const auto* const image =
      static_cast<const Element*>(a.activation) + std::int64_t{frame} * a.in_height * row_pitch;
  int offsets[kCopies];  // Of a row; below zero: none.
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int copy = i * kDepthwiseThreads + thread;
    const int column = arguments.vectors.divide(copy);
    const int w = first_q - a.pad_width + column;
    const int channel = first_channel + arguments.vectors.remainder(copy, column) * kVector;
    const bool exists =
        static_cast<unsigned>(w) < static_cast<unsigned>(a.in_width) && channel < a.channels;
    offsets[i] = exists ? w * static_cast<int>(a.channels) + channel : -1;
  }
  const std::uint32_t ring = ptx::shared_address(shared);
  const auto copy_row = [&](int slot) {
    const bool exists = static_cast<unsigned>(h) < static_cast<unsigned>(end);
    const Element* from = image + (exists ? std::int64_t{h} * row_pitch : 0);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int at = (i * kDepthwiseThreads + thread) * 16;
      if (at < row_bytes) {
        const bool valid = exists && offsets[i] >= 0;
        copy_async<16>(ring + slot * row_bytes + at, from + (valid ? offsets[i] : 0), valid);
      }
    }
    copy_async_commit();
    ++h;
  };
#pragma unroll
  for (int slot = 0; slot < kDepthwiseRing - 1; ++slot) copy_row(slot);

  const int strip = arguments.lanes.divide(thread);
  const int lane = arguments.lanes.remainder(thread, strip);
  const int q = first_q + strip * kDepthwiseColumns;
  const int columns = min(kDepthwiseColumns, a.out_width - q);
  const std::int64_t own_channel = first_channel + lane * kDepthwiseChannels;
  const bool works = strip < strips && columns > 0 && own_channel < a.channels;
  const std::int64_t channel = works ? own_channel : 0;
  using Columns = DepthwiseColumns<Element, 1>;
  Columns input(a, frame, 0, q, channel);
  input.convert_filter();
  std::int64_t pixel = (std::int64_t{frame} * a.out_height + p) * a.out_width + q;

  int slot = 0, free_slot = kDepthwiseRing - 1;
  typename Columns::Row row;
  const auto next = [&] {
    copy_async_wait<kDepthwiseRing - 2>();
    __syncthreads();
    copy_row(free_slot);
    free_slot = slot;
    const auto* from = reinterpret_cast<const Columns::Vector*>(shared + slot * row_bytes) +
                       (works ? strip * kDepthwiseColumns * lanes + lane : 0);
#pragma unroll
    for (int i = 0; i < Columns::kInputs; ++i) row[i] = from[i * lanes];
    slot = slot + 1 < kDepthwiseRing ? slot + 1 : 0;
  };
  // As in depthwise_3x3_kernel.
  typename Columns::Sums sums, first = {}, second = {}, none = {};
  for (int i = 0; i < rows + 2; ++i) {
    next();
    input.add(sums, second, row, 2);
    input.add(second, first, row, 1);
    input.add(first, none, row, 0);
    if (i < 2) continue;
    if (works) store_depthwise<Element, kEnd>(a, sums, pixel, columns, channel);
    pixel += a.out_width;
  }
}

#endif  // __CUDACC__

}  // namespace convoy::small
