// SPDX-License-Identifier: Apache-2.0
#include "tensor/number_formats.hpp"

#include <immintrin.h>

#include <array>
#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>

#ifndef __F16C__
#error "vgpu is built for x86-64-v3 (AVX2, FMA, F16C): compile with -march=x86-64-v3"
#endif

namespace vgpu::tensor {

using Specials = FloatFormat::Specials;
const FloatFormat kF16{"f16", 16, 5, 10, 15, true, Specials::ieee, 0x7fff};
const FloatFormat kBf16{"bf16", 16, 8, 7, 127, true, Specials::ieee, 0x7fff};
const FloatFormat kTf32{"tf32", 32, 8, 10, 127, true, Specials::ieee, 0x7fffe000};
const FloatFormat kE4m3{"e4m3", 8, 4, 3, 7, true, Specials::nan_only, 0x7f};
const FloatFormat kE5m2{"e5m2", 8, 5, 2, 15, true, Specials::ieee, 0x7f};
const FloatFormat kE2m3{"e2m3", 6, 2, 3, 1, true, Specials::none, 0x1f};
const FloatFormat kE3m2{"e3m2", 6, 3, 2, 3, true, Specials::none, 0x1f};
const FloatFormat kE2m1{"e2m1", 4, 2, 1, 1, true, Specials::none, 0x7};
const FloatFormat kUe8m0{"ue8m0", 8, 8, 0, 127, false, Specials::nan_only, 0xff};

namespace {

/// tf32 lives in the upper 19 bits of a float.
int container_shift(const FloatFormat& format) {
  return &format == &kTf32 ? 13 : 0;
}

uint32_t exponent_ones(const FloatFormat& format) {
  return (1u << format.exponent_bits) - 1;
}

/// Code of the largest finite magnitude.
uint32_t largest_code(const FloatFormat& format) {
  uint32_t all_ones = (1u << (format.exponent_bits + format.mantissa_bits)) - 1;
  switch (format.specials) {
    case Specials::ieee:
      return (exponent_ones(format) << format.mantissa_bits) - 1;
    case Specials::nan_only:
      return all_ones - 1;
    case Specials::none:
      return all_ones;
  }
  return all_ones;
}

/// Rounds a non-negative number below 2^53 to an integer. `negative`: the sign it stands for.
uint64_t round_magnitude(double magnitude, Rounding rounding, bool negative) {
  auto whole = static_cast<uint64_t>(magnitude);
  double rest = magnitude - static_cast<double>(whole);
  bool up = false;
  switch (rounding) {
    case Rounding::rn:
      up = rest > 0.5 || (rest == 0.5 && (whole & 1));
      break;
    case Rounding::rna:
      up = rest >= 0.5;
      break;
    case Rounding::rz:
      break;
    case Rounding::rp:
      up = rest > 0 && !negative;
      break;
    case Rounding::rm:
      up = rest > 0 && negative;
      break;
  }
  return whole + (up ? 1 : 0);
}

/// ue8m0 holds powers of two only: code c is 2^(c - 127), 255 is NaN. The sign is ignored, as the
/// toolkit's own emulation does (cuda_fp8.hpp, __nv_cvt_bfloat16raw_to_e8m0).
uint32_t encode_ue8m0(double magnitude, EncodeOptions options) {
  if (std::isinf(magnitude)) return options.satfinite ? 0xfe : 0xff;
  if (magnitude <= std::ldexp(1.0, -127)) return 0;
  int exponent;
  double fraction = std::frexp(magnitude, &exponent);  // magnitude = fraction 2^exponent, [0.5, 1)
  bool exact = fraction == 0.5;
  int code = exponent - 1 + 127 + (!exact && options.rounding == Rounding::rp ? 1 : 0);
  if (code > 0xfe) return options.satfinite ? 0xfe : 0xff;
  return static_cast<uint32_t>(code < 0 ? 0 : code);
}

}  // namespace

uint32_t encode(const FloatFormat& format, double value, EncodeOptions options) {
  if (std::isnan(value)) return format.canonical_nan;
  bool negative = std::signbit(value);
  if (options.relu && negative) return 0;
  double magnitude = std::fabs(value);
  if (!format.is_signed) return encode_ue8m0(magnitude, options);

  const int mantissa = format.mantissa_bits;
  const uint32_t largest = largest_code(format);
  uint32_t code;
  if (std::isinf(magnitude)) {
    code = options.satfinite || format.specials != Specials::ieee ? largest : largest + 1;
  } else {
    // Exponent of the leading bit, at least that of the smallest normal number.
    int exponent = 1 - format.bias;
    if (magnitude != 0) exponent = std::max(exponent, std::ilogb(magnitude));
    if (exponent > format.bias + 1) {
      code = largest + 1;  // far out of range: keeps the scaled value below 2^53
    } else {
      uint64_t units =
          round_magnitude(std::ldexp(magnitude, mantissa - exponent), options.rounding, negative);
      // The hidden bit of `units` adds one to the exponent field; a carry adds another.
      uint64_t field = static_cast<uint64_t>(exponent + format.bias - 1) << mantissa;
      uint64_t wide = field + units;
      code = wide > largest ? largest + 1 : static_cast<uint32_t>(wide);
    }
    if (code > largest) {
      bool toward_zero = options.rounding == Rounding::rz ||
                         (options.rounding == Rounding::rp && negative) ||
                         (options.rounding == Rounding::rm && !negative);
      if (options.satfinite || toward_zero || format.specials != Specials::ieee) code = largest;
    }
  }
  if (negative) code |= 1u << (format.exponent_bits + mantissa);
  return code << container_shift(format);
}

float decode(const FloatFormat& format, uint32_t bits) {
  if (&format == &kTf32) return tf32_operand(bits);
  const int mantissa = format.mantissa_bits;
  uint32_t fraction = bits & ((1u << mantissa) - 1);
  uint32_t exponent = (bits >> mantissa) & exponent_ones(format);
  bool negative = format.is_signed && (bits >> (format.exponent_bits + mantissa) & 1);
  float nan = std::numeric_limits<float>::quiet_NaN();
  float magnitude;
  if (!format.is_signed) {
    if (exponent == 0xff) return nan;
    return std::ldexp(1.0f, static_cast<int>(exponent) - format.bias);
  }
  if (format.specials == Specials::ieee && exponent == exponent_ones(format)) {
    if (fraction != 0) return nan;
    magnitude = std::numeric_limits<float>::infinity();
  } else if (format.specials == Specials::nan_only && exponent == exponent_ones(format) &&
             fraction == (1u << mantissa) - 1) {
    return nan;
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(fraction), 1 - format.bias - mantissa);
  } else {
    magnitude = std::ldexp(static_cast<float>(fraction + (1u << mantissa)),
                           static_cast<int>(exponent) - format.bias - mantissa);
  }
  return negative ? -magnitude : magnitude;
}

