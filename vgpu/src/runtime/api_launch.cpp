// SPDX-License-Identifier: Apache-2.0
// Launches, function attributes, occupancy, and libraries loaded at run time.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "runtime/context.hpp"
#include "runtime/streams.hpp"

using namespace vgpu;
using namespace vgpu::runtime;

namespace {

cudaError_t launch(const void* function, dim3 grid, dim3 block, size_t dynamic_shared, void** args,
                   const cudaLaunchAttribute* attributes, unsigned attribute_count,
                   cudaStream_t stream) {
  return call([&](Context& context) {
    KernelLaunch launch;
    const cudaError_t error = prepare_launch(context, function, grid, block, dynamic_shared, args,
                                             attributes, attribute_count, launch);
    if (error != cudaSuccess) return error;
    return enqueue(context, stream, std::move(launch), cudaGraphNodeTypeKernel);
  });
}

// The kernel a handle or stub names, or an explained error.
cudaError_t find(Context& context, const void* function, Kernel*& kernel) {
  kernel = context.find_kernel(function);
  if (kernel != nullptr) return cudaSuccess;
  return fail(cudaErrorInvalidResourceHandle, "%p is not a kernel of this program", function);
}

uint32_t round_up(uint32_t value, uint32_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Blocks that fit one SM at once (CUDA C++ Programming Guide, "Occupancy"): shared memory is handed
// out in units of 128 bytes plus 1 KiB a block.
// NOTE: PTX does not tell how many registers the machine code uses, so they never limit here.
int blocks_per_sm(const DeviceModel& device, const exec::KernelInfo& info, uint32_t threads,
                  size_t dynamic_shared) {
  if (threads == 0 || threads > info.max_threads) return 0;
  const uint32_t warps = (threads + 31) / 32;
  const uint64_t blocks = std::min(device.max_blocks_per_sm, device.max_warps_per_sm / warps);
  const uint64_t shared =
      round_up(info.static_shared + static_cast<uint32_t>(dynamic_shared), 128) +
      device.reserved_shared;
  return static_cast<int>(std::min<uint64_t>(blocks, device.shared_per_sm / shared));
}

uint32_t cluster_blocks(const exec::KernelInfo& info, const cudaLaunchConfig_t& config) {
  uint32_t blocks =
      info.required_cluster.count() ? static_cast<uint32_t>(info.required_cluster.count()) : 1;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config.attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) {
      blocks = attribute.val.clusterDim.x * attribute.val.clusterDim.y * attribute.val.clusterDim.z;
    }
  }
  return blocks;
}

}  // namespace

VGPU_API cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** args,
                                      size_t dynamic_shared, cudaStream_t stream) {
  return launch(function, grid, block, dynamic_shared, args, nullptr, 0, stream);
}

VGPU_API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                         void** args) {
  if (config == nullptr) return record_error(cudaErrorInvalidValue);
  return launch(function, config->gridDim, config->blockDim, config->dynamicSmemBytes, args,
                config->attrs, config->numAttrs, config->stream);
}

// NOTE: a cooperative grid must be resident as a whole; the occupancy limit is checked here.
VGPU_API cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block,
                                                 void** args, size_t dynamic_shared,
                                                 cudaStream_t stream) {
  const cudaError_t error = call([&](Context& context) {
    Kernel* kernel;
    if (const cudaError_t missing = find(context, function, kernel); missing) return missing;
    const uint64_t resident = uint64_t(blocks_per_sm(context.device, context.info(*kernel),
                                                     block.x * block.y * block.z, dynamic_shared)) *
                              context.device.spec.sm_count;
    const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
    if (blocks <= resident) return cudaSuccess;
    return fail(cudaErrorCooperativeLaunchTooLarge,
                "kernel %s: %llu blocks of a cooperative launch, %llu fit the GPU at once",
                kernel->name.c_str(), static_cast<unsigned long long>(blocks),
                static_cast<unsigned long long>(resident));
  });
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  return launch(function, grid, block, dynamic_shared, args, &cooperative, 1, stream);
}

