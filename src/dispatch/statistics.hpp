// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/candidate.hpp"

namespace convoy {

/// Wraps every kernel of the list, under its own name, in one that takes statistics of its outputs:
/// in the kernel's epilogue where that can, else by a pass of their own over what it has written.
void apply_statistics(CandidateList& list);

/// "epilogue", or "pass: WHY"; empty for a request without statistics.
std::string statistics_source(const KernelCandidate& kernel, const PlanRequest& request);

/// Throws Error{invalid_argument} where the groups do not divide the output's channels.
void check_statistics(const ConvGeometry& geometry, const OutputShuffle& shuffle,
                      std::int64_t groups);

}  // namespace convoy
