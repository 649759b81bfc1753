// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "core/candidate.hpp"
#include "kernels/common/filter_packing.hpp"
#include "kernels/common/launch.hpp"
#include "kernels/common/next_cache.hpp"

namespace convoy {

/// Memory of the current CUDA device, freed with the last copy.
inline std::shared_ptr<void> allocate_device_memory(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes == 0 ? 1 : bytes);
  if (error != cudaSuccess) {
    cudaGetLastError();
    throw Error(error == cudaErrorMemoryAllocation ? Status::out_of_memory : Status::launch_failure,
                "cudaMalloc of " + std::to_string(bytes) + " bytes: " + cudaGetErrorString(error));
  }
  return std::shared_ptr<void>(memory, [](void* p) { cudaFree(p); });
}

/// What the portable kernels' plans have in common: the filter as dense KTRSC, no workspace, the
/// next cache written after the convolution.
class PortablePlan : public ExecutablePlan {
 public:
  explicit PortablePlan(const PlanRequest& request) : request_(request) {}

  void run(const RunPointers& pointers, cudaStream_t stream) const final {
    launch(pointers, stream);
    if (pointers.next_cache != nullptr) {
      write_next_cache(pointers.next_cache, pointers.cache, pointers.activation, request_.geometry,
                       request_.dtype, stream);
    }
  }
  std::size_t packed_filter_bytes() const override {
    return static_cast<std::size_t>(request_.geometry.filter_elements()) * size_of(request_.dtype);
  }
  void pack_filter(void* packed, const void* filter, FilterLayout layout,
                   cudaStream_t stream) const override {
    repack_filter(packed, filter, layout, request_.geometry, request_.dtype, stream);
  }
  std::shared_ptr<void> allocate(std::size_t bytes) const override {
    return allocate_device_memory(bytes);
  }

 protected:
  virtual void launch(const RunPointers& pointers, cudaStream_t stream) const = 0;
  const PlanRequest& request() const { return request_; }

 private:
  PlanRequest request_;
};

/// Raise a kernel's limit of dynamic shared memory; needed above 48 KiB.
template <typename Kernel>
void allow_shared_memory(Kernel* kernel, int bytes) {
  const cudaError_t error = cudaFuncSetAttribute(
      reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) {
    cudaGetLastError();
    throw Error(Status::launch_failure,
                "cannot give a kernel " + std::to_string(bytes) +
                    " bytes of shared memory: " + cudaGetErrorString(error));
  }
}

/// Blocks of a kernel that one multiprocessor holds at once.
template <typename Kernel>
int resident_blocks(Kernel* kernel, int threads, int shared_bytes) {
  int blocks = 0;
  const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, reinterpret_cast<const void*>(kernel), threads,
      static_cast<std::size_t>(shared_bytes));
  if (error != cudaSuccess || blocks < 1) {
    cudaGetLastError();
    throw Error(Status::internal, "a portable kernel does not fit the device: " +
                                      std::string(cudaGetErrorString(error)));
  }
  return blocks;
}

}  // namespace convoy
