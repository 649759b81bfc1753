// SPDX-License-Identifier: Apache-2.0
//
// Layers of few outputs, as networks of batch 1 have them: what they take is the way to memory and
// back, not bytes or products. So there is no ring and no shared memory in front of the tensor
// cores:
//
//   load      each lane reads 16 bytes at a time of its pixels and its filters, straight into the
//             registers from which it multiplies; all loads of a round are under way together
//   multiply  16 pixels × 16 filters at a time
//   sum       the warps of a block share the reduction of one tile (sliced K), and so may the
//             blocks of a cluster; the sums of the warps meet in shared memory, those of the blocks
//             in that of the block which stores them
//   store     epilogue; each thread four filters of a pixel
//
// A piece of the reduction are the 16 bytes of a lane; a turn of a warp are four of them, one for
// each lane of a quad. The order of a dot product's elements is free: a piece is what two MMA steps
// take as the columns 2·(lane % 4) + {0, 1} and + 8, of pixels and of filters alike. The filters of
// 16 are dealt among the columns of two MMAs so that a lane ends with four neighbours.
#pragma once

#include <climits>

#include "kernels/common/device_code.cuh"
#include "kernels/common/fast_divide.hpp"
#include "kernels/common/load_if.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/common/short_epilogue.cuh"

namespace convoy::small {

inline constexpr int kPieceBytes = 16;
inline constexpr int kTurnPieces = 4;
inline constexpr int kSlicedWarps = 4;  // Of a block.
inline constexpr int kSlicedThreads = kSlicedWarps * 32;

/// A tile in units of 16 pixels and of 16 filters. taps: whether an output is more than the input
/// at its place times the filters.
struct SlicedTile {
  int pixels, filters;
  bool taps;

  /// Turns of a round. NOTE: more loads under way cost registers, and so blocks that are resident,
  /// and code, which comes cold.
  constexpr int turns() const { return pixels * filters >= 4 ? 1 : 2; }
  /// Of four filters of a pixel.
  constexpr int vectors() const { return pixels * filters * 64; }
};

struct SlicedArguments {
  const void* activation;
  const void* filter;
  int pixels, filters;               ///< N·Z·P·Q, K
  int pieces;                        ///< Of the reduction,
  int pieces_per_block;              ///< and of a block of a cluster, a multiple of a turn's.
  FastDivide tap_pieces;             ///< Of a tap. What follows counts for layers with taps.
  FastDivide tap_rows, tap_columns;  ///< R, S
  FastDivide out[3];                 ///< Z, P, Q
  int in[3];
  int stride[3], pad[3], dilation[3];
  bool is_short;  ///< The epilogue is, the output is of the input's type, K a multiple of 4.
  ConvOutput output;
};

// ---- Load ---------------------------------------------------------------------------------------

/// The input pixels of a lane, two of each 16: where they lie.
template <typename Element, SlicedTile kTile>
struct SlicedPixels {
  static constexpr int kRows = kTile.pixels * 2;
  static constexpr int kPlaces = kTile.taps ? kRows : 1;
  const Element* from;  ///< The activation; without taps this lane's first pixel,
  int left;             ///< and the pixels from it on.
  // Under the first tap; frame far below zero: no pixel.
  int place[kPlaces], frame[kPlaces], row[kPlaces], column[kPlaces];

  __device__ __forceinline__ SlicedPixels(const SlicedArguments& p, int channels, int pixel)
      : from(static_cast<const Element*>(p.activation)), left(p.pixels - pixel) {
    if constexpr (!kTile.taps) {
      from += std::int64_t{pixel} * channels;
    } else {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int at = i * 8 < left ? pixel + i * 8 : 0;
        const int line = p.out[2].divide(at);
        const int image_frame = p.out[1].divide(line);
        const int image = p.out[0].divide(image_frame);
        frame[i] = p.out[0].remainder(image_frame, image) * p.stride[0] - p.pad[0];
        row[i] = p.out[1].remainder(line, image_frame) * p.stride[1] - p.pad[1];
        column[i] = p.out[2].remainder(at, line) * p.stride[2] - p.pad[2];
        place[i] = ((image * p.in[0] + frame[i]) * p.in[1] + row[i]) * p.in[2] + column[i];
        if (i * 8 >= left) frame[i] = INT_MIN / 2;
      }
    }
  }

