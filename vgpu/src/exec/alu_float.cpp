// SPDX-License-Identifier: Apache-2.0
// Floating-point arithmetic in f32, f64 and f32x2, and the opcodes that integers share with it.
// Half precision is in alu_half.cpp. Source: PTX ISA 9.0, "Floating-Point Instructions".
#include <cfenv>
#include <limits>

#include "exec/alu_half.hpp"
#include "exec/alu_integer.hpp"
#include "exec/decoder.hpp"
#include "exec/float_math.hpp"
#include "exec/lanes.hpp"

namespace vgpu::exec {
namespace {

using ptx::Type;

enum class Op { add, sub, mul, fma, div };

template <Op kOp, typename T>
inline T compute(T a, T b, T c) {
  if constexpr (kOp == Op::add) return a + b;
  if constexpr (kOp == Op::sub) return a - b;
  if constexpr (kOp == Op::mul) return a * b;
  if constexpr (kOp == Op::div) return a / b;
  if constexpr (kOp == Op::fma) return std::fma(a, b, c);
}

template <Op kOp, typename T, bool kFlush, bool kSaturate>
T arithmetic(T a, T b, T c) {
  if (kFlush) a = flush(a), b = flush(b), c = flush(c);
  T r = canonical(compute<kOp>(a, b, c));
  if (kFlush) r = flush(r);
  if (kSaturate) r = saturate_unit(r);
  return r;
}

template <Op kOp, typename T, bool kFlush, bool kSaturate>
Step arithmetic_lanes(Warp& w, const Instr& i, uint32_t lanes) {
  const T *a = w.lanes<T>(i.a), *b = w.lanes<T>(i.b), *c = w.lanes<T>(i.c);
  write_lanes<T>(w, i.d, lanes, [=](uint32_t l) {
    return arithmetic<kOp, T, kFlush, kSaturate>(a[l], b[l], c[l]);
  });
  return Step::next;
}

template <Op kOp, typename T>
Handler nearest(bool flushes, bool saturates) {
  if constexpr (sizeof(T) == 8) return arithmetic_lanes<kOp, T, false, false>;
  if (flushes) {
    return saturates ? arithmetic_lanes<kOp, T, true, true> : arithmetic_lanes<kOp, T, true, false>;
  }
  return saturates ? arithmetic_lanes<kOp, T, false, true> : arithmetic_lanes<kOp, T, false, false>;
}

/// Directed roundings: the host's rounding mode, lane by lane. Instr::x holds flags: bit 0 flush,
/// bit 1 saturate; Instr::y the fenv mode.
template <Op kOp, typename T>
__attribute__((noinline)) Step directed(Warp& w, const Instr& i, uint32_t lanes) {
  const T *a = w.lanes<T>(i.a), *b = w.lanes<T>(i.b), *c = w.lanes<T>(i.c);
  T* d = w.lanes<T>(i.d);
  bool flushes = i.x & 1, saturates = i.x & 2;
  int saved = std::fegetround();
  std::fesetround(static_cast<int>(i.y));
  for_lanes(lanes, [&](uint32_t l) {
    // Volatile: the operation must stay between the two fesetround calls.
    volatile T x = flushes ? flush(a[l]) : a[l], y = flushes ? flush(b[l]) : b[l],
               z = flushes ? flush(c[l]) : c[l];
    volatile T r = compute<kOp, T>(x, y, z);
    T result = canonical(static_cast<T>(r));
    if (flushes) result = flush(result);
    d[l] = saturates ? saturate_unit(result) : result;
  });
  std::fesetround(saved);
  return Step::next;
}

/// f32x2: the two floats of a lane lie next to each other, as twice as many lanes would.
template <Op kOp>
__attribute__((noinline)) Step directed_pair(Warp& w, const Instr& i, uint32_t lanes) {
  const float *a = w.lanes<float>(i.a), *b = w.lanes<float>(i.b), *c = w.lanes<float>(i.c);
  float* d = w.lanes<float>(i.d);
  bool flushes = i.x & 1;
  int saved = std::fegetround();
  std::fesetround(static_cast<int>(i.y));
  for_lanes(lanes, [&](uint32_t l) {
    for (uint32_t k = 2 * l; k < 2 * l + 2; ++k) {
      // Volatile: the operation must stay between the two fesetround calls.
      volatile float x = flushes ? flush(a[k]) : a[k], y = flushes ? flush(b[k]) : b[k],
                     z = flushes ? flush(c[k]) : c[k];
      volatile float r = compute<kOp, float>(x, y, z);
      float result = canonical(static_cast<float>(r));
      d[k] = flushes ? flush(result) : result;
    }
  });
  std::fesetround(saved);
  return Step::next;
}

/// Takes .rn/.rz/.rm/.rp; returns the fenv mode, FE_TONEAREST when none is there.
int take_rounding(Decoder& d) {
  switch (d.take_one({"rn", "rz", "rm", "rp"})) {
    case 1:
      return FE_TOWARDZERO;
    case 2:
      return FE_DOWNWARD;
    case 3:
      return FE_UPWARD;
    default:
      return FE_TONEAREST;
  }
}

template <Op kOp>
bool decode_arithmetic(Decoder& d) {
  int mode = take_rounding(d);
  if (kOp == Op::div) {
    // NOTE: .approx and .full promise at most 2 ulp; the correctly rounded quotient meets them.
    d.take_one({"approx", "full"});
  }
  bool flushes = d.take("ftz"), saturates = d.take("sat");
  bool is_pair = d.take("f32x2");
  Type type = is_pair ? Type::f32x2 : d.take_type();
  if (type != Type::f32 && type != Type::f64 && type != Type::f32x2) return false;
  if (type == Type::f64 && (flushes || saturates)) return false;
  unsigned bytes = ptx::size_of(type);
  d.out.d = d.dest(0, bytes);
  d.out.a = d.source(1, bytes);
  d.out.b = d.source(2, bytes);
  d.out.c = kOp == Op::fma ? d.source(3, bytes) : d.literal(0, bytes);
  if (is_pair) {
    // A pair of f32 in 64 bits: twice as many lanes, next to each other.
    if (saturates || kOp == Op::div) return false;
    d.out.x = flushes;
    if (mode != FE_TONEAREST) {
      d.out.y = static_cast<uint32_t>(mode);
      d.out.handler = directed_pair<kOp>;
      return true;
    }
    d.out.handler = [](Warp& w, const Instr& i, uint32_t lanes) {
      const float *a = w.lanes<float>(i.a), *b = w.lanes<float>(i.b), *c = w.lanes<float>(i.c);
      float* out = w.lanes<float>(i.d);
      bool flush_all = i.x & 1;
      float result[2 * kLanes];
      for (uint32_t k = 0; k < 2 * kLanes; ++k) {
        result[k] = arithmetic<kOp, float, false, false>(a[k], b[k], c[k]);
      }
      if (flush_all) {
        for (uint32_t k = 0; k < 2 * kLanes; ++k) {
          result[k] = arithmetic<kOp, float, true, false>(a[k], b[k], c[k]);
        }
      }
      if (lanes == kAllLanes) {
        std::memcpy(out, result, sizeof result);
      } else {
        for_lanes(lanes, [&](uint32_t l) { std::memcpy(out + 2 * l, result + 2 * l, 8); });
      }
      return Step::next;
    };
    return true;
  }
  if (mode == FE_TONEAREST) {
    d.out.handler = bytes == 4 ? nearest<kOp, float>(flushes, saturates)
                               : nearest<kOp, double>(flushes, saturates);
  } else {
    d.out.handler = bytes == 4 ? directed<kOp, float> : directed<kOp, double>;
    d.out.x = flushes | saturates << 1;
    d.out.y = static_cast<uint32_t>(mode);
  }
  return true;
}

// ------------------------------------------------------------------ min, max

template <typename T, bool kMin, bool kNan, bool kFlush>
Step min_max(Warp& w, const Instr& i, uint32_t lanes) {
  const T *a = w.lanes<T>(i.a), *b = w.lanes<T>(i.b);
  write_lanes<T>(w, i.d, lanes, [=](uint32_t l) {
    T x = a[l], y = b[l];
    if (kFlush) x = flush(x), y = flush(y);
    T r = kMin ? min_number(x, y) : max_number(x, y);
    if (kNan) r = is_nan(x) ? x : (is_nan(y) ? y : r);
    return canonical(r);
  });
  return Step::next;
}

/// Three operands (sm_100) and .xorsign.abs: flags in Instr::x: 1 min, 2 NaN, 4 ftz, 8 abs,
/// 16 xorsign.
Step min_max_general(Warp& w, const Instr& i, uint32_t lanes) {
  const float *a = w.lanes<float>(i.a), *b = w.lanes<float>(i.b), *c = w.lanes<float>(i.c);
  bool is_min = i.x & 1, nan = i.x & 2, flushes = i.x & 4, abs = i.x & 8, xorsign = i.x & 16;
  write_each_lane<float>(w, i.d, lanes, [&](uint32_t l) {
    float values[3] = {a[l], b[l], i.y == 3 ? c[l] : b[l]};
    uint32_t sign = 0;
    for (uint32_t k = 0; k < i.y; ++k) sign ^= std::bit_cast<uint32_t>(values[k]) & 0x80000000u;
    bool any_nan = false;
    for (auto& value : values) {
      if (flushes) value = flush(value);
      if (abs) value = std::fabs(value);
      any_nan |= value != value;
    }
    float r = values[0];
    for (uint32_t k = 1; k < i.y; ++k) {
      r = is_min ? min_number(r, values[k]) : max_number(r, values[k]);
    }
    if (nan && any_nan) return std::bit_cast<float>(0x7fffffffu);
    if (xorsign) r = std::bit_cast<float>((std::bit_cast<uint32_t>(r) & 0x7fffffffu) | sign);
    return canonical(r);
  });
  return Step::next;
}

bool decode_min_max(Decoder& d) {
  bool is_min = d.opcode() == "min", flushes = d.take("ftz"), nan = d.take("NaN");
  bool xorsign = d.take("xorsign"), abs = d.take("abs");
  Type type = d.take_type();
  if (type != Type::f32 && type != Type::f64) return false;
  unsigned bytes = ptx::size_of(type);
  d.out.d = d.dest(0, bytes);
  d.out.a = d.source(1, bytes);
  d.out.b = d.source(2, bytes);
  if (type == Type::f64) {
    d.out.handler =
        is_min ? min_max<double, true, false, false> : min_max<double, false, false, false>;
    return !flushes && !nan && !xorsign && !abs && d.count() == 3;
  }
  if (d.count() == 4 || xorsign || abs) {
    if (d.count() == 4) d.out.c = d.source(3, 4);
    d.out.x = is_min | nan << 1 | flushes << 2 | abs << 3 | xorsign << 4;
    d.out.y = d.count() - 1;
    d.out.handler = min_max_general;
    return true;
  }
  if (is_min) {
    d.out.handler =
        nan ? (flushes ? min_max<float, true, true, true> : min_max<float, true, true, false>)
            : (flushes ? min_max<float, true, false, true> : min_max<float, true, false, false>);
  } else {
    d.out.handler =
        nan ? (flushes ? min_max<float, false, true, true> : min_max<float, false, true, false>)
            : (flushes ? min_max<float, false, false, true> : min_max<float, false, false, false>);
  }
  return true;
}

// ------------------------------------------------------------------ one operand

float exp2_approx(float x) {
  return std::exp2(x);
}
float rsqrt_of(float x) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x)));
}

