// SPDX-License-Identifier: Apache-2.0
// Values of memory that nobody has written: followed through registers until they matter.
#include <algorithm>
#include <bit>
#include <string_view>

#include "check/cluster_checker.hpp"
#include "check/value_flow.hpp"
#include "memory.hpp"

namespace vgpu::check {

using exec::Access;
using exec::Agent;
using exec::AsyncAccess;
using exec::Memory;
using exec::WarpAccess;

namespace {

bool is_collective(const ptx::Form& form) {
  return form.parts[0] == "match" || form.parts[0] == "redux";
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

/// Rows that four lanes each hold, of those lanes.
uint32_t rows_of(uint32_t lanes) {
  uint32_t rows = 0;
  for (uint32_t row = 0; row < 8; ++row) rows |= uint32_t{(lanes >> 4 * row & 15) != 0} << row;
  return rows;
}
/// The lanes that hold eight rows.
uint32_t lanes_of(uint32_t rows) {
  uint32_t lanes = 0;
  for (uint32_t row = 0; row < 8; ++row) {
    if (rows >> row & 1) lanes |= 15u << 4 * row;
  }
  return lanes;
}

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
  const std::shared_ptr<const BrokenRule> broken = kept ? at.broken : nullptr;
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
  const ptx::Form& form = module_.forms[instruction.form];
  if (flows_.empty()) {
    for (const ptx::Form& each : module_.forms) flows_.push_back(flow_of(each));
  }
  const Flow flow = flows_[instruction.form];
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
      // Sums and the like of global memory take up what they add (store_undefined).
      const bool result = form.parts[0] == "atom";
      const bool adds = !form.has("cas") && !form.has("inc") && !form.has("dec");
      for (uint32_t k = result ? 1 : 0; k < instruction.count; ++k) {
        for_registers(function, operand(k), false, [&](uint32_t reg) {
          adds ? add(reg) : must_be_defined(reg, "takes part in an atomic operation");
        });
      }
      if (result) {
        for_registers(function, operand(0), false,
                      [&](uint32_t reg) { set_undefined(agent, reg, lanes, {}); });
      }
      sources.computed = sources.lanes;
      undefined_stored_ = sources;
    }
    if (flow == Flow::store && instruction.count > 1) {
      for_registers(function, operand(1), false, add);
      // Without `init` memory is not followed, and parameters of functions never are.
      const bool lost = !context_.options.init || form.has("param");
      if (sources.broken && lost) report_undefined(agent, sources, "is stored");
      undefined_stored_ = sources;
    }
    if (flow == Flow::other) {
      // The accumulators of a wgmma stay what they are, and rows of A go into them (begin_sum).
      const bool wgmma = form.parts[0] == "wgmma";
      for (uint32_t k = wgmma ? 1 : 0; k < instruction.count; ++k) {
        if (wgmma && k == 1 && operand(k).kind == ptx::Operand::Kind::vector) continue;
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
    default:
      break;
  }
  const uint32_t guarded = sources.lanes;
  for (uint32_t k = 1; k < instruction.count; ++k) for_registers(function, operand(k), false, add);
  // What other lanes give counts too.
  const bool exchanges = flow == Flow::shuffle || flow == Flow::vote;
  if (sources.lanes == 0 && !exchanges) return result({});
  switch (flow) {
    case Flow::select:
    case Flow::logic:
    case Flow::compare:
      if (guarded) break;
      return follow_values(agent, flow, sources);
    case Flow::shuffle:
    case Flow::vote:
      if (guarded) break;
      return exchange_undefined(agent, flow);
    default:
      // What one lane puts into it reaches all of them.
      if (is_collective(form)) sources.lanes = lanes;
      break;
  }
  if (flow != Flow::copy) sources.computed = sources.lanes;
  return spread_undefined(agent, sources);
}

/// One lane of a source.
Source ClusterChecker::source_in(const Agent& agent, const exec::OperandValues& values,
                                 const ptx::Operand& operand, uint32_t lane) {
  Source source{values.at(operand, lane), 0};
  if (operand.kind != ptx::Operand::Kind::reg) return source;
  const UndefinedLanes* undefined = undefined_of(agent, operand.index);
  if (undefined && undefined->lanes >> lane & 1) {
    source.undefined = undefined->bits & low_bits(width_of(*agent.function, operand.index));
  }
  return source;
}

/// Choices, bitwise functions and comparisons: by their values, lane by lane. NOTE: a test of what
/// is defined may decide before one of what is not does (`valid && value > 0`), which compilers
/// turn into predicates that they combine.
void ClusterChecker::follow_values(const Agent& agent, Flow flow, const UndefinedLanes& sources) {
  const ptx::Instruction& instruction = *agent.instruction;
  const ptx::Function& function = *agent.function;
  const ptx::Form& form = module_.forms[instruction.form];
  const exec::OperandValues values(agent);
  auto in = [&](uint32_t k, uint32_t lane) {
    return source_in(agent, values, function.operands[instruction.first + k], lane);
  };
  // The first result, and the second of a pair.
  UndefinedLanes results[2] = {sources, sources};
  for (UndefinedLanes& value : results) value.lanes = 0, value.bits = 0;
  auto set = [&](uint32_t which, uint32_t lane, uint64_t bits) {
    if (bits == 0) return;
    results[which].lanes |= 1u << lane;
    results[which].bits |= bits;
  };
  const LogicTable table =
      flow == Flow::logic ? logic_table(form, function, instruction) : LogicTable{};
  for (uint32_t rest = sources.lanes; rest; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    if (flow == Flow::logic) {
      Source of[3] = {{0, 0}, {0, 0}, {0, 0}};
      for (uint32_t k = 0; k < table.sources; ++k) of[k] = in(1 + k, lane);
      const uint64_t bits = undefined_logic(table.bits, of[0], of[1], of[2]);
      set(0, lane, bits);
      set(1, lane, bits ? 1 : 0);
    } else if (flow == Flow::select) {
      const Source choice = in(3, lane);
      set(0, lane,
          choice.undefined || !choice.value ? ~0ull
                                            : in(*choice.value & 1 ? 1 : 2, lane).undefined);
    } else {
      const Source a = in(1, lane), b = in(2, lane);
      const Source c = instruction.count > 3 ? in(3, lane) : Source{};
      const Source* combined = instruction.count > 3 ? &c : nullptr;
      set(0, lane, undefined_comparison(form, a, b, combined, false) ? 1 : 0);
      set(1, lane, undefined_comparison(form, a, b, combined, true) ? 1 : 0);
    }
  }
  uint32_t which = 0;
  for_registers(function, function.operands[instruction.first], false, [&](uint32_t reg) {
    UndefinedLanes& value = results[std::min(which++, 1u)];
    value.computed = flow == Flow::select ? value.computed & value.lanes : value.lanes;
    set_undefined(agent, reg, agent.lanes, value);
  });
}

/// Shuffles, movmatrix and votes: what lanes give each other.
void ClusterChecker::exchange_undefined(const Agent& agent, Flow flow) {
  const ptx::Instruction& instruction = *agent.instruction;
  const ptx::Function& function = *agent.function;
  const ptx::Form& form = module_.forms[instruction.form];
  const exec::OperandValues values(agent);
  const ptx::Operand& from = function.operands[instruction.first + 1];
  const UndefinedLanes* given =
      from.kind == ptx::Operand::Kind::reg ? undefined_of(agent, from.index) : nullptr;
  UndefinedLanes first = given ? *given : UndefinedLanes{}, second;
  first.lanes = 0;
  if (given && flow == Flow::vote) {
    uint32_t undefined = given->lanes & agent.lanes;
    bool yes = false, no = false;
    for (uint32_t rest = agent.lanes & ~undefined; rest; rest &= rest - 1) {
      const auto value = values.at(from, static_cast<uint32_t>(std::countr_zero(rest)));
      (value.value_or(0) & 1 ? yes : no) = true;
    }
    const bool decided = form.has("any")   ? yes
                         : form.has("all") ? no
                         : form.has("uni") ? yes && no
                                           : false;
    if (decided) undefined = 0;
    first.lanes = first.computed = undefined ? agent.lanes : 0;
    first.bits = form.has("ballot") ? undefined : 1;
  } else if (given || flow == Flow::shuffle) {
    const bool moves_matrix = form.parts[0] == "movmatrix";
    const uint32_t undefined = given ? given->lanes : 0;
    for (uint32_t rest = agent.lanes; rest; rest &= rest - 1) {
      const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
      uint32_t takes = 0;  // from these lanes
      bool known = true;
      if (moves_matrix) {
        const uint32_t row = lane % 4 * 2;
        takes = (1u | 16u) << (row * 4 + lane / 8);
      } else {
        const Source b = source_in(agent, values, function.operands[instruction.first + 2], lane);
        const Source c = source_in(agent, values, function.operands[instruction.first + 3], lane);
        known = b.value && c.value && !b.undefined && !c.undefined;
        if (known) {
          takes = 1u << shuffled_from(form, lane, static_cast<uint32_t>(*b.value),
                                      static_cast<uint32_t>(*c.value));
        }
      }
      // NOTE: where the lane is not known, an undefined one counts if all are.
      if (known ? (takes & undefined) != 0 : undefined == agent.lanes) first.lanes |= 1u << lane;
    }
    // A lane's own part may differ from what it passes on.
    first.computed = given && given->computed ? first.lanes : 0;
  }
  uint32_t which = 0;
  for_registers(function, function.operands[instruction.first], false, [&](uint32_t reg) {
    set_undefined(agent, reg, agent.lanes, which++ == 0 ? first : second);
  });
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
        if (sources.lanes == 0 || (value->broken && !sources.broken)) sources = *value;
        f(number, value->lanes);
      }
      ++number;
    });
  };
  each(1, [&](uint32_t k, uint32_t lanes) { rows |= rows_of(lanes) << (k % 2 ? 8 : 0); });
  each(2, [&](uint32_t, uint32_t lanes) { columns |= rows_of(lanes); });
  std::vector<uint32_t> sums;
  each(3, [&](uint32_t k, uint32_t lanes) {
    sums.resize(std::max<size_t>(sums.size(), k + 1));
    sums[k] = lanes;
  });
  // Lane l of D has rows l / 4 and, in the registers' second half, l / 4 + 8; of m8n8k4 one half.
  const bool eight = module_.forms[agent.instruction->form].has("m8n8k4");
  const ptx::Operand& to = function.operands[at];
  for (uint32_t k = 0; k < to.count; ++k) {
    const ptx::Operand& element = function.operands[to.first + k];
    if (element.kind != ptx::Operand::Kind::reg) continue;
    UndefinedLanes value = sources;
    value.lanes = k < sums.size() ? sums[k] : 0;
    const bool packed = to.count == 2 && !eight;  // two neighbouring columns of f16
    for (uint32_t lane = 0; lane < 32; ++lane) {
      const uint32_t row = lane / 4 + (2 * k >= to.count && !eight ? 8 : 0), column = lane % 4 * 2;
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
      found_at(value);
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
                  found_at(value);
                  set_undefined(agent, reg, ~0u, value);
                });
  wants_instructions = true;
}

