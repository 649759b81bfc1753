// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "tensor/smem_descriptor.hpp"

/// wgmma.mma_async (sm_90a): D = A B (+ D) for one warpgroup, M = 64, K = 32 bytes; and .sp, with A
/// sparse and K = 64 bytes, of which A stores half.
namespace vgpu::tensor {

enum class AccumulatorType : uint8_t { f32, f16, s32 };

/// Everything the opcode and its immediates say.
struct WgmmaInstruction {
  ElementType a = ElementType::bf16;
  ElementType b = ElementType::bf16;
  AccumulatorType d = AccumulatorType::f32;
  uint32_t n = 8;
  bool a_in_registers = false;
  bool satfinite = false;  ///< s8/u8: clamp to the s32 range instead of wrapping
  int scale_a = 1;         ///< imm-scale-a: 1 or -1
  int scale_b = 1;
  Major a_major = Major::k;  ///< imm-trans-a = 1: mn; 16-bit types only
  Major b_major = Major::k;
  bool sparse = false;
  uint32_t sparsity_selector = 0;  ///< sp-sel: the lanes of each four that give the metadata
};

/// Throws Fault (invalid PTX) when the combination does not exist: types, N (8..256 by 8; s8/u8:
/// 8, 16, 24, 32, then by 16), scales, transposes, satfinite, selector (0 or 1; 8-bit types: 0).
void validate(const WgmmaInstruction& instruction);
/// K of a dense instruction, and what a sparse one stores of A's K, in elements: 32 bytes / element
/// size.
uint32_t wgmma_k(ElementType type);
/// 32-bit registers of D for each thread: N / 2, or N / 4 for f16.
uint32_t wgmma_d_registers(const WgmmaInstruction& instruction);
/// 32-bit registers of A for each thread when A is in registers: always 4.
inline constexpr uint32_t kWgmmaARegisters = 4;

/// Row and column of what register `reg` of lane `lane` of warp `warp` (0..3) holds in D, for f32
/// and s32; for f16, register r holds columns of f32 registers 2r (low half) and 2r + 1.
struct MatrixPosition {
  uint32_t row = 0, column = 0;
};
MatrixPosition wgmma_d_position(uint32_t warp, uint32_t lane, uint32_t reg);
/// Row and K column of byte `byte` (0..15, four registers of four bytes) of an A fragment.
MatrixPosition wgmma_a_position(uint32_t warp, uint32_t lane, uint32_t byte,
                                uint32_t element_bytes);

/// Metadata of row `row` (0..15) of a warp's part of a sparse A, gathered from its lanes' sp-meta
/// (figures 176, 178, 180 and 181 of "Matrix fragments for warpgroup-level multiply-accumulate
/// operation with sparse matrix A", as CUTLASS's ELayout_64x32, _64x16 and _64x64 state them):
/// - 16- and 32-bit types: lane 4 (row % 8) + 2 selector and the next hold 16 bits each, of the
///   first and the second half of K: in their low half for rows 0..7, in their high one for 8..15
/// - 8-bit types: lane 4 (row % 8) + row / 8 the first half of K, the lane after the next the other
uint64_t wgmma_metadata(const WgmmaInstruction& instruction, const uint32_t* lanes, uint32_t row);

struct WgmmaOperands {
  uint64_t a_descriptor = 0;
  uint64_t b_descriptor = 0;
  bool scale_d = true;  ///< false: D = A B
  /// metadata[warp]: 32 lanes of sp-meta; used when sparse.
  std::array<const uint32_t*, 4> metadata{};
  /// a_registers[warp][reg]: 32 lanes of a 32-bit register; used when a_in_registers.
  std::array<std::array<const uint32_t*, kWgmmaARegisters>, 4> a_registers{};
  /// d_registers[warp][reg]: 32 lanes each, wgmma_d_registers of them. A null warp is skipped: its
  /// 16 rows are neither read nor computed.
  std::array<uint32_t* const*, 4> d_registers{};
};

/// Computes the instruction. `instruction` must have passed validate().
/// NOTE: the order and internal precision of the hardware's sums are not specified; this one adds
/// in k order in fp32 with fused multiply-add. Sums of integers below 2^24 are exact in any order.
void wgmma(const WgmmaInstruction& instruction, const WgmmaOperands& operands,
           const SharedView& shared);

/// What the instruction reads of shared memory.
struct WgmmaReads {
  OperandChunks b;
  std::array<OperandChunks, 4> a;  ///< by warp: its own 16 rows; empty with A in registers
};
/// Throws Fault as wgmma does.
void find_reads(const WgmmaInstruction& instruction, const WgmmaOperands& operands,
                const SharedView& shared, WgmmaReads& reads);

}  // namespace vgpu::tensor
