// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "convoy/convoy.hpp"
#include "core/candidate.hpp"
#include "core/geometry.hpp"

namespace convoy::test {

/// One convolution on the GPU, checked against a naive fp64 one on the host.
struct DeviceCase {
  ConvGeometry geometry;
  PlanOptions options;  ///< `epilogue` is taken from the field below.
  bool bias = false;
  bool residual = false;
  bool residual_in_place = false;  ///< The residual is the output itself.
  bool next_cache = false;         ///< Rank 3: ask for the next cache, and check it.
  Epilogue epilogue;               ///< Values only; pointers are set by `run_case`.
  FilterLayout layout = FilterLayout::ktrsc;
  std::uint64_t seed = 1;
  /// Elements of the output to compare, evenly spread; 0: all.
  std::int64_t sample = 0;

  /// Enqueues the kernel in the plan's place, where it is set.
  std::function<void(const ConvGeometry&, const RunPointers&)> launch;

  /// The shape and every option, for a failure's message.
  std::string describe() const;
};

/// A case of that problem, with everything else as it is by default.
DeviceCase image(const Conv2dProblemShape& shape);
DeviceCase volume(const Conv3dProblemShape& shape);

/// Run with small integers, so that fp32 sums are exact in any order: with no activation (or relu)
/// the output must match the fp64 result, rounded once, bit for bit; other activations may differ
/// by a few units of fp32 before the rounding. The output and the next cache start as NaN with
/// guard bytes around every buffer. Returns what is wrong, empty if nothing is.
std::string run_case(const DeviceCase& test);

/// The problem of the public interface that has this geometry, planned.
Plan plan_case(const DeviceCase& test);
std::vector<Candidate> candidates_of(const DeviceCase& test);

/// Its geometry as the public interface has it, output extents filled in. Throws Error where it is
/// not legal.
ConvGeometry legal_geometry(const DeviceCase& test);

/// Whether there is a CUDA device to test on.
bool has_device();

}  // namespace convoy::test
