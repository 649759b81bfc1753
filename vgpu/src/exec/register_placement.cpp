// SPDX-License-Identifier: Apache-2.0
#include "exec/register_placement.hpp"

#include <algorithm>
#include <map>

namespace vgpu::exec {
namespace {

using ptx::Function;
using ptx::Instruction;
using ptx::Module;
using ptx::Operand;

/// The registers an instruction reads and writes. A destination that a guard may skip is read too.
struct Effects {
  std::vector<uint32_t> reads, writes;
};

bool has_destination(const ptx::Form& form) {
  auto opcode = form.opcode();
  if (opcode == "tcgen05") return form.has("ld");
  // Opcodes whose first operand is no destination.
  for (auto none :
       {"st", "red", "bra", "brx", "bar", "barrier", "call", "ret", "exit", "cp", "fence", "membar",
        "prefetch", "nanosleep", "stmatrix", "setmaxnreg", "wgmma", "discard", "applypriority"}) {
    if (opcode == none) return false;
  }
  return true;
}

/// Asynchronous or partial accesses: such registers are left alone.
bool needs_own_place(const ptx::Form& form) {
  return form.opcode() == "wgmma";
}

void collect(const Function& f, const Operand& operand, std::vector<uint32_t>& out) {
  switch (operand.kind) {
    case Operand::Kind::reg:
      out.push_back(operand.index);
      break;
    case Operand::Kind::vector:
    case Operand::Kind::list:
    case Operand::Kind::pair:
    case Operand::Kind::address:
      for (uint32_t k = 0; k < operand.count; ++k) collect(f, f.operands[operand.first + k], out);
      break;
    default:
      break;
  }
}

Effects effects_of(const Module& module, const Function& f, const Instruction& instruction) {
  Effects e;
  auto& form = module.forms[instruction.form];
  // Reading what is only written is safe: it makes a register live for longer.
  bool plain = has_destination(form);
  for (uint32_t k = 0; k < instruction.count; ++k) {
    auto& operand = f.operands[instruction.first + k];
    bool destination = k == 0 && operand.kind != Operand::Kind::address;
    if (destination) collect(f, operand, e.writes);
    if (!destination || !plain) collect(f, operand, e.reads);
  }
  if (instruction.guard >= 0) {
    e.reads.push_back(static_cast<uint32_t>(instruction.guard));
    e.reads.insert(e.reads.end(), e.writes.begin(), e.writes.end());
  }
  return e;
}

struct Block {
  uint32_t begin = 0, end = 0;
  std::vector<uint32_t> successors;
  std::vector<uint64_t> in, out, reads, writes;  // bit sets over registers
};

bool get(const std::vector<uint64_t>& set, uint32_t k) {
  return set[k / 64] >> (k % 64) & 1;
}
void add(std::vector<uint64_t>& set, uint32_t k) {
  set[k / 64] |= uint64_t{1} << (k % 64);
}

std::vector<Block> split_blocks(const Module& module, const Function& f) {
  auto size = static_cast<uint32_t>(f.code.size());
  std::vector<bool> leader(size + 1, false);
  leader[0] = true;
  for (uint32_t pc = 0; pc < size; ++pc) {
    auto opcode = module.forms[f.code[pc].form].opcode();
    bool leaves = opcode == "bra" || opcode == "brx" || opcode == "ret" || opcode == "exit";
    if (!leaves) continue;
    leader[pc + 1] = true;
    for (uint32_t k = 0; k < f.code[pc].count; ++k) {
      auto& operand = f.operands[f.code[pc].first + k];
      if (operand.kind == Operand::Kind::label) leader[std::min(operand.index, size)] = true;
      if (operand.kind == Operand::Kind::table) {
        for (uint32_t target : f.branch_tables[operand.index]) {
          leader[std::min(target, size)] = true;
        }
      }
    }
  }
  std::vector<uint32_t> block_of(size + 1, UINT32_MAX);
  std::vector<Block> blocks;
  for (uint32_t pc = 0; pc < size; ++pc) {
    if (leader[pc]) {
      blocks.emplace_back();
      blocks.back().begin = pc;
    }
    block_of[pc] = static_cast<uint32_t>(blocks.size() - 1);
    blocks.back().end = pc + 1;
  }
  for (uint32_t b = 0; b < blocks.size(); ++b) {
    auto& last = f.code[blocks[b].end - 1];
    auto opcode = module.forms[last.form].opcode();
    bool stays = !(opcode == "bra" || opcode == "brx" || opcode == "ret" || opcode == "exit") ||
                 last.guard >= 0;
    if (stays && b + 1 < blocks.size()) blocks[b].successors.push_back(b + 1);
    auto jump = [&](uint32_t target) {
      if (target < size) blocks[b].successors.push_back(block_of[target]);
    };
    for (uint32_t k = 0; k < last.count; ++k) {
      auto& operand = f.operands[last.first + k];
      if (operand.kind == Operand::Kind::label) jump(operand.index);
      if (operand.kind == Operand::Kind::table) {
        for (uint32_t target : f.branch_tables[operand.index]) jump(target);
      }
    }
  }
  return blocks;
}

}  // namespace

RegisterColors color_registers(const Module& module, const Function& f) {
  auto count = static_cast<uint32_t>(f.registers.size());
  RegisterColors colors;
  colors.color.assign(count, UINT32_MAX);
  if (count == 0 || f.code.empty()) {
    for (auto& color : colors.color) color = colors.count++;
    return colors;
  }
  size_t words = (count + 63) / 64;
  auto blocks = split_blocks(module, f);

  // Upward-exposed reads and writes of each block; registers that keep a place of their own.
  std::vector<bool> own(count, false);
  std::vector<Effects> effects(f.code.size());
  for (auto& block : blocks) {
    for (auto* set : {&block.in, &block.out, &block.reads, &block.writes}) set->assign(words, 0);
    for (uint32_t pc = block.begin; pc < block.end; ++pc) {
      effects[pc] = effects_of(module, f, f.code[pc]);
      for (uint32_t r : effects[pc].reads) {
        if (!get(block.writes, r)) add(block.reads, r);
      }
      for (uint32_t r : effects[pc].writes) add(block.writes, r);
      if (needs_own_place(module.forms[f.code[pc].form])) {
        for (uint32_t r : effects[pc].reads) own[r] = true;
        for (uint32_t r : effects[pc].writes) own[r] = true;
      }
    }
  }
  // Live sets: in = reads + (out - writes), backwards until nothing changes.
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t b = blocks.size(); b-- > 0;) {
      auto& block = blocks[b];
      for (uint32_t s : block.successors) {
        for (size_t k = 0; k < words; ++k) block.out[k] |= blocks[s].in[k];
      }
      for (size_t k = 0; k < words; ++k) {
        uint64_t in = block.reads[k] | (block.out[k] & ~block.writes[k]);
        changed |= in != block.in[k];
        block.in[k] = in;
      }
    }
  }
  // Linear scan over one interval a register: from its first to its last position, stretched over
  // every block it is live into or out of.
  std::vector<uint32_t> first(count, UINT32_MAX), last(count, 0);
  auto touch = [&](uint32_t r, uint32_t pc) {
    first[r] = std::min(first[r], pc);
    last[r] = std::max(last[r], pc);
  };
  for (auto& block : blocks) {
    for (size_t k = 0; k < words; ++k) {
      for (uint64_t bits = block.in[k]; bits; bits &= bits - 1) {
        touch(static_cast<uint32_t>(k * 64 + static_cast<size_t>(__builtin_ctzll(bits))),
              block.begin);
      }
      for (uint64_t bits = block.out[k]; bits; bits &= bits - 1) {
        touch(static_cast<uint32_t>(k * 64 + static_cast<size_t>(__builtin_ctzll(bits))),
              block.end);
      }
    }
    for (uint32_t pc = block.begin; pc < block.end; ++pc) {
      for (uint32_t r : effects[pc].reads) touch(r, pc);
      for (uint32_t r : effects[pc].writes) touch(r, pc);
    }
  }
  std::vector<uint32_t> order;
  for (uint32_t r = 0; r < count; ++r) {
    if (own[r] || first[r] == UINT32_MAX) {
      colors.color[r] = colors.count++;
    } else {
      order.push_back(r);
    }
  }
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return first[a] < first[b]; });
  // Free colors by width (predicates: 0), and the ends of the intervals in use.
  std::map<unsigned, std::vector<uint32_t>> free_colors;
  std::multimap<uint32_t, uint32_t> active;  // last position -> register
  auto width = [&](uint32_t r) {
    ptx::Type type = f.registers[r].type;
    return type == ptx::Type::pred ? 0u : std::max(2u, ptx::size_of(type));
  };
  for (uint32_t r : order) {
    // NOTE: An interval that ends where another begins may not share: the handlers of vectors write
    // some destinations before they have read all sources.
    while (!active.empty() && active.begin()->first < first[r]) {
      uint32_t done = active.begin()->second;
      free_colors[width(done)].push_back(colors.color[done]);
      active.erase(active.begin());
    }
    auto& available = free_colors[width(r)];
    if (available.empty()) {
      colors.color[r] = colors.count++;
    } else {
      colors.color[r] = available.back();
      available.pop_back();
    }
    active.emplace(last[r], r);
  }
  return colors;
}

}  // namespace vgpu::exec
