// SPDX-License-Identifier: Apache-2.0
//
// x times a logistic function, by the special-function unit: SiLU and both GELUs where outputs of
// 16 bits hide what that unit errs.
#pragma once

#include "kernels/common/gates.hpp"

namespace convoy {

/// 1 / (1 + 2^t): relative error some 1e-6.
__device__ __forceinline__ float logistic(float t) {
  float e, r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(t));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
  return r;
}

/// SiLU of x, given what 2 is raised to for it, t = c·x with c = -log2(e): t / (c + c·2^t).
/// Relative error some 1e-6. Where c·x overflows, beyond 2.3e38, infinity or NaN.
// NOTE: a multiplication less, where a scale or a bias is applied before and takes c. Fewer special
// functions for more multiplications are slower: epilogues share a scheduler with the MMAs of
// others, which leave them few cycles of the registers (docs/lab/2026-11-30-instructions.md).
__device__ __forceinline__ float silu_of_exponent(float t) {
  constexpr float c = silu_exponent(1.0f);
  float e, r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(t));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(fmaf(c, e, c)));
  return t * r;
}

/// x·P(x²), what 2 is raised to for a GELU.
__device__ __forceinline__ float gate_exponent(float x, const float (&c)[7]) {
  const float square = x * x;
  float polynomial = c[6];
#pragma unroll
  for (int k = 5; k >= 0; --k) polynomial = fmaf(polynomial, square, c[k]);
  return x * polynomial;
}

/// GELU, of whichever kind `gate` is.
__device__ __forceinline__ float gelu_of(float x, const GatePolynomial& gate) {
  return x * logistic(gate_exponent(x, gate.c));
}

}  // namespace convoy
