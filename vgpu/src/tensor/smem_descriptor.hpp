// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "tensor/access.hpp"

/// Shared-memory matrix descriptors of wgmma and tcgen05, bit by bit, and where they put the
/// elements of a matrix. Sources: PTX ISA "Shared Memory Matrix Layout", "Matrix Descriptor"
/// (wgmma), "Shared memory descriptor", "Canonical layouts", "Strides" (tcgen05).
namespace vgpu::tensor {

/// Address bits that are XORed: 16-byte chunk bits 4.. with row bits 7.. (b32: 1 bit, b64: 2,
/// b128: 3); b128_atom32 moves 32-byte units: bits 5,6 with bits 7,8.
enum class Swizzle : uint8_t { none, b32, b64, b128, b128_atom32 };
const char* name_of(Swizzle swizzle);
/// Width of the swizzle pattern in bytes (16 for none).
uint32_t span_bytes(Swizzle swizzle);
/// The physical address of a logical one. The pattern is tied to absolute addresses.
uint32_t swizzle_address(Swizzle swizzle, uint32_t address);

/// Which dimension is contiguous in shared memory.
enum class Major : uint8_t { k, mn };

struct SmemDescriptor {
  uint32_t start_address = 0;        ///< bytes, multiple of 16
  uint32_t leading_byte_offset = 0;  ///< LBO
  uint32_t stride_byte_offset = 0;   ///< SBO
  uint32_t base_offset = 0;          ///< 0..7; only 0 is legal here, see the decoders
  Swizzle swizzle = Swizzle::none;
};

/// wgmma: bits 0-13 start, 16-29 LBO, 32-45 SBO (all >> 4), 49-51 base offset, 62-63 swizzle (1:
/// 128B, 2: 64B, 3: 32B). Throws Fault (illegal instruction) naming the field for reserved bits and
/// for a base offset other than 0, whose effect is not proven.
SmemDescriptor decode_wgmma_descriptor(uint64_t bits);
/// tcgen05: as above but bits 46-48 must be 0b001, bit 52 (absolute LBO, sm_103a only) 0, bits
/// 53-60 zero, and bits 61-63 the swizzle (1: 128B with 32B atoms, 2: 128B, 4: 64B, 6: 32B).
SmemDescriptor decode_tcgen05_descriptor(uint64_t bits);
/// "start 0x400 LBO 16 SBO 1024 swizzle 128B" for reports.
std::string describe(const SmemDescriptor& descriptor);

/// Address of element (mn, k) of a matrix of `element_bytes` (1, 2, 4) elements:
/// - K-major, no swizzle: 8-row x 16-byte core matrices; LBO between them along K, SBO along MN
/// - K-major, swizzled: rows of span_bytes; SBO between groups of 8 rows; LBO unused
/// - MN-major, no swizzle: core matrices of 8 k x 16 bytes of mn; SBO along MN, LBO along K
/// - MN-major, swizzled: atoms of span_bytes of mn x 8 k (b128_atom32: x 4 k); LBO along MN, SBO
///   along K
/// then swizzled. Addresses wrap at 256 KiB as the 18-bit fields do.
uint32_t element_address(const SmemDescriptor& descriptor, Major major, uint32_t mn, uint32_t k,
                         uint32_t element_bytes);

/// Element types of matrix operands in shared memory or TMEM.
enum class ElementType : uint8_t { f16, bf16, tf32, e4m3, e5m2, e2m3, e3m2, e2m1, s8, u8 };
const char* name_of(ElementType type);
/// Bytes an element takes in shared memory (1 for the sub-byte types: 16 of them fill 16 bytes,
/// packed at the low end with padding behind; PTX ISA "Packing formats").
uint32_t container_bytes(ElementType type);
bool is_integer(ElementType type);

/// Where one operand of an MMA comes from and what it is.
struct SmemOperand {
  SmemDescriptor descriptor;
  Major major = Major::k;
  ElementType type = ElementType::bf16;
  uint32_t mn = 0;        ///< rows (A) or columns (B) to read …
  uint32_t first_mn = 0;  ///< … from this one on, a multiple of 16
  bool negate = false;    ///< floating point only
  uint32_t k_bytes = 32;  ///< of K: 32, or 64 of B when A is sparse
};

/// Addresses of the 16-byte chunks of an operand: along k first in K-major matrices, along mn last
/// in MN-major ones.
struct OperandChunks {
  static constexpr uint32_t kMost = 1024;  // 256 rows or columns of 64 bytes
  std::array<uint32_t, kMost> addresses;
  uint32_t count = 0;
  std::span<const uint32_t> span() const { return {addresses.data(), count}; }
};
/// Throws Fault when a chunk lies outside shared memory, and for 64 bytes of K in K-major rows of
/// 32 (32-byte swizzle), which no canonical layout describes.
void find_chunks(const SmemOperand& operand, const SharedView& shared, OperandChunks& chunks);

/// Reads an operand into a panel: element (first_mn + i, k) goes to
/// panel[i * mn_stride + k * k_stride].
/// Reports its chunks as reads of CTA `cta` first. Throws Fault when a chunk lies outside shared
/// memory. `Value` is float, or int32_t for s8 and u8.
template <typename Value>
void read_operand(const SmemOperand& operand, const SharedView& shared, uint32_t cta,
                  AccessVisitor* visitor, Value* panel, uint32_t mn_stride, uint32_t k_stride);

}  // namespace vgpu::tensor
