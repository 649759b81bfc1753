// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "convoy/types.hpp"

namespace convoy {

// Conversions between fp32 and the 16-bit types, on their bits. Rounding is to nearest, ties to
// even (IEEE 754-2019, 4.3.1). A NaN stays a NaN: quiet, with its sign and upper payload bits.

/// The value of a bf16's bits. Exact.
constexpr float float_from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// The bits of the nearest bf16.
constexpr std::uint16_t bf16_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  if (is_nan) return static_cast<std::uint16_t>((bits >> 16) | 0x0040u);
  // Add just under half of the last kept bit, plus that bit itself: ties go to even.
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// The value of an fp16's bits. Exact.
constexpr float float_from_fp16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) {  // Infinity or NaN.
    const std::uint32_t quiet = mantissa != 0 ? 0x00400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | quiet | (mantissa << 13));
  }
  if (exponent == 0) {  // Zero or subnormal: mantissa · 2^-24, exact in fp32.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

/// The bits of the nearest fp16; infinity from 65520 on.
constexpr std::uint16_t fp16_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  // 65520 is half way between the largest finite value and 2^16: it and all above round to
  // infinity.
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // Below 2^-14: subnormal. Let the fp32 adder round at 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(
        sign | (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5f)));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

/// Element `i` of an array of `dtype`, as fp32. Exact.
inline float load_element(const void* data, std::int64_t i, DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return float_from_bf16(static_cast<const std::uint16_t*>(data)[i]);
    case DType::fp16:
      return float_from_fp16(static_cast<const std::uint16_t*>(data)[i]);
    case DType::fp32:
      break;
  }
  return static_cast<const float*>(data)[i];
}

/// Round `value` into element `i` of an array of `dtype`.
inline void store_element(void* data, std::int64_t i, DType dtype, float value) {
  switch (dtype) {
    case DType::bf16:
      static_cast<std::uint16_t*>(data)[i] = bf16_from_float(value);
      return;
    case DType::fp16:
      static_cast<std::uint16_t*>(data)[i] = fp16_from_float(value);
      return;
    case DType::fp32:
      break;
  }
  static_cast<float*>(data)[i] = value;
}

/// `value` rounded to `dtype` and back.
constexpr float round_to(DType dtype, float value) {
  switch (dtype) {
    case DType::bf16:
      return float_from_bf16(bf16_from_float(value));
    case DType::fp16:
      return float_from_fp16(fp16_from_float(value));
    case DType::fp32:
      break;
  }
  return value;
}

}  // namespace convoy
