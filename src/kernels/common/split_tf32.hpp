// SPDX-License-Identifier: Apache-2.0
//
// An fp32 number as two of TF32 (8 bits of exponent, 10 of mantissa), for products to the accuracy
// of fp32 on tensor cores:
//
//   x · y  ≈  hi(x) · hi(y) + hi(x) · lo(y) + lo(x) · hi(y), but for some 2^-21 · |x · y| at most
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

namespace convoy {

/// A number's parts as bits. Tensor cores read the upper 19 bits of each.
struct Tf32Parts {
  std::uint32_t hi;  ///< x to the nearest TF32, ties away from zero.
  std::uint32_t lo;  ///< x − hi, which fp32 holds exactly; as TF32 it is cut to |x| · 2^-22.
};

/// NOTE: of an x that rounds past the largest number, of an infinity and of a NaN, a part is an
/// infinity or a NaN: so is every sum that such an x is in, and whoever sums must see to it.
__host__ __device__ inline Tf32Parts split_tf32(std::uint32_t x) {
  const std::uint32_t hi = (x + 0x1000u) & ~0x1fffu;
#ifdef __CUDA_ARCH__
  return {hi, __float_as_uint(__fsub_rn(__uint_as_float(x), __uint_as_float(hi)))};
#else
  return {hi, std::bit_cast<std::uint32_t>(std::bit_cast<float>(x) - std::bit_cast<float>(hi))};
#endif
}

}  // namespace convoy
