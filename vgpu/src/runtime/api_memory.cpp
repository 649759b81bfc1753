// SPDX-License-Identifier: Apache-2.0
// Memory: allocation, copies, memset, symbols, pointers, pools.
#include <cuda_runtime_api.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "runtime/context.hpp"
#include "runtime/streams.hpp"

using namespace vgpu;
using namespace vgpu::runtime;

namespace {

constexpr size_t kPitchAlignment = 512;

uint64_t number(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

cudaError_t allocate(void** pointer, size_t bytes, MemoryKind kind, const char* api) {
  return call([&](Context& context) {
    if (pointer == nullptr) return fail(cudaErrorInvalidValue, "%s: the pointer is null", api);
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    Allocation* allocation = context.memory.allocate(bytes, kind, api);
    if (allocation == nullptr) {
      return fail(cudaErrorMemoryAllocation, "%s: %zu bytes do not fit: %llu of %llu are in use",
                  api, bytes, static_cast<unsigned long long>(context.memory.live_bytes()),
                  static_cast<unsigned long long>(context.memory.capacity()));
    }
    *pointer = reinterpret_cast<void*>(allocation->base());
    return cudaSuccess;
  });
}

cudaError_t release(void* pointer, bool host, const char* api) {
  return call([&](Context& context) {
    if (pointer == nullptr) return cudaSuccess;
    const Allocation* inside = context.memory.find(number(pointer));
    // NOTE: cudaFree waits for the device (so do the stream-ordered frees, later than they must).
    context.queue.finish(context);
    const bool is_host = inside != nullptr && inside->kind() == MemoryKind::host;
    const bool is_symbol = inside != nullptr && (inside->kind() == MemoryKind::symbol ||
                                                 inside->kind() == MemoryKind::constant);
    if (is_symbol || is_host != host || !context.memory.free(number(pointer))) {
      return fail(cudaErrorInvalidValue, "%s: %p starts no live %s allocation: it is %s", api,
                  pointer, host ? "host" : "device",
                  context.memory.describe(number(pointer)).c_str());
    }
    return cudaSuccess;
  });
}

// Synchronous copies run in the default stream and cannot be captured.
cudaError_t refuse_synchronous(Context& context, const char* api) {
  const cudaError_t error = refuse_implicit_dependency(context);
  return error ? error : refuse_while_capturing(context, nullptr, api);
}

cudaError_t copy(const char* api, const Copy& what, cudaStream_t stream, bool synchronous) {
  return call([&](Context& context) {
    if (synchronous) {
      if (const cudaError_t error = refuse_synchronous(context, api); error) return error;
    }
    if (const cudaError_t error = check_copy(context, what); error) return error;
    if (what.width == 0 || what.height == 0 || what.depth == 0) return cudaSuccess;
    if (const cudaError_t error = enqueue(context, stream, what, cudaGraphNodeTypeMemcpy); error) {
      return error;
    }
    Stream* used = find_stream(context, stream);
    if (used->capture || context.queue.idle(*used)) {
      return synchronous ? context.sticky : cudaSuccess;
    }
    // Copies from or to pageable memory return when they are done.
    const bool pageable = context.memory.find(number(what.source)) == nullptr ||
                          context.memory.find(number(what.target)) == nullptr;
    if (synchronous || pageable) context.queue.finish(context, *used);
    return context.sticky;
  });
}

cudaError_t fill(const char* api, const Fill& what, cudaStream_t stream, bool synchronous) {
  return call([&](Context& context) {
    if (synchronous) {
      if (const cudaError_t error = refuse_synchronous(context, api); error) return error;
    }
    if (const cudaError_t error = check_fill(context, what); error) return error;
    if (what.width == 0 || what.height == 0 || what.depth == 0) return cudaSuccess;
    return enqueue(context, stream, what, cudaGraphNodeTypeMemset);
  });
}

Copy linear(void* target, const void* source, size_t bytes, cudaMemcpyKind kind) {
  Copy copy;
  copy.target = target;
  copy.source = source;
  copy.width = bytes;
  copy.kind = kind;
  return copy;
}

Copy pitched(void* target, size_t target_pitch, const void* source, size_t source_pitch,
             size_t width, size_t height, cudaMemcpyKind kind) {
  Copy copy = linear(target, source, width, kind);
  copy.target_pitch = target_pitch;
  copy.source_pitch = source_pitch;
  copy.height = height;
  return copy;
}

cudaError_t symbol_address(Context& context, const void* shadow, uint64_t& address, size_t& bytes) {
  const auto found = context.variables_by_stub.find(shadow);
  if (found == context.variables_by_stub.end()) {
    return fail(cudaErrorInvalidSymbol, "%p is not a device variable of this program", shadow);
  }
  const Variable& variable = found->second;
  const exec::Program& program = variable.module->load(context.device.arch, context.memory);
  for (size_t i = 0; i < program.symbols().size(); ++i) {
    if (program.symbols()[i].name != variable.name) continue;
    address = variable.module->symbol_addresses()[i];
    bytes = variable.bytes;
    return cudaSuccess;
  }
  return fail(cudaErrorInvalidSymbol, "variable %s is not in the PTX of its module",
              variable.name.c_str());
}

cudaError_t copy_symbol(const char* api, const void* shadow, void* other, size_t bytes,
                        size_t offset, bool to_symbol, cudaMemcpyKind kind, cudaStream_t stream,
                        bool synchronous) {
  uint64_t address = 0;
  const cudaError_t error = call([&](Context& context) {
    size_t size = 0;
    const cudaError_t missing = symbol_address(context, shadow, address, size);
    if (missing == cudaSuccess && (offset > size || bytes > size - offset)) {
      return fail(cudaErrorInvalidValue, "%s: bytes %zu to %zu of a variable of %zu bytes", api,
                  offset, offset + bytes, size);
    }
    return missing;
  });
  if (error != cudaSuccess) return error;
  auto* inside = reinterpret_cast<uint8_t*>(address) + offset;
  return to_symbol ? copy(api, linear(inside, other, bytes, kind), stream, synchronous)
                   : copy(api, linear(other, inside, bytes, kind), stream, synchronous);
}

// The one memory pool; only its address matters.
cudaMemPool_t default_pool() {
  static char pool;
  return reinterpret_cast<cudaMemPool_t>(&pool);
}

std::set<cudaMemPool_t>& made_pools() {
  static std::set<cudaMemPool_t> pools;
  return pools;
}

}  // namespace

// ---- allocation

VGPU_API cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return allocate(pointer, bytes, MemoryKind::device, "cudaMalloc");
}
VGPU_API cudaError_t cudaFree(void* pointer) {
  return release(pointer, false, "cudaFree");
}
VGPU_API cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned) {
  return allocate(pointer, bytes, MemoryKind::managed, "cudaMallocManaged");
}
VGPU_API cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return allocate(pointer, bytes, MemoryKind::host, "cudaMallocHost");
}
VGPU_API cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  return allocate(pointer, bytes, MemoryKind::host, "cudaHostAlloc");
}
VGPU_API cudaError_t cudaFreeHost(void* pointer) {
  return release(pointer, true, "cudaFreeHost");
}

