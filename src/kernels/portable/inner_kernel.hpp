// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "core/candidate.hpp"

namespace convoy {

/// One of this library's implicit-GEMM kernels, chosen to do the inner work of a composed one.
struct InnerKernel {
  const KernelCandidate* kernel = nullptr;
  std::string reason;  ///< Why there is none.
  double estimated_us = 0.0;
};

/// The implicit-GEMM kernel (sm90, sm100) with the least model time for `request`.
InnerKernel choose_inner_kernel(const PlanRequest& request);

/// `request` for another problem and output type; dense KRSC filter.
PlanRequest inner_request(const PlanRequest& request, const Conv2dProblemShape& problem,
                          DType output_dtype, const EpilogueKind& epilogue);

/// Bytes of a part of a workspace, so that the next part is aligned.
constexpr std::size_t aligned_part(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

}  // namespace convoy
