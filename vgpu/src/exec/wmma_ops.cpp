// SPDX-License-Identifier: Apache-2.0
// wmma.load, wmma.store, wmma.mma. Source: PTX ISA 9.0, "Matrix multiply-accumulate operation using
// wmma instructions". Which element a lane's register holds is unspecified there; here it is as in
// the fragments of mma.sync, repeated where a fragment has more places than its matrix elements.
#include <algorithm>
#include <bit>
#include <cfenv>
#include <limits>

#include "exec/decoder.hpp"
#include "exec/float_math.hpp"
#include "exec/memory_access.hpp"

namespace vgpu::exec {
namespace {

enum class Element : uint8_t { f16, bf16, tf32, f64, s8, u8, s4, u4, b1, f32, s32 };
constexpr const char* kElements[] = {"f16", "bf16", "tf32", "f64", "s8", "u8",
                                     "s4",  "u4",   "b1",   "f32", "s32"};

bool element_named(std::string_view name, Element& element) {
  const auto at = std::find(std::begin(kElements), std::end(kElements), name);
  element = static_cast<Element>(at - std::begin(kElements));
  return at != std::end(kElements);
}

uint32_t bits_of(Element element) {
  switch (element) {
    case Element::f16:
    case Element::bf16:
      return 16;
    case Element::s8:
    case Element::u8:
      return 8;
    case Element::s4:
    case Element::u4:
      return 4;
    case Element::b1:
      return 1;
    case Element::f64:
      return 64;
    default:
      return 32;
  }
}

struct Shape {
  uint32_t m = 0, n = 0, k = 0;
};

bool take_shape(Decoder& d, Shape& shape) {
  static constexpr Shape kShapes[] = {{16, 16, 16}, {8, 32, 16}, {32, 8, 16}, {16, 16, 8},
                                      {8, 8, 4},    {8, 8, 32},  {8, 8, 128}};
  const int index = d.take_one(
      {"m16n16k16", "m8n32k16", "m32n8k16", "m16n16k8", "m8n8k4", "m8n8k32", "m8n8k128"});
  if (index < 0) return false;
  shape = kShapes[index];
  return true;
}

/// Whether the shape has operands A and B of this type.
bool has_multiplicand(const Shape& shape, Element element) {
  switch (element) {
    case Element::f16:
    case Element::bf16:
    case Element::s8:
    case Element::u8:
      return shape.k == 16;
    case Element::tf32:
      return shape.m == 16 && shape.k == 8;
    case Element::f64:
      return shape.k == 4;
    case Element::s4:
    case Element::u4:
      return shape.k == 32;
    case Element::b1:
      return shape.k == 128;
    default:
      return false;
  }
}
bool has_accumulator(const Shape& shape, Element element) {
  switch (element) {
    case Element::f16:
      return shape.k == 16;
    case Element::f32:
      return shape.k == 16 || (shape.m == 16 && shape.k == 8);
    case Element::s32:
      return shape.k == 16 || shape.k >= 32;
    case Element::f64:
      return shape.k == 4;
    default:
      return false;
  }
}

/// A fragment: which element of its matrix is at (register, lane, place in the register).
struct Fragment {
  char matrix = 'a';  ///< 'a', 'b', or 'c' for C and D
  Element element = Element::f16;
  Shape shape;
  uint32_t registers = 0;

  uint32_t rows() const { return matrix == 'b' ? shape.k : shape.m; }
  uint32_t columns() const { return matrix == 'a' ? shape.k : shape.n; }
  uint32_t bits() const { return bits_of(element); }
  uint32_t register_bytes() const { return element == Element::f64 ? 8 : 4; }
  uint32_t per_register() const { return register_bytes() * 8 / bits(); }

  /// "Matrix Fragments for WMMA": as many registers as the elements need; f16 operands take eight
  /// whatever their shape.
  static Fragment make(char matrix, Element element, const Shape& shape) {
    Fragment f{matrix, element, shape, 0};
    f.registers = matrix != 'c' && element == Element::f16
                      ? 8
                      : f.rows() * f.columns() / kLanes / f.per_register();
    return f;
  }

