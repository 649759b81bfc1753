// SPDX-License-Identifier: Apache-2.0
// The driver API's contexts, modules, memory, streams, events and launches (graphs are in
// api_driver_graph.cpp): each call is the runtime's of the same meaning. Handles of streams,
// events, graphs and kernels are the runtime's; both APIs give the same numbers to the errors that
// occur here (CUDA Driver API, "CUresult").
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/context.hpp"
#include "runtime/driver.hpp"
#include "runtime/streams.hpp"

using namespace vgpu;
using namespace vgpu::runtime;

static_assert(int(CUDA_ERROR_ILLEGAL_ADDRESS) == cudaErrorIllegalAddress);
static_assert(int(CUDA_ERROR_NOT_FOUND) == cudaErrorSymbolNotFound);
static_assert(int(CUDA_ERROR_INVALID_HANDLE) == cudaErrorInvalidResourceHandle);
static_assert(int(CUDA_ERROR_NO_BINARY_FOR_GPU) == cudaErrorNoKernelImageForDevice);
static_assert(sizeof(CUlaunchAttribute) == sizeof(cudaLaunchAttribute));
static_assert(int(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) ==
              cudaFuncAttributeMaxDynamicSharedMemorySize);

namespace {

CUcontext the_context() {
  return reinterpret_cast<CUcontext>(&Context::get());
}

CUresult make_current(CUcontext* context, CUdevice device) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const cudaError_t error = cudaSetDevice(device);
  if (error == cudaSuccess) {
    context_is_current = true;
    *context = the_context();
  }
  return static_cast<CUresult>(error);
}

void* host(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}
cudaKernel_t kernel_of(CUfunction function) {
  return reinterpret_cast<cudaKernel_t>(function);
}

/// Pointers to the parameters of a kernel in one packed buffer (CU_LAUNCH_PARAM_BUFFER_POINTER).
cudaError_t unpack(CUfunction function, void** extra, std::vector<void*>& parameters) {
  char* buffer = nullptr;
  size_t bytes = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = static_cast<char*>(extra[1]);
    } else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      bytes = *static_cast<size_t*>(extra[1]);
    } else {
      return cudaErrorInvalidValue;
    }
  }
  return call([&](Context& context) {
    Kernel* kernel = context.find_kernel(function);
    if (kernel == nullptr) return fail(cudaErrorInvalidResourceHandle, "the function is unknown");
    const exec::KernelInfo& info = context.info(*kernel);
    if (buffer == nullptr || bytes < info.param_bytes) {
      return fail(cudaErrorInvalidValue, "kernel %s: %zu bytes of parameters; it takes %u",
                  kernel->name.c_str(), bytes, static_cast<unsigned>(info.param_bytes));
    }
    for (const auto& parameter : info.params) parameters.push_back(buffer + parameter.offset);
    return cudaSuccess;
  });
}

cudaError_t launch(CUfunction function, const cudaLaunchConfig_t& config, void** parameters,
                   void** extra) {
  std::vector<void*> unpacked;
  if (extra != nullptr) {
    if (const cudaError_t error = unpack(function, extra, unpacked); error) return error;
    parameters = unpacked.data();
  }
  return cudaLaunchKernelExC(&config, function, parameters);
}

/// Where one side of a 2-D copy starts; false: it is an array.
bool start_of(CUmemorytype type, const void* host_address, CUdeviceptr device, size_t x, size_t y,
              size_t pitch, char*& start) {
  if (type == CU_MEMORYTYPE_ARRAY) return false;
  char* base = type == CU_MEMORYTYPE_HOST
                   ? const_cast<char*>(static_cast<const char*>(host_address))
                   : static_cast<char*>(host(device));
  start = base + y * pitch + x;
  return true;
}

