// SPDX-License-Identifier: Apache-2.0
#include "kernels/common/launch.hpp"

#include <array>
#include <atomic>
#include <mutex>

#include "core/text.hpp"

namespace convoy {
namespace {

std::string extents_text(const dim3& extents) {
  return text(extents.x, " x ", extents.y, " x ", extents.z);
}

/// Whether kernels of the current device may begin while those before them end: compute capability
/// 9.0 and later.
bool launches_overlap() {
  static std::array<std::atomic<signed char>, 64> known{};  // 0: not asked; 1: yes, -1: no.
  int device = 0, major = 0;
  if (call_runtime([&] { return cudaGetDevice(&device); }) != cudaSuccess) return false;
  const auto index = static_cast<std::size_t>(device);
  if (index < known.size() && known[index] != 0) return known[index] > 0;
  const cudaError_t error = call_runtime(
      [&] { return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device); });
  if (error != cudaSuccess) return false;
  if (index < known.size()) known[index] = major >= 9 ? 1 : -1;
  return major >= 9;
}

}  // namespace

std::string error_text(cudaError_t error) {
  return text(cudaGetErrorName(error), ": ", cudaGetErrorString(error));
}

void launch_kernel(const void* kernel, const LaunchConfig& config, void** arguments) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t launch = {};
  launch.gridDim = config.grid;
  launch.blockDim = config.block;
  launch.dynamicSmemBytes = config.shared_bytes;
  launch.stream = config.stream;
  launch.attrs = attributes;
  if (config.overlapped && launches_overlap()) {
    cudaLaunchAttribute& attribute = attributes[launch.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (config.cluster.x > 0) {
    cudaLaunchAttribute& attribute = attributes[launch.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = config.cluster.x;
    attribute.val.clusterDim.y = config.cluster.y;
    attribute.val.clusterDim.z = config.cluster.z;
  }
  const cudaError_t error =
      call_runtime([&] { return cudaLaunchKernelExC(&launch, kernel, arguments); });
  if (error == cudaSuccess) return;
  const std::string cluster =
      config.cluster.x > 0 ? ", clusters of " + extents_text(config.cluster) : std::string();
  throw Error(Status::launch_failure,
              text(config.name, ": launch of ", extents_text(config.grid), " blocks of ",
                   extents_text(config.block), " threads", cluster, " with ", config.shared_bytes,
                   " bytes of dynamic shared memory: ", error_text(error)));
}

void raise_shared_memory_limit(const void* kernel, int bytes, const char* name) {
  // NOTE: the runtime keeps the limit, of each kernel on each device, and loses it where a device
  // is reset; so it is asked, not remembered. The lock makes one step of asking and raising.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const cudaError_t error = call_runtime([&] {
    cudaFuncAttributes attributes{};
    const cudaError_t asked = cudaFuncGetAttributes(&attributes, kernel);
    if (asked != cudaSuccess || attributes.maxDynamicSharedSizeBytes >= bytes) return asked;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  });
  if (error == cudaSuccess) return;
  throw Error(Status::launch_failure,
              text(name, ": ", bytes, " bytes of dynamic shared memory: ", error_text(error)));
}

int resident_blocks(const void* kernel, int threads, int shared_bytes, const char* name) {
  int blocks = 0;
  const cudaError_t error = call_runtime([&] {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads,
                                                         static_cast<std::size_t>(shared_bytes));
  });
  if (error == cudaSuccess && blocks > 0) return blocks;
  throw Error(Status::launch_failure,
              text(name, ": a block of ", threads, " threads with ", shared_bytes,
                   " bytes of dynamic shared memory does not fit a multiprocessor",
                   error == cudaSuccess ? "" : ": " + error_text(error)));
}

std::shared_ptr<void> allocate_device_memory(std::size_t bytes) {
  void* memory = nullptr;
  // NOTE: of no bytes the runtime gives no address.
  const cudaError_t error =
      call_runtime([&] { return cudaMalloc(&memory, bytes == 0 ? 1 : bytes); });
  if (error != cudaSuccess) {
    throw Error(error == cudaErrorMemoryAllocation ? Status::out_of_memory : Status::launch_failure,
                text("cudaMalloc of ", bytes, " bytes: ", error_text(error)));
  }
  // NOTE: a program that ends may have taken the runtime down before its last plan.
  return std::shared_ptr<void>(memory,
                               [](void* p) { (void)call_runtime([&] { return cudaFree(p); }); });
}

}  // namespace convoy
