// SPDX-License-Identifier: Apache-2.0
#include "tensor/tcgen05_scaled_mma.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "fault.hpp"
#include "tensor/number_formats.hpp"
#include "tensor/panel_product.hpp"
#include "tensor/sparsity.hpp"
#include "tensor/tcgen05_mma.hpp"

namespace vgpu::tensor {
namespace {

constexpr uint32_t kMaxN = 256, kMaxK = 128, kMaxRows = 128, kMaxScales = 4;
constexpr uint32_t kPartitions = 4, kPartitionLanes = 32;
constexpr uint32_t kOperandBytes = 32;   // K in bytes, of any dense kind
constexpr uint32_t kOperandColumns = 8;  // TMEM columns of A in TMEM
constexpr uint32_t kMetadataColumns = 2;

[[noreturn]] void refuse(ScaledMmaKind kind, uint32_t bits, const std::string& what) {
  fault(kIllegalInstruction, "tcgen05.mma kind::%s: instruction descriptor 0x%08x: %s",
        name_of(kind), bits, what.c_str());
}

/// Two e2m1 elements a byte, without padding.
bool is_packed(ScaledMmaKind kind) {
  return kind != ScaledMmaKind::mxf8f6f4;
}

uint32_t depth_of(ScaledMmaKind kind) {
  return is_packed(kind) ? 64 : 32;
}

ElementType decode_element(ScaledMmaKind kind, uint32_t bits, const char* operand, uint32_t code) {
  if (is_packed(kind)) {
    if (code == 1) return ElementType::e2m1;
    refuse(kind, bits, format("%s type is %u; legal: 1 (e2m1)", operand, code));
  }
  if (auto type = f8f6f4_type(code)) return *type;
  refuse(kind, bits, format("%s type is %u; legal: %s", operand, code, kF8f6f4Types));
}

uint32_t decode_scale_id(ScaledMmaKind kind, uint32_t scales, uint32_t bits, const char* field,
                         uint32_t id) {
  // A row's scales are adjacent bytes of one cell, aligned to their number.
  if (id % scales == 0) return id;
  refuse(kind, bits,
         format("%s is %u; legal with .scale_vec::%uX: %s", field, id, scales,
                scales == 2 ? "0, 2" : "0"));
}

float decode_scale(ScaleType type, uint8_t bits) {
  return type == ScaleType::ue8m0 ? decode(kUe8m0, bits) : e4m3_to_f32(bits & 0x7f);
}

class ScaledRun {
 public:
  ScaledRun(const Tcgen05ScaledMma& mma, const ScaledMmaDescriptor& instruction,
            std::span<const CtaMemory> ctas, AccessVisitor* visitor)
      : mma_(mma),
        instruction_(instruction),
        path_(data_path(instruction.m, instruction.n, mma.cta_group, 0)),
        ctas_(ctas),
        visitor_(visitor),
        stored_(depth_of(mma.kind)),
        depth_(mma.sparse ? 2 * stored_ : stored_),
        block_(depth_ / mma.scales) {}

  void run() {
    for (uint32_t cta = 0; cta < ctas_.size(); ++cta) check_tmem(cta);
    read_b();
    for (uint32_t cta = 0; cta < ctas_.size(); ++cta) run_cta(cta);
  }

 private:
  static TmemAddress scale_address(uint32_t bits) { return TmemAddress::from(bits & 0x3fffffff); }
  static uint32_t scale_columns(uint32_t rows) {
    return (rows + kPartitionLanes - 1) / kPartitionLanes;
  }

  void touch(uint32_t cta, const char* what, uint32_t lane, uint32_t lanes, uint32_t column,
             uint32_t columns) const {
    ctas_[cta].tmem->check(what, lane, lanes, column, columns);
    if (visitor_) visitor_->tmem(cta, lane, lanes, column, columns, false);
  }

