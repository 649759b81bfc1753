// SPDX-License-Identifier: Apache-2.0
//
// Convolution of rows that TMA cannot read, since a pixel's channels are no multiple of 16 bytes:
// a copy of the activation with zeros up to the next multiple, then an implicit GEMM. Where pixels
// are at most 16 bytes, as a picture's, the copy may have the columns of padding too, and the taps
// of a row become the channels of one tap, whose pixels overlap: S times fewer rows to load.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/candidate.hpp"
#include "kernels/composed/inner_kernels.hpp"

namespace convoy::composed {

/// Channels of the copy: in_channels, rounded up to a multiple of 16 bytes.
std::int64_t padded_channels(const PlanRequest& request);

/// Empty, or why the problem has no such copy: groups, or channels that are whole 16-byte units.
std::string padded_channels_refusal(const PlanRequest& request);

/// "padded_channels". Workspace: the copies of activation and cache, that of a filter which comes
/// as KTRSC, and what the inner kernel needs. A packed filter ("padded_channels") holds zeros too.
std::unique_ptr<KernelCandidate> make_padded_channels_candidate(InnerKernels inner);

/// Empty, or why the taps of a row cannot be channels: more than 16 bytes a pixel, groups, dilation
/// or a padding mode of the width.
std::string folded_width_refusal(const PlanRequest& request);

/// "folded_width". Workspace and packed filter ("padded_channels") as above.
std::unique_ptr<KernelCandidate> make_folded_width_candidate(InnerKernels inner);

}  // namespace convoy::composed
