// SPDX-License-Identifier: Apache-2.0
#include "softmax.hpp"

#include <cuda_bf16.h>

#include <stdexcept>
#include <string>

namespace {

constexpr int kThreads = 256;

__device__ float reduce(float value, bool largest) {
  __shared__ float parts[kThreads];
  parts[threadIdx.x] = value;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      const float other = parts[threadIdx.x + half];
      parts[threadIdx.x] = largest ? fmaxf(parts[threadIdx.x], other) : parts[threadIdx.x] + other;
    }
  }
  __syncthreads();
  value = parts[0];
  __syncthreads();
  return value;
}

__device__ void put(float* to, float value) {
  *to = value;
}
__device__ void put(__nv_bfloat16* to, float value) {
  *to = __float2bfloat16(value);
}

/// A block a row.
template <typename Element>
__global__ void softmax_kernel(const float* scores, Element* out, long long columns) {
  scores += blockIdx.x * columns;
  out += blockIdx.x * columns;
  float largest = -INFINITY, sum = 0;
  for (long long i = threadIdx.x; i < columns; i += kThreads) largest = fmaxf(largest, scores[i]);
  largest = reduce(largest, true);
  for (long long i = threadIdx.x; i < columns; i += kThreads) sum += expf(scores[i] - largest);
  sum = reduce(sum, false);
  for (long long i = threadIdx.x; i < columns; i += kThreads) {
    put(out + i, expf(scores[i] - largest) / sum);
  }
}

}  // namespace

void softmax_on_gpu(const float* scores, void* out, long long rows, long long columns, bool bf16) {
  const auto grid = static_cast<unsigned>(rows);
  if (bf16) {
    softmax_kernel<<<grid, kThreads>>>(scores, static_cast<__nv_bfloat16*>(out), columns);
  } else {
    softmax_kernel<<<grid, kThreads>>>(scores, static_cast<float*>(out), columns);
  }
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("softmax: ") + cudaGetErrorString(error));
  }
}
