// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "convoy/plan.hpp"

namespace convoy::cli {

/// Where a plan's pointers must point: Device::cpu or Device::cuda.
Device device_of(const Plan& plan);

/// Memory on a device, freed with the object. Host memory for Device::cpu.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// Throws Error{out_of_memory}, std::bad_alloc.
  DeviceMemory(Device device, std::size_t bytes);

  void* data() const { return memory_.get(); }
  std::size_t bytes() const { return bytes_; }
  void upload(const void* from, std::size_t bytes);
  void download(void* into, std::size_t bytes) const;

 private:
  Device device_ = Device::cpu;
  std::size_t bytes_ = 0;
  std::shared_ptr<void> memory_;
};

/// Waits for everything enqueued on the device; throws Error{launch_failure} where it went wrong.
void synchronize(Device device);

}  // namespace convoy::cli
