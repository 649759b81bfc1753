// SPDX-License-Identifier: Apache-2.0
// Graphs with conditional nodes: if, if/else, while, switch, nested, by hand and by capture, what
// is refused. Exit status 0 when everything holds, on a GPU too.
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "expect.cuh"

namespace {

__global__ void set(cudaGraphConditionalHandle handle, unsigned value) {
  cudaGraphSetConditional(handle, value);
}
__global__ void set_to(cudaGraphConditionalHandle handle, const int* value) {
  cudaGraphSetConditional(handle, static_cast<unsigned>(*value));
}
__global__ void add(int* total, int term) {
  *total += term;
}
// Ends a loop when the total reaches the limit.
__global__ void count_up(cudaGraphConditionalHandle handle, int* total, int limit) {
  if (++*total >= limit) cudaGraphSetConditional(handle, 0);
}
__global__ void loop_until(cudaGraphConditionalHandle handle, volatile int* flag, int* total) {
  ++*total;
  if (*flag) cudaGraphSetConditional(handle, 0);
}

int* total;
cudaStream_t stream;

using Nodes = std::vector<cudaGraphNode_t>;

template <typename... Arguments>
cudaGraphNode_t add_kernel(cudaGraph_t graph, const Nodes& after, void (*kernel)(Arguments...),
                           Arguments... arguments) {
  void* pointers[] = {&arguments...};
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeKernel;
  params.kernel.func = reinterpret_cast<void*>(kernel);
  params.kernel.gridDim = params.kernel.blockDim = dim3(1);
  params.kernel.kernelParams = pointers;
  cudaGraphNode_t node = nullptr;
  CHECK_OK(cudaGraphAddNode(&node, graph, after.data(), nullptr, after.size(), &params));
  return node;
}

struct Asked {
  cudaError_t error = cudaSuccess;
  cudaGraphNode_t node = nullptr;
  cudaGraph_t* bodies = nullptr;
};
Asked ask(cudaGraph_t graph, const Nodes& after, cudaGraphConditionalHandle handle,
          cudaGraphConditionalNodeType type, unsigned size) {
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = handle;
  params.conditional.type = type;
  params.conditional.size = size;
  Asked out;
  out.error = cudaGraphAddNode(&out.node, graph, after.data(), nullptr, after.size(), &params);
  out.bodies = params.conditional.phGraph_out;
  return out;
}

cudaGraph_t new_graph() {
  cudaGraph_t graph = nullptr;
  CHECK_OK(cudaGraphCreate(&graph, 0));
  return graph;
}
cudaGraphConditionalHandle new_handle(cudaGraph_t graph, unsigned initial, unsigned flags) {
  cudaGraphConditionalHandle handle = 0;
  CHECK_OK(cudaGraphConditionalHandleCreate(&handle, graph, initial, flags));
  return handle;
}
cudaGraphExec_t instantiate(cudaGraph_t graph) {
  cudaGraphExec_t exec = nullptr;
  CHECK_OK(cudaGraphInstantiate(&exec, graph, 0));
  return exec;
}
// The total after a launch that began with `start`.
int launch(cudaGraphExec_t exec, int start = 0) {
  int value = start;
  CHECK_OK(cudaMemcpy(total, &value, sizeof value, cudaMemcpyHostToDevice));
  CHECK_OK(cudaGraphLaunch(exec, stream));
  CHECK_OK(cudaStreamSynchronize(stream));
  CHECK_OK(cudaMemcpy(&value, total, sizeof value, cudaMemcpyDeviceToHost));
  return value;
}

void choose_between_bodies() {
  // The value lasts from launch to launch unless the default is assigned.
  for (const unsigned flags : {0u, unsigned{cudaGraphCondAssignDefault}}) {
    const cudaGraph_t graph = new_graph();
    const auto handle = new_handle(graph, 1, flags);
    const Nodes first{flags ? add_kernel(graph, {}, add, total, 1000)
                            : add_kernel(graph, {}, set_to, handle, (const int*)total)};
    const Asked either = ask(graph, first, handle, cudaGraphCondTypeIf, 2);
    CHECK_OK(either.error);
    const Nodes then{add_kernel(either.bodies[0], {}, add, total, 1)};
    add_kernel(either.bodies[0], then, set, handle, 0u);
    add_kernel(either.bodies[1], {}, add, total, 10);
    add_kernel(graph, {either.node}, add, total, 100);
    const cudaGraphExec_t exec = instantiate(graph);
    if (flags) {
      for (int i = 0; i < 2; ++i) CHECK(launch(exec) == 1101);
    } else {
      CHECK(launch(exec, 0) == 110);
      CHECK(launch(exec, 5) == 106);
    }
    cudaGraphNodeType type;
    CHECK_OK(cudaGraphNodeGetType(either.node, &type));
    CHECK(type == cudaGraphNodeTypeConditional);
    CHECK_OK(cudaGraphExecDestroy(exec));
    CHECK_OK(cudaGraphDestroy(graph));
  }
}

void loop() {
  const cudaGraph_t graph = new_graph();
  const auto handle = new_handle(graph, 1, cudaGraphCondAssignDefault);
  const Asked loop = ask(graph, {}, handle, cudaGraphCondTypeWhile, 1);
  CHECK_OK(loop.error);
  const auto count = add_kernel(loop.bodies[0], {}, count_up, handle, total, 700);
  add_kernel(graph, {loop.node}, add, total, 10000);
  const cudaGraphExec_t exec = instantiate(graph);
  CHECK(launch(exec) == 10700);
  CHECK(launch(exec, 698) == 10700);
  CHECK(launch(exec, 800) == 10801);
  // A node of the body changes like any other.
  int limit = 3;
  void* arguments[] = {const_cast<cudaGraphConditionalHandle*>(&handle), &total, &limit};
  cudaKernelNodeParams params{};
  params.func = reinterpret_cast<void*>(count_up);
  params.gridDim = params.blockDim = dim3(1);
  params.kernelParams = arguments;
  CHECK_OK(cudaGraphExecKernelNodeSetParams(exec, count, &params));
  CHECK(launch(exec) == 10003);
  limit = 5;
  cudaGraphNodeParams any{};
  any.type = cudaGraphNodeTypeKernel;
  any.kernel.func = params.func;
  any.kernel.gridDim = any.kernel.blockDim = dim3(1);
  any.kernel.kernelParams = arguments;
  CHECK_OK(cudaGraphExecNodeSetParams(exec, count, &any));
  CHECK(launch(exec) == 10005);
  // The graph itself still has its first limit.
  cudaGraphExecUpdateResultInfo info;
  CHECK_OK(cudaGraphExecUpdate(exec, graph, &info));
  CHECK(launch(exec) == 10700);
  CHECK_OK(cudaGraphExecDestroy(exec));
  CHECK_OK(cudaGraphDestroy(graph));
}

void switches() {
  const cudaGraph_t graph = new_graph();
  const auto handle = new_handle(graph, 0, 0);
  const Nodes first{add_kernel(graph, {}, set_to, handle, (const int*)total)};
  const Asked which = ask(graph, first, handle, cudaGraphCondTypeSwitch, 3);
  CHECK_OK(which.error);
  for (int i = 0; i < 3; ++i) add_kernel(which.bodies[i], {}, add, total, 100 * (i + 1));
  const cudaGraphExec_t exec = instantiate(graph);
  const int results[] = {100, 201, 302, 3, -1};
  for (const int value : {0, 1, 2, 3, -1}) {
    CHECK(launch(exec, value) == results[value < 0 ? 4 : value]);
  }
  CHECK_OK(cudaGraphExecDestroy(exec));
  CHECK_OK(cudaGraphDestroy(graph));
}

// A loop around an if, whose body copies, clears and holds a child graph.
void nested() {
  const cudaGraph_t graph = new_graph();
  const auto repeat = new_handle(graph, 1, cudaGraphCondAssignDefault);
  const auto once = new_handle(graph, 0, 0);
  const Asked loop = ask(graph, {}, repeat, cudaGraphCondTypeWhile, 1);
  CHECK_OK(loop.error);
  const cudaGraph_t body = loop.bodies[0];
  const Nodes ready{add_kernel(body, {}, set, once, 1u)};
  const Asked inner = ask(body, ready, once, cudaGraphCondTypeIf, 1);
  CHECK_OK(inner.error);
  int* side;
  CHECK_OK(cudaMalloc(&side, 4));
  cudaMemsetParams clear{};
  clear.dst = side;
  clear.elementSize = 4;
  clear.value = 20;
  clear.width = clear.height = 1;
  cudaGraphNode_t cleared, copied, child;
  CHECK_OK(cudaGraphAddMemsetNode(&cleared, inner.bodies[0], nullptr, 0, &clear));
  const cudaGraph_t adds = new_graph();
  add_kernel(adds, {}, add, side, 5);
  CHECK_OK(cudaGraphAddChildGraphNode(&child, inner.bodies[0], &cleared, 1, adds));
  CHECK_OK(cudaGraphAddMemcpyNode1D(&copied, inner.bodies[0], &child, 1, total, side, 4,
                                    cudaMemcpyDeviceToDevice));
  add_kernel(body, {inner.node}, count_up, repeat, total, 26);
  const cudaGraphExec_t exec = instantiate(graph);
  CHECK(launch(exec) == 26);
  CHECK_OK(cudaGraphExecDestroy(exec));
  CHECK_OK(cudaGraphDestroy(graph));
  CHECK_OK(cudaGraphDestroy(adds));
  CHECK_OK(cudaFree(side));
}

void captured() {
  cudaStream_t inside;
  CHECK_OK(cudaStreamCreateWithFlags(&inside, cudaStreamNonBlocking));
  CHECK_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  cudaStreamCaptureStatus status;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* last = nullptr;
  size_t count = 0;
  CHECK_OK(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, &last, nullptr, &count));
  const auto handle = new_handle(graph, 0, cudaGraphCondAssignDefault);
  set_to<<<1, 1, 0, stream>>>(handle, total);
  CHECK_OK(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, &last, nullptr, &count));
  CHECK(count == 1);
  Asked maybe = ask(graph, Nodes(last, last + count), handle, cudaGraphCondTypeIf, 1);
  CHECK_OK(maybe.error);
  CHECK_OK(cudaStreamUpdateCaptureDependencies(stream, &maybe.node, nullptr, 1,
                                               cudaStreamSetCaptureDependencies));
  CHECK_OK(cudaStreamUpdateCaptureDependencies(stream, &maybe.node, nullptr, 1,
                                               cudaStreamAddCaptureDependencies));
  CHECK_OK(cudaStreamBeginCaptureToGraph(inside, maybe.bodies[0], nullptr, nullptr, 0,
                                         cudaStreamCaptureModeRelaxed));
  add<<<1, 1, 0, inside>>>(total, 6);
  cudaGraph_t body = nullptr;
  CHECK_OK(cudaStreamEndCapture(inside, &body));
  CHECK(body == maybe.bodies[0]);
  CHECK_OK(cudaStreamBeginCaptureToGraph(inside, body, nullptr, nullptr, 0,
                                         cudaStreamCaptureModeRelaxed));
  add<<<1, 1, 0, inside>>>(total, 1000);
  CHECK_OK(cudaStreamEndCapture(inside, nullptr));
  add<<<1, 1, 0, stream>>>(total, 100);
  CHECK_OK(cudaStreamEndCapture(stream, &graph));
  const cudaGraphExec_t exec = instantiate(graph);
  CHECK(launch(exec, 0) == 100);
  CHECK(launch(exec, 1) == 1107);
  CHECK_OK(cudaGraphExecDestroy(exec));
  CHECK_OK(cudaGraphDestroy(graph));
  CHECK_OK(cudaStreamDestroy(inside));
}

