// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace convoy {

// The device functions of convoy/info.hpp are in device_cpu.cpp and device_cuda.cpp, or
// device_none.cpp in a build without CUDA; so is this.

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
