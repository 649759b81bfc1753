// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "tensor/smem_descriptor.hpp"
#include "tensor/tmem.hpp"
#include "tensor/wgmma.hpp"

/// tcgen05.mma (sm_100a), kinds f16, tf32, f8f6f4 and i8, cta_group 1 and 2, dense and .sp, and
/// tcgen05.mma.ws. Block-scaled kinds: tcgen05_scaled_mma.hpp.
///
/// Not modelled, and refused by name by whoever decodes the opcode: .ashift, .sp with .ws.
namespace vgpu::tensor {

enum class MmaKind : uint8_t { f16, tf32, f8f6f4, i8 };
const char* name_of(MmaKind kind);

/// The type of A or B that a code of kinds f8f6f4 and mxf8f6f4 names; none: reserved.
std::optional<ElementType> f8f6f4_type(uint32_t code);
inline constexpr char kF8f6f4Types[] = "0 (e4m3), 1 (e5m2), 3 (e2m3), 4 (e3m2), 5 (e2m1)";

/// The 32-bit instruction descriptor (PTX ISA "Instruction descriptor", table for the kinds above).
struct MmaInstructionDescriptor {
  ElementType a = ElementType::bf16, b = ElementType::bf16;  // bits 7-9, 10-12
  AccumulatorType d = AccumulatorType::f32;                  // bits 4-5
  bool saturate = false;                                     // bit 3, kind::i8
  bool negate_a = false, negate_b = false;                   // bits 13, 14
  Major a_major = Major::k, b_major = Major::k;              // bits 15, 16: 1 = MN-major
  uint32_t m = 128, n = 128;                                 // bits 24-28 << 4, bits 17-22 << 3
  uint32_t sparsity_selector = 0;                            // bits 0-1; bit 2 = sparse
};
/// Throws Fault (illegal instruction) that names the field, its value and what is legal. Legal
/// shapes (PTX ISA "Matrix shape"): cta_group 1: M 64 or 128, N 8..256 by 8 (kind::i8: 8, 16, 24,
/// 32, then by 16); cta_group 2: M 128 or 256, N 16..256 by 16 (kind::i8: 32..256 by 32); .ws: M
/// 32, 64 or 128, N 64, 128 or 256. A transposed B of 8-bit elements needs N by 16 (cta_group 2: by
/// 32).
MmaInstructionDescriptor decode_mma_instruction(MmaKind kind, uint32_t bits, int cta_group,
                                                bool weight_stationary = false,
                                                bool sparse = false);

struct Tcgen05Mma {
  MmaKind kind = MmaKind::f16;
  int cta_group = 1;
  bool weight_stationary = false;  ///< .ws
  uint32_t instruction_descriptor = 0;
  uint32_t d_address = 0;  ///< TMEM
  bool a_in_tmem = false;
  uint64_t a = 0;              ///< shared-memory descriptor, or TMEM address
  uint64_t b_descriptor = 0;   ///< the same in both CTAs of a pair
  bool accumulate = true;      ///< enable-input-d
  uint32_t scale_input_d = 0;  ///< D is multiplied by 2^-scale first (kinds f16 and tf32), 0..15
  /// Bit i of the 128 (cta_group 1) or 256 bits: lane i (CTA 1 of a pair: lane 128 + i) of D is not
  /// written.
  std::array<uint32_t, 8> disable_output_lane{};
  /// .ws: the zero-column mask descriptor. NOTE: only descriptors that mask and shift nothing are
  /// supported: the PTX ISA's table of the span fields contradicts its examples.
  uint64_t zero_column_mask = 0;
  bool sparse = false;           ///< .sp: A stores half of K, which is twice that of the dense kind
  uint32_t sp_meta_address = 0;  ///< TMEM
};

/// Metadata of row `row` of a CTA's sparse A, from the two TMEM columns at `column` (even), for the
/// layout with 128 rows in each CTA (figures 263, 265 and 267 of "Sparsity selector", as CUTLASS's
/// tmem_e_frg states them):
/// - kinds f16 and tf32: column `column` + selector; of 16 lanes, the first 8 hold the first half
///   of K, the others the second: of rows 0..7 of the 16 in their low, of 8..15 in their high half
/// - 8-bit kinds: lane = row, 64 bits in both columns
uint64_t tcgen05_metadata(MmaKind kind, const Tmem& tmem, uint32_t column, uint32_t selector,
                          uint32_t row);

/// Where that metadata may be: throws Fault for shapes whose layout is not proven, and for
/// addresses with a lane or an odd column.
void check_metadata(uint32_t m, int cta_group, uint32_t address);

/// Which row of the CTA's part of D a TMEM lane holds, and the first column of N it holds
/// (PTX ISA "Data path layout organization"):
/// - A, D (M = 256 of a pair, M = 128): lane = row, all N columns
/// - F (M = 64): lanes 0-15, 32-47, 64-79, 96-111 (+ 16 when D's lane is 16), all N columns
/// - B, E (M = 128 of a pair, M = 64 with .ws): lanes 0-63 hold columns 0..N/2-1, 64-127 the rest
/// - G (M = 32 with .ws): each 32 lanes hold a quarter of the columns
struct DataPath {
  uint32_t rows = 0;        ///< rows of D in each CTA
  uint32_t columns = 0;     ///< TMEM columns of D
  uint32_t fold_lanes = 0;  ///< B, E, G: lanes between one part of the columns and the next
  bool scattered = false;   ///< layout F
  uint32_t first_lane = 0;
  uint32_t lane_of(uint32_t row, uint32_t n) const;
  uint32_t column_of(uint32_t n) const { return n % columns; }
};
DataPath data_path(uint32_t m, uint32_t n, int cta_group, uint32_t first_lane,
                   bool weight_stationary = false);

/// What tcgen05.mma and its block-scaled kinds share: the descriptor of an operand in shared
/// memory; throws Fault for swizzles that the type and major-ness do not have.
SmemDescriptor decode_mma_operand(const char* operand, uint64_t bits, Major major,
                                  ElementType type);

/// Computes the instruction on ctas[0] (and ctas[1]: the CTA of the pair with the odd rank).
/// Throws Fault on illegal descriptors and on memory outside shared memory or TMEM allocations.
/// NOTE: the order and internal precision of the hardware's sums are not specified; this one adds
/// in k order in fp32 with fused multiply-add. Sums of integers below 2^24 are exact in any order.
void tcgen05_mma(const Tcgen05Mma& mma, std::span<const CtaMemory> ctas, AccessVisitor* visitor);
/// Multiply-accumulates of an instruction, for statistics; M N K (sparse: M N K / 2).
uint64_t mma_macs(const Tcgen05Mma& mma);

}  // namespace vgpu::tensor
