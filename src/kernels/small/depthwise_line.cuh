// SPDX-License-Identifier: Apache-2.0
//
// Depthwise with a filter along one axis, of any length and dilation, stride 1. A block copies the
// input of some strips of lines, halo included, and the filters of its channels into shared memory,
// all of it under way together: a small layer waits for device memory once, not once a tap. A
// thread computes two channels of a strip, with a window of the line in registers.
#pragma once

#include "kernels/common/device_code.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/small/depthwise_rows.cuh"

namespace convoy::small {

inline constexpr int kDepthwiseLineThreads = 256;  // At most.
inline constexpr int kDepthwiseLineChannels = 2;   // Of a thread: one word.
/// Outputs of a thread that depthwise_line_kernel is built for.
inline constexpr std::array kDepthwiseLineStrips = {2, 4, 8};

/// Lines lie along the filter's axis: one each image, element of the axes inside it (`inner`) and
/// phase of the dilation, phase fastest. Positions of a line are the dilation apart.
struct DepthwiseLineArguments {
  const void* activation;
  const void* cache;
  const void* filter;
  ConvOutput output;
  bool is_short;                       ///< The epilogue.
  int in_rows, cached_rows, out_rows;  ///< Along the axis; in_rows with the cached ones.
  int pad, dilation;
  int taps, tap_pitch;  ///< Words of two channels' filters: odd.
  int lines, lines_of_block;
  int out_pitch;  ///< Pixels between neighbouring positions of a line.
  FastDivide lanes, vectors, strips, positions, chunks, phases, inner, filter_taps;
  std::int64_t channels;
};

/// Words of shared memory: the input, then the filter.
constexpr std::int64_t depthwise_line_words(std::int64_t rows, std::int64_t lanes,
                                            std::int64_t tap_pitch) {
  return (rows + tap_pitch) * lanes;
}

#ifdef __CUDACC__

/// blockIdx.x: (lines, chunk of each), chunk fastest; blockIdx.y: which channels.
template <typename Element, int kStrip>
__global__ void __launch_bounds__(kDepthwiseLineThreads, 3)
    depthwise_line_kernel(const __grid_constant__ DepthwiseLineArguments a) {
  constexpr int kChannels = kDepthwiseLineChannels;
  constexpr int kTaps = 8;  // Of a step.
  constexpr int kVector = 8;
  using Word = DepthwiseVector<Element, kChannels>;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const line_words = reinterpret_cast<std::uint32_t*>(shared);

  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int lanes = static_cast<int>(a.lanes.divisor);
  const int positions = static_cast<int>(a.positions.divisor);
  const int group = a.chunks.divide(static_cast<int>(blockIdx.x));
  const int first_line = group * a.lines_of_block;
  const int first_position = a.chunks.remainder(static_cast<int>(blockIdx.x), group) *
                             static_cast<int>(a.strips.divisor) * kStrip;
  const std::int64_t first_channel = std::int64_t{blockIdx.y} * lanes * kChannels;
  const int own_lanes =
      static_cast<int>(min(std::int64_t{lanes}, (a.channels - first_channel) / kChannels));
  std::uint32_t* const filter = line_words + a.lines_of_block * positions * lanes;

  struct Line {
    int image, column, phase;
  };
  const auto line_of = [&](int line) {
    const int rest = a.phases.divide(line), image = a.inner.divide(rest);
    return Line{image, a.inner.remainder(rest, image), a.phases.remainder(line, rest)};
  };
  const int inner = static_cast<int>(a.inner.divisor);
  const int copies = a.lines_of_block * positions * static_cast<int>(a.vectors.divisor);
  for (int i = thread; i < copies; i += threads) {
    const int row = a.vectors.divide(i), word = a.vectors.remainder(i, row) * (kVector / kChannels);
    const int line = a.positions.divide(row);
    const Line of = line_of(first_line + line);
    const int h =
        (first_position + a.positions.remainder(row, line)) * a.dilation + of.phase - a.pad;
    const bool exists = first_line + line < a.lines && word < own_lanes &&
                        static_cast<unsigned>(h) < static_cast<unsigned>(a.in_rows);
    const bool cached = h < a.cached_rows;
    const int rows = cached ? a.cached_rows : a.in_rows - a.cached_rows;
    const std::int64_t pixel =
        (std::int64_t{of.image} * rows + (cached ? h : h - a.cached_rows)) * inner + of.column;
    const auto* from = static_cast<const Element*>(cached ? a.cache : a.activation);
    if (exists) from += pixel * a.channels + first_channel + word * kChannels;
    copy_async<16>(ptx::shared_address(line_words + row * lanes + word), from, exists);
  }
  {
    const auto* from = static_cast<const Element*>(a.filter) + first_channel * a.taps;
    for (int i = thread; i < own_lanes * a.taps; i += threads) {
      const int pair = a.filter_taps.divide(i), word = a.filter_taps.remainder(i, pair);
      copy_async<4>(ptx::shared_address(filter + pair * a.tap_pitch + word), from + i * kChannels,
                    true);
    }
  }
  copy_async_commit();

  const int place = a.lanes.divide(thread), lane = a.lanes.remainder(thread, place);
  const int line = a.strips.divide(place);
  const int strip = a.strips.remainder(place, line) * kStrip;
  const Line of = line_of(first_line + line);
  const int p = (first_position + strip) * a.dilation + of.phase;
  const bool works =
      line < a.lines_of_block && first_line + line < a.lines && lane < own_lanes && p < a.out_rows;
  const std::int64_t channel = first_channel + lane * kChannels;
  const bool ends_short = a.is_short && a.output.dtype == dtype_of<Element>;
  float bias[kChannels] = {};
  if (ends_short && works) load_biases(a.output.epilogue, bias, channel, kChannels);
  copy_async_wait<0>();
  __syncthreads();
  if (!works) return;

  // Two channels' filters are 2 · taps elements in a run; neighbouring lanes' lie an odd number of
  // words apart.
  const auto* const weights = reinterpret_cast<const Element*>(filter + lane * a.tap_pitch);
  const std::uint32_t* input = line_words + (line * positions + strip) * lanes + lane;
  float x[kStrip + kTaps - 1][kChannels];
  const auto load = [&](float(&to)[kChannels]) {
    Word word;
    word.words[0] = *input;
    word.unpack(to);
    input += lanes;
  };
#pragma unroll
  for (int i = 0; i < kStrip - 1; ++i) load(x[i]);
  float sums[kStrip][kChannels] = {};
  const auto add = [&](int tap, int i) {
    load(x[kStrip - 1 + i]);
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const float weight = to_float(weights[c * a.taps + tap]);
#pragma unroll
      for (int j = 0; j < kStrip; ++j) sums[j][c] = fmaf(x[i + j][c], weight, sums[j][c]);
    }
  };
  int tap = 0;
#pragma unroll 1
  for (; tap + kTaps <= a.taps; tap += kTaps) {
#pragma unroll
    for (int i = 0; i < kTaps; ++i) add(tap + i, i);
#pragma unroll
    for (int i = 0; i < kStrip - 1; ++i) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) x[i][c] = x[i + kTaps][c];
    }
  }
#pragma unroll
  for (int i = 0; i < kTaps - 1; ++i) {
    if (tap + i >= a.taps) break;
    add(tap + i, i);
  }

  const int outputs = min(kStrip, (a.out_rows - p + a.dilation - 1) / a.dilation);
  const std::int64_t pixel = (std::int64_t{of.image} * a.out_rows + p) * inner + of.column;
  if (ends_short && a.output.epilogue.has_residual) {
    store_short_with_residual<Element>(a.output, sums, pixel * a.channels + channel,
                                       a.out_pitch * a.channels, outputs, channel);
  } else if (ends_short) {
    if (!a.output.plain) apply_short_epilogue<Element>(a.output, sums, bias, NoResidual{});
    store_depthwise_strip<Element>(a, sums, pixel, a.out_pitch, outputs, channel);
  } else {
    finish_depthwise_strip(a, sums, pixel, a.out_pitch, outputs, channel);
  }
}

#endif  // __CUDACC__

}  // namespace convoy::small
