// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic: add, sub, mul, mad, div, rem, min, max, abs, neg, sad, dot products, carries.
// Source: PTX ISA 9.0, "Integer Arithmetic Instructions" and "Extended-Precision Integer
// Arithmetic Instructions".
#include "exec/alu_integer.hpp"

#include <limits>
#include <type_traits>

#include "exec/lanes.hpp"

namespace vgpu::exec {
namespace {

using ptx::Type;

template <typename T>
using Unsigned = std::make_unsigned_t<T>;
template <typename T>
using Wide = std::conditional_t<
    sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
    std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                       std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>>>;

// Sums and products wrap: compute them without a sign.
template <typename T>
constexpr T wrap_add(T a, T b) {
  return static_cast<T>(
      static_cast<Unsigned<T>>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b)));
}
template <typename T>
constexpr T wrap_mul(T a, T b) {
  // uint16_t would promote to int and overflow: go through 64 bits.
  return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
template <typename T>
constexpr T high_mul(T a, T b) {
  return static_cast<T>((static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b)) >> (sizeof(T) * 8));
}
int32_t saturate(int64_t value) {
  if (value > std::numeric_limits<int32_t>::max()) return std::numeric_limits<int32_t>::max();
  if (value < std::numeric_limits<int32_t>::min()) return std::numeric_limits<int32_t>::min();
  return static_cast<int32_t>(value);
}
// NOTE: Division by zero is unspecified in PTX; an H200 gives all ones for both results.
template <typename T>
constexpr T divide(T a, T b) {
  if (b == 0) return static_cast<T>(-1);
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) {
    return static_cast<T>(Unsigned<T>(0) - Unsigned<T>(a));
  }
  return static_cast<T>(a / b);
}
template <typename T>
constexpr T remainder(T a, T b) {
  if (b == 0) return static_cast<T>(-1);
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
  return static_cast<T>(a % b);
}

template <typename T>
constexpr T min_of(T a, T b) {
  return a < b ? a : b;
}
template <typename T>
constexpr T max_of(T a, T b) {
  return a < b ? b : a;
}
// .relu clamps a signed result to zero.
template <typename T>
constexpr T min_relu(T a, T b) {
  return max_of<T>(0, min_of(a, b));
}
template <typename T>
constexpr T max_relu(T a, T b) {
  return max_of<T>(0, max_of(a, b));
}
constexpr int64_t low24(uint32_t a, bool is_signed) {
  return is_signed ? int64_t{static_cast<int32_t>(a << 8) >> 8} : int64_t{a & 0xffffff};
}
/// mad24.hi.sat.s32
int32_t mad24_saturated(uint32_t a, uint32_t b, int32_t c) {
  return saturate(int64_t{static_cast<int32_t>(low24(a, true) * low24(b, true) >> 16)} + c);
}
/// 48-bit product of the low 24 bits: lo gives its low 32 bits, hi bits 16 to 47.
template <bool kSigned, bool kHigh>
uint32_t mad24(uint32_t a, uint32_t b, uint32_t c) {
  int64_t product = low24(a, kSigned) * low24(b, kSigned);
  return static_cast<uint32_t>(kHigh ? product >> 16 : product) + c;
}

/// Calls f with a value of the C++ type of an integer PTX type; false for other types.
template <typename F>
bool with_integer(Type type, F&& f) {
  switch (type) {
    case Type::u16:
      f(uint16_t{});
      return true;
    case Type::s16:
      f(int16_t{});
      return true;
    case Type::u32:
      f(uint32_t{});
      return true;
    case Type::s32:
      f(int32_t{});
      return true;
    case Type::u64:
      f(uint64_t{});
      return true;
    case Type::s64:
      f(int64_t{});
      return true;
    default:
      return false;
  }
}

void operands(Decoder& d, unsigned dest_bytes, unsigned bytes, unsigned sources) {
  d.out.d = d.dest(0, dest_bytes);
  d.out.a = d.source(1, bytes);
  if (sources > 1) d.out.b = d.source(2, bytes);
  if (sources > 2) d.out.c = d.source(3, bytes);
}

// ------------------------------------------------------------------ packed halves: u16x2, s16x2