  struct Position {
    uint32_t row, column;
  };
  Position at(uint32_t reg, uint32_t lane, uint32_t place) const {
    const uint32_t group = lane / 4, quad = lane % 4, per = per_register();
    if (matrix == 'c') {
      // Blocks of 8x8, down first; a lane holds two neighbours of each.
      const uint32_t value = reg * per + place, block = value / 2, down = shape.m / 8;
      return {block % down * 8 + group, block / down * 8 + quad * 2 + value % 2};
    }
    // Blocks of 8 rows (A) or columns (B) by four registers of neighbours along k.
    const uint32_t outer_blocks = (matrix == 'a' ? shape.m : shape.n) / 8;
    const uint32_t k_blocks = shape.k / (4 * per), block = reg % (outer_blocks * k_blocks);
    const uint32_t outer_block = matrix == 'a' ? block % outer_blocks : block / k_blocks;
    const uint32_t k_block = matrix == 'a' ? block / outer_blocks : block % k_blocks;
    const uint32_t outer = outer_block * 8 + group, k = (k_block * 4 + quad) * per + place;
    return matrix == 'a' ? Position{outer, k} : Position{k, outer};
  }
};

void require_warp(const char* what, uint32_t lanes) {
  if (lanes != kAllLanes) {
    fault(kIllegalInstruction, "%s by lanes %#x: .aligned needs all 32 lanes of the warp", what,
          lanes);
  }
}

// ------------------------------------------------------------------ load, store

struct TransferOp {
  Fragment fragment;
  AddressSpace space = AddressSpace::generic;
  bool row_major = true;
  bool has_stride = false;
  bool is_load = true;
};

/// The base address and the stride in elements, which must be those of all lanes, aligned: the
/// base to the fragment's size, rows or columns to 16 bytes where fragments are larger.
/// NOTE: PTX wants the latter aligned to the fragment too; CUDA C++ (load_matrix_sync) wants 16
/// bytes, and its programs use that.
void read_base(const Warp& w, const Instr& i, const TransferOp& op, uint64_t& base,
               uint64_t& stride) {
  const char* what = op.is_load ? "wmma.load" : "wmma.store";
  const Fragment& f = op.fragment;
  const uint32_t leading = op.row_major ? f.columns() : f.rows();
  const Ref& address = i[op.is_load ? 1 : 0];
  base = read_address(w, address, 0);
  stride = op.has_stride ? static_cast<uint32_t>(read_lane(w, i[2], 0)) : leading;
  for (uint32_t l = 1; l < kLanes; ++l) {
    const uint64_t its = op.has_stride ? static_cast<uint32_t>(read_lane(w, i[2], l)) : leading;
    if (read_address(w, address, l) != base || its != stride) {
      fault(
          kIllegalInstruction,
          "%s: lane %u gives address 0x%llx and stride %llu, lane 0 0x%llx and %llu; they must be "
          "the same",
          what, l, static_cast<unsigned long long>(read_address(w, address, l)),
          static_cast<unsigned long long>(its), static_cast<unsigned long long>(base),
          static_cast<unsigned long long>(stride));
    }
  }
  if (stride < leading) {
    fault(kIllegalInstruction, "%s: stride %llu is less than the %u elements of a %s", what,
          static_cast<unsigned long long>(stride), leading, op.row_major ? "row" : "column");
  }
  const uint64_t fragment_bytes = uint64_t{f.registers} * f.register_bytes();
  const uint64_t step_bits = stride * f.bits(), step = std::min<uint64_t>(fragment_bytes, 16);
  if (base % fragment_bytes != 0 || step_bits % (step * 8) != 0) {
    fault(
        kMisalignedAddress,
        "%s: address 0x%llx must be a multiple of %llu bytes, the stride of %llu elements of %llu "
        "bytes",
        what, static_cast<unsigned long long>(base),
        static_cast<unsigned long long>(fragment_bytes), static_cast<unsigned long long>(stride),
        static_cast<unsigned long long>(step));
  }
}

Step transfer(Warp& w, const Instr& i, uint32_t lanes) {
  if (lanes != w.live) return wait_for_lanes(w);
  auto& op = *static_cast<const TransferOp*>(i.extra);
  require_warp(op.is_load ? "wmma.load" : "wmma.store", lanes);
  const Fragment& f = op.fragment;
  uint64_t base, stride;
  read_base(w, i, op, base, stride);
  // Elements of a register that lie next to each other in memory are moved as one.
  const bool along = f.matrix == 'b' ? !op.row_major : op.row_major;
  const uint32_t count = along || f.bits() < 8 ? f.per_register() : 1;
  const uint32_t bytes = count * f.bits() / 8;
  const MemoryRequest request{op.space, bytes, op.is_load ? Access::read : Access::write,
                              Order::weak, Scope::cta};
  const Ref& registers = i[op.is_load ? 0 : 1];
  for (uint32_t r = 0; r < f.registers; ++r) {
    const Ref& ref = registers.kind == Ref::Kind::vector ? registers[r] : registers;
    uint64_t values[kLanes] = {};
    if (!op.is_load) {
      for (uint32_t l = 0; l < kLanes; ++l) values[l] = read_lane(w, ref, l);
    }
    for (uint32_t place = 0; place < f.per_register(); place += count) {
      uint64_t addresses[kLanes];
      uint8_t* pointers[kLanes];
      for (uint32_t l = 0; l < kLanes; ++l) {
        const auto [row, column] = f.at(r, l, place);
        const uint64_t element = op.row_major ? row * stride + column : column * stride + row;
        addresses[l] = base + element * f.bits() / 8;
      }
      resolve(w, request, kAllLanes, addresses, pointers);
      const uint32_t shift = place * f.bits();
      for (uint32_t l = 0; l < kLanes; ++l) {
        uint64_t part = values[l] >> shift;
        if (op.is_load) {
          part = 0;
          std::memcpy(&part, pointers[l], bytes);
          values[l] |= part << shift;
        } else {
          std::memcpy(pointers[l], &part, bytes);
        }
      }
    }
    if (op.is_load) {
      for (uint32_t l = 0; l < kLanes; ++l) write_lane(w, ref, l, values[l]);
    }
  }
  return Step::next;
}

void check_registers(Decoder& d, unsigned k, const Fragment& f, bool is_result) {
  const auto& operand = d.operand(k);
  const bool vector = operand.kind == ptx::Operand::Kind::vector;
  if ((vector ? operand.count : 1) != f.registers) {
    throw BadOperand{format("operand %u needs %u registers", k + 1, f.registers)};
  }
  for (uint32_t r = 0; r < f.registers; ++r) {
    const auto& each = vector ? d.child(operand, r) : operand;
    is_result ? d.dest(each, f.register_bytes()) : d.source(each, f.register_bytes());
  }
}

bool decode_transfer(Decoder& d, bool is_load) {
  auto& op = d.extra<TransferOp>();
  op.is_load = is_load;
  const int matrix = is_load ? d.take_one({"a", "b", "c"}) : d.take("d") ? 2 : -1;
  if (matrix < 0 || !d.take("sync") || !d.take("aligned")) return false;
  const int layout = d.take_one({"row", "col"});
  Shape shape;
  if (layout < 0 || !take_shape(d, shape)) return false;
  op.row_major = layout == 0;
  if (d.take("global")) {
    op.space = AddressSpace::global;
  } else if (d.take_one({"shared", "shared::cta"}) >= 0) {
    op.space = AddressSpace::shared_cta;
  }
  Element element;
  if (!element_named(d.take_next(), element)) return false;
  const char name = "abc"[matrix];
  const bool exists =
      name == 'c' ? has_accumulator(shape, element) : has_multiplicand(shape, element);
  // Sub-byte operands: A row-major, B column-major.
  const bool narrow = bits_of(element) < 8;
  if (!exists || (narrow && op.row_major != (name == 'a'))) return false;
  op.fragment = Fragment::make(name, element, shape);
  op.has_stride = d.count() > 2;
  check_registers(d, is_load ? 0 : 1, op.fragment, is_load);
  if (d.count() > 3 || d.operand(is_load ? 1 : 0).kind != ptx::Operand::Kind::address) {
    throw BadOperand{"an address and at most a stride are needed"};
  }
  d.make_refs(op.fragment.register_bytes());
  d.out.handler = transfer;
  return true;
}

// ------------------------------------------------------------------ mma

struct MmaOp {
  Fragment a, b, c, d;
  bool saturate = false;
  bool is_and = false;  ///< b1: and, else xor
  int rounding = FE_TONEAREST;
};

constexpr uint32_t kMaxSide = 32, kMaxK = 128;

/// The matrix of a fragment as bits of its elements, row by row.
void gather(const Warp& w, const Ref& registers, const Fragment& f, uint64_t* out) {
  const uint64_t mask = f.bits() == 64 ? ~uint64_t{0} : (uint64_t{1} << f.bits()) - 1;
  for (uint32_t r = 0; r < f.registers; ++r) {
    const Ref& ref = registers.kind == Ref::Kind::vector ? registers[r] : registers;
    for (uint32_t l = 0; l < kLanes; ++l) {
      const uint64_t value = read_lane(w, ref, l);
      for (uint32_t place = 0; place < f.per_register(); ++place) {
        const auto [row, column] = f.at(r, l, place);
        out[row * f.columns() + column] = value >> place * f.bits() & mask;
      }
    }
  }
}

void scatter(Warp& w, const Ref& registers, const Fragment& f, const uint64_t* matrix) {
  for (uint32_t r = 0; r < f.registers; ++r) {
    const Ref& ref = registers.kind == Ref::Kind::vector ? registers[r] : registers;
    for (uint32_t l = 0; l < kLanes; ++l) {
      uint64_t value = 0;
      for (uint32_t place = 0; place < f.per_register(); ++place) {
        const auto [row, column] = f.at(r, l, place);
        value |= matrix[row * f.columns() + column] << place * f.bits();
      }
      write_lane(w, ref, l, value);
    }
  }
}

double to_double(Element element, uint64_t bits) {
  switch (element) {
    case Element::f16:
      return tensor::f16_to_f32(static_cast<uint16_t>(bits));
    case Element::bf16:
      return tensor::bf16_to_f32(static_cast<uint16_t>(bits));
    case Element::tf32:
      return tensor::tf32_operand(static_cast<uint32_t>(bits));
    case Element::f32:
      return std::bit_cast<float>(static_cast<uint32_t>(bits));
    default:
      return std::bit_cast<double>(bits);
  }
}

int32_t to_integer(Element element, uint64_t bits) {
  switch (element) {
    case Element::s8:
      return static_cast<int8_t>(bits);
    case Element::s4:
      return static_cast<int32_t>(static_cast<uint32_t>(bits) << 28) >> 28;
    default:
      return static_cast<int32_t>(bits);
  }
}

/// One element of D: fused multiply-adds in order of k, in fp32 (f64: in fp64).
uint64_t float_sum(const MmaOp& op, const uint64_t* a, const uint64_t* b, uint64_t c) {
  const uint32_t k_count = op.a.shape.k, n = op.a.shape.n;
  if (op.a.element == Element::f64) {
    volatile double sum = to_double(Element::f64, c);
    for (uint32_t k = 0; k < k_count; ++k) {
      sum = std::fma(to_double(Element::f64, a[k]), to_double(Element::f64, b[k * n]), sum);
    }
    return std::bit_cast<uint64_t>(static_cast<double>(sum));
  }
  auto sum = static_cast<float>(to_double(op.c.element, c));
  for (uint32_t k = 0; k < k_count; ++k) {
    sum = std::fma(static_cast<float>(to_double(op.a.element, a[k])),
                   static_cast<float>(to_double(op.b.element, b[k * n])), sum);
  }
  return op.d.element == Element::f16 ? Half::narrow(sum) : std::bit_cast<uint32_t>(canonical(sum));
}

uint64_t integer_sum(const MmaOp& op, const uint64_t* a, const uint64_t* b, uint64_t c) {
  int64_t sum = static_cast<int32_t>(c);
  for (uint32_t k = 0; k < op.a.shape.k; ++k) {
    const uint64_t other = b[k * op.a.shape.n];
    if (op.a.element == Element::b1) {
      sum += static_cast<int64_t>(op.is_and ? a[k] & other : a[k] ^ other);
    } else {
      sum += int64_t{to_integer(op.a.element, a[k])} * to_integer(op.b.element, other);
    }
  }
  if (op.saturate) {
    sum = std::clamp<int64_t>(sum, std::numeric_limits<int32_t>::min(),
                              std::numeric_limits<int32_t>::max());
  }
  return static_cast<uint32_t>(sum);
}

Step mma(Warp& w, const Instr& i, uint32_t lanes) {
  if (!converged(w, lanes, kAllLanes)) return wait_for_lanes(w);
  require_warp("wmma.mma", lanes);
  auto& op = *static_cast<const MmaOp*>(i.extra);
  uint64_t a[kMaxSide * kMaxK], b[kMaxSide * kMaxK], c[16 * 16];
  gather(w, i[1], op.a, a);
  gather(w, i[2], op.b, b);
  gather(w, i[3], op.c, c);
  const auto [m, n, k] = op.a.shape;
  const bool integer = op.d.element == Element::s32;
  const int saved = std::fegetround();
  if (op.rounding != saved) std::fesetround(op.rounding);
  for (uint32_t row = 0; row < m; ++row) {
    for (uint32_t column = 0; column < n; ++column) {
      uint64_t& sum = c[row * n + column];
      sum = integer ? integer_sum(op, a + row * k, b + column, sum)
                    : float_sum(op, a + row * k, b + column, sum);
    }
  }
  if (op.rounding != saved) std::fesetround(saved);
  scatter(w, i[0], op.d, c);
  w.cluster->worker->mma_macs += uint64_t{m} * n * k;
  return Step::next;
}

bool decode_mma(Decoder& d) {
  auto& op = d.extra<MmaOp>();
  const bool is_xor = d.take("xor");
  op.is_and = !is_xor && d.take("and");
  const bool bitwise = is_xor || op.is_and;
  if (bitwise && !d.take("popc")) return false;
  if (!d.take("sync") || !d.take("aligned")) return false;
  Shape shape;
  if (!take_shape(d, shape)) return false;
  // Layouts say how the fragments were loaded; they do not change what a fragment holds here.
  const std::string_view a_layout = d.take_next(), b_layout = d.take_next();
  auto is_layout = [](std::string_view name) { return name == "row" || name == "col"; };
  if (!is_layout(a_layout) || !is_layout(b_layout)) return false;
  constexpr int kModes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
  const int mode = shape.k == 4 ? d.take_one({"rn", "rz", "rm", "rp"}) : -1;
  if (mode >= 0) op.rounding = kModes[mode];
  op.saturate = d.take("satfinite");
  // D, A, B, C; without A and B those are f16.
  Element types[4];
  unsigned count = 0;
  for (; count < 4; ++count) {
    const std::string_view name = d.take_next();
    if (name.empty()) break;
    if (!element_named(name, types[count])) return false;
  }
  if (count != 2 && count != 4) return false;
  const Element to = types[0], from = types[count - 1];
  const Element a = count == 4 ? types[1] : Element::f16, b = count == 4 ? types[2] : Element::f16;
  if (a != b || !has_multiplicand(shape, a)) return false;
  if (!has_accumulator(shape, to) || !has_accumulator(shape, from)) return false;
  const bool integer = bits_of(a) <= 8;
  if ((to == Element::s32) != integer || (from == Element::s32) != integer) return false;
  // Only f16 operands have f16 accumulators.
  if (a != Element::f16 && to != from) return false;
  if (a != Element::f16 && to == Element::f16) return false;
  if (bitwise != (a == Element::b1) || (op.saturate && (!integer || bitwise))) return false;
  if (bits_of(a) < 8 && (a_layout != "row" || b_layout != "col")) return false;
  op.a = Fragment::make('a', a, shape);
  op.b = Fragment::make('b', b, shape);
  op.c = Fragment::make('c', from, shape);
  op.d = Fragment::make('c', to, shape);
  if (d.count() != 4) return false;
  check_registers(d, 0, op.d, true);
  check_registers(d, 1, op.a, false);
  check_registers(d, 2, op.b, false);
  check_registers(d, 3, op.c, false);
  d.make_refs(op.a.register_bytes());
  d.out.handler = mma;
  return true;
}

bool decode_wmma(Decoder& d) {
  switch (d.take_one({"load", "store", "mma"})) {
    case 0:
      return decode_transfer(d, true);
    case 1:
      return decode_transfer(d, false);
    case 2:
      return decode_mma(d);
    default:
      return false;
  }
}

}  // namespace

const OpcodeList& wmma_opcodes() {
  static const OpcodeList list{{"wmma", decode_wmma}};
  return list;
}

}  // namespace vgpu::exec
