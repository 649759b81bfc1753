// SPDX-License-Identifier: Apache-2.0
#include "kernels/common/requirements.hpp"

#include <string>

#include "core/text.hpp"

namespace convoy {
namespace {

std::string version(int capability) {
  return text(capability / 10, ".", capability % 10);
}

}  // namespace

std::optional<Judgement> require_capability_from(const DeviceInfo& device, int capability,
                                                 const char* why) {
  if (device.compute_capability >= capability) return std::nullopt;
  return Judgement{RefusalScope::device,
                   text("compute capability = ", version(device.compute_capability),
                        "; legal: ", version(capability), " and later (", why, ")")};
}

std::optional<Judgement> require_capability(const DeviceInfo& device, int capability,
                                            const char* why) {
  if (device.compute_capability == capability) return std::nullopt;
  return Judgement{RefusalScope::device,
                   text("compute capability = ", version(device.compute_capability),
                        "; legal: ", version(capability), " (", why, ")")};
}

std::optional<Judgement> require_other_gpu(const DeviceInfo& device) {
  const int generation = device.compute_capability / 10;
  const bool spared =
      (generation == 9 && CONVOY_SPARES_SM90) || (generation == 10 && CONVOY_SPARES_SM100);
  if (!spared) return std::nullopt;
  return Judgement{RefusalScope::device,
                   text("compute capability = ", version(device.compute_capability),
                        "; legal: 8.x and 12.x, and what CONVOY_OTHER_GPUS names for a build")};
}

std::optional<Judgement> require_shared_memory(const DeviceInfo& device, std::size_t bytes) {
  if (device.shared_memory >= bytes) return std::nullopt;
  return Judgement{RefusalScope::device, text("shared memory of a block = ", device.shared_memory,
                                              " bytes; legal: at least ", bytes)};
}

std::optional<Judgement> require_whole_operands(const PlanRequest& request) {
  if (!request.operand_parts) return std::nullopt;
  return Judgement{RefusalScope::types, "parts of operands; legal: whole ones (sums would drift)"};
}

std::optional<Judgement> require_tf32(const PlanRequest& request) {
  if (request.dtype != DType::fp32 || request.allow_tf32) return std::nullopt;
  return Judgement{RefusalScope::types,
                   "fp32 without allow_tf32; legal: PlanOptions::allow_tf32 (products of TF32)"};
}

}  // namespace convoy