VGPU_API cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  const cudaError_t error = call([&](Context& context) {
    Stream* found = find_stream(context, stream);
    if (found == nullptr) return fail(cudaErrorInvalidResourceHandle, "the stream does not exist");
    return refuse_while_capturing(context, found, "cudaMallocAsync (on the virtual GPU)");
  });
  return error ? error : allocate(pointer, bytes, MemoryKind::device, "cudaMallocAsync");
}
VGPU_API cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t,
                                             cudaStream_t stream) {
  return cudaMallocAsync(pointer, bytes, stream);
}
VGPU_API cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  const cudaError_t error = call([&](Context& context) {
    Stream* found = find_stream(context, stream);
    if (found == nullptr) return fail(cudaErrorInvalidResourceHandle, "the stream does not exist");
    return refuse_while_capturing(context, found, "cudaFreeAsync (on the virtual GPU)");
  });
  return error ? error : release(pointer, false, "cudaFreeAsync");
}

VGPU_API cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  *pitch = (width + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment;
  return allocate(pointer, *pitch * height, MemoryKind::device, "cudaMallocPitch");
}
VGPU_API cudaError_t cudaMalloc3D(cudaPitchedPtr* pitched_pointer, cudaExtent extent) {
  pitched_pointer->xsize = extent.width;
  pitched_pointer->ysize = extent.height;
  return cudaMallocPitch(&pitched_pointer->ptr, &pitched_pointer->pitch, extent.width,
                         extent.height * extent.depth);
}

