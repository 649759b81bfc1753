// SPDX-License-Identifier: Apache-2.0
#include "core/divisors.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace convoy {
namespace {

TEST(Divisors, AreThoseThatAWalkFinds) {
  for (std::int64_t value = 1; value <= 130; ++value) {
    for (std::int64_t wanted = -1; wanted <= 140; ++wanted) {
      std::int64_t below = 1, nearest = 1;
      for (std::int64_t divisor = 1; divisor <= value; ++divisor) {
        if (value % divisor != 0) continue;
        if (divisor <= wanted) below = divisor;
        if (wanted >= 1 && std::abs(divisor - wanted) < std::abs(nearest - wanted)) {
          nearest = divisor;
        }
      }
      EXPECT_EQ(largest_divisor(value, wanted), below) << value << " " << wanted;
      EXPECT_EQ(nearest_divisor(value, wanted), nearest) << value << " " << wanted;
    }
  }
}

TEST(Divisors, OfLargeNumbers) {
  constexpr std::int64_t kPrime = 2147483647, kMost = INT64_MAX;
  EXPECT_EQ(largest_divisor(kPrime, kPrime - 1), 1);
  EXPECT_EQ(nearest_divisor(kPrime, kPrime - 1), kPrime);
  EXPECT_EQ(largest_divisor(kMost, 8), 7);
  EXPECT_EQ(largest_divisor(0, 5), 1);
  EXPECT_EQ(nearest_divisor(6, kMost), 6);
}

}  // namespace
}  // namespace convoy