VGPU_API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return call([&](Context& context) {
    if (function == nullptr) return fail(cudaErrorInvalidValue, "the host function is null");
    return enqueue(context, stream, HostCall{function, data}, cudaGraphNodeTypeHost);
  });
}

// ---- function attributes

VGPU_API cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute,
                                          int value) {
  return call([&](Context& context) {
    Kernel* kernel;
    if (const cudaError_t missing = find(context, function, kernel); missing) return missing;
    const exec::KernelInfo& info = context.info(*kernel);
    switch (attribute) {
      case cudaFuncAttributeMaxDynamicSharedMemorySize: {
        const int most = static_cast<int>(context.device.properties.sharedMemPerBlockOptin) -
                         static_cast<int>(info.static_shared);
        if (value < 0 || value > most) {
          return fail(
              cudaErrorInvalidValue,
              "kernel %s: %d bytes of dynamic shared memory; 0 to %d are legal (%zu a block, "
              "%u of them static)",
              kernel->name.c_str(), value, most, context.device.properties.sharedMemPerBlockOptin,
              info.static_shared);
        }
        kernel->max_dynamic_shared = value;
        return cudaSuccess;
      }
      case cudaFuncAttributePreferredSharedMemoryCarveout:
        if (value < -1 || value > 100) {
          return fail(cudaErrorInvalidValue, "carveout %d: -1 to 100 percent are legal", value);
        }
        kernel->carveout = value;
        return cudaSuccess;
      case cudaFuncAttributeNonPortableClusterSizeAllowed:
        kernel->nonportable_cluster = value != 0;
        return cudaSuccess;
      case cudaFuncAttributeClusterSchedulingPolicyPreference:
        return cudaSuccess;  // a hint
      default:
        return fail(cudaErrorInvalidValue, "function attribute %d cannot be set",
                    static_cast<int>(attribute));
    }
  });
}

VGPU_API cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel,
                                                     cudaFuncAttribute attribute, int value, int) {
  return cudaFuncSetAttribute(kernel, attribute, value);
}

