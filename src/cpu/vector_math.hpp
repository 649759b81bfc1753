// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace convoy::cpu {

// Elementary functions on fp32 without branches or calls, so that loops over them vectorise. NaN
// in, NaN out; infinities as the formula gives. Errors are stated against the exact value and
// checked in tests/unit/vector_math_test.cpp.

/// e^x within 2 ulp; infinity above 88.73, zero below -104, subnormals between.
inline float vector_exp(float x) {
  x = x > 90.0f ? 90.0f : x;
  x = x < -105.0f ? -105.0f : x;
  // x = n·ln 2 + r, |r| <= ln 2 / 2. Adding 1.5·2^23 rounds to the integer n and leaves it in the
  // low bits.
  const float shifted = x * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  float r = x - n * 0.693359375f;  // ln 2 in two parts: the first has few bits, so n·part is exact.
  r = r + n * 2.12194440e-4f;
  // Taylor series of e^r to r^7: the remainder is below 2^-27 on this range.
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // Multiply by 2^n in two steps, as 2^n alone may not be a normal number.
  const std::int32_t exponent =
      std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(12582912.0f);
  const std::int32_t half = exponent >> 1;
  const auto power = [](std::int32_t e) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(e + 127) << 23);
  };
  return p * power(half) * power(exponent - half);
}

/// 1 / (1 + e^-x).
inline float vector_sigmoid(float x) {
  return 1.0f / (1.0f + vector_exp(-x));
}

/// tanh x within 4 ulp: a series where the formula with e^2x would cancel.
inline float vector_tanh(float x) {
  const float magnitude = std::fabs(x);
  const float square = x * x;
  // x·(1 - x²/3 + 2x⁴/15 - 17x⁶/315 + 62x⁸/2835 - 1382x¹⁰/155925 + 21844x¹²/6081075)
  float series = 21844.0f / 6081075.0f;
  series = series * square - 1382.0f / 155925.0f;
  series = series * square + 62.0f / 2835.0f;
  series = series * square - 17.0f / 315.0f;
  series = series * square + 2.0f / 15.0f;
  series = series * square - 1.0f / 3.0f;
  const float small = x + x * square * series;
  const float large = 1.0f - 2.0f / (vector_exp(2.0f * magnitude) + 1.0f);
  const float result = magnitude < 0.4f ? std::fabs(small) : large;
  return std::copysign(result, x);
}

/// erf x within 4e-7 absolute: Abramowitz and Stegun, 7.1.26, and the series 7.1.5 for small x.
inline float vector_erf(float x) {
  const float magnitude = std::fabs(x);
  const float square = x * x;
  const float t = 1.0f / (1.0f + 0.3275911f * magnitude);
  float p = 1.061405429f;
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const float large = 1.0f - p * t * vector_exp(-square);
  // 2/sqrt(pi)·x·(1 - x²/3 + x⁴/10 - x⁶/42 + x⁸/216 - x¹⁰/1320)
  float series = -1.0f / 1320.0f;
  series = series * square + 1.0f / 216.0f;
  series = series * square - 1.0f / 42.0f;
  series = series * square + 1.0f / 10.0f;
  series = series * square - 1.0f / 3.0f;
  series = series * square + 1.0f;
  const float small = 1.12837917f * magnitude * series;
  return std::copysign(magnitude < 0.5f ? small : large, x);
}

}  // namespace convoy::cpu
