// SPDX-License-Identifier: Apache-2.0
#include "tensor/tcgen05_mma.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "fault.hpp"
#include "tensor/number_formats.hpp"
#include "tensor/panel_product.hpp"
#include "tensor/sparsity.hpp"

namespace vgpu::tensor {
namespace {

constexpr uint32_t kMaxN = 256, kMaxK = 64, kMaxRows = 128;
constexpr uint32_t kOperandColumns = 8;  // TMEM columns of A in TMEM: 32 bytes a row
constexpr uint32_t kMetadataColumns = 2;

[[noreturn]] void refuse(MmaKind kind, uint32_t bits, const std::string& what) {
  fault(kIllegalInstruction, "tcgen05.mma kind::%s: instruction descriptor 0x%08x: %s",
        name_of(kind), bits, what.c_str());
}

ElementType decode_element(MmaKind kind, uint32_t bits, const char* operand, uint32_t code) {
  switch (kind) {
    case MmaKind::f16:
      if (code == 0) return ElementType::f16;
      if (code == 1) return ElementType::bf16;
      refuse(kind, bits, format("%s type is %u; legal: 0 (f16), 1 (bf16)", operand, code));
    case MmaKind::tf32:
      if (code == 2) return ElementType::tf32;
      refuse(kind, bits, format("%s type is %u; legal: 2 (tf32)", operand, code));
    case MmaKind::f8f6f4:
      if (auto type = f8f6f4_type(code)) return *type;
      refuse(kind, bits, format("%s type is %u; legal: %s", operand, code, kF8f6f4Types));
    case MmaKind::i8:
      if (code == 0) return ElementType::u8;
      if (code == 1) return ElementType::s8;
      refuse(kind, bits, format("%s type is %u; legal: 0 (u8), 1 (s8)", operand, code));
  }
  refuse(kind, bits, "unknown kind");
}

AccumulatorType decode_accumulator(MmaKind kind, uint32_t bits, uint32_t code) {
  switch (kind) {
    case MmaKind::f16:
    case MmaKind::f8f6f4:
      if (code == 0) return AccumulatorType::f16;
      if (code == 1) return AccumulatorType::f32;
      refuse(kind, bits, format("D type (bits 4-5) is %u; legal: 0 (f16), 1 (f32)", code));
    case MmaKind::tf32:
      if (code == 1) return AccumulatorType::f32;
      refuse(kind, bits, format("D type (bits 4-5) is %u; legal: 1 (f32)", code));
    case MmaKind::i8:
      if (code == 2) return AccumulatorType::s32;
      refuse(kind, bits, format("D type (bits 4-5) is %u; legal: 2 (s32)", code));
  }
  refuse(kind, bits, "unknown kind");
}

void check_ws_shape(MmaKind kind, uint32_t bits, uint32_t m, uint32_t n) {
  if (m != 32 && m != 64 && m != 128) {
    refuse(kind, bits, format("M (bits 24-28, times 16) is %u; legal with .ws: 32, 64, 128", m));
  }
  if (n != 64 && n != 128 && n != 256) {
    refuse(kind, bits, format("N (bits 17-22, times 8) is %u; legal with .ws: 64, 128, 256", n));
  }
}

void check_shape(MmaKind kind, uint32_t bits, uint32_t m, uint32_t n, int cta_group) {
  const bool integer = kind == MmaKind::i8;
  const uint32_t small = cta_group == 1 ? 64 : 128, large = 2 * small;
  if (m != small && m != large) {
    refuse(kind, bits,
           format("M (bits 24-28, times 16) is %u; legal with cta_group::%d: %u, %u", m, cta_group,
                  small, large));
  }
  bool exists;
  const char* legal;
  if (cta_group == 1) {
    exists = n >= 8 && n <= 256 && n % 8 == 0 && !(integer && n > 32 && n % 16 != 0);
    legal = integer ? "8, 16, 24, 32, then 48..256 by 16" : "8..256 by 8";
  } else {
    uint32_t step = integer ? 32 : 16;
    exists = n >= step && n <= 256 && n % step == 0;
    legal = integer ? "32..256 by 32" : "16..256 by 16";
  }
  if (!exists) {
    refuse(
        kind, bits,
        format("N (bits 17-22, times 8) is %u; legal with cta_group::%d: %s", n, cta_group, legal));
  }
}

/// MN-major matrices exist for 8-bit and wider elements.
void check_major(MmaKind kind, uint32_t bits, const char* operand, Major major, ElementType type) {
  bool narrow = type == ElementType::e2m3 || type == ElementType::e3m2 || type == ElementType::e2m1;
  if (major == Major::mn && narrow) {
    refuse(kind, bits, format("%s is MN-major, which %s does not have", operand, name_of(type)));
  }
}

}  // namespace

std::optional<ElementType> f8f6f4_type(uint32_t code) {
  switch (code) {
    case 0:
      return ElementType::e4m3;
    case 1:
      return ElementType::e5m2;
    case 3:
      return ElementType::e2m3;
    case 4:
      return ElementType::e3m2;
    case 5:
      return ElementType::e2m1;
    default:
      return std::nullopt;
  }
}

SmemDescriptor decode_mma_operand(const char* operand, uint64_t bits, Major major,
                                  ElementType type) {
  SmemDescriptor descriptor = decode_tcgen05_descriptor(bits);
  bool atom32 = descriptor.swizzle == Swizzle::b128_atom32;
  // NOTE: 32-byte atoms exist to transpose 32-bit elements (PTX ISA "Canonical layouts"); other
  // uses are not proven.
  if (atom32 && !(major == Major::mn && type == ElementType::tf32)) {
    fault(kNotSupported,
          "tcgen05.mma: %s has swizzle mode 1 (128B with 32B atoms) but is a %s-major %s matrix; "
          "supported for MN-major tf32 only",
          operand, major == Major::k ? "K" : "MN", name_of(type));
  }
  if (!atom32 && major == Major::mn && type == ElementType::tf32) {
    fault(
        kNotSupported,
        "tcgen05.mma: %s is an MN-major tf32 matrix with swizzle %s; supported: mode 1 (128B with "
        "32B atoms)",
        operand, name_of(descriptor.swizzle));
  }
  return descriptor;
}

namespace {

template <typename Value>
Value widen_byte(ElementType type, uint8_t byte) {
  if constexpr (std::is_same_v<Value, int32_t>) {
    return type == ElementType::s8 ? static_cast<int8_t>(byte) : byte;
  } else {
    return type == ElementType::e4m3 ? e4m3_to_f32(byte) : e5m2_to_f32(byte);
  }
}

/// A in TMEM: each row is 8 columns of packed elements, low bits first.
template <typename Value>
void read_tmem_operand(const MmaInstructionDescriptor& instruction, const Tmem& tmem,
                       const DataPath& path, uint32_t column, uint32_t n, uint32_t depth,
                       Value* panel) {
  for (uint32_t row = 0; row < path.rows; ++row) {
    const uint32_t* cells = tmem.row(path.lane_of(row, n)) + column;
    Value* out = panel + row * depth;
    for (uint32_t c = 0; c < kOperandColumns; ++c) {
      uint32_t cell = cells[c];
      if constexpr (std::is_same_v<Value, float>) {
        switch (instruction.a) {
          case ElementType::f16:
            *out++ = f16_to_f32(static_cast<uint16_t>(cell));
            *out++ = f16_to_f32(static_cast<uint16_t>(cell >> 16));
            continue;
          case ElementType::bf16:
            *out++ = bf16_to_f32(static_cast<uint16_t>(cell));
            *out++ = bf16_to_f32(static_cast<uint16_t>(cell >> 16));
            continue;
          case ElementType::tf32:
            *out++ = tf32_operand(cell);
            continue;
          default:
            break;
        }
      }
      for (uint32_t byte = 0; byte < 4; ++byte) {
        *out++ = widen_byte<Value>(instruction.a, static_cast<uint8_t>(cell >> 8 * byte));
      }
    }
  }
  if (instruction.negate_a) {
    for (uint32_t i = 0; i < path.rows * depth; ++i) panel[i] = -panel[i];
  }
}

/// Groups of adjacent lanes that hold rows of a CTA's D, for range checks.
struct LaneGroup {
  uint32_t lane, lanes;
};
std::vector<LaneGroup> lane_groups(const DataPath& path) {
  if (!path.scattered) return {{0, kTmemLanes}};
  std::vector<LaneGroup> groups;
  for (uint32_t quarter = 0; quarter < 4; ++quarter) {
    groups.push_back({quarter * 32 + path.first_lane, 16});
  }
  return groups;
}

template <typename Value>
class MmaRun {
 public:
  MmaRun(const Tcgen05Mma& mma, const MmaInstructionDescriptor& instruction, const DataPath& path,
         std::span<const CtaMemory> ctas, AccessVisitor* visitor)
      : mma_(mma),
        instruction_(instruction),
        path_(path),
        ctas_(ctas),
        visitor_(visitor),
        stored_(wgmma_k(instruction.a)),
        depth_(mma.sparse ? 2 * stored_ : stored_) {}

