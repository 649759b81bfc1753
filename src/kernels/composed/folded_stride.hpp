// SPDX-License-Identifier: Apache-2.0
//
// Convolution with a stride along the width, of pixels that TMA loads slowly or not at all, on the
// same memory: s neighbouring columns are one pixel of s·C channels, and the filter has taps of
// zeros up to whole such pixels.
#pragma once

#include <memory>
#include <string>

#include "core/candidate.hpp"
#include "kernels/composed/inner_kernels.hpp"

namespace convoy::composed {

/// Empty, or why the width has no such form: no stride, groups, pixels of more than 64 bytes in
/// whole units of 16, a width that is no multiple of the stride, or taps that are whole pixels as
/// they are (core/rewriting.hpp).
std::string folded_stride_refusal(const PlanRequest& request);

/// "folded_stride". Workspace: the filter where it comes as KTRSC, and what the inner kernel needs.
/// A packed filter ("folded_stride_LEAD_S") has its taps of zeros already. An Inf or NaN of the
/// input reaches, as NaN, outputs whose filter ends less than a stride beside it.
std::unique_ptr<KernelCandidate> make_folded_stride_candidate(InnerKernels inner);

}  // namespace convoy::composed