cudaError_t copy_2d(const CUDA_MEMCPY2D* c, CUstream stream, bool waits) {
  char *from = nullptr, *to = nullptr;
  if (c == nullptr) return cudaErrorInvalidValue;
  if (!start_of(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcXInBytes, c->srcY, c->srcPitch,
                from) ||
      !start_of(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstXInBytes, c->dstY, c->dstPitch,
                to)) {
    return call([](Context&) {
      return fail(cudaErrorNotSupported, "arrays belong to textures, which are not modelled");
    });
  }
  const size_t from_pitch = c->srcPitch ? c->srcPitch : c->WidthInBytes;
  const size_t to_pitch = c->dstPitch ? c->dstPitch : c->WidthInBytes;
  return waits ? cudaMemcpy2D(to, to_pitch, from, from_pitch, c->WidthInBytes, c->Height,
                              cudaMemcpyDefault)
               : cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, c->WidthInBytes, c->Height,
                                   cudaMemcpyDefault, stream);
}

}  // namespace

// ---- contexts: there is one

VGPU_API CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams*, unsigned,
                                 CUdevice device) {
  return make_current(context, device);
}
VGPU_API CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam*, int, unsigned,
                                 CUdevice device) {
  return make_current(context, device);
}
VGPU_API CUresult cuCtxCreate_v2(CUcontext* context, unsigned, CUdevice device) {
  return make_current(context, device);
}
VGPU_API CUresult cuCtxDestroy_v2(CUcontext) {
  const CUresult result = VGPU_FORWARD(cudaDeviceSynchronize());
  context_is_current = false;
  return result;
}
VGPU_API CUresult cuCtxPushCurrent_v2(CUcontext context) {
  context_is_current = context != nullptr;
  return context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
VGPU_API CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (!context_is_current) return CUDA_ERROR_INVALID_CONTEXT;
  if (context) *context = the_context();
  context_is_current = false;
  return CUDA_SUCCESS;
}
VGPU_API CUresult cuCtxGetApiVersion(CUcontext, unsigned* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}
VGPU_API CUresult cuCtxGetFlags(unsigned* flags) {
  *flags = 0;
  return CUDA_SUCCESS;
}
VGPU_API CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  return VGPU_FORWARD(cudaDeviceSetLimit(static_cast<cudaLimit>(limit), value));
}
VGPU_API CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  return VGPU_FORWARD(cudaDeviceGetLimit(value, static_cast<cudaLimit>(limit)));
}
VGPU_API CUresult cuCtxSetCacheConfig(CUfunc_cache) {
  return CUDA_SUCCESS;
}
VGPU_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return VGPU_FORWARD(cudaDeviceGetStreamPriorityRange(least, greatest));
}
VGPU_API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  // Retaining does not make it current.
  const bool before = context_is_current;
  const CUresult result = make_current(context, device);
  context_is_current = before;
  return result;
}
VGPU_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) {
  return CUDA_SUCCESS;
}
VGPU_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice, unsigned) {
  return CUDA_SUCCESS;
}
VGPU_API CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  if (flags) *flags = 0;
  if (active) *active = context_is_current;
  return CUDA_SUCCESS;
}
VGPU_API CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  const cudaError_t error =
      cudaDeviceGetAttribute(major, cudaDevAttrComputeCapabilityMajor, device);
  if (error != cudaSuccess) return static_cast<CUresult>(error);
  return static_cast<CUresult>(
      cudaDeviceGetAttribute(minor, cudaDevAttrComputeCapabilityMinor, device));
}

// ---- modules and libraries: one kind of thing

