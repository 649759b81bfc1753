// SPDX-License-Identifier: Apache-2.0
#include "device_memory.hpp"

#include <cstring>

#include "convoy/error.hpp"
#include "io/host_tensor.hpp"

#ifdef CONVOY_WITH_CUDA
#include "cuda_check.hpp"
#endif

namespace convoy::cli {

Device device_of(const Plan& plan) {
  return plan.info().backend.starts_with("cuda") ? Device::cuda : Device::cpu;
}

DeviceMemory::DeviceMemory(Device device, std::size_t bytes) : device_(device), bytes_(bytes) {
#ifdef CONVOY_WITH_CUDA
  if (device == Device::cuda) {
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, bytes > 0 ? bytes : 1), "cudaMalloc");
    memory_ = std::shared_ptr<void>(memory, [](void* freed) { cudaFree(freed); });
    return;
  }
#endif
  auto owner = std::make_shared<io::AlignedBytes>(bytes);
  memory_ = std::shared_ptr<void>(owner, owner->data());
}

void DeviceMemory::upload(const void* from, std::size_t bytes) {
#ifdef CONVOY_WITH_CUDA
  if (device_ == Device::cuda) {
    check_cuda(cudaMemcpy(memory_.get(), from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    return;
  }
#endif
  if (bytes > 0) std::memcpy(memory_.get(), from, bytes);
}

void DeviceMemory::download(void* into, std::size_t bytes) const {
#ifdef CONVOY_WITH_CUDA
  if (device_ == Device::cuda) {
    check_cuda(cudaMemcpy(into, memory_.get(), bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return;
  }
#endif
  if (bytes > 0) std::memcpy(into, memory_.get(), bytes);
}

void synchronize([[maybe_unused]] Device device) {
#ifdef CONVOY_WITH_CUDA
  if (device == Device::cuda) check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
#endif
}

}  // namespace convoy::cli
