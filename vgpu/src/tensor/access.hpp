// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

/// How tensor operations see the memory of CTAs, and how they tell what they touched.
namespace vgpu::tensor {

/// Receives the ranges that an operation reads and writes, before it touches them; it may throw a
/// Fault. `cta` is the index in the span of CTAs given to the operation (0, or 0 and 1 for a pair).
class AccessVisitor {
 public:
  virtual ~AccessVisitor() = default;
  /// Reads of 16-byte pieces of shared memory.
  virtual void shared_chunks(uint32_t cta, std::span<const uint32_t> addresses) = 0;
  /// A rectangle of 32-bit TMEM cells.
  virtual void tmem(uint32_t cta, uint32_t lane, uint32_t lanes, uint32_t column, uint32_t columns,
                    bool write) = 0;
};

/// Shared memory of one CTA: `data[a]` is the byte at shared-window address `a`; addresses in
/// [first, end) exist (the hardware keeps the first KiB for itself).
struct SharedView {
  uint8_t* data = nullptr;
  uint32_t first = 0;
  uint32_t end = 0;
};

class Tmem;

/// The memory of a CTA that takes part in a tensor operation.
struct CtaMemory {
  SharedView shared;
  Tmem* tmem = nullptr;
};

}  // namespace vgpu::tensor
