// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace convoy {

/// Division by a number that is known on the host: a multiplication and a shift in place of some
/// twenty instructions. Dividends are 0 .. 2^31 - 1, divisors 1 .. 2^31 - 1.
/// Method: q = (n · m) >> p with p = 31 + ceil(log2 d) and m = ceil(2^p / d) < 2^32 (Granlund and
/// Montgomery, "Division by Invariant Integers using Multiplication", 1994).
struct FastDivide {
  std::uint32_t divisor = 1;
  std::uint32_t multiplier = 0;
  std::uint32_t shift = 0;

  FastDivide() = default;
  explicit FastDivide(std::int64_t d) : divisor(static_cast<std::uint32_t>(d)) {
    if (d <= 1) {
      divisor = 1;
      return;
    }
    std::uint32_t log2 = 0;
    while ((std::uint64_t{1} << log2) < divisor) ++log2;
    const std::uint32_t p = 31 + log2;
    multiplier = static_cast<std::uint32_t>(((std::uint64_t{1} << p) + divisor - 1) / divisor);
    shift = p - 32;
  }

  __host__ __device__ int divide(int n) const {
    if (divisor == 1) return n;
#ifdef __CUDA_ARCH__
    return static_cast<int>(__umulhi(static_cast<std::uint32_t>(n), multiplier) >> shift);
#else
    return static_cast<int>((static_cast<std::uint64_t>(n) * multiplier >> 32) >> shift);
#endif
  }
  __host__ __device__ int remainder(int n, int quotient) const {
    return n - quotient * static_cast<int>(divisor);
  }
};

}  // namespace convoy
