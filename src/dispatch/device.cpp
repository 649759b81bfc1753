// SPDX-License-Identifier: Apache-2.0
#include "dispatch/device.hpp"

#include "core/text.hpp"

namespace convoy {

std::string device_refusal(const DeviceInfo& device) {
  constexpr int kLeast = 80;  // mma.sync of bf16 and cp.async.
  const int capability = device.compute_capability;
  if (capability >= kLeast) return "";
  return text(device.name, " has compute capability ", capability / 10, ".", capability % 10,
              "; legal: 8.0 and later; nearest: device = cpu");
}

std::optional<DeviceInfo> usable_cuda_device(int index, std::string* reason) {
  std::optional<DeviceInfo> device = cuda_device(index, reason);
  if (!device) return device;
  const std::string refusal = device_refusal(*device);
  if (refusal.empty()) return device;
  if (reason != nullptr) *reason = refusal;
  return std::nullopt;
}

}  // namespace convoy
