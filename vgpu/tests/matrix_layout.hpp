// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "fault.hpp"
#include "tensor/number_formats.hpp"
#include "tensor/smem_descriptor.hpp"

/// Test helpers: shared-memory matrices built from the figures of the PTX ISA ("swizzle atoms" of
/// 16-byte chunks), without the address arithmetic of smem_descriptor.cpp.
namespace vgpu::tensor::test {

/// Rows of a swizzle pattern are numbered from its start; chunk c of row r lies at this chunk.
inline uint32_t chunk_position(Swizzle swizzle, uint32_t row, uint32_t chunk) {
  switch (swizzle) {
    case Swizzle::none:
      return chunk;
    case Swizzle::b32:
      return chunk ^ (row / 4 % 2);
    case Swizzle::b64:
      return chunk ^ (row / 2 % 4);
    case Swizzle::b128:
      return chunk ^ (row % 8);
    case Swizzle::b128_atom32:
      return chunk ^ (row % 4 * 2);
  }
  return chunk;
}

inline uint32_t chunks_per_row(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::none:
      return 1;
    case Swizzle::b32:
      return 2;
    case Swizzle::b64:
      return 4;
    default:
      return 8;
  }
}

/// A matrix operand of mn x 32 bytes of K (64 of B next to a sparse A) in a byte buffer, with the
/// descriptor that names it.
struct Matrix {
  Swizzle swizzle;
  Major major;
  uint32_t element_bytes;
  uint32_t start, lbo, sbo;

  /// Strides large enough for `mn` rows, with some padding so that wrong strides are seen.
  static Matrix make(Swizzle swizzle, Major major, uint32_t element_bytes, uint32_t mn,
                     uint32_t start, uint32_t k_bytes = 32) {
    Matrix m{swizzle, major, element_bytes, start, 0, 0};
    const uint32_t width = chunks_per_row(swizzle) * 16;
    if (major == Major::k) {
      if (swizzle == Swizzle::none) {
        m.sbo = k_bytes / 16 * 128 + 128;  // core matrices along K, padded
        m.lbo = 128;
      } else {
        m.sbo = 8 * width + 1024;  // keeps the pattern's alignment
        m.lbo = 16;
      }
    } else if (swizzle == Swizzle::none) {
      m.sbo = 128;                                  // next 16 bytes of mn
      m.lbo = mn * element_bytes / 16 * 128 + 128;  // next 8 k
    } else {
      const uint32_t rows = swizzle == Swizzle::b128_atom32 ? 4 : 8;
      const uint32_t k = k_bytes / element_bytes;
      m.sbo = (rows * width + 1023) / 1024 * 1024;     // next rows of k
      m.lbo = m.sbo * ((k + rows - 1) / rows) + 1024;  // next width of mn
    }
    return m;
  }

  uint32_t address(uint32_t mn, uint32_t k) const {
    const uint32_t per_row = chunks_per_row(swizzle);
    if (major == Major::k) {
      uint32_t chunk = k * element_bytes / 16, rest = k * element_bytes % 16;
      if (swizzle == Swizzle::none) return start + mn / 8 * sbo + chunk * lbo + mn % 8 * 16 + rest;
      return start + mn / 8 * sbo + mn % 8 * per_row * 16 +
             chunk_position(swizzle, mn % 8, chunk) * 16 + rest;
    }
    uint32_t chunk = mn * element_bytes / 16, rest = mn * element_bytes % 16;
    if (swizzle == Swizzle::none) return start + chunk * sbo + k / 8 * lbo + k % 8 * 16 + rest;
    const uint32_t rows = swizzle == Swizzle::b128_atom32 ? 4 : 8;
    return start + chunk / per_row * lbo + k / rows * sbo + k % rows * per_row * 16 +
           chunk_position(swizzle, k % rows, chunk % per_row) * 16 + rest;
  }