  void check_scales(uint32_t cta, const char* what, uint32_t bits, uint32_t rows) const {
    const TmemAddress at = scale_address(bits);
    if (at.lane != 0) {
      fault(
          kNotSupported,
          "tcgen05.mma: TMEM address 0x%08x of %s has lane %u; scales start at lane 0, with a copy "
          "in each group of 32 lanes",
          bits, what, at.lane);
    }
    for (uint32_t partition = 0; partition < kPartitions; ++partition) {
      touch(cta, what, partition * kPartitionLanes, std::min(rows, kPartitionLanes), at.column,
            scale_columns(rows));
    }
  }

  void check_tmem(uint32_t cta) const {
    const auto d = TmemAddress::from(mma_.d_address);
    ctas_[cta].tmem->check("tcgen05.mma D", 0, kTmemLanes, d.column, path_.columns);
    if (visitor_ && mma_.accumulate) {
      visitor_->tmem(cta, 0, kTmemLanes, d.column, path_.columns, false);
    }
    if (mma_.a_in_tmem) {
      touch(cta, "tcgen05.mma A", 0, kTmemLanes,
            TmemAddress::from(static_cast<uint32_t>(mma_.a)).column, kOperandColumns);
    }
    if (mma_.sparse) {
      touch(cta, "tcgen05.mma sparsity metadata", 0, kTmemLanes,
            TmemAddress::from(mma_.sp_meta_address).column, kMetadataColumns);
    }
    check_scales(cta, "scale-A", mma_.scale_a, path_.rows);
    check_scales(cta, "scale-B", mma_.scale_b, path_.columns);
  }

  /// Reads an operand of `depth` elements along K in shared memory: element (i, k) goes to
  /// panel[i * mn_stride + k * k_stride].
  void read_shared(const char* name, uint64_t descriptor, Major major, ElementType type,
                   bool negate, uint32_t count, uint32_t depth, uint32_t cta, float* panel,
                   uint32_t mn_stride, uint32_t k_stride) const {
    const uint32_t k_bytes = kOperandBytes * depth / stored_;
    SmemOperand operand{.descriptor = decode_mma_operand(name, descriptor, major, type),
                        .major = major,
                        .type = type,
                        .mn = count,
                        .negate = negate,
                        .k_bytes = k_bytes};
    if (!is_packed(mma_.kind)) {
      read_operand(operand, ctas_[cta].shared, cta, visitor_, panel, mn_stride, k_stride);
      return;
    }
    int32_t bytes[kMaxN * 2 * kOperandBytes];
    operand.type = ElementType::u8;
    operand.negate = false;
    read_operand(operand, ctas_[cta].shared, cta, visitor_, bytes, k_bytes, 1);
    for (uint32_t i = 0; i < count; ++i) {
      for (uint32_t k = 0; k < depth; ++k) {
        const auto byte = static_cast<uint32_t>(bytes[i * k_bytes + k / 2]);
        const float value = decode(kE2m1, byte >> k % 2 * 4 & 0xf);
        panel[i * mn_stride + k * k_stride] = negate ? -value : value;
      }
    }
  }

  /// Each CTA of a pair holds half of B's columns.
  void read_b() {
    const auto count = static_cast<uint32_t>(ctas_.size());
    const uint32_t columns = instruction_.n / count;
    for (uint32_t cta = 0; cta < count; ++cta) {
      read_shared("B", mma_.b_descriptor, instruction_.b_major, instruction_.b,
                  instruction_.negate_b, columns, depth_, cta, b_panel_ + cta * columns, 1,
                  instruction_.n);
    }
  }

  /// A in TMEM, e4m3 or e5m2: each row is 8 columns of four elements, low bits first.
  void read_a_tmem(uint32_t cta, uint32_t n) {
    const uint32_t column = TmemAddress::from(static_cast<uint32_t>(mma_.a)).column;
    for (uint32_t row = 0; row < path_.rows; ++row) {
      const uint32_t* cells = ctas_[cta].tmem->row(path_.lane_of(row, n)) + column;
      for (uint32_t k = 0; k < stored_; ++k) {
        const auto byte = static_cast<uint8_t>(cells[k / 4] >> k % 4 * 8);
        const float value =
            instruction_.a == ElementType::e4m3 ? e4m3_to_f32(byte) : e5m2_to_f32(byte);
        a_panel_[row * stored_ + k] = instruction_.negate_a ? -value : value;
      }
    }
  }

