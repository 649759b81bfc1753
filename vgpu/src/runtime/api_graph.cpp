// SPDX-License-Identifier: Apache-2.0
// Graphs: built by hand or by capture, instantiated, updated, launched.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "runtime/context.hpp"
#include "runtime/streams.hpp"

using namespace vgpu;
using namespace vgpu::runtime;

namespace {

GraphNode* as_node(cudaGraphNode_t handle) {
  return reinterpret_cast<GraphNode*>(handle);
}
cudaGraphNode_t as_handle(GraphNode* node) {
  return reinterpret_cast<cudaGraphNode_t>(node);
}

cudaError_t find(Context& context, cudaGraph_t handle, Graph*& graph) {
  graph = find_graph(context, handle);
  return graph ? cudaSuccess : fail(cudaErrorInvalidValue, "graph %p does not exist", handle);
}

cudaError_t find(Context& context, cudaGraphExec_t handle, GraphExec*& graph) {
  graph = context.graph_execs.find(handle);
  return graph ? cudaSuccess
               : fail(cudaErrorInvalidValue, "executable graph %p does not exist", handle);
}

cudaError_t find(Context& context, cudaGraphNode_t handle, GraphNode*& node) {
  node = as_node(handle);
  const auto has_it = [&](const Graph& graph) { return graph.contains(node); };
  for (const auto& [key, graph] : context.graphs) {
    if (graph->any_inside(has_it)) return cudaSuccess;
  }
  return fail(cudaErrorInvalidValue, "graph node %p does not exist", handle);
}

cudaError_t add_node(cudaGraphNode_t* handle, cudaGraph_t graph_handle,
                     const cudaGraphNode_t* dependencies, size_t count, cudaGraphNodeType type,
                     const std::function<cudaError_t(Context&, Operation&)>& make) {
  return call([&](Context& context) {
    Graph* graph;
    if (const cudaError_t error = find(context, graph_handle, graph); error) return error;
    std::vector<GraphNode*> after;
    for (size_t i = 0; i < count; ++i) {
      GraphNode* before = as_node(dependencies[i]);
      if (!graph->contains(before)) {
        return fail(cudaErrorInvalidValue, "dependency %zu is not a node of the graph", i);
      }
      after.push_back(before);
    }
    Operation operation;
    if (const cudaError_t error = make(context, operation); error) return error;
    *handle = as_handle(graph->add(std::move(operation), type, std::move(after)));
    return cudaSuccess;
  });
}

cudaError_t make_kernel(Context& context, const cudaKernelNodeParams& p, Operation& operation) {
  if (p.extra != nullptr) {
    return fail(cudaErrorNotSupported, "kernel nodes with the `extra` argument format");
  }
  KernelLaunch launch;
  const cudaError_t error = prepare_launch(context, p.func, p.gridDim, p.blockDim, p.sharedMemBytes,
                                           p.kernelParams, nullptr, 0, launch);
  operation = std::move(launch);
  return error;
}

// The parameters of cudaGraphAddNode and those of the functions for one type.
cudaKernelNodeParams kernel_params(const cudaKernelNodeParamsV2& p) {
  return {p.func, p.gridDim, p.blockDim, p.sharedMemBytes, p.kernelParams, p.extra};
}
cudaMemsetParams memset_params(const cudaMemsetParamsV2& p) {
  return {p.dst, p.pitch, p.value, p.elementSize, p.width, p.height};
}

cudaError_t make_copy(Context& context, const cudaMemcpy3DParms& p, Operation& operation) {
  const Copy copy = copy_of(p);
  operation = copy;
  return check_copy(context, copy);
}

cudaError_t make_copy(Context& context, void* target, const void* source, size_t bytes,
                      cudaMemcpyKind kind, Operation& operation) {
  Copy copy;
  copy.target = target;
  copy.source = source;
  copy.width = bytes;
  copy.kind = kind;
  operation = copy;
  return check_copy(context, copy);
}

cudaError_t make_fill(Context& context, const cudaMemsetParams& p, Operation& operation) {
  if (p.elementSize != 1 && p.elementSize != 2 && p.elementSize != 4) {
    return fail(cudaErrorInvalidValue, "memset node: element size %u; 1, 2 and 4 are legal",
                p.elementSize);
  }
  const Fill fill{p.dst, p.pitch, 0, p.value, p.elementSize, p.width, p.height, 1};
  operation = fill;
  return check_fill(context, fill);
}

cudaError_t make_host(const cudaHostNodeParams& p, Operation& operation) {
  if (p.fn == nullptr) return fail(cudaErrorInvalidValue, "host node: the function is null");
  operation = HostCall{p.fn, p.userData};
  return cudaSuccess;
}

// Replaces what a node of a graph, or its copy in an executable graph, does.
cudaError_t set_node(Context& context, cudaGraphExec_t exec_handle, cudaGraphNode_t handle,
                     Operation operation) {
  GraphNode* node;
  if (const cudaError_t error = find(context, handle, node); error) return error;
  if (exec_handle != nullptr) {
    GraphExec* exec;
    if (const cudaError_t error = find(context, exec_handle, exec); error) return error;
    node = exec->copy_of(node);
    if (node == nullptr) {
      return fail(cudaErrorInvalidValue, "the node is not in the executable graph");
    }
  }
  if (node->operation.index() != operation.index()) {
    return fail(cudaErrorInvalidValue, "the node is of another type than its new parameters");
  }
  if (auto* kernel = std::get_if<KernelLaunch>(&operation)) {
    kernel->cluster = std::get<KernelLaunch>(node->operation).cluster;
  }
  node->operation = std::move(operation);
  return cudaSuccess;
}

// A conditional node's parameters are those of the handle that was made for this graph.
cudaError_t make_conditional(Context& context, Graph& graph, const cudaConditionalNodeParams& p,
                             Operation& operation) {
  const auto condition = context.conditions.find(p.handle);
  if (!condition || condition->has_node) {
    return fail(cudaErrorInvalidValue,
                condition ? "conditional node: another node asks the condition %llu"
                          : "conditional node: no graph has a condition with the handle %llu",
                p.handle);
  }
  Graph* owner = find_graph(context, reinterpret_cast<cudaGraph_t>(condition->owner));
  if (!owner || !owner->any_inside([&](const Graph& inside) { return &inside == &graph; })) {
    return fail(cudaErrorInvalidValue,
                "conditional node: the handle %llu was made for another graph; legal are those of "
                "this graph and of the graphs around it",
                p.handle);
  }
  unsigned most = 1;
  switch (p.type) {
    case cudaGraphCondTypeIf:
      most = 2;
      break;
    case cudaGraphCondTypeWhile:
      break;
    case cudaGraphCondTypeSwitch:
      most = ~0u;
      break;
    default:
      return fail(
          cudaErrorInvalidValue,
          "conditional node: type %d; cudaGraphCondTypeIf (0), While (1) and Switch (2) are "
          "legal",
          static_cast<int>(p.type));
  }
  if (p.size == 0 || p.size > most) {
    return fail(cudaErrorInvalidValue,
                "conditional node: %u bodies; if nodes have 1 or 2, while nodes 1, switch nodes at "
                "least 1",
                p.size);
  }
  Conditional conditional{condition, p.type, {}};
  for (unsigned i = 0; i < p.size; ++i) {
    conditional.bodies.push_back(std::make_shared<Graph>());
    conditional.bodies.back()->in_body = true;
  }
  condition->has_node = true;
  operation = std::move(conditional);
  return cudaSuccess;
}

template <typename T>
cudaError_t list(const std::vector<T>& items, T* out, size_t* count) {
  if (out == nullptr) {
    *count = items.size();
    return cudaSuccess;
  }
  for (size_t i = 0; i < *count; ++i) out[i] = i < items.size() ? items[i] : T{};
  *count = std::min(*count, items.size());
  return cudaSuccess;
}

// Copies in the bodies of conditional nodes are between memory that the GPU reaches.
bool reaches_both_sides(const Context& context, const Copy& copy) {
  return context.memory.find(reinterpret_cast<uint64_t>(copy.target)) &&
         context.memory.find(reinterpret_cast<uint64_t>(copy.source));
}

// What the bodies of conditional nodes may hold (cudaConditionalNodeParams::phGraph_out).
cudaError_t check_bodies(const Context& context, Graph& graph) {
  cudaError_t error = cudaSuccess;
  graph.any_inside([&](Graph& inside) {
    for (const auto& node : inside.nodes) {
      if (!inside.in_body) break;
      const bool legal =
          node->type == cudaGraphNodeTypeKernel || node->type == cudaGraphNodeTypeEmpty ||
          node->type == cudaGraphNodeTypeGraph || node->type == cudaGraphNodeTypeMemset ||
          node->type == cudaGraphNodeTypeMemcpy || node->type == cudaGraphNodeTypeConditional;
      if (!legal) {
        error = fail(cudaErrorInvalidValue,
                     "the body of a conditional node has a node of type %d; legal: kernel, empty, "
                     "child graph, memset, memcpy and conditional nodes",
                     static_cast<int>(node->type));
      }
      const auto* copy = std::get_if<Copy>(&node->operation);
      if (copy && !reaches_both_sides(context, *copy)) {
        error = fail(cudaErrorInvalidValue,
                     "the body of a conditional node copies pageable host memory; allocate it with "
                     "cudaMallocHost");
      }
    }
    return error != cudaSuccess;
  });
  return error;
}

// What instantiation asks of graphs with conditional nodes (cudaGraphNodeTypeConditional).
// NOTE: the error codes are an H200's.
cudaError_t check_conditions(const Context& context, Graph& graph,
                             cudaGraphInstantiateResult& result) {
  result = cudaGraphInstantiateConditionalHandleUnused;
  if (graph.any_inside([](const Graph& inside) {
        return std::any_of(inside.conditions.begin(), inside.conditions.end(),
                           [](const auto& condition) { return !condition->has_node; });
      })) {
    return fail(cudaErrorInvalidValue, "no conditional node asks one of the graph's conditions");
  }
  result = cudaGraphInstantiateNodeOperationNotSupported;
  if (const cudaError_t error = check_bodies(context, graph); error) return error;
  result = cudaGraphInstantiateError;
  if (graph.in_body) {
    return fail(cudaErrorNotSupported, "the body of a conditional node runs within its graph only");
  }
  if (!graph.asks_conditions()) return cudaSuccess;
  for (const auto& [key, exec] : context.graph_execs) {
    if (exec->source != &graph) continue;
    return fail(cudaErrorNotSupported,
                "a graph with conditional nodes has one executable graph at a time; destroy the "
                "other one first");
  }
  return cudaSuccess;
}

cudaError_t instantiate(Context& context, cudaGraphExec_t* handle, cudaGraph_t graph_handle,
                        unsigned long long flags, cudaGraphInstantiateResult& result) {
  Graph* graph;
  result = cudaGraphInstantiateError;
  if (const cudaError_t error = find(context, graph_handle, graph); error) return error;
  if (const cudaError_t error = check_conditions(context, *graph, result); error) return error;
  auto exec = std::make_unique<GraphExec>();
  exec->source = graph;
  exec->graph = graph->clone();
  exec->order = exec->graph->in_order();
  exec->flags = flags;
  if (exec->order.size() != exec->graph->nodes.size()) {
    return fail(cudaErrorInvalidValue, "the graph has a cycle");
  }
  *handle = reinterpret_cast<cudaGraphExec_t>(context.graph_execs.add(std::move(exec)));
  result = cudaGraphInstantiateSuccess;
  return cudaSuccess;
}

}  // namespace

