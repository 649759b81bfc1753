// SPDX-License-Identifier: Apache-2.0
#pragma once

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

enum class RegisterUse : uint8_t { ordinary, copy, wgmma, tmem_load };

/// The registers of one function that some wgmma.mma_async or tcgen05.ld names, then those that
/// moves carry their values to, numbered densely ("slots"), and which of them each instruction
/// touches.
class FunctionRegisters {
 public:
  FunctionRegisters(const ptx::Module& module, const ptx::Function& function);

  size_t slots() const { return names_.size(); }
  const std::string& name(uint32_t slot) const { return names_[slot]; }
  /// Whether an asynchronous instruction names it.
  bool named(uint32_t slot) const { return slot < named_; }
  RegisterUse use(size_t instruction) const { return uses_[instruction]; }
  /// Whether it has no effect but its result: arithmetic, which compilers move at will.
  bool only_computes(size_t instruction) const { return computes_[instruction]; }
  std::span<const uint32_t> touched(size_t instruction) const {
    return {slots_.data() + first_[instruction], first_[instruction + 1] - first_[instruction]};
  }
  /// Of a move: how many of touched() are results; they come first.
  size_t results(size_t instruction) const { return results_[instruction]; }

 private:
  std::vector<std::string> names_;
  uint32_t named_ = 0;
  std::vector<RegisterUse> uses_;  // by instruction
  std::vector<bool> computes_;     // by instruction
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
  bool moved = false;       ///< that operation's result came here through moves
  Epoch touched_after = 0;  ///< wgmma.fence count at the last ordinary access, plus 1
  const ptx::Instruction* toucher = nullptr;
};

/// A broken rule, for the report.
struct RegisterHazard {
  const std::string* name = nullptr;
  const RegisterSlot* slot = nullptr;
  bool missing_fence = false;  ///< else: accessed while the operation is in flight
  /// Result of a tcgen05.ld, accessed under another name or by arithmetic; forgotten then.
  bool moved_load = false;
};

/// The registers of one warp in the functions it has run.
class WarpRegisters {
 public:
  /// Applies an instruction; `wgmma_group` and `load_group` are the open groups. Returns what it
  /// breaks: `slot` is null when nothing.
  RegisterHazard execute(const FunctionRegisters& function, size_t instruction,
                         const ptx::Instruction* where, Epoch wgmma_group, Epoch load_group);
  /// Whether any watched register was accessed since the last wgmma.fence.
  bool touched_since_fence() const { return touched_; }
  void wgmma_fence() {
    ++fences_;
    touched_ = false;
  }
  void wgmma_done(Epoch group) { wgmma_done_ = group; }
  void loads_done(Epoch group) { loads_done_ = group; }

 private:
  void copy(const FunctionRegisters& function, std::span<const uint32_t> results,
            std::span<const uint32_t> sources);
  bool in_flight(const RegisterSlot& slot) const {
    return (slot.pending == RegisterUse::wgmma && slot.group > wgmma_done_) ||
           (slot.pending == RegisterUse::tmem_load && slot.group > loads_done_);
  }

  std::unordered_map<const FunctionRegisters*, std::vector<RegisterSlot>> slots_;
  const FunctionRegisters* current_ = nullptr;
  std::vector<RegisterSlot>* state_ = nullptr;
  Epoch fences_ = 0, wgmma_done_ = 0, loads_done_ = 0;
  bool touched_ = false;
};

}  // namespace vgpu::check