/// What is known of where the value was read: a rule that what was stored there depends on, or an
/// operation that may have been to write it first.
void ClusterChecker::found_at(UndefinedLanes& value) {
  value.broken = broken_at(value.memory, value.cta, value.address);
  if (value.broken) {
    value.computed = value.lanes;
  } else {
    value.overtaken = overtaken_at(value);
  }
}

std::shared_ptr<const BrokenRule> ClusterChecker::broken_at(Memory memory, uint32_t cta,
                                                            uint64_t address) const {
  if (memory == Memory::global) {
    const Allocation* allocation = context_.memory ? context_.memory->find(address) : nullptr;
    return allocation ? allocation->spoiled(address, 1) : nullptr;
  }
  if (memory != Memory::shared || broken_cells_.empty()) return nullptr;
  const auto found = broken_cells_.find(uint64_t{cta} << 32 | address / kSharedCellBytes);
  return found == broken_cells_.end() ? nullptr : found->second;
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
  if (access.access == Access::atomic) {
    if (access.memory == Memory::global && spoil_global(agent, access)) return;
    report_undefined(agent, stored, "takes part in an atomic operation");
  }
  if (access.memory == Memory::global) {
    if (lanes == 0) return;
    const bool matters = stored.broken || stored.computed & lanes;
    if (matters && spoil_global(agent, access)) return;
    if (stored.broken) report_undefined(agent, stored, "is stored");
    if (matters) report_undefined(agent, stored, "is stored to global memory");
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
                         bytes, value->broken);
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
        forget_written(cta, address, bytes, value->broken);
        continue;
      }
      for (uint32_t byte = 0; byte < bytes; ++byte) {
        if (value->bits >> 8 * byte & 0xff) forget_written(cta, address + byte, 1, value->broken);
      }
    }
  }
}

