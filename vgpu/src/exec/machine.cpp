// SPDX-License-Identifier: Apache-2.0
#include "exec/machine.hpp"

#include <algorithm>

namespace vgpu::exec {

uint64_t read_lane(const Warp& w, const Ref& ref, uint32_t lane) {
  switch (ref.kind) {
    case Ref::Kind::pred:
      return predicate(w, ref) >> lane & 1;
    case Ref::Kind::reg: {
      const uint8_t* base = w.registers + ref.at;
      switch (ref.bytes) {
        case 2:
          return reinterpret_cast<const uint16_t*>(base)[lane];
        case 4:
          return reinterpret_cast<const uint32_t*>(base)[lane];
        case 8:
          return reinterpret_cast<const uint64_t*>(base)[lane];
        default:
          return reinterpret_cast<const uint64_t*>(base)[2 * lane];
      }
    }
    default:
      return 0;
  }
}

void write_lane(Warp& w, const Ref& ref, uint32_t lane, uint64_t value) {
  switch (ref.kind) {
    case Ref::Kind::pred:
      set_predicate(w, ref.at, 1u << lane, value & 1 ? kAllLanes : 0);
      return;
    case Ref::Kind::reg: {
      uint8_t* base = w.registers + ref.at;
      switch (ref.bytes) {
        case 2:
          reinterpret_cast<uint16_t*>(base)[lane] = static_cast<uint16_t>(value);
          return;
        case 4:
          reinterpret_cast<uint32_t*>(base)[lane] = static_cast<uint32_t>(value);
          return;
        default:
          reinterpret_cast<uint64_t*>(base)[lane] = value;
          return;
      }
    }
    default:
      return;
  }
}

void read_addresses(const Warp& w, const Ref& ref, uint64_t* out) {
  for (uint32_t l = 0; l < kLanes; ++l) out[l] = read_address(w, ref, l);
  // 32-bit bases wrap at 32 bits.
  if (ref[0].bytes == 4) {
    for (uint32_t l = 0; l < kLanes; ++l) out[l] &= 0xffffffffu;
  }
}

Agent agent_of(const Warp& w, uint32_t lanes) {
  Agent agent;
  agent.cta = w.cta->rank;
  agent.warp = w.id;
  agent.lanes = lanes;
  agent.state = &w;
  if (w.group) {
    auto& source = w.kernel->source[w.group->pc];
    agent.function = source.function;
    agent.instruction = source.instruction;
  }
  return agent;
}

OperandValues::OperandValues(const Agent& agent)
    : warp_(agent.state), function_(agent.function), places_(nullptr) {
  if (!warp_) return;
  const auto found = warp_->kernel->places.find(function_);
  if (found != warp_->kernel->places.end()) places_ = &found->second;
}

std::optional<uint64_t> OperandValues::at(const ptx::Operand& operand, uint32_t lane) const {
  if (operand.kind == ptx::Operand::Kind::imm) return static_cast<uint64_t>(operand.value);
  if (operand.kind != ptx::Operand::Kind::reg || !places_) return std::nullopt;
  const uint32_t at = (*places_)[operand.index];
  const ptx::Type type = function_->registers[operand.index].type;
  if (type == ptx::Type::pred) {
    return (warp_->predicates[at] >> lane & 1) ^ uint32_t { operand.negated };
  }
  const uint32_t bytes = std::max(2u, ptx::size_of(type));
  if (bytes > 8) return std::nullopt;
  return read_lane(*warp_, {.kind = Ref::Kind::reg, .bytes = static_cast<uint8_t>(bytes), .at = at},
                   lane);
}

int64_t Grid::take_cluster() {
  std::lock_guard lock(mutex);
  return next_cluster < cluster_count ? static_cast<int64_t>(next_cluster++) : -1;
}

bool Grid::has_waiting_clusters() {
  std::lock_guard lock(mutex);
  return next_cluster < cluster_count;
}

}  // namespace vgpu::exec
