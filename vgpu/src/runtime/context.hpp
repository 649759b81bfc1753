// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "runtime/device_heap.hpp"
#include "runtime/device_model.hpp"
#include "runtime/module.hpp"
#include "runtime/observers.hpp"
#include "runtime/options.hpp"
#include "runtime/queue.hpp"
#include "runtime/unsupported.hpp"

/// Exported entry points.
#define VGPU_API extern "C" __attribute__((visibility("default")))

namespace vgpu::runtime {

struct Stream;
struct Event;
struct Graph;
struct GraphExec;

/// The opaque handles that programs hold, so that a stale or foreign one is an error, not a crash.
template <typename T>
class HandleTable {
 public:
  T* add(std::unique_ptr<T> object) {
    T* handle = object.get();
    objects_.emplace(handle, std::move(object));
    return handle;
  }
  T* find(const void* handle) const {
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second.get();
  }
  bool remove(const void* handle) { return take(handle) != nullptr; }
  /// Removes the handle and hands its object over; null when there is none.
  std::unique_ptr<T> take(const void* handle) {
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    std::unique_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }
  void clear() { objects_.clear(); }
  auto begin() const { return objects_.begin(); }
  auto end() const { return objects_.end(); }

 private:
  std::unordered_map<const void*, std::unique_ptr<T>> objects_;
};

/// The conditions of graphs by their handles. Kernels look them up from several threads, while the
/// host adds none.
class ConditionTable {
 public:
  std::shared_ptr<Condition> add(Graph& owner, uint32_t initial, bool starts_as_initial);
  /// Null for a handle of no graph that still exists.
  std::shared_ptr<Condition> find(uint64_t handle) const;

 private:
  uint64_t last_handle_ = 0;
  std::unordered_map<uint64_t, std::weak_ptr<Condition>> conditions_;
};

/// The state of the one virtual GPU that a process sees.
///
/// Work runs in the calling thread (Queue says when). The lock is held meanwhile, so API calls of
/// other threads wait.
class Context {
 public:
  /// Made at the first call; lives until the process ends.
  static Context& get();

  std::recursive_mutex mutex;
  Options options;
  DeviceModel device;
  GlobalMemory memory;
  DeviceHeap device_heap;
  Observers observers;

  // Modules and kernels.
  HandleTable<Module> modules;
  std::vector<std::unique_ptr<Module>> unloaded_modules;  // reports at exit still name their code
  std::unordered_map<const void*, std::unique_ptr<Kernel>> kernels_by_stub;  // host function
  std::unordered_map<const void*, Variable> variables_by_stub;               // host shadow
  std::unordered_set<const Kernel*> kernel_handles;

  // Streams, events, graphs.
  HandleTable<Stream> streams;
  HandleTable<Event> events;
  HandleTable<Graph> graphs;
  HandleTable<GraphExec> graph_execs;
  ConditionTable conditions;
  std::unique_ptr<Stream> default_stream;
  std::vector<std::unique_ptr<Stream>> destroyed_streams;  // with work that is not done
  std::vector<std::unique_ptr<Event>> destroyed_events;    // whose record has not run
  Queue queue;
  uint64_t next_stream_id = 2;  // 1 and 2 name the legacy and the per-thread default stream

  /// The error of a kernel that faulted: every later call returns it. cudaDeviceReset does not
  /// bring the device back: what follows it fails with cudaErrorDevicesUnavailable, as on an H200.
  cudaError_t sticky = cudaSuccess;

  /// A kernel by its handle or its host stub; null when it is unknown.
  Kernel* find_kernel(const void* function);
  /// Its module loaded; throws Fault when the module has no usable PTX.
  const exec::KernelInfo& info(Kernel& kernel);

  /// Throws Fault for options that cannot be honoured.
  Context();
};

/// Prints "[vgpu] <text>" on stderr when VGPU_LOG is at least `level`.
void log(int level, const std::string& text);

/// Explains a failure on stderr and returns its code.
cudaError_t fail(cudaError_t error, const char* format, ...) __attribute__((format(printf, 2, 3)));

/// Remembers `error` for cudaGetLastError and returns it.
cudaError_t record_error(cudaError_t error);

/// Whether the device's context is current on this thread, which the driver's own functions want.
/// The runtime's make it so, but for those that only ask (`query`).
inline thread_local bool context_is_current = false;

/// Runs the body of an API function that only asks: takes the lock, hands out the sticky error,
/// turns exceptions into error codes with an explanation, remembers the error.
template <typename Body>
cudaError_t query(Body&& body) {
  cudaError_t error = cudaErrorUnknown;
  try {
    Context& context = Context::get();
    std::lock_guard lock(context.mutex);
    error = context.sticky != cudaSuccess ? context.sticky : body(context);
  } catch (const Fault& problem) {
    error = fail(static_cast<cudaError_t>(problem.cuda_error), "%s", problem.text.c_str());
  } catch (const std::bad_alloc&) {
    error = fail(cudaErrorMemoryAllocation, "the host is out of memory");
  } catch (const std::exception& problem) {
    error = fail(cudaErrorUnknown, "internal error: %s", problem.what());
  }
  return record_error(error);
}

/// The same for one that works on the device.
template <typename Body>
cudaError_t call(Body&& body) {
  context_is_current = true;
  return query(std::forward<Body>(body));
}

}  // namespace vgpu::runtime
