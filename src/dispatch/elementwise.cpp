// SPDX-License-Identifier: Apache-2.0
#include "convoy/elementwise.hpp"

#include <optional>

#include "core/elementwise.hpp"
#include "core/log.hpp"
#include "dispatch/backends.hpp"
#include "dispatch/device.hpp"
#include "dispatch/option_check.hpp"
#include "dispatch/pointer_check.hpp"
#include "dispatch/select.hpp"

namespace convoy {

class ElementwisePlan::Impl {
 public:
  ElementwiseRequest request;
  PlanInfo info;
  bool has_affine = false;
  std::unique_ptr<ElementwiseKernel> kernel;  ///< Null where the tensor is empty.
};

namespace {

[[noreturn]] void refuse(const std::string& problem, const std::string& reason) {
  throw Error(Status::unsupported, text("nothing can run ", problem, ": ", reason));
}

std::size_t bytes_of(const ElementwiseRequest& request, const ElementwiseOperand& operand) {
  const std::int64_t elements = extent_of(request.problem, operand) + 1;
  return static_cast<std::size_t>(elements) * size_of(request.options.dtype);
}

std::size_t output_bytes(const ElementwiseRequest& request) {
  return static_cast<std::size_t>(request.elements()) * size_of(request.options.dtype);
}

void check(const ElementwiseRequest& request, bool has_affine,
           const ElementwiseArguments& arguments) {
  const ElementwiseProblem& problem = request.problem;
  check_pointer(arguments.output, "output");
  const Span output = {"output", arguments.output, output_bytes(request)};
  for (std::size_t i = 0; i < problem.operands.size(); ++i) {
    const ElementwiseOperand& operand = problem.operands[i];
    const std::string name = text("operands[", i, "]");
    const void* data = arguments.operands[i];
    if (operand.strides[4] != 0) {
      check_pointer(data, name.c_str());
    } else if (data == nullptr) {
      throw_invalid(name, " is null");
    } else if (reinterpret_cast<std::uintptr_t>(data) % size_of(request.options.dtype) != 0) {
      throw_invalid(name, " = ", data, " is not aligned; legal: a multiple of ",
                    size_of(request.options.dtype), " bytes");
    }
    const Span span = {name.c_str(), data, bytes_of(request, operand)};
    if (data != arguments.output || !is_dense(problem, operand)) require_disjoint(output, span);
  }
  if (has_affine) {
    check_pointer(arguments.coefficients, "coefficients");
    require_disjoint(
        output, {"coefficients", arguments.coefficients,
                 static_cast<std::size_t>(problem.batch * problem.channels) * 2 * sizeof(float)});
  } else if (arguments.coefficients != nullptr) {
    throw_invalid("coefficients is given, but the plan has no affine step");
  }
}

}  // namespace

ElementwisePlan plan(const ElementwiseProblem& problem, const ElementwiseOptions& options) {
  problem.validate();
  require_dtype(options.dtype, "dtype");
  require_enum(options.device, Device::cuda, "device");
  if (options.device_index < -1) {
    throw_invalid("device_index = ", options.device_index,
                  " is not legal; legal: -1 (the current device) or a device number; nearest: -1");
  }
  const std::string name = problem.to_string();
  auto impl = std::make_shared<ElementwisePlan::Impl>();
  ElementwiseRequest& request = impl->request;
  request.problem = problem;
  request.options = options;
  for (const ElementwiseStep& step : problem.steps) {
    impl->has_affine = impl->has_affine || step.op == ElementwiseOp::affine;
  }
  if (options.device == Device::cpu) refuse(name, "device = cpu; legal: a CUDA device");
  std::string no_cuda;
  const std::optional<DeviceInfo> device = usable_cuda_device(options.device_index, &no_cuda);
  if (!device) refuse(name, no_cuda);
  const ElementwiseBackend* backend = elementwise_backend();
  if (backend == nullptr) refuse(name, "no CUDA kernel was built into this library");
  request.device = *device;
  const DeviceScope scope(request.device.index);
  double bytes = static_cast<double>(output_bytes(request));
  if (request.elements() > 0) {
    const std::string reason = backend->refusal(request);
    if (!reason.empty()) refuse(name, reason);
    impl->kernel = backend->make(request);
    for (const ElementwiseOperand& operand : problem.operands) {
      bytes += static_cast<double>(bytes_of(request, operand));
    }
  }
  impl->info = {.kernel = impl->kernel ? impl->kernel->name() : "empty",
                .backend = backend_name(request.device),
                .problem = name,
                .flops = 0,
                .min_bytes = bytes};
  return ElementwisePlan(std::move(impl));
}

void ElementwisePlan::run(const ElementwiseArguments& arguments, cudaStream_t stream) const {
  if (impl_->kernel == nullptr) return;
  check(impl_->request, impl_->has_affine, arguments);
  const DeviceScope scope(impl_->request.device.index);
  impl_->kernel->run(arguments, stream);
  if (log_enabled(LogLevel::trace)) {
    log_line(LogLevel::trace, "run",
             {impl_->info.problem, impl_->info.kernel, impl_->info.backend});
  }
}

const PlanInfo& ElementwisePlan::info() const {
  return impl_->info;
}

}  // namespace convoy
