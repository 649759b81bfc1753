// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "convoy/convoy.hpp"

namespace convoy::test {

/// One norm, checked against fp64 on the host.
struct NormCase {
  bool rms = false;
  std::int64_t batch = 1;
  std::int64_t pixels = 1;
  std::int64_t channels = 8;
  std::int64_t groups = 1;
  float epsilon = 1e-5f;
  RmsEpsilon rule = RmsEpsilon::added;
  NormOptions options{};
  bool in_place = false;
  double offset = 0;  ///< The values are offset + spread · (something normal).
  double spread = 1;
  std::uint64_t seed = 1;

  std::string describe() const;
};

/// Run it twice: values within what fp32 statistics allow, the same bits both times, nothing
/// outside the buffers. The output and the workspace start as NaN. Returns what is wrong, empty if
/// nothing is.
std::string run_norm_case(const NormCase& test);

/// A case like any that a caller may come with, small enough for a naive reference.
NormCase random_norm_case(std::mt19937_64& random, Device device);

NormPlan plan_norm(const NormCase& test);

}  // namespace convoy::test
