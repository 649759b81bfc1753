// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exec/async.hpp"
#include "exec/decoder.hpp"
#include "exec/mbarrier.hpp"
#include "exec/memory_access.hpp"

/// What bulk copies (copy_ops.cpp) and tensor copies (tma_ops.cpp) share.
namespace vgpu::exec {

/// cp.async.bulk.tensor, cp.reduce.async.bulk.tensor, cp.async.bulk.prefetch.tensor.
bool decode_tensor_copy(Decoder& d);

/// Where a copy lands: a CTA's shared window, and the mbarrier that counts its bytes.
struct CopyTarget {
  Cta* cta = nullptr;
  uint32_t offset = 0;
  Cta* barrier_cta = nullptr;
  uint32_t barrier = 0;
};
/// The destinations of a load: one, or one for each CTA of a multicast mask. `destination` and
/// `barrier` are shared::cluster addresses. With cta_group::2 the barrier may be in the CTA pair's
/// other CTA, and keeps its parity in every pair of a multicast.
std::vector<CopyTarget> copy_targets(Warp& w, uint32_t destination, uint32_t barrier,
                                     bool multicast, uint32_t mask, bool pair);

/// Tells the observer what an operation touches.
void notify_async(Cluster& cluster, const AsyncOp& op, Memory memory, Access access, uint32_t cta,
                  uint64_t address, uint64_t bytes, Proxy proxy = Proxy::async,
                  uint8_t lane = AsyncAccess::kAnyLane);

/// A 32-bit shared address from an operand that may be generic; faults for other spaces.
uint32_t shared_operand(uint64_t address, const char* what);

}  // namespace vgpu::exec
