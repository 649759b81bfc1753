// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "exec/observer.hpp"

namespace vgpu::trace {

/// Writes what kernels do as Chrome-trace JSON (trace-event format), which ui.perfetto.dev and
/// chrome://tracing open. A process is a CTA of a launch; its rows are its warps (running and
/// waiting, with the source line), its TMA copies and its tensor-core operations, from issue to
/// completion. Time is counted in warp instructions of the cluster, shown as microseconds.
/// NOTE: it shows order and overlap under the chosen delivery policy, not durations on a GPU.
class Timeline : public exec::Observer {
 public:
  /// Ends the file. False when it could not be written.
  virtual bool finish() = 0;
};

/// Null when `path` cannot be created. At most `max_events` events are written; a note in the file
/// tells when that was not enough.
std::unique_ptr<Timeline> make_timeline(const std::string& path, uint64_t max_events = 2'000'000);

}  // namespace vgpu::trace
