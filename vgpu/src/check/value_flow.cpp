// SPDX-License-Identifier: Apache-2.0
#include "check/value_flow.hpp"

#include <string_view>
#include <utility>

namespace vgpu::check {
namespace {

constexpr uint8_t kTableA = 0xf0, kTableB = 0xcc, kTableC = 0xaa;

/// a < b or a == b of the comparison's type; nothing for types whose order is not told here.
struct Comparison {
  bool less = false, equal = false, unordered = false;
};
std::optional<Comparison> compare(std::string_view type, uint64_t a, uint64_t b) {
  const ptx::Type parsed = ptx::type_from_suffix(type);
  const uint32_t width = 8 * ptx::size_of(parsed);
  if (width == 0) return std::nullopt;
  a &= low_bits(width);
  b &= low_bits(width);
  switch (type[0]) {
    case 's': {
      const uint32_t rest = 64 - width;
      const int64_t x = static_cast<int64_t>(a << rest), y = static_cast<int64_t>(b << rest);
      return Comparison{x < y, x == y, false};
    }
    case 'u':
    case 'b':
      if (type != "bf16" && type != "bf16x2") return Comparison{a < b, a == b, false};
      return std::nullopt;
    default:
      break;
  }
  auto of_floats = [](auto x, auto y) { return Comparison{x < y, x == y, x != x || y != y}; };
  if (parsed == ptx::Type::f32) {
    return of_floats(std::bit_cast<float>(static_cast<uint32_t>(a)),
                     std::bit_cast<float>(static_cast<uint32_t>(b)));
  }
  if (parsed == ptx::Type::f64) {
    return of_floats(std::bit_cast<double>(a), std::bit_cast<double>(b));
  }
  return std::nullopt;
}

/// What setp compares to, where that is known.
std::optional<bool> outcome(const ptx::Form& form, const Source& a, const Source& b) {
  if (a.undefined || b.undefined || !a.value || !b.value || form.parts.size() < 3) {
    return std::nullopt;
  }
  const auto found = compare(form.parts.back(), *a.value, *b.value);
  if (!found) return std::nullopt;
  std::string_view how = form.parts[1];
  if (how == "num" || how == "nan") return found->unordered == (how == "nan");
  const bool orders_signs = form.parts.back()[0] == 'f';
  if (orders_signs && how.size() == 3 && how.back() == 'u') {
    if (found->unordered) return true;
    how.remove_suffix(1);
  } else if (found->unordered) {
    return false;
  }
  if (how == "eq") return found->equal;
  if (how == "ne") return !found->equal;
  if (how == "lt" || how == "lo") return found->less;
  if (how == "le" || how == "ls") return found->less || found->equal;
  if (how == "gt" || how == "hi") return !found->less && !found->equal;
  if (how == "ge" || how == "hs") return !found->less;
  return std::nullopt;
}

}  // namespace

Flow flow_of(const ptx::Form& form) {
  static constexpr std::pair<std::string_view, Flow> kFlows[] = {
      {"mov", Flow::copy},
      {"prmt", Flow::copy},
      {"selp", Flow::select},
      {"and", Flow::logic},
      {"or", Flow::logic},
      {"xor", Flow::logic},
      {"not", Flow::logic},
      {"lop3", Flow::logic},
      {"setp", Flow::compare},
      {"shfl", Flow::shuffle},
      {"vote", Flow::vote},
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

uint32_t width_of(const ptx::Function& function, uint32_t reg) {
  const ptx::Type type = function.registers[reg].type;
  return type == ptx::Type::pred ? 1 : 8 * ptx::size_of(type);
}

LogicTable logic_table(const ptx::Form& form, const ptx::Function& function,
                       const ptx::Instruction& instruction) {
  const std::string_view opcode = form.parts[0];
  if (opcode == "and") return {kTableA & kTableB, 2};
  if (opcode == "or") return {kTableA | kTableB, 2};
  if (opcode == "xor") return {kTableA ^ kTableB, 2};
  if (opcode == "not") return {static_cast<uint8_t>(~kTableA), 1};
  const ptx::Operand& table = function.operands[instruction.first + 4];
  return {static_cast<uint8_t>(table.value), 3};
}

uint64_t undefined_logic(uint8_t table, const Source& a, const Source& b, const Source& c) {
  // Bits of each source that may be 0, that may be 1; unknown values may be either.
  auto may_be = [](const Source& s, bool one) {
    return !s.value ? ~0ull : s.undefined | (one ? *s.value : ~*s.value);
  };
  // Bits that depend on an undefined one at all.
  const uint64_t touched = a.undefined | b.undefined | c.undefined;
  uint64_t zero = 0, one = 0;
  for (uint32_t k = 0; k < 8; ++k) {
    const uint64_t possible = may_be(a, k & 4) & may_be(b, k & 2) & may_be(c, k & 1);
    (table >> k & 1 ? one : zero) |= possible;
  }
  return zero & one & touched;
}

bool undefined_comparison(const ptx::Form& form, const Source& a, const Source& b, const Source* c,
                          bool second) {
  bool undefined = a.undefined || b.undefined;
  const std::string_view type = form.parts.back();
  const bool tells_equal = form.parts[1] == "eq" || form.parts[1] == "ne";
  const bool floats = type[0] == 'f' || type.starts_with("bf");
  if (undefined && tells_equal && !floats && a.value && b.value) {
    // Bits that are defined differ: whatever the others are.
    const uint32_t width = 8 * ptx::size_of(ptx::type_from_suffix(type));
    undefined = !((*a.value ^ *b.value) & ~(a.undefined | b.undefined) & low_bits(width));
  }
  if (!c) return undefined;
  if (!undefined && !c->undefined) return false;
  if (form.has("xor")) return true;
  // 1 makes an `or` whatever the other is, 0 an `and`.
  const bool decides = form.has("or");
  if (!c->undefined) return !c->value || (*c->value & 1) != decides;
  if (undefined) return true;
  const std::optional<bool> first = outcome(form, a, b);
  return !first || (*first != second) != decides;
}

uint32_t shuffled_from(const ptx::Form& form, uint32_t lane, uint32_t b, uint32_t c) {
  // PTX ISA, "shfl.sync": semantics.
  const uint32_t value = b & 31, clamp = c & 31, segment = c >> 8 & 31;
  const uint32_t last = (lane & segment) | (clamp & ~segment);
  if (form.has("up")) {
    const int from = static_cast<int>(lane) - static_cast<int>(value);
    return from >= static_cast<int>(last) ? lane - value : lane;
  }
  const uint32_t from = form.has("down")   ? lane + value
                        : form.has("bfly") ? lane ^ value
                                           : (lane & segment) | (value & ~segment);
  return from <= last ? from & 31 : lane;
}

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
  if (opcode == "shl") return value >= width ? 0 : bits << value & low_bits(width);
  if (opcode == "shr" && value < width) {
    const bool sign = is_signed(form.parts.back()) && bits >> (width - 1) & 1;
    return sign ? bits >> value | ~low_bits(width - static_cast<uint32_t>(value)) : bits >> value;
  }
  return ~0ull;
}

}  // namespace vgpu::check
