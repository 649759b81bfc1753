// SPDX-License-Identifier: Apache-2.0
#include "kernels/common/tensor_map.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "core/text.hpp"
#include "kernels/common/launch.hpp"

namespace convoy {
namespace {

// A function of the driver, reached through the runtime so that libcuda is never linked. All that
// are called here are as old as tensor maps: CUDA 12.0.
template <typename Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess || function == nullptr) {
    throw Error(Status::unsupported,
                text("the CUDA driver has no ", name,
                     "; legal: a driver for CUDA 12.0 or newer: ", cudaGetErrorString(error)));
  }
  return reinterpret_cast<Function>(function);
}

// NOTE: the driver's functions want a context that is current on the thread. The runtime makes one
// current at a thread's first call that works on the device; a thread may come here before any.
void make_context_current() {
  int device = 0;
  require_runtime("cudaGetDevice", [&] { return cudaGetDevice(&device); });
  require_runtime("cudaSetDevice", [&] { return cudaSetDevice(device); });
}

template <typename Map>
CUtensorMapDataType data_type(const Map& map) {
  switch (map.dtype) {
    case DType::bf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::fp16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::fp32:
      return map.as_tf32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
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

// ---- Refusals -----------------------------------------------------------------------------------

std::string indexed(const char* field, int i) {
  return text(field, "[", i, "]");
}

std::string out_of_range(const char* map, const std::string& field, std::int64_t value,
                         std::int64_t low, std::int64_t high) {
  return text(map, " tensor map: ", field, " = ", value, "; legal: ", low, " to ", high,
              "; nearest: ", std::clamp(value, low, high));
}

std::string not_whole_chunks(const char* map, const std::string& field, std::int64_t bytes) {
  return text(map, " tensor map: ", field, " = ", bytes,
              " bytes; legal: a multiple of 16; nearest: ", (bytes + 15) / 16 * 16);
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
      return out_of_range(map.name, indexed("stride in bytes", i), map.strides_bytes[i], 16,
                          kMaxStride);
    }
    if (i > 0 && map.strides_bytes[i] % 16 != 0) {
      return not_whole_chunks(map.name, indexed("stride", i), map.strides_bytes[i]);
    }
    if (map.element_strides[i] < 1 || map.element_strides[i] > 8) {
      return out_of_range(map.name, indexed("element stride", i), map.element_strides[i], 1, 8);
    }
  }
  const std::int64_t inner_bytes = inner_elements * static_cast<std::int64_t>(size_of(map.dtype));
  if (inner_bytes % 16 != 0) return not_whole_chunks(map.name, "innermost box", inner_bytes);
  const int span = static_cast<int>(map.swizzle);
  if (map.swizzle != Swizzle::none && inner_bytes > span) {
    return text(map.name, " tensor map: innermost box = ", inner_bytes, " bytes; legal: at most ",
                span, " (swizzle span); nearest: ", span);
  }
  return {};
}

void check_address(const char* name, const void* address) {
  if (address == nullptr || reinterpret_cast<std::uintptr_t>(address) % 16 != 0) {
    throw Error(Status::invalid_argument,
                text(name, " pointer = ", address, "; legal: not null, a multiple of 16"));
  }
}

// ---- Encoding -----------------------------------------------------------------------------------

// Stands for the address of a map that is encoded before pointers are known.
void* placeholder() {
  return reinterpret_cast<void*>(std::uintptr_t{1} << 16);
}

// Where the driver writes a map, which it wants 64-byte aligned. NOTE: not the returned object: GCC
// 12 gives temporaries that functions return only 16 bytes without optimisation.
struct Encoded {
  CUtensorMap map;
};

// NOTE: on Hopper the bit is reserved; in the drivers that are mended it is what they set. The
// allocation is unknown here, but no smaller than what the map describes.
constexpr std::uint64_t kProbes128k = std::uint64_t{1} << (85 - 64);
constexpr std::int64_t kProbedBytes = 128 << 10;

void clear_probes_128k(CUtensorMap& map) {
  std::uint64_t word;
  std::memcpy(&word, reinterpret_cast<char*>(&map) + 8, sizeof word);
  word &= ~kProbes128k;
  std::memcpy(reinterpret_cast<char*>(&map) + 8, &word, sizeof word);
}

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