VGPU_API CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*,
                                     void**) {
  return VGPU_FORWARD(cudaLibraryLoadData(reinterpret_cast<cudaLibrary_t*>(module), image, nullptr,
                                          nullptr, 0, nullptr, nullptr, 0));
}
VGPU_API CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return cuModuleLoadDataEx(module, image, 0, nullptr, nullptr);
}
VGPU_API CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return cuModuleLoadDataEx(module, image, 0, nullptr, nullptr);
}
VGPU_API CUresult cuModuleLoad(CUmodule* module, const char* path) {
  return VGPU_FORWARD(cudaLibraryLoadFromFile(reinterpret_cast<cudaLibrary_t*>(module), path,
                                              nullptr, nullptr, 0, nullptr, nullptr, 0));
}
VGPU_API CUresult cuModuleUnload(CUmodule module) {
  return VGPU_FORWARD(cudaLibraryUnload(reinterpret_cast<cudaLibrary_t>(module)));
}
VGPU_API CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return VGPU_FORWARD(cudaLibraryGetKernel(reinterpret_cast<cudaKernel_t*>(function),
                                           reinterpret_cast<cudaLibrary_t>(module), name));
}
VGPU_API CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module,
                                       const char* name) {
  return VGPU_FORWARD(cudaLibraryGetGlobal(reinterpret_cast<void**>(address), bytes,
                                           reinterpret_cast<cudaLibrary_t>(module), name));
}
VGPU_API CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}
// Libraries belong to no context.
VGPU_API CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**,
                                    unsigned, CUlibraryOption*, void**, unsigned) {
  return static_cast<CUresult>(cudaLibraryLoadData(reinterpret_cast<cudaLibrary_t*>(library), code,
                                                   nullptr, nullptr, 0, nullptr, nullptr, 0));
}
VGPU_API CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option*, void**,
                                        unsigned, CUlibraryOption*, void**, unsigned) {
  return static_cast<CUresult>(cudaLibraryLoadFromFile(
      reinterpret_cast<cudaLibrary_t*>(library), path, nullptr, nullptr, 0, nullptr, nullptr, 0));
}
VGPU_API CUresult cuLibraryUnload(CUlibrary library) {
  return static_cast<CUresult>(cudaLibraryUnload(reinterpret_cast<cudaLibrary_t>(library)));
}
VGPU_API CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  return static_cast<CUresult>(cudaLibraryGetKernel(
      reinterpret_cast<cudaKernel_t*>(kernel), reinterpret_cast<cudaLibrary_t>(library), name));
}
VGPU_API CUresult cuLibraryGetKernelCount(unsigned* count, CUlibrary library) {
  return static_cast<CUresult>(
      cudaLibraryGetKernelCount(count, reinterpret_cast<cudaLibrary_t>(library)));
}
VGPU_API CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned count, CUlibrary library) {
  return static_cast<CUresult>(cudaLibraryEnumerateKernels(
      reinterpret_cast<cudaKernel_t*>(kernels), count, reinterpret_cast<cudaLibrary_t>(library)));
}
VGPU_API CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library,
                                     const char* name) {
  return VGPU_FORWARD(cudaLibraryGetGlobal(reinterpret_cast<void**>(address), bytes,
                                           reinterpret_cast<cudaLibrary_t>(library), name));
}
VGPU_API CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  *module = reinterpret_cast<CUmodule>(library);
  return CUDA_SUCCESS;
}
VGPU_API CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}

// ---- functions

