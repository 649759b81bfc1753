// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// The inner product of wgmma and tcgen05.mma on panels that hold one instruction's operands as
/// floats or 32-bit integers.
namespace vgpu::tensor {

/// d[r][0..n) += sum over k of a[r * depth + k] * b[k * b_stride + 0..n), for `rows` rows.
/// n is a multiple of 8, rows of 4; fused multiply-adds in order of k, or with cut_sums() all of
/// depth at once.
void accumulate_panels(float* const* d, const float* a, const float* b, uint32_t rows, uint32_t n,
                       uint32_t depth, uint32_t b_stride);
/// The same modulo 2^32, or, with `saturate`, with the exact sum clamped to the s32 range.
void accumulate_panels(int32_t* const* d, const int32_t* a, const int32_t* b, uint32_t rows,
                       uint32_t n, uint32_t depth, uint32_t b_stride, bool saturate);

}  // namespace vgpu::tensor
