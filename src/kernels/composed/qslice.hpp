// SPDX-License-Identifier: Apache-2.0
//
// 3-D convolution as T sequential 2-D convolutions, accumulated in fp32 (driver.hpp).
#pragma once

#include <string>

#include "convoy/export.h"
#include "core/candidate.hpp"

namespace convoy::composed {

/// Whether Q-slicing computes a problem: the reason why not, or empty. bf16 or fp16; stride,
/// dilation and groups 1; T > 1; R·S > 1; no temporal padding, cache or upsampling, no padding but
/// with zeros; C a multiple of 8.
CONVOY_API std::string qslice_refusal(const PlanRequest& request);

}  // namespace convoy::composed
