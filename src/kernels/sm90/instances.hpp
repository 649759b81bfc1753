// SPDX-License-Identifier: Apache-2.0
//
// A compiled configuration as a value. Apart from host.hpp, whose headers cost an instance more
// compile time than its kernels.
#pragma once

#include <string>
#include <vector>

#include "kernels/sm90/config.hpp"
#include "kernels/sm90/params.hpp"

namespace convoy::sm90 {

/// A compiled configuration with its ops.
struct Instance {
  Config config;
  /// Entry points by EpiloguePath; an instance with ops has the general one alone, and so have some
  /// of a build with CONVOY_EPILOGUES=turns. Some lack the general or the curved one, or both
  /// (instances.txt). EpiloguePath::statistics: where Config::takes_statistics().
  const void* kernels[kEpiloguePaths] = {};
  /// Of Input::runs: the same of layers that are products of matrices (Input::matrix), where there
  /// are such.
  const void* matrix_kernels[kEpiloguePaths] = {};
  int shared_bytes = 0;

  /// The path has an entry point of its own, for every layer.
  bool has(EpiloguePath path) const { return kernels[static_cast<int>(path)] != nullptr; }
};

/// Every instance of this build (instances.txt), with the run-time epilogue and no ops.
const std::vector<Instance>& instances();

/// As dispatch and tuning files name it: "sm90_fprop_128x128_pingpong_bf16",
/// "sm90_fprop_64x128_splitk_bf16_fp32".
std::string name_of(const Instance& instance);

}  // namespace convoy::sm90
