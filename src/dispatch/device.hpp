// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "core/candidate.hpp"

namespace convoy {

// What dispatch wants to know of devices, in plain C++. The CUDA side is device_cuda.cpp, or
// device_none.cpp in a build without CUDA.

/// This machine's processor.
DeviceInfo cpu_device();

/// CUDA devices that can be used; 0 with the reason where there is none.
int cuda_device_count(std::string* reason = nullptr);

/// CUDA device `index`, or the current one for -1. Nothing, with the reason, where there is no CUDA
/// device. Throws Error{invalid_argument} for an index past the last device.
std::optional<DeviceInfo> cuda_device(int index, std::string* reason = nullptr);

/// Makes a CUDA device current for a scope; does nothing for index < 0.
class DeviceScope {
 public:
  explicit DeviceScope(int index);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  [[maybe_unused]] int previous_ = -1;
};

}  // namespace convoy