  /// Piece `piece` of each; zeros of padding, past the last pixel, and where none exists.
  __device__ __forceinline__ void load(const SlicedArguments& p, int channels, int piece,
                                       bool exists, uint4 (&v)[kRows]) const {
    constexpr int kElements = kPieceBytes / sizeof(Element);
    if constexpr (!kTile.taps) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        v[i] = load_if<uint4>(exists && i * 8 < left,
                              from + std::int64_t{i * 8} * channels + piece * kElements);
      }
    } else {
      const int tap = p.tap_pieces.divide(piece);
      const int channel = p.tap_pieces.remainder(piece, tap) * kElements;
      const int tap_line = p.tap_columns.divide(tap);
      const int tap_frame = p.tap_rows.divide(tap_line);
      const int d = tap_frame * p.dilation[0];
      const int h = p.tap_rows.remainder(tap_line, tap_frame) * p.dilation[1];
      const int w = p.tap_columns.remainder(tap, tap_line) * p.dilation[2];
      const auto step = static_cast<unsigned>((d * p.in[1] + h) * p.in[2] + w);
      const auto is_in = [](int at, int extent) {
        return static_cast<unsigned>(at) < static_cast<unsigned>(extent);
      };
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const bool inside = is_in(frame[i] + d, p.in[0]) && is_in(row[i] + h, p.in[1]) &&
                            is_in(column[i] + w, p.in[2]);
        // NOTE: both may have wrapped, far outside of the input; the sum inside is what it is.
        const auto at = static_cast<int>(static_cast<unsigned>(place[i]) + step);
        v[i] = load_if<uint4>(exists && inside, from + std::int64_t{at} * channels + channel);
      }
    }
  }
};

/// The filters of a lane, one of each 8.
template <typename Element, SlicedTile kTile>
struct SlicedFilters {
  static constexpr int kRows = kTile.filters * 2;
  const Element* from[kRows];  ///< nullptr past the last.

  __device__ __forceinline__ SlicedFilters(const SlicedArguments& p, int first, int column) {
    constexpr int kElements = kPieceBytes / sizeof(Element);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      // Columns 2c, 2c + 1 of the first MMA are filters 4c, 4c + 1, of the second 4c + 2, 4c + 3.
      const int filter = first + i / 2 * 16 + column / 2 * 4 + i % 2 * 2 + column % 2;
      from[i] = filter < p.filters ? static_cast<const Element*>(p.filter) +
                                         std::int64_t{filter} * p.pieces * kElements
                                   : nullptr;
    }
  }
  __device__ __forceinline__ void load(int piece, bool exists, uint4 (&v)[kTile.filters][2]) const {
    constexpr int kElements = kPieceBytes / sizeof(Element);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      v[i / 2][i % 2] = load_if<uint4>(exists && from[i] != nullptr, from[i] + piece * kElements);
    }
  }
};

// ---- Multiply -----------------------------------------------------------------------------------

/// 16 pixels, eight apart in a0 and a1, times 16 filters, those of two MMAs in b; both steps of a
/// piece.
template <typename Element>
__device__ __forceinline__ void multiply_piece(float (&sums)[2][4], const uint4& a0,
                                               const uint4& a1, const uint4 (&b)[2]) {
  const std::uint32_t first[4] = {a0.x, a1.x, a0.y, a1.y}, second[4] = {a0.z, a1.z, a0.w, a1.w};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if constexpr (sizeof(Element) == 4) {
      mma_16x8x8_tf32(sums[half], first, b[half].x, b[half].y);
      mma_16x8x8_tf32(sums[half], second, b[half].z, b[half].w);
    } else {
      mma_16x8x16<Element>(sums[half], first, b[half].x, b[half].y);
      mma_16x8x16<Element>(sums[half], second, b[half].z, b[half].w);
    }
  }
}

/// The sums of a warp: over its turns of pieces [begin, end).
template <typename Element, SlicedTile kTile>
struct SlicedSums {
  float sums[kTile.pixels][kTile.filters][2][4] = {};

