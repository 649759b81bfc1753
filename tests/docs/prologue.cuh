// SPDX-License-Identifier: Apache-2.0
// What the CUDA examples take as given: arrays in the GPU's memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <convoy/convoy.hpp>
#include <cstdint>

namespace page {

extern __nv_bfloat16 *d, *a, *w;
extern cudaStream_t stream;
extern convoy::Conv2dProblemShape problem;

}  // namespace page
