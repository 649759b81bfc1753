// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "tensor/number_formats.hpp"

/// Scalar floating-point arithmetic as PTX defines it: NaN results, flushed subnormals, saturation,
/// half precision with one rounding. Source: PTX ISA 9.0, "Floating-Point Instructions".
namespace vgpu::exec {

/// Integers never are.
template <typename T>
inline bool is_nan(T value) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(value);
  return false;
}

/// NOTE: Single-precision NaN results are the canonical NaN 0x7fffffff (PTX ISA, "Floating-Point
/// Instructions").
inline float canonical(float value) {
  return is_nan(value) ? std::bit_cast<float>(0x7fffffffu) : value;
}
inline double canonical(double value) {
  return value;
}

inline float flush(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  return (bits & 0x7f800000u) == 0 ? std::bit_cast<float>(bits & 0x80000000u) : value;
}
inline double flush(double value) {
  return value;
}

template <typename T>
inline T saturate_unit(T value) {
  return value > T(0) ? (value < T(1) ? value : T(1)) : T(0);
}

/// The number, when one operand is NaN; -0 is less than +0.
template <typename T>
inline T min_number(T a, T b) {
  T less = a < b ? a : (a == b ? (std::signbit(a) ? a : b) : b);
  return is_nan(a) ? b : (is_nan(b) ? a : less);
}
template <typename T>
inline T max_number(T a, T b) {
  T more = b < a ? a : (a == b ? (std::signbit(a) ? b : a) : b);
  return is_nan(a) ? b : (is_nan(b) ? a : more);
}

/// x + y in double, rounded to odd: a later rounding to a narrower format is then exact as if done
/// once (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums").
inline double add_round_to_odd(double x, double y) {
  double sum = x + y;
  if (!std::isfinite(sum)) return sum;
  double back = sum - x;
  double error = (x - (sum - back)) + (y - back);
  auto bits = std::bit_cast<uint64_t>(sum);
  if (error == 0 || (bits & 1)) return sum;
  bool up = (error > 0) == (sum > 0);
  return std::bit_cast<double>(up ? bits + 1 : bits - 1);
}

/// The two 16-bit formats of arithmetic, held in uint16_t.
struct Half {
  static float widen(uint16_t bits) { return tensor::f16_to_f32(bits); }
  static uint16_t narrow(float value) { return is_nan(value) ? 0x7fff : tensor::f32_to_f16(value); }
  static uint16_t narrow(double value) {
    return is_nan(value) ? 0x7fff : static_cast<uint16_t>(tensor::encode(tensor::kF16, value));
  }
  static constexpr int kMinExponent = -14;
};
struct Bfloat16 {
  static float widen(uint16_t bits) { return tensor::bf16_to_f32(bits); }
  static uint16_t narrow(float value) { return tensor::f32_to_bf16(value); }
  static uint16_t narrow(double value) {
    return is_nan(value) ? 0x7fff : static_cast<uint16_t>(tensor::encode(tensor::kBf16, value));
  }
  static constexpr int kMinExponent = -126;
};

}  // namespace vgpu::exec
