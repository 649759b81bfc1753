// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>
#include <optional>
#include <string>

#include "convoy/info.hpp"

namespace convoy {

// The device functions of convoy/info.hpp are in device_cpu.cpp and device_cuda.cpp, or
// device_none.cpp in a build without CUDA; so is this.

/// Why no kernel runs on a CUDA device; empty where some do.
std::string device_refusal(const DeviceInfo& device);

/// `cuda_device` where kernels run on it; nothing, with the reason, where none do.
std::optional<DeviceInfo> usable_cuda_device(int index, std::string* reason);

/// Makes a CUDA device current for a scope; does nothing for index < 0. Throws
/// Error{launch_failure} where it cannot; with std::nothrow, as in destructors, the device that was
/// current stays.
class DeviceScope {
 public:
  explicit DeviceScope(int index);
  DeviceScope(int index, std::nothrow_t) noexcept;
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  [[maybe_unused]] int previous_ = -1;
};

}  // namespace convoy
