// SPDX-License-Identifier: Apache-2.0
//
// What happens to the activation before it is convolved, on the device.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "convoy/prologue.hpp"
#include "kernels/common/epilogue.cuh"

namespace convoy {

/// kVec floats of an array that is aligned to 16 bytes.
template <int kVec>
__device__ __forceinline__ void load_floats(const float* from, float (&to)[kVec]) {
  if constexpr (kVec % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kVec; i += 4) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(from + i));
      to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kVec; ++i) to[i] = __ldg(from + i);
  }
}

/// Scale and shift of a vector of channels.
// NOTE: without a shift that is -0, which leaves every value and the sign of zeros.
template <int kVec>
struct ChannelFactors {
  float scale[kVec], shift[kVec];

  /// `first`: of [N, C] or [C], as the norm has it.
  __device__ __forceinline__ void load(const Prologue& prologue, std::int64_t first) {
    load_floats(prologue.scale + first, scale);
    if (prologue.norm == PrologueNorm::scale_shift) {
      load_floats(prologue.shift + first, shift);
    } else {
#pragma unroll
      for (float& s : shift) s = -0.0f;
    }
  }

  /// The same from shared memory, kVec a multiple of 4; `of_shift` is null without a shift.
  __device__ __forceinline__ void load_shared(const float* of_scale, const float* of_shift) {
#pragma unroll
    for (int i = 0; i < kVec; i += 4) {
      const float4 s = *reinterpret_cast<const float4*>(of_scale + i);
      scale[i] = s.x, scale[i + 1] = s.y, scale[i + 2] = s.z, scale[i + 3] = s.w;
      float4 t = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
      if (of_shift != nullptr) t = *reinterpret_cast<const float4*>(of_shift + i);
      shift[i] = t.x, shift[i + 1] = t.y, shift[i + 2] = t.z, shift[i + 3] = t.w;
    }
  }

  /// The norm: `inverse` is the pixel's factor, 1 with scale_shift.
  __device__ __forceinline__ void apply(float inverse, float (&v)[kVec]) const {
#pragma unroll
    for (int i = 0; i < kVec; ++i) v[i] = fmaf(v[i] * inverse, scale[i], shift[i]);
  }
};

}  // namespace convoy
