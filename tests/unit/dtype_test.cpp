// SPDX-License-Identifier: Apache-2.0
#include "convoy/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/reference.hpp"

namespace convoy {
namespace {

struct Format {
  const char* name;
  DType dtype;
  std::uint32_t exponent_mask;  ///< Bits of infinity.
};
constexpr Format kFormats[] = {{"bf16", DType::bf16, 0x7f80}, {"fp16", DType::fp16, 0x7c00}};

float widen(const Format& f, std::uint16_t bits) {
  return f.dtype == DType::bf16 ? float_from_bf16(bits) : float_from_fp16(bits);
}
std::uint16_t narrow(const Format& f, float value) {
  return f.dtype == DType::bf16 ? bf16_from_float(value) : fp16_from_float(value);
}

TEST(DType, EveryValueComesBackUnchanged) {
  for (const Format& f : kFormats) {
    for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
      const float value = widen(f, static_cast<std::uint16_t>(bits));
      const std::uint16_t back = narrow(f, value);
      const bool is_nan = (bits & 0x7fff) > f.exponent_mask;
      EXPECT_EQ(std::isnan(value), is_nan) << f.name << " " << bits;
      EXPECT_EQ(std::signbit(value), (bits & 0x8000) != 0) << f.name << " " << bits;
      if (is_nan) {
        // Quiet, with sign and payload kept.
        const std::uint32_t quiet_bit = f.dtype == DType::bf16 ? 0x40 : 0x200;
        EXPECT_EQ(back, bits | quiet_bit) << f.name;
      } else {
        EXPECT_EQ(back, bits) << f.name;
      }
    }
  }
}

TEST(DType, RoundsToNearestEvenBetweenEveryTwoNeighbours) {
  for (const Format& f : kFormats) {
    for (std::uint32_t bits = 0; bits < f.exponent_mask; ++bits) {
      const float low = widen(f, static_cast<std::uint16_t>(bits));
      // Above the largest finite value the grid goes on as if there were one more.
      const double high = bits + 1 == f.exponent_mask
                              ? static_cast<double>(low) + (low - widen(f, bits - 1))
                              : static_cast<double>(widen(f, static_cast<std::uint16_t>(bits + 1)));
      const auto middle = static_cast<float>((static_cast<double>(low) + high) / 2);
      const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
      const float below = std::nextafterf(middle, 0.0f);
      const float above = std::nextafterf(middle, std::numeric_limits<float>::infinity());
      EXPECT_EQ(narrow(f, middle), even) << f.name << " " << bits;
      EXPECT_EQ(narrow(f, below), bits) << f.name << " " << bits;
      EXPECT_EQ(narrow(f, above), bits + 1) << f.name << " " << bits;
      EXPECT_EQ(narrow(f, -middle), even | 0x8000) << f.name << " " << bits;
    }
  }
}

TEST(DType, ExtremesOfFloat) {
  for (const Format& f : kFormats) {
    const float infinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(narrow(f, infinity), f.exponent_mask);
    EXPECT_EQ(narrow(f, -infinity), f.exponent_mask | 0x8000);
    EXPECT_EQ(narrow(f, std::numeric_limits<float>::max()), f.exponent_mask);
    EXPECT_EQ(narrow(f, 0.0f), 0);
    EXPECT_EQ(narrow(f, -0.0f), 0x8000);
    EXPECT_EQ(narrow(f, std::numeric_limits<float>::denorm_min()), 0);
    EXPECT_TRUE(std::isnan(widen(f, narrow(f, std::nanf("")))));
  }
  EXPECT_EQ(fp16_from_float(65519.996f), 0x7bff);
  EXPECT_EQ(fp16_from_float(65520.0f), 0x7c00);
}

TEST(DType, AgreesWithTheReferenceRounding) {
  std::uint32_t state = 1;
  for (int i = 0; i < 2000000; ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = std::bit_cast<float>(state);
    if (std::isnan(value)) continue;
    for (const Format& f : kFormats) {
      ASSERT_EQ(static_cast<double>(round_to(f.dtype, value)),
                reference::round_fp64(f.dtype, value))
          << f.name << " " << std::hexfloat << value;
    }
  }
}

TEST(DType, LoadAndStoreElements) {
  std::uint16_t half[2] = {0, 0};
  float single[2] = {0, 0};
  store_element(half, 1, DType::bf16, 1.5f);
  EXPECT_EQ(half[1], 0x3fc0);
  EXPECT_EQ(load_element(half, 1, DType::bf16), 1.5f);
  store_element(half, 0, DType::fp16, -2.0f);
  EXPECT_EQ(half[0], 0xc000);
  EXPECT_EQ(load_element(half, 0, DType::fp16), -2.0f);
  store_element(single, 1, DType::fp32, 0.1f);
  EXPECT_EQ(load_element(single, 1, DType::fp32), 0.1f);
  EXPECT_EQ(single[0], 0.0f);
}

TEST(DType, Tf32RoundsToNearestTiesToEven) {
  const float cases[][2] = {
      {1.0f, 1.0f},
      {1.0f + 0x1p-11f, 1.0f},                        // a tie, down to even
      {1.0f + 0x3p-11f, 1.0f + 0x1p-9f},              // a tie, up to even
      {1.0f + 0x1p-11f + 0x1p-23f, 1.0f + 0x1p-10f},  // past the tie
      {-1.0f - 0x1p-12f, -1.0f},
      {2.0f - 0x1p-23f, 2.0f},  // a carry into the exponent
      {0x1.fffffep127f, std::numeric_limits<float>::infinity()},
  };
  for (const auto& [value, rounded] : cases) {
    EXPECT_EQ(reference::round_to_tf32(value), rounded) << value;
  }
  EXPECT_TRUE(std::isnan(reference::round_to_tf32(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::signbit(reference::round_to_tf32(-0.0f)));
}

}  // namespace
}  // namespace convoy
