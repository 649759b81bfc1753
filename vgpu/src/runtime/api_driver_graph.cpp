// SPDX-License-Identifier: Apache-2.0
// The driver API's graphs and captures: each call is the runtime's of the same meaning.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include "runtime/context.hpp"
#include "runtime/driver.hpp"

using namespace vgpu;
using namespace vgpu::runtime;

static_assert(sizeof(CUgraphNodeParams) == sizeof(cudaGraphNodeParams));
static_assert(sizeof(CUgraphEdgeData) == sizeof(cudaGraphEdgeData));
static_assert(int(CU_GRAPH_NODE_TYPE_CONDITIONAL) == cudaGraphNodeTypeConditional);
static_assert(int(CU_GRAPH_COND_TYPE_SWITCH) == cudaGraphCondTypeSwitch);

namespace {

cudaPitchedPtr side_of_copy(CUmemorytype type, const void* host, CUdeviceptr device, size_t pitch,
                            size_t height) {
  void* address =
      type == CU_MEMORYTYPE_HOST ? const_cast<void*>(host) : reinterpret_cast<void*>(device);
  return {address, pitch, pitch, height};
}

/// The runtime's form of a copy's parameters; null pointers where arrays are named.
cudaMemcpy3DParms copy_params(const CUDA_MEMCPY3D& p) {
  cudaMemcpy3DParms out{};
  out.srcArray = reinterpret_cast<cudaArray_t>(p.srcArray);
  out.dstArray = reinterpret_cast<cudaArray_t>(p.dstArray);
  out.srcPos = {p.srcXInBytes, p.srcY, p.srcZ};
  out.dstPos = {p.dstXInBytes, p.dstY, p.dstZ};
  out.srcPtr = side_of_copy(p.srcMemoryType, p.srcHost, p.srcDevice, p.srcPitch, p.srcHeight);
  out.dstPtr = side_of_copy(p.dstMemoryType, p.dstHost, p.dstDevice, p.dstPitch, p.dstHeight);
  out.extent = {p.WidthInBytes, p.Height, p.Depth};
  out.kind = cudaMemcpyDefault;
  return out;
}

/// The two unions agree but in copies, and where a kernel is named.
cudaGraphNodeParams node_params(const CUgraphNodeParams& p) {
  cudaGraphNodeParams out{};
  std::memcpy(&out, &p, sizeof out);
  if (p.type == CU_GRAPH_NODE_TYPE_KERNEL && p.kernel.func == nullptr) {
    out.kernel.func = p.kernel.kern;
  }
  if (p.type == CU_GRAPH_NODE_TYPE_MEMCPY) {
    out.memcpy = {};
    out.memcpy.copyParams = copy_params(p.memcpy.copyParams);
  }
  return out;
}

}  // namespace

VGPU_API CUresult cuGraphCreate(CUgraph* graph, unsigned flags) {
  return VGPU_FORWARD(cudaGraphCreate(graph, flags));
}
VGPU_API CUresult cuGraphDestroy(CUgraph graph) {
  return VGPU_FORWARD(cudaGraphDestroy(graph));
}
VGPU_API CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle* handle, CUgraph graph,
                                                 CUcontext, unsigned initial, unsigned flags) {
  return VGPU_FORWARD(cudaGraphConditionalHandleCreate(
      reinterpret_cast<cudaGraphConditionalHandle*>(handle), graph, initial, flags));
}
VGPU_API CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph,
                                    const CUgraphNode* dependencies, const CUgraphEdgeData* data,
                                    size_t count, CUgraphNodeParams* p) {
  cudaGraphNodeParams params = node_params(*p);
  const CUresult result = VGPU_FORWARD(cudaGraphAddNode(
      node, graph, dependencies, reinterpret_cast<const cudaGraphEdgeData*>(data), count, &params));
  if (p->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    p->conditional.phGraph_out = params.conditional.phGraph_out;
  }
  return result;
}
VGPU_API CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph,
                                      const CUgraphNode* dependencies, size_t count) {
  return VGPU_FORWARD(cudaGraphAddEmptyNode(node, graph, dependencies, count));
}
VGPU_API CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph,
                                          const CUgraphNode* dependencies, size_t count,
                                          const CUDA_KERNEL_NODE_PARAMS* p) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  std::memcpy(&params.kernel, p, sizeof *p);
  return cuGraphAddNode_v2(node, graph, dependencies, nullptr, count, &params);
}
VGPU_API CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph,
                                              unsigned long long flags) {
  return VGPU_FORWARD(cudaGraphInstantiateWithFlags(exec, graph, flags));
}
VGPU_API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  return VGPU_FORWARD(cudaGraphLaunch(exec, stream));
}
VGPU_API CUresult cuGraphExecDestroy(CUgraphExec exec) {
  return VGPU_FORWARD(cudaGraphExecDestroy(exec));
}

