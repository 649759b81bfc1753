// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace vgpu::tensor {

/// Whether fp32 sums of products are cut off as tensor cores do it (`vgpu run --sums cut`), or each
/// is a chain of fused multiply-adds. For the whole process; set before the first launch.
void set_cut_sums(bool cut);
bool cut_sums();

/// sum + the `count` products a[i * a_step] * b[i * b_step] as a tensor core adds them at once:
/// products are exact, all addends are aligned to the largest one's exponent, cut off below fp32's
/// last bit there, and added; the result is cut off to fp32. Source: measurements of V100, T4 and
/// A100 (Fasi et al., "Numerical behavior of NVIDIA tensor cores", 2021). Later GPUs keep a bit or
/// two more. Subnormal bits are kept.
float cut_sum(float sum, const float* a, uint32_t a_step, const float* b, uint32_t b_step,
              uint32_t count);

}  // namespace vgpu::tensor
