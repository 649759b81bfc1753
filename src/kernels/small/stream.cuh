// SPDX-License-Identifier: Apache-2.0
//
// Convolutions of few channels and few filters over many pixels: a stream from memory and back with
// a small product between. Pixels that follow each other are one run of memory, with whatever
// number of channels, and so is what comes of them: both are moved by bulk copies, which know no
// rows. With taps along the width a chunk brings the pixels beside it, and chunks end with their
// line. Every warp has a ring of chunks of its own and waits for nobody else:
//
//   lane 0       bulk load of chunk n + stages       barrier `loaded` of its stage
//   all lanes    wait; zeros where taps reach outside the line; products of 32 pixels with up to
//                64 filters, then the next filters, by mma.sync; the epilogue; the chunk's outputs
//                side by side into a buffer
//   lane 0       bulk store of the buffer            bulk group; the buffer is free when it is read
//
// The order of a dot product's elements is free, and so is that of the filters among the columns of
// the MMA: both are dealt so that a lane's share of a pixel lies together, four or eight channels
// that it reads at once, eight filters that it writes at once.
#pragma once

#include "kernels/common/device_code.cuh"
#include "kernels/common/fast_divide.hpp"
#include "kernels/common/ptx.cuh"
#include "kernels/common/short_epilogue.cuh"
#include "kernels/small/output_words.cuh"

namespace convoy::small {

inline constexpr int kStreamMostWarps = 8;
/// Blocks of 16 pixels, and groups of filters at most, that a warp multiplies at once: their sums
/// are 64 registers a lane.
inline constexpr int kStreamBlocks = 2;
inline constexpr int kStreamMostGroups = 2;
inline constexpr int kStreamStepPixels = 16 * kStreamBlocks;
/// Filters of a group of `mmas` MMA columns of 8: twice as many neighbours as that are a lane's.
__host__ __device__ constexpr int stream_group_filters(int mmas) {
  return 8 * mmas;
}
/// Buffers of outputs: one is written while the last is stored; a residual comes one ahead.
inline constexpr int kStreamBuffers = 2;
inline constexpr int kStreamResidualBuffers = 3;

/// Bytes of the parts of a block's shared memory, and how a layer is cut up.
struct StreamLayout {
  int channels, filters;
  int taps;
  int chunk_pixels;  ///< Of the output: a multiple of kStreamStepPixels.
  int groups;        ///< Of filters: kGroups of them at once.
  int units;         ///< Of channels: 32 where a lane reads eight, else 16.
  int filter_pitch;  ///< Bytes from a filter to the next,
  int filter_skew;   ///< and more behind those of a lane.
  int filter_bytes;  ///< Of all, and their bias: fp32.
  int bias_bytes;
  int stages;
  int stage_bytes;
  int buffers;
  int buffer_bytes;
  int barrier_bytes;  ///< Of a warp: one a stage, one a buffer.

