// SPDX-License-Identifier: Apache-2.0
#include "tensor/cut_sum.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace vgpu::tensor {
namespace {

float sum_of(float sum, const std::vector<float>& products) {
  const std::vector<float> ones(products.size(), 1.0f);
  return cut_sum(sum, products.data(), 1, ones.data(), 1, static_cast<uint32_t>(products.size()));
}

TEST(CutSum, CutsOffTowardsZero) {
  EXPECT_EQ(sum_of(1.0f, {0x1p-23f}), 1.0f + 0x1p-23f);
  EXPECT_EQ(sum_of(1.0f, {0x1.fp-24f}), 1.0f);  // To nearest it would be the next number.
  EXPECT_EQ(sum_of(-1.0f, {-0x1.fp-24f}), -1.0f);
  EXPECT_EQ(sum_of(1.0f, {0x1.fp-24f, 0x1.fp-24f}), 1.0f) << "each addend is cut off by itself";
  EXPECT_EQ(sum_of(0x1p24f, {1.0f, 1.0f, -0x1p24f}), 0.0f) << "at the largest addend's last bit";
  EXPECT_EQ(sum_of(1.5f, {0.5f + 0x1p-23f}), 2.0f) << "and the sum at its own";
}

TEST(CutSum, IsExactOnSmallIntegers) {
  EXPECT_EQ(sum_of(5.0f, {1.0f, -7.0f, 4095.0f, 12.0f}), 4106.0f);
  const float zero = sum_of(3.0f, {-3.0f});
  EXPECT_EQ(zero, 0.0f);
  EXPECT_FALSE(std::signbit(zero));
}

TEST(CutSum, KeepsInfinitiesNansAndSubnormals) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sum_of(1.0f, {infinity, -2.0f}), infinity);
  EXPECT_TRUE(std::isnan(sum_of(infinity, {-infinity})));
  EXPECT_TRUE(std::isnan(sum_of(0.0f, {std::nanf(""), 1.0f})));
  EXPECT_EQ(sum_of(0x1p-149f, {0x1p-149f}), 0x1p-148f);
  EXPECT_EQ(sum_of(std::numeric_limits<float>::max(), {std::numeric_limits<float>::max()}),
            infinity);
}

TEST(CutSum, TakesSteps) {
  const float a[] = {1, 9, 2, 9, 3, 9}, b[] = {1, 8, 8, 10, 8, 8, 100};
  EXPECT_EQ(cut_sum(0.5f, a, 2, b, 3, 3), 321.5f);
}

}  // namespace
}  // namespace vgpu::tensor