/// Local memory, where compilers keep what registers have no room for: by words.
void ClusterChecker::follow_local(const Agent& agent, const WarpAccess& access) {
  const ptx::Operand& operand =
      agent.function->operands[agent.instruction->first + (access.access == Access::write ? 1 : 0)];
  const bool is_vector = operand.kind == ptx::Operand::Kind::vector;
  const uint32_t count = is_vector ? operand.count : 1, bytes = access.bytes / count;
  const Component warp = agent.cta * info_.warps + agent.warp;
  for (uint32_t k = 0; k < count; ++k) {
    const ptx::Operand& element = is_vector ? agent.function->operands[operand.first + k] : operand;
    const bool is_register = element.kind == ptx::Operand::Kind::reg;
    const UndefinedLanes* value = is_register ? undefined_of(agent, element.index) : nullptr;
    UndefinedLanes loaded;
    for (uint32_t rest = agent.lanes; rest; rest &= rest - 1) {
      const uint32_t bit = rest & (0 - rest);
      const uint64_t address = access.addresses[std::countr_zero(rest)] + uint64_t{k} * bytes;
      for (uint64_t word = address / 4; word <= (address + bytes - 1) / 4; ++word) {
        const uint64_t key = uint64_t{warp} << 40 | word;
        if (access.access == Access::write) {
          if (value && value->lanes & bit) {
            UndefinedLanes& kept = undefined_local_[key];
            const uint32_t lanes = kept.lanes, computed = kept.computed;
            kept = *value;
            kept.lanes = lanes | bit;
            kept.computed = computed | (value->computed & bit);
            kept.bits = ~0ull;
          } else if (const auto found = undefined_local_.find(key);
                     bytes >= 4 && found != undefined_local_.end()) {
            found->second.lanes &= ~bit;
          }
        } else if (const auto found = undefined_local_.find(key);
                   found != undefined_local_.end() && found->second.lanes & bit) {
          const uint32_t lanes = loaded.lanes, computed = loaded.computed;
          loaded = found->second;
          loaded.lanes = lanes | bit;
          loaded.computed = computed | (found->second.computed & bit);
        }
      }
    }
    if (access.access != Access::write && loaded.lanes && is_register) {
      set_undefined(agent, element.index, agent.lanes, loaded);
    }
  }
}