  __device__ __forceinline__ void add_turns(const SlicedArguments& p,
                                            const SlicedPixels<Element, kTile>& pixels,
                                            const SlicedFilters<Element, kTile>& filters,
                                            int channels, int begin, int end) {
    const int thread = static_cast<int>(threadIdx.x), quad = thread % kTurnPieces;
    constexpr int kTurns = kTile.turns(), kStep = kSlicedWarps * kTurnPieces;
#pragma unroll 1
    for (int turn = begin + thread / 32 * kTurnPieces; turn < end; turn += kTurns * kStep) {
      uint4 a[kTurns][kTile.pixels * 2], b[kTurns][kTile.filters][2];
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        const int piece = turn + i * kStep + quad;
        filters.load(piece, piece < end, b[i]);
        pixels.load(p, channels, piece, piece < end, a[i]);
      }
      // NOTE: for ptxas, which else takes products before loads, to need fewer registers.
      __syncwarp();
      if constexpr (sizeof(Element) == 4) {
        round_pieces_to_tf32(a);
        round_pieces_to_tf32(b);
      }
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
#pragma unroll
        for (int row = 0; row < kTile.pixels; ++row) {
#pragma unroll
          for (int column = 0; column < kTile.filters; ++column) {
            multiply_piece<Element>(sums[row][column], a[i][row * 2], a[i][row * 2 + 1],
                                    b[i][column]);
          }
        }
      }
    }
  }

  template <typename Pieces>
  static __device__ __forceinline__ void round_pieces_to_tf32(Pieces& pieces) {
    auto& words = reinterpret_cast<std::uint32_t(&)[sizeof(Pieces) / 4]>(pieces);
#pragma unroll
    for (std::uint32_t& x : words) x = rounded_to_tf32(x);
  }

  /// To this warp's vectors: those of a unit's lower eight pixels, of its upper ones, of the next
  /// unit; pixels before filters.
  __device__ __forceinline__ void store(float4* vectors) const {
#pragma unroll
    for (int i = 0; i < kTile.pixels * kTile.filters * 2; ++i) {
      const auto& s = sums[i / 2 % kTile.pixels][i / 2 / kTile.pixels];
      const int half = i % 2 * 2;
      vectors[i * 32 + threadIdx.x % 32] =
          make_float4(s[0][half], s[0][half + 1], s[1][half], s[1][half + 1]);
    }
  }
};

// ---- Sum ----------------------------------------------------------------------------------------

/// Sums of `count` vectors that lie `pitch` apart, in their order.
__device__ __forceinline__ float4 sum_of(const float4* vectors, int count, int pitch) {
  float4 sum = vectors[0];
#pragma unroll 4
  for (int i = 1; i < count; ++i) {
    const float4 more = vectors[i * pitch];
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
  }
  return sum;
}

// ---- Store --------------------------------------------------------------------------------------

/// Four filters of a pixel by any epilogue.
// NOTE: a function of its own, so that the code of short epilogues lies together: it comes cold.
__device__ __noinline__ void store_by_any_epilogue(const ConvOutput& output, float4 sums,
                                                   float4 bias, int pixel, int filter, int count) {
  float v[4] = {sums.x, sums.y, sums.z, sums.w};
  const float b[4] = {bias.x, bias.y, bias.z, bias.w};
  store_channels(output, v, b, pixel, filter, count);
}

template <typename Element>
__device__ __forceinline__ void store_vector(const SlicedArguments& p, float4 sums,
                                             const BiasWords<4>& words, int pixel, int filter) {
  if (pixel >= p.pixels || filter >= p.filters) return;
  float bias[4];
  words.to_floats(p.output.epilogue.bias_dtype, bias);
  if (!p.is_short) {
    return store_by_any_epilogue(p.output, sums, make_float4(bias[0], bias[1], bias[2], bias[3]),
                                 pixel, filter, min(4, p.filters - filter));
  }
  float v[1][4] = {{sums.x, sums.y, sums.z, sums.w}};
  const std::int64_t element = std::int64_t{pixel} * p.filters + filter;
  apply_short_epilogue<Element>(p.output, v, bias, [&](int) { return element; });
  using Vector = OutputVector<Element, 4>;
  Vector stored;
#pragma unroll
  for (int i = 0; i < 4; ++i) stored.values[i] = from_float<Element>(v[0][i]);
  *reinterpret_cast<Vector*>(static_cast<Element*>(p.output.data) + element) = stored;
}

