// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/candidate.hpp"
#include "dispatch/tuning.hpp"

namespace convoy {

/// A kernel as dispatch judged it: the public line, and what a plan needs of it.
struct Considered {
  const KernelCandidate* kernel = nullptr;
  PlanRequest request;
  Candidate line;            ///< `reason` is empty where the kernel can run the problem.
  bool passed_over = false;  ///< It can run the problem, and another was asked for.
  bool tuned = false;        ///< It was measured to be the fastest for this very request.
};

/// Who is asked: for a list all, for a plan the CPU only where no CUDA kernel can run the problem,
/// so that it is not loaded without need.
enum class Ask { all, needed };

/// Judge the kernels of `kernels` for this problem: those that can run first, best first, the
/// first of them marked as chosen; then the refused ones in the order of the registry. `gpu`:
/// stands for the CUDA device, which is not asked then. Throws Error{invalid_argument} for options
/// that make no sense.
std::vector<Considered> select(const ConvGeometry& geometry, const PlanOptions& options,
                               const CandidateList& kernels, Ask ask = Ask::all,
                               const TuningDatabase& tuning = tuning_database(),
                               const DeviceInfo* gpu = nullptr);

/// Correct the CUDA kernels' estimates by what was measured, and put all in order of preference.
///
/// Where a kernel was measured to be the fastest with an epilogue of this class, it comes first.
/// Where that is known of the plain layer only, a kernel's time is the plain layer's (the measured
/// one; of other kernels the model's, scaled to that, and a little more at least) and what the
/// epilogue adds by the model: a kernel that hides the epilogue overtakes the measured one where
/// that does not, and nothing changes where the epilogue costs all the same. Where nothing was
/// measured the model alone decides.
void rank(std::vector<Considered>& all, const TuningDatabase& tuning);

/// "cpu (AMD EPYC 9654)", "cuda:0 (NVIDIA H200)", "cuda (NVIDIA H200)" of a known GPU.
std::string backend_name(const DeviceInfo& device);

}  // namespace convoy
