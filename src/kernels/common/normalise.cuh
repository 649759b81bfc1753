// SPDX-License-Identifier: Apache-2.0
//
// The prologue in shared memory: the pixels of a patch are normalised where TMA has put them.
//
// `Params`, the launch parameters of either architecture, say what border.cuh wants, and
//   block_bytes        of a pixel's 128 those that are loaded
//   patch_width        halo_width, to divide by
//   inverse_rms_pitch  floats from a row of a patch's inverse RMS to the next
//   prologue
#pragma once

#include "kernels/common/border.cuh"
#include "kernels/common/channel_vector.cuh"
#include "kernels/common/prologue.cuh"

namespace convoy {

/// Pixels that a lane has under way at the same time.
// NOTE: a warp waits for its own results longer than it computes: with one pixel the 128x128 tile
// takes 5 % longer (docs/lab/2026-11-24-normaliser.md).
inline constexpr int kNormaliserPixels = 2;

/// Which part of every patch a lane normalises: 8 channels of some pixels.
// NOTE: what follows from these is worked out anew for each patch: registers are short.
struct NormaliserLane {
  int unit;         // of 8 channels
  int first, step;  // pixels

  /// Bytes from a stage's begin to the first pixel's unit.
  __device__ __forceinline__ int place() const { return first * 128 + (unit ^ (first & 7)) * 16; }
};

/// Of lane `lane` of warp `worker` of kWarps.
// NOTE: a step is a multiple of 8 pixels, the period of TMA's 128-byte swizzle, so that a lane's
// unit lies at the same place of every pixel that is its.
template <int kWarps, typename Params>
__device__ __forceinline__ NormaliserLane normaliser_lane(const Params& p, int worker, int lane) {
  static_assert(kWarps % 2 == 0, "normaliser_lane: two warps take four pixels each");
  const int units = p.block_bytes / 16;
  const int pixels = units > 4 ? 4 : units > 2 ? 8 : units > 1 ? 16 : 32;  // at a time, of a warp
  NormaliserLane me;
  const int pixel = lane / units;
  me.unit = lane - pixel * units;
  me.first = worker * pixels + pixel;
  me.step = kWarps * pixels;
  if (pixel >= pixels) me.first = p.halo_height * p.halo_width;  // Has none.
  return me;
}

/// The pixels of a lane, row by row. `index`: of one in an array whose rows lie `pitch` apart.
struct PixelWalk {
  int column, index, column_step, index_step, width, turn;

  template <typename Params>
  __device__ __forceinline__ PixelWalk(const Params& p, const NormaliserLane& me, int pitch) {
    const int row = p.patch_width.divide(me.first), rows = p.patch_width.divide(me.step);
    width = p.halo_width;
    column = p.patch_width.remainder(me.first, row);
    column_step = p.patch_width.remainder(me.step, rows);
    index = row * pitch + column;
    index_step = rows * pitch + column_step;
    turn = pitch - width;
  }

  __device__ __forceinline__ void advance() {
    column += column_step;
    index += index_step;
    if (column >= width) {
      column -= width;
      index += turn;
    }
  }
};

/// SiLU with the bits of __fdividef(x, 1.0f + __expf(-x)).
// NOTE: that has five instructions more for exponentials that are subnormal, whose sum with 1 is 1.
__device__ __forceinline__ float silu_of(float x) {
  float exponential, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(exponential) : "f"(x * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + exponential));
  return x * inverse;
}

/// The activation of all values; GELUs with the bits of the epilogue's.
template <Activation kActivation, int kCount>
__device__ __forceinline__ void activate_units(float (&v)[kCount][8]) {
  if constexpr (kActivation == Activation::none) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (kActivation == Activation::silu) {
#pragma unroll
      for (float& x : v[i]) x = silu_of(x);
    } else if constexpr (kActivation == Activation::relu) {
#pragma unroll
      for (float& x : v[i]) x = x <= 0.0f ? 0.0f : x;
    } else {
      EpilogueParams kind{};
      kind.activation = kActivation;
      activate(kind, v[i]);
    }
  }
}

/// Two neighbouring channels.
template <typename Element>
__device__ __forceinline__ void widen2(std::uint32_t pair, float& low, float& high) {
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    low = __uint_as_float(pair << 16);
    high = __uint_as_float(pair & 0xffff0000u);
  } else {
    const float2 both = unpack2<Element>(pair);
    low = both.x, high = both.y;
  }
}

