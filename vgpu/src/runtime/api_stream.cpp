// SPDX-License-Identifier: Apache-2.0
// Streams and events: handles, waiting for work (runtime/queue.hpp), time stamps, captures.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "runtime/context.hpp"
#include "runtime/streams.hpp"

using namespace vgpu;
using namespace vgpu::runtime;

namespace {

cudaError_t find(Context& context, cudaStream_t handle, Stream*& stream) {
  stream = find_stream(context, handle);
  if (stream != nullptr) return cudaSuccess;
  return fail(cudaErrorInvalidResourceHandle, "stream %p does not exist",
              static_cast<void*>(handle));
}

cudaError_t find(Context& context, cudaEvent_t handle, Event*& event) {
  event = context.events.find(handle);
  if (event != nullptr) return cudaSuccess;
  return fail(cudaErrorInvalidResourceHandle, "event %p does not exist",
              static_cast<void*>(handle));
}

// Ends a capture: every stream that joined it goes back to normal.
void leave_capture(Context& context, const std::shared_ptr<Capture>& capture) {
  for (const auto& [handle, stream] : context.streams) {
    if (stream->capture == capture) {
      stream->capture.reset();
      stream->tail.clear();
    }
  }
}

}  // namespace

VGPU_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags,
                                                  int priority) {
  return call([&](Context& context) {
    if (stream == nullptr || flags > cudaStreamNonBlocking) {
      return fail(cudaErrorInvalidValue,
                  "stream flags %u: cudaStreamDefault (0) or "
                  "cudaStreamNonBlocking (1) are legal",
                  flags);
    }
    auto made = std::make_unique<Stream>();
    made->flags = flags;
    made->priority = std::clamp(priority, -5, 0);
    made->id = ++context.next_stream_id;
    *stream = reinterpret_cast<cudaStream_t>(context.streams.add(std::move(made)));
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
VGPU_API cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
VGPU_API cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return call([&](Context& context) {
    Stream* stream;
    if (const cudaError_t error = find(context, handle, stream); error) return error;
    if (stream == context.default_stream.get()) {
      return fail(cudaErrorInvalidResourceHandle, "the default stream cannot be destroyed");
    }
    if (stream->capture && stream->capture->origin == stream) {
      leave_capture(context, stream->capture);
    }
    // What it has been asked to do is done all the same.
    auto removed = context.streams.take(handle);
    if (!context.queue.idle(*removed)) context.destroyed_streams.push_back(std::move(removed));
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return call([&](Context& context) {
    Stream* stream;
    if (const cudaError_t error = find(context, handle, stream); error) return error;
    if (const cudaError_t error = refuse_while_capturing(context, stream, "cudaStreamSynchronize");
        error) {
      return error;
    }
    context.queue.finish(context, *stream);
    return context.sticky;
  });
}
VGPU_API cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return call([&](Context& context) {
    Stream* stream;
    if (const cudaError_t error = find(context, handle, stream); error) return error;
    if (const cudaError_t error = refuse_while_capturing(context, stream, "cudaStreamQuery");
        error) {
      return error;
    }
    if (context.queue.idle(*stream)) return cudaSuccess;
    context.queue.advance(context);
    if (context.sticky != cudaSuccess) return context.sticky;
    return context.queue.idle(*stream) ? cudaSuccess : cudaErrorNotReady;
  });
}
VGPU_API cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  return call([&](Context& context) {
    Stream* stream;
    if (const cudaError_t error = find(context, handle, stream); error) return error;
    *priority = stream->priority;
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  return call([&](Context& context) {
    Stream* stream;
    if (const cudaError_t error = find(context, handle, stream); error) return error;
    *flags = stream->flags;
    return cudaSuccess;
  });
}
// Refused while the stream is captured: so does an H100 (driver 580), which no document says.
VGPU_API cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long* id) {
  return call([&](Context& context) {
    Stream* stream;
    if (const cudaError_t error = find(context, handle, stream); error) return error;
    if (const cudaError_t error = refuse_while_capturing(context, stream, "cudaStreamGetId");
        error) {
      return error;
    }
    *id = stream->id;
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* device) {
  return call([&](Context& context) {
    Stream* stream;
    if (const cudaError_t error = find(context, handle, stream); error) return error;
    *device = 0;
    return cudaSuccess;
  });
}
// Attributes of streams (access policy, priority, synchronisation domain) do not change results.
VGPU_API cudaError_t cudaStreamSetAttribute(cudaStream_t handle, cudaStreamAttrID,
                                            const cudaStreamAttrValue*) {
  return call([&](Context& context) {
    Stream* stream;
    return find(context, handle, stream);
  });
}
VGPU_API cudaError_t cudaStreamCopyAttributes(cudaStream_t to, cudaStream_t from) {
  return call([&](Context& context) {
    Stream* stream;
    const cudaError_t error = find(context, to, stream);
    return error ? error : find(context, from, stream);
  });
}
VGPU_API cudaError_t cudaStreamAttachMemAsync(cudaStream_t handle, void*, size_t, unsigned) {
  return call([&](Context& context) {
    Stream* stream;
    return find(context, handle, stream);
  });
}

VGPU_API cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t callback,
                                           void* data, unsigned) {
  return call([&](Context& context) {
    Stream* stream;
    if (const cudaError_t error = find(context, handle, stream); error) return error;
    if (const cudaError_t error = refuse_while_capturing(context, stream, "cudaStreamAddCallback");
        error) {
      return error;
    }
    struct Call {
      cudaStreamCallback_t callback;
      cudaStream_t stream;
      void* data;
    };
    const cudaHostFn_t run = [](void* given) {
      const std::unique_ptr<Call> made(static_cast<Call*>(given));
      made->callback(made->stream, cudaSuccess, made->data);
    };
    context.queue.add(context, *stream, HostCall{run, new Call{callback, handle, data}});
    return cudaSuccess;
  });
}

// ---- events

VGPU_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call([&](Context& context) {
    auto made = std::make_unique<Event>();
    made->flags = flags;
    *event = reinterpret_cast<cudaEvent_t>(context.events.add(std::move(made)));
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
VGPU_API cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return call([&](Context& context) {
    Event* event;
    if (const cudaError_t error = find(context, handle, event); error) return error;
    auto removed = context.events.take(handle);
    if (context.queue.is_open(removed->record)) {
      context.destroyed_events.push_back(std::move(removed));
    }
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream_handle,
                                              unsigned) {
  return call([&](Context& context) {
    Event* event;
    Stream* stream;
    if (const cudaError_t error = find(context, handle, event); error) return error;
    if (const cudaError_t error = find(context, stream_handle, stream); error) return error;
    event->capture = stream->capture;
    event->nodes = stream->tail;
    if (stream->capture) return cudaSuccess;  // a dependency of the graph, not a node
    event->recorded = true;
    // NOTE: known before it runs: the record may wait for work of this very call.
    event->record = context.queue.add(context, *stream, EventRecord{event});
    return cudaSuccess;
  });
}
VGPU_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}

VGPU_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t handle, unsigned) {
  return call([&](Context& context) {
    Event* event;
    Stream* stream;
    if (const cudaError_t error = find(context, handle, event); error) return error;
    if (const cudaError_t error = find(context, stream_handle, stream); error) return error;
    if (!event->capture) {
      if (!stream->capture) {
        context.queue.add_wait(context, *stream, event->record);
        return cudaSuccess;
      }
      if (!event->recorded) return cudaSuccess;
      stream->capture->invalid = true;
      return fail(cudaErrorStreamCaptureIsolation,
                  "a capturing stream waits for an event that was recorded outside its capture");
    }
    if (stream->capture && stream->capture != event->capture) {
      stream->capture->invalid = event->capture->invalid = true;
      return fail(cudaErrorStreamCaptureMerge, "waiting for the event would join two captures");
    }
    // The stream joins the capture (or adds a dependency to what it captures).
    stream->capture = event->capture;
    for (GraphNode* node : event->nodes) {
      if (std::find(stream->tail.begin(), stream->tail.end(), node) == stream->tail.end()) {
        stream->tail.push_back(node);
      }
    }
    return cudaSuccess;
  });
}

namespace {

cudaError_t refuse_captured(const Event& event) {
  if (!event.capture) return cudaSuccess;
  event.capture->invalid = true;
  return fail(cudaErrorCapturedEvent, "the event was recorded in a capture");
}

}  // namespace

VGPU_API cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return call([&](Context& context) {
    Event* event;
    if (const cudaError_t error = find(context, handle, event); error) return error;
    if (const cudaError_t error = refuse_captured(*event); error) return error;
    if (!context.queue.is_open(event->record)) return cudaSuccess;
    context.queue.advance(context);
    if (context.sticky != cudaSuccess) return context.sticky;
    return context.queue.is_open(event->record) ? cudaErrorNotReady : cudaSuccess;
  });
}
VGPU_API cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return call([&](Context& context) {
    Event* event;
    if (const cudaError_t error = find(context, handle, event); error) return error;
    if (const cudaError_t error = refuse_captured(*event); error) return error;
    const uint64_t record = event->record;
    context.queue.run_until(context, [&] { return !context.queue.is_open(record); });
    return context.sticky;
  });
}

// NOTE: the time is the virtual GPU's wall time. It says nothing about a real GPU.
VGPU_API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return call([&](Context& context) {
    Event *first, *last;
    if (const cudaError_t error = find(context, start, first); error) return error;
    if (const cudaError_t error = find(context, end, last); error) return error;
    if (!first->recorded || !last->recorded) {
      return fail(cudaErrorInvalidResourceHandle, "an event was never recorded");
    }
    if (context.queue.is_open(first->record) || context.queue.is_open(last->record)) {
      return cudaErrorNotReady;
    }
    if ((first->flags | last->flags) & cudaEventDisableTiming) {
      return fail(cudaErrorInvalidResourceHandle, "an event has cudaEventDisableTiming");
    }
    *milliseconds = std::chrono::duration<float, std::milli>(last->time - first->time).count();
    return cudaSuccess;
  });
}

// ---- capture

namespace {

cudaError_t begin_capture(Context& context, cudaStream_t handle, Graph* into,
                          cudaStreamCaptureMode mode) {
  Stream* stream;
  if (const cudaError_t error = find(context, handle, stream); error) return error;
  if (stream == context.default_stream.get()) {
    return fail(cudaErrorStreamCaptureUnsupported, "the default stream cannot capture");
  }
  if (stream->capture) {
    stream->capture->invalid = true;
    return fail(cudaErrorIllegalState, "the stream already captures");
  }
  static unsigned long long next_id = 0;
  auto capture = std::make_shared<Capture>();
  if (into == nullptr) {
    capture->owned = std::make_unique<Graph>();
    into = capture->owned.get();
  }
  capture->graph = into;
  capture->origin = stream;
  capture->mode = mode;
  capture->id = ++next_id;
  stream->capture = std::move(capture);
  stream->tail.clear();
  return cudaSuccess;
}

}  // namespace

VGPU_API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call([&](Context& context) { return begin_capture(context, stream, nullptr, mode); });
}

VGPU_API cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t handle, cudaGraph_t graph_handle,
                                                   const cudaGraphNode_t* dependencies,
                                                   const cudaGraphEdgeData*, size_t count,
                                                   cudaStreamCaptureMode mode) {
  return call([&](Context& context) {
    Graph* graph = find_graph(context, graph_handle);
    if (graph == nullptr) return fail(cudaErrorInvalidValue, "the graph does not exist");
    if (const cudaError_t error = begin_capture(context, handle, graph, mode); error) return error;
    Stream* stream = find_stream(context, handle);
    for (size_t i = 0; i < count; ++i) {
      auto* node = reinterpret_cast<GraphNode*>(dependencies[i]);
      if (!graph->contains(node)) {
        stream->capture.reset();
        return fail(cudaErrorInvalidValue, "dependency %zu is not a node of the graph", i);
      }
      stream->tail.push_back(node);
    }
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return call([&](Context& context) {
    Stream* stream;
    if (const cudaError_t error = find(context, handle, stream); error) return error;
    // Null where the program knows the graph that it captured into.
    if (graph) *graph = nullptr;
    const std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return fail(cudaErrorIllegalState, "the stream does not capture");
    if (capture->origin != stream) {
      capture->invalid = true;
      return fail(cudaErrorStreamCaptureUnmatched, "the capture began in another stream");
    }
    // Every joined stream must have come back: what it did last is before the origin's tail.
    bool unjoined = false;
    std::unordered_set<const GraphNode*> before;
    std::vector<const GraphNode*> open(stream->tail.begin(), stream->tail.end());
    while (!open.empty()) {
      const GraphNode* node = open.back();
      open.pop_back();
      if (before.insert(node).second) {
        open.insert(open.end(), node->after.begin(), node->after.end());
      }
    }
    for (const auto& [key, other] : context.streams) {
      if (other->capture != capture) continue;
      for (const GraphNode* node : other->tail) unjoined |= !before.contains(node);
    }
    leave_capture(context, capture);
    if (capture->invalid) {
      return fail(cudaErrorStreamCaptureInvalidated, "the capture had become invalid");
    }
    if (unjoined) {
      return fail(cudaErrorStreamCaptureUnjoined,
                  "a stream that joined the capture was not joined back into its origin");
    }
    if (!graph) return cudaSuccess;
    *graph = reinterpret_cast<cudaGraph_t>(
        capture->owned ? context.graphs.add(std::move(capture->owned)) : capture->graph);
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return call([&](Context& context) {
    Stream* stream;
    if (const cudaError_t error = find(context, handle, stream); error) return error;
    *status = !stream->capture           ? cudaStreamCaptureStatusNone
              : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                              unsigned long long* id, cudaGraph_t* graph,
                                              const cudaGraphNode_t** dependencies,
                                              const cudaGraphEdgeData** edges, size_t* count) {
  if (const cudaError_t error = cudaStreamIsCapturing(handle, status); error) return error;
  return call([&](Context& context) {
    Stream* stream = find_stream(context, handle);
    if (*status != cudaStreamCaptureStatusActive) return cudaSuccess;
    if (id) *id = stream->capture->id;
    if (graph) *graph = reinterpret_cast<cudaGraph_t>(stream->capture->graph);
    if (dependencies) *dependencies = reinterpret_cast<cudaGraphNode_t*>(stream->tail.data());
    if (edges) *edges = nullptr;
    if (count) *count = stream->tail.size();
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t handle,
                                                         cudaGraphNode_t* dependencies,
                                                         const cudaGraphEdgeData*, size_t count,
                                                         unsigned flags) {
  return call([&](Context& context) {
    Stream* stream;
    if (const cudaError_t error = find(context, handle, stream); error) return error;
    if (!stream->capture) return fail(cudaErrorIllegalState, "the stream does not capture");
    if (stream->capture->invalid) {
      return fail(cudaErrorStreamCaptureInvalidated, "the capture has become invalid");
    }
    if (flags > cudaStreamSetCaptureDependencies) {
      return fail(cudaErrorInvalidValue,
                  "capture dependencies: flags %u; cudaStreamAddCaptureDependencies (0) and "
                  "cudaStreamSetCaptureDependencies (1) are legal",
                  flags);
    }
    std::vector<GraphNode*> tail;
    if (flags == cudaStreamAddCaptureDependencies) tail = stream->tail;
    for (size_t i = 0; i < count; ++i) {
      auto* node = reinterpret_cast<GraphNode*>(dependencies[i]);
      if (!stream->capture->graph->contains(node)) {
        return fail(cudaErrorInvalidValue, "dependency %zu is not a node of the captured graph", i);
      }
      if (std::find(tail.begin(), tail.end(), node) == tail.end()) tail.push_back(node);
    }
    stream->tail = std::move(tail);
    return cudaSuccess;
  });
}

VGPU_API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  std::swap(current, *mode);
  return cudaSuccess;
}
