// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

/// The floating-point formats of tensor cores and of `cvt`, to and from float.
///
/// Every value of every narrow format is a float, so widening is exact. Narrowing goes through one
/// function, `encode`, which rounds once from a double (any float, half, bfloat16, and any integer
/// below 2^53 reaches it exactly). Sources: PTX ISA "cvt" (roundings, .satfinite, .relu, NaN
/// results), OCP "8-bit floating point" and "Microscaling formats" (bit layouts).
namespace vgpu::tensor {

/// A binary floating-point format with sign, exponent and mantissa bits (sign on top).
struct FloatFormat {
  const char* name;
  int bits;  ///< width of the value, at the low end of its container
  int exponent_bits;
  int mantissa_bits;
  int bias;
  bool is_signed;
  /// What the top of the code space holds: inf and NaN as in IEEE 754; one NaN code and no
  /// infinity (e4m3, ue8m0); or numbers only (e2m3, e3m2, e2m1).
  enum class Specials : uint8_t { ieee, nan_only, none } specials;
  uint32_t canonical_nan;  ///< what cvt writes for NaN (the largest number where there is no NaN)
};

extern const FloatFormat kF16, kBf16, kTf32, kE4m3, kE5m2, kE2m3, kE3m2, kE2m1, kUe8m0;

/// .rn nearest even, .rz toward zero, .rm down, .rp up, .rna nearest with ties away from zero.
/// NOTE: .rs (stochastic) is not modelled: its use of the random bits is not proven; exec refuses
/// it by name.
enum class Rounding : uint8_t { rn, rz, rm, rp, rna };

struct EncodeOptions {
  Rounding rounding = Rounding::rn;
  /// .satfinite: magnitudes past the largest finite number become it. Without it they overflow to
  /// infinity (or stay at the largest number where the rounding points there); formats without
  /// infinity exist only with it.
  bool satfinite = false;
  /// .relu: negative numbers (and -0) become +0; NaN stays the canonical NaN.
  bool relu = false;
};

/// Rounds `value` to `format` and returns its bits. tf32 values keep float's bit positions: the
/// low 13 bits are zero.
uint32_t encode(const FloatFormat& format, double value, EncodeOptions options = {});
/// The value of the low `format.bits` bits (tf32: of the float with the low 13 bits cleared).
float decode(const FloatFormat& format, uint32_t bits);

/// Rounds a double to float; `cvt.{rn,rz,rm,rp}.f32.f64`.
float round_to_f32(double value, Rounding rounding);
/// .sat: clamps to [0, 1]; NaN and -0 become +0.
template <typename Float>
inline Float saturate_unit(Float value) {
  return value > Float(0) ? (value < Float(1) ? value : Float(1)) : Float(0);
}

// Fast paths for the common formats; same results as decode / encode.
float f16_to_f32(uint16_t bits);
inline float bf16_to_f32(uint16_t bits) {
  uint32_t word = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}
/// Round to nearest even; NaN becomes 0x7fff.
uint16_t f32_to_f16(float value);
uint16_t f32_to_bf16(float value);
float e4m3_to_f32(uint8_t bits);
float e5m2_to_f32(uint8_t bits);
/// What a tensor core reads of a 32-bit tf32 operand: the low 13 bits are ignored.
inline float tf32_operand(uint32_t bits) {
  bits &= 0xffffe000u;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace vgpu::tensor