// A loop that the host ends: its launch returns before.
void ended_by_the_host() {
  int* flag;
  CHECK_OK(cudaMallocHost(&flag, 4));
  *flag = 0;
  const cudaGraph_t graph = new_graph();
  const auto handle = new_handle(graph, 1, cudaGraphCondAssignDefault);
  const Asked loop = ask(graph, {}, handle, cudaGraphCondTypeWhile, 1);
  CHECK_OK(loop.error);
  add_kernel(loop.bodies[0], {}, loop_until, handle, (volatile int*)flag, total);
  const cudaGraphExec_t exec = instantiate(graph);
  CHECK_OK(cudaMemset(total, 0, 4));
  CHECK_OK(cudaDeviceSynchronize());
  CHECK_OK(cudaGraphLaunch(exec, stream));
  CHECK_ERROR(cudaStreamQuery(stream), cudaErrorNotReady);
  std::atomic_ref(*flag).store(1);
  CHECK_OK(cudaStreamSynchronize(stream));
  CHECK_OK(cudaGraphExecDestroy(exec));
  CHECK_OK(cudaGraphDestroy(graph));
  CHECK_OK(cudaFreeHost(flag));
}

void refusals() {
  const cudaGraph_t graph = new_graph(), other = new_graph(), parent = new_graph();
  cudaGraphConditionalHandle handle = 0;
  CHECK_ERROR(cudaGraphConditionalHandleCreate(&handle, graph, 1, 2), cudaErrorInvalidValue);
  handle = new_handle(graph, 0, 0);
  struct Shape {
    cudaGraphConditionalNodeType type;
    unsigned size;
  };
  for (const Shape shape : {Shape{cudaGraphCondTypeIf, 0}, Shape{cudaGraphCondTypeIf, 3},
                            Shape{cudaGraphCondTypeWhile, 0}, Shape{cudaGraphCondTypeWhile, 2},
                            Shape{cudaGraphCondTypeSwitch, 0},
                            Shape{static_cast<cudaGraphConditionalNodeType>(3), 1}}) {
    CHECK_ERROR(ask(graph, {}, handle, shape.type, shape.size).error, cudaErrorInvalidValue);
  }
  CHECK_ERROR(ask(other, {}, handle, cudaGraphCondTypeIf, 1).error, cudaErrorInvalidValue);
  cudaGraphExec_t exec = nullptr, second = nullptr;
  cudaGraphInstantiateParams how{};
  CHECK_ERROR(cudaGraphInstantiateWithParams(&exec, graph, &how), cudaErrorInvalidValue);
  CHECK(how.result_out == cudaGraphInstantiateConditionalHandleUnused);
  const Asked once = ask(graph, {}, handle, cudaGraphCondTypeIf, 1);
  CHECK_OK(once.error);
  CHECK_ERROR(ask(graph, {}, handle, cudaGraphCondTypeIf, 1).error, cudaErrorInvalidValue);
  cudaGraph_t copy;
  cudaGraphNode_t child;
  CHECK_ERROR(cudaGraphClone(&copy, graph), cudaErrorNotSupported);
  CHECK_ERROR(cudaGraphAddChildGraphNode(&child, parent, nullptr, 0, graph), cudaErrorNotSupported);
  exec = instantiate(graph);
  CHECK_ERROR(cudaGraphInstantiate(&second, graph, 0), cudaErrorNotSupported);
  CHECK_OK(cudaGraphExecDestroy(exec));
  exec = instantiate(graph);
  CHECK_OK(cudaGraphExecDestroy(exec));
  CHECK_ERROR(cudaGraphInstantiate(&exec, once.bodies[0], 0), cudaErrorNotSupported);
  CHECK_ERROR(cudaGraphDestroy(once.bodies[0]), cudaErrorInvalidValue);
  // What a body must not hold.
  static int pageable = 5;
  cudaGraphNode_t node;
  CHECK_OK(cudaGraphAddMemcpyNode1D(&node, once.bodies[0], nullptr, 0, total, &pageable, 4,
                                    cudaMemcpyHostToDevice));
  CHECK_ERROR(cudaGraphInstantiate(&exec, graph, 0), cudaErrorInvalidValue);
  CHECK_OK(cudaGraphDestroyNode(node));
  const cudaHostNodeParams host{[](void*) {}, nullptr};
  CHECK_OK(cudaGraphAddHostNode(&node, once.bodies[0], nullptr, 0, &host));
  CHECK_ERROR(cudaGraphInstantiateWithParams(&exec, graph, &how), cudaErrorInvalidValue);
  CHECK(how.result_out == cudaGraphInstantiateNodeOperationNotSupported);
  CHECK_OK(cudaGraphDestroyNode(node));
  exec = instantiate(graph);
  CHECK_OK(cudaGraphExecDestroy(exec));
  CHECK_OK(cudaGraphDestroy(graph));
  CHECK_OK(cudaGraphDestroy(other));
  CHECK_OK(cudaGraphDestroy(parent));
  cudaGetLastError();
}

}  // namespace

int main() {
  CHECK_OK(cudaMalloc(&total, 4));
  CHECK_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  choose_between_bodies();
  loop();
  switches();
  nested();
  captured();
  ended_by_the_host();
  refusals();
  CHECK_OK(cudaStreamDestroy(stream));
  CHECK_OK(cudaFree(total));
  if (failures == 0) std::printf("all holds\n");
  return failures != 0;
}
