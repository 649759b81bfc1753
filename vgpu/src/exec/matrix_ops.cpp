// SPDX-License-Identifier: Apache-2.0
// ldmatrix, stmatrix, movmatrix: 8x8 matrices of 16-bit elements spread over a warp; on sm_100a
// also 16x16 and 8x16 (ldmatrix) and 16x8 (stmatrix) matrices of 8-bit elements. Source: PTX ISA
// 9.0, sections of those names; which byte of a register is which element of the 8-bit shapes is
// drawn in figures 105, 106 and 108 alone: from CUTLASS's copy traits (copy_traits_sm100.hpp).
#include "exec/decoder.hpp"
#include "exec/lanes.hpp"
#include "exec/memory_access.hpp"

namespace vgpu::exec {
namespace {

constexpr uint32_t kRows = 8, kColumns = 8;
using Tile = uint16_t[kRows][kColumns];

enum class MatrixShape : uint8_t { m8n8, m16n16, m8n16, m16n8 };

struct MatrixAccess {
  AddressSpace space = AddressSpace::shared_cta;
  uint32_t matrices = 1;
  bool transpose = false;
  MatrixShape shape = MatrixShape::m8n8;
  uint32_t element_bits = 16;  ///< in memory
  /// Rows of 16 bytes of a matrix in memory; m16n8 is transposed: 8 rows of 16 elements.
  uint32_t rows() const { return shape == MatrixShape::m16n16 ? 16 : 8; }
  uint32_t registers() const { return matrices * rows() / 8; }
};

void require_full_warp(const char* what, uint32_t lanes) {
  if (lanes != kAllLanes) {
    fault(kIllegalInstruction, "%s by lanes %#x: .aligned needs all 32 lanes of the warp", what,
          lanes);
  }
}

// Lane l holds elements (l / 4, 2 (l % 4)) and the one next to it; transposed: rows and columns
// swapped.
uint32_t fragment(const Tile& tile, uint32_t lane, bool transpose) {
  uint32_t r = lane / 4, c = lane % 4 * 2;
  uint32_t low = transpose ? tile[c][r] : tile[r][c];
  uint32_t high = transpose ? tile[c + 1][r] : tile[r][c + 1];
  return high << 16 | low;
}
void place_fragment(Tile& tile, uint32_t lane, bool transpose, uint32_t value) {
  uint32_t r = lane / 4, c = lane % 4 * 2;
  auto low = static_cast<uint16_t>(value), high = static_cast<uint16_t>(value >> 16);
  (transpose ? tile[c][r] : tile[r][c]) = low;
  (transpose ? tile[c + 1][r] : tile[r][c + 1]) = high;
}

/// Row addresses: lanes 8 m .. 8 m + 7 (16x16: 16 m .. 16 m + 15) give those of matrix m.
void row_pointers(Warp& w, const Ref& address, const MatrixAccess& m, Access access,
                  uint8_t** pointers) {
  uint64_t addresses[kLanes];
  read_addresses(w, address, addresses);
  const uint32_t rows = m.matrices * m.rows();
  uint32_t lanes = rows == kLanes ? kAllLanes : (1u << rows) - 1;
  resolve(w, {m.space, 16, access, Order::weak, Scope::cta}, lanes, addresses, pointers);
}

Ref register_of(const Ref& operand, uint32_t k) {
  return operand.kind == Ref::Kind::vector ? operand[k] : operand;
}

/// A row of 16 elements as bytes: 6-bit and 4-bit elements lie at the low end of the 16 bytes,
/// lowest bits first, and get bytes of their own (.b6x16_p32, .b4x16_p64).
void unpack_row(const uint8_t* row, uint32_t element_bits, uint8_t* out) {
  for (uint32_t e = 0; e < 16; ++e) {
    const uint32_t bit = e * element_bits;
    uint32_t word = row[bit / 8];
    if (bit % 8 + element_bits > 8) word |= uint32_t{row[bit / 8 + 1]} << 8;
    out[e] = static_cast<uint8_t>(word >> bit % 8 & ((1u << element_bits) - 1));
  }
}

/// Register r of a lane of 8-bit matrices, from the rows of its matrix:
/// - 16x16 transposed: rows 4 (l % 4) + 2 r and the next, columns l / 4 and l / 4 + 8
/// - 8x16: row l / 4, columns 4 (l % 4) and the three after it
uint32_t byte_fragment(const uint8_t (*rows)[16], const MatrixAccess& m, uint32_t lane,
                       uint32_t r) {
  const uint32_t group = lane / 4, quad = lane % 4;
  uint32_t value = 0;
  for (uint32_t b = 0; b < 4; ++b) {
    const uint8_t byte = m.shape == MatrixShape::m16n16
                             ? rows[4 * quad + 2 * r + b % 2][group + b / 2 * 8]
                             : rows[group][4 * quad + b];
    value |= uint32_t{byte} << 8 * b;
  }
  return value;
}

Step load_byte_matrix(Warp& w, const Instr& i, uint32_t lanes) {
  if (lanes != w.live) return wait_for_lanes(w);
  require_full_warp("ldmatrix", lanes);
  auto& m = *static_cast<const MatrixAccess*>(i.extra);
  uint8_t* pointers[kLanes];
  row_pointers(w, i[1], m, Access::read, pointers);
  uint8_t rows[kLanes][16];
  for (uint32_t r = 0; r < m.matrices * m.rows(); ++r) {
    unpack_row(pointers[r], m.element_bits, rows[r]);
  }
  const uint32_t each = m.rows() / 8;
  for (uint32_t k = 0; k < m.registers(); ++k) {
    for (uint32_t l = 0; l < kLanes; ++l) {
      write_lane(w, register_of(i[0], k), l,
                 byte_fragment(rows + k / each * m.rows(), m, l, k % each));
    }
  }
  return Step::next;
}

/// 16x8 transposed, as accumulators lie: byte b of lane l is element (l / 4 + 8 (b / 2),
/// 2 (l % 4) + b % 2) of the matrix, whose columns are the rows in memory.
Step store_byte_matrix(Warp& w, const Instr& i, uint32_t lanes) {
  if (lanes != w.live) return wait_for_lanes(w);
  require_full_warp("stmatrix", lanes);
  auto& m = *static_cast<const MatrixAccess*>(i.extra);
  uint8_t* pointers[kLanes];
  row_pointers(w, i[0], m, Access::write, pointers);
  for (uint32_t k = 0; k < m.matrices; ++k) {
    for (uint32_t l = 0; l < kLanes; ++l) {
      const auto value = static_cast<uint32_t>(read_lane(w, register_of(i[1], k), l));
      for (uint32_t b = 0; b < 4; ++b) {
        pointers[k * kRows + l % 4 * 2 + b % 2][l / 4 + b / 2 * 8] =
            static_cast<uint8_t>(value >> 8 * b);
      }
    }
  }
  return Step::next;
}

Step load_matrix(Warp& w, const Instr& i, uint32_t lanes) {
  if (lanes != w.live) return wait_for_lanes(w);
  require_full_warp("ldmatrix", lanes);
  auto& m = *static_cast<const MatrixAccess*>(i.extra);
  uint8_t* pointers[kLanes];
  row_pointers(w, i[1], m, Access::read, pointers);
  Tile tiles[4];
  for (uint32_t k = 0; k < m.matrices; ++k) {
    for (uint32_t r = 0; r < kRows; ++r) std::memcpy(tiles[k][r], pointers[k * kRows + r], 16);
  }
  for (uint32_t k = 0; k < m.matrices; ++k) {
    const Ref d = register_of(i[0], k);
    for (uint32_t l = 0; l < kLanes; ++l) write_lane(w, d, l, fragment(tiles[k], l, m.transpose));
  }
  return Step::next;
}

Step store_matrix(Warp& w, const Instr& i, uint32_t lanes) {
  if (lanes != w.live) return wait_for_lanes(w);
  require_full_warp("stmatrix", lanes);
  auto& m = *static_cast<const MatrixAccess*>(i.extra);
  uint8_t* pointers[kLanes];
  row_pointers(w, i[0], m, Access::write, pointers);
  for (uint32_t k = 0; k < m.matrices; ++k) {
    Tile tile;
    const Ref s = register_of(i[1], k);
    for (uint32_t l = 0; l < kLanes; ++l) {
      place_fragment(tile, l, m.transpose, static_cast<uint32_t>(read_lane(w, s, l)));
    }
    for (uint32_t r = 0; r < kRows; ++r) std::memcpy(pointers[k * kRows + r], tile[r], 16);
  }
  return Step::next;
}

/// The element type, and whether the shape has it: 16x16 and 16x8 are always transposed, 8x16
/// never is and holds elements that are unpacked; x4 does not exist for 16x16.
bool take_element(Decoder& d, bool is_load, MatrixAccess& m) {
  if (m.shape == MatrixShape::m8n8) return d.take("b16");
  if (!is_load) return m.shape == MatrixShape::m16n8 && m.transpose && d.take("b8");
  if (m.shape == MatrixShape::m16n8) return false;
  if ((m.shape == MatrixShape::m16n16) != m.transpose || m.matrices * m.rows() > kLanes) {
    return false;
  }
  if (m.shape == MatrixShape::m16n16 && d.take("b8")) {
    m.element_bits = 8;
    return true;
  }
  if (!d.take("b8x16")) return false;
  const int packed = d.take_one({"b6x16_p32", "b4x16_p64"});
  m.element_bits = packed == 0 ? 6 : 4;
  return packed >= 0;
}

bool decode_matrix_access(Decoder& d) {
  bool is_load = d.opcode() == "ldmatrix";
  auto& m = d.extra<MatrixAccess>();
  if (!d.take("sync") || !d.take("aligned")) return false;
  const int shape = d.take_one({"m8n8", "m16n16", "m8n16", "m16n8"});
  if (shape < 0) return false;
  m.shape = static_cast<MatrixShape>(shape);
  int count = d.take_one({"x1", "x2", "x4"});
  if (count < 0) return false;
  m.matrices = 1u << count;
  m.transpose = d.take("trans");
  m.space =
      d.take_one({"shared", "shared::cta"}) >= 0 ? AddressSpace::shared_cta : AddressSpace::generic;
  if (!take_element(d, is_load, m)) return false;
  unsigned at = is_load ? 0 : 1;
  auto& registers = d.operand(at);
  unsigned given = registers.kind == ptx::Operand::Kind::vector ? registers.count : 1;
  if (given != m.registers()) {
    throw BadOperand{format("%u registers are needed", m.registers())};
  }
  d.make_refs(4);
  if (m.shape == MatrixShape::m8n8) {
    d.out.handler = is_load ? load_matrix : store_matrix;
  } else {
    d.out.handler = is_load ? load_byte_matrix : store_byte_matrix;
  }
  return true;
}

Step move_matrix(Warp& w, const Instr& i, uint32_t lanes) {
  if (lanes != w.live) return wait_for_lanes(w);
  require_full_warp("movmatrix", lanes);
  const uint32_t* a = w.lanes<uint32_t>(i.a);
  Tile tile;
  for (uint32_t l = 0; l < kLanes; ++l) place_fragment(tile, l, false, a[l]);
  write_lanes<uint32_t>(w, i.d, lanes, [&](uint32_t l) { return fragment(tile, l, true); });
  return Step::next;
}

bool decode_movmatrix(Decoder& d) {
  if (!d.take("sync") || !d.take("aligned") || !d.take("m8n8") || !d.take("trans") ||
      !d.take("b16")) {
    return false;
  }
  d.out.d = d.dest(0, 4);
  d.out.a = d.source(1, 4);
  d.out.handler = move_matrix;
  return true;
}

}  // namespace

const OpcodeList& matrix_opcodes() {
  static const OpcodeList list{{"ldmatrix", decode_matrix_access},
                               {"stmatrix", decode_matrix_access},
                               {"movmatrix", decode_movmatrix}};
  return list;
}

}  // namespace vgpu::exec