template <typename T, T (*kFunction)(T), bool kFlush>
Step function_lanes(Warp& w, const Instr& i, uint32_t lanes) {
  const T* a = w.lanes<T>(i.a);
  write_lanes<T>(w, i.d, lanes, [=](uint32_t l) {
    T x = kFlush ? flush(a[l]) : a[l];
    T r = canonical(kFunction(x));
    return kFlush ? flush(r) : r;
  });
  return Step::next;
}

template <typename T>
T reciprocal(T x) {
  return T(1) / x;
}
template <typename T>
T square_root(T x) {
  return std::sqrt(x);
}
template <typename T>
T rsqrt_wide(T x) {
  return T(1) / std::sqrt(x);
}
template <typename T>
T absolute(T x) {
  return std::fabs(x);
}
template <typename T>
T negate(T x) {
  return -x;
}
float sine(float x) {
  return std::sin(x);
}
float cosine(float x) {
  return std::cos(x);
}
float log2_of(float x) {
  return std::log2(x);
}
float tanh_of(float x) {
  return std::tanh(x);
}

/// rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64: of the upper 32 bits of the source, with 20 bits of
/// mantissa and a lower half of zeros; subnormals are zeros (PTX ISA, sections of those names).
/// NOTE: the text leaves the last of the 20 bits open. An H200 gives what the f32 instruction gives
/// of the same operand, cut off behind 20 bits (all 2^21 and 2^20 operands). The f32 functions are
/// rounded to nearest here, and within 1.5 units of the last place there, so that 2.7 % of the
/// roots and 1.7 % of the reciprocals differ by one in the last of the 20 bits.
template <double (*kFunction)(double)>
double gross(double x) {
  constexpr uint64_t kLow = 0xffffffff, kExponent = uint64_t{0x7ff} << 52;
  constexpr uint64_t kHalfOfSingle = uint64_t{1} << 28;  // half the last bit of an f32's mantissa
  auto flushed = [](uint64_t bits) { return bits & kExponent ? bits : bits & uint64_t{1} << 63; };
  const double r = kFunction(std::bit_cast<double>(flushed(std::bit_cast<uint64_t>(x) & ~kLow)));
  if (is_nan(r)) return std::bit_cast<double>(uint64_t{0x7fffffff} << 32);
  const uint64_t bits = std::bit_cast<uint64_t>(r) + kHalfOfSingle;
  return std::bit_cast<double>(flushed(bits & ~kLow));
}