VGPU_API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return VGPU_FORWARD(
      cudaStreamIsCapturing(stream, reinterpret_cast<cudaStreamCaptureStatus*>(status)));
}
VGPU_API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return VGPU_FORWARD(cudaStreamBeginCapture(stream, static_cast<cudaStreamCaptureMode>(mode)));
}
VGPU_API CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                              const CUgraphNode* dependencies,
                                              const CUgraphEdgeData* data, size_t count,
                                              CUstreamCaptureMode mode) {
  return VGPU_FORWARD(cudaStreamBeginCaptureToGraph(
      stream, graph, dependencies, reinterpret_cast<const cudaGraphEdgeData*>(data), count,
      static_cast<cudaStreamCaptureMode>(mode)));
}
VGPU_API CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return VGPU_FORWARD(cudaStreamEndCapture(stream, graph));
}
VGPU_API CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status,
                                            cuuint64_t* id, CUgraph* graph,
                                            const CUgraphNode** dependencies,
                                            const CUgraphEdgeData** data, size_t* count) {
  return VGPU_FORWARD(
      cudaStreamGetCaptureInfo(stream, reinterpret_cast<cudaStreamCaptureStatus*>(status),
                               reinterpret_cast<unsigned long long*>(id), graph, dependencies,
                               reinterpret_cast<const cudaGraphEdgeData**>(data), count));
}
VGPU_API CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode* dependencies,
                                                       const CUgraphEdgeData* data, size_t count,
                                                       unsigned flags) {
  return VGPU_FORWARD(cudaStreamUpdateCaptureDependencies(
      stream, dependencies, reinterpret_cast<const cudaGraphEdgeData*>(data), count, flags));
}

void* vgpu::runtime::find_driver_graph(std::string_view name) {
  static const EntryPoint entry_points[] = {
      entry("cuGraphCreate", cuGraphCreate),
      entry("cuGraphDestroy", cuGraphDestroy),
      entry("cuGraphConditionalHandleCreate", cuGraphConditionalHandleCreate),
      entry("cuGraphAddNode", cuGraphAddNode_v2),
      entry("cuGraphAddEmptyNode", cuGraphAddEmptyNode),
      entry("cuGraphAddKernelNode", cuGraphAddKernelNode_v2),
      entry("cuGraphInstantiateWithFlags", cuGraphInstantiateWithFlags),
      entry("cuGraphLaunch", cuGraphLaunch),
      entry("cuGraphExecDestroy", cuGraphExecDestroy),
      entry("cuStreamIsCapturing", cuStreamIsCapturing),
      entry("cuStreamBeginCapture", cuStreamBeginCapture_v2),
      entry("cuStreamBeginCaptureToGraph", cuStreamBeginCaptureToGraph),
      entry("cuStreamEndCapture", cuStreamEndCapture),
      entry("cuStreamGetCaptureInfo", cuStreamGetCaptureInfo_v3),
      entry("cuStreamUpdateCaptureDependencies", cuStreamUpdateCaptureDependencies_v2),
  };
  return find_entry_point(entry_points, name);
}
