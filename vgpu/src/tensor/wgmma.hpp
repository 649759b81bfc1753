// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "tensor/smem_descriptor.hpp"

/// wgmma.mma_async (sm_90a): D = A B (+ D) for one warpgroup, M = 64, K = 32 bytes.
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
};

/// Throws Fault (invalid PTX) when the combination does not exist: types, N (8..256 by 8; s8/u8:
/// 8, 16, 24, 32, then by 16), scales, transposes, satfinite.
void validate(const WgmmaInstruction& instruction);
/// K of the instruction in elements: 32 bytes / element size.
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

struct WgmmaOperands {
  uint64_t a_descriptor = 0;
  uint64_t b_descriptor = 0;
  bool scale_d = true;  ///< false: D = A B
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
