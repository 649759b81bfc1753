// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/text.hpp"

namespace convoy {

/// a + b; throws Error{invalid_argument} that names `what` where it does not fit 64 bits.
inline std::int64_t checked_add(std::int64_t a, std::int64_t b, const char* what) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    throw_invalid(what, " = ", a, " + ", b, " does not fit 64 bits; legal: at most ", INT64_MAX);
  }
  return sum;
}

/// Product of the factors; throws Error{invalid_argument} that names `what` where it does not fit
/// 64 bits.
inline std::int64_t checked_product(std::initializer_list<std::int64_t> factors, const char* what) {
  std::int64_t product = 1;
  bool overflow = false;
  for (std::int64_t factor : factors) {
    if (factor == 0) return 0;
    overflow = overflow || __builtin_mul_overflow(product, factor, &product);
  }
  if (!overflow) return product;
  std::string list;
  for (std::int64_t factor : factors) list += (list.empty() ? "" : " * ") + std::to_string(factor);
  throw_invalid(what, " = ", list, " does not fit 64 bits; legal: at most ", INT64_MAX);
}

/// ceil(a / b) for a >= 0, b >= 1.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace convoy