  /// Of a warp.
  __host__ __device__ int ring_bytes() const {
    return stages * stage_bytes + buffers * buffer_bytes;
  }
  __host__ __device__ int shared_bytes(int warps) const {
    return filter_bytes + bias_bytes + warps * (ring_bytes() + barrier_bytes);
  }
};

/// Rows of pixels, each convolved by itself: with taps. Sizes in pixels.
struct StreamLines {
  int in, out;  ///< Of a line.
  int stride, dilation, pad;
  FastDivide chunks;  ///< Of a line.
};

struct StreamArguments {
  const void* activation;
  const void* filter;
  std::int64_t pixels;  ///< Of the output.
  std::int64_t chunks;
  StreamLayout layout;
  StreamLines lines;
  ConvOutput output;
};

/// A chunk: where its outputs begin, and how many there are; its input, which begins `skipped`
/// pixels outside its line, and how many of it are there.
struct StreamChunk {
  std::int64_t first_output;
  int outputs;
  std::int64_t first_input;
  int skipped, inputs;
};

template <bool kLines>
__device__ __forceinline__ StreamChunk stream_chunk(const StreamArguments& a, std::int64_t index) {
  const int pixels = a.layout.chunk_pixels;
  if constexpr (!kLines) {
    const std::int64_t first = index * pixels;
    const int count = static_cast<int>(min(std::int64_t{pixels}, a.pixels - first));
    return {first, count, first, 0, count};
  }
  const StreamLines& l = a.lines;
  const int line = l.chunks.divide(static_cast<int>(index));
  const int first = l.chunks.remainder(static_cast<int>(index), line) * pixels;
  const int outputs = min(pixels, l.out - first);
  const int begin = first * l.stride - l.pad;
  const int end = begin + (outputs - 1) * l.stride + (a.layout.taps - 1) * l.dilation + 1;
  const int from = min(max(begin, 0), l.in);
  return {std::int64_t{line} * l.out + first, outputs, std::int64_t{line} * l.in + from,
          max(0, from - begin), max(0, min(end, l.in) - from)};
}

/// One lane: the load of `bytes` to `shared`. Bulk copies come in multiples of 16 bytes; what is
/// left, less than that, is copied by hand (kByHand: there may be some).
template <bool kByHand>
__device__ __forceinline__ void stream_load(std::uint8_t* shared, const std::uint8_t* from,
                                            int bytes, ptx::Barrier* barrier) {
  const int whole = bytes & ~15;
  if constexpr (kByHand) {
    for (int i = whole; i < bytes; i += 2) {
      *reinterpret_cast<std::uint16_t*>(shared + i) =
          *reinterpret_cast<const std::uint16_t*>(from + i);
    }
  }
  if (whole == 0) {
    ptx::barrier_arrive(barrier);
    return;
  }
  ptx::barrier_arrive_expect(barrier, whole);
  ptx::bulk_load(shared, from, whole, barrier);
}

/// All lanes: zeros for what of a chunk's input lies outside its line, of `pixels` in all.
__device__ __forceinline__ void stream_zeros(std::uint8_t* stage, const StreamChunk& chunk,
                                             int pixels, int pixel_bytes) {
  const int head = chunk.skipped * pixel_bytes, tail = head + chunk.inputs * pixel_bytes;
  const int lane = static_cast<int>(ptx::lane_id());
  for (int i = lane * 16; i < head; i += 512) {
    *reinterpret_cast<uint4*>(stage + i) = make_uint4(0, 0, 0, 0);
  }
  for (int i = tail + lane * 16; i < pixels * pixel_bytes; i += 512) {
    *reinterpret_cast<uint4*>(stage + i) = make_uint4(0, 0, 0, 0);
  }
  __syncwarp();
}

/// Channels of a lane in one unit, of a row that lies at `row`: `channel` its first, zeros behind
/// the last. kVector: neighbours that it reads at once, 8 of two MMA steps or 4 of one; or 2, twice
/// for one step.
template <int kVector>
struct StreamWords {
  static constexpr int kSteps = kVector == 8 ? 2 : 1;
  static constexpr int kUnit = 16 * kSteps;  ///< Channels of a unit.
  std::uint32_t low[kSteps], high[kSteps];   ///< Of each step: columns 2t, 2t + 1 and those + 8.