template <float (*kFunction)(float)>
void set_f32(Decoder& d, bool flushes) {
  d.out.handler =
      flushes ? function_lanes<float, kFunction, true> : function_lanes<float, kFunction, false>;
}

/// rcp, sqrt with directed roundings go through the host's rounding mode: 1 / x; Instr::c is 1.0.
template <typename T>
__attribute__((noinline)) Step directed_sqrt(Warp& w, const Instr& i, uint32_t lanes) {
  const T* a = w.lanes<T>(i.a);
  T* d = w.lanes<T>(i.d);
  int saved = std::fegetround();
  std::fesetround(static_cast<int>(i.y));
  for_lanes(lanes, [&](uint32_t l) {
    volatile T x = (i.x & 1) ? flush(a[l]) : a[l];
    volatile T r = std::sqrt(x);
    T result = canonical(static_cast<T>(r));
    d[l] = (i.x & 1) ? flush(result) : result;
  });
  std::fesetround(saved);
  return Step::next;
}

bool decode_function(Decoder& d) {
  auto op = d.opcode();
  bool can_round = op == "rcp" || op == "sqrt";
  int mode = can_round ? take_rounding(d) : FE_TONEAREST;
  bool approx = d.take("approx");
  bool flushes = d.take("ftz");
  Type type = d.take_type();
  unsigned bytes = ptx::size_of(type);
  if (type != Type::f32 && type != Type::f64) return false;
  d.out.d = d.dest(0, bytes);
  d.out.a = d.source(1, bytes);
  if (mode != FE_TONEAREST) {
    if (op == "rcp") {
      d.out.b = d.out.a;
      d.out.a = bytes == 4 ? d.literal(0x3f800000u, 4) : d.literal(0x3ff0000000000000u, 8);
      d.out.c = d.out.a;
      d.out.handler = bytes == 4 ? directed<Op::div, float> : directed<Op::div, double>;
    } else {
      d.out.handler = bytes == 4 ? directed_sqrt<float> : directed_sqrt<double>;
    }
    d.out.x = flushes;
    d.out.y = static_cast<uint32_t>(mode);
    return !approx;
  }
  if (type == Type::f64) {
    if (op == "rcp") {
      if (approx != flushes) return false;
      d.out.handler = approx ? function_lanes<double, gross<reciprocal<double>>, false>
                             : function_lanes<double, reciprocal<double>, false>;
    }
    if (op == "sqrt" && !approx) d.out.handler = function_lanes<double, square_root<double>, false>;
    // rsqrt.approx.f64: more exact than promised.
    if (op == "rsqrt" && approx) {
      d.out.handler = flushes ? function_lanes<double, gross<rsqrt_wide<double>>, false>
                              : function_lanes<double, rsqrt_wide<double>, false>;
    }
    return d.out.handler != nullptr;
  }
  if (op == "rcp") set_f32<reciprocal<float>>(d, flushes);
  if (op == "sqrt") set_f32<square_root<float>>(d, flushes);
  if (op == "rsqrt" && approx) set_f32<rsqrt_of>(d, flushes);
  if (op == "ex2" && approx) set_f32<exp2_approx>(d, flushes);
  if (op == "lg2" && approx) set_f32<log2_of>(d, flushes);
  if (op == "sin" && approx) set_f32<sine>(d, flushes);
  if (op == "cos" && approx) set_f32<cosine>(d, flushes);
  if (op == "tanh" && approx) set_f32<tanh_of>(d, flushes);
  return d.out.handler != nullptr;
}

