// SPDX-License-Identifier: Apache-2.0
//
// Activations that are x times a logistic function of x·P(x²): SiLU and both GELUs. Plain C++; the
// device code is in gates.cuh.
#pragma once

namespace convoy {

/// What 2 is raised to for SiLU of x.
constexpr float silu_exponent(float x) {
  return x * -1.44269504f;
}

/// P of degree 4, lowest coefficient first, each times -log2(e): what 2 is raised to.
struct GatePolynomial {
  float c[5] = {};
};

constexpr GatePolynomial gate_polynomial(float c0, float c1, float c2, float c3, float c4) {
  constexpr float kFactor = -1.44269504f;
  return {{c0 * kFactor, c1 * kFactor, c2 * kFactor, c3 * kFactor, c4 * kFactor}};
}

/// (1 + tanh(y)) / 2 is the logistic function of 2y. NOTE: no coefficient is zero, since zero times
/// an x² that overflows is NaN.
inline constexpr GatePolynomial kGeluTanhGate =
    gate_polynomial(1.59576912f, 0.0713548128f, 1e-20f, 1e-20f, 1e-20f);

/// The normal distribution function as a logistic one: P fitted to its logit on |x| < 6 so that the
/// last coefficient is positive, since beyond that P has but to grow. The error is at most
/// 0.61·(2^-12·|GELU| + 2^-20), under the rounding of 16-bit outputs.
inline constexpr GatePolynomial kGeluGate = gate_polynomial(
    1.59513523f, 0.0736167493f, -0.000485901166f, -3.20810336e-05f, 1.10956184e-06f);

}  // namespace convoy
