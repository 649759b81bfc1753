// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "convoy/error.hpp"

namespace convoy::cli {

/// Throws Error{out_of_memory} or Error{launch_failure} "<call>: <what the runtime says>".
inline void check_cuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  throw Error(
      error == cudaErrorMemoryAllocation ? Status::out_of_memory : Status::launch_failure,
      std::string(call) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
}

}  // namespace convoy::cli
