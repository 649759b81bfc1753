// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/candidate.hpp"

namespace convoy {

/// Wraps every kernel of the list, under its own name, in one that takes shuffled outputs: written
/// by the kernel itself, where it takes output pitches, else by a copy of what it leaves in the
/// workspace.
void apply_shuffle(CandidateList& list);

}  // namespace convoy
