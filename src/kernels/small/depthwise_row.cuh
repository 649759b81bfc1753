// SPDX-License-Identifier: Apache-2.0
//
// Depthwise 3×3, 5×5 and 7×7 on layers so small that each output row finds threads at once. What
// takes time there is the way to device memory, and a thread of depthwise_rows.cuh takes it once
// for each row of the filter. Here a thread computes two channels of a strip of one output row, and
// everything that it reads is under way together: its input rows in registers, the filter of the
// block's channels through shared memory, where it comes whole lines at a time.
#pragma once

#include "kernels/common/device_code.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/small/depthwise_rows.cuh"

namespace convoy::small {

inline constexpr int kDepthwiseRowThreads = 128;
inline constexpr int kDepthwiseRowChannels = 2;  // Of a thread: one word, or two of fp32.

/// What depthwise_row_kernel is built for.
// NOTE: measured, strips of 4 columns take 0.3 to 2.2 us longer: more code, which comes cold.
struct DepthwiseRowShape {
  int taps;    ///< Along both axes,
  int stride;  ///< likewise.
  int strip;   ///< Output columns of a thread.
  int blocks;  ///< Of a multiprocessor, which bounds registers.
};
inline constexpr std::array kDepthwiseRowShapes = {
    DepthwiseRowShape{5, 1, 2, 6}, DepthwiseRowShape{5, 2, 2, 6}, DepthwiseRowShape{7, 1, 2, 5},
    DepthwiseRowShape{7, 2, 2, 4}, DepthwiseRowShape{3, 1, 2, 8}, DepthwiseRowShape{3, 2, 2, 8}};

/// Whether the kernel of a shape is built for elements of so many bytes.
// NOTE: 7×7 taps of fp32 do not fit the registers.
constexpr bool has_row_kernel(const DepthwiseRowShape& shape, std::size_t element_bytes) {
  return element_bytes == 2 || shape.taps <= 5;
}

/// Elements of the filter that a block of `lanes` neighbouring threads keeps.
constexpr int depthwise_row_filter(int taps, int lanes) {
  return lanes * kDepthwiseRowChannels * taps * taps;
}

#ifdef __CUDACC__

/// `items`: (image, row, strip), strip fastest, in blocks of 128 / lanes; blockIdx.y: which lanes'
/// channels. `chunks` are rows.
template <typename Element, int kShape>
__global__ void __launch_bounds__(kDepthwiseRowThreads, kDepthwiseRowShapes[kShape].blocks)
    depthwise_row_kernel(const __grid_constant__ DepthwiseRowsArguments a) {
  constexpr DepthwiseRowShape kOf = kDepthwiseRowShapes[kShape];
  constexpr int kTaps = kOf.taps, kStrip = kOf.strip, kChannels = kDepthwiseRowChannels;
  constexpr int kColumns = (kStrip - 1) * kOf.stride + kTaps;
  using Word = DepthwiseVector<Element, kChannels>;
  extern __shared__ __align__(16) unsigned char shared[];

  const int thread = static_cast<int>(threadIdx.x);
  const int lanes = static_cast<int>(a.lanes.divisor);
  const int place = a.lanes.divide(thread), lane = a.lanes.remainder(thread, place);
  const int first_channel = static_cast<int>(blockIdx.y) * lanes * kChannels;
  // The filter: [channel][r][s], of the block's channels in one run of whole 16 bytes.
  {
    const auto* from = reinterpret_cast<const unsigned char*>(
        static_cast<const Element*>(a.filter) + std::int64_t{first_channel} * (kTaps * kTaps));
    const int bytes = depthwise_row_filter(kTaps, lanes) * static_cast<int>(sizeof(Element));
    for (int i = thread * 16; i < bytes; i += kDepthwiseRowThreads * 16) {
      copy_async<16>(ptx::shared_address(shared + i), from + i, true);
    }
    copy_async_commit();
  }

  const int item = static_cast<int>(blockIdx.x) * (kDepthwiseRowThreads / lanes) + place;
  const bool works = item < a.items;
  const int line = a.strips.divide(item), q = a.strips.remainder(item, line) * kStrip;
  const int image = a.chunks.divide(line), p = a.chunks.remainder(line, image);
  const int h = p * kOf.stride - a.pad_rows, w = q * kOf.stride - a.pad_columns;
  const std::int64_t channel = first_channel + lane * kChannels;
  const Element* const input =
      static_cast<const Element*>(a.activation) +
      ((std::int64_t{image} * a.in_rows + h) * a.in_columns + w) * a.channels + channel;
  const std::int64_t row_pitch = a.in_columns * a.channels;
  Word rows[kTaps][kColumns];
#pragma unroll
  for (int r = 0; r < kTaps; ++r) {
    const bool exists = works && static_cast<unsigned>(h + r) < static_cast<unsigned>(a.in_rows);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      rows[r][i].load_if(
          exists && static_cast<unsigned>(w + i) < static_cast<unsigned>(a.in_columns),
          input + r * row_pitch + i * a.channels);
    }
  }
  const bool ends_short = a.is_short && a.output.dtype == dtype_of<Element>;
  float bias[kChannels] = {};
  if (ends_short && works) load_biases(a.output.epilogue, bias, channel, kChannels);
  copy_async_wait<0>();
  __syncthreads();
  if (!works) return;

  // NOTE: neighbouring lanes' words lie an odd number of words apart: no bank twice (of fp32, two
  // lanes' fall on one).
  constexpr int kWords = kTaps * kTaps * kChannels * int{sizeof(Element)} / 4;
  const auto* const words = reinterpret_cast<const std::uint32_t*>(shared) + lane * kWords;
  const auto weight = [&](int channel_of, int tap) {
    const int element = channel_of * kTaps * kTaps + tap;
    if constexpr (sizeof(Element) == 4) {
      return __uint_as_float(words[element]);
    } else {
      const float2 pair = unpack2<Element>(words[element / 2]);
      return element % 2 == 0 ? pair.x : pair.y;
    }
  };
  float sums[kStrip][kChannels] = {};
#pragma unroll
  for (int r = 0; r < kTaps; ++r) {
    float x[kColumns][kChannels];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) rows[r][i].unpack(x[i]);
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int s = 0; s < kTaps; ++s) {
        const float factor = weight(c, r * kTaps + s);
#pragma unroll
        for (int i = 0; i < kStrip; ++i) {
          sums[i][c] = fmaf(x[i * kOf.stride + s][c], factor, sums[i][c]);
        }
      }
    }
  }

  const int columns = min(kStrip, a.out_columns - q);
  const std::int64_t pixel = std::int64_t{line} * a.out_columns + q;
  if (ends_short && a.output.epilogue.has_residual) {
    store_short_with_residual<Element>(a.output, sums, pixel * a.channels + channel, a.channels,
                                       columns, channel);
  } else if (ends_short) {
    if (!a.output.plain) apply_short_epilogue<Element>(a.output, sums, bias, NoResidual{});
    store_depthwise_strip<Element>(a, sums, pixel, 1, columns, channel);
  } else {
    finish_depthwise_strip(a, sums, pixel, 1, columns, channel);
  }
}

#endif  // __CUDACC__

}  // namespace convoy::small