VGPU_API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  return call([&](Context& context) {
    Kernel* kernel;
    if (const cudaError_t missing = find(context, function, kernel); missing) return missing;
    const exec::KernelInfo& info = context.info(*kernel);
    *attributes = cudaFuncAttributes{};
    attributes->sharedSizeBytes = info.static_shared;
    attributes->localSizeBytes = info.local_bytes;
    attributes->maxThreadsPerBlock = static_cast<int>(info.max_threads);
    attributes->numRegs = static_cast<int>(info.registers);
    attributes->ptxVersion = attributes->binaryVersion = static_cast<int>(context.device.arch);
    attributes->maxDynamicSharedSizeBytes = kernel->max_dynamic_shared >= 0
                                                ? kernel->max_dynamic_shared
                                                : 48 * 1024 - static_cast<int>(info.static_shared);
    attributes->preferredShmemCarveout = kernel->carveout;
    attributes->requiredClusterWidth = static_cast<int>(info.required_cluster.x);
    attributes->requiredClusterHeight = static_cast<int>(info.required_cluster.y);
    attributes->requiredClusterDepth = static_cast<int>(info.required_cluster.z);
    attributes->clusterDimMustBeSet = info.required_cluster.count() != 0;
    attributes->nonPortableClusterSizeAllowed = kernel->nonportable_cluster;
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaFuncGetName(const char** name, const void* function) {
  return call([&](Context& context) {
    Kernel* kernel;
    if (const cudaError_t missing = find(context, function, kernel); missing) return missing;
    *name = kernel->name.c_str();
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaFuncGetParamInfo(const void* function, size_t index, size_t* offset,
                                          size_t* bytes) {
  return call([&](Context& context) {
    Kernel* kernel;
    if (const cudaError_t missing = find(context, function, kernel); missing) return missing;
    const auto& params = context.info(*kernel).params;
    if (index >= params.size()) {
      return fail(cudaErrorInvalidValue, "kernel %s has %zu parameters, not one number %zu",
                  kernel->name.c_str(), params.size(), index);
    }
    if (offset) *offset = params[index].offset;
    if (bytes) *bytes = params[index].size;
    return cudaSuccess;
  });
}

// Cache preferences do not change results.
VGPU_API cudaError_t cudaFuncSetCacheConfig(const void* function, cudaFuncCache) {
  return call([&](Context& context) {
    Kernel* kernel;
    return find(context, function, kernel);
  });
}

VGPU_API cudaError_t cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  return call([&](Context& context) {
    Kernel* found;
    if (const cudaError_t missing = find(context, function, found); missing) return missing;
    *kernel = reinterpret_cast<cudaKernel_t>(found);
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
  return cudaGetKernel(reinterpret_cast<cudaKernel_t*>(function), symbol);
}

// ---- occupancy

VGPU_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void* function, int block_size, size_t dynamic_shared, unsigned) {
  return call([&](Context& context) {
    Kernel* kernel;
    if (const cudaError_t missing = find(context, function, kernel); missing) return missing;
    if (block_size <= 0) return fail(cudaErrorInvalidValue, "block size %d", block_size);
    *blocks = blocks_per_sm(context.device, context.info(*kernel),
                            static_cast<uint32_t>(block_size), dynamic_shared);
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                                   const void* function,
                                                                   int block_size,
                                                                   size_t dynamic_shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size,
                                                                dynamic_shared, 0);
}

VGPU_API cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void* function,
                                                               int blocks, int) {
  return call([&](Context& context) {
    Kernel* kernel;
    if (const cudaError_t missing = find(context, function, kernel); missing) return missing;
    if (blocks <= 0) return fail(cudaErrorInvalidValue, "%d blocks per SM", blocks);
    const DeviceModel& device = context.device;
    const uint32_t each = device.shared_per_sm / static_cast<uint32_t>(blocks) / 128 * 128;
    const uint32_t taken = device.reserved_shared + context.info(*kernel).static_shared;
    const uint32_t most = static_cast<uint32_t>(device.properties.sharedMemPerBlockOptin);
    *bytes = each > taken ? std::min(each - taken, most) : 0;
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void* function,
                                                          const cudaLaunchConfig_t* config) {
  return call([&](Context& context) {
    Kernel* kernel;
    if (const cudaError_t missing = find(context, function, kernel); missing) return missing;
    if (config == nullptr) return fail(cudaErrorInvalidValue, "the launch configuration is null");
    *size = static_cast<int>(kernel->nonportable_cluster ? context.device.max_cluster
                                                         : context.device.portable_cluster);
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* function,
                                                    const cudaLaunchConfig_t* config) {
  return call([&](Context& context) {
    Kernel* kernel;
    if (const cudaError_t missing = find(context, function, kernel); missing) return missing;
    if (config == nullptr) return fail(cudaErrorInvalidValue, "the launch configuration is null");
    const exec::KernelInfo& info = context.info(*kernel);
    const uint32_t size = cluster_blocks(info, *config);
    const uint32_t threads = config->blockDim.x * config->blockDim.y * config->blockDim.z;
    const uint32_t blocks = context.device.spec.sm_count *
                            static_cast<uint32_t>(blocks_per_sm(context.device, info, threads,
                                                                config->dynamicSmemBytes));
    // NOTE: clusters live inside one GPC on the hardware, so its counts can be a little lower.
    *clusters = size == 0 ? 0 : static_cast<int>(blocks / size);
    return cudaSuccess;
  });
}

// ---- libraries

VGPU_API cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*,
                                         void**, unsigned, cudaLibraryOption*, void**, unsigned) {
  return call([&](Context& context) {
    if (library == nullptr || code == nullptr) {
      return fail(cudaErrorInvalidValue, "the library or its code is null");
    }
    auto module = std::make_unique<Module>(read_fat_image(code));
    module->load(context.device.arch, context.memory);
    *library = reinterpret_cast<cudaLibrary_t>(context.modules.add(std::move(module)));
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaLibraryLoadFromFile(cudaLibrary_t* library, const char* path,
                                             cudaJitOption* jit_options, void** jit_values,
                                             unsigned jit_count, cudaLibraryOption* options,
                                             void** values, unsigned count) {
  std::ifstream file(path == nullptr ? "" : path, std::ios::binary);
  if (!file) {
    return call([&](Context&) {
      return fail(cudaErrorFileNotFound, "cannot open %s", path == nullptr ? "(null)" : path);
    });
  }
  const std::string code{std::istreambuf_iterator<char>(file), {}};
  return cudaLibraryLoadData(library, code.c_str(), jit_options, jit_values, jit_count, options,
                             values, count);
}

VGPU_API cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  return call([&](Context& context) {
    Module* module = context.modules.find(library);
    if (module == nullptr) return fail(cudaErrorInvalidResourceHandle, "the library is unknown");
    for (auto it = context.kernels_by_stub.begin(); it != context.kernels_by_stub.end();) {
      if (it->second->module == module) {
        context.kernel_handles.erase(it->second.get());
        it = context.kernels_by_stub.erase(it);
      } else {
        ++it;
      }
    }
    for (uint64_t address : module->symbol_addresses()) context.memory.free(address);
    context.unloaded_modules.push_back(context.modules.take(library));
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library,
                                          const char* name) {
  return call([&](Context& context) {
    Module* module = context.modules.find(library);
    if (module == nullptr) return fail(cudaErrorInvalidResourceHandle, "the library is unknown");
    const exec::Program& program = module->load(context.device.arch, context.memory);
    const exec::KernelInfo* info = program.find_kernel(name);
    if (info == nullptr) return fail(cudaErrorSymbolNotFound, "the library has no kernel %s", name);
    // The program's own record of the kernel serves as its key among the stubs.
    std::unique_ptr<Kernel>& slot = context.kernels_by_stub[info];
    if (!slot) {
      slot = std::make_unique<Kernel>();
      slot->module = module;
      slot->name = name;
      context.kernel_handles.insert(slot.get());
    }
    *kernel = reinterpret_cast<cudaKernel_t>(slot.get());
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaLibraryGetKernelCount(unsigned* count, cudaLibrary_t library) {
  return call([&](Context& context) {
    Module* module = context.modules.find(library);
    if (module == nullptr) return fail(cudaErrorInvalidResourceHandle, "the library is unknown");
    *count =
        static_cast<unsigned>(module->load(context.device.arch, context.memory).kernels().size());
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaLibraryEnumerateKernels(cudaKernel_t* kernels, unsigned count,
                                                 cudaLibrary_t library) {
  unsigned total = 0;
  if (const cudaError_t error = cudaLibraryGetKernelCount(&total, library); error) return error;
  return call([&](Context& context) {
    const auto& infos =
        context.modules.find(library)->load(context.device.arch, context.memory).kernels();
    for (unsigned i = 0; i < std::min(count, total); ++i) {
      const cudaError_t error = cudaLibraryGetKernel(&kernels[i], library, infos[i].name.c_str());
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaLibraryGetGlobal(void** address, size_t* bytes, cudaLibrary_t library,
                                          const char* name) {
  return call([&](Context& context) {
    Module* module = context.modules.find(library);
    if (module == nullptr) return fail(cudaErrorInvalidResourceHandle, "the library is unknown");
    const exec::Program& program = module->load(context.device.arch, context.memory);
    for (size_t i = 0; i < program.symbols().size(); ++i) {
      if (program.symbols()[i].name != name) continue;
      if (address) *address = reinterpret_cast<void*>(module->symbol_addresses()[i]);
      if (bytes) *bytes = program.symbols()[i].size;
      return cudaSuccess;
    }
    return fail(cudaErrorSymbolNotFound, "the library has no variable %s", name);
  });
}
