// SPDX-License-Identifier: Apache-2.0
// ldmatrix, stmatrix, movmatrix: 8x8 matrices of 16-bit elements spread over a warp. Source: PTX
// ISA 9.0, sections of those names.
#include "exec/decoder.hpp"
#include "exec/lanes.hpp"
#include "exec/memory_access.hpp"

namespace vgpu::exec {
namespace {

constexpr uint32_t kRows = 8, kColumns = 8;
using Tile = uint16_t[kRows][kColumns];

struct MatrixAccess {
  AddressSpace space = AddressSpace::shared_cta;
  uint32_t matrices = 1;
  bool transpose = false;
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

/// Row addresses: lanes 8 m .. 8 m + 7 give those of matrix m.
void row_pointers(Warp& w, const Ref& address, const MatrixAccess& m, Access access,
                  uint8_t** pointers) {
  uint64_t addresses[kLanes];
  read_addresses(w, address, addresses);
  uint32_t lanes = m.matrices == 4 ? kAllLanes : (1u << m.matrices * kRows) - 1;
  resolve(w, {m.space, 16, access, Order::weak, Scope::cta}, lanes, addresses, pointers);
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
    const Ref& d = i[0].kind == Ref::Kind::vector ? i[0][k] : i[0];
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
    const Ref& s = i[1].kind == Ref::Kind::vector ? i[1][k] : i[1];
    for (uint32_t l = 0; l < kLanes; ++l) {
      place_fragment(tile, l, m.transpose, static_cast<uint32_t>(read_lane(w, s, l)));
    }
    for (uint32_t r = 0; r < kRows; ++r) std::memcpy(pointers[k * kRows + r], tile[r], 16);
  }
  return Step::next;
}

bool decode_matrix_access(Decoder& d) {
  bool is_load = d.opcode() == "ldmatrix";
  auto& m = d.extra<MatrixAccess>();
  if (!d.take("sync") || !d.take("aligned") || !d.take("m8n8")) return false;
  int count = d.take_one({"x1", "x2", "x4"});
  if (count < 0) return false;
  m.matrices = 1u << count;
  m.transpose = d.take("trans");
  m.space =
      d.take_one({"shared", "shared::cta"}) >= 0 ? AddressSpace::shared_cta : AddressSpace::generic;
  if (!d.take("b16")) return false;
  unsigned at = is_load ? 0 : 1;
  auto& registers = d.operand(at);
  unsigned given = registers.kind == ptx::Operand::Kind::vector ? registers.count : 1;
  if (given != m.matrices) throw BadOperand{"the number of registers is not that of matrices"};
  d.make_refs(4);
  d.out.handler = is_load ? load_matrix : store_matrix;
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
