// SPDX-License-Identifier: Apache-2.0
#include "tensor/panel_product.hpp"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "tensor/cut_sum.hpp"

#if !defined(__AVX2__) || !defined(__FMA__)
#error "vgpu is built for x86-64-v3 (AVX2, FMA, F16C): compile with -march=x86-64-v3"
#endif

namespace vgpu::tensor {
namespace {

/// 4 rows x 8 VECTORS columns, all of k: the accumulators stay in registers.
template <int VECTORS>
void block_4_rows(float* const* d, const float* a, const float* b, uint32_t column, uint32_t depth,
                  uint32_t b_stride) {
  __m256 sum[4][VECTORS];
  for (int r = 0; r < 4; ++r) {
    for (int v = 0; v < VECTORS; ++v) sum[r][v] = _mm256_loadu_ps(d[r] + column + 8 * v);
  }
  for (uint32_t k = 0; k < depth; ++k) {
    __m256 b_row[VECTORS];
    for (int v = 0; v < VECTORS; ++v) b_row[v] = _mm256_loadu_ps(b + k * b_stride + column + 8 * v);
    for (int r = 0; r < 4; ++r) {
      __m256 a_value = _mm256_broadcast_ss(a + r * depth + k);
      for (int v = 0; v < VECTORS; ++v) sum[r][v] = _mm256_fmadd_ps(a_value, b_row[v], sum[r][v]);
    }
  }
  for (int r = 0; r < 4; ++r) {
    for (int v = 0; v < VECTORS; ++v) _mm256_storeu_ps(d[r] + column + 8 * v, sum[r][v]);
  }
}

}  // namespace

void accumulate_panels(float* const* d, const float* a, const float* b, uint32_t rows, uint32_t n,
                       uint32_t depth, uint32_t b_stride) {
  if (cut_sums()) {
    for (uint32_t row = 0; row < rows; ++row) {
      for (uint32_t c = 0; c < n; ++c) {
        d[row][c] = cut_sum(d[row][c], a + row * depth, 1, b + c, b_stride, depth);
      }
    }
    return;
  }
  for (uint32_t row = 0; row < rows; row += 4) {
    uint32_t column = 0;
    for (; column + 16 <= n; column += 16) {
      block_4_rows<2>(d + row, a + row * depth, b, column, depth, b_stride);
    }
    if (column < n) block_4_rows<1>(d + row, a + row * depth, b, column, depth, b_stride);
  }
}

void accumulate_panels(int32_t* const* d, const int32_t* a, const int32_t* b, uint32_t rows,
                       uint32_t n, uint32_t depth, uint32_t b_stride, bool saturate) {
  uint32_t sum[256];  // unsigned: wraps without undefined behaviour
  for (uint32_t row = 0; row < rows; ++row) {
    std::memset(sum, 0, sizeof sum);
    for (uint32_t k = 0; k < depth; ++k) {
      auto a_value = static_cast<uint32_t>(a[row * depth + k]);
      const int32_t* b_row = b + k * b_stride;
      for (uint32_t c = 0; c < n; ++c) sum[c] += a_value * static_cast<uint32_t>(b_row[c]);
    }
    for (uint32_t c = 0; c < n; ++c) {
      if (saturate) {
        int64_t exact = int64_t{d[row][c]} + static_cast<int32_t>(sum[c]);
        d[row][c] = static_cast<int32_t>(std::clamp<int64_t>(
            exact, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()));
      } else {
        d[row][c] = static_cast<int32_t>(static_cast<uint32_t>(d[row][c]) + sum[c]);
      }
    }
  }
}

}  // namespace vgpu::tensor
