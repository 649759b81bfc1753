// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exec/machine.hpp"

/// mbarrier objects: 8 bytes of shared memory that hold the whole state, so that a program that
/// overwrites them is noticed. Source: PTX ISA 9.0, "mbarrier".
namespace vgpu::exec {

struct Mbarrier {
  uint32_t pending = 0;   ///< arrivals still needed in this phase
  uint32_t expected = 0;  ///< arrivals of the next phase
  int32_t tx = 0;         ///< transaction bytes still to come
  uint32_t phase = 0;     ///< parity of the incomplete phase

  uint64_t bits() const;
  static bool is_object(uint64_t bits);
  static Mbarrier from_bits(uint64_t bits);
};

/// Where the phase is in the object's bytes, with the mark of a live object next to it.
constexpr uint32_t kPhaseByte = 7;
constexpr uint8_t kPhaseBits = 0xe0;

/// Reads an object; faults when there is none at the address.
Mbarrier load_mbarrier(Cta& cta, uint32_t offset);

/// Arrivals and transactions; each may complete the phase. `op` is null for threads' own ones.
/// `drop` also lowers the count of the phases to come. Gives the state before.
Mbarrier mbarrier_arrive(Cta& cta, uint32_t offset, uint32_t count, bool drop, const Agent& agent,
                         const AsyncOp* op, Order order, Scope scope);
void mbarrier_expect(Cta& cta, uint32_t offset, uint32_t bytes, const Agent& agent);
void mbarrier_complete(Cta& cta, uint32_t offset, uint32_t bytes, const Agent& agent,
                       const AsyncOp* op);
/// A barrier operand that may be generic as a shared::cluster address.
uint32_t mbarrier_address(uint64_t address);
/// One more arrival is needed in this phase (cp.async.mbarrier.arrive without .noinc).
void mbarrier_raise(Cta& cta, uint32_t offset);

}  // namespace vgpu::exec
