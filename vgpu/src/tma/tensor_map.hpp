// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace vgpu::tma {

// The enumerations keep the values of cuda.h's CUtensorMap* types; the runtime asserts it.

enum class DataType : uint8_t {
  kUint8 = 0,
  kUint16 = 1,
  kUint32 = 2,
  kInt32 = 3,
  kUint64 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat32Ftz = 10,
  kTfloat32 = 11,
  kTfloat32Ftz = 12,
  k16U4Align8B = 13,  ///< sub-byte types of sm_100: packed in global memory, and in shared memory …
  k16U4Align16B = 14,  ///< … sixteen in 8 bytes, then a gap of 8
  k16U6Align16B = 15,  ///< … sixteen in 12 bytes, then a gap of 4
};

enum class Interleave : uint8_t { kNone = 0, k16B = 1, k32B = 2 };

enum class Swizzle : uint8_t {
  kNone = 0,
  k32B = 1,
  k64B = 2,
  k128B = 3,
  k128BAtom32B = 4,
  k128BAtom32BFlip8B = 5,
  k128BAtom64B = 6,
};

enum class OobFill : uint8_t { kZero = 0, kNanRequestZeroFma = 1 };

/// What a CUtensorMap holds, decoded. Dimension 0 is the innermost (contiguous) one.
struct TensorMap {
  static constexpr int kMaxRank = 5;

  DataType type = DataType::kUint8;
  uint32_t rank = 0;                        ///< 1 to 5 tiled, 3 to 5 im2col
  uint64_t address = 0;                     ///< global address of element (0, …, 0)
  uint64_t dims[kMaxRank] = {};             ///< elements
  uint64_t strides[kMaxRank] = {};          ///< bytes; strides[0] is the element size
  uint32_t element_strides[kMaxRank] = {};  ///< 1 to 8
  Interleave interleave = Interleave::kNone;
  Swizzle swizzle = Swizzle::kNone;
  uint8_t l2_promotion = 0;  ///< a hint: no effect on results
  OobFill fill = OobFill::kZero;

  bool im2col = false;
  uint32_t box[kMaxRank] = {};   ///< tiled: elements, before element strides thin them out
  int32_t lower_corner[3] = {};  ///< im2col, innermost spatial dimension (W) first
  int32_t upper_corner[3] = {};
  uint32_t channels_per_pixel = 0;
  uint32_t pixels_per_column = 0;
};

/// Bytes of one element; 0 for sub-byte types.
uint32_t element_bytes(DataType type);
/// Bits of one element in global memory.
uint32_t element_bits(DataType type);
/// Sub-byte types with gaps in shared memory.
inline bool has_gaps(DataType type) {
  return type == DataType::k16U4Align16B || type == DataType::k16U6Align16B;
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
/// One line that says every field, for reports.
std::string describe(const TensorMap& map);

}  // namespace vgpu::tma