template <typename T, auto F>
uint32_t for_halves(uint32_t a, uint32_t b) {
  auto low = static_cast<uint16_t>(F(static_cast<T>(a), static_cast<T>(b)));
  auto high = static_cast<uint16_t>(F(static_cast<T>(a >> 16), static_cast<T>(b >> 16)));
  return uint32_t{low} | uint32_t{high} << 16;
}
template <typename T, auto F>
Step packed(Warp& w, const Instr& i, uint32_t lanes) {
  return binary<uint32_t, uint32_t, uint32_t, for_halves<T, F>>(w, i, lanes);
}

// ------------------------------------------------------------------ carries
// The condition code is one bit a lane, kept in a predicate of the kernel (Instr::x).

template <typename T, bool kSubtract, bool kIn, bool kOut>
Step carry_add(Warp& w, const Instr& i, uint32_t lanes) {
  const T *a = w.lanes<T>(i.a), *b = w.lanes<T>(i.b);
  T* d = w.lanes<T>(i.d);
  uint32_t carry = w.predicates[i.x], out = 0;
  for_lanes(lanes, [&](uint32_t l) {
    using W = unsigned __int128;
    W in = kIn ? carry >> l & 1 : 0;
    W sum = kSubtract ? static_cast<W>(a[l]) - b[l] - in : static_cast<W>(a[l]) + b[l] + in;
    d[l] = static_cast<T>(sum);
    if (sum >> (sizeof(T) * 8) & 1) out |= 1u << l;
  });
  if (kOut) set_predicate(w, i.x, lanes, out);
  return Step::next;
}

/// T says how the factors are extended; the sum has no sign.
template <typename T, bool kHigh, bool kIn, bool kOut>
Step carry_mad(Warp& w, const Instr& i, uint32_t lanes) {
  const T *a = w.lanes<T>(i.a), *b = w.lanes<T>(i.b), *c = w.lanes<T>(i.c);
  T* d = w.lanes<T>(i.d);
  uint32_t carry = w.predicates[i.x], out = 0;
  for_lanes(lanes, [&](uint32_t l) {
    using W = unsigned __int128;
    using U = Unsigned<T>;
    T product = kHigh ? high_mul(a[l], b[l]) : wrap_mul(a[l], b[l]);
    W sum = W{static_cast<U>(product)} + static_cast<U>(c[l]) + (kIn ? carry >> l & 1 : 0);
    d[l] = static_cast<T>(sum);
    if (sum >> (sizeof(T) * 8) & 1) out |= 1u << l;
  });
  if (kOut) set_predicate(w, i.x, lanes, out);
  return Step::next;
}

template <typename T>
Handler pick_carry(bool subtract, bool in, bool out) {
  if (subtract) {
    return in ? (out ? carry_add<T, true, true, true> : carry_add<T, true, true, false>)
              : carry_add<T, true, false, true>;
  }
  return in ? (out ? carry_add<T, false, true, true> : carry_add<T, false, true, false>)
            : carry_add<T, false, false, true>;
}
template <typename T>
Handler pick_carry_mad(bool high, bool in, bool out) {
  if (high) {
    return in ? (out ? carry_mad<T, true, true, true> : carry_mad<T, true, true, false>)
              : carry_mad<T, true, false, true>;
  }
  return in ? (out ? carry_mad<T, false, true, true> : carry_mad<T, false, true, false>)
            : carry_mad<T, false, false, true>;
}

bool decode_carry(Decoder& d) {
  bool in = d.opcode() == "addc" || d.opcode() == "subc";
  bool out = d.take("cc");
  Type type = d.take_type();
  unsigned bytes = ptx::size_of(type);
  if (bytes != 4 && bytes != 8) return false;
  operands(d, bytes, bytes, 2);
  d.out.x = d.carry_predicate();
  bool subtract = d.opcode()[0] == 's';
  d.out.handler = bytes == 4 ? pick_carry<uint32_t>(subtract, in, out)
                             : pick_carry<uint64_t>(subtract, in, out);
  return in || out;
}

}  // namespace

// ------------------------------------------------------------------ add, sub: shared with floats