// ---- building

VGPU_API cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) {
  return call([&](Context& context) {
    *graph = reinterpret_cast<cudaGraph_t>(context.graphs.add(std::make_unique<Graph>()));
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call([&](Context& context) {
    for (const auto& [key, exec] : context.graph_execs) {
      if (exec->source == reinterpret_cast<const Graph*>(graph)) exec->source = nullptr;
    }
    if (context.graphs.remove(graph)) return cudaSuccess;
    return fail(cudaErrorInvalidValue, "graph %p does not exist", graph);
  });
}
VGPU_API cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t original) {
  return call([&](Context& context) {
    Graph* graph;
    if (const cudaError_t error = find(context, original, graph); error) return error;
    if (graph->asks_conditions()) {
      return fail(cudaErrorNotSupported, "graphs with conditional nodes cannot be cloned");
    }
    *clone = reinterpret_cast<cudaGraph_t>(context.graphs.add(graph->clone()));
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                           const cudaGraphNode_t* dependencies, size_t count) {
  return add_node(node, graph, dependencies, count, cudaGraphNodeTypeEmpty,
                  [](Context&, Operation&) { return cudaSuccess; });
}
VGPU_API cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                            const cudaGraphNode_t* dependencies, size_t count,
                                            const cudaKernelNodeParams* p) {
  const cudaError_t error =
      add_node(node, graph, dependencies, count, cudaGraphNodeTypeKernel,
               [&](Context& context, Operation& out) { return make_kernel(context, *p, out); });
  if (error == cudaSuccess) as_node(*node)->kernel_params = *p;
  return error;
}
VGPU_API cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                            const cudaGraphNode_t* dependencies, size_t count,
                                            const cudaMemcpy3DParms* p) {
  return add_node(node, graph, dependencies, count, cudaGraphNodeTypeMemcpy,
                  [&](Context& context, Operation& out) { return make_copy(context, *p, out); });
}
VGPU_API cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph,
                                              const cudaGraphNode_t* dependencies, size_t count,
                                              void* target, const void* source, size_t bytes,
                                              cudaMemcpyKind kind) {
  return add_node(node, graph, dependencies, count, cudaGraphNodeTypeMemcpy,
                  [&](Context& context, Operation& out) {
                    return make_copy(context, target, source, bytes, kind, out);
                  });
}
VGPU_API cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                            const cudaGraphNode_t* dependencies, size_t count,
                                            const cudaMemsetParams* p) {
  return add_node(node, graph, dependencies, count, cudaGraphNodeTypeMemset,
                  [&](Context& context, Operation& out) { return make_fill(context, *p, out); });
}
VGPU_API cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                          const cudaGraphNode_t* dependencies, size_t count,
                                          const cudaHostNodeParams* p) {
  return add_node(node, graph, dependencies, count, cudaGraphNodeTypeHost,
                  [&](Context&, Operation& out) { return make_host(*p, out); });
}
VGPU_API cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                 const cudaGraphNode_t* dependencies, size_t count,
                                                 cudaEvent_t event) {
  return add_node(node, graph, dependencies, count, cudaGraphNodeTypeEventRecord,
                  [&](Context& context, Operation& out) {
                    Event* found = context.events.find(event);
                    if (found == nullptr) {
                      return fail(cudaErrorInvalidValue, "the event does not exist");
                    }
                    out = EventRecord{found};
                    return cudaSuccess;
                  });
}
VGPU_API cudaError_t cudaGraphAddEventWaitNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                               const cudaGraphNode_t* dependencies, size_t count,
                                               cudaEvent_t) {
  return add_node(node, graph, dependencies, count, cudaGraphNodeTypeWaitEvent,
                  [](Context&, Operation&) { return cudaSuccess; });
}
VGPU_API cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                const cudaGraphNode_t* dependencies, size_t count,
                                                cudaGraph_t child) {
  std::unique_ptr<Graph> copy;
  const cudaError_t error = add_node(node, graph, dependencies, count, cudaGraphNodeTypeGraph,
                                     [&](Context& context, Operation& out) {
                                       Graph* found;
                                       const cudaError_t missing = find(context, child, found);
                                       if (missing) return missing;
                                       if (found->asks_conditions()) {
                                         return fail(cudaErrorNotSupported,
                                                     "graphs with conditional nodes cannot be "
                                                     "child graphs");
                                       }
                                       copy = found->clone();
                                       out = SubGraph{copy.get()};
                                       return cudaSuccess;
                                     });
  if (error == cudaSuccess) as_node(*node)->child = std::move(copy);
  return error;
}
VGPU_API cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle* handle,
                                                      cudaGraph_t graph_handle, unsigned initial,
                                                      unsigned flags) {
  return call([&](Context& context) {
    Graph* graph;
    if (const cudaError_t error = find(context, graph_handle, graph); error) return error;
    if (handle == nullptr || flags > cudaGraphCondAssignDefault) {
      return fail(cudaErrorInvalidValue,
                  "conditional handle: flags %u; 0 and cudaGraphCondAssignDefault (1) are legal, "
                  "and the handle must not be null",
                  flags);
    }
    graph->conditions.push_back(context.conditions.add(*graph, initial, flags != 0));
    *handle = graph->conditions.back()->handle;
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                      const cudaGraphNode_t* dependencies, const cudaGraphEdgeData*,
                                      size_t count, cudaGraphNodeParams* p) {
  switch (p->type) {
    case cudaGraphNodeTypeKernel: {
      const cudaKernelNodeParams kernel = kernel_params(p->kernel);
      return cudaGraphAddKernelNode(node, graph, dependencies, count, &kernel);
    }
    case cudaGraphNodeTypeMemcpy:
      return cudaGraphAddMemcpyNode(node, graph, dependencies, count, &p->memcpy.copyParams);
    case cudaGraphNodeTypeMemset: {
      const cudaMemsetParams fill = memset_params(p->memset);
      return cudaGraphAddMemsetNode(node, graph, dependencies, count, &fill);
    }
    case cudaGraphNodeTypeHost: {
      const cudaHostNodeParams host{p->host.fn, p->host.userData};
      return cudaGraphAddHostNode(node, graph, dependencies, count, &host);
    }
    case cudaGraphNodeTypeGraph:
      if (p->graph.ownership != cudaGraphChildGraphOwnershipClone) break;
      return cudaGraphAddChildGraphNode(node, graph, dependencies, count, p->graph.graph);
    case cudaGraphNodeTypeEmpty:
      return cudaGraphAddEmptyNode(node, graph, dependencies, count);
    case cudaGraphNodeTypeWaitEvent:
      return cudaGraphAddEventWaitNode(node, graph, dependencies, count, p->eventWait.event);
    case cudaGraphNodeTypeEventRecord:
      return cudaGraphAddEventRecordNode(node, graph, dependencies, count, p->eventRecord.event);
    case cudaGraphNodeTypeConditional: {
      const cudaError_t error = add_node(
          node, graph, dependencies, count, p->type, [&](Context& context, Operation& out) {
            return make_conditional(context, *find_graph(context, graph), p->conditional, out);
          });
      if (error) return error;
      GraphNode& made = *as_node(*node);
      for (const auto& body : std::get<Conditional>(made.operation).bodies) {
        made.bodies.push_back(reinterpret_cast<cudaGraph_t>(body.get()));
      }
      p->conditional.phGraph_out = made.bodies.data();
      return cudaSuccess;
    }
    default:
      break;
  }
  return call([&](Context&) {
    return fail(cudaErrorNotSupported,
                "graph nodes of type %d are not modelled (allocations, semaphores, graphs that "
                "are moved)",
                static_cast<int>(p->type));
  });
}
VGPU_API cudaError_t cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t handle, cudaGraph_t* graph) {
  return call([&](Context& context) {
    GraphNode* node;
    if (const cudaError_t error = find(context, handle, node); error) return error;
    if (!node->child) return fail(cudaErrorInvalidValue, "the node holds no graph");
    *graph = reinterpret_cast<cudaGraph_t>(node->child.get());
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaGraphAddDependencies(cudaGraph_t handle, const cudaGraphNode_t* from,
                                              const cudaGraphNode_t* to, const cudaGraphEdgeData*,
                                              size_t count) {
  return call([&](Context& context) {
    Graph* graph;
    if (const cudaError_t error = find(context, handle, graph); error) return error;
    for (size_t i = 0; i < count; ++i) {
      if (!graph->contains(as_node(from[i])) || !graph->contains(as_node(to[i]))) {
        return fail(cudaErrorInvalidValue, "dependency %zu names a node of another graph", i);
      }
      as_node(to[i])->after.push_back(as_node(from[i]));
    }
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaGraphRemoveDependencies(cudaGraph_t handle, const cudaGraphNode_t* from,
                                                 const cudaGraphNode_t* to,
                                                 const cudaGraphEdgeData*, size_t count) {
  return call([&](Context& context) {
    Graph* graph;
    if (const cudaError_t error = find(context, handle, graph); error) return error;
    for (size_t i = 0; i < count; ++i) {
      if (!graph->contains(as_node(to[i]))) {
        return fail(cudaErrorInvalidValue, "dependency %zu names a node of another graph", i);
      }
      std::erase(as_node(to[i])->after, as_node(from[i]));
    }
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaGraphDestroyNode(cudaGraphNode_t handle) {
  return call([&](Context& context) {
    GraphNode* node;
    if (const cudaError_t error = find(context, handle, node); error) return error;
    Graph* graph = node->graph;
    for (const auto& other : graph->nodes) std::erase(other->after, node);
    std::erase_if(graph->nodes, [&](const auto& own) { return own.get() == node; });
    return cudaSuccess;
  });
}

// ---- looking

VGPU_API cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, size_t* count) {
  return call([&](Context& context) {
    Graph* graph;
    if (const cudaError_t error = find(context, handle, graph); error) return error;
    std::vector<cudaGraphNode_t> all;
    for (const auto& node : graph->nodes) all.push_back(as_handle(node.get()));
    return list(all, nodes, count);
  });
}
VGPU_API cudaError_t cudaGraphGetRootNodes(cudaGraph_t handle, cudaGraphNode_t* nodes,
                                           size_t* count) {
  return call([&](Context& context) {
    Graph* graph;
    if (const cudaError_t error = find(context, handle, graph); error) return error;
    std::vector<cudaGraphNode_t> roots;
    for (const auto& node : graph->nodes) {
      if (node->after.empty()) roots.push_back(as_handle(node.get()));
    }
    return list(roots, nodes, count);
  });
}
VGPU_API cudaError_t cudaGraphGetEdges(cudaGraph_t handle, cudaGraphNode_t* from,
                                       cudaGraphNode_t* to, cudaGraphEdgeData* data,
                                       size_t* count) {
  return call([&](Context& context) {
    Graph* graph;
    if (const cudaError_t error = find(context, handle, graph); error) return error;
    std::vector<cudaGraphNode_t> sources, targets;
    for (const auto& node : graph->nodes) {
      for (GraphNode* before : node->after) {
        sources.push_back(as_handle(before));
        targets.push_back(as_handle(node.get()));
      }
    }
    size_t room = *count;
    if (data != nullptr) std::memset(data, 0, std::min(room, sources.size()) * sizeof *data);
    list(sources, from, &room);
    return list(targets, to, count);
  });
}
VGPU_API cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t handle, cudaGraphNode_t* nodes,
                                                  cudaGraphEdgeData* data, size_t* count) {
  return call([&](Context& context) {
    GraphNode* node;
    if (const cudaError_t error = find(context, handle, node); error) return error;
    std::vector<cudaGraphNode_t> before;
    for (GraphNode* other : node->after) before.push_back(as_handle(other));
    if (data != nullptr) std::memset(data, 0, std::min(*count, before.size()) * sizeof *data);
    return list(before, nodes, count);
  });
}
VGPU_API cudaError_t cudaGraphNodeGetType(cudaGraphNode_t handle, cudaGraphNodeType* type) {
  return call([&](Context& context) {
    GraphNode* node;
    if (const cudaError_t error = find(context, handle, node); error) return error;
    *type = node->type;
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaGraphNodeFindInClone(cudaGraphNode_t* found, cudaGraphNode_t original,
                                              cudaGraph_t clone) {
  return call([&](Context& context) {
    Graph* graph;
    if (const cudaError_t error = find(context, clone, graph); error) return error;
    for (const auto& node : graph->nodes) {
      if (node->original != as_node(original)) continue;
      *found = as_handle(node.get());
      return cudaSuccess;
    }
    return fail(cudaErrorInvalidValue, "the clone holds no copy of the node");
  });
}
VGPU_API cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t handle, cudaKernelNodeParams* p) {
  return call([&](Context& context) {
    GraphNode* node;
    if (const cudaError_t error = find(context, handle, node); error) return error;
    const auto* launch = std::get_if<KernelLaunch>(&node->operation);
    if (launch == nullptr) return fail(cudaErrorInvalidValue, "the node is no kernel node");
    *p = node->kernel_params;
    p->func = launch->kernel;
    p->gridDim = {launch->grid.x, launch->grid.y, launch->grid.z};
    p->blockDim = {launch->block.x, launch->block.y, launch->block.z};
    p->sharedMemBytes = launch->dynamic_shared;
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t handle, cudaMemsetParams* p) {
  return call([&](Context& context) {
    GraphNode* node;
    if (const cudaError_t error = find(context, handle, node); error) return error;
    const auto* fill = std::get_if<Fill>(&node->operation);
    if (fill == nullptr) return fail(cudaErrorInvalidValue, "the node is no memset node");
    *p = {fill->target, fill->pitch, fill->value, fill->element_bytes, fill->width, fill->height};
    return cudaSuccess;
  });
}

// ---- changing

VGPU_API cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                      const cudaKernelNodeParams* p) {
  return call([&](Context& context) {
    Operation operation;
    if (const cudaError_t error = make_kernel(context, *p, operation); error) return error;
    return set_node(context, exec, node, std::move(operation));
  });
}
VGPU_API cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node,
                                                  const cudaKernelNodeParams* p) {
  return cudaGraphExecKernelNodeSetParams(nullptr, node, p);
}
VGPU_API cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                        void* target, const void* source,
                                                        size_t bytes, cudaMemcpyKind kind) {
  return call([&](Context& context) {
    Operation operation;
    const cudaError_t error = make_copy(context, target, source, bytes, kind, operation);
    return error ? error : set_node(context, exec, node, std::move(operation));
  });
}
VGPU_API cudaError_t cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, void* target,
                                                    const void* source, size_t bytes,
                                                    cudaMemcpyKind kind) {
  return cudaGraphExecMemcpyNodeSetParams1D(nullptr, node, target, source, bytes, kind);
}
VGPU_API cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                      const cudaMemsetParams* p) {
  return call([&](Context& context) {
    Operation operation;
    if (const cudaError_t error = make_fill(context, *p, operation); error) return error;
    return set_node(context, exec, node, std::move(operation));
  });
}
VGPU_API cudaError_t cudaGraphMemsetNodeSetParams(cudaGraphNode_t node, const cudaMemsetParams* p) {
  return cudaGraphExecMemsetNodeSetParams(nullptr, node, p);
}
VGPU_API cudaError_t cudaGraphExecNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                cudaGraphNodeParams* p) {
  return call([&](Context& context) {
    Operation operation;
    cudaError_t error = cudaSuccess;
    switch (p->type) {
      case cudaGraphNodeTypeKernel:
        error = make_kernel(context, kernel_params(p->kernel), operation);
        break;
      case cudaGraphNodeTypeMemcpy:
        error = make_copy(context, p->memcpy.copyParams, operation);
        break;
      case cudaGraphNodeTypeMemset:
        error = make_fill(context, memset_params(p->memset), operation);
        break;
      case cudaGraphNodeTypeHost:
        error = make_host({p->host.fn, p->host.userData}, operation);
        break;
      default:
        error = fail(cudaErrorNotSupported,
                     "new parameters for graph nodes of type %d are not modelled (kernel, memcpy, "
                     "memset and host nodes are)",
                     static_cast<int>(p->type));
    }
    return error ? error : set_node(context, exec, node, std::move(operation));
  });
}
VGPU_API cudaError_t cudaGraphNodeSetParams(cudaGraphNode_t node, cudaGraphNodeParams* p) {
  return cudaGraphExecNodeSetParams(nullptr, node, p);
}
VGPU_API cudaError_t cudaGraphNodeSetEnabled(cudaGraphExec_t handle, cudaGraphNode_t node,
                                             unsigned enabled) {
  return call([&](Context& context) {
    GraphExec* exec;
    if (const cudaError_t error = find(context, handle, exec); error) return error;
    GraphNode* copy = exec->copy_of(as_node(node));
    if (copy == nullptr) return fail(cudaErrorInvalidValue, "the node is not in the graph");
    copy->enabled = enabled != 0;
    return cudaSuccess;
  });
}

// An update succeeds when both graphs have the same nodes and edges, in the same order.
VGPU_API cudaError_t cudaGraphExecUpdate(cudaGraphExec_t handle, cudaGraph_t graph_handle,
                                         cudaGraphExecUpdateResultInfo* info) {
  return call([&](Context& context) {
    GraphExec* exec;
    Graph* graph;
    if (const cudaError_t error = find(context, handle, exec); error) return error;
    if (const cudaError_t error = find(context, graph_handle, graph); error) return error;
    *info = {};
    const auto index_of = [](const Graph& in, const GraphNode* node) {
      return std::find_if(in.nodes.begin(), in.nodes.end(),
                          [&](const auto& own) { return own.get() == node; }) -
             in.nodes.begin();
    };
    const std::function<bool(const Graph&, const Graph&)> same = [&](const Graph& left,
                                                                     const Graph& right) {
      bool equal = left.nodes.size() == right.nodes.size();
      for (size_t i = 0; equal && i < left.nodes.size(); ++i) {
        const GraphNode &from = *left.nodes[i], &to = *right.nodes[i];
        equal = from.type == to.type && from.after.size() == to.after.size();
        for (size_t d = 0; equal && d < from.after.size(); ++d) {
          equal = index_of(left, from.after[d]) == index_of(right, to.after[d]);
        }
        const auto* asks = std::get_if<Conditional>(&from.operation);
        if (!equal || !asks) continue;
        const auto& other = std::get<Conditional>(to.operation);
        equal = asks->type == other.type && asks->bodies.size() == other.bodies.size();
        for (size_t b = 0; equal && b < asks->bodies.size(); ++b) {
          equal = same(*asks->bodies[b], *other.bodies[b]);
        }
      }
      return equal;
    };
    if (!same(*graph, *exec->graph)) {
      info->result = cudaGraphExecUpdateErrorTopologyChanged;
      return fail(cudaErrorGraphExecUpdateFailure, "the graphs differ in their nodes or edges");
    }
    exec->source = graph;
    exec->graph = graph->clone();
    exec->order = exec->graph->in_order();
    info->result = cudaGraphExecUpdateSuccess;
    return cudaSuccess;
  });
}

// ---- running

VGPU_API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                          unsigned long long flags) {
  cudaGraphInstantiateResult result;
  return call([&](Context& context) { return instantiate(context, exec, graph, flags, result); });
}
VGPU_API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                                   unsigned long long flags) {
  return cudaGraphInstantiate(exec, graph, flags);
}
VGPU_API cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t* exec, cudaGraph_t graph,
                                                    cudaGraphInstantiateParams* p) {
  return call(
      [&](Context& context) { return instantiate(context, exec, graph, p->flags, p->result_out); });
}
VGPU_API cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t handle, unsigned long long* flags) {
  return call([&](Context& context) {
    GraphExec* exec;
    if (const cudaError_t error = find(context, handle, exec); error) return error;
    *flags = exec->flags;
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t) {
  return call([&](Context& context) {
    GraphExec* exec;
    return find(context, handle, exec);
  });
}
VGPU_API cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream) {
  return call([&](Context& context) {
    GraphExec* exec;
    if (const cudaError_t error = find(context, handle, exec); error) return error;
    return enqueue(context, stream, SubGraph{exec->graph.get()}, cudaGraphNodeTypeGraph);
  });
}
VGPU_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return call([&](Context& context) {
    if (context.graph_execs.remove(exec)) return cudaSuccess;
    return fail(cudaErrorInvalidValue, "executable graph %p does not exist", exec);
  });
}
