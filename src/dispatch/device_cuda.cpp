// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <map>
#include <mutex>

#include "convoy/info.hpp"
#include "core/text.hpp"
#include "dispatch/device.hpp"
#include "kernels/common/launch.hpp"

namespace convoy {
namespace {

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  const cudaError_t error =
      call_runtime([&] { return cudaDeviceGetAttribute(&value, which, index); });
  if (error != cudaSuccess) {
    throw Error(Status::launch_failure, text("cudaDeviceGetAttribute(", static_cast<int>(which),
                                             ") of device ", index, ": ", error_text(error)));
  }
  return value;
}

// 0 where the driver does not say.
int optional_attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  const bool known =
      call_runtime([&] { return cudaDeviceGetAttribute(&value, which, index); }) == cudaSuccess;
  return known && value > 0 ? value : 0;
}

// `previous`: what is to be current again; as it was where that is `index`.
cudaError_t make_current(int index, int& previous) {
  int current = -1;
  cudaError_t error = call_runtime([&] { return cudaGetDevice(&current); });
  if (error != cudaSuccess || current == index) return error;
  error = call_runtime([&] { return cudaSetDevice(index); });
  if (error == cudaSuccess) previous = current;
  return error;
}

DeviceInfo query(int index) {
  DeviceInfo device;
  device.kind = Device::cuda;
  device.index = index;
  device.compute_capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor, index) +
                              attribute(cudaDevAttrComputeCapabilityMinor, index);
  device.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, index);
  device.shared_memory =
      static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index));
  device.l2_bytes = static_cast<std::size_t>(attribute(cudaDevAttrL2CacheSize, index));
  // Two transfers a clock: 3201 MHz and 6016 bits are 4814 GB/s.
  device.memory_gbs = 2.0 * optional_attribute(cudaDevAttrMemoryClockRate, index) * 1e3 *
                      optional_attribute(cudaDevAttrGlobalMemoryBusWidth, index) / 8 * 1e-9;
  cudaDeviceProp properties{};
  const cudaError_t error =
      call_runtime([&] { return cudaGetDeviceProperties(&properties, index); });
  if (error == cudaSuccess) device.name = properties.name;
  return device;
}

}  // namespace

int cuda_device_count(std::string* reason) {
  int count = 0;
  const cudaError_t error = call_runtime([&] { return cudaGetDeviceCount(&count); });
  if (error != cudaSuccess) {
    // NOTE: the runtime says "insufficient driver" where there is no driver at all.
    const bool none = error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver;
    if (reason != nullptr) {
      *reason = none ? "no NVIDIA GPU here (or no driver of CUDA 13)"
                     : text("no NVIDIA GPU can be used: ", cudaGetErrorString(error));
    }
    return 0;
  }
  if (count == 0 && reason != nullptr) *reason = "no NVIDIA GPU here";
  return count;
}

std::optional<DeviceInfo> cuda_device(int index, std::string* reason) {
  const int count = cuda_device_count(reason);
  if (count == 0) return std::nullopt;
  if (index >= count) {
    throw_invalid("device_index = ", index, " is not legal; legal: -1 (the current device) to ",
                  count - 1, "; nearest: ", count - 1);
  }
  if (index < 0) {
    const cudaError_t error = call_runtime([&] { return cudaGetDevice(&index); });
    if (error != cudaSuccess) {
      if (reason != nullptr) *reason = text("no current CUDA device: ", cudaGetErrorString(error));
      return std::nullopt;
    }
  }
  static std::mutex mutex;
  static std::map<int, DeviceInfo> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(index);
  if (found != known.end()) return found->second;
  return known[index] = query(index);
}

DeviceScope::DeviceScope(int index) {
  if (index < 0) return;
  const cudaError_t error = make_current(index, previous_);
  if (error != cudaSuccess) {
    throw Error(Status::launch_failure,
                text("device ", index, " cannot be made current: ", error_text(error)));
  }
}

DeviceScope::DeviceScope(int index, std::nothrow_t) noexcept {
  if (index >= 0) (void)make_current(index, previous_);
}

DeviceScope::~DeviceScope() {
  if (previous_ >= 0) (void)call_runtime([&] { return cudaSetDevice(previous_); });
}

}  // namespace convoy