VGPU_API cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  return call([&](Context& context) {
    if (pointer == nullptr || bytes == 0) {
      return fail(cudaErrorInvalidValue, "cudaHostRegister: an empty range");
    }
    if (context.memory.adopt(pointer, bytes, "cudaHostRegister") == nullptr) {
      return fail(cudaErrorHostMemoryAlreadyRegistered, "%p: %s", pointer,
                  context.memory.describe(number(pointer)).c_str());
    }
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaHostUnregister(void* pointer) {
  return call([&](Context& context) {
    context.queue.finish(context);
    const Allocation* inside = context.memory.find(number(pointer));
    if (inside == nullptr || inside->label() != "cudaHostRegister" ||
        !context.memory.free(number(pointer))) {
      return fail(cudaErrorHostMemoryNotRegistered, "%p is not registered", pointer);
    }
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  return call([&](Context& context) {
    const Allocation* inside = context.memory.find(number(host));
    if (inside == nullptr || !inside->live() || inside->kind() != MemoryKind::host) {
      return fail(cudaErrorInvalidValue, "%p is not pinned host memory", host);
    }
    *device = host;  // one address space
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaHostGetFlags(unsigned* flags, void*) {
  *flags = cudaHostAllocMapped;
  return cudaSuccess;
}

VGPU_API cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  return call([&](Context& context) {
    const size_t capacity = context.memory.capacity();
    if (total) *total = capacity;
    if (free_bytes) {
      // Do not promise more than this machine can back.
      struct sysinfo host {};
      sysinfo(&host);
      const size_t backed = (host.freeram + host.bufferram) * host.mem_unit;
      *free_bytes = std::min<size_t>(capacity - context.memory.live_bytes(), backed);
    }
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                              const void* pointer) {
  return query([&](Context& context) {
    *attributes = cudaPointerAttributes{};
    const Allocation* inside = context.memory.find(number(pointer));
    if (inside == nullptr || !inside->live()) {
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->device = -2;  // what CUDA 13 reports for memory it does not know
      attributes->hostPointer = const_cast<void*>(pointer);
      return cudaSuccess;
    }
    void* address = const_cast<void*>(pointer);
    attributes->devicePointer = address;
    switch (inside->kind()) {
      case MemoryKind::managed:
        attributes->type = cudaMemoryTypeManaged;
        attributes->hostPointer = address;
        break;
      case MemoryKind::host:
        attributes->type = cudaMemoryTypeHost;
        attributes->hostPointer = address;
        break;
      default:
        attributes->type = cudaMemoryTypeDevice;
        break;
    }
    return cudaSuccess;
  });
}

// ---- copies

VGPU_API cudaError_t cudaMemcpy(void* target, const void* source, size_t bytes,
                                cudaMemcpyKind kind) {
  return copy("cudaMemcpy", linear(target, source, bytes, kind), nullptr, true);
}
VGPU_API cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes,
                                     cudaMemcpyKind kind, cudaStream_t stream) {
  return copy("cudaMemcpyAsync", linear(target, source, bytes, kind), stream, false);
}
VGPU_API cudaError_t cudaMemcpyPeer(void* target, int, const void* source, int, size_t bytes) {
  return cudaMemcpy(target, source, bytes, cudaMemcpyDeviceToDevice);
}
VGPU_API cudaError_t cudaMemcpyPeerAsync(void* target, int, const void* source, int, size_t bytes,
                                         cudaStream_t stream) {
  return cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, stream);
}
VGPU_API cudaError_t cudaMemcpy2D(void* target, size_t target_pitch, const void* source,
                                  size_t source_pitch, size_t width, size_t height,
                                  cudaMemcpyKind kind) {
  return copy("cudaMemcpy2D",
              pitched(target, target_pitch, source, source_pitch, width, height, kind), nullptr,
              true);
}
VGPU_API cudaError_t cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source,
                                       size_t source_pitch, size_t width, size_t height,
                                       cudaMemcpyKind kind, cudaStream_t stream) {
  return copy("cudaMemcpy2DAsync",
              pitched(target, target_pitch, source, source_pitch, width, height, kind), stream,
              false);
}
VGPU_API cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* p) {
  Copy what;
  const cudaError_t error = call([&](Context&) {
    what = copy_of(*p);
    return cudaSuccess;
  });
  return error ? error : copy("cudaMemcpy3D", what, nullptr, true);
}
VGPU_API cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* p, cudaStream_t stream) {
  Copy what;
  const cudaError_t error = call([&](Context&) {
    what = copy_of(*p);
    return cudaSuccess;
  });
  return error ? error : copy("cudaMemcpy3DAsync", what, stream, false);
}

// ---- memset

VGPU_API cudaError_t cudaMemset2DAsync(void* target, size_t pitch, int value, size_t width,
                                       size_t height, cudaStream_t stream) {
  return fill("cudaMemset2DAsync",
              {target, pitch, 0, static_cast<uint8_t>(value), 1, width, height, 1}, stream, false);
}
VGPU_API cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t stream) {
  return cudaMemset2DAsync(target, bytes, value, bytes, 1, stream);
}
VGPU_API cudaError_t cudaMemset2D(void* target, size_t pitch, int value, size_t width,
                                  size_t height) {
  return fill("cudaMemset2D", {target, pitch, 0, static_cast<uint8_t>(value), 1, width, height, 1},
              nullptr, true);
}
VGPU_API cudaError_t cudaMemset(void* target, int value, size_t bytes) {
  return fill("cudaMemset", {target, bytes, 0, static_cast<uint8_t>(value), 1, bytes, 1, 1},
              nullptr, true);
}
VGPU_API cudaError_t cudaMemset3DAsync(cudaPitchedPtr target, int value, cudaExtent extent,
                                       cudaStream_t stream) {
  return fill("cudaMemset3DAsync",
              {target.ptr, target.pitch, target.pitch * target.ysize, static_cast<uint8_t>(value),
               1, extent.width, extent.height, extent.depth},
              stream, false);
}
VGPU_API cudaError_t cudaMemset3D(cudaPitchedPtr target, int value, cudaExtent extent) {
  return fill("cudaMemset3D",
              {target.ptr, target.pitch, target.pitch * target.ysize, static_cast<uint8_t>(value),
               1, extent.width, extent.height, extent.depth},
              nullptr, true);
}

// ---- symbols

VGPU_API cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  return call([&](Context& context) {
    uint64_t address = 0;
    size_t bytes = 0;
    const cudaError_t error = symbol_address(context, symbol, address, bytes);
    if (error == cudaSuccess) *pointer = reinterpret_cast<void*>(address);
    return error;
  });
}
VGPU_API cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  return call([&](Context& context) {
    uint64_t address = 0;
    return symbol_address(context, symbol, address, *bytes);
  });
}
VGPU_API cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* source, size_t bytes,
                                        size_t offset, cudaMemcpyKind kind) {
  return copy_symbol("cudaMemcpyToSymbol", symbol, const_cast<void*>(source), bytes, offset, true,
                     kind, nullptr, true);
}
VGPU_API cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* source, size_t bytes,
                                             size_t offset, cudaMemcpyKind kind,
                                             cudaStream_t stream) {
  return copy_symbol("cudaMemcpyToSymbolAsync", symbol, const_cast<void*>(source), bytes, offset,
                     true, kind, stream, false);
}
VGPU_API cudaError_t cudaMemcpyFromSymbol(void* target, const void* symbol, size_t bytes,
                                          size_t offset, cudaMemcpyKind kind) {
  return copy_symbol("cudaMemcpyFromSymbol", symbol, target, bytes, offset, false, kind, nullptr,
                     true);
}
VGPU_API cudaError_t cudaMemcpyFromSymbolAsync(void* target, const void* symbol, size_t bytes,
                                               size_t offset, cudaMemcpyKind kind,
                                               cudaStream_t stream) {
  return copy_symbol("cudaMemcpyFromSymbolAsync", symbol, target, bytes, offset, false, kind,
                     stream, false);
}

