// SPDX-License-Identifier: Apache-2.0
#include "convoy/plan.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "convoy/info.hpp"
#include "core/candidate.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "dispatch/backends.hpp"
#include "dispatch/device.hpp"
#include "dispatch/run_check.hpp"
#include "dispatch/select.hpp"
#include "dispatch/tuning.hpp"

namespace convoy {

struct PackedFilter::Impl {
  std::shared_ptr<void> memory;
  std::size_t bytes = 0;
  std::string format;
};

const void* PackedFilter::data() const noexcept {
  return impl_ ? impl_->memory.get() : nullptr;
}
std::size_t PackedFilter::bytes() const noexcept {
  return impl_ ? impl_->bytes : 0;
}
const std::string& PackedFilter::format() const noexcept {
  static const std::string none;
  return impl_ ? impl_->format : none;
}

class Plan::Impl {
 public:
  RunContract contract;
  PlanInfo info;
  std::unique_ptr<ExecutablePlan> kernel;
  int cuda_index = -1;  ///< The device to make current around a run; -1 on the CPU.
};

namespace {

/// A problem without output: kernels never see one.
class EmptyPlan final : public ExecutablePlan {
 public:
  void run(const RunPointers&, cudaStream_t) const override {}
  std::string filter_format() const override { return "empty"; }
  std::size_t packed_filter_bytes() const override { return 0; }
  void pack_filter(void*, const void*, FilterLayout, cudaStream_t) const override {}
  std::shared_ptr<void> allocate(std::size_t) const override { return nullptr; }
};

/// What a filter was packed for: the kernel's format, and the shape and type of the filter.
std::string packed_format(const ExecutablePlan& kernel, const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  return text(kernel.filter_format(), " k", g.out_channels, "t", g.filter[0], "r", g.filter[1], "s",
              g.filter[2], "c", g.group_channels(), "g", g.groups, " ", to_string(request.dtype));
}

/// "NAME and 61 more: reason", for each reason once; of one kind of device where it is given.
std::vector<std::string> refusals(const std::vector<Considered>& all,
                                  std::optional<Device> device) {
  struct Group {
    std::string first;
    std::string reason;
    int more = 0;
  };
  std::vector<Group> groups;
  for (const Considered& entry : all) {
    if (device && entry.kernel->device() != *device) continue;
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
      return group.reason == entry.line.reason;
    });
    if (same == groups.end()) {
      groups.push_back({entry.line.kernel, entry.line.reason});
    } else {
      ++same->more;
    }
  }
  std::vector<std::string> lines;
  for (const Group& group : groups) {
    const std::string more = group.more > 0 ? text(" and ", group.more, " more") : "";
    lines.push_back(text(group.first, more, ": ", group.reason));
  }
  return lines;
}

void log_selection(const std::vector<Considered>& all, const std::string& problem,
                   const PlanOptions& options) {
  if (!log_enabled(LogLevel::info)) return;
  const Considered* chosen = !all.empty() && all.front().line.chosen ? &all.front() : nullptr;
  // Say why an automatic plan does not run on the GPU.
  if (options.device == Device::automatic && chosen != nullptr &&
      chosen->kernel->device() == Device::cpu) {
    std::string reason;
    if (usable_cuda_device(options.device_index, &reason)) {
      reason = "no CUDA kernel can run it";
      for (const std::string& line : refusals(all, Device::cuda)) reason += "; " + line;
    }
    log_line(LogLevel::info, "fallback", {problem, chosen->line.backend, reason});
  }
  if (!log_enabled(LogLevel::dispatch)) return;
  const std::string steps =
      (options.prologue.any() ? to_string(options.prologue) + " > " : "") +
      to_string(options.epilogue) +
      (options.shuffle.any() ? " > " + to_string(options.shuffle) : "") +
      (options.statistics_groups > 0 ? text(" > statistics(", options.statistics_groups, ")") : "");
  for (const Considered& entry : all) {
    const char* verdict = entry.line.chosen           ? "chosen"
                          : entry.line.reason.empty() ? "possible"
                                                      : "refused";
    log_line(LogLevel::dispatch, verdict,
             {problem, to_string(options.dtype), steps, entry.line.kernel, entry.line.backend,
              text(entry.line.estimated_us), entry.line.reason});
  }
}