/// What was computed from values that nobody wrote spoils the global memory that it is stored to:
/// whoever uses it, or the host's copy of it, is what matters. NOTE: kernels keep whole tiles in a
/// workspace and drop what lies outside the tensor when they take them up again (CUTLASS's
/// stream-K). Returns false where that cannot be followed.
bool ClusterChecker::spoil_global(const Agent& agent, const WarpAccess& access) {
  if (context_.options.strict || !context_.memory) return false;
  const UndefinedLanes stored = undefined_stored_;
  if (stored.broken && std::string_view(stored.broken->check) == "proxy") return false;
  // The value: st [a], b; red [a], b; atom d, [a], b.
  const uint32_t at = module_.forms[agent.instruction->form].parts[0] == "atom" ? 2 : 1;
  const ptx::Operand& from = agent.function->operands[agent.instruction->first + at];
  const bool is_vector = from.kind == ptx::Operand::Kind::vector;
  const uint32_t count = is_vector ? from.count : 1, bytes = access.bytes / count;
  auto for_spoiled = [&](auto&& f) {
    for (uint32_t k = 0; k < count; ++k) {
      const ptx::Operand& element = is_vector ? agent.function->operands[from.first + k] : from;
      if (element.kind != ptx::Operand::Kind::reg) continue;
      const UndefinedLanes* value = undefined_of(agent, element.index);
      for (uint32_t rest = value ? value->lanes & agent.lanes : 0; rest; rest &= rest - 1) {
        f(access.addresses[std::countr_zero(rest)] + uint64_t{k} * bytes);
      }
    }
  };
  bool tracked = true;
  for_spoiled([&](uint64_t address) {
    const Allocation* allocation = allocation_at(address, 0);
    tracked &= allocation && allocation->tracks_writes() && allocation->contains(address, bytes);
  });
  if (!tracked) return false;
  auto& rule = stored_rules_[{agent.instruction, stored.read_at}];
  // A value that goes round and round need not tell of each round.
  constexpr size_t kLongText = 2000;
  if (!rule && stored.broken && stored.broken->text.size() > kLongText) rule = stored.broken;
  if (!rule) {
    const char* check = stored.broken ? stored.broken->check : stored.overtaken ? "race" : "init";
    const char* how = access.access == Access::atomic ? "takes part in an atomic operation"
                      : stored.broken                 ? "is stored"
                                                      : "is stored to global memory";
    rule =
        std::make_shared<const BrokenRule>(BrokenRule{check, undefined_text(agent, stored, how)});
  }
  for_spoiled([&](uint64_t address) { allocation_at(address, 0)->spoil(address, bytes, rule); });
  return true;
}