VGPU_API CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute,
                                     CUfunction function) {
  cudaFuncAttributes all;
  const CUresult result = VGPU_FORWARD(cudaFuncGetAttributes(&all, function));
  if (result != CUDA_SUCCESS) return result;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return *value = all.maxThreadsPerBlock, CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      return *value = static_cast<int>(all.sharedSizeBytes), CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
      return *value = static_cast<int>(all.constSizeBytes), CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      return *value = static_cast<int>(all.localSizeBytes), CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      return *value = all.numRegs, CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      return *value = all.ptxVersion, CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      return *value = all.binaryVersion, CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      return *value = all.maxDynamicSharedSizeBytes, CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return *value = all.preferredShmemCarveout, CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
      return *value = all.clusterDimMustBeSet, CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
      return *value = all.requiredClusterWidth, CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
      return *value = all.requiredClusterHeight, CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      return *value = all.requiredClusterDepth, CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      return *value = all.nonPortableClusterSizeAllowed, CUDA_SUCCESS;
    default:
      log(1, "CUDA_ERROR_INVALID_VALUE: cuFuncGetAttribute: unknown attribute " +
                 std::to_string(attribute));
      return CUDA_ERROR_INVALID_VALUE;
  }
}
VGPU_API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute,
                                     int value) {
  return VGPU_FORWARD(
      cudaFuncSetAttribute(function, static_cast<cudaFuncAttribute>(attribute), value));
}
VGPU_API CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                       CUdevice) {
  return cuFuncSetAttribute(reinterpret_cast<CUfunction>(kernel), attribute, value);
}
VGPU_API CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel,
                                       CUdevice) {
  return cuFuncGetAttribute(value, attribute, reinterpret_cast<CUfunction>(kernel));
}
VGPU_API CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache) {
  return VGPU_FORWARD(cudaFuncSetCacheConfig(function, cudaFuncCachePreferNone));
}
VGPU_API CUresult cuFuncGetName(const char** name, CUfunction function) {
  return VGPU_FORWARD(cudaFuncGetName(name, function));
}
VGPU_API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset,
                                     size_t* bytes) {
  return VGPU_FORWARD(cudaFuncGetParamInfo(function, index, offset, bytes));
}
VGPU_API CUresult cuFuncLoad(CUfunction) {
  return CUDA_SUCCESS;
}
VGPU_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks,
                                                                       CUfunction function,
                                                                       int threads, size_t shared,
                                                                       unsigned flags) {
  return VGPU_FORWARD(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
      blocks, function, threads, shared, flags));
}
VGPU_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function,
                                                              int threads, size_t shared) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}
VGPU_API CUresult cuOccupancyMaxPotentialBlockSize(int* blocks, int* threads, CUfunction function,
                                                   CUoccupancyB2DSize shared_of, size_t shared,
                                                   int limit) {
  int most = 0, multiprocessors = 0;
  CUresult result = cuFuncGetAttribute(&most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function);
  if (result != CUDA_SUCCESS) return result;
  if (limit > 0) most = std::min(most, limit);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0);
  // The largest block that fills the most warps.
  int best = 0;
  for (int size = most / 32 * 32; size >= 32; size -= 32) {
    int fit = 0;
    result = cuOccupancyMaxActiveBlocksPerMultiprocessor(&fit, function, size,
                                                         shared_of ? shared_of(size) : shared);
    if (result != CUDA_SUCCESS) return result;
    if (fit * size > best) {
      best = fit * size;
      *threads = size;
      *blocks = fit * multiprocessors;
    }
  }
  return best ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// ---- launches

VGPU_API CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function,
                                   void** parameters, void** extra) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  cudaLaunchConfig_t same{};
  same.gridDim = dim3(config->gridDimX, config->gridDimY, config->gridDimZ);
  same.blockDim = dim3(config->blockDimX, config->blockDimY, config->blockDimZ);
  same.dynamicSmemBytes = config->sharedMemBytes;
  same.stream = config->hStream;
  same.attrs = reinterpret_cast<cudaLaunchAttribute*>(config->attrs);
  same.numAttrs = config->numAttrs;
  return VGPU_FORWARD(launch(function, same, parameters, extra));
}
VGPU_API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                 unsigned grid_z, unsigned block_x, unsigned block_y,
                                 unsigned block_z, unsigned shared, CUstream stream,
                                 void** parameters, void** extra) {
  const CUlaunchConfig config{grid_x,  grid_y, grid_z, block_x, block_y,
                              block_z, shared, stream, nullptr, 0};
  return cuLaunchKernelEx(&config, function, parameters, extra);
}
VGPU_API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                            unsigned grid_z, unsigned block_x, unsigned block_y,
                                            unsigned block_z, unsigned shared, CUstream stream,
                                            void** parameters) {
  return VGPU_FORWARD(cudaLaunchCooperativeKernel(function, dim3(grid_x, grid_y, grid_z),
                                                  dim3(block_x, block_y, block_z), parameters,
                                                  shared, stream));
}
VGPU_API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  return VGPU_FORWARD(cudaLaunchHostFunc(stream, function, data));
}