/// normalise_patch, of one kind of norm and activation.
template <typename Element, bool kByRms, Activation kActivation, typename Params>
__device__ __forceinline__ void normalise_pixels(const Params& p, const PatchOrigin& at,
                                                 const NormaliserLane& me,
                                                 const ChannelFactors<8>& factors,
                                                 std::uint8_t* stage, const float* inverse_rms) {
  constexpr int kCount = kNormaliserPixels;
  const int place_step = me.step * 128;
  inverse_rms += at.column & 3;
  PixelWalk walk(p, me, p.inverse_rms_pitch);
  std::uint8_t* place = stage + me.place();
  uint4 raw[kCount];
  float inverse[kCount];
  int left = p.halo_height * p.halo_width - me.first;
  const auto read = [&](std::uint8_t* from, int count) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (count > i * me.step) {
        raw[i] = *reinterpret_cast<const uint4*>(from + i * place_step);
        if constexpr (kByRms) inverse[i] = inverse_rms[walk.index];
      }
      if constexpr (kByRms) walk.advance();
    }
  };
  read(place, left);
#pragma unroll 1
  for (; left > 0; left -= kCount * me.step) {
    float v[kCount][8];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const std::uint32_t words[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) widen2<Element>(words[j], v[i][2 * j], v[i][2 * j + 1]);
      if constexpr (kByRms) {
#pragma unroll
        for (float& x : v[i]) x *= inverse[i];
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) v[i][j] = fmaf(v[i][j], factors.scale[j], factors.shift[j]);
    }
    read(place + kCount * place_step, left - kCount * me.step);
    activate_units<kActivation>(v);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      ChannelVector<Element, 8> values;
      values.narrow(v[i]);
      if (left > i * me.step) *reinterpret_cast<uint4*>(place + i * place_step) = values.wide;
    }
    place += kCount * place_step;
  }
}

/// Zeros again where a lane's pixels of a patch lie outside the input.
template <typename Params>
__device__ __forceinline__ void restore_zeros(const Params& p, const PatchOrigin& at,
                                              const NormaliserLane& me, std::uint8_t* stage) {
  std::uint8_t* place = stage + me.place();
  for (int pixel = me.first; pixel < p.halo_height * p.halo_width; pixel += me.step) {
    const int row = p.patch_width.divide(pixel);
    const int column = p.patch_width.remainder(pixel, row);
    const bool is_inside =
        static_cast<unsigned>(at.row + row) < static_cast<unsigned>(p.in[0]) &&
        static_cast<unsigned>(at.column + column) < static_cast<unsigned>(p.in[1]);
    if (!is_inside) *reinterpret_cast<uint4*>(place) = make_uint4(0, 0, 0, 0);
    place += me.step * 128;
  }
}

/// Normalise a lane's share of the patch in a stage. `inverse_rms`: of its pixels, used with
/// `by_rms`. GELU only with kGelu.
// NOTE: pixels outside the input are the zeros that TMA wrote, and are again afterwards: padding is
// of zeros, or is copied later.
template <typename Element, bool kGelu, typename Params>
__device__ __forceinline__ void normalise_patch(const Params& p, const PatchOrigin& at,
                                                const NormaliserLane& me,
                                                const ChannelFactors<8>& factors,
                                                std::uint8_t* stage, bool by_rms,
                                                const float* inverse_rms) {
  const auto normalise = [&]<Activation kActivation>() {
    if (by_rms) {
      normalise_pixels<Element, true, kActivation>(p, at, me, factors, stage, inverse_rms);
    } else {
      normalise_pixels<Element, false, kActivation>(p, at, me, factors, stage, inverse_rms);
    }
  };
  if (p.prologue.activation == Activation::silu) {
    normalise.template operator()<Activation::silu>();
  } else if (p.prologue.activation == Activation::relu) {
    normalise.template operator()<Activation::relu>();
  } else if (p.prologue.activation == Activation::none) {
    normalise.template operator()<Activation::none>();
  } else if constexpr (kGelu) {
    if (p.prologue.activation == Activation::gelu) {
      normalise.template operator()<Activation::gelu>();
    } else {
      normalise.template operator()<Activation::gelu_tanh>();
    }
  }
  const bool is_inner = at.row >= 0 && at.row + p.halo_height <= p.in[0] && at.column >= 0 &&
                        at.column + p.halo_width <= p.in[1];
  if (!is_inner) restore_zeros(p, at, me, stage);
}

}  // namespace convoy
