// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "tensor/smem_descriptor.hpp"
#include "tensor/tmem.hpp"

/// tcgen05.mma with block scaling (sm_100a), dense and .sp: kinds mxf8f6f4, mxf4 and mxf4nvf4.
/// D = (A scale_A) (B scale_B) + D, a scale for each 16 or 32 elements along K; .sp: twice as many,
/// of which A stores half.
/// Sources: PTX ISA "Block Scaling for tcgen05.mma", "Instruction descriptor" (tables for these
/// kinds), "Data Path Layout Organization", "Sparse Matrices"; where the metadata lie: CUTLASS's
/// tmem_e_frg (figure 267).
namespace vgpu::tensor {

enum class ScaledMmaKind : uint8_t { mxf8f6f4, mxf4, mxf4nvf4 };
const char* name_of(ScaledMmaKind kind);

/// ue8m0: a power of two; ue4m3: e4m3 without a sign.
enum class ScaleType : uint8_t { ue4m3, ue8m0 };

struct ScaledMmaDescriptor {
  ElementType a = ElementType::e4m3, b = ElementType::e4m3;  // bits 7-9, 10-12
  ScaleType scale_type = ScaleType::ue8m0;                   // bit 23
  uint32_t scale_a_id = 0, scale_b_id = 0;                   // bits 29-30, 4-5: byte of the cell
  bool negate_a = false, negate_b = false;                   // bits 13, 14
  Major a_major = Major::k, b_major = Major::k;              // bits 15, 16: 1 = MN-major
  uint32_t m = 128, n = 128;                                 // bits 27-28 << 7, bits 17-22 << 3
};
/// `scales`: of each row along K (.scale_vec::1X, 2X, 4X). Throws Fault (illegal instruction) that
/// names the field, its value and what is legal. Shapes: cta_group 1: M 128, N 8..256 by 8;
/// cta_group 2: M 128 or 256, N 16..256 by 16. K is 32 (mxf8f6f4) or 64 (the others), .sp: twice
/// that.
ScaledMmaDescriptor decode_scaled_mma(ScaledMmaKind kind, uint32_t scales, uint32_t bits,
                                      int cta_group, bool sparse = false);
/// Whether a kind has this number of scales a row (PTX ISA, table "Valid combinations of
/// scale_vectorsize").
bool has_scales(ScaledMmaKind kind, uint32_t scales);

struct Tcgen05ScaledMma {
  ScaledMmaKind kind = ScaledMmaKind::mxf8f6f4;
  uint32_t scales = 1;
  int cta_group = 1;
  uint32_t instruction_descriptor = 0;
  uint32_t d_address = 0;  ///< TMEM
  bool a_in_tmem = false;
  uint64_t a = 0;             ///< shared-memory descriptor, or TMEM address
  uint64_t b_descriptor = 0;  ///< the same in both CTAs of a pair
  /// TMEM addresses. Scale k of row r lies in byte scale_id + k of the cell of lane r % 32, column
  /// r / 32 from the address, in each group of 32 lanes: rows of D in a group use the group's copy.
  /// Bits 30-31 are ignored.
  uint32_t scale_a = 0, scale_b = 0;
  bool accumulate = true;        ///< enable-input-d
  bool sparse = false;           ///< .sp: A stores half of K
  uint32_t sp_meta_address = 0;  ///< TMEM; lane = row of the CTA's A, 64 bits in two columns
};

/// Computes the instruction on ctas[0] (and ctas[1]: the CTA of the pair with the odd rank).
/// Throws Fault on illegal descriptors and on memory outside shared memory or TMEM allocations.
/// NOTE: the order and internal precision of the hardware's sums are not specified; this one sums
/// each block in k order in fp32, then adds the exact product of block sum and scales to D.
void tcgen05_scaled_mma(const Tcgen05ScaledMma& mma, std::span<const CtaMemory> ctas,
                        AccessVisitor* visitor);
/// Multiply-accumulates of an instruction, for statistics; M N K (sparse: M N K / 2).
uint64_t scaled_mma_macs(const Tcgen05ScaledMma& mma);

}  // namespace vgpu::tensor
