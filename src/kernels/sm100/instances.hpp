// SPDX-License-Identifier: Apache-2.0
//
// A compiled configuration as a value. Apart from host.hpp, whose headers cost an instance more
// compile time than its kernels.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/sm100/config.hpp"

namespace convoy::sm100 {

/// A compiled configuration with its ops, as the host sees it.
struct Instance {
  Config config;
  const void* run = nullptr;                ///< conv2d_fprop_run
  const void* run_with_residual = nullptr;  ///< conv2d_fprop_run_with_residual
  std::size_t shared_bytes = 0;
  std::size_t shared_bytes_with_residual = 0;
  /// A hook sees vectors of consecutive filters, so the output's rows must be whole vectors.
  bool has_hooks = false;
};

/// Every instance of this build, with the run-time epilogue and no hooks. The list is
/// src/kernels/sm100/instances.txt.
const std::vector<Instance>& instances();

/// "sm100_fprop_256x256x128_2sm_c2x1_bf16": MMA tile and depth of a stage, CTA group, cluster;
/// where they differ from the default swizzle and k group; types.
std::string name_of(const Instance& instance);

}  // namespace convoy::sm100
