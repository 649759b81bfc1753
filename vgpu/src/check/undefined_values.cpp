// SPDX-License-Identifier: Apache-2.0
// Values of memory that nobody has written: followed through registers until they matter.
#include <algorithm>
#include <bit>
#include <iterator>
#include <string_view>

#include "check/cluster_checker.hpp"
#include "memory.hpp"

namespace vgpu::check {

using exec::Agent;
using exec::AsyncAccess;
using exec::Memory;
using exec::WarpAccess;

namespace {

/// How an instruction passes on what it reads.
enum class Flow : uint8_t {
  compute,
  copy,
  select,
  shuffle,
  load,
  tmem_load,
  matrix_load,
  matrix_product,
  store,
  atomic,
  branch,
  query,
  other
};

Flow flow_of(const ptx::Form& form) {
  static constexpr std::pair<std::string_view, Flow> kFlows[] = {
      {"mov", Flow::copy},
      {"prmt", Flow::copy},
      {"selp", Flow::select},
      {"shfl", Flow::shuffle},
      {"ld", Flow::load},
      {"ldu", Flow::load},
      {"st", Flow::store},
      {"atom", Flow::atomic},
      {"red", Flow::atomic},
      {"bra", Flow::branch},
      {"brx", Flow::branch},
      {"ret", Flow::branch},
      {"exit", Flow::branch},
      {"mbarrier", Flow::other},
      {"cp", Flow::other},
      {"bar", Flow::other},
      {"barrier", Flow::other},
      {"wgmma", Flow::other},
      {"mma", Flow::matrix_product},
      {"ldmatrix", Flow::matrix_load},
      {"stmatrix", Flow::store},
      {"movmatrix", Flow::shuffle},
      {"call", Flow::other},
      {"fence", Flow::other},
      {"membar", Flow::other},
      {"clusterlaunchcontrol", Flow::query},
      {"tensormap", Flow::other},
      {"prefetch", Flow::other},
      {"wmma", Flow::other}};
  const std::string_view opcode = form.parts[0];
  if (opcode == "tcgen05") {
    return form.text.starts_with("tcgen05.ld.") ? Flow::tmem_load : Flow::other;
  }
  if (opcode == "st" && (form.has("async") || form.has("bulk"))) return Flow::other;
  for (const auto& [name, flow] : kFlows) {
    if (name == opcode) return flow;
  }
  return Flow::compute;
}

/// Calls f(register) for each register of an operand; those of addresses only, or all but those.
template <typename F>
void for_registers(const ptx::Function& function, const ptx::Operand& operand, bool addresses,
                   F&& f, bool inside = false) {
  using Kind = ptx::Operand::Kind;
  if (operand.kind == Kind::reg && inside == addresses) f(operand.index);
  for (uint32_t k = 0; k < operand.count; ++k) {
    for_registers(function, function.operands[operand.first + k], addresses, f,
                  inside || operand.kind == Kind::address);
  }
}

bool is_collective(const ptx::Form& form) {
  return form.parts[0] == "vote" || form.parts[0] == "match" || form.parts[0] == "redux";
}

uint64_t low_bits(uint32_t count) {
  return count >= 64 ? ~0ull : (uint64_t{1} << count) - 1;
}
uint32_t width_of(const ptx::Function& function, uint32_t reg) {
  const ptx::Type type = function.registers[reg].type;
  return type == ptx::Type::pred ? 1 : 8 * ptx::size_of(type);
}

/// The undefined bits of a result, from those of the first source; all where the instruction may
/// spread them. Fields of structures with padding are taken out of wider loads by these.
uint64_t undefined_result(const ptx::Form& form, const ptx::Function& function,
                          const ptx::Instruction& instruction, uint64_t bits) {
  using Kind = ptx::Operand::Kind;
  const std::string_view opcode = form.parts[0];
  auto operand = [&](uint32_t k) -> const ptx::Operand& {
    return function.operands[instruction.first + k];
  };
  auto is_signed = [](std::string_view type) { return type.starts_with("s"); };
  if (instruction.count < 2 || operand(1).kind != Kind::reg) return ~0ull;
  const uint32_t width = width_of(function, operand(1).index);
  bits &= low_bits(width);
  if (opcode == "mov" && operand(0).kind == Kind::reg) return bits;
  if (opcode == "cvt" && form.parts.size() == 3) {
    const ptx::Type to = ptx::type_from_suffix(form.parts[1]);
    const ptx::Type from = ptx::type_from_suffix(form.parts[2]);
    const bool integers = to >= ptx::Type::u8 && to <= ptx::Type::s64 && from >= ptx::Type::u8 &&
                          from <= ptx::Type::s64;
    if (!integers) return ~0ull;
    const uint32_t from_width = 8 * ptx::size_of(from);
    bits &= low_bits(from_width) & low_bits(8 * ptx::size_of(to));
    const bool sign = is_signed(form.parts[2]) && bits >> (from_width - 1) & 1;
    return sign ? bits | ~low_bits(from_width) : bits;
  }
  if (instruction.count != 3 || operand(2).kind != Kind::imm) return ~0ull;
  const auto value = static_cast<uint64_t>(operand(2).value);
  if (opcode == "and") return bits & value;
  if (opcode == "shl") return value >= width ? 0 : bits << value & low_bits(width);
  if (opcode == "shr" && value < width) {
    const bool sign = is_signed(form.parts.back()) && bits >> (width - 1) & 1;
    return sign ? bits >> value | ~low_bits(width - static_cast<uint32_t>(value)) : bits >> value;
  }
  return ~0ull;
}

/// Where the registers of ldmatrix and stmatrix lie in the rows that the lanes name. Of the shapes
/// of 8-bit elements whole rows count.
class MatrixRegisters {
 public:
  explicit MatrixRegisters(const ptx::Form& form)
      : wide_(form.has("m16n16")), exact_(form.has("m8n8")), transposed_(form.has("trans")) {}

