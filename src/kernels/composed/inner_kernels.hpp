// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/candidate.hpp"

namespace convoy::composed {

/// A kernel chosen to do the inner work of a composed one, or the reason why there is none.
struct InnerKernel {
  const KernelCandidate* kernel = nullptr;
  std::string reason;
  double estimated_us = 0.0;
};

/// The kernels that composed ones are built of. It holds no kernel: the list that it was made from
/// must outlive it.
class InnerKernels {
 public:
  explicit InnerKernels(const CandidateList& list);

  /// The one with the least model time for `request`. Where none can run it, the reason is that of
  /// the kernel that got furthest (RefusalScope), the first of them.
  InnerKernel choose(const PlanRequest& request) const;

 private:
  std::vector<const KernelCandidate*> kernels_;
};

/// `request` for another problem and output type; dense KRSC filter.
PlanRequest inner_request(const PlanRequest& request, const Conv2dProblemShape& problem,
                          DType output_dtype, const EpilogueKind& epilogue);

}  // namespace convoy::composed
