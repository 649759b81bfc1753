// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tensor/smem_descriptor.hpp"

/// Structured sparsity of A in wgmma.mma_async.sp and tcgen05.mma.sp: half of each row is stored,
/// metadata say where. Source: PTX ISA 9.0, "Sparse matrix storage" (wgmma), "Sparse Matrices"
/// (tcgen05).
namespace vgpu::tensor {

/// Bits of metadata of a row of a sparse product, whose K is twice that of the dense one: a 4-bit
/// index for each chunk. Chunks of four elements store two (two 2-bit indices, the first element's
/// in the low bits), chunks of two tf32 elements one (0b0100: the first, 0b1110: the second),
/// chunks of eight packed e2m1 elements two pairs of neighbours (two 2-bit indices of pairs).
uint32_t metadata_bits(ElementType type);

/// Spreads `stored` elements of a row of A over twice as many; the others become zero.
/// Throws Fault (illegal instruction) for indices whose behaviour is undefined, where the elements
/// that they place are not zero. `instruction` and `row` name the place in the report; `run`:
/// neighbours that stay together (2: pairs).
template <typename Value>
void expand_row(const char* instruction, ElementType type, uint32_t row, uint64_t metadata,
                const Value* elements, uint32_t stored, Value* out, uint32_t run = 1);

}  // namespace vgpu::tensor
