// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/candidate.hpp"

namespace convoy::cpu {

/// Append the CPU's kernels.
void register_kernels(CandidateList& list);

}  // namespace convoy::cpu