  void run() {
    check_tmem();
    read_b();
    for (uint32_t cta = 0; cta < ctas_.size(); ++cta) run_cta(cta);
  }

 private:
  void check_tmem() const {
    const uint32_t column = TmemAddress::from(mma_.d_address).column;
    const auto a_address = TmemAddress::from(static_cast<uint32_t>(mma_.a));
    for (uint32_t cta = 0; cta < ctas_.size(); ++cta) {
      for (LaneGroup group : lane_groups(path_)) {
        const Tmem& tmem = *ctas_[cta].tmem;
        tmem.check("tcgen05.mma D", group.lane, group.lanes, column, path_.columns);
        if (mma_.a_in_tmem) {
          tmem.check("tcgen05.mma A", group.lane, group.lanes, a_address.column, kOperandColumns);
          if (visitor_) {
            visitor_->tmem(cta, group.lane, group.lanes, a_address.column, kOperandColumns, false);
          }
        }
        if (mma_.sparse) {
          const auto [column_of, columns] = metadata_columns();
          tmem.check("tcgen05.mma sparsity metadata", group.lane, group.lanes, column_of, columns);
          if (visitor_) visitor_->tmem(cta, group.lane, group.lanes, column_of, columns, false);
        }
        if (visitor_ && mma_.accumulate) {
          visitor_->tmem(cta, group.lane, group.lanes, column, path_.columns, false);
        }
      }
    }
  }

