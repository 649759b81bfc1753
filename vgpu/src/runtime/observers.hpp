// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "exec/observer.hpp"
#include "runtime/options.hpp"

namespace vgpu {
class GlobalMemory;
}

namespace vgpu::runtime {

/// The observers that the options ask for (checks, statistics, timeline), joined into one.
class Observers {
 public:
  Observers(const Options& options, GlobalMemory& memory);
  ~Observers();

  /// Null when nothing observes.
  exec::Observer* get() { return joined_; }

 private:
  std::vector<std::unique_ptr<exec::Observer>> parts_;
  std::unique_ptr<exec::Observer> fan_out_;
  exec::Observer* joined_ = nullptr;
};

}  // namespace vgpu::runtime