// ---- memory

VGPU_API CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  return VGPU_FORWARD(cudaMalloc(reinterpret_cast<void**>(address), bytes));
}
VGPU_API CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width,
                                     size_t height, unsigned) {
  return VGPU_FORWARD(cudaMallocPitch(reinterpret_cast<void**>(address), pitch, width, height));
}
VGPU_API CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
  return VGPU_FORWARD(cudaMallocManaged(reinterpret_cast<void**>(address), bytes, flags));
}
VGPU_API CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return VGPU_FORWARD(cudaMallocAsync(reinterpret_cast<void**>(address), bytes, stream));
}
VGPU_API CUresult cuMemFree_v2(CUdeviceptr address) {
  return VGPU_FORWARD(cudaFree(host(address)));
}
VGPU_API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return VGPU_FORWARD(cudaFreeAsync(host(address), stream));
}
VGPU_API CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
  return VGPU_FORWARD(cudaHostAlloc(address, bytes, flags));
}
VGPU_API CUresult cuMemAllocHost_v2(void** address, size_t bytes) {
  return VGPU_FORWARD(cudaMallocHost(address, bytes));
}
VGPU_API CUresult cuMemFreeHost(void* address) {
  return VGPU_FORWARD(cudaFreeHost(address));
}
VGPU_API CUresult cuMemHostRegister_v2(void* address, size_t bytes, unsigned flags) {
  return VGPU_FORWARD(cudaHostRegister(address, bytes, flags));
}
VGPU_API CUresult cuMemHostUnregister(void* address) {
  return VGPU_FORWARD(cudaHostUnregister(address));
}
VGPU_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* address, unsigned flags) {
  return VGPU_FORWARD(cudaHostGetDevicePointer(reinterpret_cast<void**>(device), address, flags));
}
VGPU_API CUresult cuMemGetInfo_v2(size_t* unused, size_t* total) {
  return VGPU_FORWARD(cudaMemGetInfo(unused, total));
}
VGPU_API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return VGPU_FORWARD(cudaMemcpy(host(to), host(from), bytes, cudaMemcpyDefault));
}
VGPU_API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return VGPU_FORWARD(cudaMemcpyAsync(host(to), host(from), bytes, cudaMemcpyDefault, stream));
}
VGPU_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return VGPU_FORWARD(cudaMemcpy(host(to), from, bytes, cudaMemcpyHostToDevice));
}
VGPU_API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return VGPU_FORWARD(cudaMemcpy(to, host(from), bytes, cudaMemcpyDeviceToHost));
}
VGPU_API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return VGPU_FORWARD(cudaMemcpy(host(to), host(from), bytes, cudaMemcpyDeviceToDevice));
}
VGPU_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes,
                                       CUstream stream) {
  return VGPU_FORWARD(cudaMemcpyAsync(host(to), from, bytes, cudaMemcpyHostToDevice, stream));
}
VGPU_API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return VGPU_FORWARD(cudaMemcpyAsync(to, host(from), bytes, cudaMemcpyDeviceToHost, stream));
}
VGPU_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                       CUstream stream) {
  return VGPU_FORWARD(
      cudaMemcpyAsync(host(to), host(from), bytes, cudaMemcpyDeviceToDevice, stream));
}
VGPU_API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) {
  return VGPU_FORWARD(copy_2d(copy, nullptr, true));
}
VGPU_API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copy) {
  return cuMemcpy2D_v2(copy);
}
VGPU_API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  return VGPU_FORWARD(copy_2d(copy, stream, false));
}

// ---- streams and events

