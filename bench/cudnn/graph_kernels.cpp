// SPDX-License-Identifier: Apache-2.0
#include "graph_kernels.hpp"

#include <cuda.h>

#include "convoy/error.hpp"
#include "cuda_check.hpp"

namespace convoy::bench {
namespace {

// NOTE: the driver's interface: the runtime does not name kernels of other libraries.
template <typename Function>
Function* driver_function(const char* name, unsigned version) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  cli::check_cuda(
      cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found), name);
  if (address == nullptr) throw Error(Status::launch_failure, std::string(name) + " is missing");
  return reinterpret_cast<Function*>(address);
}

void check_driver(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  throw Error(Status::launch_failure, std::string(what) + ": CUresult " + std::to_string(result));
}

// The graph of one capture.
class Capture {
 public:
  explicit Capture(const std::function<void(cudaStream_t)>& enqueue) {
    cudaStream_t stream = nullptr;
    cli::check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    cli::check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    std::exception_ptr problem;
    try {
      enqueue(stream);
    } catch (...) {
      problem = std::current_exception();
    }
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph_);
    cudaStreamDestroy(stream);
    if (problem) std::rethrow_exception(problem);
    cli::check_cuda(ended, "cudaStreamEndCapture");
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  ~Capture() {
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  CUgraph graph() const { return graph_; }

 private:
  cudaGraph_t graph_ = nullptr;
};

}  // namespace

std::vector<KernelLaunch> kernel_launches(const std::function<void(cudaStream_t)>& enqueue) {
  static auto* const get_nodes =
      driver_function<decltype(cuGraphGetNodes)>("cuGraphGetNodes", 12040);
  static auto* const get_type =
      driver_function<decltype(cuGraphNodeGetType)>("cuGraphNodeGetType", 12040);
  static auto* const get_params =
      driver_function<decltype(cuGraphKernelNodeGetParams)>("cuGraphKernelNodeGetParams", 12040);
  static auto* const function_name =
      driver_function<decltype(cuFuncGetName)>("cuFuncGetName", 12040);
  static auto* const kernel_name =
      driver_function<decltype(cuKernelGetName)>("cuKernelGetName", 12040);

  const Capture capture(enqueue);
  std::size_t count = 0;
  check_driver(get_nodes(capture.graph(), nullptr, &count), "cuGraphGetNodes");
  std::vector<CUgraphNode> nodes(count);
  check_driver(get_nodes(capture.graph(), nodes.data(), &count), "cuGraphGetNodes");
  std::vector<KernelLaunch> launches;
  for (const CUgraphNode node : nodes) {
    CUgraphNodeType type{};
    check_driver(get_type(node, &type), "cuGraphNodeGetType");
    if (type != CU_GRAPH_NODE_TYPE_KERNEL) continue;
    CUDA_KERNEL_NODE_PARAMS params{};
    check_driver(get_params(node, &params), "cuGraphKernelNodeGetParams");
    const char* name = nullptr;
    check_driver(params.func != nullptr ? function_name(&name, params.func)
                                        : kernel_name(&name, params.kern),
                 "the name of a kernel");
    launches.push_back({name, dim3(params.gridDimX, params.gridDimY, params.gridDimZ),
                        params.blockDimX * params.blockDimY * params.blockDimZ});
  }
  return launches;
}

}  // namespace convoy::bench
