// SPDX-License-Identifier: Apache-2.0
// What an entry point that is not provided says.
#include <string_view>

#include "runtime/context.hpp"
#include "runtime/unsupported.hpp"

namespace vgpu::runtime {
namespace {

struct Reason {
  std::string_view prefix;  ///< of the names it is about
  const char* text;
};

constexpr const char* kMapped =
    "memory is allocated whole, not mapped into reserved addresses; use cuMemAlloc";

// The first that fits counts.
constexpr Reason kReasons[] = {
    {"cuLink", "nothing is linked at run time; let nvcc link the kernels"},
    {"cuParamSet", "give the parameters to cuLaunchKernel"},
    {"cuLaunchGrid", "launch with cuLaunchKernel"},
    {"cuFuncSetBlockShape", "give the block to cuLaunchKernel"},
    {"cuMemCreate", kMapped},
    {"cuMemMap", kMapped},
    {"cuMemAddress", kMapped},
    {"cuMemGetAllocationGranularity", kMapped},
    {"cudaGraphAddMemAlloc", "graphs do not allocate; allocate before the graph is launched"},
    {"cudaGraphAddMemFree", "graphs do not allocate; free after the graph has run"},
    {"cuTexRef", "textures are not modelled; read global memory"},
    {"cudaCreateChannelDesc", "channels belong to textures and surfaces, which are not modelled"},
    {"cudaCreateTextureObject", "textures are not modelled; read global memory"},
    {"cuTexObject", "textures are not modelled; read global memory"},
    {"cudaCreateSurfaceObject", "surfaces are not modelled; write global memory"},
    {"cuSurfObject", "surfaces are not modelled; write global memory"},
    {"cudaMallocArray", "arrays belong to textures and surfaces, which are not modelled"},
    {"cudaMalloc3DArray", "arrays belong to textures and surfaces, which are not modelled"},
    {"cudaMallocMipmappedArray", "arrays belong to textures and surfaces, which are not modelled"},
    {"cuArray", "arrays belong to textures and surfaces, which are not modelled"},
    {"cuMulticast", "there is one GPU; multimem instructions need several"},
    {"cudaIpc", "memory is of one process"},
    {"cuIpc", "memory is of one process"},
    {"cuGreenCtx", "the GPU's multiprocessors are not divided"},
};

}  // namespace

cudaError_t unsupported(const char* function) {
  return call([function](Context&) {
    for (const Reason& reason : kReasons) {
      if (std::string_view(function).starts_with(reason.prefix)) {
        return fail(cudaErrorNotSupported, "%s is not provided by the virtual GPU: %s", function,
                    reason.text);
      }
    }
    return fail(cudaErrorNotSupported, "%s is not provided by the virtual GPU", function);
  });
}

}  // namespace vgpu::runtime
