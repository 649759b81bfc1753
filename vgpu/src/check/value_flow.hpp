// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <optional>

#include "exec/observer.hpp"
#include "ptx/module.hpp"

/// How instructions pass on values that are undefined: which bits of a result depend on which bits
/// of the sources. Knows nothing of where the undefined values came from.
namespace vgpu::check {

/// How an instruction passes on what it reads.
enum class Flow : uint8_t {
  compute,
  copy,
  select,
  logic,
  compare,
  shuffle,
  vote,
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

Flow flow_of(const ptx::Form& form);

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

inline uint64_t low_bits(uint32_t count) {
  return count >= 64 ? ~0ull : (uint64_t{1} << count) - 1;
}
/// Bits of a register.
uint32_t width_of(const ptx::Function& function, uint32_t reg);

/// A source in one lane: its value where it is known, and which bits of it are undefined.
struct Source {
  std::optional<uint64_t> value;
  uint64_t undefined = 0;
};

/// The table of and, or, xor, not and lop3: bit 4 a + 2 b + c is the result.
struct LogicTable {
  uint8_t bits = 0;
  uint32_t sources = 0;  ///< a, then b, then c: operands 1, 2, 3
};
LogicTable logic_table(const ptx::Form& form, const ptx::Function& function,
                       const ptx::Instruction& instruction);
/// The undefined bits of a bitwise function: those that the undefined bits of a source can change.
uint64_t undefined_logic(uint8_t table, const Source& a, const Source& b, const Source& c);

/// Whether setp's result is undefined, from its sources; `c` is the predicate that is combined with
/// the comparison (null: none), `second` the result behind the bar of p|q.
bool undefined_comparison(const ptx::Form& form, const Source& a, const Source& b, const Source* c,
                          bool second);

/// The lane that a lane of shfl takes its value from.
uint32_t shuffled_from(const ptx::Form& form, uint32_t lane, uint32_t b, uint32_t c);

/// The undefined bits of any other result, from those of the first source; all where the
/// instruction may spread them. Fields of structures with padding are taken out of wider loads by
/// these.
uint64_t undefined_result(const ptx::Form& form, const ptx::Function& function,
                          const ptx::Instruction& instruction, uint64_t bits);

}  // namespace vgpu::check