// The driver refused what `tensor_map_refusal` let pass: every field that both kinds have, then
// `rest`.
template <typename Map>
[[noreturn]] void throw_refused(const char* function, CUresult result, const Map& map,
                                const std::string& rest) {
  std::string fields = text("rank ", map.rank, ", type ", to_string(map.dtype), ", swizzle ",
                            static_cast<int>(map.swizzle), ", address ", placeholder());
  for (int i = 0; i < map.rank; ++i) {
    fields += text("; dimension ", i, ": extent ", map.extents[i], ", stride ",
                   i == 0 ? static_cast<std::int64_t>(size_of(map.dtype)) : map.strides_bytes[i],
                   " bytes, element stride ", map.element_strides[i]);
  }
  throw Error(Status::launch_failure, text(map.name, " tensor map: ", function, " returned code ",
                                           static_cast<int>(result), ": ", fields, rest));
}

template <typename Map>
std::int64_t span_of(const Map& map) {
  const auto element = static_cast<std::int64_t>(size_of(map.dtype));
  std::int64_t span = map.extents[0] * element;
  for (int i = 1; i < map.rank; ++i) span += (map.extents[i] - 1) * map.strides_bytes[i];
  return span;
}

}  // namespace

std::int64_t span_bytes(const TiledTensorMap& map) {
  return span_of(map);
}
std::int64_t span_bytes(const Im2colTensorMap& map) {
  return span_of(map);
}

bool probes_128k(const CUtensorMap& map) {
  std::uint64_t word;
  std::memcpy(&word, reinterpret_cast<const char*>(&map) + 8, sizeof word);
  return (word & kProbes128k) != 0;
}

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

CUtensorMap encode_template(const TiledTensorMap& map) {
  const std::string reason = tensor_map_refusal(map);
  if (!reason.empty()) throw Error(Status::unsupported, reason);
  static const auto encode_tiled =
      driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  const DriverArrays arrays = driver_arrays(map);
  cuuint32_t box[5] = {};
  for (int i = 0; i < map.rank; ++i) box[i] = static_cast<cuuint32_t>(map.box[i]);
  Encoded encoded;
  std::memset(&encoded.map, 0, sizeof encoded.map);
  make_context_current();
  const CUresult result =
      encode_tiled(&encoded.map, data_type(map), static_cast<cuuint32_t>(map.rank), placeholder(),
                   arrays.extents, arrays.strides, box, arrays.element_strides,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_mode(map.swizzle),
                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    std::string boxes = "; box ";
    for (int i = 0; i < map.rank; ++i) boxes += text(i > 0 ? "x" : "", map.box[i]);
    throw_refused("cuTensorMapEncodeTiled", result, map, boxes);
  }
  if (span_bytes(map) < kProbedBytes) clear_probes_128k(encoded.map);
  return encoded.map;
}

CUtensorMap encode_template(const Im2colTensorMap& map) {
  const std::string reason = tensor_map_refusal(map);
  if (!reason.empty()) throw Error(Status::unsupported, reason);
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
  make_context_current();
  const CUresult result = encode_im2col(
      &encoded.map, data_type(map), static_cast<cuuint32_t>(map.rank), placeholder(),
      arrays.extents, arrays.strides, map.lower_corner.data(), map.upper_corner.data(),
      static_cast<cuuint32_t>(map.channels), static_cast<cuuint32_t>(map.pixels),
      arrays.element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_mode(map.swizzle),
      strided ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    std::string rest;
    for (int i = 0; i < map.rank - 2; ++i) {
      rest += text("; corners ", map.lower_corner[i], ", ", map.upper_corner[i]);
    }
    rest += text("; ", map.pixels, " pixels of ", map.channels, " channels");
    throw_refused("cuTensorMapEncodeIm2col", result, map, rest);
  }
  if (span_bytes(map) < kProbedBytes) clear_probes_128k(encoded.map);
  return encoded.map;
}

CUtensorMap at_address(const CUtensorMap& map, const char* name, const void* address) {
  check_address(name, address);
  static const auto replace_address =
      driver_function<decltype(&cuTensorMapReplaceAddress)>("cuTensorMapReplaceAddress");
  Encoded encoded{map};
  CUresult result = replace_address(&encoded.map, const_cast<void*>(address));
  if (result == CUDA_ERROR_INVALID_CONTEXT) {
    make_context_current();
    result = replace_address(&encoded.map, const_cast<void*>(address));
  }
  if (result != CUDA_SUCCESS) {
    throw Error(Status::launch_failure,
                text(name, " tensor map: cuTensorMapReplaceAddress returned code ",
                     static_cast<int>(result), " for address ", address));
  }
  if (!probes_128k(map)) clear_probes_128k(encoded.map);
  return encoded.map;
}

}  // namespace convoy
