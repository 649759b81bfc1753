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

// The first that fits counts.
constexpr Reason kReasons[] = {
    {"cuModule",
     "kernels come with the program, which nvcc links with PTX and -cudart shared; cubins are "
     "machine "
     "code, and modules that a program loads itself are not read"},
    {"cuLibrary",
     "kernels come with the program, which nvcc links with PTX and -cudart shared; the runtime's "
     "cudaLibraryLoadData reads fat binaries with PTX"},
    {"cuLink", "nothing is linked at run time; let nvcc link the kernels"},
    {"cuLaunchKernel", "launch with <<<...>>>, cudaLaunchKernel or cudaLaunchKernelExC"},
    {"cuFunc", "the runtime's cudaFuncGetAttributes and cudaFuncSetAttribute are provided"},
    {"cudaGraphConditional",
     "graphs with conditional nodes (if, while, switch) are not modelled, since kernels cannot set "
     "their conditions; take the decision on the host"},
    {"cuGraphConditional",
     "graphs with conditional nodes (if, while, switch) are not modelled, since kernels cannot set "
     "their conditions; take the decision on the host"},
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