VGPU_API CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return VGPU_FORWARD(cudaStreamCreateWithFlags(stream, flags));
}
VGPU_API CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  return VGPU_FORWARD(cudaStreamCreateWithPriority(stream, flags, priority));
}
VGPU_API CUresult cuStreamDestroy_v2(CUstream stream) {
  return VGPU_FORWARD(cudaStreamDestroy(stream));
}
VGPU_API CUresult cuStreamSynchronize(CUstream stream) {
  return VGPU_FORWARD(cudaStreamSynchronize(stream));
}
VGPU_API CUresult cuStreamQuery(CUstream stream) {
  return VGPU_FORWARD(cudaStreamQuery(stream));
}
VGPU_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  return VGPU_FORWARD(cudaStreamWaitEvent(stream, event, flags));
}
VGPU_API CUresult cuEventCreate(CUevent* event, unsigned flags) {
  return VGPU_FORWARD(cudaEventCreateWithFlags(event, flags));
}
VGPU_API CUresult cuEventDestroy_v2(CUevent event) {
  return VGPU_FORWARD(cudaEventDestroy(event));
}
VGPU_API CUresult cuEventRecord(CUevent event, CUstream stream) {
  return VGPU_FORWARD(cudaEventRecord(event, stream));
}
VGPU_API CUresult cuEventSynchronize(CUevent event) {
  return VGPU_FORWARD(cudaEventSynchronize(event));
}
VGPU_API CUresult cuEventQuery(CUevent event) {
  return VGPU_FORWARD(cudaEventQuery(event));
}
VGPU_API CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return VGPU_FORWARD(cudaEventElapsedTime(milliseconds, start, end));
}
#undef cuEventElapsedTime  // programs built before CUDA 13 have this name
VGPU_API CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime_v2(milliseconds, start, end);
}

