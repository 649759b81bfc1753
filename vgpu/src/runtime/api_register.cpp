// SPDX-License-Identifier: Apache-2.0
// The hidden interface between nvcc's host code and the runtime (crt/host_runtime.h of the
// toolkit): fat binaries, kernels and variables register before main, `<<<>>>` passes through a
// configuration stack.
#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <vector>

#include "runtime/context.hpp"
#include "runtime/streams.hpp"

using namespace vgpu;
using namespace vgpu::runtime;

namespace {

struct CallConfiguration {
  dim3 grid, block;
  size_t dynamic_shared;
  cudaStream_t stream;
};

thread_local std::vector<CallConfiguration> call_configurations;

Module* as_module(void** handle) {
  return reinterpret_cast<Module*>(handle);
}

}  // namespace

VGPU_API void** __cudaRegisterFatBinary(void* wrapper) {
  Context& context = Context::get();
  std::lock_guard lock(context.mutex);
  std::unique_ptr<Module> module;
  try {
    module = std::make_unique<Module>(read_fat_wrapper(wrapper));
  } catch (const Fault& problem) {
    module = std::make_unique<Module>(problem);  // reported when the program uses it
  }
  return reinterpret_cast<void**>(context.modules.add(std::move(module)));
}

VGPU_API void __cudaRegisterFatBinaryEnd(void**) {}
// Programs unregister at exit, when other exit handlers may still launch: keep the module.
VGPU_API void __cudaUnregisterFatBinary(void**) {}
VGPU_API char __cudaInitModule(void**) {
  return 1;
}

VGPU_API void __cudaRegisterFunction(void** handle, const char* stub, char*, const char* name, int,
                                     uint3*, uint3*, dim3*, dim3*, int*) {
  Context& context = Context::get();
  std::lock_guard lock(context.mutex);
  auto kernel = std::make_unique<Kernel>();
  kernel->module = as_module(handle);
  kernel->name = name;
  context.kernel_handles.insert(kernel.get());
  context.kernels_by_stub[stub] = std::move(kernel);
}

VGPU_API void __cudaRegisterVar(void** handle, char* shadow, char*, const char* name, int,
                                size_t bytes, int, int) {
  Context& context = Context::get();
  std::lock_guard lock(context.mutex);
  context.variables_by_stub[shadow] = {as_module(handle), name, bytes};
}

// The host reaches a managed variable through `*pointer`, so its module must load now.
VGPU_API void __cudaRegisterManagedVar(void** handle, void** pointer, char*, const char* name, int,
                                       size_t bytes, int, int) {
  call([&](Context& context) {
    Module* module = as_module(handle);
    const exec::Program& program = module->load(context.device.arch, context.memory);
    for (size_t i = 0; i < program.symbols().size(); ++i) {
      if (program.symbols()[i].name != name) continue;
      *pointer = reinterpret_cast<void*>(module->symbol_addresses()[i]);
      context.variables_by_stub[pointer] = {module, name, bytes};
      return cudaSuccess;
    }
    return fail(cudaErrorInvalidSymbol, "managed variable %s is not in the PTX of its module",
                name);
  });
}

VGPU_API void __cudaRegisterHostVar(void**, const char*, char*, size_t) {}
VGPU_API cudaError_t __cudaRegisterUnifiedTable(void**, void*) {
  return unsupported("__cudaRegisterUnifiedTable");
}

VGPU_API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t dynamic_shared,
                                              struct CUstream_st* stream) {
  call_configurations.push_back({grid, block, dynamic_shared, stream});
  return 0;
}

VGPU_API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* dynamic_shared,
                                                void* stream) {
  if (call_configurations.empty()) return record_error(cudaErrorMissingConfiguration);
  const CallConfiguration top = call_configurations.back();
  call_configurations.pop_back();
  *grid = top.grid;
  *block = top.block;
  *dynamic_shared = top.dynamic_shared;
  *static_cast<cudaStream_t*>(stream) = top.stream;
  return cudaSuccess;
}

VGPU_API cudaError_t __cudaGetKernel(cudaKernel_t* handle, const void* function) {
  return call([&](Context& context) {
    Kernel* kernel = context.find_kernel(function);
    if (kernel == nullptr) {
      return fail(cudaErrorInvalidDeviceFunction, "%p is not a kernel of this program", function);
    }
    *handle = reinterpret_cast<cudaKernel_t>(kernel);
    return cudaSuccess;
  });
}

VGPU_API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args,
                                        size_t dynamic_shared, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, args, dynamic_shared, stream);
}
