// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exec/machine.hpp"

/// From PTX addresses to host memory: bounds, alignment and space checks, and the observer's
/// events.
namespace vgpu::exec {

/// [offset, offset + bytes) of the shared window of a CTA. `what` names the access in faults.
uint8_t* shared_range(Cta& cta, uint32_t offset, uint64_t bytes, const char* what);

/// The CTA that a shared::cluster address names.
Cta& shared_cta(Cluster& cluster, uint32_t address);

/// [address, address + bytes) of global memory; faults with the registry's explanation.
uint8_t* global_pointer(Worker& worker, uint64_t address, uint64_t bytes, bool is_write);

/// A generic address of a lane.
uint8_t* generic_pointer(Warp& w, uint32_t lane, uint64_t address, uint32_t bytes, Access access);

enum class AddressSpace : uint8_t { generic, global, shared_cta, shared_cluster, local, param };

/// A memory instruction's common part: the lanes' addresses become host pointers, each checked for
/// alignment to `bytes` (a power of two) and bounds, and the observer is told.
struct MemoryRequest {
  AddressSpace space = AddressSpace::generic;
  uint32_t bytes = 4;
  Access access = Access::read;
  Order order = Order::weak;
  Scope scope = Scope::cta;
};
/// Whether an access at this address is one of global memory.
bool is_global(const MemoryRequest& request, uint64_t address);
/// What a store puts there: `count` elements of `element` bytes, each lane's from its registers.
struct StoredValues {
  unsigned element = 4, count = 1;
  const uint32_t* registers = nullptr;      ///< offsets in the register file, by element
  const uint8_t* register_bytes = nullptr;  ///< by element
};
/// `stored`: of a store to shared memory, tells the observer which lanes change nothing.
void resolve(Warp& w, const MemoryRequest& request, uint32_t lanes, const uint64_t* addresses,
             uint8_t** pointers, const StoredValues* stored = nullptr);

}  // namespace vgpu::exec
