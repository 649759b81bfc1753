// SPDX-License-Identifier: Apache-2.0
#include "exec/decoder.hpp"

#include <algorithm>

#include "exec/register_placement.hpp"
#include "exec/targets.hpp"

namespace vgpu::exec {
namespace {

uint64_t align_up(uint64_t value, uint64_t align) {
  return (value + align - 1) / align * align;
}

const std::unordered_map<std::string_view, Special>& special_names() {
  static const std::unordered_map<std::string_view, Special> names{
      {"%tid.x", Special::tid_x},
      {"%tid.y", Special::tid_y},
      {"%tid.z", Special::tid_z},
      {"%ntid.x", Special::ntid_x},
      {"%ntid.y", Special::ntid_y},
      {"%ntid.z", Special::ntid_z},
      {"%ctaid.x", Special::ctaid_x},
      {"%ctaid.y", Special::ctaid_y},
      {"%ctaid.z", Special::ctaid_z},
      {"%nctaid.x", Special::nctaid_x},
      {"%nctaid.y", Special::nctaid_y},
      {"%nctaid.z", Special::nctaid_z},
      {"%laneid", Special::laneid},
      {"%warpid", Special::warpid},
      {"%nwarpid", Special::nwarpid},
      {"%smid", Special::smid},
      {"%nsmid", Special::nsmid},
      {"%gridid", Special::gridid},
      {"%lanemask_eq", Special::lanemask_eq},
      {"%lanemask_le", Special::lanemask_le},
      {"%lanemask_lt", Special::lanemask_lt},
      {"%lanemask_ge", Special::lanemask_ge},
      {"%lanemask_gt", Special::lanemask_gt},
      {"%cluster_ctarank", Special::cluster_ctarank},
      {"%cluster_nctarank", Special::cluster_nctarank},
      {"%cluster_ctaid.x", Special::cluster_ctaid_x},
      {"%cluster_ctaid.y", Special::cluster_ctaid_y},
      {"%cluster_ctaid.z", Special::cluster_ctaid_z},
      {"%cluster_nctaid.x", Special::cluster_nctaid_x},
      {"%cluster_nctaid.y", Special::cluster_nctaid_y},
      {"%cluster_nctaid.z", Special::cluster_nctaid_z},
      {"%clusterid.x", Special::clusterid_x},
      {"%clusterid.y", Special::clusterid_y},
      {"%clusterid.z", Special::clusterid_z},
      {"%nclusterid.x", Special::nclusterid_x},
      {"%nclusterid.y", Special::nclusterid_y},
      {"%nclusterid.z", Special::nclusterid_z},
      {"%is_explicit_cluster", Special::is_explicit_cluster},
      {"%dynamic_smem_size", Special::dynamic_smem_size},
      {"%total_smem_size", Special::total_smem_size},
      {"%aggr_smem_size", Special::aggr_smem_size},
      {"%envreg1", Special::workspace_high},
      {"%envreg2", Special::workspace_low},
      {"%reserved_smem_offset_begin", Special::reserved_smem_begin},
      {"%reserved_smem_offset_end", Special::reserved_smem_end},
      {"%reserved_smem_offset_cap", Special::reserved_smem_cap},
      {"%reserved_smem_offset_0", Special::reserved_smem_0},
      {"%reserved_smem_offset_1", Special::reserved_smem_1},
      {"%tid.w", Special::zero},
      {"%ntid.w", Special::zero},
      {"%ctaid.w", Special::zero},
      {"%nctaid.w", Special::zero},
  };
  return names;
}

}  // namespace

DecodeFunction find_decoder(std::string_view opcode) {
  static const std::unordered_map<std::string_view, DecodeFunction> table = [] {
    std::unordered_map<std::string_view, DecodeFunction> all;
    for (auto* list :
         {&integer_opcodes(),  &float_opcodes(),   &bit_opcodes(),     &compare_opcodes(),
          &move_opcodes(),     &convert_opcodes(), &control_opcodes(), &warp_opcodes(),
          &barrier_opcodes(),  &memory_opcodes(),  &atomic_opcodes(),  &matrix_opcodes(),
          &mbarrier_opcodes(), &copy_opcodes(),    &cluster_opcodes(), &wgmma_opcodes(),
          &tcgen05_opcodes(),  &mma_opcodes(),     &wmma_opcodes(),    &tensormap_opcodes()}) {
      for (auto& entry : *list) all[entry.opcode] = entry.decode;
    }
    return all;
  }();
  auto found = table.find(opcode);
  return found == table.end() ? nullptr : found->second;
}

Decoder::Decoder(const Program& program, Kernel& kernel, MissingForms& missing)
    : program_(program), module_(program.module()), kernel_(kernel), missing_(missing) {
  kernel_.predicates = 4;
  scratch_ = allocate(16);
  auto& symbols = program.symbols();
  for (uint32_t k = 0; k < symbols.size(); ++k) {
    symbol_index_[static_cast<uint32_t>(symbols[k].variable - module_.variables.data())] = k;
  }
}

void Decoder::run() {
  newer_forms_.resize(module_.forms.size());
  std::vector<const ptx::Function*> stack;
  collect_functions(*kernel_.function, stack);
  if (calls_by_pointer_) collect_pointed();
  place_variables();
  uint32_t pc = 0;
  for (auto& layout : layouts_) {
    layout.entry = pc;
    // One more for the return at the end of the body.
    pc += static_cast<uint32_t>(layout.function->code.size()) + 1;
    layout.return_slot = layout.function->is_entry ? 0 : allocate(4);
    if (!layout.function->is_entry) {
      kernel_.constants.push_back({Constant::Kind::literal, 4, layout.return_slot, 0, 0});
    }
    place_registers(layout);
  }
  kernel_.code.reserve(pc);
  static const ptx::Instruction end_instruction{};
  for (auto& layout : layouts_) {
    layout_ = &layout;
    function_ = layout.function;
    for (auto& instruction : layout.function->code) decode_one(layout, instruction);
    out = Instr{};
    const ptx::Form end{"ret", {"ret"}, 0, 0};
    form_ = &end;
    taken_ = 1;
    instruction_ = &end_instruction;
    find_decoder("ret")(*this);
    instr_fixes_.push_back({0, 0});
    kernel_.code.push_back(out);
    kernel_.source.push_back(
        {layout.function, layout.function->code.empty() ? nullptr : &layout.function->code.back()});
  }
  for (auto& fix : group_fixes_) kernel_.refs[fix.ref].children = kernel_.refs.data() + fix.first;
  for (size_t k = 0; k < kernel_.code.size(); ++k) {
    kernel_.code[k].refs = kernel_.refs.data() + instr_fixes_[k].first;
    kernel_.code[k].ref_count = instr_fixes_[k].second;
  }
  for (auto& layout : layouts_) kernel_.places.emplace(layout.function, std::move(layout.places));
}

// ------------------------------------------------------------------------------------- layout

const ptx::Function* Decoder::callee(const ptx::Operand& operand) const {
  if (operand.kind != ptx::Operand::Kind::external) return nullptr;
  auto found = module_.function_by_name.find(module_.externals[operand.index]);
  return found == module_.function_by_name.end() ? nullptr : &module_.functions[found->second];
}

void Decoder::collect_functions(const ptx::Function& function,
                                std::vector<const ptx::Function*>& stack) {
  if (std::find(stack.begin(), stack.end(), &function) != stack.end()) {
    fault(kNotSupported, "device function %s is recursive: the virtual GPU has no call stack",
          function.name.c_str());
  }
  for (auto& layout : layouts_) {
    if (layout.function == &function) return;
  }
  layouts_.push_back({&function, 0, 0, {}});
  stack.push_back(&function);
  for (auto& instruction : function.code) {
    if (module_.forms[instruction.form].parts[0] != "call") continue;
    for (uint32_t k = 0; k < instruction.count; ++k) {
      const ptx::Operand& operand = function.operands[instruction.first + k];
      calls_by_pointer_ |= operand.kind == ptx::Operand::Kind::reg;
      if (auto* target = callee(function.operands[instruction.first + k])) {
        collect_functions(*target, stack);
      }
    }
  }
  stack.pop_back();
}

/// The functions whose address is taken, in code or by a variable (tables of virtual functions),
/// belong to a kernel that calls through pointers.
void Decoder::collect_pointed() {
  std::vector<bool> taken(module_.functions.size());
  auto take = [&](const std::string& name) {
    const auto found = module_.function_by_name.find(name);
    if (found != module_.function_by_name.end()) taken[found->second] = true;
  };
  for (const ptx::Function& function : module_.functions) {
    for (const ptx::Instruction& instruction : function.code) {
      if (module_.forms[instruction.form].parts[0] == "call") continue;
      for (uint32_t k = 0; k < instruction.count; ++k) {
        const ptx::Operand& operand = function.operands[instruction.first + k];
        if (operand.kind == ptx::Operand::Kind::external) take(module_.externals[operand.index]);
      }
    }
  }
  for (const ptx::Variable& variable : module_.variables) {
    for (const auto& relocation : variable.relocations) take(relocation.symbol);
  }
  std::vector<const ptx::Function*> stack;
  for (size_t k = 0; k < taken.size(); ++k) {
    if (!taken[k] || module_.functions[k].is_entry) continue;
    pointed_.push_back(&module_.functions[k]);
    collect_functions(module_.functions[k], stack);
  }
}

void Decoder::place_variables() {
  // Shared variables: those the functions name, in the order of the text.
  std::vector<uint32_t> shared;
  uint32_t dynamic_align = 16;
  auto frame = [&](uint32_t index) {
    auto& variable = module_.variables[index];
    kernel_.local_bytes = static_cast<uint32_t>(align_up(kernel_.local_bytes, variable.align));
    frame_offsets_[index] = kernel_.local_bytes;
    kernel_.local_bytes += static_cast<uint32_t>(variable.size);
  };
  for (auto& layout : layouts_) {
    for (auto& operand : layout.function->operands) {
      if (operand.kind != ptx::Operand::Kind::variable) continue;
      auto& variable = module_.variables[operand.index];
      if (variable.space != ptx::Space::shared) continue;
      if (variable.size == 0) {
        dynamic_align = std::max(dynamic_align, variable.align);
      } else if (std::find(shared.begin(), shared.end(), operand.index) == shared.end()) {
        shared.push_back(operand.index);
      }
    }
    // Local variables, call arguments and the formal parameters of device functions live in the
    // thread's local memory; a kernel's parameters do not.
    for (uint32_t index : layout.function->locals) {
      if (module_.variables[index].space != ptx::Space::shared) frame(index);
    }
    if (!layout.function->is_entry) {
      for (uint32_t index : layout.function->params) frame(index);
      for (uint32_t index : layout.function->returns) frame(index);
    }
  }
  kernel_.local_bytes = static_cast<uint32_t>(align_up(kernel_.local_bytes, 16));
  std::sort(shared.begin(), shared.end());
  for (uint32_t index : shared) {
    auto& variable = module_.variables[index];
    kernel_.static_shared = static_cast<uint32_t>(
        align_up(kernel_.static_shared, std::max<uint32_t>(variable.align, 4)));
    shared_offsets_[index] = kernel_.static_shared;
    kernel_.static_shared += static_cast<uint32_t>(variable.size);
  }
  kernel_.dynamic_align = dynamic_align;
}

uint32_t Decoder::allocate(unsigned bytes) {
  uint32_t at = static_cast<uint32_t>(align_up(kernel_.register_bytes, 64));
  kernel_.register_bytes = at + bytes * kLanes;
  return at;
}

void Decoder::place_registers(FunctionLayout& layout) {
  layout.places.assign(layout.function->registers.size(), 0);
  // Registers that share a color share a place; predicates have colors of their own.
  RegisterColors colors = color_registers(module_, *layout.function);
  std::vector<uint32_t> place_of_color(colors.count, UINT32_MAX);
  for (uint32_t r = 0; r < layout.places.size(); ++r) {
    ptx::Type type = layout.function->registers[r].type;
    uint32_t& place = place_of_color[colors.color[r]];
    if (place == UINT32_MAX) {
      place = type == ptx::Type::pred ? kernel_.predicates++
                                      : allocate(std::max(2u, ptx::size_of(type)));
    }
    layout.places[r] = place;
  }
}

int64_t Decoder::entry_of(const ptx::Function* function) const {
  for (auto& layout : layouts_) {
    if (layout.function == function) return layout.entry;
  }
  return -1;
}

uint32_t Decoder::return_slot(const ptx::Function* function) const {
  for (auto& layout : layouts_) {
    if (layout.function == function) return layout.return_slot;
  }
  return scratch_;
}

uint32_t Decoder::frame_offset(uint32_t variable) const {
  auto found = frame_offsets_.find(variable);
  if (found == frame_offsets_.end()) {
    throw BadOperand{"variable " + module_.variables[variable].name + " is not in this function"};
  }
  return found->second;
}

// ------------------------------------------------------------------------------------- decoding

void Decoder::decode_one(FunctionLayout& layout, const ptx::Instruction& instruction) {
  (void)layout;
  instruction_ = &instruction;
  form_ = &module_.forms[instruction.form];
  taken_ = 1;
  out = Instr{};
  instr_fixes_.push_back({0, 0});
  if (instruction.guard >= 0) {
    out.guard = layout_->places[static_cast<size_t>(instruction.guard)];
    out.guard_flip = instruction.guard_negated ? kAllLanes : 0;
  }
  std::string why;
  bool known = false;
  if (auto decode = find_decoder(opcode())) {
    try {
      known = decode(*this) && all_taken() && out.handler;
      if (!known && !all_taken()) {
        for (size_t k = 0; k < form_->parts.size(); ++k) {
          if (!(taken_ >> k & 1)) {
            why += (why.empty() ? "not known here: ." : " .") + std::string(form_->parts[k]);
          }
        }
      }
      if (!known && why.empty()) {
        why = "its modifiers and operands are known, but not together";
      }
    } catch (const BadOperand& bad) {
      known = false;
      why = bad.text;
    }
  } else {
    why = "unknown opcode";
  }
  if (known) {
    // Once for each form.
    std::optional<std::string>& newer = newer_forms_[instruction.form];
    if (!newer) newer = newer_than_target(*form_, module_.target);
    why = *newer;
    known = why.empty();
  }
  if (!known) {
    Missing& missing = missing_[{instruction.form, why}];
    if (missing.uses++ == 0) missing.first_line = instruction.line;
  }
  kernel_.code.push_back(out);
  kernel_.source.push_back({function_, instruction_});
}

bool Decoder::take(std::string_view modifier) {
  for (size_t k = 1; k < form_->parts.size() && k < 64; ++k) {
    if (form_->parts[k] == modifier && !(taken_ >> k & 1)) {
      taken_ |= uint64_t{1} << k;
      return true;
    }
  }
  return false;
}

int Decoder::take_one(std::initializer_list<std::string_view> modifiers) {
  int index = 0;
  for (auto modifier : modifiers) {
    if (take(modifier)) return index;
    ++index;
  }
  return -1;
}

ptx::Type Decoder::take_type() {
  for (size_t k = 1; k < form_->parts.size() && k < 64; ++k) {
    if (taken_ >> k & 1) continue;
    ptx::Type type = ptx::type_from_suffix(form_->parts[k]);
    if (type == ptx::Type::none) continue;
    taken_ |= uint64_t{1} << k;
    return type;
  }
  return ptx::Type::none;
}

std::string_view Decoder::take_next() {
  for (size_t k = 1; k < form_->parts.size() && k < 64; ++k) {
    if (!(taken_ >> k & 1)) {
      taken_ |= uint64_t{1} << k;
      return form_->parts[k];
    }
  }
  return {};
}

bool Decoder::all_taken() const {
  size_t n = form_->parts.size();
  return n < 64 && taken_ == (uint64_t{1} << n) - 1;
}

const ptx::Operand& Decoder::operand(unsigned k) const {
  if (k >= instruction_->count) throw BadOperand{format("operand %u is missing", k + 1)};
  return function_->operands[instruction_->first + k];
}

const ptx::Operand& Decoder::child(const ptx::Operand& parent, unsigned k) const {
  if (k >= parent.count) throw BadOperand{"too few members in a group of operands"};
  return function_->operands[parent.first + k];
}

bool Decoder::is_predicate(const ptx::Operand& o) const {
  return o.kind == ptx::Operand::Kind::reg && function_->registers[o.index].type == ptx::Type::pred;
}

unsigned Decoder::register_bytes(const ptx::Operand& o) const {
  if (o.kind != ptx::Operand::Kind::reg) return 0;
  ptx::Type type = function_->registers[o.index].type;
  return type == ptx::Type::pred ? 0 : std::max(2u, ptx::size_of(type));
}

uint32_t Decoder::constant(Constant::Kind kind, uint64_t value, int64_t addend, unsigned bytes) {
  bytes = std::max(2u, bytes);
  auto key = std::make_tuple(static_cast<int>(kind), value, addend, bytes);
  auto found = constants_.find(key);
  if (found != constants_.end()) return found->second;
  uint32_t at = allocate(bytes);
  kernel_.constants.push_back({kind, static_cast<uint8_t>(bytes), at, value, addend});
  return constants_[key] = at;
}

uint32_t Decoder::literal(uint64_t bits, unsigned bytes) {
  if (bytes < 8) bits &= (uint64_t{1} << (bytes * 8)) - 1;
  return constant(Constant::Kind::literal, bits, 0, bytes);
}

uint32_t Decoder::source(const ptx::Operand& o, unsigned bytes) {
  using Kind = ptx::Operand::Kind;
  if (o.negated) throw BadOperand{"'!' before an operand that is not a predicate"};
  switch (o.kind) {
    case Kind::reg: {
      if (is_predicate(o)) throw BadOperand{"predicate where a register is needed"};
      if (register_bytes(o) != std::max(2u, bytes)) {
        throw BadOperand{format("register %s has %u bits, the operand needs %u",
                                std::string(function_->registers[o.index].name).c_str(),
                                register_bytes(o) * 8, bytes * 8)};
      }
      return layout_->places[o.index];
    }
    case Kind::imm: {
      auto bits = static_cast<uint64_t>(o.value);
      if (o.float_imm == ptx::Operand::FloatImm::f64 && bytes == 4) {
        bits = std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(bits)));
      }
      if (o.float_imm == ptx::Operand::FloatImm::f32 && bytes == 8) {
        bits = std::bit_cast<uint64_t>(
            static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits))));
      }
      return literal(bits, bytes);
    }
    case Kind::special: {
      auto found = special_names().find(module_.specials[o.index]);
      if (found == special_names().end()) {
        throw BadOperand{"special register " + module_.specials[o.index] + " is not known here"};
      }
      kernel_.uses_reserved_shared |= found->second >= Special::reserved_smem_begin &&
                                      found->second <= Special::reserved_smem_1;
      return constant(Constant::Kind::special, static_cast<uint64_t>(found->second), 0, bytes);
    }
    case Kind::variable: {
      auto& variable = module_.variables[o.index];
      switch (variable.space) {
        case ptx::Space::shared:
          if (variable.size == 0) {
            return constant(Constant::Kind::dynamic_shared, 0, o.value, bytes);
          }
          return constant(Constant::Kind::shared, shared_offsets_.at(o.index), o.value, bytes);
        case ptx::Space::global:
        case ptx::Space::constant:
          return constant(Constant::Kind::symbol, symbol_index_.at(o.index), o.value, bytes);
        case ptx::Space::local:
          return literal(frame_offset(o.index) + static_cast<uint64_t>(o.value), bytes);
        case ptx::Space::param:
          if (frame_offsets_.count(o.index)) return literal(frame_offset(o.index), bytes);
          return constant(Constant::Kind::param, variable.offset, o.value, bytes);
        default:
          throw BadOperand{"variable in an unknown space"};
      }
    }
    case Kind::external: {
      const auto function = module_.function_by_name.find(module_.externals[o.index]);
      if (function == module_.function_by_name.end()) {
        throw BadOperand{module_.externals[o.index] + " is nothing that the module defines"};
      }
      return literal(function_address(function->second), bytes);
    }
    default:
      throw BadOperand{"an operand is not a register, constant or variable"};
  }
}

