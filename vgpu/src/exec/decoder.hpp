// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "exec/machine.hpp"

namespace vgpu::exec {

class Decoder;
/// Decodes the instruction at hand: sets Decoder::out. Returns false for a form it does not know.
using DecodeFunction = bool (*)(Decoder&);

/// Thrown by operand accessors: the operands do not fit the opcode (kInvalidPtx).
struct BadOperand {
  std::string text;
};

/// Turns the PTX of one kernel (and of the device functions it calls) into Instrs.
///
/// Every modifier of an opcode must be taken by its decode function: a form with modifiers left
/// over is unknown and the program is refused, so that no modifier is ever ignored silently.
class Decoder {
 public:
  /// What could not be decoded: index in Module::forms and why not; how often and where first.
  struct Missing {
    uint32_t uses = 0, first_line = 0;
  };
  using MissingForms = std::map<std::pair<uint32_t, std::string>, Missing>;

  Decoder(const Program& program, Kernel& kernel, MissingForms& missing);
  /// Throws Fault (kNotSupported) for kernels that are refused whatever their instructions are.
  void run();

  // ---- the opcode
  const ptx::Form& form() const { return *form_; }
  std::string_view opcode() const { return form_->parts[0]; }
  /// Takes a modifier if it is there.
  bool take(std::string_view modifier);
  /// Takes one of the modifiers and gives its index, -1: none is there.
  int take_one(std::initializer_list<std::string_view> modifiers);
  /// Takes the next modifier that has not been taken and names a type.
  ptx::Type take_type();
  /// Takes the next modifier that has not been taken.
  std::string_view take_next();
  /// Whether it is there, taken or not.
  bool has(std::string_view modifier) const { return form_->has(modifier); }
  bool all_taken() const;

  // ---- operands
  unsigned count() const { return static_cast<unsigned>(instruction_->count); }
  const ptx::Operand& operand(unsigned k) const;
  const ptx::Operand& child(const ptx::Operand& parent, unsigned k) const;
  bool is_predicate(const ptx::Operand& operand) const;
  bool is_predicate(unsigned k) const { return is_predicate(operand(k)); }
  bool is_vector(unsigned k) const { return operand(k).kind == ptx::Operand::Kind::vector; }
  /// Register width in bytes; 0 for anything but registers.
  unsigned register_bytes(unsigned k) const { return register_bytes(operand(k)); }
  unsigned register_bytes(const ptx::Operand& operand) const;

  /// Register file offset of a source of exactly `bytes`: a register or a constant.
  uint32_t source(unsigned k, unsigned bytes) { return source(operand(k), bytes); }
  uint32_t source(const ptx::Operand& operand, unsigned bytes);
  /// Register file offset of a destination of exactly `bytes`; `_` gives a scratch place.
  uint32_t dest(unsigned k, unsigned bytes) { return dest(operand(k), bytes); }
  uint32_t dest(const ptx::Operand& operand, unsigned bytes);
  /// Predicate index of a destination predicate.
  uint32_t dest_predicate(unsigned k) { return dest_predicate(operand(k)); }
  uint32_t dest_predicate(const ptx::Operand& operand);
  /// A source predicate: register or constant 0 / 1.
  Ref source_predicate(unsigned k) { return source_predicate(operand(k)); }
  Ref source_predicate(const ptx::Operand& operand);
  /// An immediate integer.
  int64_t immediate(unsigned k);
  bool is_immediate(unsigned k) const { return operand(k).kind == ptx::Operand::Kind::imm; }
  uint32_t label(unsigned k);

  /// Makes `out.refs` from all operands. Constants get `bytes` bytes (vectors' members too);
  /// addresses' bases 8 bytes unless they are 32-bit registers.
  void make_refs(unsigned bytes);
  /// The same where immediates 0 and 1 are constant predicates.
  void make_predicate_refs();
  /// A Ref of one operand, for make_refs-like needs.
  Ref make_ref(const ptx::Operand& operand, unsigned bytes);

  /// The predicate that holds the condition code of .cc instructions.
  uint32_t carry_predicate() const { return kCarryPredicate; }

