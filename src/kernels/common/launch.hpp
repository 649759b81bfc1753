// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <string>

#include "convoy/error.hpp"
#include "convoy/types.hpp"

namespace convoy {

/// Throw Error{launch_failure} with the runtime's own words if the last launch was refused.
inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) {
    throw Error(Status::launch_failure, std::string(kernel) +
                                            " kernel: " + cudaGetErrorName(error) + ": " +
                                            cudaGetErrorString(error));
  }
}

/// Call `body.template operator()<Element>()` with the device type of `dtype`.
template <typename Body>
void dispatch_element(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::bf16:
      return body.template operator()<__nv_bfloat16>();
    case DType::fp16:
      return body.template operator()<__half>();
    case DType::fp32:
      return body.template operator()<float>();
  }
  throw Error(Status::invalid_argument, "element type " + std::to_string(static_cast<int>(dtype)) +
                                            " is not one of bf16, fp16, fp32");
}

}  // namespace convoy
