// SPDX-License-Identifier: Apache-2.0
#include "kernels/portable/inner_kernel.hpp"

#include "core/text.hpp"

namespace convoy {
namespace {

const CandidateList& gemm_kernels() {
  static const CandidateList all = [] {
    CandidateList list;
#ifdef CONVOY_WITH_SM100
    register_sm100_kernels(list);
#endif
#ifdef CONVOY_WITH_SM90
    register_sm90_kernels(list);
#endif
    return list;
  }();
  return all;
}

}  // namespace

InnerKernel choose_inner_kernel(const PlanRequest& request) {
  InnerKernel best;
  std::string nearest;
  for (const auto& kernel : gemm_kernels()) {
    const Judgement judgement = kernel->judge(request);
    if (!judgement.refusal.empty()) {
      // Kernels of another architecture or type say so first; what the others say is worth telling.
      if (nearest.empty() || nearest.find("compute capability") != std::string::npos ||
          nearest.find("types ") != std::string::npos) {
        nearest = text(kernel->name(), ": ", judgement.refusal);
      }
      continue;
    }
    if (best.kernel == nullptr || judgement.estimated_us < best.estimated_us) {
      best.kernel = kernel.get();
      best.estimated_us = judgement.estimated_us;
    }
  }
  if (best.kernel == nullptr) {
    best.reason = nearest.empty()
                      ? "no implicit-GEMM kernel was built"
                      : text("no implicit-GEMM kernel for the inner problem (", nearest, ")");
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

}  // namespace convoy