uint32_t Decoder::dest(const ptx::Operand& o, unsigned bytes) {
  if (o.kind == ptx::Operand::Kind::sink) return scratch_;
  if (o.kind != ptx::Operand::Kind::reg || is_predicate(o)) {
    throw BadOperand{"the destination is not a register"};
  }
  return source(o, bytes);
}

uint32_t Decoder::dest_predicate(const ptx::Operand& o) {
  if (o.kind == ptx::Operand::Kind::sink) return scratch_predicate_;
  if (!is_predicate(o)) throw BadOperand{"the destination is not a predicate"};
  return layout_->places[o.index];
}

Ref Decoder::source_predicate(const ptx::Operand& o) {
  Ref ref;
  ref.kind = Ref::Kind::pred;
  ref.negated = o.negated;
  if (o.kind == ptx::Operand::Kind::imm) {
    ref.at = o.value ? 0 : 1;
  } else if (is_predicate(o)) {
    ref.at = layout_->places[o.index];
  } else {
    throw BadOperand{"a predicate is needed"};
  }
  return ref;
}

int64_t Decoder::immediate(unsigned k) {
  if (!is_immediate(k)) throw BadOperand{format("operand %u must be an immediate", k + 1)};
  return operand(k).value;
}

uint32_t Decoder::label(unsigned k) {
  auto& o = operand(k);
  if (o.kind == ptx::Operand::Kind::external) {
    throw BadOperand{"unknown label " + module_.externals[o.index]};
  }
  if (o.kind != ptx::Operand::Kind::label) throw BadOperand{"a label is needed"};
  return layout_->entry + o.index;
}

