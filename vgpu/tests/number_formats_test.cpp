// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tensor/number_formats.hpp"

namespace vgpu::tensor {
namespace {

/// All finite numbers of a format in increasing code order of their magnitude (sign bit clear).
std::vector<double> magnitudes(const FloatFormat& format) {
  std::vector<double> values;
  int width = format.bits == 32 ? 19 : format.bits;
  int shift = format.bits == 32 ? 13 : 0;
  for (uint32_t code = 0; code < 1u << (width - (format.is_signed ? 1 : 0)); ++code) {
    float value = decode(format, code << shift);
    if (!std::isfinite(value)) break;
    values.push_back(value);
  }
  return values;
}

/// Nearest code by search, independent of the arithmetic in encode().
uint32_t search(const std::vector<double>& values, double magnitude, Rounding rounding,
                bool negative) {
  size_t high = std::lower_bound(values.begin(), values.end(), magnitude) - values.begin();
  if (high == values.size()) return static_cast<uint32_t>(high - 1);
  if (values[high] == magnitude || high == 0) return static_cast<uint32_t>(high);
  size_t low = high - 1;
  double below = magnitude - values[low], above = values[high] - magnitude;
  bool up = false;
  switch (rounding) {
    case Rounding::rn:
      up = above < below || (above == below && low % 2 == 1);
      break;
    case Rounding::rna:
      up = above <= below;
      break;
    case Rounding::rz:
      up = false;
      break;
    case Rounding::rp:
      up = !negative;
      break;
    case Rounding::rm:
      up = negative;
      break;
  }
  return static_cast<uint32_t>(up ? high : low);
}

TEST(NumberFormats, KnownValues) {
  EXPECT_EQ(decode(kE4m3, 0x7e), 448.0f);
  EXPECT_TRUE(std::isnan(decode(kE4m3, 0x7f)));
  EXPECT_TRUE(std::isnan(decode(kE4m3, 0xff)));
  EXPECT_EQ(decode(kE4m3, 0x01), 0x1p-9f);
  EXPECT_EQ(decode(kE4m3, 0xb8), -1.0f);
  EXPECT_EQ(decode(kE5m2, 0x7b), 57344.0f);
  EXPECT_TRUE(std::isinf(decode(kE5m2, 0x7c)));
  EXPECT_TRUE(std::isnan(decode(kE5m2, 0x7d)));
  EXPECT_EQ(decode(kE2m3, 0x1f), 7.5f);
  EXPECT_EQ(decode(kE2m3, 0x01), 0.125f);
  EXPECT_EQ(decode(kE3m2, 0x1f), 28.0f);
  EXPECT_EQ(decode(kE3m2, 0x01), 0.0625f);
  const float fp4[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (uint32_t code = 0; code < 8; ++code) {
    EXPECT_EQ(decode(kE2m1, code), fp4[code]);
    EXPECT_EQ(decode(kE2m1, code | 8), -fp4[code]);
  }
  EXPECT_EQ(decode(kUe8m0, 0), 0x1p-127f);
  EXPECT_EQ(decode(kUe8m0, 127), 1.0f);
  EXPECT_TRUE(std::isnan(decode(kUe8m0, 255)));
  EXPECT_EQ(decode(kF16, 0x7bff), 65504.0f);
  EXPECT_EQ(decode(kBf16, 0x3f80), 1.0f);
}

TEST(NumberFormats, EveryCodeSurvives) {
  for (const FloatFormat* format : {&kF16, &kBf16, &kE4m3, &kE5m2, &kE2m3, &kE3m2, &kE2m1}) {
    for (uint32_t code = 0; code < 1u << format->bits; ++code) {
      float value = decode(*format, code);
      if (std::isnan(value)) continue;
      EXPECT_EQ(encode(*format, value), code) << format->name << " " << code;
    }
  }
  for (uint32_t code = 0; code < 255; ++code) EXPECT_EQ(encode(kUe8m0, decode(kUe8m0, code)), code);
}

TEST(NumberFormats, RoundsAsSearched) {
  std::mt19937 random(7);
  for (const FloatFormat* format :
       {&kF16, &kBf16, &kTf32, &kE4m3, &kE5m2, &kE2m3, &kE3m2, &kE2m1}) {
    std::vector<double> values = magnitudes(*format);
    int shift = format == &kTf32 ? 13 : 0;
    std::uniform_int_distribution<size_t> pick(0, values.size() - 2);
    for (int trial = 0; trial < 4000; ++trial) {
      size_t at = pick(random);
      // A number between two neighbours: a tie every fourth time, an exact value every eighth.
      double fraction = trial % 4 == 0 ? 0.5 : trial % 8 == 1 ? 0.0 : (random() % 1024) / 1024.0;
      double magnitude = values[at] + fraction * (values[at + 1] - values[at]);
      for (bool negative : {false, true}) {
        for (Rounding rounding :
             {Rounding::rn, Rounding::rz, Rounding::rm, Rounding::rp, Rounding::rna}) {
          uint32_t expected = search(values, magnitude, rounding, negative);
          uint32_t sign = negative ? 1u << (format->exponent_bits + format->mantissa_bits) : 0;
          EXPECT_EQ(encode(*format, negative ? -magnitude : magnitude, {rounding}),
                    (expected | sign) << shift)
              << format->name << " " << magnitude << " rounding " << static_cast<int>(rounding);
        }
      }
    }
  }
}

TEST(NumberFormats, OverflowAndNan) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(encode(kF16, 1e6), 0x7c00u);
  EXPECT_EQ(encode(kF16, -1e6), 0xfc00u);
  EXPECT_EQ(encode(kF16, 65519.0), 0x7bffu);
  EXPECT_EQ(encode(kF16, 65520.0), 0x7c00u);
  EXPECT_EQ(encode(kF16, 1e6, {Rounding::rz}), 0x7bffu);
  EXPECT_EQ(encode(kF16, 1e6, {Rounding::rm}), 0x7bffu);
  EXPECT_EQ(encode(kF16, -1e6, {Rounding::rm}), 0xfc00u);
  EXPECT_EQ(encode(kF16, inf, {Rounding::rz}), 0x7c00u);
  EXPECT_EQ(encode(kF16, inf, {.satfinite = true}), 0x7bffu);
  EXPECT_EQ(encode(kF16, NAN), 0x7fffu);
  EXPECT_EQ(encode(kBf16, 3.4e38), 0x7f80u);
  EXPECT_EQ(encode(kBf16, 3.4e38, {.satfinite = true}), 0x7f7fu);
  EXPECT_EQ(encode(kE4m3, 1000, {.satfinite = true}), 0x7eu);
  EXPECT_EQ(encode(kE4m3, -inf, {.satfinite = true}), 0xfeu);
  EXPECT_EQ(encode(kE4m3, NAN, {.satfinite = true}), 0x7fu);
  EXPECT_EQ(encode(kE5m2, 1e9, {.satfinite = true}), 0x7bu);
  EXPECT_EQ(encode(kE5m2, NAN, {.satfinite = true}), 0x7fu);
  EXPECT_EQ(encode(kE2m1, 100, {.satfinite = true}), 0x7u);
  EXPECT_EQ(encode(kE2m1, NAN, {.satfinite = true}), 0x7u);
  EXPECT_EQ(encode(kE2m3, NAN, {.satfinite = true}), 0x1fu);
  EXPECT_EQ(encode(kE3m2, -100, {.satfinite = true}), 0x3fu);
  EXPECT_EQ(encode(kTf32, NAN), 0x7fffe000u);
  EXPECT_EQ(encode(kF16, -2.0, {.relu = true}), 0u);
  EXPECT_EQ(encode(kF16, -0.0, {.relu = true}), 0u);
  EXPECT_EQ(encode(kF16, 2.0, {.relu = true}), 0x4000u);
}

TEST(NumberFormats, Ue8m0IsAPowerOfTwo) {
  EXPECT_EQ(encode(kUe8m0, 3.0, {Rounding::rz, true}), 128u);
  EXPECT_EQ(encode(kUe8m0, 3.0, {Rounding::rp, true}), 129u);
  EXPECT_EQ(encode(kUe8m0, 4.0, {Rounding::rp, true}), 129u);
  EXPECT_EQ(encode(kUe8m0, 0.0, {Rounding::rp, true}), 0u);
  EXPECT_EQ(encode(kUe8m0, 0x1.8p127, {Rounding::rp, true}), 254u);
  EXPECT_EQ(encode(kUe8m0, NAN, {Rounding::rz, true}), 255u);
}

TEST(NumberFormats, FastPathsAgree) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200000; ++trial) {
    uint32_t bits = random();
    float value;
    std::memcpy(&value, &bits, 4);
    ASSERT_EQ(f32_to_f16(value), encode(kF16, value)) << bits;
    ASSERT_EQ(f32_to_bf16(value), encode(kBf16, value)) << bits;
  }
  for (uint32_t code = 0; code < 65536; ++code) {
    float half = decode(kF16, code), brain = decode(kBf16, code);
    if (std::isnan(half)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(static_cast<uint16_t>(code))));
    } else {
      EXPECT_EQ(f16_to_f32(static_cast<uint16_t>(code)), half);
    }
    if (!std::isnan(brain)) {
      EXPECT_EQ(bf16_to_f32(static_cast<uint16_t>(code)), brain);
    }
  }
  for (uint32_t code = 0; code < 256; ++code) {
    float a = decode(kE4m3, code), b = decode(kE5m2, code);
    if (!std::isnan(a)) {
      EXPECT_EQ(e4m3_to_f32(static_cast<uint8_t>(code)), a);
    }
    if (!std::isnan(b)) {
      EXPECT_EQ(e5m2_to_f32(static_cast<uint8_t>(code)), b);
    }
  }
}

