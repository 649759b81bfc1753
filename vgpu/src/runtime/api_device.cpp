// SPDX-License-Identifier: Apache-2.0
// The device: selection, properties, attributes, limits, synchronisation, reset.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

#include "runtime/context.hpp"
#include "runtime/streams.hpp"

using namespace vgpu;
using namespace vgpu::runtime;

namespace {

cudaError_t check_device(int device) {
  if (device == 0) return cudaSuccess;
  return fail(cudaErrorInvalidDevice, "device %d: there is one virtual GPU, device 0", device);
}

}  // namespace

VGPU_API cudaError_t cudaGetDeviceCount(int* count) {
  return query([&](Context&) {
    *count = 1;
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaGetDevice(int* device) {
  return query([&](Context&) {
    *device = 0;
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaSetDevice(int device) {
  return call([&](Context&) { return check_device(device); });
}
VGPU_API cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  return cudaSetDevice(device);
}
VGPU_API cudaError_t cudaSetValidDevices(int*, int) {
  return cudaSuccess;
}
VGPU_API cudaError_t cudaSetDeviceFlags(unsigned) {
  return cudaSuccess;
}
VGPU_API cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  *flags = cudaDeviceScheduleAuto | cudaDeviceMapHost;
  return cudaSuccess;
}
VGPU_API cudaError_t cudaChooseDevice(int* device, const cudaDeviceProp*) {
  *device = 0;
  return cudaSuccess;
}

VGPU_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return query([&](Context& context) {
    const cudaError_t error = check_device(device);
    if (error == cudaSuccess) *properties = context.device.properties;
    return error;
  });
}

VGPU_API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return query([&](Context& context) {
    if (const cudaError_t error = check_device(device); error) return error;
    if (device_attribute(context.device, attribute, *value)) return cudaSuccess;
    return fail(cudaErrorInvalidValue, "device attribute %d does not exist", int(attribute));
  });
}

VGPU_API cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  return query([&](Context&) {
    if (const cudaError_t error = check_device(device); error) return error;
    std::snprintf(id, static_cast<size_t>(length), "0000:00:00.0");
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
VGPU_API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

VGPU_API cudaError_t cudaDeviceSynchronize() {
  return call([](Context& context) {
    for (const auto& [handle, stream] : context.streams) {
      if (stream->capture) {
        return refuse_while_capturing(context, stream.get(), "cudaDeviceSynchronize");
      }
    }
    context.queue.finish(context);
    return context.sticky;
  });
}

// Frees everything, as the end of the context does.
VGPU_API cudaError_t cudaDeviceReset() {
  Context& context = Context::get();
  std::lock_guard lock(context.mutex);
  if (context.sticky != cudaSuccess) context.sticky = cudaErrorDevicesUnavailable;
  context.queue.discard(context);
  context.memory.reset();
  context.device_heap.reset();
  for (const auto& [handle, module] : context.modules) module->forget_storage();
  context.graph_execs.clear();
  context.graphs.clear();
  context.events.clear();
  context.streams.clear();
  cudaGetLastError();
  return cudaSuccess;
}

VGPU_API cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  return call([&](Context& context) {
    if (limit == cudaLimitMallocHeapSize && !context.device_heap.resize(value)) {
      return fail(cudaErrorInvalidValue,
                  "cudaDeviceSetLimit: the heap of malloc in kernels has been used; its size (%llu "
                  "bytes) can only be changed before",
                  static_cast<unsigned long long>(context.device_heap.size()));
    }
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  switch (limit) {
    case cudaLimitStackSize:
      *value = 1024;
      break;
    case cudaLimitPrintfFifoSize:
      *value = 7340032;
      break;
    case cudaLimitMallocHeapSize:
      *value = Context::get().device_heap.size();
      break;
    default:
      *value = 0;
      break;
  }
  return cudaSuccess;
}
VGPU_API cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* config) {
  *config = cudaFuncCachePreferNone;
  return cudaSuccess;
}
VGPU_API cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) {
  return cudaSuccess;
}
VGPU_API cudaError_t cudaCtxResetPersistingL2Cache() {
  return cudaSuccess;
}
VGPU_API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
VGPU_API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
VGPU_API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  return call([&](Context&) {
    return fail(cudaErrorInvalidDevice, "peer %d: there is one virtual GPU", peer);
  });
}
VGPU_API cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return call([&](Context&) {
    return fail(cudaErrorPeerAccessNotEnabled, "peer %d: there is one virtual GPU", peer);
  });
}
VGPU_API cudaError_t cudaProfilerStart() {
  return cudaSuccess;
}
VGPU_API cudaError_t cudaProfilerStop() {
  return cudaSuccess;
}