  __device__ __forceinline__ void load(const std::uint8_t* row, int channel, int channels) {
    if constexpr (kVector == 8) {
      uint4 v = make_uint4(0, 0, 0, 0);
      if (channel < channels) v = *reinterpret_cast<const uint4*>(row + channel * 2);
      low[0] = v.x, high[0] = v.y, low[1] = v.z, high[1] = v.w;
    } else if constexpr (kVector == 4) {
      uint2 v = make_uint2(0, 0);
      if (channel < channels) v = *reinterpret_cast<const uint2*>(row + channel * 2);
      low[0] = v.x, high[0] = v.y;
    } else {
      low[0] = high[0] = 0;
      if (channel < channels) low[0] = *reinterpret_cast<const std::uint32_t*>(row + channel * 2);
      if (channel + 8 < channels) {
        high[0] = *reinterpret_cast<const std::uint32_t*>(row + channel * 2 + 16);
      }
    }
  }
};

/// Begin to copy the filters into shared memory, by all threads, and read their bias: rows of zeros
/// behind the last filter, zeros behind the last channel of each tap.
template <int kVector, int kMmas>
__device__ __forceinline__ void stream_filters(const StreamArguments& a, std::uint8_t* filters,
                                               float* bias) {
  constexpr int kBytes = kVector >= 4 ? 16 : 4;  // of a copy
  constexpr int kTapBytes = StreamWords<kVector>::kUnit * 2;
  const StreamLayout& l = a.layout;
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int rows = l.groups * stream_group_filters(kMmas);
  const int tap_copies = l.units * kTapBytes / kBytes;
  const int row_copies = l.taps * tap_copies;
  const int row_step = threads / row_copies, copy_step = threads - row_step * row_copies;
  const auto* const from = static_cast<const std::uint8_t*>(a.filter);
  const std::uint32_t to = ptx::shared_address(filters);
  int row = thread / row_copies;
  int copy = thread - row * row_copies;
  while (row < rows) {
    const int tap = copy / tap_copies, byte = (copy - tap * tap_copies) * kBytes;
    const bool exists = row < l.filters && byte < l.channels * 2;
    const std::int64_t at = (std::int64_t{row} * l.taps + tap) * l.channels * 2 + byte;
    const std::uint32_t row_at = row * l.filter_pitch + row / (2 * kMmas) * l.filter_skew;
    copy_async<kBytes>(to + row_at + copy * kBytes, from + (exists ? at : 0), exists);
    row += row_step;
    copy += copy_step;
    if (copy >= row_copies) {
      copy -= row_copies;
      ++row;
    }
  }
  copy_async_commit();
  for (int i = thread; i < rows; i += threads) {
    const bool exists = a.output.epilogue.bias != nullptr && i < l.filters;
    // NOTE: -0 leaves every sum as it is, zeros of either sign too.
    bias[i] = exists ? load_bias(a.output.epilogue, i) : -0.0f;
  }
}

/// Sums of 32 pixels, of blocks of 16, and filters: of kMmas MMAs for each group.
template <int kMmas, int kGroups>
using StreamSums = float[kStreamBlocks][kGroups * kMmas][4];

/// Where a lane stands in MMA fragments: its row of each eight, its columns 2·quad and behind.
struct StreamLane {
  int row = static_cast<int>(ptx::lane_id()) / 4;
  int quad = static_cast<int>(ptx::lane_id()) % 4;
};

/// 32 pixels, which begin at `pixels`, times the filters of up to kGroups groups from `first_group`
/// on. `pixel_bytes`: from a pixel's first tap to that of the next; `tap_bytes`: from tap to tap.
// NOTE: column n of MMA j of a group is filter 2m·(n / 2) + 2j + n % 2 of it, of m MMAs: columns
// 2·quad and 2·quad + 1 of all of them are a lane's neighbours.
template <typename Element, int kVector, int kMmas, int kGroups, bool kLines>
__device__ __forceinline__ void stream_multiply(const StreamLayout& l, const StreamLane& me,
                                                const std::uint8_t* pixels, int pixel_bytes,
                                                int tap_bytes, const std::uint8_t* filters,
                                                int first_group, StreamSums<kMmas, kGroups>& sums) {
  using Words = StreamWords<kVector>;
  const int octet = 2 * kMmas * l.filter_pitch + l.filter_skew;  // Of a lane's filters.
  const int group_bytes = 4 * octet;
  const std::uint8_t* filter =
      filters + first_group * group_bytes + me.row / 2 * octet + me.row % 2 * l.filter_pitch;
  const int units = kLines ? l.taps * l.units : l.units;
  int tap_unit = 0;
#pragma unroll 1
  for (int unit = 0; unit < units; ++unit, ++tap_unit) {
    if (kLines && tap_unit == l.units) {
      tap_unit = 0;
      pixels += tap_bytes;
    }
    const int channel = tap_unit * Words::kUnit + me.quad * kVector;
    Words rows[kStreamBlocks][2];
#pragma unroll
    for (int i = 0; i < kStreamBlocks * 2; ++i) {
      // NOTE: behind the last pixel whatever lies there: a row of its own, never stored.
      rows[i / 2][i % 2].load(pixels + (i * 8 + me.row) * pixel_bytes, channel, l.channels);
    }
    const int filter_channel = unit * Words::kUnit + me.quad * kVector;
#pragma unroll
    for (int j = 0; j < kGroups * kMmas; ++j) {
      if (first_group + j / kMmas >= l.groups) break;
      Words columns;
      columns.load(filter + j / kMmas * group_bytes + j % kMmas * 2 * l.filter_pitch,
                   filter_channel, units * Words::kUnit);
#pragma unroll
      for (int s = 0; s < Words::kSteps; ++s) {
#pragma unroll
        for (int b = 0; b < kStreamBlocks; ++b) {
          const std::uint32_t fragment[4] = {rows[b][0].low[s], rows[b][1].low[s],
                                             rows[b][0].high[s], rows[b][1].high[s]};
          mma_16x8x16<Element>(sums[b][j], fragment, columns.low[s], columns.high[s]);
        }
      }
    }
  }
}

/// The epilogue of those pixels, `count` of them there, and this lane's filters from `filter` on:
/// from the sums of its group to `outputs`, where their residual lies.
template <typename Element, int kMmas, bool kResidual>
__device__ __forceinline__ void stream_finish(const StreamArguments& a, const StreamLane& me,
                                              const float (&sums)[kStreamBlocks][kMmas][4],
                                              const float* bias, int filter, int count,
                                              std::uint8_t* outputs) {
  constexpr int kRows = kStreamBlocks * 2;
  constexpr int kFilters = 2 * kMmas;
  const int filters = a.layout.filters;
  const bool whole = filters % kFilters == 0;
  float factors[kFilters];
#pragma unroll
  for (int i = 0; i < kFilters; i += 4) {
    *reinterpret_cast<float4*>(factors + i) = *reinterpret_cast<const float4*>(bias + filter + i);
  }
  const auto at = [&](int i) { return outputs + ((i * 8 + me.row) * filters + filter) * 2; };
  const auto left = [&](int i) { return i * 8 + me.row < count ? filters - filter : 0; };

  float v[kRows][kFilters];
  std::uint32_t source[kRows][kMmas] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int e = 0; e < kFilters; ++e) v[i][e] = sums[i / 2][e / 2][i % 2 * 2 + e % 2];
    if constexpr (kResidual) move_outputs<true>(at(i), source[i], left(i), whole);
  }
  apply_scaled_short_epilogue<Element, kResidual>(a.output.epilogue, v, factors, source);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    std::uint32_t words[kMmas];
