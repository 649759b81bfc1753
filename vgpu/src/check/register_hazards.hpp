// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "check/vector_clock.hpp"
#include "ptx/module.hpp"

/// Registers that asynchronous instructions use after they were issued: accumulators and A
/// fragments of wgmma.mma_async, results of tcgen05.ld.
namespace vgpu::check {

/// Whether an accumulator of this wgmma.mma_async holds two columns of f16.
bool wgmma_packs(const ptx::Form& form);
/// Which rows of the 16 of a warp the accumulator of this number holds: 0 the first eight, four
/// lanes each, 1 the others (PTX ISA, "wgmma": register fragments).
inline uint32_t wgmma_half(uint32_t number, bool packed) {
  return packed ? number % 2 : number / 2 % 2;
}

enum class RegisterUse : uint8_t { ordinary, copy, wgmma, tmem_load };

/// The registers of one function that some wgmma.mma_async or tcgen05.ld names, then those that
/// moves carry their values to, numbered densely ("slots"), and which of them each instruction
/// touches.
class FunctionRegisters {
 public:
  FunctionRegisters(const ptx::Module& module, const ptx::Function& function);

  const ptx::Function& function() const { return *function_; }
  size_t slots() const { return names_.size(); }
  /// The register of a slot.
  uint32_t index(uint32_t slot) const { return indices_[slot]; }
  const std::string& name(uint32_t slot) const { return names_[slot]; }
  /// Whether an asynchronous instruction names it.
  bool named(uint32_t slot) const { return slot < named_; }
  RegisterUse use(size_t instruction) const { return uses_[instruction]; }
  std::span<const uint32_t> touched(size_t instruction) const {
    return {slots_.data() + first_[instruction], first_[instruction + 1] - first_[instruction]};
  }
  /// Of a move and a wgmma: how many of touched() are results; they come first.
  size_t results(size_t instruction) const { return results_[instruction]; }

 private:
  const ptx::Function* function_;
  std::vector<std::string> names_;
  std::vector<uint32_t> indices_;
  uint32_t named_ = 0;
  std::vector<RegisterUse> uses_;  // by instruction
  std::vector<uint32_t> results_;  // by instruction
  std::vector<uint32_t> first_;    // by instruction, and one past: range of slots_
  std::vector<uint32_t> slots_;
};

/// Whether a module has instructions that make registers worth watching.
bool has_asynchronous_registers(const ptx::Module& module);

/// What a warp's registers are used for at the moment.
struct RegisterSlot {
  RegisterUse pending =
      RegisterUse::ordinary;  ///< wgmma or tmem_load: an operation may still use it
  Epoch group = 0;            ///< the group that operation belongs to
  const ptx::Instruction* operation = nullptr;
  Epoch touched_after = 0;  ///< wgmma.fence count at the last ordinary access, plus 1
  const ptx::Instruction* toucher = nullptr;
  /// Operations whose products it may hold: the wgmmas of its warp from the one that began the sum
  /// to the last. 0: none.
  uint64_t sum_begin = 0, sum_end = 0;
  uint8_t halves = 0;  ///< of the rows of those products: bit 0 the first eight, bit 1 the others

  void join_sum(const RegisterSlot& other) {
    if (other.sum_end == 0) return;
    halves = static_cast<uint8_t>(sum_end == 0 ? other.halves : halves | other.halves);
    sum_begin = sum_end == 0 ? other.sum_begin : std::min(sum_begin, other.sum_begin);
    sum_end = std::max(sum_end, other.sum_end);
  }
};

/// A broken rule, for the report.
struct RegisterHazard {
  const std::string* name = nullptr;
  const RegisterSlot* slot = nullptr;
  bool missing_fence = false;  ///< else: accessed while the operation is in flight
  bool early_load = false;     ///< result of a tcgen05.ld; forgotten then
};

/// The registers of one warp in the functions it has run.
class WarpRegisters {
 public:
  /// Applies an instruction; `wgmma_group` and `load_group` are the open groups. Returns what it
  /// breaks: `slot` is null when nothing.
  RegisterHazard execute(const FunctionRegisters& function, size_t instruction,
                         const ptx::Instruction* where, Epoch wgmma_group, Epoch load_group,
                         bool all_lanes = true);
  /// Whether any watched register was accessed since the last wgmma.fence.
  bool touched_since_fence() const { return touched_; }
  /// A wgmma of this instruction was issued as operation `id`.
  void wgmma_issued(const FunctionRegisters& function, size_t instruction, uint64_t id,
                    bool accumulates, bool packed);
  /// Whether anything but a wgmma or a move has used what operation `id` or a later one gave.
  bool used_since(uint64_t id) const { return used_ >= id; }
  /// Calls f(function, register) for what may hold products of operations `first` to `last`.
  template <typename F>
  void for_each_sum(uint64_t first, uint64_t last, F&& f) const {
    for (const auto& [function, slots] : slots_) {
      for (uint32_t k = 0; k < slots.size(); ++k) {
        if (slots[k].sum_end >= first && slots[k].sum_begin <= last) {
          f(function->function(), function->index(k));
        }
      }
    }
  }
  /// Calls f(function, register, halves) for what holds products of operation `id`, which was
  /// `instruction`, under any name.
  template <typename F>
  void for_each_product(const FunctionRegisters& issued_by, size_t instruction, uint64_t id,
                        F&& f) const {
    const auto issuer = slots_.find(&issued_by);
    if (issuer == slots_.end()) return;
    const uint64_t begin = issuer->second[issued_by.touched(instruction)[0]].sum_begin;
    for (const auto& [function, slots] : slots_) {
      for (uint32_t k = 0; k < slots.size(); ++k) {
        if (slots[k].sum_begin == begin && slots[k].sum_end >= id && begin <= id) {
          f(function->function(), function->index(k), uint32_t{slots[k].halves});
        }
      }
    }
  }
  void wgmma_fence() {
    ++fences_;
    touched_ = false;
  }
  void wgmma_done(Epoch group) { wgmma_done_ = group; }
  void loads_done(Epoch group) { loads_done_ = group; }

 private:
  void copy(const FunctionRegisters& function, std::span<const uint32_t> results,
            std::span<const uint32_t> sources, bool all_lanes);
  bool in_flight(const RegisterSlot& slot) const {
    return (slot.pending == RegisterUse::wgmma && slot.group > wgmma_done_) ||
           (slot.pending == RegisterUse::tmem_load && slot.group > loads_done_);
  }

  std::unordered_map<const FunctionRegisters*, std::vector<RegisterSlot>> slots_;
  const FunctionRegisters* current_ = nullptr;
  std::vector<RegisterSlot>* state_ = nullptr;
  Epoch fences_ = 0, wgmma_done_ = 0, loads_done_ = 0;
  bool touched_ = false;
  uint64_t used_ = 0;  // the last wgmma whose result was used
};

}  // namespace vgpu::check