  /// Each CTA of a pair holds half of B's columns.
  void read_b() {
    const auto count = static_cast<uint32_t>(ctas_.size());
    SmemOperand b{.descriptor = decode_mma_operand("B", mma_.b_descriptor, instruction_.b_major,
                                                   instruction_.b),
                  .major = instruction_.b_major,
                  .type = instruction_.b,
                  .mn = instruction_.n / count,
                  .negate = instruction_.negate_b,
                  .k_bytes = mma_.sparse ? 64u : 32u};
    for (uint32_t cta = 0; cta < count; ++cta) {
      read_operand(b, ctas_[cta].shared, cta, visitor_, b_panel_ + cta * b.mn, 1, instruction_.n);
    }
  }

  void run_cta(uint32_t cta) {
    if (!mma_.a_in_tmem) {
      SmemOperand a{
          .descriptor = decode_mma_operand("A", mma_.a, instruction_.a_major, instruction_.a),
          .major = instruction_.a_major,
          .type = instruction_.a,
          .mn = path_.rows,
          .negate = instruction_.negate_a};
      read_operand(a, ctas_[cta].shared, cta, visitor_, a_panel_, stored_, 1);
      if (mma_.sparse) expand_a(cta);
    }
    // Layouts B, E and G hold parts of N in different lanes (B: each next to its own copy of A).
    for (uint32_t n = 0; n < instruction_.n; n += path_.columns) {
      if (mma_.a_in_tmem) {
        read_tmem_operand(instruction_, *ctas_[cta].tmem, path_,
                          TmemAddress::from(static_cast<uint32_t>(mma_.a)).column, n, stored_,
                          a_panel_);
        if (mma_.sparse) expand_a(cta);
      }
      run_columns(cta, n);
    }
    if (!visitor_) return;
    const uint32_t column = TmemAddress::from(mma_.d_address).column;
    for (LaneGroup group : lane_groups(path_)) {
      visitor_->tmem(cta, group.lane, group.lanes, column, path_.columns, true);
    }
  }

