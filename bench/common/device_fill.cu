// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>

#include "cuda_check.hpp"
#include "device_fill.hpp"

namespace convoy::bench {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 1024;

// SplitMix64 (Steele, Lea, Flood 2014): a good hash of a counter.
__device__ std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

template <typename Element>
__global__ void fill_kernel(Element* data, std::int64_t elements, std::uint64_t seed, float scale) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elements;
       i += step) {
    const auto bits = static_cast<std::uint32_t>(mix(seed * 0x632be59bd9b4e019ull + i) >> 40);
    data[i] = static_cast<Element>((static_cast<float>(bits) * 0x1p-23f - 1.0f) * scale);
  }
}

template <typename Element>
__global__ void difference_kernel(const Element* a, const Element* b, std::int64_t elements,
                                  double* sums) {
  double difference = 0, size = 0;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elements;
       i += step) {
    const double x = static_cast<float>(a[i]), y = static_cast<float>(b[i]);
    difference += (x - y) * (x - y);
    size += y * y;
  }
  atomicAdd(&sums[0], difference);
  atomicAdd(&sums[1], size);
}

cudaLaunchConfig_t launch_config(cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = kBlocks;
  config.blockDim = kThreads;
  config.stream = stream;
  return config;
}

/// Calls body.template operator()<Element>() for the element type of `dtype`.
template <typename Body>
void with_element(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::bf16:
      return body.template operator()<__nv_bfloat16>();
    case DType::fp16:
      return body.template operator()<__half>();
    case DType::fp32:
      return body.template operator()<float>();
  }
}

}  // namespace

void fill_random(void* data, std::int64_t elements, DType dtype, std::uint64_t seed, float scale,
                 cudaStream_t stream) {
  const cudaLaunchConfig_t config = launch_config(stream);
  with_element(dtype, [&]<typename Element>() {
    cli::check_cuda(cudaLaunchKernelEx(&config, fill_kernel<Element>, static_cast<Element*>(data),
                                       elements, seed, scale),
                    "launch of fill");
  });
}

double relative_difference(const void* a, const void* b, std::int64_t elements, DType dtype) {
  double* sums = nullptr;
  double host[2] = {};
  if (cudaMalloc(&sums, sizeof host) != cudaSuccess) {
    throw Error(Status::out_of_memory, "cudaMalloc of two sums");
  }
  cudaMemset(sums, 0, sizeof host);
  const cudaLaunchConfig_t config = launch_config(nullptr);
  with_element(dtype, [&]<typename Element>() {
    cli::check_cuda(
        cudaLaunchKernelEx(&config, difference_kernel<Element>, static_cast<const Element*>(a),
                           static_cast<const Element*>(b), elements, sums),
        "launch of difference");
  });
  const cudaError_t error = cudaMemcpy(host, sums, sizeof host, cudaMemcpyDeviceToHost);
  cudaFree(sums);
  if (error != cudaSuccess) throw Error(Status::launch_failure, cudaGetErrorString(error));
  return std::sqrt(host[0] / host[1]);
}

}  // namespace convoy::bench
