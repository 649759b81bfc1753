// SPDX-License-Identifier: Apache-2.0
#include "cpu/vector_math.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace convoy::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double ulps(float got, double exact) {
  const auto nearest = static_cast<float>(exact);
  const double ulp = std::nextafter(std::fabs(nearest), kInfinity) - std::fabs(nearest);
  return std::fabs(got - exact) / ulp;
}

template <typename Body>
void sweep(float low, float high, Body&& body) {
  for (int i = 0; i <= 200000; ++i) {
    body(low + (high - low) * (static_cast<float>(i) / 200000.0f));
  }
}

TEST(VectorMath, Exp) {
  sweep(-87.0f, 88.7f, [](float x) {
    ASSERT_LE(ulps(vector_exp(x), std::exp(static_cast<double>(x))), 2.0) << x;
  });
  // Subnormal results within one step of the smallest.
  sweep(-104.0f, -87.0f, [](float x) {
    ASSERT_NEAR(vector_exp(x), std::exp(static_cast<double>(x)), 0x1p-148) << x;
  });
  EXPECT_EQ(vector_exp(0.0f), 1.0f);
  EXPECT_EQ(vector_exp(89.0f), kInfinity);
  EXPECT_EQ(vector_exp(kInfinity), kInfinity);
  EXPECT_EQ(vector_exp(-kInfinity), 0.0f);
  EXPECT_TRUE(std::isnan(vector_exp(std::nanf(""))));
}

TEST(VectorMath, Tanh) {
  sweep(-12.0f, 12.0f, [](float x) {
    ASSERT_LE(ulps(vector_tanh(x), std::tanh(static_cast<double>(x))), 4.0) << x;
  });
  EXPECT_EQ(vector_tanh(kInfinity), 1.0f);
  EXPECT_EQ(vector_tanh(-kInfinity), -1.0f);
  EXPECT_EQ(vector_tanh(1e-20f), 1e-20f);
  EXPECT_TRUE(std::signbit(vector_tanh(-0.0f)));
  EXPECT_TRUE(std::isnan(vector_tanh(std::nanf(""))));
}

TEST(VectorMath, Sigmoid) {
  sweep(-80.0f, 80.0f, [](float x) {
    ASSERT_LE(ulps(vector_sigmoid(x), 1.0 / (1.0 + std::exp(-static_cast<double>(x)))), 4.0) << x;
  });
  EXPECT_EQ(vector_sigmoid(kInfinity), 1.0f);
  EXPECT_EQ(vector_sigmoid(-kInfinity), 0.0f);
  EXPECT_TRUE(std::isnan(vector_sigmoid(std::nanf(""))));
}

TEST(VectorMath, Erf) {
  sweep(-6.0f, 6.0f,
        [](float x) { ASSERT_NEAR(vector_erf(x), std::erf(static_cast<double>(x)), 4e-7) << x; });
  EXPECT_EQ(vector_erf(kInfinity), 1.0f);
  EXPECT_EQ(vector_erf(-kInfinity), -1.0f);
  EXPECT_TRUE(std::isnan(vector_erf(std::nanf(""))));
}

}  // namespace
}  // namespace convoy::cpu
