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

/// x·logistic(t(x)) of four values for one reciprocal and an exponential each: the special-function
/// unit, 4 lanes a cycle, bounds epilogues that nothing hides. x and t have opposite signs. With
/// z = 2^-|t|, the factor is (x < 0 ? z : 1) / (1 + z), and the product of four denominators is at
/// most 16.
template <typename Exponent>
__device__ __forceinline__ void gate4(float* x, const Exponent& t) {
  float d[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // NOTE: the minimum of NaN and 150 is 150 (where z becomes 0): a NaN stays in its numerator and
    // out of the others' denominators.
    float z;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(z) : "f"(-fminf(fabsf(t(x[i])), 150.0f)));
    d[i] = 1.0f + z;
    asm("{\n.reg .pred negative;\n"
        "setp.lt.f32 negative, %0, 0f00000000;\n"
        "@negative mul.f32 %0, %0, %1;\n}"
        : "+f"(x[i])
        : "f"(z));
  }
  const float d01 = d[0] * d[1], d23 = d[2] * d[3];
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d01 * d23));
  const float r01 = r * d23, r23 = r * d01;
  x[0] *= r01 * d[1];
  x[1] *= r01 * d[0];
  x[2] *= r23 * d[3];
  x[3] *= r23 * d[2];
}

/// x·logistic(t(x)) of all values. `kHidden`: while others multiply. NOTE: measured with SiLU,
/// gate4 is slower there: fewer special functions, but more instructions.
template <bool kHidden, int kCount, typename Exponent>
__device__ __forceinline__ void gate(float (&v)[kCount], const Exponent& t) {
  static_assert(kCount % 4 == 0);
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    if constexpr (kHidden) {
#pragma unroll
      for (int j = i; j < i + 4; ++j) v[j] *= logistic(t(v[j]));
    } else {
      gate4(v + i, t);
    }
  }
}

}  // namespace convoy
