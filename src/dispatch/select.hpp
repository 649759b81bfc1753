// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/candidate.hpp"

namespace convoy {

/// A kernel as dispatch judged it: the public line, and what a plan needs of it.
struct Considered {
  const KernelCandidate* kernel = nullptr;
  PlanRequest request;
  Candidate line;      ///< `reason` is empty where the kernel can run the problem.
  bool tuned = false;  ///< The tuning database names it.
};

/// Judge every kernel of `kernels` for this problem: those that can run first, best first, the
/// first of them marked as chosen; then the refused ones in the order of the registry. Throws
/// Error{invalid_argument} for options that make no sense.
std::vector<Considered> select(const ConvGeometry& geometry, const PlanOptions& options,
                               const CandidateList& kernels);

/// "cpu (AMD EPYC 9654)", "cuda:0 (NVIDIA H200)".
std::string backend_name(const DeviceInfo& device);

}  // namespace convoy