Ref Decoder::make_ref(const ptx::Operand& o, unsigned bytes) {
  using Kind = ptx::Operand::Kind;
  Ref ref;
  switch (o.kind) {
    case Kind::sink:
      ref.kind = Ref::Kind::sink;
      break;
    case Kind::reg:
      if (is_predicate(o)) return source_predicate(o);
      ref.kind = Ref::Kind::reg;
      ref.bytes = static_cast<uint8_t>(register_bytes(o));
      ref.at = layout_->places[o.index];
      break;
    case Kind::imm:
    case Kind::special:
    case Kind::variable:
    case Kind::external:
      ref.kind = Ref::Kind::reg;
      ref.is_constant = true;
      ref.bytes = static_cast<uint8_t>(std::max(2u, bytes));
      ref.offset = o.value;
      ref.at = source(o, bytes);
      break;
    case Kind::vector:
    case Kind::list:
    case Kind::pair:
    case Kind::address: {
      ref.kind = o.kind == Kind::address ? Ref::Kind::address : Ref::Kind::vector;
      ref.offset = o.value;
      ref.count = o.count;
      std::vector<Ref> children;
      std::vector<int64_t> nested_first;
      for (unsigned k = 0; k < o.count; ++k) {
        auto& member = child(o, k);
        bool is_base = o.kind == Kind::address && k == 0;
        children.push_back(make_ref(member, is_base ? 8 : bytes));
        // A nested group's fix names a slot that is filled below.
        bool nested =
            children.back().kind == Ref::Kind::vector || children.back().kind == Ref::Kind::address;
        nested_first.push_back(nested ? static_cast<int64_t>(last_group_first_) : -1);
      }
      auto first = static_cast<uint32_t>(kernel_.refs.size());
      for (size_t k = 0; k < children.size(); ++k) {
        if (nested_first[k] >= 0) {
          group_fixes_.push_back(
              {static_cast<uint32_t>(kernel_.refs.size()), static_cast<uint32_t>(nested_first[k])});
        }
        kernel_.refs.push_back(children[k]);
      }
      last_group_first_ = first;
      break;
    }
    default:
      throw BadOperand{"an operand is not a register, constant, address or vector"};
  }
  return ref;
}