/// The asked kernel's own reason, and who can: those were only passed over for it.
std::string refused_kernel_message(const std::vector<Considered>& all, const std::string& problem,
                                   const std::string& kernel) {
  std::string reason;
  std::vector<const Candidate*> able;
  for (const Considered& entry : all) {
    if (entry.line.kernel == kernel) reason = entry.line.reason;
    if (entry.passed_over) able.push_back(&entry.line);
  }
  std::sort(able.begin(), able.end(), [](const Candidate* a, const Candidate* b) {
    return a->estimated_us < b->estimated_us;
  });
  std::string names;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, able.size()); ++i) {
    names += (i > 0 ? ", " : "; nearest that can: ") + able[i]->kernel;
  }
  return text("kernel ", kernel, " cannot run ", problem, ": ", reason,
              names.empty() ? "; no other can" : names);
}

std::string no_kernel_message(const std::vector<Considered>& all, const std::string& problem,
                              const PlanOptions& options) {
  std::string message = "no kernel can run " + problem;
  std::string no_cuda;
  if (options.device == Device::cuda && !usable_cuda_device(options.device_index, &no_cuda)) {
    return text(message, " with device = cuda: ", no_cuda, "; legal: device = cpu or automatic");
  }
  if (!options.kernel.empty()) return refused_kernel_message(all, problem, options.kernel);
  if (all.empty()) message += ": no backend was built into this library";
  for (const std::string& line : refusals(all, std::nullopt)) message += "\n  " + line;
  return message;
}

template <typename Problem>
Plan make_plan(const Problem& problem, const PlanOptions& options) {
  const ConvGeometry geometry = geometry_of(problem);
  const std::string name = problem.to_string();
  const std::vector<Considered> all = select(geometry, options, registry(), Ask::needed);
  log_selection(all, name, options);
  if (all.empty() || !all.front().line.chosen) {
    throw Error(Status::unsupported, no_kernel_message(all, name, options));
  }

  const Considered& best = all.front();
  auto impl = std::make_shared<Plan::Impl>();
  impl->cuda_index = best.request.device.kind == Device::cuda ? best.request.device.index : -1;
  const DeviceScope scope(impl->cuda_index);
  if (geometry.empty()) {
    impl->kernel = std::make_unique<EmptyPlan>();
  } else {
    impl->kernel = best.kernel->make(best.request);
  }
  impl->info = {.kernel = best.line.kernel,
                .backend = best.line.backend,
                .problem = name,
                .flops = geometry.flops(),
                .min_bytes = min_bytes(best.request),
                .tf32 = impl->kernel->multiplies_tf32(),
                .statistics = best.line.statistics.substr(0, best.line.statistics.find(':')),
                .filter_format = packed_format(*impl->kernel, best.request)};
  impl->contract = RunContract(best.request, impl->kernel->filter_format(),
                               impl->info.filter_format, impl->kernel->workspace_bytes());
  return Plan(std::move(impl));
}

template <typename Problem>
Support judge(const Problem& problem, const PlanOptions& options) {
  try {
    const std::vector<Considered> all =
        select(geometry_of(problem), options, registry(), Ask::needed);
    if (!all.empty() && all.front().line.chosen) return {.supported = true, .reason = {}};
    return {.supported = false, .reason = no_kernel_message(all, problem.to_string(), options)};
  } catch (const Error& error) {
    return {.supported = false, .reason = text(to_string(error.status()), ": ", error.what())};
  }
}

