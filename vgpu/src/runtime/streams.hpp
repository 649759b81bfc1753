// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/queue.hpp"

namespace vgpu::runtime {

class Context;
struct Stream;

/// A node of a graph: an operation and the nodes it comes after.
struct GraphNode {
  Graph* graph = nullptr;
  Operation operation;
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  std::vector<GraphNode*> after;
  std::unique_ptr<Graph> child;          ///< SubGraph nodes
  std::vector<cudaGraph_t> bodies;       ///< of conditional nodes, as the program was given them
  GraphNode* original = nullptr;         ///< in the graph that this one is a copy of
  cudaKernelNodeParams kernel_params{};  ///< as given, for GetParams
  bool enabled = true;                   ///< in an executable graph
};

struct Graph {
  std::vector<std::unique_ptr<GraphNode>> nodes;
  std::vector<std::shared_ptr<Condition>> conditions;
  bool in_body = false;  ///< of a conditional node

  GraphNode* add(Operation operation, cudaGraphNodeType type, std::vector<GraphNode*> after);
  bool contains(const GraphNode* node) const;
  /// Calls f(graph) for this graph and those inside its nodes, at any depth, until it returns true;
  /// whether it did.
  bool any_inside(const std::function<bool(Graph&)>& f);
  /// Whether it has conditional nodes, at any depth.
  bool asks_conditions();
  /// A deep copy; `original` of each new node names the old one.
  std::unique_ptr<Graph> clone() const;
  /// The nodes in an order that respects `after`; empty when there is a cycle.
  std::vector<GraphNode*> in_order() const;
};

/// A graph that can be launched: a private copy, in its order of execution.
struct GraphExec {
  std::unique_ptr<Graph> graph;
  std::vector<GraphNode*> order;
  unsigned long long flags = 0;
  const Graph* source = nullptr;  ///< what it was made from, if that still exists

  /// The copy of a node of the graph it was made from, or null.
  GraphNode* copy_of(const GraphNode* original) const;
};

/// A capture in progress: from cudaStreamBeginCapture to cudaStreamEndCapture.
struct Capture {
  Graph* graph = nullptr;
  std::unique_ptr<Graph> owned;  ///< null when capturing into a graph of the program's
  Stream* origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  unsigned long long id = 0;
  bool invalid = false;  ///< a call that cannot be captured was made
};

struct Stream {
  unsigned flags = 0;
  int priority = 0;
  unsigned long long id = 0;
  std::shared_ptr<Capture> capture;  ///< null: not capturing
  std::vector<GraphNode*> tail;      ///< what the next captured node comes after
  std::deque<Work> work;             ///< that is not done
};

struct Event {
  using Clock = std::chrono::steady_clock;
  unsigned flags = 0;
  bool recorded = false;
  uint64_t record = 0;  ///< number of its last record in the Queue
  Clock::time_point time;
  std::shared_ptr<Capture> capture;  ///< recorded in this capture, else null
  std::vector<GraphNode*> nodes;     ///< the capture's tail at the record
};

/// The stream a handle names (null, legacy and per-thread handles: the default stream); null for a
/// handle that is none.
Stream* find_stream(Context& context, cudaStream_t handle);

/// A graph of the program's, one that a stream captures, or one inside a node of these; or null.
Graph* find_graph(Context& context, cudaGraph_t handle);

/// Adds `operation` to the stream's work, which runs as soon as it can, or to the graph that the
/// stream captures.
cudaError_t enqueue(Context& context, cudaStream_t stream, Operation operation,
                    cudaGraphNodeType type);

/// The legacy default stream waits for blocking streams, which a capture cannot express: an error
/// (and the capture becomes invalid) while one captures.
cudaError_t refuse_implicit_dependency(Context& context);

/// For calls that cannot be captured: an error (and the capture becomes invalid) while a capture
/// forbids them. `stream` narrows it to one stream; null: any capture of mode global.
cudaError_t refuse_while_capturing(Context& context, Stream* stream, const char* function);

}  // namespace vgpu::runtime