// ---- hints on managed memory: no effect where there is one memory

VGPU_API cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t bytes, cudaMemLocation,
                                          unsigned, cudaStream_t) {
  return call([&](Context& context) {
    const std::string problem = context.memory.check(number(pointer), bytes);
    if (problem.empty()) return cudaSuccess;
    return fail(cudaErrorInvalidValue, "cudaMemPrefetchAsync: %s", problem.c_str());
  });
}
VGPU_API cudaError_t cudaMemAdvise(const void* pointer, size_t bytes, cudaMemoryAdvise,
                                   cudaMemLocation) {
  return call([&](Context& context) {
    const std::string problem = context.memory.check(number(pointer), bytes);
    if (problem.empty()) return cudaSuccess;
    return fail(cudaErrorInvalidValue, "cudaMemAdvise: %s", problem.c_str());
  });
}

// ---- the default memory pool

VGPU_API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = default_pool();
  return cudaSuccess;
}
VGPU_API cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int) {
  *pool = default_pool();
  return cudaSuccess;
}
// NOTE: pools are names only, since nothing is cached: allocations are the device's.
VGPU_API cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  return call([&](Context&) {
    if (pool == nullptr || properties == nullptr) {
      return fail(cudaErrorInvalidValue, "cudaMemPoolCreate: the pool or its properties are null");
    }
    if (properties->allocType != cudaMemAllocationTypePinned ||
        properties->location.type != cudaMemLocationTypeDevice || properties->location.id != 0) {
      return fail(cudaErrorInvalidValue,
                  "cudaMemPoolCreate: allocation type %d at location type %d, number %d; legal: "
                  "pinned memory of device 0",
                  static_cast<int>(properties->allocType),
                  static_cast<int>(properties->location.type), properties->location.id);
    }
    *pool = reinterpret_cast<cudaMemPool_t>(new char);
    made_pools().insert(*pool);
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  return call([&](Context&) {
    if (made_pools().erase(pool) == 0) {
      return fail(cudaErrorInvalidValue, "cudaMemPoolDestroy: %p is no pool of cudaMemPoolCreate",
                  static_cast<void*>(pool));
    }
    delete reinterpret_cast<char*>(pool);
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return cudaSuccess;  // thresholds and reuse policies: nothing is cached
}
VGPU_API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr attribute,
                                             void* value) {
  return call([&](Context& context) {
    switch (attribute) {
      case cudaMemPoolReuseFollowEventDependencies:
      case cudaMemPoolReuseAllowOpportunistic:
      case cudaMemPoolReuseAllowInternalDependencies:
        *static_cast<int*>(value) = 1;
        break;
      case cudaMemPoolAttrReleaseThreshold:
        *static_cast<uint64_t*>(value) = 0;
        break;
      default:
        *static_cast<uint64_t*>(value) = context.memory.live_bytes();
        break;
    }
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) {
  return cudaSuccess;
}