template <typename Problem>
std::vector<Candidate> list(const Problem& problem, const PlanOptions& options,
                            const TuningDatabase& tuning, const DeviceInfo* gpu = nullptr) {
  std::vector<Candidate> lines;
  for (Considered& entry :
       select(geometry_of(problem), options, registry(), Ask::all, tuning, gpu)) {
    lines.push_back(std::move(entry.line));
  }
  return lines;
}

}  // namespace

void Plan::run(const RunArguments& arguments, cudaStream_t stream) const {
  if (impl_->contract.empty()) return;
  const RunPointers pointers = impl_->contract.check(arguments);
  const DeviceScope scope(impl_->cuda_index);
  if (!log_enabled(LogLevel::trace)) {
    impl_->kernel->run(pointers, stream);
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  impl_->kernel->run(pointers, stream);
  const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - begin;
  log_line(LogLevel::trace, "run",
           {impl_->info.problem, impl_->info.kernel, impl_->info.backend, text(spent.count())});
}

PackedFilter Plan::pack_filter(const void* filter, FilterLayout layout, cudaStream_t stream) const {
  impl_->contract.check_filter_to_pack(filter, layout);
  const DeviceScope scope(impl_->cuda_index);
  auto packed = std::make_shared<PackedFilter::Impl>();
  packed->format = impl_->contract.packed_format();
  packed->bytes = impl_->kernel->packed_filter_bytes();
  if (packed->bytes > 0) {
    packed->memory = impl_->kernel->allocate(packed->bytes);
    impl_->kernel->pack_filter(packed->memory.get(), filter, layout, stream);
  }
  return PackedFilter(std::move(packed));
}

const std::string& Plan::filter_format() const {
  return impl_->contract.packed_format();
}
std::size_t Plan::workspace_bytes() const {
  return impl_->kernel->workspace_bytes();
}
TensorShape Plan::output_shape() const {
  return impl_->contract.output();
}
TensorShape Plan::residual_shape() const {
  return impl_->contract.residual();
}
TensorShape Plan::activation_shape() const {
  return impl_->contract.activation();
}
TensorShape Plan::cache_shape() const {
  return impl_->contract.cache();
}
TensorShape Plan::next_cache_shape() const {
  return impl_->contract.next_cache();
}
const PlanInfo& Plan::info() const {
  return impl_->info;
}

Plan plan(const Conv2dProblemShape& problem, const PlanOptions& options) {
  return make_plan(problem, options);
}
Plan plan(const Conv3dProblemShape& problem, const PlanOptions& options) {
  return make_plan(problem, options);
}

Plan plan(const ProblemShape& problem, const PlanOptions& options) {
  return std::visit([&](const auto& shape) { return make_plan(shape, options); }, problem);
}

Support supports(const Conv2dProblemShape& problem, const PlanOptions& options) {
  return judge(problem, options);
}
Support supports(const Conv3dProblemShape& problem, const PlanOptions& options) {
  return judge(problem, options);
}
Support supports(const ProblemShape& problem, const PlanOptions& options) {
  return std::visit([&](const auto& shape) { return judge(shape, options); }, problem);
}

std::vector<Candidate> candidates(const Conv2dProblemShape& problem, const PlanOptions& options) {
  return list(problem, options, tuning_database());
}
std::vector<Candidate> candidates(const Conv3dProblemShape& problem, const PlanOptions& options) {
  return list(problem, options, tuning_database());
}

std::vector<Candidate> candidates(const ProblemShape& problem, const PlanOptions& options) {
  return list(problem, options, tuning_database());
}
std::vector<Candidate> candidates(const ProblemShape& problem, const PlanOptions& options,
                                  const TuningDatabase& tuning) {
  return list(problem, options, tuning);
}
std::vector<Candidate> candidates(const ProblemShape& problem, const PlanOptions& options,
                                  const DeviceInfo& gpu) {
  return list(problem, options, tuning_database(), &gpu);
}

}  // namespace convoy
