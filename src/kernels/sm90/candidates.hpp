// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/candidate.hpp"

namespace convoy::sm90 {

/// Append the Hopper kernels, one candidate an instance.
void register_kernels(CandidateList& list);

}  // namespace convoy::sm90