  /// Calls f(row, first byte, bytes) for what one register of one lane holds.
  template <typename F>
  void for_bytes(uint32_t number, uint32_t lane, F&& f) const {
    if (!exact_) {
      // 16 rows a matrix are two registers; a lane has two or four of the rows.
      const uint32_t base = wide_ ? number / 2 * 16 : number * 8;
      if (!transposed_) return f(base + lane / 4, 0, 16);
      const uint32_t row = wide_ ? lane % 4 * 4 + number % 2 * 2 : lane % 4 * 2;
      f(base + row, 0, 16);
      return f(base + row + 1, 0, 16);
    }
    const uint32_t base = number * 8;
    if (!transposed_) return f(base + lane / 4, lane % 4 * 4, 4);
    f(base + lane % 4 * 2, lane / 4 * 2, 2);
    f(base + lane % 4 * 2 + 1, lane / 4 * 2, 2);
  }

 private:
  bool wide_, exact_, transposed_;
};

}  // namespace

UndefinedLanes* ClusterChecker::undefined_of(const Agent& agent, uint32_t reg) {
  const auto found = undefined_.find(undefined_key(agent, reg));
  return found == undefined_.end() ? nullptr : &found->second;
}

void ClusterChecker::set_undefined(const Agent& agent, uint32_t reg, uint32_t lanes,
                                   const UndefinedLanes& value) {
  const uint64_t key = undefined_key(agent, reg);
  const auto found = undefined_.find(key);
  const uint32_t kept = found == undefined_.end() ? 0 : found->second.lanes & ~lanes;
  if ((kept | (value.lanes & lanes)) == 0) {
    if (found != undefined_.end()) undefined_.erase(found);
    return;
  }
  UndefinedLanes& at = undefined_[key];
  const uint32_t computed = (at.computed & kept) | (value.computed & lanes);
  const std::shared_ptr<const Broken> broken = kept ? at.broken : nullptr;
  const uint64_t bits = kept ? at.bits : 0;
  if (value.lanes & lanes) {
    at = value;
    at.bits |= bits;
    if (!at.broken) at.broken = broken;
  }
  at.lanes = kept | (value.lanes & lanes);
  at.computed = computed;
}

/// Before an instruction: what undefined values do in it.
void ClusterChecker::follow_undefined(const Agent& agent) {
  const ptx::Instruction& instruction = *agent.instruction;
  const ptx::Function& function = *agent.function;
  const Flow flow = flow_of(module_.forms[instruction.form]);
  const uint32_t lanes = agent.lanes;
  auto operand = [&](uint32_t k) -> const ptx::Operand& {
    return function.operands[instruction.first + k];
  };
  auto must_be_defined = [&](uint32_t reg, const char* how) {
    const UndefinedLanes* value = undefined_of(agent, reg);
    if (value && value->lanes & lanes) report_undefined(agent, *value, how);
  };
  auto must_not_be_broken = [&](uint32_t reg, const char* how) {
    const UndefinedLanes* value = undefined_of(agent, reg);
    if (value && value->lanes & lanes && value->broken) report_undefined(agent, *value, how);
  };
  UndefinedLanes sources;
  auto add = [&](uint32_t reg) {
    const UndefinedLanes* value = undefined_of(agent, reg);
    if (!value || !(value->lanes & lanes)) return;
    const UndefinedLanes before = sources;
    sources = *value;
    if (!sources.broken) sources.broken = before.broken;
    sources.lanes = before.lanes | (value->lanes & lanes);
    sources.computed = before.computed | (value->computed & lanes);
    sources.bits |= before.lanes ? before.bits : 0;
  };
  for (uint32_t k = 0; k < instruction.count; ++k) {
    for_registers(function, operand(k), true,
                  [&](uint32_t reg) { must_be_defined(reg, "is an address"); });
  }
  if (flow == Flow::query && instruction.count > 1) {
    for_registers(function, operand(1), false, [&](uint32_t reg) {
      must_be_defined(reg, "is read as launch control's answer");
    });
  }
  const bool acts =
      flow == Flow::store || flow == Flow::atomic || flow == Flow::branch || flow == Flow::other;
  if (instruction.guard >= 0) {
    const auto guard = static_cast<uint32_t>(instruction.guard);
    if (acts) {
      must_be_defined(guard, "decides whether the instruction is executed");
    } else {
      add(guard);
    }
  }
  undefined_stored_ = {};
  if (acts) {
    if (flow == Flow::branch) return;
    if (flow == Flow::atomic) {
      for (uint32_t k = 0; k < instruction.count; ++k) {
        const bool result = k == 0 && module_.forms[instruction.form].parts[0] == "atom";
        for_registers(function, operand(k), false, [&](uint32_t reg) {
          if (result) {
            set_undefined(agent, reg, lanes, {});
          } else {
            must_be_defined(reg, "takes part in an atomic operation");
          }
        });
      }
    }
    if (flow == Flow::store && instruction.count > 1) {
      for_registers(function, operand(1), false, add);
      if (sources.broken) report_undefined(agent, sources, "is stored");
      undefined_stored_ = sources;
    }
    if (flow == Flow::other) {
      // The accumulators of a wgmma stay what they are.
      const bool wgmma = module_.forms[instruction.form].parts[0] == "wgmma";
      for (uint32_t k = wgmma ? 1 : 0; k < instruction.count; ++k) {
        for_registers(function, operand(k), false,
                      [&](uint32_t reg) { must_not_be_broken(reg, "is used"); });
      }
    }
    return;
  }
  if (instruction.count == 0) return;
  auto result = [&](const UndefinedLanes& value) {
    for_registers(function, operand(0), false,
                  [&](uint32_t reg) { set_undefined(agent, reg, lanes, value); });
  };
  switch (flow) {
    case Flow::load:
    case Flow::tmem_load:
    case Flow::matrix_load:
      return result({});  // what it reads follows
    case Flow::matrix_product:
      return multiply_undefined(agent);
    case Flow::select: {
      // NOTE: the value that is not chosen does not count; which one is chosen is not known here.
      UndefinedLanes both;
      uint32_t all = ~0u;
      for (uint32_t k = 1; k <= 2 && k < instruction.count; ++k) {
        uint32_t one = 0;
        for_registers(function, operand(k), false, [&](uint32_t reg) {
          if (const UndefinedLanes* value = undefined_of(agent, reg)) {
            if (value->broken) add(reg);
            one = value->lanes;
            both = *value;
            both.bits = ~0ull;
          }
        });
        all &= one;
      }
      if (sources.broken) return result(sources);
      both.lanes = all & lanes;
      both.computed &= both.lanes;
      return result(both);
    }
    case Flow::shuffle:
      // NOTE: which lane gives to which is not known here: counts where all are undefined.
      if (instruction.count > 1) for_registers(function, operand(1), false, add);
      if (sources.broken) {
        sources.lanes = lanes;
      } else if (sources.lanes != lanes) {
        sources = {};
      }
      return result(sources);
    default:
      for (uint32_t k = 1; k < instruction.count; ++k) {
        for_registers(function, operand(k), false, add);
      }
      // What one lane puts into a vote reaches all of them.
      if (sources.broken && is_collective(module_.forms[instruction.form])) sources.lanes = lanes;
      if (flow != Flow::copy) sources.computed = sources.lanes;
      if (sources.lanes) return spread_undefined(agent, sources);
      return result(sources);
  }
}

/// mma.sync: an undefined row of A spoils that row of D, a column of B that column, a value of C
/// its own. NOTE: kernels multiply rows behind the end of their tile, which they never loaded, and
/// drop the products (FlashAttention 2 those of queries).
void ClusterChecker::multiply_undefined(const Agent& agent) {
  const ptx::Function& function = *agent.function;
  const uint32_t at = agent.instruction->first;
  UndefinedLanes sources;
  uint32_t rows = 0, columns = 0;  // bits 0 to 15, 0 to 7
  auto each = [&](uint32_t k, auto&& f) {
    uint32_t number = 0;
    for_registers(function, function.operands[at + k], false, [&](uint32_t reg) {
      const UndefinedLanes* value = undefined_of(agent, reg);
      if (value && value->lanes) {
        if (value->broken) report_undefined(agent, *value, "is used");
        if (sources.lanes == 0) sources = *value;
        f(number, value->lanes);
      }
      ++number;
    });
  };
  auto lines = [](uint32_t lanes) {
    uint32_t set = 0;
    for (uint32_t line = 0; line < 8; ++line) {
      set |= uint32_t{(lanes >> 4 * line & 15) != 0} << line;
    }
    return set;
  };
  each(1, [&](uint32_t k, uint32_t lanes) { rows |= lines(lanes) << (k % 2 ? 8 : 0); });
  each(2, [&](uint32_t, uint32_t lanes) { columns |= lines(lanes); });
  std::vector<uint32_t> sums;
  each(3, [&](uint32_t k, uint32_t lanes) {
    sums.resize(std::max<size_t>(sums.size(), k + 1));
    sums[k] = lanes;
  });
  // Lane l of D has rows l / 4 and, in the registers' second half, l / 4 + 8.
  const ptx::Operand& to = function.operands[at];
  for (uint32_t k = 0; k < to.count; ++k) {
    const ptx::Operand& element = function.operands[to.first + k];
    if (element.kind != ptx::Operand::Kind::reg) continue;
    UndefinedLanes value = sources;
    value.lanes = k < sums.size() ? sums[k] : 0;
    const bool packed = to.count == 2;  // two neighbouring columns of f16
    for (uint32_t lane = 0; lane < 32; ++lane) {
      const uint32_t row = lane / 4 + (2 * k >= to.count ? 8 : 0), column = lane % 4 * 2;
      const uint32_t mine = packed ? 3u << column : 1u << (column + k % 2);
      if ((rows >> row & 1) || (columns & mine)) value.lanes |= 1u << lane;
    }
    value.computed = value.lanes;
    value.bits = ~0ull;
    set_undefined(agent, element.index, agent.lanes, value);
  }
}

/// The results of an instruction whose sources are undefined.
void ClusterChecker::spread_undefined(const Agent& agent, UndefinedLanes value) {
  const ptx::Instruction& instruction = *agent.instruction;
  const ptx::Function& function = *agent.function;
  const ptx::Form& form = module_.forms[instruction.form];
  auto set = [&](uint32_t reg, uint64_t bits) {
    UndefinedLanes part = value;
    part.bits = bits & low_bits(width_of(function, reg));
    if (part.bits == 0) part.lanes = part.computed = 0;
    set_undefined(agent, reg, agent.lanes, part);
  };
  const ptx::Operand& to = function.operands[instruction.first];
  const bool unpacks = form.parts[0] == "mov" && to.kind == ptx::Operand::Kind::vector;
  if (!unpacks) {
    const uint64_t bits = undefined_result(form, function, instruction, value.bits);
    for_registers(function, to, false, [&](uint32_t reg) { set(reg, bits); });
    return;
  }
  uint64_t rest = value.bits;
  for (uint32_t k = 0; k < to.count; ++k) {
    const ptx::Operand& part = function.operands[to.first + k];
    const uint32_t width = part.kind == ptx::Operand::Kind::reg ? width_of(function, part.index)
                                                                : 64 / std::max(1u, to.count);
    if (part.kind == ptx::Operand::Kind::reg) set(part.index, rest);
    rest = width >= 64 ? ~0ull : rest >> width;
  }
}

/// The lanes that read bytes which nobody has written, by element of the load; marks their results.
void ClusterChecker::mark_undefined(const Agent& agent, const WarpAccess& access) {
  const ptx::Operand& to = agent.function->operands[agent.instruction->first];
  const uint32_t count = to.kind == ptx::Operand::Kind::vector ? to.count : 1;
  const uint32_t bytes = access.bytes / std::max(1u, count);
  for (uint32_t k = 0; k < count; ++k) {
    const ptx::Operand& element =
        to.kind == ptx::Operand::Kind::vector ? agent.function->operands[to.first + k] : to;
    if (element.kind != ptx::Operand::Kind::reg) continue;
    UndefinedLanes value;
    value.memory = access.memory;
    value.read_at = agent.instruction;
    for (uint32_t rest = agent.lanes; rest; rest &= rest - 1) {
      const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
      const uint32_t cta = access.ctas ? access.ctas[lane] : agent.cta;
      const uint64_t address = access.addresses[lane] + uint64_t{k} * bytes;
      if (!is_unwritten(access.memory, cta, address, bytes)) continue;
      if (value.lanes == 0) value.bits = 0;
      for (uint32_t byte = 0; byte < bytes && byte < 8; ++byte) {
        if (!is_unwritten(access.memory, cta, address + byte, 1)) continue;
        if (value.lanes == 0) {
          value.cta = cta;
          value.address = address + byte;
        }
        value.lanes |= 1u << lane;
        value.bits |= 0xffull << 8 * byte;
      }
    }
    // Sign extension may spread them, and halves of 128 bits are not told apart.
    const bool extends = module_.forms[agent.instruction->form].parts.back().starts_with("s");
    if (bytes > 8 || (extends && value.bits >> (8 * bytes - 1) & 1)) value.bits = ~0ull;
    if (value.lanes) {
      value.overtaken = overtaken_at(value);
      set_undefined(agent, element.index, agent.lanes, value);
    }
  }
  wants_instructions = true;
}

/// The registers of an ldmatrix from rows that nobody has written, or not all of.
void ClusterChecker::mark_undefined_matrix(const Agent& agent, const WarpAccess& access) {
  const MatrixRegisters matrix(module_.forms[agent.instruction->form]);
  uint32_t number = 0;
  for_registers(*agent.function, agent.function->operands[agent.instruction->first], false,
                [&](uint32_t reg) {
                  UndefinedLanes value;
                  value.memory = access.memory;
                  value.read_at = agent.instruction;
                  for (uint32_t lane = 0; lane < 32; ++lane) {
                    matrix.for_bytes(
                        number, lane, [&](uint32_t row, uint32_t first, uint32_t bytes) {
                          const uint32_t cta = access.ctas ? access.ctas[row] : agent.cta;
                          const uint64_t address = access.addresses[row] + first;
                          if (!is_unwritten(access.memory, cta, address, bytes)) return;
                          if (value.lanes == 0) {
                            value.cta = cta;
                            value.address = address;
                          }
                          value.lanes |= 1u << lane;
                        });
                  }
                  ++number;
                  if (value.lanes == 0) return;
                  value.overtaken = overtaken_at(value);
                  set_undefined(agent, reg, ~0u, value);
                });
  wants_instructions = true;
}

/// What was under way when the value was read, and may have been to write it first.
std::shared_ptr<const Operation> ClusterChecker::overtaken_at(const UndefinedLanes& value) const {
  if (!context_.options.race) return nullptr;
  const Operation* writer =
      pending_writer({value.memory, value.cta, static_cast<uint32_t>(value.address)});
  return writer ? std::make_shared<const Operation>(*writer) : nullptr;
}

/// Results of a tcgen05.ld from cells that nobody has written.
void ClusterChecker::mark_undefined(const Agent& agent, const AsyncAccess& access) {
  const ptx::Operand& to = agent.function->operands[agent.instruction->first];
  const uint32_t count = to.kind == ptx::Operand::Kind::vector ? to.count : 1;
  const std::vector<Cell>& cells = tmem_[access.cta];
  const auto lane0 = static_cast<uint32_t>(access.address >> 16);
  const auto column0 = static_cast<uint32_t>(access.address & 0xffff);
  // Registers are columns (or pairs of them) in one shape; elsewhere all count.
  const bool by_column = module_.forms[agent.instruction->form].has("32x32b");
  const uint32_t width = std::max(1u, access.columns / count);
  for (uint32_t k = 0; k < count; ++k) {
    const ptx::Operand& element =
        to.kind == ptx::Operand::Kind::vector ? agent.function->operands[to.first + k] : to;
    if (element.kind != ptx::Operand::Kind::reg) continue;
    UndefinedLanes value;
    value.memory = Memory::tensor;
    value.cta = access.cta;
    value.read_at = agent.instruction;
    for (uint32_t lane = 0; lane < access.lanes; lane += kTmemCellLanes) {
      for (uint32_t c = by_column ? k * width : 0;
           c < (by_column ? (k + 1) * width : access.columns); ++c) {
        const uint32_t column = column0 + c;
        const CellState& state = states_.at(
            cells[(lane0 + lane) / kTmemCellLanes * kTmemCellsPerRow + column / kTmemCellColumns]);
        if (state.written >> column % kTmemCellColumns & 1) continue;
        value.address = uint64_t{lane0 + lane} << 16 | column;
        value.lanes |= by_column ? 0xffffu << lane : ~0u;
      }
    }
    if (value.lanes) {
      value.overtaken = overtaken_at(value);
      set_undefined(agent, element.index, agent.lanes, value);
    }
  }
  wants_instructions = true;
}

bool ClusterChecker::is_unwritten(Memory memory, uint32_t cta, uint64_t address, uint64_t bytes) {
  if (memory == Memory::global) {
    const Allocation* allocation = context_.memory ? allocation_at(address, 0) : nullptr;
    return allocation && allocation->tracks_writes() && allocation->contains(address, bytes) &&
           !allocation->is_written(address, bytes);
  }
  if (memory != Memory::shared || cta >= shared_.size() || address < kReservedBytes) return false;
  for (uint64_t at = address; at < address + bytes;) {
    if (at / kSharedCellBytes >= shared_[cta].size()) return false;
    const auto first = static_cast<uint32_t>(at % kSharedCellBytes);
    const uint64_t count = std::min<uint64_t>(kSharedCellBytes - first, address + bytes - at);
    const uint32_t units = unit_mask(first, static_cast<uint32_t>(count));
    if (units & ~states_.at(shared_[cta][at / kSharedCellBytes]).written) return true;
    at += count;
  }
  return false;
}

/// A store of undefined values leaves shared memory as undefined as they are. What was computed
/// from them must not become a result of the kernel; a mere copy may be padding.
void ClusterChecker::store_undefined(const Agent& agent, const WarpAccess& access) {
  const UndefinedLanes stored = undefined_stored_;
  const uint32_t lanes = stored.lanes & agent.lanes;
  if (stored.lanes == 0) return;
  if (access.memory == Memory::global) {
    if (lanes == 0) return;
    if (stored.computed & lanes) report_undefined(agent, stored, "is stored to global memory");
    remark(Remark::undefined_copy, stored.overtaken ? "race" : "init",
           undefined_text(agent, stored, "is copied to global memory"));
    return;  // NOTE: it counts as written then
  }
  if (access.memory != Memory::shared) return;
  const ptx::Operand& from = agent.function->operands[agent.instruction->first + 1];
  const ptx::Form& form = module_.forms[agent.instruction->form];
  if (form.parts[0] == "stmatrix") {
    const MatrixRegisters matrix(form);
    uint32_t number = 0;
    for_registers(*agent.function, from, false, [&](uint32_t reg) {
      const UndefinedLanes* value = undefined_of(agent, reg);
      for (uint32_t rest = value ? value->lanes : 0; rest; rest &= rest - 1) {
        const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
        matrix.for_bytes(number, lane, [&](uint32_t row, uint32_t first, uint32_t bytes) {
          forget_written(access.ctas ? access.ctas[row] : agent.cta, access.addresses[row] + first,
                         bytes);
        });
      }
      ++number;
    });
    return;
  }
  const bool is_vector = from.kind == ptx::Operand::Kind::vector;
  const uint32_t count = is_vector ? from.count : 1, bytes = access.bytes / count;
  for (uint32_t k = 0; k < count; ++k) {
    const ptx::Operand& element = is_vector ? agent.function->operands[from.first + k] : from;
    if (element.kind != ptx::Operand::Kind::reg) continue;
    const UndefinedLanes* value = undefined_of(agent, element.index);
    for (uint32_t rest = value ? value->lanes & lanes : 0; rest; rest &= rest - 1) {
      const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
      const uint32_t cta = access.ctas ? access.ctas[lane] : agent.cta;
      const uint64_t address = access.addresses[lane] + uint64_t{k} * bytes;
      if (value->bits == ~0ull || bytes > 8) {
        forget_written(cta, address, bytes);
        continue;
      }
      for (uint32_t byte = 0; byte < bytes; ++byte) {
        if (value->bits >> 8 * byte & 0xff) forget_written(cta, address + byte, 1);
      }
    }
  }
}

void ClusterChecker::forget_written(uint32_t cta, uint64_t address, uint64_t bytes) {
  if (cta >= shared_.size()) return;
  for (uint64_t at = address; at < address + bytes;) {
    if (at / kSharedCellBytes >= shared_[cta].size()) return;
    const auto first = static_cast<uint32_t>(at % kSharedCellBytes);
    const uint64_t count = std::min<uint64_t>(kSharedCellBytes - first, address + bytes - at);
    forget_units(shared_[cta][at / kSharedCellBytes],
                 unit_mask(first, static_cast<uint32_t>(count)));
    at += count;
  }
}

/// Cells of TMEM that a tcgen05.cp has filled from shared memory that nobody has written.
void ClusterChecker::forget_copied(const AsyncAccess& access) {
  std::vector<Cell>& cells = tmem_[access.cta];
  const auto lane0 = static_cast<uint32_t>(access.address >> 16);
  const auto column0 = static_cast<uint32_t>(access.address & 0xffff);
  for (uint32_t c = 0; c < access.columns; ++c) {
    if (!(copied_unwritten_ >> c % 4 & 1)) continue;
    const uint32_t column = column0 + c;
    for (uint32_t lane = lane0; lane < lane0 + access.lanes; lane += kTmemCellLanes) {
      forget_units(cells[lane / kTmemCellLanes * kTmemCellsPerRow + column / kTmemCellColumns],
                   unit_mask(column % kTmemCellColumns, 1));
    }
  }
}

void ClusterChecker::forget_units(Cell& cell, uint32_t units) {
  CellState state = states_.at(cell);
  state.written &= ~units;
  // The change is none of an access that others may repeat.
  states_.next_accessor();
  accessor_ = {};
  cell = states_.add(cell & ~kGuardedCell, 0, state) | (cell & kGuardedCell);
  states_.next_accessor();
}

std::string ClusterChecker::undefined_text(const Agent& agent, const UndefinedLanes& value,
                                           const char* how) const {
  if (value.broken) {
    return format("%s\n  used:    what it gave %s at %s", value.broken->text.c_str(), how,
                  location(agent.instruction).c_str());
  }
  const Place place{value.memory, value.cta, static_cast<uint32_t>(value.address)};
  const std::string where = value.memory != Memory::global ? place_name(place)
                            : context_.memory
                                ? format("global memory that was never written: byte 0x%llx is %s",
                                         static_cast<unsigned long long>(value.address),
                                         context_.memory->describe(value.address).c_str())
                                : std::string("global memory");
  std::string text = format(
      "read of %s, which was never written\n  read:    by %s at %s\n  used:    "
      "the value %s at %s",
      where.c_str(), warp_name(agent.cta * info_.warps + agent.warp).c_str(),
      location(value.read_at).c_str(), how, location(agent.instruction).c_str());
  if (const Operation* writer = value.overtaken.get()) {
    const Component warp = agent.cta * info_.warps + agent.warp;
    text += format(
        "\n  while a %s was under way that may write it: issued by %s at %s\n  missing: %s, before "
        "the read",
        operation_name(writer->kind), warp_name(writer->issuer).c_str(),
        location(writer->instruction).c_str(), missing_wait(*writer, warp).c_str());
  }
  return text;
}

void ClusterChecker::report_undefined(const Agent& agent, const UndefinedLanes& value,
                                      const char* how) {
  const char* check = value.overtaken ? "race" : "init";
  report(value.broken ? value.broken->check : check, undefined_text(agent, value, how));
}

// ---------------------------------------------------------------- rows behind the tile of a wgmma

/// A wgmma was issued: whose products its accumulators hold from now on.
void ClusterChecker::begin_sum(const exec::AsyncOp& op) {
  const FunctionRegisters& registers = registers_of(*op.issuer.function);
  const auto index = static_cast<size_t>(op.issuer.instruction - op.issuer.function->code.data());
  warp_of(op.issuer).registers.wgmma_issued(registers, index, op.id, op.accumulates);
  if (op.accumulates || undefined_.empty()) return;
  for (uint32_t slot : registers.touched(index).first(registers.results(index))) {
    set_undefined(op.issuer, registers.index(slot), ~0u, {});
  }
}

/// The wgmmas `first` to `last` of a warp have read rows of A against a rule. NOTE: a wgmma takes
/// 64 rows; kernels with smaller tiles (DeepGEMM's blocks of 16 and 32) let it read what lies
/// behind theirs and drop the products. So the rule is reported when a product is used: the
/// accumulators of the warp, whose own 16 rows these are, are followed. Returns false when one may
/// have been used already, or nobody watches the registers.
bool ClusterChecker::follow_rows(const Operation& wgmma, uint64_t first, uint64_t last,
                                 const char* check, const std::string& text) {
  if (!context_.options.registers || context_.options.strict) return false;
  const WarpState& warp = warps_[wgmma.issuer];
  if (warp.registers.used_since(first)) return false;
  UndefinedLanes value;
  value.lanes = value.computed = ~0u;
  value.broken = std::make_shared<const Broken>(Broken{check, text});
  if (!unused_rows_) unused_rows_ = value.broken;
  Agent agent;
  agent.cta = wgmma.issuer / info_.warps;
  agent.warp = wgmma.issuer % info_.warps;
  warp.registers.for_each_sum(first, last, [&](const ptx::Function& function, uint32_t reg) {
    agent.function = &function;
    set_undefined(agent, reg, ~0u, value);
  });
  return true;
}

bool ClusterChecker::follow_rows(const Actor& actor, const char* check, const std::string& text) {
  return actor.rows &&
         follow_rows(*actor.operation, actor.who.index(), actor.who.index(), check, text);
}

}  // namespace vgpu::check