void ClusterChecker::forget_written(uint32_t cta, uint64_t address, uint64_t bytes,
                                    const std::shared_ptr<const BrokenRule>& broken) {
  if (cta >= shared_.size()) return;
  for (uint64_t at = address; at < address + bytes;) {
    if (at / kSharedCellBytes >= shared_[cta].size()) return;
    const auto first = static_cast<uint32_t>(at % kSharedCellBytes);
    const uint64_t count = std::min<uint64_t>(kSharedCellBytes - first, address + bytes - at);
    forget_units(shared_[cta][at / kSharedCellBytes],
                 unit_mask(first, static_cast<uint32_t>(count)));
    if (broken) broken_cells_[uint64_t{cta} << 32 | at / kSharedCellBytes] = broken;
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

/// A wgmma was issued: whose products its accumulators hold from now on, and which rows of them
/// are undefined since those of A in registers are.
void ClusterChecker::begin_sum(const exec::AsyncOp& op) {
  const ptx::Function& function = *op.issuer.function;
  const ptx::Instruction& instruction = *op.issuer.instruction;
  if (context_.options.registers) {
    const auto index = static_cast<size_t>(&instruction - function.code.data());
    warp_of(op.issuer).registers.wgmma_issued(registers_of(function), index, op.id, op.accumulates,
                                              wgmma_packs(module_.forms[instruction.form]));
  }
  if (undefined_.empty()) return;
  uint32_t rows = 0, number = 0;
  UndefinedLanes value;
  const ptx::Operand& a = function.operands[instruction.first + 1];
  if (a.kind == ptx::Operand::Kind::vector) {
    for_registers(function, a, false, [&](uint32_t reg) {
      const UndefinedLanes* part = undefined_of(op.issuer, reg);
      if (part && part->lanes) {
        if (rows == 0 || (part->broken && !value.broken)) value = *part;
        rows |= rows_of(part->lanes) << number % 2 * 8;
      }
      ++number;
    });
  }
  const bool packed = wgmma_packs(module_.forms[instruction.form]);
  number = 0;
  for_registers(function, function.operands[instruction.first], false, [&](uint32_t reg) {
    if (!op.accumulates) set_undefined(op.issuer, reg, ~0u, {});
    value.lanes = value.computed = lanes_of(rows >> 8 * wgmma_half(number++, packed));
    value.bits = ~0ull;
    if (value.lanes) set_undefined(op.issuer, reg, value.lanes, value);
  });
}

/// A wgmma has read rows of A that nobody has written: its products of those rows are followed.
/// Returns false where nobody can tell whether they have been used.
bool ClusterChecker::follow_unwritten(const exec::AsyncOp& op, uint32_t rows, const char* check,
                                      const std::string& text) {
  const ptx::Function& function = *op.issuer.function;
  const WarpState& warp = warp_of(op.issuer);
  if (warp.registers.used_since(op.id)) return false;
  const auto index = static_cast<size_t>(op.issuer.instruction - function.code.data());
  UndefinedLanes value;
  value.broken = std::make_shared<const BrokenRule>(BrokenRule{check, text});
  if (!unused_rows_) unused_rows_ = value.broken;
  Agent agent = op.issuer;
  warp.registers.for_each_product(registers_of(function), index, op.id,
                                  [&](const ptx::Function& of, uint32_t reg, uint32_t halves) {
                                    agent.function = &of;
                                    value.lanes = (halves & 1 ? lanes_of(rows) : 0) |
                                                  (halves & 2 ? lanes_of(rows >> 8) : 0);
                                    value.computed = value.lanes;
                                    if (value.lanes) set_undefined(agent, reg, value.lanes, value);
                                  });
  wants_instructions = true;
  return true;
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
  value.broken = std::make_shared<const BrokenRule>(BrokenRule{check, text});
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
