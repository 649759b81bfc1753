// SPDX-License-Identifier: Apache-2.0
//
// Activations that are x times a logistic function of x·P(x²): SiLU and both GELUs. Plain C++; the
// device code is in gates.cuh.
#pragma once

#include "convoy/epilogue.hpp"

namespace convoy {

/// What 2 is raised to for SiLU of x.
constexpr float silu_exponent(float x) {
  return x * -1.44269504f;
}

/// P of degree 6, lowest coefficient first, each times -log2(e): what 2 is raised to.
struct GatePolynomial {
  float c[7] = {};
};

constexpr GatePolynomial gate_polynomial(const float (&coefficients)[7]) {
  GatePolynomial polynomial;
  for (int i = 0; i < 7; ++i) polynomial.c[i] = silu_exponent(coefficients[i]);
  return polynomial;
}

/// (1 + tanh(y)) / 2 is the logistic function of 2y. NOTE: no coefficient is zero, since zero times
/// an x² that overflows is NaN.
inline constexpr GatePolynomial kGeluTanhGate =
    gate_polynomial({1.59576912f, 0.0713548128f, 1e-20f, 1e-20f, 1e-20f, 1e-20f, 1e-20f});

/// The normal distribution function as a logistic one: P fitted to its logit on |x| < 6.5. The last
/// coefficient is positive (of degrees 5 and 7 it is not), and beyond that P has but to grow. The
/// error is at most 0.04·(2^-12·|GELU| + 2^-20), under the rounding of 16-bit outputs.
inline constexpr GatePolynomial kGeluGate =
    gate_polynomial({1.59573289f, 0.0727319066f, -9.985332e-05f, -0.000102893309f, 7.1255488e-06f,
                     -2.26495014e-07f, 2.86820213e-09f});

/// The gate of an activation that is a GELU.
constexpr const GatePolynomial& gelu_gate(Activation activation) {
  return activation == Activation::gelu_tanh ? kGeluTanhGate : kGeluGate;
}

}  // namespace convoy
