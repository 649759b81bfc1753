// SPDX-License-Identifier: Apache-2.0
//
// The output side that the small kernels share: run-time epilogue, residual, 16-byte stores.
#pragma once

#include <cstdint>

#include "kernels/common/epilogue.cuh"
#include "kernels/common/load_if.cuh"
#include "kernels/common/output.hpp"

namespace convoy {

#ifdef __CUDACC__

/// The DType of a device type.
template <typename Element>
inline constexpr DType dtype_of = DType::fp32;
template <>
inline constexpr DType dtype_of<__nv_bfloat16> = DType::bf16;
template <>
inline constexpr DType dtype_of<__half> = DType::fp16;

// kWidth neighbours, moved in pieces of up to 16 bytes.
template <typename Out, int kWidth>
struct alignas(sizeof(Out) * kWidth < 16 ? sizeof(Out) * kWidth : 16) OutputVector {
  Out values[kWidth];
};

/// The bias of kWidth channels as it lies in memory. NOTE: nothing waits for it where it is loaded;
/// a conversion there would.
template <int kWidth>
struct BiasWords {
  std::uint32_t words[kWidth];

  /// Of channels [channel, channel + count), zeros where there is none.
  __device__ __forceinline__ void load(const EpilogueParams& epilogue, std::int64_t channel,
                                       int count) {
    const auto load_words = [&]<typename Word>(const Word* bias) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        words[i] = load_if<Word>(bias != nullptr && i < count, bias + channel + i);
      }
    };
    if (epilogue.bias_dtype == DType::fp32) {
      load_words(static_cast<const std::uint32_t*>(epilogue.bias));
    } else {
      load_words(static_cast<const std::uint16_t*>(epilogue.bias));
    }
  }
  __device__ __forceinline__ void to_floats(DType dtype, float (&bias)[kWidth]) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      bias[i] = dtype == DType::fp32   ? __uint_as_float(words[i])
                : dtype == DType::bf16 ? __uint_as_float(words[i] << 16)
                                       : __half2float(__ushort_as_half(words[i]));
    }
  }
};

/// The bias of channels [channel, channel + count), zeros where there is none.
template <int kWidth>
__device__ __forceinline__ void load_biases(const EpilogueParams& epilogue, float (&bias)[kWidth],
                                            std::int64_t channel, int count) {
  BiasWords<kWidth> words;
  words.load(epilogue, channel, count);
  words.to_floats(epilogue.bias_dtype, bias);
}

/// Call `body`, a template on the device type of `dtype`.
template <typename Body>
__device__ __forceinline__ void with_element(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::bf16:
      return body.template operator()<__nv_bfloat16>();
    case DType::fp16:
      return body.template operator()<__half>();
    case DType::fp32:
      return body.template operator()<float>();
  }
}

/// Epilogue and store of channels [channel, channel + count) of one output pixel, count ≤ kWidth,
/// with their bias as `load_biases` gives it. With `out.vectors`, channel is a multiple of kWidth.
// NOTE: each element is read and then written by the same thread, so the residual may be the output
// itself. One call of apply_epilogue for all types keeps compile time and code small.
template <int kWidth>
__device__ __forceinline__ void store_channels(const ConvOutput& out, float (&v)[kWidth],
                                               const float (&bias)[kWidth], std::int64_t pixel,
                                               std::int64_t channel, int count) {
  const std::int64_t offset = pixel * out.channels + channel;
  const bool whole = out.vectors && count == kWidth;
  if (!out.plain) {
    float source[kWidth] = {};
    if (out.epilogue.has_residual) {
      with_element(out.dtype, [&]<typename Out>() {
        using Vector = OutputVector<Out, kWidth>;
        const Out* const from = static_cast<const Out*>(out.residual) + offset;
        Vector loaded;
        if (whole) {
          loaded = *reinterpret_cast<const Vector*>(from);
        } else {
#pragma unroll
          for (int i = 0; i < kWidth; ++i) loaded.values[i] = from[i < count ? i : 0];
        }
#pragma unroll
        for (int i = 0; i < kWidth; ++i) source[i] = to_float(loaded.values[i]);
      });
    }
    apply_epilogue(
        RoundToDType{out.dtype}, out.epilogue, v, [&](int i) { return bias[i]; },
        [&](int i) { return source[i]; });
  }
  with_element(out.dtype, [&]<typename Out>() {
    using Vector = OutputVector<Out, kWidth>;
    Out* const to = static_cast<Out*>(out.data) + offset;
    Vector stored;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) stored.values[i] = from_float<Out>(v[i]);
    if (whole) {
      *reinterpret_cast<Vector*>(to) = stored;
    } else {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if (i < count) to[i] = stored.values[i];
      }
    }
  });
}

