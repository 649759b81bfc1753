// SPDX-License-Identifier: Apache-2.0
#include "runtime/streams.hpp"

#include <algorithm>

#include "runtime/context.hpp"

namespace vgpu::runtime {

GraphNode* Graph::add(Operation operation, cudaGraphNodeType type, std::vector<GraphNode*> after) {
  auto node = std::make_unique<GraphNode>();
  node->graph = this;
  node->operation = std::move(operation);
  node->type = type;
  node->after = std::move(after);
  nodes.push_back(std::move(node));
  return nodes.back().get();
}

bool Graph::contains(const GraphNode* node) const {
  return std::any_of(nodes.begin(), nodes.end(),
                     [&](const auto& own) { return own.get() == node; });
}

bool Graph::any_inside(const std::function<bool(Graph&)>& f) {
  if (f(*this)) return true;
  for (const auto& node : nodes) {
    if (node->child && node->child->any_inside(f)) return true;
    const auto* conditional = std::get_if<Conditional>(&node->operation);
    if (!conditional) continue;
    for (const auto& body : conditional->bodies) {
      if (body->any_inside(f)) return true;
    }
  }
  return false;
}

bool Graph::asks_conditions() {
  return any_inside([](const Graph& inside) {
    return std::any_of(inside.nodes.begin(), inside.nodes.end(), [](const auto& node) {
      return std::holds_alternative<Conditional>(node->operation);
    });
  });
}

std::unique_ptr<Graph> Graph::clone() const {
  auto copy = std::make_unique<Graph>();
  copy->conditions = conditions;
  copy->in_body = in_body;
  std::unordered_map<const GraphNode*, GraphNode*> copy_of;
  for (const auto& node : nodes) {
    GraphNode* twin = copy->add(node->operation, node->type, {});
    twin->original = node.get();
    twin->kernel_params = node->kernel_params;
    twin->enabled = node->enabled;
    if (node->child) {
      twin->child = node->child->clone();
      twin->operation = SubGraph{twin->child.get()};
    }
    if (auto* conditional = std::get_if<Conditional>(&twin->operation)) {
      for (auto& body : conditional->bodies) body = body->clone();
    }
    copy_of[node.get()] = twin;
  }
  for (const auto& node : nodes) {
    for (const GraphNode* before : node->after) {
      copy_of[node.get()]->after.push_back(copy_of[before]);
    }
  }
  return copy;
}

std::vector<GraphNode*> Graph::in_order() const {
  // Repeatedly take the first node whose predecessors are all taken: creation order where legal.
  std::vector<GraphNode*> order;
  std::unordered_set<const GraphNode*> taken;
  bool progress = true;
  while (progress) {
    progress = false;
    for (const auto& node : nodes) {
      if (taken.contains(node.get())) continue;
      const bool ready =
          std::all_of(node->after.begin(), node->after.end(),
                      [&](const GraphNode* before) { return taken.contains(before); });
      if (!ready) continue;
      taken.insert(node.get());
      order.push_back(node.get());
      progress = true;
    }
  }
  if (order.size() != nodes.size()) order.clear();
  return order;
}

GraphNode* GraphExec::copy_of(const GraphNode* original) const {
  GraphNode* copy = nullptr;
  graph->any_inside([&](Graph& inside) {
    for (const auto& node : inside.nodes) {
      if (node->original == original) copy = node.get();
    }
    return copy != nullptr;
  });
  return copy;
}

const Graph* Conditional::chosen() const {
  const uint32_t value = condition->value.load();
  switch (type) {
    case cudaGraphCondTypeIf:
      if (value) return bodies[0].get();
      return bodies.size() > 1 ? bodies[1].get() : nullptr;
    case cudaGraphCondTypeWhile:
      return value ? bodies[0].get() : nullptr;
    default:
      return value < bodies.size() ? bodies[value].get() : nullptr;
  }
}

std::shared_ptr<Condition> ConditionTable::add(Graph& owner, uint32_t initial,
                                               bool starts_as_initial) {
  std::erase_if(conditions_, [](const auto& entry) { return entry.second.expired(); });
  auto condition = std::make_shared<Condition>();
  condition->handle = ++last_handle_;
  condition->owner = &owner;
  condition->initial = initial;
  condition->starts_as_initial = starts_as_initial;
  conditions_[condition->handle] = condition;
  return condition;
}

std::shared_ptr<Condition> ConditionTable::find(uint64_t handle) const {
  const auto found = conditions_.find(handle);
  return found == conditions_.end() ? nullptr : found->second.lock();
}

Graph* find_graph(Context& context, cudaGraph_t handle) {
  Graph* found = nullptr;
  const auto is_it = [&](Graph& graph) {
    if (&graph == reinterpret_cast<Graph*>(handle)) found = &graph;
    return found != nullptr;
  };
  for (const auto& [key, graph] : context.graphs) {
    if (graph->any_inside(is_it)) return found;
  }
  for (const auto& [key, stream] : context.streams) {
    if (stream->capture && stream->capture->graph->any_inside(is_it)) return found;
  }
  return nullptr;
}

Stream* find_stream(Context& context, cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    return context.default_stream.get();
  }
  return context.streams.find(handle);
}

cudaError_t refuse_implicit_dependency(Context& context) {
  for (const auto& [key, other] : context.streams) {
    if (!other->capture || other->flags & cudaStreamNonBlocking) continue;
    other->capture->invalid = true;
    return fail(cudaErrorStreamCaptureImplicit,
                "work in the default stream while a blocking stream captures; create the stream "
                "with cudaStreamNonBlocking");
  }
  return cudaSuccess;
}

cudaError_t enqueue(Context& context, cudaStream_t handle, Operation operation,
                    cudaGraphNodeType type) {
  Stream* stream = find_stream(context, handle);
  if (stream == nullptr) {
    return fail(cudaErrorInvalidResourceHandle, "stream %p does not exist",
                static_cast<void*>(handle));
  }
  if (!stream->capture) {
    if (stream == context.default_stream.get()) {
      if (const cudaError_t error = refuse_implicit_dependency(context); error) return error;
    }
    context.queue.add(context, *stream, std::move(operation));
    return cudaSuccess;
  }
  if (stream->capture->invalid) {
    return fail(cudaErrorStreamCaptureInvalidated, "the capture has become invalid");
  }
  std::unique_ptr<Graph> child;
  if (auto* sub = std::get_if<SubGraph>(&operation)) {
    if (sub->graph->asks_conditions()) {
      return fail(cudaErrorNotSupported, "graphs with conditional nodes cannot be child graphs");
    }
    child = sub->graph->clone();
    sub->graph = child.get();
  }
  GraphNode* node = stream->capture->graph->add(std::move(operation), type, stream->tail);
  node->child = std::move(child);
  stream->tail = {node};
  return cudaSuccess;
}

cudaError_t refuse_while_capturing(Context& context, Stream* stream, const char* function) {
  const auto refuse = [&](Stream& capturing) {
    capturing.capture->invalid = true;
    return fail(cudaErrorStreamCaptureUnsupported, "%s cannot be captured", function);
  };
  if (stream != nullptr) return stream->capture ? refuse(*stream) : cudaSuccess;
  for (const auto& [key, other] : context.streams) {
    if (other->capture && other->capture->mode != cudaStreamCaptureModeRelaxed) {
      return refuse(*other);
    }
  }
  return cudaSuccess;
}

}  // namespace vgpu::runtime
