// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "exec/observer.hpp"
#include "runtime/options.hpp"

namespace vgpu {
class GlobalMemory;
namespace trace {
class Statistics;
class Timeline;
}  // namespace trace
}  // namespace vgpu

namespace vgpu::runtime {

/// The observers that the options ask for (checks, statistics, timeline), joined into one.
class Observers {
 public:
  /// Throws Fault (kInvalidValue) for a check that does not exist or a trace that cannot be
  /// written.
  Observers(const Options& options, GlobalMemory& memory);
  ~Observers();

  /// Null when nothing observes.
  exec::Observer* get() { return joined_; }
  /// Prints the statistics and ends the trace; called when the process exits.
  void finish();

 private:
  std::unique_ptr<exec::Observer> checker_;
  std::unique_ptr<trace::Statistics> statistics_;
  std::unique_ptr<trace::Timeline> timeline_;
  std::unique_ptr<exec::Observer> fan_out_;
  exec::Observer* joined_ = nullptr;
};

}  // namespace vgpu::runtime
