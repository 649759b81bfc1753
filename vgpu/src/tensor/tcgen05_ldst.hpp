// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "tensor/access.hpp"
#include "tensor/smem_descriptor.hpp"
#include "tensor/tmem.hpp"

/// tcgen05.ld, tcgen05.st and tcgen05.cp (sm_100a).
namespace vgpu::tensor {

enum class TmemShape : uint8_t { s32x32b, s16x64b, s16x128b, s16x256b, s16x32bx2 };
const char* name_of(TmemShape shape);

/// One tcgen05.ld or tcgen05.st of a warp.
struct TmemTransfer {
  TmemShape shape = TmemShape::s32x32b;
  uint32_t repeat = 1;             ///< .x1 … .x128
  bool pack16 = false;             ///< ld .pack::16b / st .unpack::16b
  uint32_t address = 0;            ///< TMEM address
  uint32_t half_split_offset = 0;  ///< immHalfSplitoff of 16x32bx2: columns
  uint32_t warp = 0;               ///< warp of the CTA; reaches lanes 32 (warp % 4) .. + 31
};

/// 32-bit registers a thread gives or gets: repeat x (32x32b, 16x64b, 16x32bx2: 1, 16x128b: 2,
/// 16x256b: 4).
uint32_t tmem_registers(TmemShape shape, uint32_t repeat);
/// Throws Fault (invalid PTX) for repeat counts that do not exist: x1..x128 in powers of two, up to
/// x64 for 16x128b and x32 for 16x256b.
void validate(TmemShape shape, uint32_t repeat);

/// Cell of register `reg` of lane `lane`, relative to the address (PTX ISA "Data movement shape").
/// With pack16 one register holds the low halves of columns 2c (low) and 2c + 1, where c is the
/// column given here.
struct TmemCell {
  uint32_t lane = 0, column = 0;
};
TmemCell tmem_cell(TmemShape shape, uint32_t repeat, uint32_t half_split_offset, uint32_t lane,
                   uint32_t reg);

/// Whether the address names lanes of the warp's own quarter.
/// NOTE: PTX ISA, "Tensor Memory: Access restrictions", lets warp w of a warpgroup reach lanes 32 w
/// to 32 w + 31 only and promises nothing for addresses of others. The quarter is the warp's all
/// the same: kernels in the field pass the bare base address in every warp (DeepGEMM's sm100 GEMMs,
/// CUTLASS example 93), so the bits of the address that name it are not looked at.
bool names_own_lanes(const TmemTransfer& transfer);

/// registers[r]: 32 lanes of register r. Throws Fault when the first lane does not fit the shape or
/// the cells are not allocated.
void tcgen05_load(const Tmem& tmem, const TmemTransfer& transfer,
                  std::span<uint32_t* const> registers, AccessVisitor* visitor);
void tcgen05_store(Tmem& tmem, const TmemTransfer& transfer,
                   std::span<const uint32_t* const> registers, AccessVisitor* visitor);

/// Shapes of tcgen05.cp that are modelled: rows of shared memory go to TMEM lanes, 16-byte chunks
/// to groups of four columns; the source is a K-major matrix given by a descriptor.
/// NOTE: the decompressing source formats are not modelled (where their bits go is in figures
/// only); exec refuses them by name.
enum class TmemCopyShape : uint8_t {
  s128x256b,        ///< 128 rows of 32 bytes
  s128x128b,        ///< 128 rows of 16 bytes
  s64x128b_02_13,   ///< .64x128b.warpx2::02_13: rows 0-63 to lanes 0-63 and to lanes 64-127
  s64x128b_01_23,   ///< .64x128b.warpx2::01_23: rows 0-31 to lanes 0-31, 32-63; the rest above
  s32x128b_warpx4,  ///< 32 rows to each of the four groups of 32 lanes
  /// Row k of 4, 32 bytes, to lane 31 + 32 k: the rows that tcgen05.shift leaves. NOTE: the address
  /// must name lane 31; where other lanes lead is not proven.
  s4x256b,
};
const char* name_of(TmemCopyShape shape);
/// Copies in one CTA (cta_group 2: the caller does it in both, with the same operands).
void tcgen05_copy(TmemCopyShape shape, uint32_t address, uint64_t descriptor,
                  const CtaMemory& memory, uint32_t cta, AccessVisitor* visitor);

/// tcgen05.shift.down in one CTA: in 8 columns, the 32 lanes from the address on take the values of
/// the next lane; the last lane keeps its own.
/// NOTE: "all the rows, except the last" receive a new row (PTX ISA, shape .31x256b), and the last
/// is the one that a following tcgen05.cp.4x256b refreshes. Not proven on silicon.
void tcgen05_shift(uint32_t address, const CtaMemory& memory, uint32_t cta, AccessVisitor* visitor);

}  // namespace vgpu::tensor
