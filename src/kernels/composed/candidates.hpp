// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/composed/driver.hpp"
#include "kernels/composed/im2col_matmul.hpp"
#include "kernels/composed/inner_kernels.hpp"
#include "kernels/composed/qslice.hpp"

namespace convoy::composed {

/// "qslice_conv3d". Workspace: the fp32 accumulator, [N, Z, P, Q, K], and the filter as T dense
/// slices where the caller gives KTRSC; a packed filter ("qslice") holds the slices.
std::unique_ptr<KernelCandidate> make_qslice_candidate(InnerKernels inner);

/// "im2col_matmul_conv2d" (rank 2) and "im2col_matmul_conv3d" (rank 3). The matrix product is an
/// inner kernel on a 1×1 problem, epilogue included; the scratch is the plan's workspace.
std::unique_ptr<KernelCandidate> make_im2col_matmul_candidate(
    InnerKernels inner, int rank, std::size_t scratch_bytes = kIm2colScratchBytes);

/// Those built of implicit GEMMs: what the direct kernels decline falls through to these, in this
/// order.
void register_kernels(CandidateList& list, const InnerKernels& inner);

/// "padded_copy" and "normalised_copy", which take any kernel for their inner one: those listed
/// above as well.
void register_copies(CandidateList& list, const InnerKernels& inner);

}  // namespace convoy::composed
