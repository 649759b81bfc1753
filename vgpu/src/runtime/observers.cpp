// SPDX-License-Identifier: Apache-2.0
#include "runtime/observers.hpp"

#include "check/checker.hpp"
#include "runtime/context.hpp"

namespace vgpu::runtime {

Observers::Observers(const Options& options, GlobalMemory& memory) {
  const auto checks = check::CheckOptions::parse(options.checks);
  if (checks.any()) {
    const int level = options.log_level;
    parts_.push_back(check::make_checker(checks, &memory, [level](std::string_view text) {
      if (level >= 1) std::fprintf(stderr, "[vgpu] note: %.*s\n", int(text.size()), text.data());
    }));
  }
  if (parts_.size() == 1) joined_ = parts_[0].get();
}
Observers::~Observers() = default;

}  // namespace vgpu::runtime
