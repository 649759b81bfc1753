// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "convoy/convoy.hpp"
#include "core/geometry.hpp"

namespace convoy::test {

/// One convolution to run and check: everything but the tensors, which follow from the seed.
struct ConvCase {
  std::uint64_t seed = 0;
  ProblemShape problem;
  PlanOptions options;  ///< `device` and `kernel` say where; `epilogue` is taken from below.
  Epilogue epilogue;    ///< Values; pointers only say (null or not) whether the tensor is there.
  FilterLayout filter_layout = FilterLayout::krsc;
  /// Small integers and exact epilogues: every bit of the output is determined.
  bool exact = false;
  bool next_cache = false;         ///< Ask for the next causal cache.
  bool bring_workspace = true;     ///< Give the workspace, or leave it to the CPU backend.
  bool residual_in_place = false;  ///< The residual is the output.
};

struct CaseLimits {
  double flops = 2e7;  ///< Largest problem.
  /// Only what GPU kernels were made for: fewer odd channel counts.
  bool aligned_channels = false;
};

/// A legal case; the same for the same seed and limits.
ConvCase random_case(std::uint64_t seed, const CaseLimits& limits);

/// One line that shows the case.
std::string describe(const ConvCase& c);

struct CaseResult {
  bool pass = false;
  std::string kernel;
  std::string detail;  ///< What is wrong; empty where it passed.
};

/// Plan, pack, run twice, and check: values against the reference, bits against the second run,
/// guard zones, the next cache. Throws convoy::Error where the plan is refused.
CaseResult run_case(const ConvCase& c);

}  // namespace convoy::test