  /// Turns the stored half of A into whole rows, in place; the last row first, since rows grow.
  void expand_a(uint32_t cta) {
    if (!mma_.sparse) return;
    const uint32_t column = TmemAddress::from(mma_.sp_meta_address).column;
    for (uint32_t row = path_.rows; row-- > 0;) {
      float elements[kMaxK / 2];
      std::copy_n(a_panel_ + row * stored_, stored_, elements);
      expand_row("tcgen05.mma.sp", instruction_.a, row,
                 tcgen05_metadata(MmaKind::f8f6f4, *ctas_[cta].tmem, column, 0, row), elements,
                 stored_, a_panel_ + row * depth_, is_packed(mma_.kind) ? 2 : 1);
    }
  }

  float scale(uint32_t cta, uint32_t bits, uint32_t id, uint32_t partition, uint32_t row,
              uint32_t block) const {
    const TmemAddress at = scale_address(bits);
    const uint32_t lane = partition * kPartitionLanes + row % kPartitionLanes;
    const uint32_t cell = ctas_[cta].tmem->row(lane)[at.column + row / kPartitionLanes];
    return decode_scale(instruction_.scale_type, static_cast<uint8_t>(cell >> 8 * (id + block)));
  }

  void run_cta(uint32_t cta) {
    if (!mma_.a_in_tmem) {
      read_shared("A", mma_.a, instruction_.a_major, instruction_.a, instruction_.negate_a,
                  path_.rows, stored_, cta, a_panel_, stored_, 1);
      expand_a(cta);
    }
    for (uint32_t partition = 0; partition < kPartitions; ++partition) {
      for (uint32_t block = 0; block < mma_.scales; ++block) {
        for (uint32_t c = 0; c < path_.columns; ++c) {
          b_scales_[partition][block][c] =
              scale(cta, mma_.scale_b, instruction_.scale_b_id, partition, c, block);
        }
      }
    }
    for (uint32_t n = 0; n < instruction_.n; n += path_.columns) {
      if (mma_.a_in_tmem) {
        read_a_tmem(cta, n);
        expand_a(cta);
      }
      for (uint32_t row = 0; row < path_.rows; row += 4) run_rows(cta, row, n);
    }
    if (visitor_) {
      visitor_->tmem(cta, 0, kTmemLanes, TmemAddress::from(mma_.d_address).column, path_.columns,
                     true);
    }
  }

  /// Four rows of D, which are in one group of 32 lanes, for N columns [n, n + path.columns).
  void run_rows(uint32_t cta, uint32_t row, uint32_t n) {
    Tmem& tmem = *ctas_[cta].tmem;
    const uint32_t columns = path_.columns;
    const uint32_t column = TmemAddress::from(mma_.d_address).column;
    const uint32_t lane = path_.lane_of(row, n), partition = lane / kPartitionLanes;
    alignas(32) float sums[4][kMaxN], totals[4][kMaxN], a[4 * kMaxK];
    float* rows[4] = {sums[0], sums[1], sums[2], sums[3]};
    for (uint32_t r = 0; r < 4; ++r) {
      if (mma_.accumulate) {
        std::memcpy(totals[r], tmem.row(lane + r) + column, columns * sizeof(float));
      } else {
        std::memset(totals[r], 0, columns * sizeof(float));
      }
    }
    for (uint32_t block = 0; block < mma_.scales; ++block) {
      std::memset(sums, 0, sizeof sums);
      for (uint32_t r = 0; r < 4; ++r) {
        std::memcpy(a + r * block_, a_panel_ + (row + r) * depth_ + block * block_,
                    block_ * sizeof(float));
      }
      accumulate_panels(rows, a, b_panel_ + block * block_ * instruction_.n + n, 4, columns, block_,
                        instruction_.n);
      for (uint32_t r = 0; r < 4; ++r) {
        const double scale_a =
            scale(cta, mma_.scale_a, instruction_.scale_a_id, partition, row + r, block);
        for (uint32_t c = 0; c < columns; ++c) {
          totals[r][c] = static_cast<float>(
              totals[r][c] + sums[r][c] * scale_a * double{b_scales_[partition][block][c]});
        }
      }
    }
    for (uint32_t r = 0; r < 4; ++r) {
      std::memcpy(tmem.row(lane + r) + column, totals[r], columns * sizeof(float));
      tmem.mark_written(lane + r, 1, column, columns);
    }
  }

