// SPDX-License-Identifier: Apache-2.0
#include "convoy/norm.hpp"

#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>

#include "core/checked.hpp"
#include "core/divisors.hpp"
#include "core/log.hpp"
#include "core/norm.hpp"
#include "dispatch/backends.hpp"
#include "dispatch/device.hpp"
#include "dispatch/option_check.hpp"
#include "dispatch/pointer_check.hpp"
#include "dispatch/select.hpp"

namespace convoy {

class NormPlan::Impl {
 public:
  NormRequest request;
  PlanInfo info;
  std::unique_ptr<NormKernel> kernel;  ///< Null where the tensor is empty.
  int cuda_index = -1;
};

namespace {

void require_at_least(std::int64_t value, std::int64_t least, const char* name) {
  if (value >= least) return;
  throw_invalid(name, " = ", value, " is not legal; legal: at least ", least, "; nearest: ", least);
}

void require_epsilon(float epsilon) {
  if (std::isfinite(epsilon) && epsilon >= 0.0f) return;
  throw_invalid("epsilon = ", epsilon, " is not legal; legal: a finite number of at least 0");
}

void check_options(const NormOptions& options) {
  require_dtype(options.dtype, "dtype");
  require_dtype(options.parameter_dtype, "parameter_dtype");
  require_enum(options.activation, Activation::clamp, "activation");
  require_enum(options.device, Device::cuda, "device");
  if (options.device_index < -1) {
    throw_invalid("device_index = ", options.device_index,
                  " is not legal; legal: -1 (the current device) or a device number; nearest: -1");
  }
  require_enum(options.result, NormResult::coefficients, "result");
}

void check_result(const NormRequest& request) {
  const NormOptions& options = request.options;
  if (options.result == NormResult::tensor) return;
  if (options.activation != Activation::none) {
    throw_invalid("activation = ", to_string(options.activation),
                  " of a norm that writes coefficients; legal: none (Prologue::activation)");
  }
  if (request.rms && (options.scale || options.bias)) {
    throw_invalid("scale = ", options.scale, ", bias = ", options.bias,
                  " of an rms_norm that writes coefficients; legal: neither (Prologue::scale)");
  }
}

NormRequest request_of(const GroupNormProblem& p) {
  NormRequest request;
  request.batch = p.batch;
  request.pixels = p.pixels;
  request.channels = p.channels;
  request.groups = p.groups;
  request.epsilon = p.epsilon;
  return request;
}

NormRequest request_of(const RmsNormProblem& p) {
  NormRequest request;
  request.rms = true;
  request.pixels = p.pixels;
  request.channels = p.channels;
  request.epsilon = p.epsilon;
  request.rule = p.rule;
  return request;
}

/// The first backend, on a device that is wanted and there, that can run the norm; its device goes
/// into the request. Throws Error{unsupported} with every backend's reason where there is none.
const NormBackend& choose_backend(NormRequest& request, const std::string& problem) {
  const NormOptions& options = request.options;
  std::string reasons;
  const auto refused = [&](const std::string& reason) {
    reasons += (reasons.empty() ? "" : "; ") + reason;
  };
  if (options.device == Device::cpu) refused("device = cpu was asked for");
  std::string no_cuda;
  std::optional<DeviceInfo> cuda;
  if (options.device != Device::cpu) {
    cuda = usable_cuda_device(options.device_index, &no_cuda);
    if (!cuda) refused(no_cuda);
  }
  for (const auto& backend : norm_registry()) {
    const bool on_cpu = backend->device() == Device::cpu;
    if (on_cpu ? options.device == Device::cuda : !cuda) continue;
    request.device = on_cpu ? cpu_device() : *cuda;
    const std::string reason = backend->refusal(request);
    if (!reason.empty()) {
      refused(reason);
      continue;
    }
    if (on_cpu && options.device == Device::automatic) {
      log_line(LogLevel::info, "fallback", {problem, backend_name(request.device), reasons});
    }
    return *backend;
  }
  if (norm_registry().empty()) refused("no backend was built into this library");
  throw Error(Status::unsupported, text("nothing can run ", problem, ": ", reasons));
}

template <typename Problem>
NormPlan make_plan(const Problem& problem, const NormOptions& options) {
  problem.validate();
  check_options(options);
  auto impl = std::make_shared<NormPlan::Impl>();
  NormRequest& request = impl->request;
  request = request_of(problem);
  request.options = options;
  check_result(request);
  const std::string name = problem.to_string();
  const NormBackend& backend = choose_backend(request, name);
  impl->cuda_index = request.device.kind == Device::cuda ? request.device.index : -1;
  const DeviceScope scope(impl->cuda_index);
  if (request.elements() > 0) impl->kernel = backend.make(request);
  const double parameters = (options.scale ? 1.0 : 0.0) + (options.bias ? 1.0 : 0.0);
  impl->info = {
      .kernel = impl->kernel ? impl->kernel->name() : "empty",
      .backend = backend_name(request.device),
      .problem = name,
      .flops = 0,
      .min_bytes =
          static_cast<double>(request.elements()) * static_cast<double>(size_of(options.dtype)) +
          static_cast<double>(request.output_bytes()) +
          parameters * static_cast<double>(request.channels) *
              static_cast<double>(size_of(options.parameter_dtype)),
  };
  return NormPlan(std::move(impl));
}

void check_parameter(const void* pointer, bool planned, const char* name) {
  if (planned) return check_pointer(pointer, name);
  if (pointer != nullptr) throw_invalid(name, " is given, but the plan has no ", name);
}

std::size_t statistics_bytes(const NormRequest& request) {
  return static_cast<std::size_t>(request.batch * request.groups) * 2 * sizeof(float);
}

void check(const NormRequest& request, const NormArguments& arguments, std::size_t workspace) {
  check_pointer(arguments.output, "output");
  check_pointer(arguments.input, "input");
  check_parameter(arguments.scale, request.options.scale, "scale");
  check_parameter(arguments.bias, request.options.bias, "bias");
  if (arguments.statistics != nullptr) {
    if (request.rms) throw_invalid("statistics is given, but an RMSNorm takes none");
    check_pointer(arguments.statistics, "statistics");
  }
  if (arguments.workspace != nullptr) {
    check_pointer(arguments.workspace, "workspace");
  } else if (workspace > 0 && request.device.kind == Device::cuda) {
    throw_invalid("workspace is null, but the plan needs ", workspace, " bytes");
  }
  const std::size_t bytes =
      static_cast<std::size_t>(request.elements()) * size_of(request.options.dtype);
  const std::size_t parameters =
      static_cast<std::size_t>(request.channels) * size_of(request.options.parameter_dtype);
  const Span output = {"output", arguments.output, request.output_bytes()};
  const Span input = {"input", arguments.input, bytes};
  const Span scratch = {"workspace", arguments.workspace, workspace};
  const Span scale = {"scale", arguments.scale, parameters};
  const Span bias = {"bias", arguments.bias, parameters};
  const Span statistics = {"statistics", arguments.statistics, statistics_bytes(request)};
  const bool in_place = input.data == output.data && request.options.result == NormResult::tensor;
  if (!in_place) require_disjoint(output, input);
  for (const Span& other : {scale, bias, statistics}) {
    require_disjoint(output, other);
    require_disjoint(scratch, other);
  }
  require_disjoint(scratch, input);
  require_disjoint(scratch, output);
}

}  // namespace

const char* to_string(RmsEpsilon rule) noexcept {
  switch (rule) {
    case RmsEpsilon::added:
      return "added";
    case RmsEpsilon::norm_floor:
      return "norm_floor";
  }
  return "unknown epsilon rule";
}

const char* to_string(NormResult result) noexcept {
  switch (result) {
    case NormResult::tensor:
      return "tensor";
    case NormResult::coefficients:
      return "coefficients";
  }
  return "unknown norm result";
}

void GroupNormProblem::validate() const {
  require_at_least(batch, 0, "batch");
  require_at_least(pixels, 0, "pixels");
  require_at_least(channels, 1, "channels");
  require_at_least(groups, 1, "groups");
  if (channels % groups != 0) {
    throw_invalid("groups = ", groups, " does not divide channels = ", channels,
                  "; legal: a divisor of ", channels,
                  "; nearest: ", nearest_divisor(channels, groups));
  }
  require_epsilon(epsilon);
  checked_product({batch, pixels, channels, 8}, "bytes of the tensor");
}

void RmsNormProblem::validate() const {
  require_at_least(pixels, 0, "pixels");
  require_at_least(channels, 1, "channels");
  require_epsilon(epsilon);
  require_enum(rule, RmsEpsilon::norm_floor, "rule");
  checked_product({pixels, channels, 8}, "bytes of the tensor");
}

std::string GroupNormProblem::to_string() const {
  return text("group_norm n", batch, "p", pixels, "c", channels, "g", groups);
}

std::string RmsNormProblem::to_string() const {
  return text("rms_norm p", pixels, "c", channels);
}

NormPlan plan(const GroupNormProblem& problem, const NormOptions& options) {
  return make_plan(problem, options);
}
NormPlan plan(const RmsNormProblem& problem, const NormOptions& options) {
  return make_plan(problem, options);
}

void NormPlan::run(const NormArguments& arguments, cudaStream_t stream) const {
  if (impl_->kernel == nullptr) return;
  check(impl_->request, arguments, impl_->kernel->workspace_bytes());
  const DeviceScope scope(impl_->cuda_index);
  if (!log_enabled(LogLevel::trace)) {
    impl_->kernel->run(arguments, stream);
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  impl_->kernel->run(arguments, stream);
  const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - begin;
  log_line(LogLevel::trace, "run",
           {impl_->info.problem, impl_->info.kernel, impl_->info.backend, text(spent.count())});
}

void NormPlan::statistics(const NormStatisticsArguments& given, cudaStream_t stream) const {
  const NormRequest& request = impl_->request;
  if (request.rms) {
    throw Error(Status::unsupported,
                "an RMSNorm has no statistics of its own; legal: the plan of a GroupNorm");
  }
  if (impl_->kernel == nullptr) return;
  const std::int64_t image = request.pixels * request.channels;
  NormStatisticsArguments arguments = given;
  if (arguments.image_pitch == 0) arguments.image_pitch = image;
  if (arguments.image_pitch < image) {
    throw_invalid("image_pitch = ", arguments.image_pitch, " is not legal; legal: 0 or at least ",
                  image, " (pixels * channels); nearest: ", image);
  }
  const auto bytes = static_cast<std::int64_t>(size_of(request.options.dtype));
  if (arguments.image_pitch * bytes % 16 != 0 && request.batch > 1 && image * bytes % 16 == 0) {
    throw_invalid("image_pitch = ", arguments.image_pitch, " elements of ", bytes,
                  " bytes is not legal; legal: a multiple of 16 bytes");
  }
  check_pointer(arguments.output, "output");
  check_pointer(arguments.input, "input");
  const std::size_t workspace = impl_->kernel->workspace_bytes();
  if (arguments.workspace != nullptr) {
    check_pointer(arguments.workspace, "workspace");
  } else if (workspace > 0 && request.device.kind == Device::cuda) {
    throw_invalid("workspace is null, but the plan needs ", workspace, " bytes");
  }
  const std::int64_t span =
      checked_product({request.batch - 1, arguments.image_pitch, bytes}, "input bytes");
  const Span input = {"input", arguments.input, static_cast<std::size_t>(span + image * bytes)};
  const Span output = {"output", arguments.output, statistics_bytes(request)};
  const Span scratch = {"workspace", arguments.workspace, workspace};
  require_disjoint(output, input);
  require_disjoint(scratch, input);
  require_disjoint(scratch, output);
  const DeviceScope scope(impl_->cuda_index);
  impl_->kernel->statistics(arguments, stream);
}

std::size_t NormPlan::workspace_bytes() const {
  return impl_->kernel == nullptr ? 0 : impl_->kernel->workspace_bytes();
}

const PlanInfo& NormPlan::info() const {
  return impl_->info;
}

}  // namespace convoy