void Decoder::make_refs(unsigned bytes) {
  std::vector<Ref> refs;
  std::vector<int64_t> first_child;
  for (unsigned k = 0; k < count(); ++k) {
    refs.push_back(make_ref(operand(k), bytes));
    bool grouped = refs.back().kind == Ref::Kind::vector || refs.back().kind == Ref::Kind::address;
    first_child.push_back(grouped ? static_cast<int64_t>(last_group_first_) : -1);
  }
  set_refs(refs, first_child);
}

void Decoder::make_predicate_refs() {
  std::vector<Ref> refs;
  for (unsigned k = 0; k < count(); ++k) {
    refs.push_back(operand(k).kind == ptx::Operand::Kind::sink ? Ref{.kind = Ref::Kind::sink}
                                                               : source_predicate(k));
  }
  set_refs(refs, std::vector<int64_t>(refs.size(), -1));
}

void Decoder::set_refs(const std::vector<Ref>& refs, const std::vector<int64_t>& first_child) {
  instr_fixes_.back() = {static_cast<uint32_t>(kernel_.refs.size()),
                         static_cast<uint32_t>(refs.size())};
  for (size_t k = 0; k < refs.size(); ++k) {
    if (first_child[k] >= 0) {
      group_fixes_.push_back(
          {static_cast<uint32_t>(kernel_.refs.size()), static_cast<uint32_t>(first_child[k])});
    }
    kernel_.refs.push_back(refs[k]);
  }
}

}  // namespace vgpu::exec
