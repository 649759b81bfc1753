// SPDX-License-Identifier: Apache-2.0
#include "check/register_hazards.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace vgpu::check {
namespace {

using Operand = ptx::Operand;

RegisterUse use_of(const ptx::Form& form) {
  if (form.text.starts_with("wgmma.mma_async")) return RegisterUse::wgmma;
  if (form.text.starts_with("tcgen05.ld.")) return RegisterUse::tmem_load;
  if (form.parts[0] == "mov") return RegisterUse::copy;
  return RegisterUse::ordinary;
}

/// Calls f(register index) for each register in an operand.
template <typename F>
void for_each_register(const ptx::Function& function, const Operand& operand, F f) {
  if (operand.kind == Operand::Kind::reg) f(operand.index);
  for (uint32_t k = 0; k < operand.count; ++k) {
    for_each_register(function, function.operands[operand.first + k], f);
  }
}

/// The registers an instruction uses after it was issued: D and A of wgmma, the result of a load.
template <typename F>
void for_each_watched(const ptx::Function& function, const ptx::Instruction& instruction,
                      RegisterUse use, F f) {
  if (use != RegisterUse::wgmma && use != RegisterUse::tmem_load) return;
  const uint32_t operands = use == RegisterUse::wgmma ? 2 : 1;
  for (uint32_t k = 0; k < operands && k < instruction.count; ++k) {
    const Operand& operand = function.operands[instruction.first + k];
    // A descriptor of A is an ordinary source.
    if (use == RegisterUse::wgmma && operand.kind != Operand::Kind::vector) continue;
    for_each_register(function, operand, f);
  }
}

}  // namespace

bool wgmma_packs(const ptx::Form& form) {
  for (size_t k = 0; k + 1 < form.parts.size(); ++k) {
    if (form.parts[k].starts_with("m64n")) return form.parts[k + 1] == "f16";
  }
  return false;
}

FunctionRegisters::FunctionRegisters(const ptx::Module& module, const ptx::Function& function)
    : function_(&function) {
  constexpr uint32_t kNone = ~0u;
  std::vector<uint32_t> slot_of(function.registers.size(), kNone);
  auto watch = [&](uint32_t index) {
    if (slot_of[index] != kNone) return false;
    slot_of[index] = static_cast<uint32_t>(names_.size());
    names_.emplace_back(function.registers[index].name);
    indices_.push_back(index);
    return true;
  };
  for (const ptx::Instruction& instruction : function.code) {
    const RegisterUse use = use_of(module.forms[instruction.form]);
    uses_.push_back(use);
    for_each_watched(function, instruction, use, watch);
  }
  named_ = static_cast<uint32_t>(names_.size());

  auto for_each_in = [&](const ptx::Instruction& instruction, uint32_t operand, auto f) {
    if (operand < instruction.count) {
      for_each_register(function, function.operands[instruction.first + operand], f);
    }
  };
  // What a move copies or packs a watched register into is watched too; moves may go backwards.
  for (bool more = named_ > 0; more;) {
    more = false;
    for (size_t i = 0; i < function.code.size(); ++i) {
      if (uses_[i] != RegisterUse::copy) continue;
      bool carries = false;
      for_each_in(function.code[i], 1, [&](uint32_t index) { carries |= slot_of[index] != kNone; });
      if (carries) for_each_in(function.code[i], 0, [&](uint32_t index) { more |= watch(index); });
    }
  }

  for (size_t i = 0; i < function.code.size(); ++i) {
    first_.push_back(static_cast<uint32_t>(slots_.size()));
    const ptx::Instruction& instruction = function.code[i];
    auto add = [&](uint32_t index) {
      if (slot_of[index] != kNone) slots_.push_back(slot_of[index]);
    };
    results_.push_back(0);
    if (uses_[i] == RegisterUse::wgmma || uses_[i] == RegisterUse::tmem_load) {
      for_each_watched(function, instruction, uses_[i], add);
      if (instruction.count > 0) results_[i] = function.operands[instruction.first].count;
    } else {
      for (uint32_t k = 0; k < instruction.count; ++k) {
        for_each_in(instruction, k, add);
        if (k == 0) results_[i] = static_cast<uint32_t>(slots_.size()) - first_[i];
      }
      // A move that only reads watched registers has nowhere to pass on what is known.
      if (uses_[i] == RegisterUse::copy && results_[i] == 0) slots_.resize(first_[i]);
    }
  }
  first_.push_back(static_cast<uint32_t>(slots_.size()));
}

