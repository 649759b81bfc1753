// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/candidate.hpp"

namespace convoy::sm100 {

/// Append the Blackwell kernels, one candidate an instance.
void register_kernels(CandidateList& list);

}  // namespace convoy::sm100
