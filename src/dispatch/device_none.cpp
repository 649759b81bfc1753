// SPDX-License-Identifier: Apache-2.0
// The CUDA side of info.hpp and device.hpp in a build without CUDA.
#include "convoy/info.hpp"
#include "dispatch/device.hpp"

namespace convoy {

int cuda_device_count(std::string* reason) {
  if (reason != nullptr) *reason = "this build of the library has no CUDA";
  return 0;
}

std::optional<DeviceInfo> cuda_device(int, std::string* reason) {
  cuda_device_count(reason);
  return std::nullopt;
}

DeviceScope::DeviceScope(int) {}
DeviceScope::DeviceScope(int, std::nothrow_t) noexcept {}
// NOTE: not defaulted here, since with CUDA it has something to do, and is not trivial.
DeviceScope::~DeviceScope() {}

}  // namespace convoy
