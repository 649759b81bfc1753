// SPDX-License-Identifier: Apache-2.0
// setp, set, selp, slct, testp. Source: PTX ISA 9.0, "Comparison and Selection Instructions" and
// "Half Precision Comparison Instructions".
#include "exec/decoder.hpp"
#include "exec/float_math.hpp"
#include "exec/lanes.hpp"

namespace vgpu::exec {
namespace {

using ptx::Type;

enum class Compare : uint8_t {
  eq,
  ne,
  lt,
  le,
  gt,
  ge,
  equ,
  neu,
  ltu,
  leu,
  gtu,
  geu,
  num,
  nan,
};

/// The unordered forms hold when an operand is NaN, the ordered ones do not.
template <Compare kCompare, typename T>
inline bool holds(T a, T b) {
  switch (kCompare) {
    case Compare::eq:
      return a == b;
    case Compare::ne:
      return a < b || b < a;
    case Compare::lt:
      return a < b;
    case Compare::le:
      return a <= b;
    case Compare::gt:
      return b < a;
    case Compare::ge:
      return b <= a;
    case Compare::equ:
      return !(a < b || b < a);
    case Compare::neu:
      return !(a == b);
    case Compare::ltu:
      return !(b <= a);
    case Compare::leu:
      return !(b < a);
    case Compare::gtu:
      return !(a <= b);
    case Compare::geu:
      return !(a < b);
    case Compare::num:
      return !is_nan(a) && !is_nan(b);
    case Compare::nan:
      return is_nan(a) || is_nan(b);
  }
  return false;
}

// How a register's bits become a comparable value.
template <typename T>
struct Plain {
  using Storage = T;
  static T value(T bits) { return bits; }
};
struct FlushedFloat {
  using Storage = float;
  static float value(float x) { return flush(x); }
};
template <typename F>
struct HalfValue {
  using Storage = uint16_t;
  static float value(uint16_t bits) { return F::widen(bits); }
};
/// f16 with its subnormals as zeros.
struct FlushedHalf {
  static float widen(uint16_t bits) { return Half::widen(bits & 0x7c00 ? bits : bits & 0x8000); }
};
template <typename F, unsigned kShift>
struct HalfOfPair {
  using Storage = uint32_t;
  static float value(uint32_t bits) { return F::widen(static_cast<uint16_t>(bits >> kShift)); }
};

/// One bit for each lane.
template <typename V, Compare kCompare>
uint32_t compare_lanes(Warp& w, const Instr& i) {
  const auto *a = w.lanes<typename V::Storage>(i.a), *b = w.lanes<typename V::Storage>(i.b);
  uint8_t bytes[kLanes];
  for (uint32_t l = 0; l < kLanes; ++l) {
    bytes[l] = holds<kCompare>(V::value(a[l]), V::value(b[l])) ? 1 : 0;
  }
  uint32_t bits = 0;
  for (uint32_t l = 0; l < kLanes; ++l) bits |= uint32_t{bytes[l]} << l;
  return bits;
}

using CompareFunction = uint32_t (*)(Warp&, const Instr&);

/// What setp and set share: the comparison and the predicate it is combined with.
struct SetOperation {
  CompareFunction low = nullptr, high = nullptr;  ///< high: second half of packed types
  Handler simple = nullptr;                       ///< setp of `low` into one predicate, as it is
  int combine = -1;                               ///< 0 and, 1 or, 2 xor
  Ref with;
  uint32_t p = 0, q = 0;
};

template <typename V, Compare kCompare>
Step setp_simple(Warp& w, const Instr& i, uint32_t lanes) {
  set_predicate(w, i.d, lanes, compare_lanes<V, kCompare>(w, i));
  return Step::next;
}

template <typename V>
CompareFunction pick(Compare compare, Handler* simple = nullptr) {
  switch (compare) {
#define VGPU_CASE(name)                                  \
  case Compare::name:                                    \
    if (simple) *simple = setp_simple<V, Compare::name>; \
    return compare_lanes<V, Compare::name>;
    VGPU_CASE(eq)
    VGPU_CASE(ne)
    VGPU_CASE(lt)
    VGPU_CASE(le)
    VGPU_CASE(gt)
    VGPU_CASE(ge)
    VGPU_CASE(equ)
    VGPU_CASE(neu)
    VGPU_CASE(ltu)
    VGPU_CASE(leu)
    VGPU_CASE(gtu)
    VGPU_CASE(geu)
    VGPU_CASE(num)
    VGPU_CASE(nan)
#undef VGPU_CASE
  }
  return nullptr;
}

/// Fills in the comparison of a type.
bool pick_compare(Type type, Compare compare, bool flushes, SetOperation& op) {
  bool ordered_only = compare <= Compare::ge;
  auto integer = [&](auto zero) {
    op.low = pick<Plain<decltype(zero)>>(compare, &op.simple);
    return ordered_only && !flushes;
  };
  switch (type) {
    case Type::b16:
    case Type::u16:
      return integer(uint16_t{});
    case Type::s16:
      return integer(int16_t{});
    case Type::b32:
    case Type::u32:
      return integer(uint32_t{});
    case Type::s32:
      return integer(int32_t{});
    case Type::b64:
    case Type::u64:
      return integer(uint64_t{});
    case Type::s64:
      return integer(int64_t{});
    case Type::f32:
      op.low = flushes ? pick<FlushedFloat>(compare, &op.simple)
                       : pick<Plain<float>>(compare, &op.simple);
      return true;
    case Type::f64:
      op.low = pick<Plain<double>>(compare, &op.simple);
      return !flushes;
    case Type::f16:
      op.low = flushes ? pick<HalfValue<FlushedHalf>>(compare, &op.simple)
                       : pick<HalfValue<Half>>(compare, &op.simple);
      return true;
    case Type::bf16:
      op.low = pick<HalfValue<Bfloat16>>(compare, &op.simple);
      return !flushes;
    case Type::f16x2:
      op.low =
          flushes ? pick<HalfOfPair<FlushedHalf, 0>>(compare) : pick<HalfOfPair<Half, 0>>(compare);
      op.high = flushes ? pick<HalfOfPair<FlushedHalf, 16>>(compare)
                        : pick<HalfOfPair<Half, 16>>(compare);
      return true;
    case Type::bf16x2:
      op.low = pick<HalfOfPair<Bfloat16, 0>>(compare);
      op.high = pick<HalfOfPair<Bfloat16, 16>>(compare);
      return !flushes;
    default:
      return false;
  }
}

uint32_t combine(const Warp& w, const SetOperation& op, uint32_t bits) {
  if (op.combine < 0) return bits;
  uint32_t with = predicate(w, op.with);
  return op.combine == 0 ? bits & with : op.combine == 1 ? bits | with : bits ^ with;
}

Step setp(Warp& w, const Instr& i, uint32_t lanes) {
  auto& op = *static_cast<const SetOperation*>(i.extra);
  uint32_t bits = op.low(w, i);
  // p and q: the comparison and its negation, each combined; packed types: one for each half.
  uint32_t second = op.high ? op.high(w, i) : ~bits;
  uint32_t p = combine(w, op, bits), q = combine(w, op, second);
  set_predicate(w, op.p, lanes, p);
  set_predicate(w, op.q, lanes, q);
  return Step::next;
}

Compare take_compare(Decoder& d, bool& known) {
  int index = d.take_one({"eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu",
                          "geu", "num", "nan", "lo", "ls", "hi", "hs"});
  known = index >= 0;
  // lo, ls, hi, hs: lt, le, gt, ge on unsigned types.
  static constexpr Compare kUnsigned[] = {Compare::lt, Compare::le, Compare::gt, Compare::ge};
  return index >= 14 ? kUnsigned[index - 14] : static_cast<Compare>(known ? index : 0);
}

bool decode_setp(Decoder& d) {
  bool known = false;
  Compare compare = take_compare(d, known);
  int combination = d.take_one({"and", "or", "xor"});
  bool flushes = d.take("ftz");
  Type type = d.take_type();
  if (!known) return false;
  auto& op = d.extra<SetOperation>();
  unsigned bytes = ptx::size_of(type);
  auto& destination = d.operand(0);
  bool has_pair = destination.kind == ptx::Operand::Kind::pair;
  op.p = d.dest_predicate(has_pair ? d.child(destination, 0) : destination);
  op.q = has_pair ? d.dest_predicate(d.child(destination, 1)) : 2;
  d.out.a = d.source(1, bytes);
  d.out.b = d.source(2, bytes);
  op.combine = combination;
  if (combination >= 0) op.with = d.source_predicate(3);
  if (!pick_compare(type, compare, flushes, op)) return false;
  d.out.d = op.p;
  d.out.handler = has_pair || combination >= 0 || op.high ? setp : op.simple;
  return true;
}

/// set: all ones (or 1.0) where it holds. x: bits for true; register width in Instr::c.
Step set_value(Warp& w, const Instr& i, uint32_t lanes) {
  auto& op = *static_cast<const SetOperation*>(i.extra);
  uint32_t low = combine(w, op, op.low(w, i));
  if (op.high) {
    uint32_t high = combine(w, op, op.high(w, i));
    uint32_t* d = w.lanes<uint32_t>(i.d);
    for_lanes(lanes, [&](uint32_t l) {
      d[l] = (low >> l & 1 ? i.x & 0xffff : 0) | (high >> l & 1 ? i.x & 0xffff0000u : 0);
    });
  } else if (i.c == 2) {
    uint16_t* d = w.lanes<uint16_t>(i.d);
    for_lanes(lanes, [&](uint32_t l) { d[l] = static_cast<uint16_t>(low >> l & 1 ? i.x : 0); });
  } else {
    uint32_t* d = w.lanes<uint32_t>(i.d);
    for_lanes(lanes, [&](uint32_t l) { d[l] = low >> l & 1 ? i.x : 0; });
  }
  return Step::next;
}

bool decode_set(Decoder& d) {
  bool known = false;
  Compare compare = take_compare(d, known);
  int combination = d.take_one({"and", "or", "xor"});
  bool flushes = d.take("ftz");
  Type result = d.take_type(), type = d.take_type();
  // set.cmp.f16x2.f16x2 and the like may repeat one type name.
  if (!known || type == Type::none) return false;
  auto& op = d.extra<SetOperation>();
  unsigned bytes = ptx::size_of(type);
  switch (result) {
    case Type::u32:
    case Type::s32:
      d.out.x = 0xffffffffu;
      break;
    case Type::u16:
    case Type::s16:
      d.out.x = 0xffffu;
      break;
    case Type::f32:
      d.out.x = 0x3f800000u;
      break;
    case Type::f16:
      d.out.x = 0x3c00u;
      break;
    case Type::bf16:
      d.out.x = 0x3f80u;
      break;
    case Type::f16x2:
      d.out.x = 0x3c003c00u;
      break;
    case Type::bf16x2:
      d.out.x = 0x3f803f80u;
      break;
    default:
      return false;
  }
  d.out.c = ptx::size_of(result);
  d.out.d = d.dest(0, ptx::size_of(result));
  d.out.a = d.source(1, bytes);
  d.out.b = d.source(2, bytes);
  op.combine = combination;
  if (combination >= 0) op.with = d.source_predicate(3);
  d.out.handler = set_value;
  if (!pick_compare(type, compare, flushes, op)) return false;
  return !op.high || d.out.c == 4;
}

// ------------------------------------------------------------------ selp, slct

template <typename T>
Step select(Warp& w, const Instr& i, uint32_t lanes) {
  const T *a = w.lanes<T>(i.a), *b = w.lanes<T>(i.b);
  uint32_t bits = w.predicates[i.c] ^ i.x;
  write_lanes<T>(w, i.d, lanes, [=](uint32_t l) { return bits >> l & 1 ? a[l] : b[l]; });
  return Step::next;
}

bool decode_selp(Decoder& d) {
  Type type = d.take_type();
  unsigned bytes = ptx::size_of(type);
  if (bytes < 2 || bytes > 8) return false;
  d.out.d = d.dest(0, bytes);
  d.out.a = d.source(1, bytes);
  d.out.b = d.source(2, bytes);
  Ref with = d.source_predicate(3);
  d.out.c = with.at;
  d.out.x = with.negated ? kAllLanes : 0;
  d.out.handler = bytes == 2 ? select<uint16_t> : bytes == 4 ? select<uint32_t> : select<uint64_t>;
  return true;
}

template <typename T, typename C, bool kFlush = false>
Step select_sign(Warp& w, const Instr& i, uint32_t lanes) {
  return ternary<T, T, T, C, [](T a, T b, C c) {
    if constexpr (kFlush) c = flush(c);
    return C(0) <= c ? a : b;
  }>(w, i, lanes);
}
template <typename T>
Handler pick_select_sign(bool integer, bool flushes) {
  if (integer) return select_sign<T, int32_t>;
  return flushes ? select_sign<T, float, true> : select_sign<T, float>;
}

bool decode_slct(Decoder& d) {
  bool flushes = d.take("ftz");
  Type type = d.take_type(), by = d.take_type();
  unsigned bytes = ptx::size_of(type);
  if (by == Type::none && type != Type::none) by = type;
  if ((by != Type::s32 && by != Type::f32) || (flushes && by != Type::f32)) return false;
  d.out.d = d.dest(0, bytes);
  d.out.a = d.source(1, bytes);
  d.out.b = d.source(2, bytes);
  d.out.c = d.source(3, 4);
  bool integer = by == Type::s32;
  switch (bytes) {
    case 2:
      d.out.handler = pick_select_sign<uint16_t>(integer, flushes);
      break;
    case 4:
      d.out.handler = pick_select_sign<uint32_t>(integer, flushes);
      break;
    case 8:
      d.out.handler = pick_select_sign<uint64_t>(integer, flushes);
      break;
    default:
      return false;
  }
  return true;
}

// ------------------------------------------------------------------ testp

template <typename T>
Step test_property(Warp& w, const Instr& i, uint32_t lanes) {
  const T* a = w.lanes<T>(i.a);
  uint32_t bits = 0;
  for (uint32_t l = 0; l < kLanes; ++l) {
    int c = std::fpclassify(a[l]);
    bool r = i.x == 0   ? c != FP_NAN && c != FP_INFINITE
             : i.x == 1 ? c == FP_INFINITE
             : i.x == 2 ? c != FP_NAN
             : i.x == 3 ? c == FP_NAN
             // NOTE: zero counts as normal (measured on an H200).
             : i.x == 4 ? c == FP_NORMAL || c == FP_ZERO
                        : c == FP_SUBNORMAL;
    bits |= uint32_t{r} << l;
  }
  set_predicate(w, i.d, lanes, bits);
  return Step::next;
}

bool decode_testp(Decoder& d) {
  int property = d.take_one({"finite", "infinite", "number", "notanumber", "normal", "subnormal"});
  Type type = d.take_type();
  if (property < 0 || (type != Type::f32 && type != Type::f64)) return false;
  d.out.d = d.dest_predicate(0);
  d.out.a = d.source(1, ptx::size_of(type));
  d.out.x = static_cast<uint32_t>(property);
  d.out.handler = type == Type::f32 ? test_property<float> : test_property<double>;
  return true;
}

}  // namespace

const OpcodeList& compare_opcodes() {
  static const OpcodeList list{
      {"setp", decode_setp}, {"set", decode_set},     {"selp", decode_selp},
      {"slct", decode_slct}, {"testp", decode_testp},
  };
  return list;
}

}  // namespace vgpu::exec