  struct Columns {
    uint32_t first, count;
  };
  /// The metadata that the instruction reads: one of two columns, or both.
  Columns metadata_columns() const {
    const uint32_t column = TmemAddress::from(mma_.sp_meta_address).column;
    if (container_bytes(instruction_.a) == 1) return {column, kMetadataColumns};
    return {column + instruction_.sparsity_selector, 1};
  }

  /// Turns the stored half of A into whole rows, in place; the last row first, since rows grow.
  void expand_a(uint32_t cta) {
    const uint32_t column = TmemAddress::from(mma_.sp_meta_address).column;
    for (uint32_t row = path_.rows; row-- > 0;) {
      Value elements[kMaxK / 2];
      std::copy_n(a_panel_ + row * stored_, stored_, elements);
      expand_row("tcgen05.mma.sp", instruction_.a, row,
                 tcgen05_metadata(mma_.kind, *ctas_[cta].tmem, column,
                                  instruction_.sparsity_selector, row),
                 elements, stored_, a_panel_ + row * depth_);
    }
  }

  bool lane_enabled(uint32_t cta, uint32_t lane) const {
    return !(mma_.disable_output_lane[cta * 4 + lane / 32] >> lane % 32 & 1);
  }

  /// All rows of D for N columns [n, n + path.columns), four rows at a time.
  void run_columns(uint32_t cta, uint32_t n) {
    Tmem& tmem = *ctas_[cta].tmem;
    const uint32_t columns = path_.columns;
    const uint32_t column = TmemAddress::from(mma_.d_address).column;
    alignas(32) Value sums[4][kMaxN];
    Value* rows[4] = {sums[0], sums[1], sums[2], sums[3]};
    for (uint32_t row = 0; row < path_.rows; row += 4) {
      for (uint32_t r = 0; r < 4; ++r) {
        load_row(tmem.row(path_.lane_of(row + r, n)) + column, sums[r]);
      }
      if constexpr (std::is_same_v<Value, float>) {
        accumulate_panels(rows, a_panel_ + row * depth_, b_panel_ + n, 4, columns, depth_,
                          instruction_.n);
      } else {
        accumulate_panels(rows, a_panel_ + row * depth_, b_panel_ + n, 4, columns, depth_,
                          instruction_.n, instruction_.saturate);
      }
      for (uint32_t r = 0; r < 4; ++r) {
        uint32_t lane = path_.lane_of(row + r, n);
        if (!lane_enabled(cta, lane)) continue;
        store_row(sums[r], tmem.row(lane) + column);
        tmem.mark_written(lane, 1, column, columns);
      }
    }
  }

  void load_row(const uint32_t* cells, Value* sums) const {
    const uint32_t columns = path_.columns;
    if (!mma_.accumulate) {
      std::memset(sums, 0, columns * sizeof(Value));
      return;
    }
    if constexpr (std::is_same_v<Value, float>) {
      if (instruction_.d == AccumulatorType::f16) {
        for (uint32_t c = 0; c < columns; ++c) {
          sums[c] = f16_to_f32(static_cast<uint16_t>(cells[c]));
        }
      } else {
        std::memcpy(sums, cells, columns * sizeof(float));
      }
      if (mma_.scale_input_d != 0) {
        const float scale = std::ldexp(1.0f, -static_cast<int>(mma_.scale_input_d));
        for (uint32_t c = 0; c < columns; ++c) sums[c] *= scale;
      }
    } else {
      std::memcpy(sums, cells, columns * sizeof(Value));
    }
  }

