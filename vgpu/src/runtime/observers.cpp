// SPDX-License-Identifier: Apache-2.0
#include "runtime/observers.hpp"

#include <cstdio>

#include "check/checker.hpp"
#include "trace/fan_out.hpp"
#include "trace/statistics.hpp"
#include "trace/timeline.hpp"

namespace vgpu::runtime {

Observers::Observers(const Options& options, GlobalMemory& memory) {
  std::vector<exec::Observer*> parts;
  const check::CheckOptions checks = check::CheckOptions::parse(options.checks);
  if (checks.any()) {
    const bool quiet = options.log_level == 0;
    checker_ = check::make_checker(checks, &memory, [quiet](std::string_view note) {
      if (quiet) return;
      std::fprintf(stderr, "[vgpu] %.*s\n", static_cast<int>(note.size()), note.data());
    });
    parts.push_back(checker_.get());
  }
  if (options.stats) {
    statistics_ = trace::make_statistics();
    parts.push_back(statistics_.get());
  }
  if (!options.trace_path.empty()) {
    timeline_ = trace::make_timeline(options.trace_path);
    if (!timeline_) {
      fault(kInvalidValue, "VGPU_TRACE: %s cannot be written", options.trace_path.c_str());
    }
    parts.push_back(timeline_.get());
  }
  if (parts.size() > 1) fan_out_ = trace::make_fan_out(parts);
  if (!parts.empty()) joined_ = fan_out_ ? fan_out_.get() : parts[0];
}

Observers::~Observers() = default;

void Observers::finish() {
  if (statistics_) std::fputs(statistics_->report().c_str(), stderr);
  if (timeline_ && !timeline_->finish()) {
    std::fprintf(stderr, "[vgpu] the timeline could not be written completely\n");
  }
}

}  // namespace vgpu::runtime
