// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/candidate.hpp"
#include "kernels/composed/inner_kernels.hpp"

namespace convoy::composed {

/// "split_copy_tf32x3": fp32 tensors to the accuracy of fp32, on tensor cores. Activation, cache
/// and filter are copied in parts that TF32 holds, three times their channels side by side,
///
///   activation  lo | hi | hi        filter  hi | lo | hi
///
/// so that an ordinary convolution over them computes x · w ≈ lo(x)·hi(w) + hi(x)·lo(w) +
/// hi(x)·hi(w); by a kernel that does not leave the sums to tensor cores. Workspace: the copies.
std::unique_ptr<KernelCandidate> make_split_copy_candidate(InnerKernels inner);

/// Why a problem cannot be split so, whichever kernel computes it; empty if it can.
std::string split_copy_refusal(const PlanRequest& request);

/// Channels of one part: those of the problem, in whole units of 16 bytes.
std::int64_t part_channels(const ConvGeometry& geometry);

}  // namespace convoy::composed