  /// A half accumulator takes a whole 32-bit cell, in its low 16 bits.
  void store_row(const Value* sums, uint32_t* cells) const {
    if constexpr (std::is_same_v<Value, float>) {
      if (instruction_.d == AccumulatorType::f16) {
        for (uint32_t c = 0; c < path_.columns; ++c) cells[c] = f32_to_f16(sums[c]);
        return;
      }
    }
    std::memcpy(cells, sums, path_.columns * sizeof(Value));
  }

  const Tcgen05Mma& mma_;
  const MmaInstructionDescriptor& instruction_;
  const DataPath& path_;
  std::span<const CtaMemory> ctas_;
  AccessVisitor* visitor_;
  uint32_t stored_;  // what a row of A stores, in elements
  uint32_t depth_;   // K in elements
  alignas(32) Value a_panel_[kMaxRows * kMaxK];
  alignas(32) Value b_panel_[kMaxK * kMaxN];
};

/// Where D must start: only M = 64 of one CTA may use the upper 16 lanes of each group of 32.
void check_lanes(const Tcgen05Mma& mma, const MmaInstructionDescriptor& instruction) {
  const uint32_t d_lane = TmemAddress::from(mma.d_address).lane;
  const bool half = mma.cta_group == 1 && instruction.m == 64 && !mma.weight_stationary;
  if (d_lane != 0 && !(half && d_lane == 16)) {
    fault(
        kIllegalAddress,
        "tcgen05.mma: D's TMEM address 0x%08x has lane %u; legal for M = %u with cta_group::%d: %s",
        mma.d_address, d_lane, instruction.m, mma.cta_group, half ? "0, 16" : "0");
  }
  if (!mma.a_in_tmem) return;
  if (mma.weight_stationary && instruction.m != 128) {
    fault(
        kNotSupported,
        "tcgen05.mma.ws with A in TMEM and M = %u is not supported (the lanes of A's rows are not "
        "proven); supported: M = 128, or A in shared memory",
        instruction.m);
  }
  const auto a = TmemAddress::from(static_cast<uint32_t>(mma.a));
  if (a.lane != d_lane) {
    fault(
        kIllegalAddress,
        "tcgen05.mma: A's TMEM address has lane %u, D's has %u; rows of A must be in the lanes of "
        "their rows of D",
        a.lane, d_lane);
  }
  if (instruction.a_major == Major::mn) {
    fault(kIllegalInstruction, "tcgen05.mma: A in TMEM cannot be transposed (bit 15)");
  }
  if (mma.kind == MmaKind::f8f6f4 && instruction.a != ElementType::e4m3 &&
      instruction.a != ElementType::e5m2) {
    fault(
        kNotSupported,
        "tcgen05.mma kind::f8f6f4 with A in TMEM: type %s is not supported (its packing in TMEM is "
        "not proven); supported: e4m3, e5m2",
        name_of(instruction.a));
  }
}

}  // namespace

const char* name_of(MmaKind kind) {
  switch (kind) {
    case MmaKind::f16:
      return "f16";
    case MmaKind::tf32:
      return "tf32";
    case MmaKind::f8f6f4:
      return "f8f6f4";
    case MmaKind::i8:
      return "i8";
  }
  return "?";
}

MmaInstructionDescriptor decode_mma_instruction(MmaKind kind, uint32_t bits, int cta_group,
                                                bool weight_stationary, bool sparse) {
  auto get = [bits](int low, int width) { return bits >> low & ((1u << width) - 1); };
  if (get(2, 1) != uint32_t{sparse}) {
    refuse(kind, bits,
           sparse ? "bit 2 (sparsity) must be 1 for tcgen05.mma.sp"
                  : "bit 2 asks for sparsity; use tcgen05.mma.sp");
  }
  if (!sparse && get(0, 2)) {
    refuse(kind, bits, "bits 0-1 (sparsity selector) must be 0 for dense A");
  }
  if (get(6, 1)) refuse(kind, bits, "reserved bit 6 must be 0");
  if (get(23, 1)) refuse(kind, bits, "reserved bit 23 must be 0");
  if (get(29, 1)) refuse(kind, bits, "reserved bit 29 must be 0");
  if (get(30, 2)) {
    refuse(kind, bits,
           weight_stationary ? "bits 30-31 (maximum shift) other than 0 are not supported"
                             : "bits 30-31 (maximum shift) must be 0 without .ws");
  }
  MmaInstructionDescriptor instruction;
  instruction.sparsity_selector = get(0, 2);
  const bool bytes = kind == MmaKind::f8f6f4 || kind == MmaKind::i8;
  if (instruction.sparsity_selector > (bytes ? 0 : 1)) {
    refuse(kind, bits,
           format("bits 0-1 (sparsity selector) are %u; legal: %s", instruction.sparsity_selector,
                  bytes ? "0" : "0, 1"));
  }
  instruction.saturate = get(3, 1);
  if (instruction.saturate && kind != MmaKind::i8) {
    refuse(kind, bits, "bit 3 (saturate) exists for kind::i8 only");
  }
  instruction.d = decode_accumulator(kind, bits, get(4, 2));
  instruction.a = decode_element(kind, bits, "A (bits 7-9)", get(7, 3));
  instruction.b = decode_element(kind, bits, "B (bits 10-12)", get(10, 3));
  if (kind == MmaKind::f16 && instruction.a != instruction.b) {
    refuse(kind, bits,
           format("A is %s and B is %s; they must be the same", name_of(instruction.a),
                  name_of(instruction.b)));
  }
  if (instruction.d == AccumulatorType::f16 && instruction.a == ElementType::bf16) {
    refuse(kind, bits, "D is f16 with bf16 operands; legal: f16 operands, or D f32");
  }
  instruction.negate_a = get(13, 1);
  instruction.negate_b = get(14, 1);
  if (kind == MmaKind::i8 && (instruction.negate_a || instruction.negate_b)) {
    refuse(kind, bits, "bits 13-14 (negate) must be 0 for kind::i8");
  }
  instruction.a_major = get(15, 1) ? Major::mn : Major::k;
  instruction.b_major = get(16, 1) ? Major::mn : Major::k;
  check_major(kind, bits, "A", instruction.a_major, instruction.a);
  check_major(kind, bits, "B", instruction.b_major, instruction.b);
  instruction.n = get(17, 6) * 8;
  instruction.m = get(24, 5) * 16;
  if (weight_stationary) {
    check_ws_shape(kind, bits, instruction.m, instruction.n);
  } else {
    check_shape(kind, bits, instruction.m, instruction.n, cta_group);
  }
  const uint32_t step = cta_group == 1 ? 16 : 32;
  if (instruction.b_major == Major::mn && container_bytes(instruction.b) == 1 &&
      instruction.n % step != 0) {
    refuse(kind, bits,
           format("N is %u with a transposed B of 8-bit elements; legal with cta_group::%d: "
                  "multiples of %u",
                  instruction.n, cta_group, step));
  }
  return instruction;
}

// NOTE: the layouts of M = 64 and of a pair's M = 128 are drawn in figures 262, 264 and 266 of the
// PTX ISA, without words; CUTLASS's tmem_e_frg has 128 rows alone ("Only 128 implemented"). The
// selector picks one of two columns, so that they begin at an even one (CUTLASS clears the lowest
// bit of their address).
void check_metadata(uint32_t m, int cta_group, uint32_t address) {
  if (m != 128u * static_cast<uint32_t>(cta_group)) {
    fault(
        kNotSupported,
        "tcgen05.mma.sp with M = %u and cta_group::%d is not supported: where its metadata lie is "
        "drawn in a figure of the PTX ISA alone, without words (\"Sparsity selector\", figures of "
        "M = 64), and CUTLASS has no such layout either; supported: M = %d",
        m, cta_group, 128 * cta_group);
  }
  const auto at = TmemAddress::from(address);
  if (at.lane != 0 || at.column % kMetadataColumns != 0) {
    fault(
        kIllegalAddress,
        "tcgen05.mma.sp: the metadata's TMEM address 0x%08x has lane %u and column %u; legal: lane "
        "0 and an even column",
        address, at.lane, at.column);
  }
}

uint64_t tcgen05_metadata(MmaKind kind, const Tmem& tmem, uint32_t column, uint32_t selector,
                          uint32_t row) {
  if (kind == MmaKind::f8f6f4 || kind == MmaKind::i8) {
    const uint32_t* cells = tmem.row(row) + column;
    return uint64_t{cells[1]} << 32 | cells[0];
  }
  const uint32_t lane = row / 16 * 16 + row % 8, shift = row % 16 / 8 * 16;
  const uint32_t low = tmem.row(lane)[column + selector];
  const uint32_t high = tmem.row(lane + 8)[column + selector];
  return (low >> shift & 0xffff) | (high >> shift & 0xffff) << 16;
}

uint32_t DataPath::lane_of(uint32_t row, uint32_t n) const {
  if (scattered) return row / 16 * 32 + row % 16 + first_lane;
  return row + n / columns * fold_lanes;
}

DataPath data_path(uint32_t m, uint32_t n, int cta_group, uint32_t first_lane,
                   bool weight_stationary) {
  DataPath path;
  path.rows = m / static_cast<uint32_t>(cta_group);
  path.scattered = cta_group == 1 && m == 64 && !weight_stationary;
  const bool folded = (cta_group == 2 && m == 128) || (weight_stationary && m < 128);
  path.fold_lanes = folded ? path.rows : 0;
  path.columns = folded ? n * path.rows / kTmemLanes : n;
  path.first_lane = first_lane;
  return path;
}

void tcgen05_mma(const Tcgen05Mma& mma, std::span<const CtaMemory> ctas, AccessVisitor* visitor) {
  MmaInstructionDescriptor instruction = decode_mma_instruction(
      mma.kind, mma.instruction_descriptor, mma.cta_group, mma.weight_stationary, mma.sparse);
  check_lanes(mma, instruction);
  if (mma.sparse) check_metadata(instruction.m, mma.cta_group, mma.sp_meta_address);
  constexpr uint64_t kNonZeroMask = uint64_t{1} << 39, kColumnShift = uint64_t{63} << 56;
  if (mma.zero_column_mask & (kNonZeroMask | kColumnShift)) {
    fault(kNotSupported,
          "tcgen05.mma.ws: zero-column mask descriptor 0x%016llx masks or shifts columns, which is "
          "not supported; supported: bit 39 (non-zero mask) and bits 56-61 (column shift) 0",
          static_cast<unsigned long long>(mma.zero_column_mask));
  }
  if (mma.scale_input_d != 0 && mma.kind != MmaKind::f16 && mma.kind != MmaKind::tf32) {
    fault(kIllegalInstruction, "tcgen05.mma kind::%s has no scale-input-d", name_of(mma.kind));
  }
  DataPath path = data_path(instruction.m, instruction.n, mma.cta_group,
                            TmemAddress::from(mma.d_address).lane, mma.weight_stationary);
  if (mma.kind == MmaKind::i8) {
    MmaRun<int32_t>(mma, instruction, path, ctas, visitor).run();
  } else {
    MmaRun<float>(mma, instruction, path, ctas, visitor).run();
  }
}

uint64_t mma_macs(const Tcgen05Mma& mma) {
  MmaInstructionDescriptor instruction = decode_mma_instruction(
      mma.kind, mma.instruction_descriptor, mma.cta_group, mma.weight_stationary, mma.sparse);
  return uint64_t{instruction.m} * instruction.n * wgmma_k(instruction.a);
}

}  // namespace vgpu::tensor
