// SPDX-License-Identifier: Apache-2.0
// cvt and cvt.pack. Source: PTX ISA 9.0, "cvt" (roundings, saturation, NaN results).
#include <cmath>
#include <limits>

#include "exec/decoder.hpp"
#include "exec/float_math.hpp"
#include "exec/lanes.hpp"

namespace vgpu::exec {
namespace {

using ptx::Type;
using tensor::EncodeOptions;
using tensor::FloatFormat;
using tensor::Rounding;

bool is_float(Type type) {
  return type == Type::f16 || type == Type::bf16 || type == Type::f32 || type == Type::f64;
}
bool is_signed_integer(Type type) {
  return type >= Type::s8 && type <= Type::s64;
}
bool is_integer(Type type) {
  return type >= Type::u8 && type <= Type::s64;
}

// ------------------------------------------------------------------ scalar types

struct Conversion {
  Type to = Type::none, from = Type::none;
  unsigned to_register = 0, from_register = 0;  ///< bytes
  Rounding rounding = Rounding::rn;
  int integer_rounding = -1;  ///< 0 rni, 1 rzi, 2 rmi, 3 rpi
  bool saturate = false, satfinite = false, relu = false, flush = false;
};

double read_float(Type type, uint64_t bits, bool flushes) {
  switch (type) {
    case Type::f16:
      return tensor::f16_to_f32(static_cast<uint16_t>(bits));
    case Type::bf16:
      return tensor::bf16_to_f32(static_cast<uint16_t>(bits));
    case Type::f32: {
      float value = std::bit_cast<float>(static_cast<uint32_t>(bits));
      return flushes ? flush(value) : value;
    }
    default:
      return std::bit_cast<double>(bits);
  }
}

double round_to_integral(double value, int mode) {
  switch (mode) {
    case 0:
      return std::nearbyint(value);
    case 1:
      return std::trunc(value);
    case 2:
      return std::floor(value);
    default:
      return std::ceil(value);
  }
}

/// NOTE: a NaN keeps its sign and the top of its payload from f64 to f32 and f16 (measured on an
/// H200); other conversions give the canonical NaN.
uint64_t narrow_nan(double value, unsigned mantissa_bits) {
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const unsigned exponent_bits = mantissa_bits == 23 ? 8 : 5;
  const uint64_t sign = bits >> 63 << (mantissa_bits + exponent_bits);
  const uint64_t exponent = ((uint64_t{1} << exponent_bits) - 1) << mantissa_bits;
  const uint64_t payload = bits << 12 >> (64 - mantissa_bits);
  return sign | exponent | uint64_t{1} << (mantissa_bits - 1) | payload;
}

uint64_t write_float(const Conversion& c, double value) {
  if (c.from == Type::f64 && std::isnan(value) && !c.saturate) {
    if (c.to == Type::f32) return narrow_nan(value, 23);
    if (c.to == Type::f16) return narrow_nan(value, 10);
  }
  EncodeOptions options{c.rounding, c.satfinite, c.relu};
  switch (c.to) {
    case Type::f16:
    case Type::bf16: {
      auto& format = c.to == Type::f16 ? tensor::kF16 : tensor::kBf16;
      if (c.saturate) value = saturate_unit(value);
      return tensor::encode(format, value, options);
    }
    case Type::f32: {
      float result = tensor::round_to_f32(value, c.rounding);
      if (c.flush) result = flush(result);
      if (c.saturate) result = saturate_unit(result);
      return std::bit_cast<uint32_t>(canonical(result));
    }
    default:
      if (c.saturate) value = saturate_unit(value);
      return std::bit_cast<uint64_t>(value);
  }
}

/// An integer as a double that rounds on as the integer itself would (odd last bit if inexact), or
/// rounded as asked when the destination is f64.
double integer_to_double(const Conversion& c, uint64_t bits) {
  long double exact = is_signed_integer(c.from)
                          ? static_cast<long double>(static_cast<int64_t>(bits))
                          : static_cast<long double>(bits);
  double value = static_cast<double>(exact);
  if (static_cast<long double>(value) == exact) return value;
  bool above = static_cast<long double>(value) > exact;
  double toward = std::nextafter(value, above ? -INFINITY : INFINITY);
  double low = above ? toward : value, high = above ? value : toward;
  if (c.to != Type::f64) return std::bit_cast<uint64_t>(low) & 1 ? low : high;
  switch (c.rounding) {
    case Rounding::rz:
      return exact > 0 ? low : high;
    case Rounding::rm:
      return low;
    case Rounding::rp:
      return high;
    default:
      return value;
  }
}

uint64_t float_to_integer(const Conversion& c, double value) {
  unsigned width = ptx::size_of(c.to) * 8;
  bool is_signed = is_signed_integer(c.to);
  if (std::isnan(value)) {
    // NOTE: PTX ISA, cvt: zero, but the top bit alone from f64 or to a 64-bit integer.
    return c.from == Type::f64 || width == 64 ? uint64_t{1} << (width - 1) : 0;
  }
  value = round_to_integral(value, c.integer_rounding);
  double limit = std::ldexp(1.0, static_cast<int>(is_signed ? width - 1 : width));
  uint64_t max = is_signed ? (uint64_t{1} << (width - 1)) - 1 : ~uint64_t{0} >> (64 - width);
  if (value >= limit) return max;
  if (is_signed) {
    return value < -limit ? uint64_t{0} - (uint64_t{1} << (width - 1))
                          : static_cast<uint64_t>(static_cast<int64_t>(value));
  }
  return value <= 0 ? 0 : static_cast<uint64_t>(value);
}

uint64_t extend(Type type, uint64_t bits) {
  unsigned width = ptx::size_of(type) * 8;
  if (width == 64) return bits;
  if (is_signed_integer(type)) {
    return static_cast<uint64_t>(static_cast<int64_t>(bits << (64 - width)) >> (64 - width));
  }
  return bits & ((uint64_t{1} << width) - 1);
}

uint64_t saturate_integer(const Conversion& c, uint64_t bits) {
  __int128 value = is_signed_integer(c.from) ? static_cast<__int128>(static_cast<int64_t>(bits))
                                             : static_cast<__int128>(bits);
  unsigned width = ptx::size_of(c.to) * 8;
  bool is_signed = is_signed_integer(c.to);
  __int128 max = (static_cast<__int128>(1) << (is_signed ? width - 1 : width)) - 1;
  __int128 min = is_signed ? -max - 1 : 0;
  return static_cast<uint64_t>(value > max ? max : value < min ? min : value);
}

uint64_t convert(const Conversion& c, uint64_t bits) {
  if (is_float(c.from)) {
    double value = read_float(c.from, bits, c.flush);
    if (is_integer(c.to)) return extend(c.to, float_to_integer(c, value));
    if (c.integer_rounding >= 0) value = round_to_integral(value, c.integer_rounding);
    return write_float(c, value);
  }
  bits = extend(c.from, bits);
  if (is_float(c.to)) return write_float(c, integer_to_double(c, bits));
  if (c.saturate) bits = saturate_integer(c, bits);
  return extend(c.to, bits);
}

uint64_t load_register(const uint8_t* base, unsigned bytes, uint32_t lane) {
  uint64_t value = 0;
  std::memcpy(&value, base + lane * bytes, bytes);
  return value;
}

Step convert_lanes(Warp& w, const Instr& i, uint32_t lanes) {
  auto& c = *static_cast<const Conversion*>(i.extra);
  for_lanes(lanes, [&](uint32_t l) {
    uint64_t result = convert(c, load_register(w.registers + i.a, c.from_register, l));
    std::memcpy(w.registers + i.d + l * c.to_register, &result, c.to_register);
  });
  return Step::next;
}

template <typename D, typename S>
constexpr Handler integer_handler() {
  return unary<D, S, [](S a) { return static_cast<D>(a); }>;
}
template <typename S>
Handler integer_handler_to(unsigned bytes) {
  // The register's width and the type's signedness say how to extend.
  switch (bytes) {
    case 2:
      return integer_handler<uint16_t, S>();
    case 4:
      return integer_handler<uint32_t, S>();
    case 8:
      return integer_handler<uint64_t, S>();
    default:
      return nullptr;
  }
}

/// Vectorised paths for conversions that are exact or native; null when there is none.
Handler fast_handler(const Conversion& c) {
  bool plain = !c.saturate && !c.satfinite && !c.relu && !c.flush;
  if (!plain) return nullptr;
  bool exact_widths =
      c.to_register == ptx::size_of(c.to) && c.from_register == ptx::size_of(c.from);
  if (!exact_widths) return nullptr;
  if (is_integer(c.to) && is_integer(c.from)) {
    switch (c.from) {
      case Type::u16:
        return integer_handler_to<uint16_t>(c.to_register);
      case Type::s16:
        return integer_handler_to<int16_t>(c.to_register);
      case Type::u32:
        return integer_handler_to<uint32_t>(c.to_register);
      case Type::s32:
        return integer_handler_to<int32_t>(c.to_register);
      case Type::u64:
      case Type::s64:
        return integer_handler_to<uint64_t>(c.to_register);
      default:
        return nullptr;
    }
  }
  if (c.rounding == Rounding::rn && c.integer_rounding < 0) {
    if (c.to == Type::f32 && c.from == Type::s32) {
      return unary<float, int32_t, [](int32_t a) { return static_cast<float>(a); }>;
    }
    if (c.to == Type::f32 && c.from == Type::u32) {
      return unary<float, uint32_t, [](uint32_t a) { return static_cast<float>(a); }>;
    }
    if (c.to == Type::f32 && c.from == Type::f16) {
      return unary<float, uint16_t, [](uint16_t a) { return canonical(Half::widen(a)); }>;
    }
    if (c.to == Type::f32 && c.from == Type::bf16) {
      return unary<float, uint16_t, [](uint16_t a) { return Bfloat16::widen(a); }>;
    }
    if (c.to == Type::f16 && c.from == Type::f32) {
      return unary<uint16_t, float, [](float a) { return Half::narrow(a); }>;
    }
    if (c.to == Type::bf16 && c.from == Type::f32) {
      return unary<uint16_t, float, [](float a) { return Bfloat16::narrow(a); }>;
    }
    if (c.to == Type::f64 && c.from == Type::f32) {
      return unary<double, float, [](float a) { return static_cast<double>(a); }>;
    }
  }
  return nullptr;
}

// ------------------------------------------------------------------ packed and narrow formats

const FloatFormat* format_named(std::string_view name) {
  if (name == "f16") return &tensor::kF16;
  if (name == "bf16") return &tensor::kBf16;
  if (name == "tf32") return &tensor::kTf32;
  if (name == "e4m3") return &tensor::kE4m3;
  if (name == "e5m2") return &tensor::kE5m2;
  if (name == "e2m3") return &tensor::kE2m3;
  if (name == "e3m2") return &tensor::kE3m2;
  if (name == "e2m1") return &tensor::kE2m1;
  if (name == "ue8m0") return &tensor::kUe8m0;
  return nullptr;
}

struct PackedConversion {
  const FloatFormat* to = nullptr;    ///< null: f32
  const FloatFormat* from = nullptr;  ///< null: f32
  EncodeOptions options;
  unsigned to_register = 4, from_register = 4;
  bool pair = false;         ///< two values out
  bool two_sources = false;  ///< pair from two f32 operands: the first is the high half
};

/// Bits between the two values of a pair: formats of four bits pack into a byte, six into a byte
/// each.
unsigned pair_pitch(const FloatFormat& format) {
  return format.bits <= 4 ? 4 : format.bits <= 8 ? 8 : 16;
}

Step convert_packed(Warp& w, const Instr& i, uint32_t lanes) {
  auto& c = *static_cast<const PackedConversion*>(i.extra);
  for_lanes(lanes, [&](uint32_t l) {
    uint64_t a = load_register(w.registers + i.a, c.from_register, l);
    double high, low;
    if (!c.from) {
      high = std::bit_cast<float>(static_cast<uint32_t>(a));
      low =
          c.two_sources
              ? std::bit_cast<float>(static_cast<uint32_t>(load_register(w.registers + i.b, 4, l)))
              : high;
    } else {
      unsigned pitch = pair_pitch(*c.from);
      low = tensor::decode(*c.from, static_cast<uint32_t>(a & ((1u << pitch) - 1)));
      high = tensor::decode(*c.from, static_cast<uint32_t>(a >> pitch & ((1u << pitch) - 1)));
    }
    uint64_t result = tensor::encode(*c.to, low, c.options);
    // NOTE: .rna only drops the low bits of a NaN (measured on an H200).
    if (c.options.rounding == Rounding::rna && std::isnan(low)) result = a & 0xffffe000;
    if (c.pair) {
      result |= static_cast<uint64_t>(tensor::encode(*c.to, high, c.options)) << pair_pitch(*c.to);
    }
    std::memcpy(w.registers + i.d + l * c.to_register, &result, c.to_register);
  });
  return Step::next;
}

template <typename F>
Step pack_f32_pair(Warp& w, const Instr& i, uint32_t lanes) {
  const float *a = w.lanes<float>(i.a), *b = w.lanes<float>(i.b);
  write_lanes<uint32_t>(
      w, i.d, lanes, [=](uint32_t l) { return uint32_t{F::narrow(a[l])} << 16 | F::narrow(b[l]); });
  return Step::next;
}

bool decode_packed(Decoder& d, std::string_view to, std::string_view from,
                   const EncodeOptions& options, bool has_rounding) {
  auto& c = d.extra<PackedConversion>();
  c.options = options;
  auto split = [](std::string_view name, bool& pair) {
    pair = name.size() > 2 && name.substr(name.size() - 2) == "x2";
    return pair ? name.substr(0, name.size() - 2) : name;
  };
  bool to_pair = false, from_pair = false;
  c.to = format_named(split(to, to_pair));
  auto from_name = split(from, from_pair);
  c.from = from_name == "f32" && !from_pair ? nullptr : format_named(from_name);
  if (!c.to || (!c.from && from_name != "f32")) return false;
  c.pair = to_pair;
  if (c.from && (!from_pair || !to_pair)) return false;
  bool narrow = c.to->bits <= 8;
  // Legal combinations: f16x2 / bf16x2 / tf32 / narrow pairs from f32; narrow pairs from f16x2 and
  // back; ue8m0x2 from f32 and bf16x2, and to bf16x2.
  if (!has_rounding) return false;
  if (narrow && !options.satfinite) return false;
  if (c.to == &tensor::kUe8m0 &&
      ((options.rounding != Rounding::rz && options.rounding != Rounding::rp) || options.relu)) {
    return false;
  }
  if (narrow && c.to != &tensor::kUe8m0 && options.rounding != Rounding::rn) return false;
  if (c.from && c.from->bits <= 8 &&
      c.to != (c.from == &tensor::kUe8m0 ? &tensor::kBf16 : &tensor::kF16)) {
    return false;
  }
  if (c.from && c.from->bits > 8 &&
      (!narrow || (c.from == &tensor::kBf16) != (c.to == &tensor::kUe8m0))) {
    return false;
  }
  if (options.rounding == Rounding::rna && c.to != &tensor::kTf32) return false;
  if (!to_pair && c.to != &tensor::kTf32) return false;

  unsigned to_bits = to_pair ? 2 * pair_pitch(*c.to) : 32;
  unsigned from_bits = c.from ? 2 * pair_pitch(*c.from) : 32;
  c.to_register = std::max(16u, to_bits) / 8;
  c.from_register = std::max(16u, from_bits) / 8;
  d.out.d = d.dest(0, c.to_register);
  d.out.a = d.source(1, c.from_register);
  c.two_sources = !c.from && to_pair;
  if (c.two_sources) d.out.b = d.source(2, 4);
  if (d.count() != (c.two_sources ? 3u : 2u)) return false;
  d.out.handler = convert_packed;
  bool plain = options.rounding == Rounding::rn && !options.satfinite && !options.relu;
  if (c.two_sources && plain && c.to == &tensor::kF16) d.out.handler = pack_f32_pair<Half>;
  if (c.two_sources && plain && c.to == &tensor::kBf16) d.out.handler = pack_f32_pair<Bfloat16>;
  return true;
}

// ------------------------------------------------------------------ cvt.pack

Step pack_saturated(Warp& w, const Instr& i, uint32_t lanes) {  // x: bits of a part, y: signed
  const int32_t *a = w.lanes<int32_t>(i.a), *b = w.lanes<int32_t>(i.b);
  const uint32_t* c = w.lanes<uint32_t>(i.c);
  int64_t max = (int64_t{1} << (i.y ? i.x - 1 : i.x)) - 1, min = i.y ? -max - 1 : 0;
  uint32_t mask = static_cast<uint32_t>((uint64_t{1} << i.x) - 1);
  auto clamp = [&](int64_t value) {
    return static_cast<uint32_t>(value > max ? max : value < min ? min : value) & mask;
  };
  write_each_lane<uint32_t>(w, i.d, lanes, [&](uint32_t l) {
    uint32_t pair = clamp(a[l]) << i.x | clamp(b[l]);
    // With c, its low part moves up above the new pair.
    return i.imm ? c[l] << (2 * i.x) | pair : pair;
  });
  return Step::next;
}

bool decode_cvt_pack(Decoder& d) {
  if (!d.take("sat")) return false;
  auto to = d.take_next();
  if (d.take_type() != Type::s32) return false;
  bool with_c = d.take("b32");
  d.out.y = to[0] == 's';
  d.out.x = to == "s16" || to == "u16" ? 16 : to == "s8" || to == "u8" ? 8 : 0;
  if (!d.out.x || (d.out.x == 16) == with_c) return false;
  d.out.d = d.dest(0, 4);
  d.out.a = d.source(1, 4);
  d.out.b = d.source(2, 4);
  d.out.c = with_c ? d.source(3, 4) : d.literal(0, 4);
  d.out.imm = with_c;
  d.out.handler = pack_saturated;
  return true;
}

bool decode_cvt(Decoder& d) {
  if (d.take("pack")) return decode_cvt_pack(d);
  if (d.has("rs")) throw BadOperand{"stochastic rounding is not modelled"};
  auto& c = d.extra<Conversion>();
  int rounding = d.take_one({"rn", "rz", "rm", "rp", "rna"});
  c.integer_rounding = d.take_one({"rni", "rzi", "rmi", "rpi"});
  if (rounding >= 0) c.rounding = static_cast<Rounding>(rounding);
  c.flush = d.take("ftz");
  c.satfinite = d.take("satfinite");
  c.relu = d.take("relu");
  c.saturate = d.take("sat");
  auto to = d.take_next(), from = d.take_next();
  c.to = ptx::type_from_suffix(to);
  c.from = ptx::type_from_suffix(from);
  auto scalar = [](Type type) { return is_float(type) || is_integer(type); };
  if (!scalar(c.to) || !scalar(c.from)) {
    if (c.flush || c.saturate || c.integer_rounding >= 0) return false;
    return decode_packed(d, to, from, {c.rounding, c.satfinite, c.relu}, rounding >= 0);
  }
  // .satfinite and .relu exist on conversions to f16 and bf16 from f32.
  if ((c.satfinite || c.relu) &&
      ((c.to != Type::f16 && c.to != Type::bf16) || c.from != Type::f32)) {
    return false;
  }
  if (rounding == 4) return false;
  if (is_float(c.from) && is_integer(c.to) && c.integer_rounding < 0) return false;
  if (c.integer_rounding >= 0 && !(is_float(c.from) && (is_integer(c.to) || c.to == c.from))) {
    return false;
  }
  // A narrowing or integer-to-float conversion names its rounding.
  bool narrows =
      is_float(c.to) && (is_integer(c.from) || ptx::size_of(c.to) < ptx::size_of(c.from));
  if (narrows && rounding < 0) return false;
  if (d.count() != 2) return false;
  c.to_register = d.register_bytes(0);
  c.from_register = d.register_bytes(1);
  if (!c.from_register) c.from_register = std::max(2u, ptx::size_of(c.from));
  if (d.operand(0).kind == ptx::Operand::Kind::sink) {
    c.to_register = std::max(2u, ptx::size_of(c.to));
  }
  // Registers may be wider than the types of integers; floats need their own width.
  if (c.to_register < std::max(2u, ptx::size_of(c.to)) ||
      c.from_register < std::max(2u, ptx::size_of(c.from))) {
    throw BadOperand{"a register is narrower than the type of cvt"};
  }
  d.out.d = d.dest(0, c.to_register);
  d.out.a = d.source(1, c.from_register);
  d.out.handler = fast_handler(c);
  if (!d.out.handler) d.out.handler = convert_lanes;
  return true;
}

}  // namespace

const OpcodeList& convert_opcodes() {
  static const OpcodeList list{{"cvt", decode_cvt}};
  return list;
}

}  // namespace vgpu::exec