bool decode_integer_add(Decoder& d) {
  if (d.has("cc")) return decode_carry(d);
  bool subtract = d.opcode() == "sub", sat = d.take("sat");
  if (d.take("u16x2") || d.take("s16x2")) {
    operands(d, 4, 4, 2);
    d.out.handler = subtract ? packed<uint16_t, [](uint16_t a, uint16_t b) { return a - b; }>
                             : packed<uint16_t, [](uint16_t a, uint16_t b) { return a + b; }>;
    return !sat;
  }
  Type type = d.take_type();
  unsigned bytes = ptx::size_of(type);
  if (sat) {
    if (type != Type::s32) return false;
    operands(d, 4, 4, 2);
    d.out.handler = subtract ? binary<int32_t, int32_t, int32_t,
                                      [](int64_t a, int64_t b) { return saturate(a - b); }>
                             : binary<int32_t, int32_t, int32_t,
                                      [](int64_t a, int64_t b) { return saturate(a + b); }>;
    return true;
  }
  return with_integer(type, [&](auto zero) {
    using U = Unsigned<decltype(zero)>;
    operands(d, bytes, bytes, 2);
    d.out.handler = subtract ? binary<U, U, U, [](U a, U b) { return static_cast<U>(a - b); }>
                             : binary<U, U, U, [](U a, U b) { return static_cast<U>(a + b); }>;
  });
}

bool decode_integer_mul(Decoder& d) {
  int part = d.take_one({"lo", "hi", "wide"});
  Type type = d.take_type();
  unsigned bytes = ptx::size_of(type);
  if (part < 0) return false;
  bool known = with_integer(type, [&](auto zero) {
    using T = decltype(zero);
    using U = Unsigned<T>;
    if (part == 2) {
      if constexpr (sizeof(T) < 8) {
        operands(d, 2 * bytes, bytes, 2);
        d.out.handler = binary<Wide<T>, T, T, [](T a, T b) {
          return static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b);
        }>;
      }
      return;
    }
    operands(d, bytes, bytes, 2);
    d.out.handler =
        part == 0 ? Handler(binary<U, U, U, wrap_mul<U>>) : Handler(binary<T, T, T, high_mul<T>>);
  });
  return known && d.out.handler;
}

bool decode_integer_min_max(Decoder& d) {
  bool is_min = d.opcode() == "min", relu = d.take("relu");
  Type type = Type::none;
  bool is_u16x2 = d.take("u16x2"), is_s16x2 = !is_u16x2 && d.take("s16x2");
  if (!is_u16x2 && !is_s16x2) type = d.take_type();
  unsigned bytes = is_u16x2 || is_s16x2 ? 4 : ptx::size_of(type);
  if (relu && !is_s16x2 && type != Type::s32) return false;
  operands(d, bytes, bytes, 2);
  if (is_u16x2) {
    d.out.handler =
        is_min ? packed<uint16_t, min_of<uint16_t>> : packed<uint16_t, max_of<uint16_t>>;
    return true;
  }
  if (is_s16x2) {
    d.out.handler =
        relu ? (is_min ? packed<int16_t, min_relu<int16_t>> : packed<int16_t, max_relu<int16_t>>)
             : (is_min ? packed<int16_t, min_of<int16_t>> : packed<int16_t, max_of<int16_t>>);
    return true;
  }
  return with_integer(type, [&](auto zero) {
    using T = decltype(zero);
    if (relu) {
      d.out.handler = is_min ? binary<T, T, T, min_relu<T>> : binary<T, T, T, max_relu<T>>;
    } else {
      d.out.handler = is_min ? binary<T, T, T, min_of<T>> : binary<T, T, T, max_of<T>>;
    }
  });
}

bool decode_integer_div(Decoder& d) {
  Type type = d.take_type();
  unsigned bytes = ptx::size_of(type);
  bool is_div = d.opcode() == "div";
  return with_integer(type, [&](auto zero) {
    using T = decltype(zero);
    operands(d, bytes, bytes, 2);
    d.out.handler =
        is_div ? Handler(binary<T, T, T, divide<T>>) : Handler(binary<T, T, T, remainder<T>>);
  });
}

