// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "exec/machine.hpp"
#include "tensor/access.hpp"

namespace vgpu::exec {

/// Passes what a tensor operation touches on to the observer.
class TensorVisitor : public tensor::AccessVisitor {
 public:
  /// `first_rank`: the CTA rank of the operation's CTA 0.
  TensorVisitor(Cluster& cluster, const AsyncOp& op, uint32_t first_rank)
      : cluster_(cluster), op_(op), first_rank_(first_rank) {}
  /// What to hand to tensor functions: null when nobody listens.
  tensor::AccessVisitor* get() { return cluster_.observer ? this : nullptr; }
  /// What AsyncAccess::rows says of the accesses that follow.
  void set_rows(uint8_t rows) { rows_ = rows; }

  void shared_chunks(uint32_t cta, std::span<const uint32_t> addresses) override {
    AsyncAccess event;
    event.memory = Memory::shared;
    event.access = Access::read;
    event.cta = first_rank_ + cta;
    event.bytes = 16;
    event.rows = rows_;
    cluster_.observer->async_chunks(op_, event, addresses);
  }
  void tmem(uint32_t cta, uint32_t lane, uint32_t lanes, uint32_t column, uint32_t columns,
            bool write) override {
    AsyncAccess event;
    event.memory = Memory::tensor;
    event.access = write ? Access::write : Access::read;
    event.cta = first_rank_ + cta;
    event.address = lane << 16 | column;
    event.bytes = uint64_t{lanes} * columns * 4;
    event.lanes = lanes;
    event.columns = columns;
    cluster_.observer->async_access(op_, event);
  }

 private:
  Cluster& cluster_;
  const AsyncOp& op_;
  uint32_t first_rank_;
  uint8_t rows_ = 0;
};

inline tensor::SharedView shared_view(Cta& cta) {
  return {cta.shared.data(), kSharedReserved, static_cast<uint32_t>(cta.shared.size())};
}

}  // namespace vgpu::exec
