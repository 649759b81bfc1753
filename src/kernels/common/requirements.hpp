// SPDX-License-Identifier: Apache-2.0
//
// What kernels ask of a request before they look at its geometry: the GPU, its shared memory, the
// operands. Each returns the refusal, or nothing where the request is as it should be.
#pragma once

#include <cstddef>
#include <optional>

#include "core/candidate.hpp"

namespace convoy {

/// The GPU has compute capability `capability` (10 · major + minor) or a later one. `why`: what it
/// is needed for.
std::optional<Judgement> require_capability_from(const DeviceInfo& device, int capability,
                                                 const char* why);

/// The GPU has exactly this compute capability: the kernel's instructions are no other's.
std::optional<Judgement> require_capability(const DeviceInfo& device, int capability,
                                            const char* why);

/// The build has machine code for the GPU of kernels that are for others than Hopper and Blackwell
/// (`FOR ${CONVOY_OTHER_GPUS}` of convoy_add_kernels).
/// NOTE: else the driver would compile them at their first launch, for seconds.
std::optional<Judgement> require_other_gpu(const DeviceInfo& device);

/// A block may have so many bytes of shared memory.
std::optional<Judgement> require_shared_memory(const DeviceInfo& device, std::size_t bytes);

/// Operands are whole, not the parts that split_copy makes of fp32 ones.
std::optional<Judgement> require_whole_operands(const PlanRequest& request);

/// Operands are not fp32, or may be rounded to TF32.
std::optional<Judgement> require_tf32(const PlanRequest& request);

}  // namespace convoy
