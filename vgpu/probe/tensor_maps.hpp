// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "probe.hpp"

namespace probe {

/// A tensor and the box that TMA moves, as plain numbers. Dimension 0 is the innermost one.
struct TensorSpec {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  uint32_t element_bytes = 2;
  uint32_t rank = 2;
  std::array<uint64_t, 5> dims{1, 1, 1, 1, 1};
  std::array<uint64_t, 4> strides{};  ///< bytes, from dimension 1; 0: packed
  std::array<uint32_t, 5> box{1, 1, 1, 1, 1};
  std::array<uint32_t, 5> element_strides{1, 1, 1, 1, 1};
  int swizzle = 0;
  int fill = 0;
  // im2col
  bool im2col = false;
  std::array<int, 3> lower{}, upper{};
  uint32_t channels = 64, pixels = 64;

  uint64_t stride(int dim) const {
    if (strides[dim - 1]) return strides[dim - 1];
    return dim == 1 ? dims[0] * element_bytes : stride(dim - 1) * dims[dim - 1];
  }
  /// Bytes that one load brings, as the transaction count sees them.
  uint32_t box_bytes() const {
    if (im2col) return channels * pixels * element_bytes;
    uint32_t bytes = box[0] * element_bytes;
    for (uint32_t i = 1; i < rank; ++i) {
      bytes *= (box[i] + element_strides[i] - 1) / element_strides[i];
    }
    return bytes;
  }
};

/// Where the box starts, and the filter tap of im2col.
struct Start {
  int c[5] = {};
  uint16_t offset[3] = {};
};

inline int encode(const TensorSpec& spec, void* address, CUtensorMap& map) {
  std::memset(&map, 0, sizeof map);
  cuuint64_t strides[4] = {};
  for (uint32_t i = 1; i < spec.rank; ++i) strides[i - 1] = spec.stride(static_cast<int>(i));
  const auto swizzle = static_cast<CUtensorMapSwizzle>(spec.swizzle);
  const auto fill = static_cast<CUtensorMapFloatOOBfill>(spec.fill);
  const cuuint64_t* dims = reinterpret_cast<const cuuint64_t*>(spec.dims.data());
  if (spec.im2col) {
    static const auto encode_im2col = reinterpret_cast<decltype(&cuTensorMapEncodeIm2col)>(
        driver_function("cuTensorMapEncodeIm2col"));
    return encode_im2col(&map, spec.type, spec.rank, address, dims, strides, spec.lower.data(),
                         spec.upper.data(), spec.channels, spec.pixels, spec.element_strides.data(),
                         CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                         fill);
  }
  static const auto encode_tiled = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(
      driver_function("cuTensorMapEncodeTiled"));
  return encode_tiled(&map, spec.type, spec.rank, address, dims, strides, spec.box.data(),
                      spec.element_strides.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                      CU_TENSOR_MAP_L2_PROMOTION_NONE, fill);
}

inline std::string text(const Start& at, uint32_t rank) {
  std::string out = "at ";
  for (uint32_t i = 0; i < rank; ++i) out += (i ? "," : "") + std::to_string(at.c[i]);
  return out;
}

}  // namespace probe