#pragma unroll
    for (int e = 0; e < kMmas; ++e) words[e] = pack2<Element>(v[i][2 * e], v[i][2 * e + 1]);
    move_outputs<false>(at(i), words, left(i), whole);
  }
}

/// kVector: channels that a lane reads at once, 8, 4 or 2, a divisor of C. kMmas: MMA columns of 8
/// filters of a group; kGroups: that are multiplied at once. kLines: with taps. Behind it a short
/// epilogue, outputs of the input's type.
template <typename Element, int kVector, int kMmas, int kGroups, bool kLines, bool kResidual>
__global__ void __launch_bounds__(kStreamMostWarps * 32, 2)
    stream_kernel(const __grid_constant__ StreamArguments a) {
  constexpr int kBuffers = kResidual ? kStreamResidualBuffers : kStreamBuffers;
  extern __shared__ __align__(128) std::uint8_t shared[];
  const StreamLayout& l = a.layout;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(ptx::warp_id()), lane = static_cast<int>(ptx::lane_id());
  std::uint8_t* const filters = shared;
  auto* const bias = reinterpret_cast<float*>(filters + l.filter_bytes);
  std::uint8_t* const stages = filters + l.filter_bytes + l.bias_bytes + warp * l.ring_bytes();
  std::uint8_t* const buffers = stages + l.stages * l.stage_bytes;
  auto* const loaded = reinterpret_cast<ptx::Barrier*>(
      filters + l.filter_bytes + l.bias_bytes + warps * l.ring_bytes() + warp * l.barrier_bytes);
  ptx::Barrier* const source_loaded = loaded + l.stages;

  // NOTE: chunks that follow each other are in different blocks: few are everywhere, and every
  // block has all its threads to fetch the filters.
  const std::int64_t step = std::int64_t{gridDim.x} * warps;
  const std::int64_t first = std::int64_t{warp} * gridDim.x + blockIdx.x;
  const auto load = [&](std::int64_t index, int stage) {
    if (index >= a.chunks) return;
    const StreamChunk chunk = stream_chunk<kLines>(a, index);
    const std::int64_t pixel_bytes = l.channels * 2;
    stream_load<kVector == 2>(
        stages + stage * l.stage_bytes + chunk.skipped * l.channels * 2,
        static_cast<const std::uint8_t*>(a.activation) + chunk.first_input * pixel_bytes,
        chunk.inputs * l.channels * 2, &loaded[stage]);
  };
  const auto load_source = [&](std::int64_t index, int buffer) {
    if (index >= a.chunks) return;
    const StreamChunk chunk = stream_chunk<kLines>(a, index);
    const std::int64_t pixel_bytes = l.filters * 2;
    stream_load<true>(
        buffers + buffer * l.buffer_bytes,
        static_cast<const std::uint8_t*>(a.output.residual) + chunk.first_output * pixel_bytes,
        chunk.outputs * l.filters * 2, &source_loaded[buffer]);
  };

  if (lane == 0) {
    for (int i = 0; i < l.stages; ++i) ptx::barrier_init(&loaded[i], 1);
    for (int i = 0; kResidual && i < kBuffers; ++i) ptx::barrier_init(&source_loaded[i], 1);
    ptx::fence_barrier_init();
  }
  ptx::dependent_launch_trigger();
  // NOTE: nothing before this line reads or writes what an earlier kernel may still write or read.
  ptx::dependent_launch_wait();
  if (lane == 0) {
    for (int i = 0; i < l.stages; ++i) load(first + i * step, i);
    if constexpr (kResidual) load_source(first, 0);
  }
  stream_filters<kVector, kMmas>(a, filters, bias);
  copy_async_wait<0>();
  __syncthreads();

  const StreamLane me;
  const int pixel_bytes = (kLines ? a.lines.stride : 1) * l.channels * 2;
  const int tap_bytes = kLines ? a.lines.dilation * l.channels * 2 : 0;
  int stage = 0, buffer = 0;
  std::uint32_t parity = 0, source_parity = 0;
  for (std::int64_t index = first; index < a.chunks; index += step) {
    const StreamChunk chunk = stream_chunk<kLines>(a, index);
    const int count = chunk.outputs;
    // The buffer's last store has been read; with a residual it was before that was loaded.
    if (lane == 0) ptx::tma_store_wait_read<1>();
    __syncwarp();
    const int next_buffer = buffer + 1 == kBuffers ? 0 : buffer + 1;
    if constexpr (kResidual) {
      if (lane == 0) load_source(index + step, next_buffer);
      ptx::barrier_wait(&source_loaded[buffer], source_parity);
    }
    ptx::barrier_wait(&loaded[stage], parity);
    std::uint8_t* const in = stages + stage * l.stage_bytes;
    std::uint8_t* const out = buffers + buffer * l.buffer_bytes;
    if constexpr (kLines) {
      const StreamLines& lines = a.lines;
      const int pixels = (count - 1) * lines.stride + (l.taps - 1) * lines.dilation + 1;
      if (chunk.inputs < pixels) stream_zeros(in, chunk, pixels, l.channels * 2);
    }

    for (int pixel = 0; pixel < count; pixel += kStreamStepPixels) {
#pragma unroll 1
      for (int group = 0; group < l.groups; group += kGroups) {
        StreamSums<kMmas, kGroups> sums = {};
        stream_multiply<Element, kVector, kMmas, kGroups, kLines>(
            l, me, in + pixel * pixel_bytes, pixel_bytes, tap_bytes, filters, group, sums);
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          if (group + i >= l.groups) break;
          float of_group[kStreamBlocks][kMmas][4];
#pragma unroll
          for (int k = 0; k < kStreamBlocks * kMmas * 4; ++k) {
            const int b = k / (kMmas * 4), j = k / 4 % kMmas;
            of_group[b][j][k % 4] = sums[b][i * kMmas + j][k % 4];
          }
          const int filter = (group + i) * stream_group_filters(kMmas) + me.quad * 2 * kMmas;
          stream_finish<Element, kMmas, kResidual>(a, me, of_group, bias, filter, count - pixel,
                                                   out + pixel * l.filters * 2);
        }
      }
    }

    // The store reads through the async proxy.
    ptx::fence_async_shared();
    __syncwarp();
    const int bytes = count * l.filters * 2;
    std::uint8_t* const to =
        static_cast<std::uint8_t*>(a.output.data) + chunk.first_output * l.filters * 2;
    if (lane == 0) {
      if (bytes >= 16) ptx::bulk_store(to, out, bytes & ~15);
      ptx::tma_store_commit();
      load(index + l.stages * step, stage);
    }
    // Of the last chunk: less than 16 bytes.
    if (const int i = (bytes & ~15) + lane * 2; i < bytes) {
      *reinterpret_cast<std::uint16_t*>(to + i) = *reinterpret_cast<const std::uint16_t*>(out + i);
    }
    if (++stage == l.stages) {
      stage = 0;
      parity ^= 1;
    }
    if (next_buffer == 0) source_parity ^= 1;
    buffer = next_buffer;
  }
  // NOTE: shared memory must outlive the stores that read it.
  if (lane == 0) ptx::tma_store_wait<0>();
}

}  // namespace convoy::small
