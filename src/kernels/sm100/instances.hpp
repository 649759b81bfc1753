// SPDX-License-Identifier: Apache-2.0
//
// A compiled configuration as a value. Apart from host.hpp, whose headers cost an instance more
// compile time than its kernels.
#pragma once

#include <cstddef>

#include "kernels/sm100/config.hpp"

namespace convoy::sm100 {

/// A compiled configuration with its ops.
struct ConvKernel {
  ConvKernelConfig config;
  const void* run = nullptr;                ///< conv2d_fprop_run
  const void* run_with_residual = nullptr;  ///< conv2d_fprop_run_with_residual
  std::size_t shared_bytes = 0;
  std::size_t shared_bytes_with_residual = 0;
  /// A hook sees vectors of consecutive filters, so the output's rows must be whole vectors.
  bool has_hooks = false;
};

}  // namespace convoy::sm100
