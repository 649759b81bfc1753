// SPDX-License-Identifier: Apache-2.0
//
// Convolution as an explicit im2col transform and a matrix product, for what the direct kernels
// decline: any stride, dilation, padding mode, upsampling and channel count of one group.
#pragma once

#include <string>

#include "convoy/export.h"
#include "core/candidate.hpp"

namespace convoy::composed {

/// Whether im2col + matrix product computes a problem: the reason why not, or empty. bf16 or fp16,
/// groups 1, extents that fit 32 bits.
CONVOY_API std::string im2col_matmul_refusal(const PlanRequest& request);

}  // namespace convoy::composed
