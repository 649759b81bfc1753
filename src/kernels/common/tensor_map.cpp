// SPDX-License-Identifier: Apache-2.0
#include "kernels/common/tensor_map.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "convoy/error.hpp"

namespace convoy {
namespace {

// The driver's encoders, reached through the runtime so that libcuda is never linked.
template <typename Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess || function == nullptr) {
    throw Error(Status::unsupported,
                std::string("the CUDA driver has no ") + name +
                    " (needs a driver for CUDA 12.0 or newer): " + cudaGetErrorString(error));
  }
  return reinterpret_cast<Function>(function);
}

CUtensorMapDataType data_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::fp16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::fp32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  }
  throw Error(Status::internal, "tensor map: unknown element type");
}

CUtensorMapSwizzle swizzle_mode(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::none:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
    case Swizzle::b32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case Swizzle::b64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case Swizzle::b128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
  }
  throw Error(Status::internal, "tensor map: unknown swizzle");
}

std::string out_of_range(const char* map, const std::string& field, std::int64_t value,
                         std::int64_t low, std::int64_t high) {
  return std::string(map) + " tensor map: " + field + " = " + std::to_string(value) +
         " is outside [" + std::to_string(low) + ", " + std::to_string(high) + "]";
}

std::string indexed(const char* field, int i) {
  return std::string(field) + "[" + std::to_string(i) + "]";
}

// What tiled and im2col maps have in common: rank, extents, strides, element strides, swizzle span.
template <typename Map>
std::string common_refusal(const Map& map, std::int64_t inner_elements, int lowest_rank) {
  constexpr std::int64_t kMaxExtent = std::int64_t{1} << 32;
  constexpr std::int64_t kMaxStride = (std::int64_t{1} << 40) - 16;
  if (map.rank < lowest_rank || map.rank > 5) {
    return out_of_range(map.name, "rank", map.rank, lowest_rank, 5);
  }
  for (int i = 0; i < map.rank; ++i) {
    if (map.extents[i] < 1 || map.extents[i] > kMaxExtent) {
      return out_of_range(map.name, indexed("extent", i), map.extents[i], 1, kMaxExtent);
    }
    if (i > 0 && (map.strides_bytes[i] < 16 || map.strides_bytes[i] > kMaxStride)) {
      return out_of_range(map.name, indexed("stride", i) + " (bytes)", map.strides_bytes[i], 16,
                          kMaxStride);
    }
    if (i > 0 && map.strides_bytes[i] % 16 != 0) {
      return std::string(map.name) + " tensor map: " + indexed("stride", i) + " = " +
             std::to_string(map.strides_bytes[i]) + " bytes is not a multiple of 16";
    }
    if (map.element_strides[i] < 1 || map.element_strides[i] > 8) {
      return out_of_range(map.name, indexed("element stride", i), map.element_strides[i], 1, 8);
    }
  }
  const std::int64_t inner_bytes = inner_elements * static_cast<std::int64_t>(size_of(map.dtype));
  if (inner_bytes % 16 != 0) {
    return std::string(map.name) + " tensor map: innermost box of " + std::to_string(inner_bytes) +
           " bytes is not a multiple of 16";
  }
  if (map.swizzle != Swizzle::none && inner_bytes > static_cast<int>(map.swizzle)) {
    return std::string(map.name) + " tensor map: innermost box of " + std::to_string(inner_bytes) +
           " bytes is wider than the swizzle of " + std::to_string(static_cast<int>(map.swizzle));
  }
  return {};
}

void check_address(const char* name, const void* address) {
  if (address == nullptr || reinterpret_cast<std::uintptr_t>(address) % 16 != 0) {
    throw Error(Status::invalid_argument,
                std::string(name) + " pointer " +
                    std::to_string(reinterpret_cast<std::uintptr_t>(address)) +
                    " is null or not aligned to 16 bytes");
  }
}

template <typename Map>
std::string describe(const Map& map) {
  std::string text = std::string("rank ") + std::to_string(map.rank) + ", type " +
                     std::to_string(static_cast<int>(map.dtype)) + ", swizzle " +
                     std::to_string(static_cast<int>(map.swizzle)) + ", address " +
                     std::to_string(reinterpret_cast<std::uintptr_t>(map.address));
  for (int i = 0; i < map.rank; ++i) {
    text += "; dimension " + std::to_string(i) + ": extent " + std::to_string(map.extents[i]) +
            ", stride " +
            std::to_string(i == 0 ? static_cast<std::int64_t>(size_of(map.dtype))
                                  : map.strides_bytes[i]) +
            " B, element stride " + std::to_string(map.element_strides[i]);
  }
  return text;
}

// Where the driver writes a map, which it wants 64-byte aligned. NOTE: not the returned object: GCC
// 12 gives temporaries that functions return only 16 bytes without optimisation.
struct Encoded {
  CUtensorMap map;
};

// Extents, outer strides and element strides in the driver's types.
struct DriverArrays {
  cuuint64_t extents[5];
  cuuint64_t strides[4];
  cuuint32_t element_strides[5];
};

