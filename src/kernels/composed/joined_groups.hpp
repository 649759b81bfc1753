// SPDX-License-Identifier: Apache-2.0
//
// Convolution of many narrow groups as one of fewer, wider ones: neighbouring groups are joined,
// and a filter is zero for the channels of the groups that it did not belong to. The tensors stay
// as they are. A tile of the tensor cores takes 32 channels in as little time as 4.
#pragma once

#include <memory>

#include "core/candidate.hpp"
#include "kernels/composed/inner_kernels.hpp"

namespace convoy::composed {

/// "joined_groups": of groups of at most 32 channels. Workspace: the joined filter, unless it is
/// packed, and what the inner kernel needs. An Inf or NaN of the input reaches, as NaN, the outputs
/// of all groups that are joined with its own.
std::unique_ptr<KernelCandidate> make_joined_groups_candidate(InnerKernels inner);

}  // namespace convoy::composed