bool decode_sign(Decoder& d) {
  bool is_abs = d.opcode() == "abs", flushes = d.take("ftz");
  Type type = d.take_type();
  unsigned bytes = ptx::size_of(type);
  if (type != Type::f32 && type != Type::f64) return false;
  d.out.d = d.dest(0, bytes);
  d.out.a = d.source(1, bytes);
  if (type == Type::f32) {
    if (is_abs) {
      set_f32<absolute<float>>(d, flushes);
    } else {
      set_f32<negate<float>>(d, flushes);
    }
  } else {
    d.out.handler = is_abs ? function_lanes<double, absolute<double>, false>
                           : function_lanes<double, negate<double>, false>;
  }
  return type == Type::f32 || !flushes;
}

bool decode_copysign(Decoder& d) {
  Type type = d.take_type();
  unsigned bytes = ptx::size_of(type);
  if (type != Type::f32 && type != Type::f64) return false;
  d.out.d = d.dest(0, bytes);
  d.out.a = d.source(1, bytes);
  d.out.b = d.source(2, bytes);
  // The sign of a, the magnitude of b.
  if (bytes == 4) {
    d.out.handler = binary<uint32_t, uint32_t, uint32_t, [](uint32_t a, uint32_t b) {
      return (a & 0x80000000u) | (b & 0x7fffffffu);
    }>;
  } else {
    d.out.handler = binary<uint64_t, uint64_t, uint64_t, [](uint64_t a, uint64_t b) {
      return (a & (uint64_t{1} << 63)) | (b & ~(uint64_t{1} << 63));
    }>;
  }
  return true;
}

