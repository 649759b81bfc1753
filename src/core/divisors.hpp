// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>
#include <initializer_list>

// What errors name as the nearest legal choice where one number has to divide another. Both take at
// most √value steps, and at most twice what was wanted.
namespace convoy {

/// The greatest divisor of `value` that is at most `most`; 1 where there is none.
inline std::int64_t largest_divisor(std::int64_t value, std::int64_t most) {
  std::int64_t largest = 1;
  for (std::int64_t low = 1; low <= most && low <= value / low; ++low) {
    if (value % low != 0) continue;
    for (const std::int64_t divisor : {low, value / low}) {
      if (divisor <= most && divisor > largest) largest = divisor;
    }
  }
  return largest;
}

/// The divisor of `value` nearest to `wanted`, of two the lesser one; 1 where there is none.
inline std::int64_t nearest_divisor(std::int64_t value, std::int64_t wanted) {
  std::int64_t nearest = largest_divisor(value, wanted);
  // NOTE: one above is as near only below 2 * wanted.
  for (std::int64_t low = 1; low / 2 <= wanted && low <= value / low; ++low) {
    if (value % low != 0) continue;
    for (const std::int64_t divisor : {low, value / low}) {
      if (divisor > wanted && divisor - wanted < std::abs(wanted - nearest)) nearest = divisor;
    }
  }
  return nearest;
}

}  // namespace convoy