float round_to_f32(double value, Rounding rounding) {
  auto nearest = static_cast<float>(value);
  if (rounding == Rounding::rn || std::isnan(value) || std::isinf(value)) return nearest;
  if (rounding == Rounding::rna) {
    // Ties away from zero: only differs from nearest-even exactly half way between two floats.
    float outward = std::nextafter(nearest, value > 0 ? INFINITY : -INFINITY);
    double middle = (static_cast<double>(nearest) + static_cast<double>(outward)) / 2;
    return middle == value && std::isfinite(outward) ? outward : nearest;
  }
  bool toward_zero_moves_down = value > 0;
  bool want_down = rounding == Rounding::rm || (rounding == Rounding::rz && toward_zero_moves_down);
  auto rounded = static_cast<double>(nearest);
  if (want_down && rounded > value) return std::nextafter(nearest, -INFINITY);
  if (!want_down && rounded < value) return std::nextafter(nearest, INFINITY);
  return nearest;
}

float f16_to_f32(uint16_t bits) {
  return _cvtsh_ss(bits);
}

uint16_t f32_to_f16(float value) {
  if (value != value) return 0x7fff;
  return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
}

uint16_t f32_to_bf16(float value) {
  if (value != value) return 0x7fff;
  auto word = std::bit_cast<uint32_t>(value);
  word += 0x7fff + (word >> 16 & 1);
  return static_cast<uint16_t>(word >> 16);
}

namespace {

std::array<float, 256> make_table(const FloatFormat& format) {
  std::array<float, 256> table{};
  for (uint32_t code = 0; code < 256; ++code) table[code] = decode(format, code);
  return table;
}

}  // namespace

float e4m3_to_f32(uint8_t bits) {
  static const std::array<float, 256> table = make_table(kE4m3);
  return table[bits];
}

float e5m2_to_f32(uint8_t bits) {
  static const std::array<float, 256> table = make_table(kE5m2);
  return table[bits];
}

}  // namespace vgpu::tensor