// ---- The kernel ---------------------------------------------------------------------------------

/// Shared memory of a block.
template <int kVectors>
struct SlicedMemory {
  float4 sums[kSlicedWarps][kVectors];
  // Of a cluster:
  float4 received[kVectors];  ///< What its blocks send, block after block,
  ptx::Barrier all_received;  ///< which this counts.
};

/// Blocks: pixel tiles × filter tiles × those of a cluster, of which each stores its share of the
/// tile.
// NOTE: numbers, because nvcc takes no object as template argument of a kernel in a namespace.
template <typename Element, int kPixelUnits, int kFilterUnits, bool kTaps>
__global__ void __launch_bounds__(kSlicedThreads)
    sliced_k_kernel(const __grid_constant__ SlicedArguments p) {
  constexpr SlicedTile kTile{kPixelUnits, kFilterUnits, kTaps};
  constexpr int kVectors = kTile.vectors();
  __shared__ SlicedMemory<kVectors> memory;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int first_pixel = static_cast<int>(blockIdx.x) * kTile.pixels * 16;
  const int first_filter = static_cast<int>(blockIdx.y) * kTile.filters * 16;
  const auto pixel_of = [&](int vector) {
    return first_pixel + vector / 32 % (kTile.pixels * 2) * 8 + vector % 32 / 4;
  };
  const auto filter_of = [&](int vector) {
    return first_filter + vector / 32 / (kTile.pixels * 2) * 16 + vector % 4 * 4;
  };

  const int blocks = static_cast<int>(gridDim.z), block = static_cast<int>(blockIdx.z);
  const int share = kVectors / blocks, first_vector = block * share;
  if (blocks > 1) {
    if (thread == 0) {
      ptx::barrier_init(&memory.all_received, 1);
      ptx::fence_barrier_init();
    }
    __syncwarp();
    ptx::cluster_arrive_relaxed();
  }

  const int channels = static_cast<int>(p.tap_pieces.divisor * kPieceBytes / sizeof(Element));
  const SlicedPixels<Element, kTile> pixels(p, channels, first_pixel + lane / 4);
  const SlicedFilters<Element, kTile> filters(p, first_filter, lane / 4);
  ptx::dependent_launch_trigger();
  // NOTE: nothing before this line reads or writes what an earlier kernel may still write or read.
  ptx::dependent_launch_wait();

  BiasWords<4> bias;
  const auto load_bias = [&](int vector) {
    bias.load(p.output.epilogue, filter_of(vector), p.filters - filter_of(vector));
  };
  load_bias(first_vector + thread);
  SlicedSums<Element, kTile> sums;
  const int begin = block * p.pieces_per_block;
  sums.add_turns(p, pixels, filters, channels, begin, min(begin + p.pieces_per_block, p.pieces));
  sums.store(memory.sums[thread / 32]);
  __syncthreads();

  if (blocks > 1) {
    ptx::cluster_wait();  // All barriers are there.
#pragma unroll 1
    for (int i = thread; i < kVectors; i += kSlicedThreads) {
      ptx::store_async(memory.received + block * share + i % share, &memory.all_received, i / share,
                       sum_of(&memory.sums[0][i], kSlicedWarps, kVectors));
    }
    if (thread == 0) {
      ptx::barrier_arrive_expect(&memory.all_received, sizeof(memory.received));
    }
    if (thread >= share) return;
    ptx::barrier_wait_cluster(&memory.all_received, 0);
  }
#pragma unroll 1
  for (int i = thread; i < share; i += kSlicedThreads) {
    const int vector = first_vector + i;
    if (i != thread) load_bias(vector);
    const float4 sum = blocks > 1 ? sum_of(memory.received + i, blocks, share)
                                  : sum_of(&memory.sums[0][i], kSlicedWarps, kVectors);
    store_vector<Element>(p, sum, bias, pixel_of(vector), filter_of(vector));
  }
}

}  // namespace convoy::small
