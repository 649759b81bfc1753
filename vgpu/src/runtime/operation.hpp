// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "exec/launch.hpp"
#include "runtime/module.hpp"

namespace vgpu::runtime {

class Context;
struct Event;
struct Graph;

// What a stream can be asked to do, with all arguments resolved: it runs at once, or is kept as a
// graph node and runs when the graph does.

struct KernelLaunch {
  Kernel* kernel = nullptr;
  exec::Dim3 grid, block, cluster;
  bool explicit_cluster = false;
  bool cooperative = false;
  bool early = false;  ///< may start before the kernel before it in its stream has ended
  uint32_t dynamic_shared = 0;
  std::vector<uint8_t> params;  ///< the parameter space
};

/// A box of bytes from one pitched memory to another; 1-D copies have height = depth = 1.
struct Copy {
  void* target = nullptr;
  size_t target_pitch = 0, target_slice = 0;  ///< bytes
  const void* source = nullptr;
  size_t source_pitch = 0, source_slice = 0;
  size_t width = 0, height = 1, depth = 1;  ///< width in bytes
  cudaMemcpyKind kind = cudaMemcpyDefault;
};

struct Fill {
  void* target = nullptr;
  size_t pitch = 0, slice = 0;  ///< bytes
  uint32_t value = 0;
  uint32_t element_bytes = 1;               ///< 1, 2 or 4
  size_t width = 0, height = 1, depth = 1;  ///< width in elements
};

struct HostCall {
  cudaHostFn_t function = nullptr;
  void* data = nullptr;
};

struct Empty {};

/// Record of an event (a no-op for the data, a time stamp for the event).
struct EventRecord {
  Event* event = nullptr;
};

struct SubGraph {
  Graph* graph = nullptr;  ///< owned by the node that holds it
};

/// What a conditional node asks. Kernels set it by its handle; the graph that it was made for owns
/// it, and so do copies of that graph.
struct Condition {
  uint64_t handle = 0;
  Graph* owner = nullptr;
  uint32_t initial = 0;
  bool starts_as_initial = false;  ///< each time that the graph is launched
  bool has_node = false;           ///< a conditional node asks it
  std::atomic<uint32_t> value{0};
};

/// A launch of a graph begins: its conditions get their initial values.
struct StartConditions {
  std::vector<std::shared_ptr<Condition>> conditions;
};

struct Conditional {
  std::shared_ptr<Condition> condition;
  cudaGraphConditionalNodeType type = cudaGraphCondTypeIf;
  std::vector<std::shared_ptr<Graph>> bodies;

  /// What runs now, or null.
  const Graph* chosen() const;
};

using Operation = std::variant<Empty, KernelLaunch, Copy, Fill, HostCall, EventRecord, SubGraph,
                               StartConditions, Conditional>;

/// Checks a launch against the GPU's limits and resolves it. `args` are the kernel's arguments as
/// cudaLaunchKernel gets them.
cudaError_t prepare_launch(Context& context, const void* function, dim3 grid, dim3 block,
                           size_t dynamic_shared, void** args,
                           const cudaLaunchAttribute* attributes, unsigned attribute_count,
                           KernelLaunch& launch);
/// What cudaMemcpy3D and memcpy nodes ask for. Throws Fault (kNotSupported) for CUDA arrays.
Copy copy_of(const cudaMemcpy3DParms& parameters);
/// Checks the sides of a copy against the allocations and its kind.
cudaError_t check_copy(Context& context, const Copy& copy);
cudaError_t check_fill(Context& context, const Fill& fill);

/// A kernel that has started. Its fault becomes the context's sticky error, which the calls after
/// it return: the launch itself has succeeded, as on a GPU.
class RunningKernel {
 public:
  RunningKernel(Context& context, const KernelLaunch& launch);
  ~RunningKernel();
  /// Runs until it has ended (true) or pauses (exec::Options::pause_after).
  bool resume(Context& context);
  bool progressed() const;
  uint64_t instructions() const;
  /// Ends it as stuck.
  void give_up(Context& context, const std::string& headline);

 private:
  void report(Context& context) const;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Runs an operation now; a kernel that pauses comes back.
std::unique_ptr<RunningKernel> execute(Context& context, const Operation& operation);

}  // namespace vgpu::runtime
