// SPDX-License-Identifier: Apache-2.0
// mma.sync: D = A B + C of one warp, fragments in registers, at once. Source: PTX ISA 9.0, "Warp
// Level Matrix Multiply-Accumulate Instructions", fragment layouts of m16n8k*.
#include <limits>

#include "exec/decoder.hpp"
#include "exec/float_math.hpp"
#include "tensor/cut_sum.hpp"

namespace vgpu::exec {
namespace {

constexpr uint32_t kM = 16, kN = 8, kMaxK = 32;

enum class Element : uint8_t { f16, bf16, tf32, e4m3, e5m2, s8, u8 };

struct MmaOp {
  Element a = Element::f16, b = Element::f16;
  uint32_t k = 16;
  uint32_t bytes = 2;     ///< of an element of A and B
  bool half_sum = false;  ///< C and D are f16
  bool integer = false, saturate = false;
};

float widen(Element type, uint32_t bits) {
  switch (type) {
    case Element::f16:
      return tensor::f16_to_f32(static_cast<uint16_t>(bits));
    case Element::bf16:
      return tensor::bf16_to_f32(static_cast<uint16_t>(bits));
    case Element::tf32:
      return tensor::tf32_operand(bits);
    case Element::e4m3:
      return tensor::e4m3_to_f32(static_cast<uint8_t>(bits));
    case Element::e5m2:
      return tensor::e5m2_to_f32(static_cast<uint8_t>(bits));
    default:
      return 0;
  }
}
int32_t widen_integer(Element type, uint32_t bits) {
  return type == Element::s8 ? int32_t{static_cast<int8_t>(bits)}
                             : int32_t{static_cast<uint8_t>(bits)};
}

/// Elements of an operand as bits: A 16 x k (row-major here), B k x 8.
/// A register holds 4 / bytes neighbours along k; lane l is row (or column) l / 4. With A in four
/// registers, 1 and 3 are rows 8 and up, 2 and 3 the second half of k.
void read_a(const Warp& w, const Ref& registers, const MmaOp& op, uint32_t (*out)[kMaxK]) {
  uint32_t per = 4 / op.bytes;
  for (uint32_t r = 0; r < registers.count; ++r) {
    for (uint32_t l = 0; l < kLanes; ++l) {
      auto value = static_cast<uint32_t>(read_lane(w, registers[r], l));
      for (uint32_t e = 0; e < per; ++e) {
        uint32_t row = l / 4 + (r % 2) * 8, k = (l % 4) * per + e + (r / 2) * 4 * per;
        out[row][k] = value >> (8 * op.bytes * e);
      }
    }
  }
}
void read_b(const Warp& w, const Ref& registers, const MmaOp& op, uint32_t (*out)[kMaxK]) {
  uint32_t per = 4 / op.bytes;
  uint32_t count = registers.kind == Ref::Kind::vector ? registers.count : 1;
  for (uint32_t r = 0; r < count; ++r) {
    for (uint32_t l = 0; l < kLanes; ++l) {
      auto& ref = registers.kind == Ref::Kind::vector ? registers[r] : registers;
      auto value = static_cast<uint32_t>(read_lane(w, ref, l));
      for (uint32_t e = 0; e < per; ++e) {
        out[l / 4][(l % 4) * per + e + r * 4 * per] = value >> (8 * op.bytes * e);
      }
    }
  }
}

/// Value c of a lane: row l / 4 (+ 8 for c 2 and 3), column 2 (l % 4) + c % 2.
template <typename F>
void for_each_sum(F&& f) {
  for (uint32_t l = 0; l < kLanes; ++l) {
    for (uint32_t c = 0; c < 4; ++c) f(l, c, l / 4 + c / 2 * 8, l % 4 * 2 + c % 2);
  }
}

Step mma(Warp& w, const Instr& i, uint32_t lanes) {
  if (!converged(w, lanes, kAllLanes)) return wait_for_lanes(w);
  if (lanes != kAllLanes) {
    fault(kIllegalInstruction, "mma.sync by lanes %#x: .aligned needs all 32 lanes of the warp",
          lanes);
  }
  auto& op = *static_cast<const MmaOp*>(i.extra);
  uint32_t a_bits[kM][kMaxK], b_bits[kN][kMaxK];
  read_a(w, i[1], op, a_bits);
  read_b(w, i[2], op, b_bits);
  if (op.integer) {
    int32_t result[kLanes][4];
    for_each_sum([&](uint32_t l, uint32_t c, uint32_t row, uint32_t column) {
      int64_t sum = static_cast<int32_t>(read_lane(w, i[3][c], l));
      for (uint32_t k = 0; k < op.k; ++k) {
        sum +=
            int64_t{widen_integer(op.a, a_bits[row][k])} * widen_integer(op.b, b_bits[column][k]);
      }
      if (op.saturate) {
        sum = std::min<int64_t>(std::max<int64_t>(sum, std::numeric_limits<int32_t>::min()),
                                std::numeric_limits<int32_t>::max());
      }
      result[l][c] = static_cast<int32_t>(sum);
    });
    for_each_sum([&](uint32_t l, uint32_t c, uint32_t, uint32_t) {
      write_lane(w, i[0][c], l, static_cast<uint32_t>(result[l][c]));
    });
    return Step::next;
  }
  float a[kM][kMaxK], b[kN][kMaxK], result[kLanes][4];
  for (uint32_t k = 0; k < op.k; ++k) {
    for (uint32_t row = 0; row < kM; ++row) a[row][k] = widen(op.a, a_bits[row][k]);
    for (uint32_t column = 0; column < kN; ++column) b[column][k] = widen(op.b, b_bits[column][k]);
  }
  for_each_sum([&](uint32_t l, uint32_t c, uint32_t row, uint32_t column) {
    float sum = op.half_sum ? tensor::f16_to_f32(static_cast<uint16_t>(
                                  read_lane(w, i[3][c / 2], l) >> (c % 2 * 16)))
                            : std::bit_cast<float>(static_cast<uint32_t>(read_lane(w, i[3][c], l)));
    if (tensor::cut_sums() && !op.half_sum) {
      // NOTE: 16 bytes of k at once, as an A100 does.
      const uint32_t depth = 16 / op.bytes;
      for (uint32_t k = 0; k < op.k; k += depth) {
        sum = tensor::cut_sum(sum, &a[row][k], 1, &b[column][k], 1, depth);
      }
    } else {
      for (uint32_t k = 0; k < op.k; ++k) sum = std::fma(a[row][k], b[column][k], sum);
    }
    result[l][c] = sum;
  });
  for (uint32_t l = 0; l < kLanes; ++l) {
    for (uint32_t c = 0; c < 4; ++c) {
      if (!op.half_sum) {
        write_lane(w, i[0][c], l, std::bit_cast<uint32_t>(canonical(result[l][c])));
      } else if (c % 2 == 0) {
        write_lane(w, i[0][c / 2], l,
                   Half::narrow(result[l][c]) | uint32_t{Half::narrow(result[l][c + 1])} << 16);
      }
    }
  }
  w.cluster->worker->mma_macs += uint64_t{kM} * kN * op.k;
  return Step::next;
}

/// m8n8k4 and m16n8k4, k8, k16 of doubles: the shape's rows, and its depth.
struct DoubleOp {
  uint32_t m = 8, k = 4;
};

/// D = A B + C in doubles. Lane l has row l / 4 of A (further registers: the rows 8 and up, then
/// four columns on), column l / 4 of B, and columns 2 (l % 4) and the next of rows l / 4 and up of
/// C (PTX ISA, "Matrix fragments for mma.m8n8k4 with .f64", "mma.m16n8k4", ".m16n8k8",
/// ".m16n8k16").
Step mma_double(Warp& w, const Instr& i, uint32_t lanes) {
  if (!converged(w, lanes, kAllLanes)) return wait_for_lanes(w);
  if (lanes != kAllLanes) {
    fault(kIllegalInstruction, "mma.sync by lanes %#x: .aligned needs all 32 lanes of the warp",
          lanes);
  }
  const auto& op = *static_cast<const DoubleOp*>(i.extra);
  const uint32_t halves = op.m / 8;
  auto value = [&](const Ref& registers, uint32_t number, uint32_t lane) {
    return std::bit_cast<double>(read_lane(w, registers[number], lane));
  };
  double result[kLanes][4];
  for (uint32_t l = 0; l < kLanes; ++l) {
    for (uint32_t c = 0; c < 2 * halves; ++c) {
      double sum = value(i[3], c, l);
      const uint32_t row = l / 4, column = l % 4 * 2 + c % 2;
      for (uint32_t k = 0; k < op.k; ++k) {
        sum = std::fma(value(i[1], k / 4 * halves + c / 2, row * 4 + k % 4),
                       value(i[2], k / 4, column * 4 + k % 4), sum);
      }
      result[l][c] = sum;
    }
  }
  for (uint32_t l = 0; l < kLanes; ++l) {
    for (uint32_t c = 0; c < 2 * halves; ++c) {
      write_lane(w, i[0][c], l, std::bit_cast<uint64_t>(result[l][c]));
    }
  }
  w.cluster->worker->mma_macs += uint64_t{op.m} * kN * op.k;
  return Step::next;
}

/// What follows the shape: .row.col.f64.f64.f64.f64 with rounding to nearest.
bool decode_double(Decoder& d, int shape) {
  auto& op = d.extra<DoubleOp>();
  op.m = shape == 0 ? 8 : 16;
  op.k = shape == 0 ? 4 : 4u << (shape - 1);
  d.take("rn");
  for (int k = 0; k < 4; ++k) {
    if (d.take_next() != "f64") return false;
  }
  d.make_refs(8);
  const uint32_t halves = op.m / 8, sums = 2 * halves, columns = op.k / 4;
  if (d.count() != 4 || !d.is_vector(0) || !d.is_vector(1) || !d.is_vector(2) || !d.is_vector(3) ||
      d.operand(0).count != sums || d.operand(3).count != sums ||
      d.operand(1).count != halves * columns || d.operand(2).count != columns) {
    throw BadOperand{"mma.sync with a wrong number of registers"};
  }
  for (unsigned k = 0; k < sums; ++k) d.dest(d.child(d.operand(0), k), 8);
  d.out.handler = mma_double;
  return true;
}

bool element_named(std::string_view name, Element& type, uint32_t& bytes) {
  bytes = name == "f16" || name == "bf16" ? 2 : name == "tf32" ? 4 : 1;
  if (name == "f16") return type = Element::f16, true;
  if (name == "bf16") return type = Element::bf16, true;
  if (name == "tf32") return type = Element::tf32, true;
  if (name == "e4m3") return type = Element::e4m3, true;
  if (name == "e5m2") return type = Element::e5m2, true;
  if (name == "s8") return type = Element::s8, true;
  if (name == "u8") return type = Element::u8, true;
  return false;
}

bool decode_mma(Decoder& d) {
  if (!d.take("sync") || !d.take("aligned")) return false;
  if (d.has("f64")) {
    const int doubles = d.take_one({"m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"});
    return doubles >= 0 && d.take("row") && d.take("col") && decode_double(d, doubles);
  }
  auto& op = d.extra<MmaOp>();
  int shape = d.take_one({"m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32"});
  if (shape < 0 || !d.take("row") || !d.take("col")) return false;
  op.k = 4u << shape;
  op.saturate = d.take("satfinite");
  auto to = d.take_next(), a = d.take_next(), b = d.take_next(), from = d.take_next();
  uint32_t b_bytes = 0;
  if (!element_named(a, op.a, op.bytes) || !element_named(b, op.b, b_bytes) ||
      b_bytes != op.bytes || to != from) {
    return false;
  }
  op.integer = op.a == Element::s8 || op.a == Element::u8;
  op.half_sum = to == "f16";
  if (op.integer != (to == "s32") || (op.saturate && !op.integer)) return false;
  if (op.half_sum && op.a != Element::f16 && op.bytes != 1) return false;
  if (!op.half_sum && !op.integer && to != "f32") return false;
  if (op.bytes > 1 && op.a != op.b) return false;
  // K is 16 or 32 bytes.
  uint32_t row_bytes = op.k * op.bytes;
  if (row_bytes != 16 && row_bytes != 32) return false;
  d.make_refs(4);
  uint32_t sums = op.half_sum ? 2 : 4, halves = row_bytes / 16;
  auto registers = [&](unsigned k) {
    auto& o = d.operand(k);
    return o.kind == ptx::Operand::Kind::vector ? o.count : 1;
  };
  if (d.count() != 4 || registers(0) != sums || registers(3) != sums ||
      registers(1) != 2 * halves || registers(2) != halves) {
    throw BadOperand{"mma.sync with a wrong number of registers"};
  }
  for (unsigned k = 0; k < sums; ++k) d.dest(d.child(d.operand(0), k), 4);
  d.out.handler = mma;
  return true;
}

}  // namespace

const OpcodeList& mma_opcodes() {
  static const OpcodeList list{{"mma", decode_mma}};
  return list;
}

}  // namespace vgpu::exec
