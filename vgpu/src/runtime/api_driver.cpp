// SPDX-License-Identifier: Apache-2.0
// The driver API's tensor maps, versions, errors, device queries, memset; api_driver_work.cpp has
// modules, memory and launches. libcuda.so.1 is the same file as libcudart.so.13.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <string_view>

#include "runtime/context.hpp"
#include "runtime/driver.hpp"
#include "runtime/streams.hpp"
#include "tma/tensor_map.hpp"

using namespace vgpu;
using namespace vgpu::runtime;

static_assert(int(tma::DataType::u6x16_align16) == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B);
static_assert(int(tma::DataType::bfloat16) == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
static_assert(int(tma::Swizzle::b128_atom64) == CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B);
static_assert(int(tma::OobFill::nan_request_zero_fma) ==
              CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA);

namespace {

// The fields that both encoders share. `strides` has rank - 1 entries, from dimension 1.
tma::TensorMap common(CUtensorMapDataType type, cuuint32_t rank, void* address,
                      const cuuint64_t* dims, const cuuint64_t* strides,
                      const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                      CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                      CUtensorMapFloatOOBfill fill) {
  tma::TensorMap map;
  map.type = static_cast<tma::DataType>(type);
  map.rank = rank;
  map.address = reinterpret_cast<uint64_t>(address);
  map.strides[0] = static_cast<unsigned>(type) < 16 ? tma::element_bytes(map.type) : 0;
  for (cuuint32_t i = 0; i < rank && i < tma::TensorMap::kMaxRank; ++i) {
    map.dims[i] = dims[i];
    map.element_strides[i] = element_strides[i];
    if (i > 0) map.strides[i] = strides[i - 1];
  }
  map.interleave = static_cast<tma::Interleave>(interleave);
  map.swizzle = static_cast<tma::Swizzle>(swizzle);
  map.l2_promotion = static_cast<uint8_t>(promotion);
  map.fill = static_cast<tma::OobFill>(fill);
  return map;
}

// Seen on an H200 (driver 580): the functions of tensor maps refuse threads without a context.
bool refuses_thread(const char* api) {
  if (context_is_current) return false;
  log(1, std::string("CUDA_ERROR_INVALID_CONTEXT: ") + api +
             ": no context is current on this thread; a call of the runtime that works on the "
             "device makes one");
  return true;
}

CUresult finish(const char* api, const tma::TensorMap& map, CUtensorMap* out) {
  if (refuses_thread(api)) return CUDA_ERROR_INVALID_CONTEXT;
  std::string problem;
  if (out == nullptr || reinterpret_cast<uint64_t>(out) % 64 != 0) {
    problem = "tensorMap must be a 64-byte aligned address";
  } else {
    problem = tma::validate(map, static_cast<int>(Context::get().device.arch));
  }
  if (!problem.empty()) {
    log(1, std::string("CUDA_ERROR_INVALID_VALUE: ") + api + ": " + problem);
    return CUDA_ERROR_INVALID_VALUE;
  }
  tma::encode(map, out);
  log(3, std::string(api) + ": " + tma::describe(map));
  return CUDA_SUCCESS;
}

// What both encoders do last. Replacing an address leaves the bit as it is.
CUresult finish_encoding(const char* api, tma::TensorMap& map, CUtensorMap* out) {
  map.probes_128k = Context::get().device.arch >= 100 && map.rank <= tma::TensorMap::kMaxRank &&
                    tma::driver_probes_128k(map);
  return finish(api, map, out);
}

CUresult to_driver(cudaError_t error) {
  return static_cast<CUresult>(error);  // the codes that calls here return are the same numbers
}

CUresult memset_driver(CUdeviceptr target, size_t pitch, uint32_t value, uint32_t element_bytes,
                       size_t width, size_t height, CUstream stream) {
  return to_driver(call([&](Context& context) {
    const Fill fill{
        reinterpret_cast<void*>(target), pitch, 0, value, element_bytes, width, height, 1};
    if (const cudaError_t error = check_fill(context, fill); error) return error;
    return enqueue(context, stream, fill, cudaGraphNodeTypeMemset);
  }));
}

}  // namespace

VGPU_API CUresult cuTensorMapEncodeTiled(
    CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank, void* address,
    const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
    const cuuint32_t* element_strides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  tma::TensorMap map = common(type, rank, address, dims, strides, element_strides, interleave,
                              swizzle, promotion, fill);
  for (cuuint32_t i = 0; i < rank && i < tma::TensorMap::kMaxRank; ++i) map.box[i] = box[i];
  return finish_encoding("cuTensorMapEncodeTiled", map, out);
}

VGPU_API CUresult cuTensorMapEncodeIm2col(
    CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank, void* address,
    const cuuint64_t* dims, const cuuint64_t* strides, const int* lower, const int* upper,
    cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* element_strides,
    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
    CUtensorMapFloatOOBfill fill) {
  tma::TensorMap map = common(type, rank, address, dims, strides, element_strides, interleave,
                              swizzle, promotion, fill);
  map.im2col = true;
  map.channels_per_pixel = channels;
  map.pixels_per_column = pixels;
  for (cuuint32_t i = 0; i + 2 < rank && i < 3; ++i) {
    map.lower_corner[i] = lower[i];
    map.upper_corner[i] = upper[i];
  }
  return finish_encoding("cuTensorMapEncodeIm2col", map, out);
}

VGPU_API CUresult cuTensorMapEncodeIm2colWide(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                              const cuuint64_t*, const cuuint64_t*, int, int,
                                              cuuint32_t, cuuint32_t, const cuuint32_t*,
                                              CUtensorMapInterleave, CUtensorMapIm2ColWideMode,
                                              CUtensorMapSwizzle, CUtensorMapL2promotion,
                                              CUtensorMapFloatOOBfill) {
  log(1,
      "CUDA_ERROR_NOT_SUPPORTED: cuTensorMapEncodeIm2colWide: the .im2col::w modes are not "
      "modelled; use cuTensorMapEncodeIm2col");
  return CUDA_ERROR_NOT_SUPPORTED;
}

VGPU_API CUresult cuTensorMapReplaceAddress(CUtensorMap* out, void* address) {
  if (refuses_thread("cuTensorMapReplaceAddress")) return CUDA_ERROR_INVALID_CONTEXT;
  tma::TensorMap map;
  if (out == nullptr || !tma::decode(out, map)) {
    log(1, "CUDA_ERROR_INVALID_VALUE: cuTensorMapReplaceAddress: not a tensor map");
    return CUDA_ERROR_INVALID_VALUE;
  }
  // NOTE: measured on an H200.
  if (address == nullptr) {
    log(1, "CUDA_ERROR_INVALID_VALUE: cuTensorMapReplaceAddress: globalAddress is null");
    return CUDA_ERROR_INVALID_VALUE;
  }
  map.address = reinterpret_cast<uint64_t>(address);
  return finish("cuTensorMapReplaceAddress", map, out);
}

VGPU_API CUresult cuInit(unsigned) {
  return CUDA_SUCCESS;
}
VGPU_API CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}
VGPU_API CUresult cuDeviceGetCount(int* count) {
  return to_driver(cudaGetDeviceCount(count));
}
VGPU_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (ordinal != 0) return CUDA_ERROR_INVALID_DEVICE;  // there is one
  *device = ordinal;
  return CUDA_SUCCESS;
}
VGPU_API CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  std::snprintf(name, static_cast<size_t>(length), "%s", Context::get().device.properties.name);
  return CUDA_SUCCESS;
}
// The two enumerations have the same numbers.
VGPU_API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return to_driver(cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device));
}
VGPU_API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = Context::get().memory.capacity();
  return CUDA_SUCCESS;
}
VGPU_API CUresult cuCtxGetDevice(CUdevice* device) {
  *device = 0;
  return CUDA_SUCCESS;
}
// Any non-null handle: there is one context.
VGPU_API CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = context_is_current ? reinterpret_cast<CUcontext>(&Context::get()) : nullptr;
  return CUDA_SUCCESS;
}
VGPU_API CUresult cuCtxSetCurrent(CUcontext context) {
  context_is_current = context != nullptr;
  return CUDA_SUCCESS;
}
VGPU_API CUresult cuCtxSynchronize() {
  return to_driver(cudaDeviceSynchronize());
}