  /// A literal in the register file.
  uint32_t literal(uint64_t bits, unsigned bytes);
  /// Memory for a decoded structure that lives as long as the kernel; sets out.extra.
  template <typename T>
  T& extra() {
    auto object = std::make_shared<T>();
    T& reference = *object;
    kernel_.extras.push_back(object);
    out.extra = &reference;
    return reference;
  }
  const ptx::Module& module() const { return module_; }
  const ptx::Function& function() const { return *function_; }
  Kernel& kernel() { return kernel_; }
  /// Entry pc of a device function, -1 when it is not part of this kernel.
  int64_t entry_of(const ptx::Function* function) const;
  /// The device function that a call names, null when the module does not define it.
  const ptx::Function* callee(const ptx::Operand& operand) const;
  /// Whether some call of this kernel goes through a pointer; the functions whose address is taken.
  bool calls_by_pointer() const { return calls_by_pointer_; }
  const std::vector<const ptx::Function*>& pointed_functions() const { return pointed_; }
  /// Offset in the register file of a device function's 32 return addresses: one more than the
  /// place of the call, 0 while it does not run.
  uint32_t return_slot(const ptx::Function* function) const;
  /// Local-memory offset of a variable in param or local space.
  uint32_t frame_offset(uint32_t variable) const;

  Instr out;

 private:
  static constexpr uint32_t kCarryPredicate = 3;
  struct FunctionLayout {
    const ptx::Function* function;
    uint32_t entry = 0;
    uint32_t return_slot = 0;
    std::vector<uint32_t> places;  ///< of each register: file offset or predicate index
  };
  void collect_functions(const ptx::Function& function, std::vector<const ptx::Function*>& stack);
  void collect_pointed();
  void place_variables();
  void place_registers(FunctionLayout& layout);
  uint32_t allocate(unsigned bytes);
  uint32_t constant(Constant::Kind kind, uint64_t value, int64_t addend, unsigned bytes);
  void set_refs(const std::vector<Ref>& refs, const std::vector<int64_t>& first_child);
  void decode_one(FunctionLayout& layout, const ptx::Instruction& instruction);

  const Program& program_;
  const ptx::Module& module_;
  Kernel& kernel_;
  MissingForms& missing_;
  std::vector<std::optional<std::string>> newer_forms_;  ///< why the target lacks each; empty: no
  std::vector<FunctionLayout> layouts_;
  bool calls_by_pointer_ = false;
  std::vector<const ptx::Function*> pointed_;
  FunctionLayout* layout_ = nullptr;
  const ptx::Function* function_ = nullptr;
  const ptx::Instruction* instruction_ = nullptr;
  const ptx::Form* form_ = nullptr;
  uint64_t taken_ = 0;  ///< bit k: form part k
  std::unordered_map<uint32_t, uint32_t> shared_offsets_, frame_offsets_;
  std::unordered_map<uint32_t, uint32_t> symbol_index_;
  std::map<std::tuple<int, uint64_t, int64_t, unsigned>, uint32_t> constants_;
  uint32_t scratch_ = 0;            ///< 512 bytes that nobody reads
  uint32_t scratch_predicate_ = 2;  ///< predicates: 0 true, 1 false, 2 scratch, 3 carry
  // Ref pools hold indices until run() ends: (refs first, count) of instructions and groups.
  struct GroupFix {
    uint32_t ref, first;
  };
  std::vector<GroupFix> group_fixes_;
  uint32_t last_group_first_ = 0;
  std::vector<std::pair<uint32_t, uint32_t>> instr_fixes_;
};

/// The decode function of an opcode's first word ("ld"), null when there is none.
DecodeFunction find_decoder(std::string_view opcode);

// One for each group of opcodes; each file lists the opcodes it decodes.
struct OpcodeEntry {
  std::string_view opcode;
  DecodeFunction decode;
};
using OpcodeList = std::vector<OpcodeEntry>;
const OpcodeList& integer_opcodes();    // alu_integer.cpp
const OpcodeList& float_opcodes();      // alu_float.cpp
const OpcodeList& bit_opcodes();        // alu_bits.cpp
const OpcodeList& compare_opcodes();    // alu_compare.cpp
const OpcodeList& move_opcodes();       // alu_move.cpp
const OpcodeList& convert_opcodes();    // convert.cpp
const OpcodeList& control_opcodes();    // control.cpp
const OpcodeList& warp_opcodes();       // warp_ops.cpp
const OpcodeList& barrier_opcodes();    // barrier_ops.cpp
const OpcodeList& memory_opcodes();     // memory_ops.cpp
const OpcodeList& atomic_opcodes();     // atomic_ops.cpp
const OpcodeList& matrix_opcodes();     // matrix_ops.cpp
const OpcodeList& mbarrier_opcodes();   // mbarrier.cpp
const OpcodeList& copy_opcodes();       // copy_ops.cpp
const OpcodeList& cluster_opcodes();    // cluster_ops.cpp
const OpcodeList& wgmma_opcodes();      // wgmma_ops.cpp
const OpcodeList& tcgen05_opcodes();    // tcgen05_ops.cpp
const OpcodeList& mma_opcodes();        // mma_ops.cpp
const OpcodeList& wmma_opcodes();       // wmma_ops.cpp
const OpcodeList& tensormap_opcodes();  // tensormap_ops.cpp

}  // namespace vgpu::exec
