// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "core/candidate.hpp"

namespace convoy::composed {

/// `kernel` under its own name, which runs a problem in the form that it is fastest in by its
/// model: as it was asked for, or rewritten without moving a byte (core/rewriting.hpp). Where
/// it refuses every form, its reason is the one for the problem as asked.
std::unique_ptr<KernelCandidate> with_rewritings(std::unique_ptr<KernelCandidate> kernel);

/// That of every CUDA kernel of the list from `first` on.
void apply_rewritings(CandidateList& list, std::size_t first = 0);

}  // namespace convoy::composed