void* vgpu::runtime::find_driver_work(std::string_view name, int version) {
  static const EntryPoint entry_points[] = {
      entry("cuCtxDestroy", cuCtxDestroy_v2),
      entry("cuCtxPushCurrent", cuCtxPushCurrent_v2),
      entry("cuCtxPopCurrent", cuCtxPopCurrent_v2),
      entry("cuCtxGetApiVersion", cuCtxGetApiVersion),
      entry("cuCtxGetFlags", cuCtxGetFlags),
      entry("cuCtxSetLimit", cuCtxSetLimit),
      entry("cuCtxGetLimit", cuCtxGetLimit),
      entry("cuCtxSetCacheConfig", cuCtxSetCacheConfig),
      entry("cuCtxGetStreamPriorityRange", cuCtxGetStreamPriorityRange),
      entry("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain),
      entry("cuDevicePrimaryCtxRelease", cuDevicePrimaryCtxRelease_v2),
      entry("cuDevicePrimaryCtxSetFlags", cuDevicePrimaryCtxSetFlags_v2),
      entry("cuDevicePrimaryCtxGetState", cuDevicePrimaryCtxGetState),
      entry("cuModuleLoadDataEx", cuModuleLoadDataEx),
      entry("cuModuleLoadData", cuModuleLoadData),
      entry("cuModuleLoadFatBinary", cuModuleLoadFatBinary),
      entry("cuModuleLoad", cuModuleLoad),
      entry("cuModuleUnload", cuModuleUnload),
      entry("cuModuleGetFunction", cuModuleGetFunction),
      entry("cuModuleGetGlobal", cuModuleGetGlobal_v2),
      entry("cuModuleGetLoadingMode", cuModuleGetLoadingMode),
      entry("cuLibraryLoadData", cuLibraryLoadData),
      entry("cuLibraryLoadFromFile", cuLibraryLoadFromFile),
      entry("cuLibraryUnload", cuLibraryUnload),
      entry("cuLibraryGetKernel", cuLibraryGetKernel),
      entry("cuLibraryGetKernelCount", cuLibraryGetKernelCount),
      entry("cuLibraryEnumerateKernels", cuLibraryEnumerateKernels),
      entry("cuLibraryGetGlobal", cuLibraryGetGlobal),
      entry("cuLibraryGetModule", cuLibraryGetModule),
      entry("cuKernelGetFunction", cuKernelGetFunction),
      entry("cuFuncGetAttribute", cuFuncGetAttribute),
      entry("cuFuncSetAttribute", cuFuncSetAttribute),
      entry("cuKernelSetAttribute", cuKernelSetAttribute),
      entry("cuKernelGetAttribute", cuKernelGetAttribute),
      entry("cuFuncSetCacheConfig", cuFuncSetCacheConfig),
      entry("cuFuncGetName", cuFuncGetName),
      entry("cuFuncGetParamInfo", cuFuncGetParamInfo),
      entry("cuFuncLoad", cuFuncLoad),
      entry("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
            cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags),
      entry("cuOccupancyMaxActiveBlocksPerMultiprocessor",
            cuOccupancyMaxActiveBlocksPerMultiprocessor),
      entry("cuOccupancyMaxPotentialBlockSize", cuOccupancyMaxPotentialBlockSize),
      entry("cuLaunchKernelEx", cuLaunchKernelEx),
      entry("cuLaunchKernel", cuLaunchKernel),
      entry("cuLaunchCooperativeKernel", cuLaunchCooperativeKernel),
      entry("cuLaunchHostFunc", cuLaunchHostFunc),
      entry("cuMemAlloc", cuMemAlloc_v2),
      entry("cuMemAllocPitch", cuMemAllocPitch_v2),
      entry("cuMemAllocManaged", cuMemAllocManaged),
      entry("cuMemAllocAsync", cuMemAllocAsync),
      entry("cuMemFree", cuMemFree_v2),
      entry("cuMemFreeAsync", cuMemFreeAsync),
      entry("cuMemHostAlloc", cuMemHostAlloc),
      entry("cuMemAllocHost", cuMemAllocHost_v2),
      entry("cuMemFreeHost", cuMemFreeHost),
      entry("cuMemHostRegister", cuMemHostRegister_v2),
      entry("cuMemHostUnregister", cuMemHostUnregister),
      entry("cuMemHostGetDevicePointer", cuMemHostGetDevicePointer_v2),
      entry("cuMemGetInfo", cuMemGetInfo_v2),
      entry("cuMemcpy", cuMemcpy),
      entry("cuMemcpyAsync", cuMemcpyAsync),
      entry("cuMemcpyHtoD", cuMemcpyHtoD_v2),
      entry("cuMemcpyDtoH", cuMemcpyDtoH_v2),
      entry("cuMemcpyDtoD", cuMemcpyDtoD_v2),
      entry("cuMemcpyHtoDAsync", cuMemcpyHtoDAsync_v2),
      entry("cuMemcpyDtoHAsync", cuMemcpyDtoHAsync_v2),
      entry("cuMemcpyDtoDAsync", cuMemcpyDtoDAsync_v2),
      entry("cuMemcpy2D", cuMemcpy2D_v2),
      entry("cuMemcpy2DUnaligned", cuMemcpy2DUnaligned_v2),
      entry("cuMemcpy2DAsync", cuMemcpy2DAsync_v2),
      entry("cuStreamCreate", cuStreamCreate),
      entry("cuStreamCreateWithPriority", cuStreamCreateWithPriority),
      entry("cuStreamDestroy", cuStreamDestroy_v2),
      entry("cuStreamSynchronize", cuStreamSynchronize),
      entry("cuStreamQuery", cuStreamQuery),
      entry("cuStreamWaitEvent", cuStreamWaitEvent),
      entry("cuEventCreate", cuEventCreate),
      entry("cuEventDestroy", cuEventDestroy_v2),
      entry("cuEventRecord", cuEventRecord),
      entry("cuEventSynchronize", cuEventSynchronize),
      entry("cuEventQuery", cuEventQuery),
      entry("cuEventElapsedTime", cuEventElapsedTime_v2),
  };
  // Its parameters depend on the version that the caller was built for.
  if (name == "cuCtxCreate") {
    return version >= 13000 ? reinterpret_cast<void*>(cuCtxCreate_v4)
                            : reinterpret_cast<void*>(cuCtxCreate_v2);
  }
  return find_entry_point(entry_points, name);
}
