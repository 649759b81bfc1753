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
inline constexpr int kNormaliserUnroll = 1;

/// Which part of every patch a lane normalises: 8 channels of some pixels.
struct NormaliserLane {
  int unit;                                // of 8 channels
  int first, step;                         // pixels
  int row, column, row_step, column_step;  // the same
};

/// Of lane `lane` of warp `worker` of kWarps.
template <int kWarps, typename Params>
__device__ __forceinline__ NormaliserLane normaliser_lane(const Params& p, int worker, int lane) {
  const int units = p.block_bytes / 16;
  const int pixels = 32 / units;  // at a time, of a warp
  NormaliserLane me;
  const int pixel = lane / units;
  me.unit = lane - pixel * units;
  me.first = worker * pixels + pixel;
  me.step = kWarps * pixels;
  me.row = p.patch_width.divide(me.first);
  me.column = p.patch_width.remainder(me.first, me.row);
  me.row_step = p.patch_width.divide(me.step);
  me.column_step = p.patch_width.remainder(me.step, me.row_step);
  if (pixel == pixels) me.first = p.halo_height * p.halo_width;  // Has none.
  return me;
}

/// SiLU with the bits of __fdividef(x, 1.0f + __expf(-x)).
// NOTE: that has five instructions more for exponentials that are subnormal, whose sum with 1 is 1.
__device__ __forceinline__ void silu_of(float (&v)[8]) {
  float w[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(w[i]) : "f"(v[i] * -1.4426950408889634f));
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(w[i]) : "f"(1.0f + w[i]));
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] *= w[i];
}

/// Either GELU with the bits of the epilogue's.
template <Activation kKind, int kCount>
__device__ __forceinline__ void gelu_of(float (&v)[kCount][8]) {
  EpilogueParams kind{};
  kind.activation = kKind;
#pragma unroll
  for (int i = 0; i < kCount; ++i) activate(kind, v[i]);
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

/// Normalise a lane's share of the patch in a stage. `inverse_rms`: of its pixels, used with
/// `by_rms`. GELU only with kGelu.
// NOTE: pixels outside the input stay the zeros that TMA wrote: padding is of zeros, or is copied
// later.
// NOTE: the next pixels are read before these are worked on, and what is the same for all is kept
// in registers: measured, reads of shared memory and of constants one after the other cost more
// than the arithmetic of a pixel.
template <typename Element, bool kGelu, typename Params>
__device__ __forceinline__ void normalise_patch(const Params& p, const PatchOrigin& at,
                                                const NormaliserLane& me,
                                                const ChannelFactors<8>& factors,
                                                std::uint8_t* stage, bool by_rms,
                                                const float* inverse_rms) {
  int pixels = p.halo_height * p.halo_width, width = p.halo_width, pitch = p.inverse_rms_pitch;
  int in_height = p.in[0], in_width = p.in[1];
  int activation = static_cast<int>(p.prologue.activation);
  asm("" : "+r"(pixels), "+r"(width), "+r"(in_height), "+r"(in_width), "+r"(activation));  // kept
  if (by_rms) asm("" : "+r"(pitch));
  const int skipped = at.column & 3;

  struct Unit {
    uint4 raw;
    float inverse;
    int place;  // -1: outside
  };
  int pixel = me.first, row = me.row, column = me.column;
  const auto read = [&] {
    Unit unit;
    const bool is_inside =
        pixel < pixels && static_cast<unsigned>(at.row + row) < static_cast<unsigned>(in_height) &&
        static_cast<unsigned>(at.column + column) < static_cast<unsigned>(in_width);
    unit.place = is_inside ? pixel * 128 + (me.unit ^ (pixel & 7)) * 16 : -1;
    unit.raw = make_uint4(0, 0, 0, 0);
    unit.inverse = 1.0f;
    if (is_inside) unit.raw = *reinterpret_cast<const uint4*>(stage + unit.place);
    if (by_rms && is_inside) unit.inverse = inverse_rms[row * pitch + skipped + column];
    pixel += me.step;
    row += me.row_step;
    column += me.column_step;
    if (column >= width) {
      column -= width;
      ++row;
    }
    return unit;
  };

  Unit next[kNormaliserUnroll];
#pragma unroll
  for (Unit& unit : next) unit = read();
#pragma unroll 1
  for (int first = me.first; first < pixels; first += kNormaliserUnroll * me.step) {
    float v[kNormaliserUnroll][8];
    int places[kNormaliserUnroll];
    float inverses[kNormaliserUnroll];
#pragma unroll
    for (int i = 0; i < kNormaliserUnroll; ++i) {
      const std::uint32_t words[4] = {next[i].raw.x, next[i].raw.y, next[i].raw.z, next[i].raw.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) widen2<Element>(words[j], v[i][2 * j], v[i][2 * j + 1]);
      places[i] = next[i].place;
      inverses[i] = next[i].inverse;
      next[i] = read();
    }
#pragma unroll
    for (int i = 0; i < kNormaliserUnroll; ++i) {
      if (by_rms) {
#pragma unroll
        for (float& x : v[i]) x *= inverses[i];
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) v[i][j] = fmaf(v[i][j], factors.scale[j], factors.shift[j]);
    }
    if (activation == static_cast<int>(Activation::silu)) {
#pragma unroll
      for (int i = 0; i < kNormaliserUnroll; ++i) {
        silu_of(v[i]);
      }
    } else if (activation == static_cast<int>(Activation::relu)) {
#pragma unroll
      for (int i = 0; i < kNormaliserUnroll; ++i) {
#pragma unroll
        for (float& x : v[i]) x = x <= 0.0f ? 0.0f : x;
      }
    } else if constexpr (kGelu) {
      if (activation == static_cast<int>(Activation::gelu)) gelu_of<Activation::gelu>(v);
      if (activation == static_cast<int>(Activation::gelu_tanh)) gelu_of<Activation::gelu_tanh>(v);
    }
#pragma unroll
    for (int i = 0; i < kNormaliserUnroll; ++i) {
      ChannelVector<Element, 8> values;
      values.narrow(v[i]);
      if (places[i] >= 0) *reinterpret_cast<uint4*>(stage + places[i]) = values.wide;
    }
  }
}

}  // namespace convoy
