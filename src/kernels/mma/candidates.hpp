// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/candidate.hpp"

namespace convoy::mma {

/// Append the kernels of mma.sync, one candidate an instance.
void register_kernels(CandidateList& list);

}  // namespace convoy::mma