  uint64_t wgmma_bits() const {
    uint64_t mode = swizzle == Swizzle::b128  ? 1
                    : swizzle == Swizzle::b64 ? 2
                    : swizzle == Swizzle::b32 ? 3
                                              : 0;
    return common_bits() | mode << 62;
  }
  uint64_t tcgen05_bits() const {
    uint64_t mode = swizzle == Swizzle::b128   ? 2
                    : swizzle == Swizzle::b64  ? 4
                    : swizzle == Swizzle::b32  ? 6
                    : swizzle == Swizzle::none ? 0
                                               : 1;
    return common_bits() | uint64_t{1} << 46 | mode << 61;
  }

 private:
  uint64_t common_bits() const {
    return uint64_t{start >> 4} | uint64_t{lbo >> 4} << 16 | uint64_t{sbo >> 4} << 32;
  }
};

/// Bits of a small integer in an element type.
inline uint32_t element_bits(ElementType type, int value) {
  switch (type) {
    case ElementType::f16:
      return encode(kF16, value);
    case ElementType::bf16:
      return encode(kBf16, value);
    // The low bits of a tf32 operand are noise that the hardware ignores.
    case ElementType::tf32:
      return encode(kTf32, value) | 0x1abc;
    case ElementType::e4m3:
      return encode(kE4m3, value);
    case ElementType::e5m2:
      return encode(kE5m2, value);
    case ElementType::e2m3:
      return encode(kE2m3, value);
    case ElementType::e3m2:
      return encode(kE3m2, value);
    case ElementType::e2m1:
      return encode(kE2m1, value);
    default:
      return static_cast<uint8_t>(value);
  }
}

/// Writes element (mn, k) of a matrix in shared memory. Types of 6 and 4 bits are packed at the low
/// end of a 16-byte chunk of 16 elements.
inline void put_element(uint8_t* shared, const Matrix& matrix, uint32_t mn, uint32_t k,
                        ElementType type, uint32_t bits) {
  const uint32_t width = type == ElementType::e2m1                                ? 4
                         : type == ElementType::e2m3 || type == ElementType::e3m2 ? 6
                                                                                  : 0;
  if (width == 0) {
    std::memcpy(shared + matrix.address(mn, k), &bits, container_bytes(type));
    return;
  }
  uint8_t* chunk = shared + matrix.address(mn, k / 16 * 16);
  for (uint32_t i = 0; i < width; ++i) {
    const uint32_t bit = k % 16 * width + i;
    chunk[bit / 8] =
        static_cast<uint8_t>((chunk[bit / 8] & ~(1u << bit % 8)) | (bits >> i & 1) << bit % 8);
  }
}

/// A row of a sparse A: which elements of its K are stored, and the metadata that say so: for each
/// chunk (of four elements, of two tf32, of four pairs) a 4-bit index.
struct SparseRow {
  std::vector<uint32_t> stored;  ///< positions in K, in the order of storage
  std::vector<uint32_t> index;   ///< by chunk

  template <typename Random>
  static SparseRow make(ElementType type, uint32_t k, Random& random) {
    SparseRow row;
    if (type == ElementType::tf32) {
      for (uint32_t chunk = 0; chunk < k; chunk += 2) {
        const uint32_t at = random() % 2;
        row.stored.push_back(chunk + at);
        row.index.push_back(at ? 0b1110 : 0b0100);
      }
      return row;
    }
    return of_runs(1, k, random);
  }

  /// Two runs of neighbours of four, as packed e2m1 elements are stored in pairs.
  template <typename Random>
  static SparseRow of_runs(uint32_t run, uint32_t k, Random& random) {
    SparseRow row;
    for (uint32_t chunk = 0; chunk < k; chunk += 4 * run) {
      const uint32_t first = random() % 3, second = first + 1 + random() % (3 - first);
      for (uint32_t at : {first, second}) {
        for (uint32_t i = 0; i < run; ++i) row.stored.push_back(chunk + at * run + i);
      }
      row.index.push_back(first | second << 2);
    }
    return row;
  }
};

/// What a call faults with.
std::string fault_text(auto&& call) {
  try {
    call();
  } catch (const Fault& fault) {
    return fault.text;
  }
  return "no fault";
}

}  // namespace vgpu::tensor::test