bool decode_integer_unary(Decoder& d) {
  Type type = d.take_type();
  unsigned bytes = ptx::size_of(type);
  bool is_abs = d.opcode() == "abs";
  return with_integer(
             type,
             [&](auto zero) {
               using T = decltype(zero);
               using U = Unsigned<T>;
               if (!std::is_signed_v<T>) return;
               operands(d, bytes, bytes, 1);
               d.out.handler =
                   is_abs
                       ? Handler(
                             unary<U, T,
                                   [](T a) { return static_cast<U>(a < 0 ? U(0) - U(a) : U(a)); }>)
                       : Handler(unary<U, U, [](U a) { return static_cast<U>(U(0) - a); }>);
             }) &&
         d.out.handler;
}

bool decode_integer_mad(Decoder& d) {
  int part = d.take_one({"lo", "hi", "wide"});
  bool sat = d.take("sat"), carry_out = d.take("cc"), carry_in = d.opcode() == "madc";
  Type type = d.take_type();
  unsigned bytes = ptx::size_of(type);
  if (part < 0) return false;
  if (carry_in || carry_out) {
    if (part == 2 || sat || (bytes != 4 && bytes != 8)) return false;
    operands(d, bytes, bytes, 3);
    d.out.x = d.carry_predicate();
    switch (type) {
      case Type::u32:
        d.out.handler = pick_carry_mad<uint32_t>(part == 1, carry_in, carry_out);
        break;
      case Type::u64:
        d.out.handler = pick_carry_mad<uint64_t>(part == 1, carry_in, carry_out);
        break;
      case Type::s32:
        d.out.handler = pick_carry_mad<int32_t>(part == 1, carry_in, carry_out);
        break;
      case Type::s64:
        d.out.handler = pick_carry_mad<int64_t>(part == 1, carry_in, carry_out);
        break;
      default:
        break;
    }
    return d.out.handler != nullptr;
  }
  if (sat) {
    if (part != 1 || type != Type::s32) return false;
    operands(d, 4, 4, 3);
    d.out.handler =
        ternary<int32_t, int32_t, int32_t, int32_t, [](int32_t a, int32_t b, int32_t c) {
          return saturate(int64_t{high_mul(a, b)} + c);
        }>;
    return true;
  }
  bool known = with_integer(type, [&](auto zero) {
    using T = decltype(zero);
    using U = Unsigned<T>;
    if (part == 2) {
      if constexpr (sizeof(T) < 8) {
        using W = Wide<T>;
        d.out.d = d.dest(0, 2 * bytes);
        d.out.a = d.source(1, bytes);
        d.out.b = d.source(2, bytes);
        d.out.c = d.source(3, 2 * bytes);
        d.out.handler = ternary<W, T, T, W, [](T a, T b, W c) {
          return wrap_add(static_cast<W>(static_cast<W>(a) * static_cast<W>(b)), c);
        }>;
      }
      return;
    }
    operands(d, bytes, bytes, 3);
    d.out.handler =
        part == 0
            ? Handler(
                  ternary<U, U, U, U, [](U a, U b, U c) { return wrap_add(wrap_mul(a, b), c); }>)
            : Handler(
                  ternary<T, T, T, T, [](T a, T b, T c) { return wrap_add(high_mul(a, b), c); }>);
  });
  return known && d.out.handler;
}

