// SPDX-License-Identifier: Apache-2.0
#include "kernels/composed/inner_kernels.hpp"

#include <utility>

#include "core/text.hpp"

namespace convoy::composed {

InnerKernels::InnerKernels(const CandidateList& list) {
  for (const auto& kernel : list) kernels_.push_back(kernel.get());
}

InnerKernel InnerKernels::choose(const PlanRequest& request) const {
  InnerKernel best;
  RefusalScope furthest = RefusalScope::device;
  for (const KernelCandidate* kernel : kernels_) {
    if (!request.geometry.dense_input() && !kernel->takes_input_pitches()) {
      if (best.reason.empty()) {
        best.reason = text(kernel->name(), ": pixels that overlap; legal: dense ones");
      }
      continue;
    }
    const Judgement judgement = kernel->judge(request);
    if (!judgement.refusal.empty()) {
      if (best.reason.empty() || judgement.scope > furthest) {
        best.reason = text(kernel->name(), ": ", judgement.refusal);
        furthest = judgement.scope;
      }
    } else if (best.kernel == nullptr || judgement.estimated_us < best.estimated_us) {
      best.kernel = kernel;
      best.estimated_us = judgement.estimated_us;
    }
  }
  if (best.kernel != nullptr) {
    best.reason.clear();
  } else if (best.reason.empty()) {
    best.reason = "no implicit-GEMM kernel was built";
  } else {
    best.reason = text("no implicit-GEMM kernel for the inner problem (", best.reason, ")");
  }
  return best;
}

PlanRequest inner_request(const PlanRequest& request, const Conv2dProblemShape& problem,
                          DType output_dtype, const EpilogueKind& epilogue) {
  PlanRequest inner = request;
  inner.geometry = geometry_of(problem);
  inner.output_dtype = output_dtype;
  inner.epilogue = epilogue;
  inner.packed_filter = false;
  return inner;
}

}  // namespace convoy::composed