// ------------------------------------------------------------------ dispatch by type

enum class Family { integer, single, half, mixed };
Family family(const Decoder& d) {
  unsigned types = 0;
  bool half = false, floating = false;
  for (auto& part : d.form().parts) {
    Type type = ptx::type_from_suffix(part);
    if (type == Type::none) continue;
    ++types;
    half |= type == Type::f16 || type == Type::f16x2 || type == Type::bf16 || type == Type::bf16x2;
    floating |= type == Type::f32 || type == Type::f64 || type == Type::f32x2;
  }
  if (half && floating) return Family::mixed;
  return half ? Family::half : floating ? Family::single : Family::integer;
}

template <DecodeFunction kInteger, DecodeFunction kSingle>
bool by_type(Decoder& d) {
  switch (family(d)) {
    case Family::integer:
      return kInteger && kInteger(d);
    case Family::single:
      return kSingle && kSingle(d);
    case Family::half:
      return decode_half(d);
    case Family::mixed:
      return decode_mixed(d);
  }
  return false;
}

constexpr DecodeFunction kNone = nullptr;

}  // namespace

const OpcodeList& float_opcodes() {
  static const OpcodeList list{
      {"add", by_type<decode_integer_add, decode_arithmetic<Op::add>>},
      {"sub", by_type<decode_integer_add, decode_arithmetic<Op::sub>>},
      {"mul", by_type<decode_integer_mul, decode_arithmetic<Op::mul>>},
      {"mad", by_type<decode_integer_mad, decode_arithmetic<Op::fma>>},
      {"fma", by_type<kNone, decode_arithmetic<Op::fma>>},
      {"div", by_type<decode_integer_div, decode_arithmetic<Op::div>>},
      {"min", by_type<decode_integer_min_max, decode_min_max>},
      {"max", by_type<decode_integer_min_max, decode_min_max>},
      {"abs", by_type<decode_integer_unary, decode_sign>},
      {"neg", by_type<decode_integer_unary, decode_sign>},
      {"rcp", by_type<kNone, decode_function>},
      {"sqrt", by_type<kNone, decode_function>},
      {"rsqrt", by_type<kNone, decode_function>},
      {"ex2", by_type<kNone, decode_function>},
      {"tanh", by_type<kNone, decode_function>},
      {"lg2", decode_function},
      {"sin", decode_function},
      {"cos", decode_function},
      {"copysign", decode_copysign},
  };
  return list;
}

}  // namespace vgpu::exec