TEST(NumberFormats, DoubleToFloat) {
  double above = 1.0 + 0x1p-30, middle = 1.0 + 0x1p-24;
  float next = std::nextafter(1.0f, 2.0f);
  EXPECT_EQ(round_to_f32(above, Rounding::rn), 1.0f);
  EXPECT_EQ(round_to_f32(above, Rounding::rp), next);
  EXPECT_EQ(round_to_f32(above, Rounding::rz), 1.0f);
  EXPECT_EQ(round_to_f32(-above, Rounding::rm), -next);
  EXPECT_EQ(round_to_f32(-above, Rounding::rz), -1.0f);
  EXPECT_EQ(round_to_f32(-above, Rounding::rp), -1.0f);
  EXPECT_EQ(round_to_f32(middle, Rounding::rn), 1.0f);
  EXPECT_EQ(round_to_f32(middle, Rounding::rna), next);
  EXPECT_EQ(saturate_unit(-0.0f), 0.0f);
  EXPECT_FALSE(std::signbit(saturate_unit(-0.0f)));
  EXPECT_EQ(saturate_unit(2.0f), 1.0f);
  EXPECT_EQ(saturate_unit(std::numeric_limits<float>::quiet_NaN()), 0.0f);
}

}  // namespace
}  // namespace vgpu::tensor