VGPU_API CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = cudaGetErrorString(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}
VGPU_API CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = cudaGetErrorName(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

VGPU_API CUresult cuMemsetD8_v2(CUdeviceptr target, unsigned char value, size_t count) {
  return memset_driver(target, count, value, 1, count, 1, nullptr);
}
VGPU_API CUresult cuMemsetD16_v2(CUdeviceptr target, unsigned short value, size_t count) {
  return memset_driver(target, count * 2, value, 2, count, 1, nullptr);
}
VGPU_API CUresult cuMemsetD32_v2(CUdeviceptr target, unsigned value, size_t count) {
  return memset_driver(target, count * 4, value, 4, count, 1, nullptr);
}
VGPU_API CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t count,
                                  CUstream stream) {
  return memset_driver(target, count, value, 1, count, 1, stream);
}
VGPU_API CUresult cuMemsetD16Async(CUdeviceptr target, unsigned short value, size_t count,
                                   CUstream stream) {
  return memset_driver(target, count * 2, value, 2, count, 1, stream);
}
VGPU_API CUresult cuMemsetD32Async(CUdeviceptr target, unsigned value, size_t count,
                                   CUstream stream) {
  return memset_driver(target, count * 4, value, 4, count, 1, stream);
}

namespace {

void* find_function(std::string_view name, int version) {
  static const EntryPoint entry_points[] = {
      entry("cuTensorMapEncodeTiled", cuTensorMapEncodeTiled),
      entry("cuTensorMapEncodeIm2col", cuTensorMapEncodeIm2col),
      entry("cuTensorMapEncodeIm2colWide", cuTensorMapEncodeIm2colWide),
      entry("cuTensorMapReplaceAddress", cuTensorMapReplaceAddress),
      entry("cuInit", cuInit),
      entry("cuDriverGetVersion", cuDriverGetVersion),
      entry("cuDeviceGetCount", cuDeviceGetCount),
      entry("cuDeviceGet", cuDeviceGet),
      entry("cuDeviceGetName", cuDeviceGetName),
      entry("cuDeviceGetAttribute", cuDeviceGetAttribute),
      entry("cuDeviceTotalMem", cuDeviceTotalMem_v2),
      entry("cuCtxGetDevice", cuCtxGetDevice),
      entry("cuCtxGetCurrent", cuCtxGetCurrent),
      entry("cuCtxSetCurrent", cuCtxSetCurrent),
      entry("cuCtxSynchronize", cuCtxSynchronize),
      entry("cuGetErrorString", cuGetErrorString),
      entry("cuGetErrorName", cuGetErrorName),
      entry("cuMemsetD8", cuMemsetD8_v2),
      entry("cuMemsetD16", cuMemsetD16_v2),
      entry("cuMemsetD32", cuMemsetD32_v2),
      entry("cuMemsetD8Async", cuMemsetD8Async),
      entry("cuMemsetD16Async", cuMemsetD16Async),
      entry("cuMemsetD32Async", cuMemsetD32Async),
  };
  void* found = find_entry_point(entry_points, name);
  if (found == nullptr) found = find_driver_work(name, version);
  return found ? found : find_driver_graph(name);
}

}  // namespace

// As on a GPU, an unknown name is no error of the call: the status says it.
VGPU_API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function,
                                                      unsigned version, unsigned long long,
                                                      cudaDriverEntryPointQueryResult* status) {
  return query([&](Context&) {
    if (name == nullptr || function == nullptr) {
      return fail(cudaErrorInvalidValue, "the name or the result is null");
    }
    *function = find_function(name, static_cast<int>(version));
    if (status) {
      *status = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    }
    if (*function == nullptr) {
      log(1, std::string("driver entry point ") + name + " is not provided by the virtual GPU");
      if (status == nullptr) return cudaErrorSymbolNotFound;
    }
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaGetDriverEntryPoint(const char* name, void** function,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(name, function, CUDART_VERSION, flags, status);
}
VGPU_API CUresult cuGetProcAddress_v2(const char* name, void** function, int version, cuuint64_t,
                                      CUdriverProcAddressQueryResult* status) {
  *function = find_function(name, version);
  if (status) {
    *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