namespace {

bool decode_mul24(Decoder& d) {
  bool is_mad = d.opcode() == "mad24", high = d.take("hi");
  if (!high && !d.take("lo")) return false;
  bool sat = is_mad && high && d.take("sat");
  Type type = d.take_type();
  if (type != Type::s32 && type != Type::u32) return false;
  operands(d, 4, 4, is_mad ? 3 : 2);
  if (sat) {
    d.out.handler = ternary<int32_t, uint32_t, uint32_t, int32_t, mad24_saturated>;
    return type == Type::s32;
  }
  if (!is_mad) d.out.c = d.literal(0, 4);
  using U = uint32_t;
  if (type == Type::u32) {
    d.out.handler =
        high ? ternary<U, U, U, U, mad24<false, true>> : ternary<U, U, U, U, mad24<false, false>>;
  } else {
    d.out.handler =
        high ? ternary<U, U, U, U, mad24<true, true>> : ternary<U, U, U, U, mad24<true, false>>;
  }
  return true;
}

bool decode_sad(Decoder& d) {
  Type type = d.take_type();
  unsigned bytes = ptx::size_of(type);
  return with_integer(type, [&](auto zero) {
    using T = decltype(zero);
    using U = Unsigned<T>;
    operands(d, bytes, bytes, 3);
    d.out.handler = ternary<U, T, T, U, [](T a, T b, U c) {
      return static_cast<U>(c + (a < b ? U(b) - U(a) : U(a) - U(b)));
    }>;
  });
}

template <bool kSignedA, bool kSignedB>
uint32_t dot4(uint32_t a, uint32_t b, uint32_t c) {
  for (int k = 0; k < 4; ++k) {
    int32_t x =
        kSignedA ? int32_t{static_cast<int8_t>(a >> 8 * k)} : static_cast<uint8_t>(a >> 8 * k);
    int32_t y =
        kSignedB ? int32_t{static_cast<int8_t>(b >> 8 * k)} : static_cast<uint8_t>(b >> 8 * k);
    c += static_cast<uint32_t>(x * y);
  }
  return c;
}

bool decode_dp4a(Decoder& d) {
  Type a = d.take_type(), b = d.take_type();
  if ((a != Type::s32 && a != Type::u32) || (b != Type::s32 && b != Type::u32)) return false;
  operands(d, 4, 4, 3);
  using U = uint32_t;
  if (a == Type::s32) {
    d.out.handler = b == Type::s32 ? ternary<U, U, U, U, dot4<true, true>>
                                   : ternary<U, U, U, U, dot4<true, false>>;
  } else {
    d.out.handler = b == Type::s32 ? ternary<U, U, U, U, dot4<false, true>>
                                   : ternary<U, U, U, U, dot4<false, false>>;
  }
  return true;
}

/// Two 16-bit halves of a times the low or high two bytes of b.
template <bool kSignedA, bool kSignedB, bool kHigh>
uint32_t dot2(uint32_t a, uint32_t b, uint32_t c) {
  for (int k = 0; k < 2; ++k) {
    uint32_t byte = b >> 8 * (k + (kHigh ? 2 : 0));
    int32_t x =
        kSignedA ? int32_t{static_cast<int16_t>(a >> 16 * k)} : static_cast<uint16_t>(a >> 16 * k);
    int32_t y = kSignedB ? int32_t{static_cast<int8_t>(byte)} : static_cast<uint8_t>(byte);
    c += static_cast<uint32_t>(x * y);
  }
  return c;
}

template <bool kSignedA, bool kSignedB>
Handler pick_dot2(bool high) {
  using U = uint32_t;
  return high ? ternary<U, U, U, U, dot2<kSignedA, kSignedB, true>>
              : ternary<U, U, U, U, dot2<kSignedA, kSignedB, false>>;
}

bool decode_dp2a(Decoder& d) {
  int high = d.take_one({"lo", "hi"});
  Type a = d.take_type(), b = d.take_type();
  if (high < 0 || (a != Type::s32 && a != Type::u32) || (b != Type::s32 && b != Type::u32)) {
    return false;
  }
  operands(d, 4, 4, 3);
  if (a == Type::s32) {
    d.out.handler = b == Type::s32 ? pick_dot2<true, true>(high) : pick_dot2<true, false>(high);
  } else {
    d.out.handler = b == Type::s32 ? pick_dot2<false, true>(high) : pick_dot2<false, false>(high);
  }
  return true;
}

}  // namespace

const OpcodeList& integer_opcodes() {
  static const OpcodeList list{
      {"addc", decode_carry},  {"subc", decode_carry},       {"mul24", decode_mul24},
      {"mad24", decode_mul24}, {"madc", decode_integer_mad}, {"rem", decode_integer_div},
      {"sad", decode_sad},     {"dp4a", decode_dp4a},        {"dp2a", decode_dp2a},
  };
  return list;
}

}  // namespace vgpu::exec
