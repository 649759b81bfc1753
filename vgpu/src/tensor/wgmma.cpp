// SPDX-License-Identifier: Apache-2.0
#include "tensor/wgmma.hpp"

#include <bit>
#include <cstring>

#include "fault.hpp"
#include "tensor/number_formats.hpp"
#include "tensor/panel_product.hpp"
#include "tensor/sparsity.hpp"

namespace vgpu::tensor {
namespace {

constexpr uint32_t kRowsPerWarp = 16;
constexpr uint32_t kMaxN = 256, kMaxK = 64;

const char* name_of_accumulator(AccumulatorType type) {
  return type == AccumulatorType::f32 ? "f32" : type == AccumulatorType::f16 ? "f16" : "s32";
}

bool is_fp8(ElementType type) {
  return type == ElementType::e4m3 || type == ElementType::e5m2;
}

bool types_exist(const WgmmaInstruction& i) {
  using enum ElementType;
  if (is_integer(i.a)) return is_integer(i.b) && i.d == AccumulatorType::s32;
  if (i.d == AccumulatorType::s32) return false;
  if (is_fp8(i.a)) return is_fp8(i.b);
  if (i.a == f16) return i.b == f16;
  return (i.a == bf16 || i.a == tf32) && i.b == i.a && i.d == AccumulatorType::f32;
}

float widen(ElementType type, const uint8_t* bytes) {
  uint16_t half;
  uint32_t word;
  switch (type) {
    case ElementType::f16:
      std::memcpy(&half, bytes, 2);
      return f16_to_f32(half);
    case ElementType::bf16:
      std::memcpy(&half, bytes, 2);
      return bf16_to_f32(half);
    case ElementType::tf32:
      std::memcpy(&word, bytes, 4);
      return tf32_operand(word);
    case ElementType::e4m3:
      return e4m3_to_f32(*bytes);
    default:
      return e5m2_to_f32(*bytes);
  }
}

void widen_to(ElementType type, const uint8_t* bytes, float& value) {
  value = widen(type, bytes);
}
void widen_to(ElementType type, const uint8_t* bytes, int32_t& value) {
  value = type == ElementType::s8 ? static_cast<int8_t>(*bytes) : *bytes;
}

/// Puts a warp's A fragment into rows 0..15 of a panel of `depth` columns.
template <typename Value>
void read_a_registers(const WgmmaInstruction& instruction,
                      const std::array<const uint32_t*, kWgmmaARegisters>& registers,
                      uint32_t depth, Value* panel) {
  const uint32_t bytes = container_bytes(instruction.a);
  for (uint32_t reg = 0; reg < kWgmmaARegisters; ++reg) {
    for (uint32_t lane = 0; lane < 32; ++lane) {
      uint8_t word[4];
      std::memcpy(word, &registers[reg][lane], 4);
      for (uint32_t byte = 0; byte < 4; byte += bytes) {
        MatrixPosition at = wgmma_a_position(0, lane, reg * 4 + byte, bytes);
        Value value;
        widen_to(instruction.a, word + byte, value);
        panel[at.row * depth + at.column] = instruction.scale_a < 0 ? -value : value;
      }
    }
  }
}

uint32_t widened(uint32_t half) {
  return std::bit_cast<uint32_t>(f16_to_f32(static_cast<uint16_t>(half)));
}

/// Copies a warp's D fragment to or from 16 rows of n floats or integers: registers `reg` and
/// `reg` + 1 (reg even) of lane 4 r + c hold row r (+ 8), columns 2 c and 2 c + 1 of its 8 columns,
/// as wgmma_d_position() says; halves lie two a register.
template <bool STORE>
void move_d(const WgmmaInstruction& instruction, uint32_t* const* registers, uint32_t* rows) {
  const bool packed = instruction.d == AccumulatorType::f16;
  const uint32_t n = instruction.n;
  for (uint32_t reg = 0; reg < n / 2; reg += 2) {
    const MatrixPosition first = wgmma_d_position(0, 0, reg);
    uint32_t* corner = rows + first.row * n + first.column;
    uint32_t* low = registers[packed ? reg / 2 : reg];
    uint32_t* high = packed ? low : registers[reg + 1];
    for (uint32_t r = 0; r < 8; ++r) {
      // NOTE: by way of copies that nothing else names, so that compilers see whole vectors.
      uint32_t cells[8], left[4], right[4];
      if constexpr (STORE) {
        std::memcpy(cells, corner + r * n, sizeof cells);
        for (uint32_t c = 0; c < 4; ++c) {
          left[c] = cells[2 * c];
          right[c] = cells[2 * c + 1];
          if (!packed) continue;
          left[c] = f32_to_f16(std::bit_cast<float>(left[c])) |
                    uint32_t{f32_to_f16(std::bit_cast<float>(right[c]))} << 16;
        }
        std::memcpy(low + 4 * r, left, sizeof left);
        if (!packed) std::memcpy(high + 4 * r, right, sizeof right);
      } else {
        std::memcpy(left, low + 4 * r, sizeof left);
        std::memcpy(right, high + 4 * r, sizeof right);
        for (uint32_t c = 0; c < 4; ++c) {
          cells[2 * c] = packed ? widened(left[c]) : left[c];
          cells[2 * c + 1] = packed ? widened(right[c] >> 16) : right[c];
        }
        std::memcpy(corner + r * n, cells, sizeof cells);
      }
    }
  }
}

SmemOperand operand_b(const WgmmaInstruction& instruction, const WgmmaOperands& operands) {
  return {.descriptor = decode_wgmma_descriptor(operands.b_descriptor),
          .major = instruction.b_major,
          .type = instruction.b,
          .mn = instruction.n,
          .negate = instruction.scale_b < 0,
          .k_bytes = instruction.sparse ? 64u : 32u};
}

/// The 16 rows of A that a warp multiplies.
SmemOperand operand_a(const WgmmaInstruction& instruction, const SmemDescriptor& descriptor,
                      uint32_t warp) {
  return {.descriptor = descriptor,
          .major = instruction.a_major,
          .type = instruction.a,
          .mn = kRowsPerWarp,
          .first_mn = warp * kRowsPerWarp,
          .negate = instruction.scale_a < 0};
}

SmemDescriptor descriptor_a(const WgmmaInstruction& instruction, const WgmmaOperands& operands) {
  return instruction.a_in_registers ? SmemDescriptor{}
                                    : decode_wgmma_descriptor(operands.a_descriptor);
}

/// Turns the stored half of 16 rows of a sparse A into whole rows, in place.
template <typename Value>
void expand(const WgmmaInstruction& instruction, const uint32_t* metadata, uint32_t warp,
            Value* panel) {
  const uint32_t stored = wgmma_k(instruction.a);
  Value elements[kRowsPerWarp * kMaxK / 2];
  std::memcpy(elements, panel, kRowsPerWarp * stored * sizeof(Value));
  for (uint32_t row = 0; row < kRowsPerWarp; ++row) {
    expand_row("wgmma.mma_async.sp", instruction.a, warp * kRowsPerWarp + row,
               wgmma_metadata(instruction, metadata, row), elements + row * stored, stored,
               panel + row * 2 * stored);
  }
}

template <typename Value>
void run(const WgmmaInstruction& instruction, const WgmmaOperands& operands,
         const SharedView& shared) {
  const uint32_t n = instruction.n, stored = wgmma_k(instruction.a);
  const uint32_t depth = instruction.sparse ? 2 * stored : stored;
  alignas(32) Value b_panel[kMaxK * kMaxN];
  read_operand(operand_b(instruction, operands), shared, 0, nullptr, b_panel, 1, n);
  const SmemDescriptor a_descriptor = descriptor_a(instruction, operands);
  for (uint32_t warp = 0; warp < 4; ++warp) {
    uint32_t* const* d = operands.d_registers[warp];
    if (!d) continue;
    alignas(32) Value a[kRowsPerWarp * kMaxK];
    if (instruction.a_in_registers) {
      read_a_registers(instruction, operands.a_registers[warp], stored, a);
    } else {
      read_operand(operand_a(instruction, a_descriptor, warp), shared, 0, nullptr, a, stored, 1);
    }
    if (instruction.sparse) expand(instruction, operands.metadata[warp], warp, a);
    alignas(32) Value sums[kRowsPerWarp * kMaxN];
    static_assert(sizeof(Value) == 4);
    if (operands.scale_d) {
      move_d<false>(instruction, d, reinterpret_cast<uint32_t*>(sums));
    } else {
      std::memset(sums, 0, kRowsPerWarp * n * sizeof(Value));
    }
    Value* rows[kRowsPerWarp];
    for (uint32_t r = 0; r < kRowsPerWarp; ++r) rows[r] = sums + r * n;
    if constexpr (std::is_same_v<Value, float>) {
      accumulate_panels(rows, a, b_panel, kRowsPerWarp, n, depth, n);
    } else {
      accumulate_panels(rows, a, b_panel, kRowsPerWarp, n, depth, n, instruction.satfinite);
    }
    move_d<true>(instruction, d, reinterpret_cast<uint32_t*>(sums));
  }
}

}  // namespace

uint32_t wgmma_k(ElementType type) {
  return 32 / container_bytes(type);
}

uint32_t wgmma_d_registers(const WgmmaInstruction& instruction) {
  return instruction.d == AccumulatorType::f16 ? instruction.n / 4 : instruction.n / 2;
}

MatrixPosition wgmma_d_position(uint32_t warp, uint32_t lane, uint32_t reg) {
  return {.row = warp * kRowsPerWarp + lane / 4 + reg / 2 % 2 * 8,
          .column = reg / 4 * 8 + lane % 4 * 2 + reg % 2};
}

MatrixPosition wgmma_a_position(uint32_t warp, uint32_t lane, uint32_t byte,
                                uint32_t element_bytes) {
  uint32_t reg = byte / 4;
  uint32_t k_bytes = reg / 2 * 16 + lane % 4 * 4 + byte % 4;
  return {.row = warp * kRowsPerWarp + lane / 4 + reg % 2 * 8, .column = k_bytes / element_bytes};
}

uint64_t wgmma_metadata(const WgmmaInstruction& instruction, const uint32_t* lanes, uint32_t row) {
  const uint32_t* quad = lanes + row % 8 * 4;
  if (container_bytes(instruction.a) == 1) {
    return uint64_t{quad[row / 8 + 2]} << 32 | quad[row / 8];
  }
  const uint32_t first = 2 * instruction.sparsity_selector, shift = row / 8 * 16;
  return (quad[first] >> shift & 0xffff) | (quad[first + 1] >> shift & 0xffff) << 16;
}

void validate(const WgmmaInstruction& i) {
  if (!types_exist(i)) {
    fault(
        kInvalidPtx,
        "wgmma does not exist with D %s, A %s, B %s; legal: f32 or f16 with f16; f32 with bf16 or "
        "tf32; f32 or f16 with e4m3/e5m2; s32 with s8/u8",
        name_of_accumulator(i.d), name_of(i.a), name_of(i.b));
  }
  bool integer = is_integer(i.a);
  bool n_exists = i.n >= 8 && i.n <= 256 && i.n % 8 == 0;
  if (integer && i.n > 32 && i.n % 16 != 0) n_exists = false;
  if (!n_exists) {
    fault(kInvalidPtx, "wgmma with %s operands does not exist with N = %u; legal: %s", name_of(i.a),
          i.n, integer ? "8, 16, 24, 32, then 48..256 by 16" : "8..256 by 8");
  }
  if ((i.scale_a != 1 && i.scale_a != -1) || (i.scale_b != 1 && i.scale_b != -1)) {
    fault(kInvalidPtx, "wgmma imm-scale-a %d, imm-scale-b %d: each must be 1 or -1", i.scale_a,
          i.scale_b);
  }
  if (integer && (i.scale_a != 1 || i.scale_b != 1)) {
    fault(kInvalidPtx, "wgmma with integer operands has no imm-scale");
  }
  bool transposed = i.a_major == Major::mn || i.b_major == Major::mn;
  if (transposed && container_bytes(i.a) != 2) {
    fault(kInvalidPtx, "wgmma can read MN-major matrices of f16 and bf16 only, not of %s",
          name_of(i.a));
  }
  if (i.a_in_registers && i.a_major == Major::mn) {
    fault(kInvalidPtx, "wgmma with A in registers has no imm-trans-a");
  }
  const uint32_t most = container_bytes(i.a) == 1 ? 0 : 1;
  if (i.sparse && i.sparsity_selector > most) {
    fault(kInvalidPtx, "wgmma.mma_async.sp with %s operands: sp-sel is %u; legal: %s", name_of(i.a),
          i.sparsity_selector, most ? "0, 1" : "0");
  }
  if (i.satfinite && !integer) {
    fault(kInvalidPtx, "wgmma .satfinite exists for s8 and u8 operands only");
  }
}

void wgmma(const WgmmaInstruction& instruction, const WgmmaOperands& operands,
           const SharedView& shared) {
  if (is_integer(instruction.a)) {
    run<int32_t>(instruction, operands, shared);
  } else {
    run<float>(instruction, operands, shared);
  }
}

void find_reads(const WgmmaInstruction& instruction, const WgmmaOperands& operands,
                const SharedView& shared, WgmmaReads& reads) {
  find_chunks(operand_b(instruction, operands), shared, reads.b);
  if (instruction.a_in_registers) return;
  const SmemDescriptor descriptor = descriptor_a(instruction, operands);
  for (uint32_t warp = 0; warp < 4; ++warp) {
    find_chunks(operand_a(instruction, descriptor, warp), shared, reads.a[warp]);
  }
}

}  // namespace vgpu::tensor
