// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <iterator>

#include "probe.hpp"

// Operands of the arithmetic cases and what their kernels share.
namespace probe {

constexpr uint32_t kMathRows = 1024;
constexpr uint32_t kMathColumns = 12;  // 4 of integers, 4 of floats, 4 of doubles

template <typename T>
__device__ T bits(uint64_t word) {
  if constexpr (sizeof(T) == 8 && !std::is_integral_v<T>) {
    return __longlong_as_double(static_cast<long long>(word));
  } else if constexpr (sizeof(T) == 4 && !std::is_integral_v<T>) {
    return __uint_as_float(static_cast<uint32_t>(word));
  } else {
    return static_cast<T>(word);
  }
}

__device__ inline void store(uint32_t* out, uint32_t row, uint16_t value) {
  out[row] = value;
}
__device__ inline void store(uint32_t* out, uint32_t row, uint32_t value) {
  out[row] = value;
}
__device__ inline void store(uint32_t* out, uint32_t row, float value) {
  out[row] = __float_as_uint(value);
}
__device__ inline void store(uint32_t* out, uint32_t row, uint64_t value) {
  out[row] = static_cast<uint32_t>(value);
  out[kMathRows + row] = static_cast<uint32_t>(value >> 32);
}
__device__ inline void store(uint32_t* out, uint32_t row, double value) {
  store(out, row, static_cast<uint64_t>(__double_as_longlong(value)));
}

inline std::vector<uint64_t> math_rows() {
  static constexpr uint32_t kIntegers[] = {
      0,    1,      2,      31,         32,         33,         0x7f,       0x80,
      0xff, 0x7fff, 0x8000, 0x7fffffff, 0x80000000, 0xffffffff, 0xfffffffe, 0x00ff00ff};
  static constexpr uint32_t kFloats[] = {
      0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x00800000, 0x3f800000, 0xbf800000,
      0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff, 0x7f7fffff, 0x3f000000,
      0x40200000, 0xbfc00000, 0x43e00000, 0x43e80000, 0x47700000, 0x4f000000, 0xcf000000,
      0x5f000000, 0x477fe000, 0x477ff000, 0x33000000, 0x33000001, 0x38800000, 0x387fe000,
      0x3b000000, 0x3a800000, 0x3f800fff, 0x3f801000};
  std::vector<uint64_t> rows(kMathRows * kMathColumns);
  for (uint32_t i = 0; i < kMathRows; ++i) {
    uint64_t* row = &rows[i * kMathColumns];
    for (uint32_t k = 0; k < 4; ++k) {
      const uint32_t seed = i * 16 + k * 4;
      const uint32_t h = hash32(seed);
      // Integers: edge values in a third of the rows.
      row[k] = h % 3 ? uint64_t{hash32(seed + 1)} << 32 | hash32(seed + 2)
                     : kIntegers[hash32(seed + 1) % std::size(kIntegers)] |
                           uint64_t{kIntegers[hash32(seed + 2) % std::size(kIntegers)]} << 32;
      // Floats: edge values, moderate numbers, any bits. The first rows are all edge values.
      uint32_t f = hash32(seed + 3);
      if (i < 256) {
        f = kFloats[(i >> (k % 2 * 3)) % std::size(kFloats)];
      } else if (i < 768) {
        f = (f & 0x807fffff) | (110 + (f >> 23) % 36) << 23;
      }
      row[4 + k] = f;
      const uint64_t mantissa = (uint64_t{hash32(seed + 1)} << 32 | hash32(seed + 2));
      const uint64_t exponent = i < 512 ? 1003 + (h >> 8) % 80 : (h >> 8) % 2048;
      row[8 + k] = (mantissa & 0x800fffffffffffff) | exponent << 52;
      if (i < 64) row[8 + k] = i % 2 ? uint64_t{kFloats[i / 2]} << 32 : row[8 + k] & ~0xffffffffull;
    }
  }
  return rows;
}

using MathKernel = void (*)(const uint64_t*, uint32_t*);

inline void add_math_case(const char* name, MathKernel kernel) {
  add(name, [kernel](Result& result) {
    const std::vector<uint64_t> rows = math_rows();
    Buffer in(rows.size() * 8), out(2 * kMathRows * 4);
    cudaMemcpy(in.get(), rows.data(), rows.size() * 8, cudaMemcpyHostToDevice);
    cudaMemset(out.get(), 0, 2 * kMathRows * 4);
    kernel<<<kMathRows / 256, 256>>>(in.get<uint64_t>(), out.get<uint32_t>());
    fetch(result, out.get(), 2 * kMathRows);
  });
}

}  // namespace probe