  const Tcgen05ScaledMma& mma_;
  const ScaledMmaDescriptor& instruction_;
  const DataPath path_;
  std::span<const CtaMemory> ctas_;
  AccessVisitor* visitor_;
  uint32_t stored_;  ///< of A's K, in elements
  uint32_t depth_;   ///< K in elements
  uint32_t block_;   ///< elements along K with one scale
  alignas(32) float a_panel_[kMaxRows * kMaxK];
  alignas(32) float b_panel_[kMaxK * kMaxN];
  float b_scales_[kPartitions][kMaxScales][kMaxN];
};

void check_addresses(const Tcgen05ScaledMma& mma, const ScaledMmaDescriptor& instruction) {
  const uint32_t d_lane = TmemAddress::from(mma.d_address).lane;
  if (d_lane != 0) {
    fault(kIllegalAddress,
          "tcgen05.mma kind::%s: D's TMEM address 0x%08x has lane %u; it must be 0",
          name_of(mma.kind), mma.d_address, d_lane);
  }
  if (!mma.a_in_tmem) return;
  const auto a = TmemAddress::from(static_cast<uint32_t>(mma.a));
  if (a.lane != 0) {
    fault(kIllegalAddress,
          "tcgen05.mma kind::%s: A's TMEM address 0x%08x has lane %u; it must be 0",
          name_of(mma.kind), a.bits(), a.lane);
  }
  if (instruction.a_major == Major::mn) {
    fault(kIllegalInstruction, "tcgen05.mma: A in TMEM cannot be transposed (bit 15)");
  }
  if (instruction.a != ElementType::e4m3 && instruction.a != ElementType::e5m2) {
    fault(kNotSupported,
          "tcgen05.mma kind::%s with A in TMEM: type %s is not supported (its packing in TMEM is "
          "not proven); supported: e4m3, e5m2",
          name_of(mma.kind), name_of(instruction.a));
  }
}

}  // namespace

const char* name_of(ScaledMmaKind kind) {
  switch (kind) {
    case ScaledMmaKind::mxf8f6f4:
      return "mxf8f6f4";
    case ScaledMmaKind::mxf4:
      return "mxf4";
    case ScaledMmaKind::mxf4nvf4:
      return "mxf4nvf4";
  }
  return "?";
}

bool has_scales(ScaledMmaKind kind, uint32_t scales) {
  switch (kind) {
    case ScaledMmaKind::mxf8f6f4:
      return scales == 1;
    case ScaledMmaKind::mxf4:
      return scales == 2;
    case ScaledMmaKind::mxf4nvf4:
      return scales == 2 || scales == 4;
  }
  return false;
}

ScaledMmaDescriptor decode_scaled_mma(ScaledMmaKind kind, uint32_t scales, uint32_t bits,
                                      int cta_group, bool sparse) {
  auto get = [bits](int low, int width) { return bits >> low & ((1u << width) - 1); };
  if (get(2, 1) != uint32_t{sparse}) {
    refuse(kind, bits,
           sparse ? "bit 2 (sparsity) must be 1 for tcgen05.mma.sp"
                  : "bit 2 asks for sparsity; use tcgen05.mma.sp");
  }
  for (auto [low, width] : {std::pair{0, 2}, {3, 1}, {6, 1}, {24, 3}}) {
    if (get(low, width)) {
      refuse(kind, bits, format("reserved bits %d-%d must be 0", low, low + width - 1));
    }
  }
  if (get(31, 1)) {
    refuse(kind, bits,
           is_packed(kind) ? "bit 31 asks for K = 96, which sm_100a does not have"
                           : "reserved bit 31 must be 0");
  }
  ScaledMmaDescriptor instruction;
  instruction.a = decode_element(kind, bits, "A (bits 7-9)", get(7, 3));
  if (is_packed(kind) && get(12, 1)) refuse(kind, bits, "reserved bit 12 must be 0");
  instruction.b = decode_element(kind, bits, "B (bits 10-12)", get(10, 3));
  instruction.scale_b_id =
      decode_scale_id(kind, scales, bits, "scale-B data ID (bits 4-5)", get(4, 2));
  instruction.scale_a_id =
      decode_scale_id(kind, scales, bits, "scale-A data ID (bits 29-30)", get(29, 2));
  instruction.negate_a = get(13, 1);
  instruction.negate_b = get(14, 1);
  instruction.a_major = get(15, 1) ? Major::mn : Major::k;
  instruction.b_major = get(16, 1) ? Major::mn : Major::k;
  auto check_major = [&](const char* operand, Major major, ElementType type) {
    if (major == Major::mn && type != ElementType::e4m3 && type != ElementType::e5m2) {
      refuse(kind, bits, format("%s is MN-major, which %s does not have", operand, name_of(type)));
    }
  };
  check_major("A", instruction.a_major, instruction.a);
  check_major("B", instruction.b_major, instruction.b);
  instruction.scale_type = get(23, 1) ? ScaleType::ue8m0 : ScaleType::ue4m3;
  const bool may_be_ue4m3 = kind == ScaledMmaKind::mxf4nvf4 && scales == 4;
  if (instruction.scale_type == ScaleType::ue4m3 && !may_be_ue4m3) {
    refuse(
        kind, bits,
        format("scale type (bit 23) is 0 (ue4m3); legal with .scale_vec::%uX: 1 (ue8m0)", scales));
  }
  instruction.n = get(17, 6) * 8;
  instruction.m = get(27, 2) * 128;
  if (instruction.m != 128 && !(cta_group == 2 && instruction.m == 256)) {
    refuse(kind, bits,
           format("M (bits 27-28, times 128) is %u; legal with cta_group::%d: %s", instruction.m,
                  cta_group, cta_group == 1 ? "128" : "128, 256"));
  }
  const uint32_t step = cta_group == 1 ? 8 : 16;
  if (instruction.n < step || instruction.n > 256 || instruction.n % step != 0) {
    refuse(kind, bits,
           format("N (bits 17-22, times 8) is %u; legal with cta_group::%d: %u..256 by %u",
                  instruction.n, cta_group, step, step));
  }
  if (instruction.b_major == Major::mn && instruction.n % (2 * step) != 0) {
    refuse(kind, bits,
           format("N is %u with a transposed B of 8-bit elements; legal with cta_group::%d: "
                  "multiples of %u",
                  instruction.n, cta_group, 2 * step));
  }
  return instruction;
}

void tcgen05_scaled_mma(const Tcgen05ScaledMma& mma, std::span<const CtaMemory> ctas,
                        AccessVisitor* visitor) {
  ScaledMmaDescriptor instruction = decode_scaled_mma(
      mma.kind, mma.scales, mma.instruction_descriptor, mma.cta_group, mma.sparse);
  check_addresses(mma, instruction);
  if (mma.sparse) check_metadata(instruction.m, mma.cta_group, mma.sp_meta_address);
  ScaledRun(mma, instruction, ctas, visitor).run();
}

uint64_t scaled_mma_macs(const Tcgen05ScaledMma& mma) {
  ScaledMmaDescriptor instruction = decode_scaled_mma(
      mma.kind, mma.scales, mma.instruction_descriptor, mma.cta_group, mma.sparse);
  return uint64_t{instruction.m} * instruction.n * depth_of(mma.kind);
}

}  // namespace vgpu::tensor