bool has_asynchronous_registers(const ptx::Module& module) {
  for (const ptx::Form& form : module.forms) {
    const RegisterUse use = use_of(form);
    if (use == RegisterUse::wgmma || use == RegisterUse::tmem_load) return true;
  }
  return false;
}

/// NOTE: compilers rename and initialise accumulators with moves that vanish in machine code, or
/// that the assembler orders itself: a move counts as no access, and the new names take over what
/// is known of the old ones (of several packed into one: of one that is in flight).
void WarpRegisters::copy(const FunctionRegisters& function, std::span<const uint32_t> results,
                         std::span<const uint32_t> sources, bool all_lanes) {
  std::vector<RegisterSlot>& state = *state_;
  if (sources.empty()) {
    // Another value: the load's result is no longer there.
    for (uint32_t slot : results) {
      if (state[slot].pending == RegisterUse::tmem_load) state[slot] = {};
      if (all_lanes) state[slot].sum_begin = state[slot].sum_end = 0;
    }
    return;
  }
  RegisterSlot carried = state[sources[0]];
  for (uint32_t slot : sources.subspan(1)) {
    if (!in_flight(carried) && in_flight(state[slot])) carried = state[slot];
  }
  carried.sum_begin = carried.sum_end = 0;
  carried.halves = 0;
  for (uint32_t slot : sources) carried.join_sum(state[slot]);
  for (uint32_t slot : results) {
    RegisterSlot now = carried;
    if (!all_lanes) now.join_sum(state[slot]);
    state[slot] = now;
    touched_ |= function.named(slot) && carried.touched_after == fences_ + 1;
  }
}

void WarpRegisters::wgmma_issued(const FunctionRegisters& function, size_t instruction, uint64_t id,
                                 bool accumulates, bool packed) {
  std::vector<RegisterSlot>& state = slots_[&function];
  state.resize(function.slots());
  const auto slots = function.touched(instruction).first(function.results(instruction));
  uint32_t number = 0;
  for (uint32_t slot : slots) {
    if (!accumulates || state[slot].sum_end == 0) state[slot].sum_begin = id;
    state[slot].sum_end = id;
    state[slot].halves = static_cast<uint8_t>(1u << wgmma_half(number++, packed));
  }
}

RegisterHazard WarpRegisters::execute(const FunctionRegisters& function, size_t instruction,
                                      const ptx::Instruction* where, Epoch wgmma_group,
                                      Epoch load_group, bool all_lanes) {
  const std::span<const uint32_t> slots = function.touched(instruction);
  if (slots.empty()) return {};
  if (current_ != &function) {
    current_ = &function;
    state_ = &slots_[&function];
    state_->resize(function.slots());
  }
  std::vector<RegisterSlot>& state = *state_;
  const RegisterUse use = function.use(instruction);
  if (use == RegisterUse::copy) {
    const size_t results = function.results(instruction);
    copy(function, slots.first(results), slots.subspan(results), all_lanes);
    return {};
  }
  uint32_t count = 0;
  for (uint32_t slot : slots) {
    RegisterSlot& at = state[slot];
    switch (use) {
      case RegisterUse::wgmma:
        // A fragments follow the accumulators.
        if (count++ >= function.results(instruction)) used_ = std::max(used_, at.sum_end);
        if (at.touched_after == fences_ + 1) return {&function.name(slot), &at, true};
        if (at.pending == RegisterUse::tmem_load && in_flight(at)) {
          return {&function.name(slot), &at, false};
        }
        at.pending = RegisterUse::wgmma;
        at.group = wgmma_group;
        at.operation = where;
        break;
      case RegisterUse::tmem_load:
        if (at.pending == RegisterUse::wgmma && in_flight(at)) {
          return {&function.name(slot), &at, false};
        }
        at.pending = RegisterUse::tmem_load;
        at.group = load_group;
        at.operation = where;
        break;
      default:
        if (in_flight(at)) {
          const bool load = at.pending == RegisterUse::tmem_load;
          if (load) at.pending = RegisterUse::ordinary;
          return {&function.name(slot), &at, false, load};
        }
        at.touched_after = fences_ + 1;
        at.toucher = where;
        used_ = std::max(used_, at.sum_end);
        touched_ |= function.named(slot);
    }
  }
  return {};
}

}  // namespace vgpu::check
