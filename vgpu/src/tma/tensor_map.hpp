// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace vgpu::tma {

// The enumerations keep the values of cuda.h's CUtensorMap* types; the runtime asserts it.

enum class DataType : uint8_t {
  uint8 = 0,
  uint16 = 1,
  uint32 = 2,
  int32 = 3,
  uint64 = 4,
  int64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9,
  float32_ftz = 10,
  tfloat32 = 11,
  tfloat32_ftz = 12,
  u4x16_align8 = 13,  ///< sub-byte types of sm_100: packed in global memory, and in shared memory …
  u4x16_align16 = 14,  ///< … sixteen in 8 bytes, then a gap of 8
  u6x16_align16 = 15,  ///< … sixteen in 12 bytes, then a gap of 4
};

enum class Interleave : uint8_t { none = 0, b16 = 1, b32 = 2 };

enum class Swizzle : uint8_t {
  none = 0,
  b32 = 1,
  b64 = 2,
  b128 = 3,
  b128_atom32 = 4,
  b128_atom32_flip8 = 5,
  b128_atom64 = 6,
};

enum class OobFill : uint8_t { zero = 0, nan_request_zero_fma = 1 };

/// What a CUtensorMap holds, decoded. Dimension 0 is the innermost (contiguous) one.
struct TensorMap {
  static constexpr int kMaxRank = 5;

  DataType type = DataType::uint8;
  uint32_t rank = 0;                        ///< 1 to 5 tiled, 3 to 5 im2col
  uint64_t address = 0;                     ///< global address of element (0, …, 0)
  uint64_t dims[kMaxRank] = {};             ///< elements
  uint64_t strides[kMaxRank] = {};          ///< bytes; strides[0] is the element size
  uint32_t element_strides[kMaxRank] = {};  ///< 1 to 8
  Interleave interleave = Interleave::none;
  Swizzle swizzle = Swizzle::none;
  uint8_t l2_promotion = 0;  ///< a hint: no effect on results
  OobFill fill = OobFill::zero;
  /// Bit 85 of a Blackwell map: copies may probe 128 KiB from `address` on, which must be mapped.
  bool probes_128k = false;

  bool im2col = false;
  uint32_t box[kMaxRank] = {};   ///< tiled: elements, before element strides thin them out
  int32_t lower_corner[3] = {};  ///< im2col, innermost spatial dimension (W) first
  int32_t upper_corner[3] = {};
  uint32_t channels_per_pixel = 0;
  uint32_t pixels_per_column = 0;
};

/// Whether the driver sets `probes_128k`. NOTE: those up to 595.71 at least set it for tensors that
/// are not dense whatever their size (NVIDIA's release notes, known issues), and so does this one.
bool driver_probes_128k(const TensorMap& map);

/// Bytes of one element; 0 for sub-byte types.
uint32_t element_bytes(DataType type);
/// Bits of one element in global memory.
uint32_t element_bits(DataType type);
/// Sub-byte types with gaps in shared memory.
inline bool has_gaps(DataType type) {
  return type == DataType::u4x16_align16 || type == DataType::u6x16_align16;
}
const char* to_string(DataType type);
const char* to_string(Swizzle swizzle);
/// Bytes of one swizzled row: 32, 64 or 128; 0 without swizzle.
uint32_t swizzle_span(Swizzle swizzle);

/// Checks a map as the driver does when it encodes one (CUDA driver API, "Tensor Map Object
/// Management"). Returns an empty text when it is legal, else the field, the value got, what is
/// legal and the nearest legal value. `compute_capability` is 90 or 100.
std::string validate(const TensorMap& map, int compute_capability);

/// Writes the 128 opaque bytes of a CUtensorMap. `map` must be valid.
void encode(const TensorMap& map, void* opaque);
/// Reads them back; false when the bytes are not a tensor map that `encode` wrote.
bool decode(const void* opaque, TensorMap& map);

/// Fields that tensormap.replace writes (PTX ISA, "tensormap.replace"), in the order of its text.
enum class Field : uint8_t {
  global_address,
  rank,  ///< less one
  box_dim,
  global_dim,
  global_stride,  ///< bytes; ordinal 0 is dimension 1's
  element_stride,
  elemtype,
  interleave_layout,
  swizzle_mode,
  swizzle_atomicity,
  fill_mode,
};
/// Replaces a field of an encoded tiled map. Returns what is wrong with the map, the ordinal or the
/// value, empty: nothing. Whether the fields go together is seen when the map is used: see
/// `was_replaced`.
std::string replace(void* opaque, Field field, uint32_t ordinal, uint64_t value);
/// Whether `replace` has changed the map, which then must be validated.
bool was_replaced(const void* opaque);
/// One line that says every field, for reports.
std::string describe(const TensorMap& map);

}  // namespace vgpu::tma