template <typename Map>
DriverArrays driver_arrays(const Map& map) {
  DriverArrays arrays{};
  for (int i = 0; i < map.rank; ++i) {
    arrays.extents[i] = static_cast<cuuint64_t>(map.extents[i]);
    arrays.element_strides[i] = static_cast<cuuint32_t>(map.element_strides[i]);
    if (i > 0) arrays.strides[i - 1] = static_cast<cuuint64_t>(map.strides_bytes[i]);
  }
  return arrays;
}

}  // namespace

std::string tensor_map_refusal(const TiledTensorMap& map) {
  std::string reason = common_refusal(map, map.box[0], 1);
  if (!reason.empty()) return reason;
  for (int i = 0; i < map.rank; ++i) {
    if (map.box[i] < 1 || map.box[i] > 256) {
      return out_of_range(map.name, indexed("box", i), map.box[i], 1, 256);
    }
  }
  return {};
}

std::string tensor_map_refusal(const Im2colTensorMap& map) {
  std::string reason = common_refusal(map, map.channels, 4);
  if (!reason.empty()) return reason;
  if (map.channels < 1 || map.channels > 256) {
    return out_of_range(map.name, "channels of a pixel", map.channels, 1, 256);
  }
  if (map.pixels < 1 || map.pixels > 1024) {
    return out_of_range(map.name, "pixels of a column", map.pixels, 1, 1024);
  }
  // NOTE: corners are signed 8-bit values for two spatial dimensions and 5-bit ones for three
  // (CUDA driver API, cuTensorMapEncodeIm2col).
  const int low = map.rank == 4 ? -128 : -16;
  const int high = map.rank == 4 ? 127 : 15;
  for (int i = 0; i < map.rank - 2; ++i) {
    if (map.lower_corner[i] < low || map.lower_corner[i] > high) {
      return out_of_range(map.name, indexed("lower corner", i), map.lower_corner[i], low, high);
    }
    if (map.upper_corner[i] < low || map.upper_corner[i] > high) {
      return out_of_range(map.name, indexed("upper corner", i), map.upper_corner[i], low, high);
    }
  }
  return {};
}

CUtensorMap encode(const TiledTensorMap& map) {
  const std::string reason = tensor_map_refusal(map);
  if (!reason.empty()) throw Error(Status::unsupported, reason);
  check_address(map.name, map.address);
  static const auto encode_tiled =
      driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  const DriverArrays arrays = driver_arrays(map);
  cuuint32_t box[5] = {};
  for (int i = 0; i < map.rank; ++i) box[i] = static_cast<cuuint32_t>(map.box[i]);
  Encoded encoded;
  std::memset(&encoded.map, 0, sizeof encoded.map);
  const CUresult result =
      encode_tiled(&encoded.map, data_type(map.dtype), static_cast<cuuint32_t>(map.rank),
                   const_cast<void*>(map.address), arrays.extents, arrays.strides, box,
                   arrays.element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_mode(map.swizzle),
                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    std::string boxes;
    for (int i = 0; i < map.rank; ++i) boxes += (i ? "x" : "") + std::to_string(map.box[i]);
    throw Error(Status::launch_failure, std::string(map.name) +
                                            ": cuTensorMapEncodeTiled refused with code " +
                                            std::to_string(static_cast<int>(result)) + ": " +
                                            describe(map) + "; box " + boxes);
  }
  return encoded.map;
}

CUtensorMap encode(const Im2colTensorMap& map) {
  const std::string reason = tensor_map_refusal(map);
  if (!reason.empty()) throw Error(Status::unsupported, reason);
  check_address(map.name, map.address);
  static const auto encode_im2col =
      driver_function<decltype(&cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col");
  const DriverArrays arrays = driver_arrays(map);
  // NOTE: a miss brings the 256 bytes around it into L2, except with strides: measured, 3x3 filters
  // of stride 2 are 2 to 9 % faster with 128 bytes, which is what a box asks of a pixel.
  const bool strided =
      std::any_of(map.element_strides.begin() + 1, map.element_strides.begin() + map.rank,
                  [](int stride) { return stride > 1; });
  Encoded encoded;
  std::memset(&encoded.map, 0, sizeof encoded.map);
  const CUresult result = encode_im2col(
      &encoded.map, data_type(map.dtype), static_cast<cuuint32_t>(map.rank),
      const_cast<void*>(map.address), arrays.extents, arrays.strides, map.lower_corner.data(),
      map.upper_corner.data(), static_cast<cuuint32_t>(map.channels),
      static_cast<cuuint32_t>(map.pixels), arrays.element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
      swizzle_mode(map.swizzle),
      strided ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    std::string corners;
    for (int i = 0; i < map.rank - 2; ++i) {
      corners += "; corners " + std::to_string(map.lower_corner[i]) + ", " +
                 std::to_string(map.upper_corner[i]);
    }
    throw Error(Status::launch_failure,
                std::string(map.name) + ": cuTensorMapEncodeIm2col refused with code " +
                    std::to_string(static_cast<int>(result)) + ": " + describe(map) + corners +
                    "; " + std::to_string(map.pixels) + " pixels of " +
                    std::to_string(map.channels) + " channels");
  }
  return encoded.map;
}

}  // namespace convoy
