// SPDX-License-Identifier: Apache-2.0
//
// A shuffled output as convolutions of fewer filters: one for each row and frame that a pixel
// becomes. Each writes every ft-th frame and every fh-th row of the output, whose columns and
// channels lie as its filters do once they are in the order (dt, dh, dw, c).
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "core/candidate.hpp"
#include "core/shuffle.hpp"

namespace convoy::composed {

/// The copies of device memory.
const ShuffleCopies& cuda_shuffle_copies();

/// What `kernel`, which takes output pitches, says of a shuffled request run so.
Judgement judge_shuffled_phases(const KernelCandidate& kernel, const PlanRequest& request);

/// The plan of a request that `judge_shuffled_phases` lets pass. Workspace: the filter and the bias
/// in the order of the output, where they do not come so.
std::unique_ptr<ExecutablePlan> make_shuffled_phases(const KernelCandidate& kernel,
                                                     const PlanRequest& request);

}  // namespace convoy::composed
