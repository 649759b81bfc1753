// SPDX-License-Identifier: Apache-2.0
// Logic, shifts, bit fields and byte permutation. Source: PTX ISA 9.0, "Logic and Shift
// Instructions", bfe, bfi, bfind, fns, brev, clz, popc, prmt, lop3, szext, bmsk.
#include "exec/decoder.hpp"
#include "exec/lanes.hpp"

namespace vgpu::exec {
namespace {

using ptx::Type;

enum class Logic { and_op, or_op, xor_op, not_op, cnot_op };

template <Logic kOp>
Step predicate_logic(Warp& w, const Instr& i, uint32_t lanes) {
  uint32_t a = predicate(w, i[1]), b = kOp == Logic::not_op ? 0 : predicate(w, i[2]);
  uint32_t r = kOp == Logic::and_op   ? a & b
               : kOp == Logic::or_op  ? a | b
               : kOp == Logic::xor_op ? a ^ b
                                      : ~a;
  set_predicate(w, i.d, lanes, r);
  return Step::next;
}

template <typename T>
Handler logic_handler(Logic op) {
  switch (op) {
    case Logic::and_op:
      return binary<T, T, T, [](T a, T b) { return static_cast<T>(a & b); }>;
    case Logic::or_op:
      return binary<T, T, T, [](T a, T b) { return static_cast<T>(a | b); }>;
    case Logic::xor_op:
      return binary<T, T, T, [](T a, T b) { return static_cast<T>(a ^ b); }>;
    case Logic::not_op:
      return unary<T, T, [](T a) { return static_cast<T>(~a); }>;
    case Logic::cnot_op:
      return unary<T, T, [](T a) { return static_cast<T>(a == 0); }>;
  }
  return nullptr;
}

bool decode_logic(Decoder& d) {
  Logic op = d.opcode() == "and"   ? Logic::and_op
             : d.opcode() == "or"  ? Logic::or_op
             : d.opcode() == "xor" ? Logic::xor_op
             : d.opcode() == "not" ? Logic::not_op
                                   : Logic::cnot_op;
  Type type = d.take_type();
  if (type == Type::pred) {
    d.out.d = d.dest_predicate(0);
    d.make_predicate_refs();
    switch (op) {
      case Logic::and_op:
        d.out.handler = predicate_logic<Logic::and_op>;
        break;
      case Logic::or_op:
        d.out.handler = predicate_logic<Logic::or_op>;
        break;
      case Logic::xor_op:
        d.out.handler = predicate_logic<Logic::xor_op>;
        break;
      case Logic::not_op:
        d.out.handler = predicate_logic<Logic::not_op>;
        break;
      default:
        return false;
    }
    return true;
  }
  unsigned bytes = ptx::size_of(type);
  d.out.d = d.dest(0, bytes);
  d.out.a = d.source(1, bytes);
  if (op != Logic::not_op && op != Logic::cnot_op) d.out.b = d.source(2, bytes);
  switch (type) {
    case Type::b16:
      d.out.handler = logic_handler<uint16_t>(op);
      return true;
    case Type::b32:
      d.out.handler = logic_handler<uint32_t>(op);
      return true;
    case Type::b64:
      d.out.handler = logic_handler<uint64_t>(op);
      return true;
    default:
      return false;
  }
}

// Shift amounts are 32-bit and clamp at the width.
template <typename T>
constexpr T shift_left(T a, uint32_t n) {
  return n >= sizeof(T) * 8 ? T(0) : static_cast<T>(a << n);
}
template <typename T>
constexpr T shift_right(T a, uint32_t n) {
  constexpr uint32_t kBits = sizeof(T) * 8;
  if (std::is_signed_v<T>) return static_cast<T>(a >> (n >= kBits ? kBits - 1 : n));
  return n >= kBits ? T(0) : static_cast<T>(a >> n);
}

bool decode_shift(Decoder& d) {
  bool left = d.opcode() == "shl";
  Type type = d.take_type();
  unsigned bytes = ptx::size_of(type);
  auto set = [&](auto zero) {
    using T = decltype(zero);
    d.out.d = d.dest(0, bytes);
    d.out.a = d.source(1, bytes);
    d.out.b = d.source(2, 4);
    d.out.handler = left ? Handler(binary<T, T, uint32_t, shift_left<T>>)
                         : Handler(binary<T, T, uint32_t, shift_right<T>>);
    return true;
  };
  switch (type) {
    case Type::b16:
    case Type::u16:
      return set(uint16_t{});
    case Type::b32:
    case Type::u32:
      return set(uint32_t{});
    case Type::b64:
    case Type::u64:
      return set(uint64_t{});
    case Type::s16:
      return !left && set(int16_t{});
    case Type::s32:
      return !left && set(int32_t{});
    case Type::s64:
      return !left && set(int64_t{});
    default:
      return false;
  }
}

template <bool kLeft, bool kWrap>
uint32_t funnel_shift(uint32_t low, uint32_t high, uint32_t n) {
  n = kWrap ? n & 31 : n > 32 ? 32 : n;
  uint64_t pair = uint64_t{high} << 32 | low;
  return kLeft ? static_cast<uint32_t>(pair << n >> 32) : static_cast<uint32_t>(pair >> n);
}

bool decode_funnel_shift(Decoder& d) {
  int left = d.take_one({"r", "l"}), wrap = d.take_one({"clamp", "wrap"});
  if (left < 0 || wrap < 0 || d.take_type() != Type::b32) return false;
  d.out.d = d.dest(0, 4);
  d.out.a = d.source(1, 4);
  d.out.b = d.source(2, 4);
  d.out.c = d.source(3, 4);
  using U = uint32_t;
  d.out.handler = left ? (wrap ? ternary<U, U, U, U, funnel_shift<true, true>>
                               : ternary<U, U, U, U, funnel_shift<true, false>>)
                       : (wrap ? ternary<U, U, U, U, funnel_shift<false, true>>
                               : ternary<U, U, U, U, funnel_shift<false, false>>);
  return true;
}

template <typename T>
T extract_field(T a, uint32_t position, uint32_t length) {
  constexpr uint32_t kBits = sizeof(T) * 8;
  using U = std::make_unsigned_t<T>;
  position &= 255;
  length &= 255;
  if (length == 0) return 0;
  // The sign bit is that of the field, or of `a` when the field passes its end.
  uint32_t top = position + length - 1 < kBits - 1 ? position + length - 1 : kBits - 1;
  bool fill = std::is_signed_v<T> && (static_cast<U>(a) >> top & 1);
  U field = position >= kBits ? U(0) : static_cast<U>(static_cast<U>(a) >> position);
  uint32_t present = position >= kBits ? 0 : top - position + 1;
  U mask = present >= kBits ? ~U(0) : static_cast<U>((U(1) << present) - 1);
  field &= mask;
  return static_cast<T>(fill ? field | ~mask : field);
}
template <typename T>
Step bit_field_extract(Warp& w, const Instr& i, uint32_t lanes) {
  return ternary<T, T, uint32_t, uint32_t, extract_field<T>>(w, i, lanes);
}

bool decode_bfe(Decoder& d) {
  Type type = d.take_type();
  unsigned bytes = ptx::size_of(type);
  d.out.d = d.dest(0, bytes);
  d.out.a = d.source(1, bytes);
  d.out.b = d.source(2, 4);
  d.out.c = d.source(3, 4);
  switch (type) {
    case Type::u32:
      d.out.handler = bit_field_extract<uint32_t>;
      return true;
    case Type::s32:
      d.out.handler = bit_field_extract<int32_t>;
      return true;
    case Type::u64:
      d.out.handler = bit_field_extract<uint64_t>;
      return true;
    case Type::s64:
      d.out.handler = bit_field_extract<int64_t>;
      return true;
    default:
      return false;
  }
}

template <typename T>
Step bit_field_insert(Warp& w, const Instr& i, uint32_t lanes) {
  constexpr uint32_t kBits = sizeof(T) * 8;
  const T *a = w.lanes<T>(i.a), *b = w.lanes<T>(i.b);
  const uint32_t *positions = w.lanes<uint32_t>(i.c), *lengths = w.lanes<uint32_t>(i.x);
  write_lanes<T>(w, i.d, lanes, [=](uint32_t l) -> T {
    uint32_t position = positions[l] & 255, length = lengths[l] & 255;
    if (position >= kBits || length == 0) return b[l];
    T mask = length >= kBits ? ~T(0) : static_cast<T>((T(1) << length) - 1);
    mask = static_cast<T>(mask << position);
    return static_cast<T>((b[l] & ~mask) | (static_cast<T>(a[l] << position) & mask));
  });
  return Step::next;
}

bool decode_bfi(Decoder& d) {
  Type type = d.take_type();
  if (type != Type::b32 && type != Type::b64) return false;
  unsigned bytes = ptx::size_of(type);
  d.out.d = d.dest(0, bytes);
  d.out.a = d.source(1, bytes);
  d.out.b = d.source(2, bytes);
  d.out.c = d.source(3, 4);
  d.out.x = d.source(4, 4);
  d.out.handler = bytes == 4 ? bit_field_insert<uint32_t> : bit_field_insert<uint64_t>;
  return true;
}

template <typename T, bool kShiftAmount>
uint32_t find_bit(T a) {
  using U = std::make_unsigned_t<T>;
  // Signed: the most significant bit that differs from the sign.
  U bits = a < T(0) ? static_cast<U>(~a) : static_cast<U>(a);
  if (bits == 0) return 0xffffffffu;
  uint32_t zeros = static_cast<uint32_t>(std::countl_zero(bits));
  return kShiftAmount ? zeros : static_cast<uint32_t>(sizeof(T) * 8) - 1 - zeros;
}

bool decode_bfind(Decoder& d) {
  bool amount = d.take("shiftamt");
  Type type = d.take_type();
  unsigned bytes = ptx::size_of(type);
  d.out.d = d.dest(0, 4);
  d.out.a = d.source(1, bytes);
  auto set = [&](auto zero) {
    using T = decltype(zero);
    d.out.handler = amount ? Handler(unary<uint32_t, T, find_bit<T, true>>)
                           : Handler(unary<uint32_t, T, find_bit<T, false>>);
    return true;
  };
  switch (type) {
    case Type::u32:
      return set(uint32_t{});
    case Type::s32:
      return set(int32_t{});
    case Type::u64:
      return set(uint64_t{});
    case Type::s64:
      return set(int64_t{});
    default:
      return false;
  }
}

template <typename T>
T reverse_bits(T a) {
  T r = 0;
  for (uint32_t k = 0; k < sizeof(T) * 8; ++k) r = static_cast<T>(r << 1 | (a >> k & 1));
  return r;
}

bool decode_count(Decoder& d) {
  Type type = d.take_type();
  unsigned bytes = ptx::size_of(type);
  if (type != Type::b32 && type != Type::b64) return false;
  bool reverse = d.opcode() == "brev", pop = d.opcode() == "popc";
  d.out.d = d.dest(0, reverse ? bytes : 4);
  d.out.a = d.source(1, bytes);
  if (bytes == 4) {
    d.out.handler = reverse ? Handler(unary<uint32_t, uint32_t, reverse_bits<uint32_t>>)
                    : pop
                        ? unary<uint32_t, uint32_t, [](uint32_t a) { return std::popcount(a); }>
                        : unary<uint32_t, uint32_t, [](uint32_t a) { return std::countl_zero(a); }>;
  } else {
    d.out.handler = reverse ? Handler(unary<uint64_t, uint64_t, reverse_bits<uint64_t>>)
                    : pop
                        ? unary<uint32_t, uint64_t, [](uint64_t a) { return std::popcount(a); }>
                        : unary<uint32_t, uint64_t, [](uint64_t a) { return std::countl_zero(a); }>;
  }
  return true;
}

uint32_t permute(uint32_t a, uint32_t b, uint32_t selectors) {
  uint64_t pair = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int k = 0; k < 4; ++k) {
    uint32_t selector = selectors >> 4 * k & 15;
    uint32_t byte = static_cast<uint32_t>(pair >> (selector & 7) * 8) & 255;
    if (selector & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << 8 * k;
  }
  return result;
}

/// The selector of prmt's named modes for the two low bits of c.
uint32_t permute_mode(uint32_t mode, uint32_t c) {
  static constexpr uint32_t kSelectors[6][4] = {
      {0x3210, 0x4321, 0x5432, 0x6543},  // f4e
      {0x5670, 0x6701, 0x7012, 0x0123},  // b4e
      {0x0000, 0x1111, 0x2222, 0x3333},  // rc8
      {0x3210, 0x3211, 0x3222, 0x3333},  // ecl
      {0x0000, 0x1110, 0x2210, 0x3210},  // ecr
      {0x1010, 0x3232, 0x1010, 0x3232},  // rc16
  };
  return kSelectors[mode][c & 3];
}

Step permute_named(Warp& w, const Instr& i, uint32_t lanes) {
  const uint32_t *a = w.lanes<uint32_t>(i.a), *b = w.lanes<uint32_t>(i.b),
                 *c = w.lanes<uint32_t>(i.c);
  write_each_lane<uint32_t>(
      w, i.d, lanes, [&](uint32_t l) { return permute(a[l], b[l], permute_mode(i.x, c[l])); });
  return Step::next;
}

bool decode_prmt(Decoder& d) {
  if (d.take_type() != Type::b32) return false;
  int mode = d.take_one({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"});
  d.out.d = d.dest(0, 4);
  d.out.a = d.source(1, 4);
  d.out.b = d.source(2, 4);
  d.out.c = d.source(3, 4);
  d.out.x = static_cast<uint32_t>(mode);
  d.out.handler =
      mode >= 0 ? permute_named : ternary<uint32_t, uint32_t, uint32_t, uint32_t, permute>;
  return true;
}

Step logic3(Warp& w, const Instr& i, uint32_t lanes) {
  const uint32_t *a = w.lanes<uint32_t>(i.a), *b = w.lanes<uint32_t>(i.b),
                 *c = w.lanes<uint32_t>(i.c);
  // Bit n of the table is the result for (a, b, c) = bits 2, 1, 0 of n.
  uint32_t term[8];
  for (uint32_t k = 0; k < 8; ++k) term[k] = i.x >> k & 1 ? kAllLanes : 0;
  write_lanes<uint32_t>(w, i.d, lanes, [&](uint32_t l) {
    uint32_t x = a[l], y = b[l], z = c[l];
    return (~x & ~y & ~z & term[0]) | (~x & ~y & z & term[1]) | (~x & y & ~z & term[2]) |
           (~x & y & z & term[3]) | (x & ~y & ~z & term[4]) | (x & ~y & z & term[5]) |
           (x & y & ~z & term[6]) | (x & y & z & term[7]);
  });
  return Step::next;
}

/// lop3.or, lop3.and: also p = (d != 0) op q; Instr::extra.
struct LogicPredicate {
  bool is_or = false;
  uint32_t to = 0;
  Ref with;
};
Step logic3_predicate(Warp& w, const Instr& i, uint32_t lanes) {
  auto& op = *static_cast<const LogicPredicate*>(i.extra);
  const uint32_t with = predicate(w, op.with);
  logic3(w, i, lanes);
  const uint32_t* d = w.lanes<uint32_t>(i.d);
  uint32_t bits = 0;
  for_lanes(lanes, [&](uint32_t l) { bits |= uint32_t{d[l] != 0} << l; });
  set_predicate(w, op.to, lanes, op.is_or ? bits | with : bits & with);
  return Step::next;
}

bool decode_lop3(Decoder& d) {
  int combination = d.take_one({"and", "or"});
  if (d.take_type() != Type::b32) return false;
  if (combination >= 0) {
    auto& destination = d.operand(0);
    if (destination.kind != ptx::Operand::Kind::pair || d.count() != 6) {
      throw BadOperand{"lop3.and and lop3.or need d|p and a predicate behind the table"};
    }
    auto& op = d.extra<LogicPredicate>();
    op.is_or = combination == 1;
    op.to = d.dest_predicate(d.child(destination, 1));
    op.with = d.source_predicate(5);
    d.out.d = d.dest(d.child(destination, 0), 4);
    d.out.a = d.source(1, 4);
    d.out.b = d.source(2, 4);
    d.out.c = d.source(3, 4);
    d.out.x = static_cast<uint32_t>(d.immediate(4)) & 255;
    d.out.handler = logic3_predicate;
    return true;
  }
  d.out.d = d.dest(0, 4);
  d.out.a = d.source(1, 4);
  d.out.b = d.source(2, 4);
  d.out.c = d.source(3, 4);
  d.out.x = static_cast<uint32_t>(d.immediate(4)) & 255;
  d.out.handler = logic3;
  return true;
}

bool decode_szext(Decoder& d) {
  bool wrap = d.take("wrap");
  if (!wrap && !d.take("clamp")) return false;
  Type type = d.take_type();
  if (type != Type::u32 && type != Type::s32) return false;
  d.out.d = d.dest(0, 4);
  d.out.a = d.source(1, 4);
  d.out.b = d.source(2, 4);
  if (type == Type::u32) {
    d.out.handler =
        wrap ? binary<uint32_t, uint32_t, uint32_t,
                      [](uint32_t a, uint32_t n) { return extract_field<uint32_t>(a, 0, n & 31); }>
             : binary<uint32_t, uint32_t, uint32_t, [](uint32_t a, uint32_t n) {
                 return extract_field<uint32_t>(a, 0, n > 32 ? 32 : n);
               }>;
  } else {
    d.out.handler =
        wrap ? binary<int32_t, int32_t, uint32_t,
                      [](int32_t a, uint32_t n) { return extract_field<int32_t>(a, 0, n & 31); }>
             : binary<int32_t, int32_t, uint32_t, [](int32_t a, uint32_t n) {
                 return extract_field<int32_t>(a, 0, n > 32 ? 32 : n);
               }>;
  }
  return true;
}

/// The position of the offset-th set bit from `base` on, upwards or downwards.
uint32_t find_nth_set(uint32_t mask, uint32_t base, int32_t offset) {
  if (base > 31) return 0xffffffffu;
  if (offset == 0) return mask >> base & 1 ? base : 0xffffffffu;
  const int step = offset > 0 ? 1 : -1;
  int64_t left = std::abs(int64_t{offset});
  for (auto at = static_cast<int>(base); at >= 0 && at < 32; at += step) {
    if ((mask >> at & 1) && --left == 0) return static_cast<uint32_t>(at);
  }
  return 0xffffffffu;
}

bool decode_fns(Decoder& d) {
  if (d.take_type() != Type::b32) return false;
  d.out.d = d.dest(0, 4);
  d.out.a = d.source(1, 4);
  d.out.b = d.source(2, 4);
  d.out.c = d.source(3, 4);
  d.out.handler = ternary<uint32_t, uint32_t, uint32_t, int32_t, find_nth_set>;
  return true;
}

bool decode_bmsk(Decoder& d) {
  bool wrap = d.take("wrap");
  if ((!wrap && !d.take("clamp")) || d.take_type() != Type::b32) return false;
  d.out.d = d.dest(0, 4);
  d.out.a = d.source(1, 4);
  d.out.b = d.source(2, 4);
  using U = uint32_t;
  d.out.handler =
      wrap ? binary<U, U, U,
                    [](U a, U b) {
                      return static_cast<U>(((uint64_t{1} << (b & 31)) - 1) << (a & 31));
                    }>
           : binary<U, U, U, [](U a, U b) {
               if (a >= 32) return U(0);
               return static_cast<U>((b >= 32 ? ~uint64_t{0} : (uint64_t{1} << b) - 1) << a);
             }>;
  return true;
}

}  // namespace

const OpcodeList& bit_opcodes() {
  static const OpcodeList list{
      {"and", decode_logic},  {"or", decode_logic},         {"xor", decode_logic},
      {"not", decode_logic},  {"cnot", decode_logic},       {"shl", decode_shift},
      {"shr", decode_shift},  {"shf", decode_funnel_shift}, {"bfe", decode_bfe},
      {"bfi", decode_bfi},    {"bfind", decode_bfind},      {"brev", decode_count},
      {"popc", decode_count}, {"clz", decode_count},        {"prmt", decode_prmt},
      {"lop3", decode_lop3},  {"szext", decode_szext},      {"bmsk", decode_bmsk},
      {"fns", decode_fns},
  };
  return list;
}

}  // namespace vgpu::exec
