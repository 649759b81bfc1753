// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#ifdef VAE_DECODE_CUDA
#include <cuda_runtime.h>

namespace {
void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
  }
}
}  // namespace
#endif

void require_cuda() {
#ifdef VAE_DECODE_CUDA
  int count = 0;
  check(cudaGetDeviceCount(&count), "--device cuda");
  if (count == 0) throw std::runtime_error("--device cuda: no GPU; legal here: cpu");
#else
  throw std::runtime_error(
      "--device cuda: built without nvcc; legal here: cpu (CMake says where it looked for nvcc)");
#endif
}

std::shared_ptr<void> allocate(std::size_t bytes, [[maybe_unused]] bool cuda) {
  bytes = (bytes + 63) / 64 * 64 + 64;
#ifdef VAE_DECODE_CUDA
  if (cuda) {
    void* data = nullptr;
    check(cudaMalloc(&data, bytes), "cudaMalloc");
    return {data, [](void* p) { cudaFree(p); }};
  }
#endif
  void* data = std::aligned_alloc(64, bytes);
  if (data == nullptr) throw std::bad_alloc();
  return {data, std::free};
}

void copy_in(void* to, const void* host, std::size_t bytes, [[maybe_unused]] bool cuda) {
#ifdef VAE_DECODE_CUDA
  if (cuda) return check(cudaMemcpy(to, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
#endif
  std::memcpy(to, host, bytes);
}

void copy_out(void* host, const void* from, std::size_t bytes, [[maybe_unused]] bool cuda) {
#ifdef VAE_DECODE_CUDA
  if (cuda) return check(cudaMemcpy(host, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
#endif
  std::memcpy(host, from, bytes);
}

void copy_within(void* to, const void* from, std::size_t bytes, [[maybe_unused]] bool cuda) {
#ifdef VAE_DECODE_CUDA
  if (cuda) {
    return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice), "cudaMemcpyAsync");
  }
#endif
  std::memcpy(to, from, bytes);
}
