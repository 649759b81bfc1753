// SPDX-License-Identifier: Apache-2.0
// Half-precision arithmetic. Source: PTX ISA 9.0, "Half Precision Floating-Point Instructions" and
// "Mixed Precision Floating-Point Instructions".
#include "exec/alu_half.hpp"

#include <cfenv>

#include "exec/float_math.hpp"
#include "exec/lanes.hpp"

namespace vgpu::exec {
namespace {

using ptx::Type;

enum class Op { add, sub, mul, fma, min, max, abs, neg, ex2, tanh };

/// Instr::x flags.
enum Flag : uint32_t { kFtz = 1, kSat = 2, kRelu = 4, kNan = 8, kXorsignAbs = 16 };

/// Subnormals of the 16-bit format become zeros of the same sign.
template <typename F>
uint16_t flush_half(uint16_t bits) {
  constexpr uint16_t kExponent = F::kMinExponent == -14 ? 0x7c00 : 0x7f80;
  return (bits & kExponent) == 0 ? bits & 0x8000 : bits;
}

template <typename F, Op kOp>
uint16_t half_op(uint16_t a, uint16_t b, uint16_t c, uint32_t flags) {
  if (flags & kFtz) a = flush_half<F>(a), b = flush_half<F>(b), c = flush_half<F>(c);
  if constexpr (kOp == Op::abs || kOp == Op::neg) {
    // NOTE: a NaN becomes the canonical one (measured on an H200).
    if ((a & 0x7fff) > (F::kMinExponent == -14 ? 0x7c00 : 0x7f80)) return 0x7fff;
    return kOp == Op::abs ? a & 0x7fff : a ^ 0x8000;
  }
  uint16_t r = 0;
  if constexpr (kOp == Op::min || kOp == Op::max) {
    uint16_t sign = (a ^ b) & 0x8000;
    if (flags & kXorsignAbs) a &= 0x7fff, b &= 0x7fff;
    float x = F::widen(a), y = F::widen(b);
    if ((is_nan(x) && is_nan(y)) || ((flags & kNan) && (is_nan(x) || is_nan(y)))) return 0x7fff;
    r = F::narrow(kOp == Op::min ? min_number(x, y) : max_number(x, y));
    if (flags & kXorsignAbs) r = static_cast<uint16_t>((r & 0x7fff) | sign);
    return r;
  }
  float x = F::widen(a), y = F::widen(b), z = F::widen(c);
  // Sums and products of 16-bit formats are rounded twice without harm: float has more than twice
  // their precision. fma: the product is exact in double, the sum is rounded to odd.
  if constexpr (kOp == Op::add) r = F::narrow(x + y);
  if constexpr (kOp == Op::sub) r = F::narrow(x - y);
  if constexpr (kOp == Op::mul) r = F::narrow(x * y);
  if constexpr (kOp == Op::fma) {
    r = F::narrow(add_round_to_odd(static_cast<double>(x) * y, static_cast<double>(z)));
  }
  if constexpr (kOp == Op::ex2) r = F::narrow(std::exp2(x));
  if constexpr (kOp == Op::tanh) r = F::narrow(std::tanh(x));
  if (flags & kFtz) r = flush_half<F>(r);
  if (flags & kSat) r = F::narrow(saturate_unit(F::widen(r)));
  if ((flags & kRelu) && (r & 0x8000) &&
      (r & 0x7fff) <= (F::kMinExponent == -14 ? 0x7c00 : 0x7f80)) {
    r = 0;
  }
  return r;
}

template <typename F, Op kOp, bool kPair>
Step half_lanes(Warp& w, const Instr& i, uint32_t lanes) {
  if constexpr (kPair) {
    const uint32_t *a = w.lanes<uint32_t>(i.a), *b = w.lanes<uint32_t>(i.b),
                   *c = w.lanes<uint32_t>(i.c);
    write_lanes<uint32_t>(w, i.d, lanes, [=, &i](uint32_t l) {
      uint32_t low = half_op<F, kOp>(static_cast<uint16_t>(a[l]), static_cast<uint16_t>(b[l]),
                                     static_cast<uint16_t>(c[l]), i.x);
      uint32_t high =
          half_op<F, kOp>(static_cast<uint16_t>(a[l] >> 16), static_cast<uint16_t>(b[l] >> 16),
                          static_cast<uint16_t>(c[l] >> 16), i.x);
      return high << 16 | low;
    });
  } else {
    const uint16_t *a = w.lanes<uint16_t>(i.a), *b = w.lanes<uint16_t>(i.b),
                   *c = w.lanes<uint16_t>(i.c);
    write_lanes<uint16_t>(w, i.d, lanes,
                          [=, &i](uint32_t l) { return half_op<F, kOp>(a[l], b[l], c[l], i.x); });
  }
  return Step::next;
}

template <Op kOp>
Handler half_handler(Type type) {
  switch (type) {
    case Type::f16:
      return half_lanes<Half, kOp, false>;
    case Type::f16x2:
      return half_lanes<Half, kOp, true>;
    case Type::bf16:
      return half_lanes<Bfloat16, kOp, false>;
    case Type::bf16x2:
      return half_lanes<Bfloat16, kOp, true>;
    default:
      return nullptr;
  }
}

}  // namespace

bool decode_half(Decoder& d) {
  auto op = d.opcode();
  bool is_function = op == "ex2" || op == "tanh";
  bool is_arithmetic = op == "add" || op == "sub" || op == "mul" || op == "fma";
  bool is_min_max = op == "min" || op == "max";
  uint32_t flags = 0;
  if (is_arithmetic) d.take("rn");
  if (is_function && !d.take("approx")) return false;
  if (d.take("ftz")) flags |= kFtz;
  if (is_arithmetic && d.take("sat")) flags |= kSat;
  if (op == "fma" && d.take("relu")) flags |= kRelu;
  if (is_min_max) {
    if (d.take("NaN")) flags |= kNan;
    if (d.take("xorsign") && d.take("abs")) flags |= kXorsignAbs;
  }
  Type type = d.take_type();
  unsigned bytes = ptx::size_of(type);
  unsigned sources = op == "fma" ? 3 : is_arithmetic || is_min_max ? 2 : 1;
  d.out.d = d.dest(0, bytes);
  d.out.a = d.source(1, bytes);
  d.out.b = sources > 1 ? d.source(2, bytes) : d.literal(0, bytes);
  d.out.c = sources > 2 ? d.source(3, bytes) : d.literal(0, bytes);
  d.out.x = flags;
  if (op == "add") d.out.handler = half_handler<Op::add>(type);
  if (op == "sub") d.out.handler = half_handler<Op::sub>(type);
  if (op == "mul") d.out.handler = half_handler<Op::mul>(type);
  if (op == "fma") d.out.handler = half_handler<Op::fma>(type);
  if (op == "min") d.out.handler = half_handler<Op::min>(type);
  if (op == "max") d.out.handler = half_handler<Op::max>(type);
  if (op == "abs") d.out.handler = half_handler<Op::abs>(type);
  if (op == "neg") d.out.handler = half_handler<Op::neg>(type);
  if (op == "ex2") d.out.handler = half_handler<Op::ex2>(type);
  if (op == "tanh") d.out.handler = half_handler<Op::tanh>(type);
  return d.out.handler && d.count() == sources + 1;
}

namespace {

/// Directed roundings of the two below; Instr::y: the fenv mode.
template <typename F, bool kFma>
__attribute__((noinline)) Step mixed_directed(Warp& w, const Instr& i, uint32_t lanes) {
  const uint16_t *a = w.lanes<uint16_t>(i.a), *b = w.lanes<uint16_t>(kFma ? i.b : i.a);
  const float* c = w.lanes<float>(i.c);
  float* d = w.lanes<float>(i.d);
  int saved = std::fegetround();
  std::fesetround(static_cast<int>(i.y));
  for_lanes(lanes, [&](uint32_t l) {
    // Volatile: the operation must stay between the two fesetround calls.
    volatile float x = F::widen(a[l]), y = kFma ? F::widen(b[l]) : 1.0f, z = i.x & 1 ? -c[l] : c[l];
    volatile float r = std::fma(x, y, z);
    float result = canonical(static_cast<float>(r));
    d[l] = i.x & 2 ? saturate_unit(result) : result;
  });
  std::fesetround(saved);
  return Step::next;
}

template <typename F>
Step mixed_add(Warp& w, const Instr& i, uint32_t lanes) {  // x: 1 subtract, 2 saturate
  const uint16_t* a = w.lanes<uint16_t>(i.a);
  const float* c = w.lanes<float>(i.c);
  write_lanes<float>(w, i.d, lanes, [=, &i](uint32_t l) {
    float r = canonical(i.x & 1 ? F::widen(a[l]) - c[l] : F::widen(a[l]) + c[l]);
    return i.x & 2 ? saturate_unit(r) : r;
  });
  return Step::next;
}

template <typename F>
Step mixed_fma(Warp& w, const Instr& i, uint32_t lanes) {
  const uint16_t *a = w.lanes<uint16_t>(i.a), *b = w.lanes<uint16_t>(i.b);
  const float* c = w.lanes<float>(i.c);
  write_lanes<float>(w, i.d, lanes, [=, &i](uint32_t l) {
    float r = canonical(std::fma(F::widen(a[l]), F::widen(b[l]), c[l]));
    return i.x & 2 ? saturate_unit(r) : r;
  });
  return Step::next;
}

}  // namespace

bool decode_mixed(Decoder& d) {
  auto op = d.opcode();
  int rounding = d.take_one({"rn", "rz", "rm", "rp"});
  bool saturates = d.take("sat");
  if (d.take_type() != Type::f32) return false;
  Type type = d.take_type();
  if (type != Type::f16 && type != Type::bf16) return false;
  bool is_fma = op == "fma";
  if (!is_fma && op != "add" && op != "sub") return false;
  d.out.d = d.dest(0, 4);
  d.out.a = d.source(1, 2);
  if (is_fma) d.out.b = d.source(2, 2);
  d.out.c = d.source(is_fma ? 3 : 2, 4);
  d.out.x = (op == "sub") | saturates << 1;
  d.out.handler = is_fma ? (type == Type::f16 ? mixed_fma<Half> : mixed_fma<Bfloat16>)
                         : (type == Type::f16 ? mixed_add<Half> : mixed_add<Bfloat16>);
  if (rounding > 0) {
    static constexpr uint32_t kModes[] = {FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
    d.out.y = kModes[rounding - 1];
    if (is_fma) {
      d.out.handler =
          type == Type::f16 ? mixed_directed<Half, true> : mixed_directed<Bfloat16, true>;
    } else {
      d.out.handler =
          type == Type::f16 ? mixed_directed<Half, false> : mixed_directed<Bfloat16, false>;
    }
  }
  return true;
}

}  // namespace vgpu::exec