/// The same, the bias read here.
template <int kWidth>
__device__ __forceinline__ void store_channels(const ConvOutput& out, float (&v)[kWidth],
                                               std::int64_t pixel, std::int64_t channel,
                                               int count) {
  float bias[kWidth];
  load_biases(out.epilogue, bias, channel, count);
  store_channels(out, v, bias, pixel, channel, count);
}

/// Floats of staging memory that `store_warp_tile` needs for each warp.
// NOTE: a row pitch of 8 or 24 modulo 32 banks lets half a warp write its 8-byte pairs without
// conflict.
template <int kTiles>
constexpr int kStagingPitch = 8 * (kTiles | 1);
template <int kTiles>
constexpr int kStagingFloats = 16 * kStagingPitch<kTiles>;

/// Store one warp's accumulators, kFragments times 16 pixels × 8·kTiles channels in mma.m16n8
/// fragments, through this warp's staging memory (16-byte aligned). `pixel_of(fragment, row)` gives
/// the output pixel of row 0..15, or −1 for none; channels at and beyond `channel_end` are not
/// stored. `channel_step`: channels from one fragment's first to the next's.
template <int kFragments, int kTiles, typename PixelOf>
__device__ __forceinline__ void store_warp_tile(const ConvOutput& out,
                                                const float (&accumulators)[kFragments][kTiles][4],
                                                float* staging, PixelOf&& pixel_of,
                                                std::int64_t channel, std::int64_t channel_end,
                                                int channel_step = 0) {
  constexpr int kPitch = kStagingPitch<kTiles>;
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
  for (int fragment = 0; fragment < kFragments; ++fragment, channel += channel_step) {
    // Fragments to rows. Registers take constant indices only, so each fragment has its own code.
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      if (i != fragment) continue;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const float(&v)[4] = accumulators[i][tile];
        float* to = staging + lane / 4 * kPitch + tile * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(to) = make_float2(v[0], v[1]);
        *reinterpret_cast<float2*>(to + 8 * kPitch) = make_float2(v[2], v[3]);
      }
    }
    __syncwarp();
    // Eight channels of one pixel a lane, which keeps them and their bias from row to row.
    constexpr int kRowsAtOnce = 32 / kTiles;  // Lanes that are left over rest.
    const int column = lane % kTiles * 8;
    const std::int64_t left = channel_end - channel - column;
    if (left <= 0 || lane / kTiles >= kRowsAtOnce) continue;
    const int count = left < 8 ? static_cast<int>(left) : 8;
    float bias[8];
    load_biases(out.epilogue, bias, channel + column, count);
    const float* from = staging + lane / kTiles * kPitch + column;
#pragma unroll 1
    for (int row = lane / kTiles; row < 16; row += kRowsAtOnce, from += kRowsAtOnce * kPitch) {
      const std::int64_t pixel = pixel_of(fragment, row);
      if (pixel < 0) continue;
      alignas(16) float v[8];
      *reinterpret_cast<float4*>(v) = *reinterpret_cast<const float4*>(from);
      *reinterpret_cast<float4*>(v + 4) = *reinterpret_cast<const float4*>(from + 4);
      store_channels(out, v, bias, pixel, channel + column, count);
    }
  }
}

#endif  // __CUDACC__

}  // namespace convoy
