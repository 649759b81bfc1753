// SPDX-License-Identifier: Apache-2.0
#include "runners.hpp"

#include <algorithm>
#include <cmath>

namespace convoy_torch {
namespace {

Extents extents_of(convoy_plan_t plan,
                   convoy_status_t (*query)(convoy_plan_t, convoy_tensor_shape_t*)) {
  convoy_tensor_shape_t shape{};
  check(query(plan, &shape));
  return Extents(shape);
}

/// `tensor` in channels-last memory, of the planned shape and of x's type and device.
Tensor fitting(const Tensor& tensor, const char* name, const Extents& planned, const Facts& x) {
  const Facts facts(tensor);
  if (!std::ranges::equal(facts.sizes, planned.span())) {
    fail(CONVOY_INVALID_ARGUMENT, std::string(name) + " is " + described(facts) +
                                      ", which is not the shape that this call was made for");
  }
  check_like(facts, name, x);
  return facts.channels_last() ? tensor : channels_last(tensor);
}

/// `count` elements one after another, on x's device, of the planned type.
Tensor parameter(const Tensor& tensor, const char* name, std::int64_t count, std::int32_t dtype,
                 const Facts& x) {
  const Facts facts(tensor);
  if (facts.elements() != count || !facts.same_place(x) || library_dtype(facts, name) != dtype) {
    fail(CONVOY_INVALID_ARGUMENT,
         std::string(name) + " is " + described(facts) + "; legal: (" + std::to_string(count) +
             ",) of the planned type on the device of x, and it is " + type_and_place(facts));
  }
  return contiguous(tensor);
}

}  // namespace

Extents::Extents(const convoy_tensor_shape_t& shape) : rank(shape.layout == CONVOY_NHWC ? 4 : 5) {
  values[0] = shape.extents[0];
  values[1] = shape.extents[rank - 1];
  for (std::size_t axis = 2; axis < rank; ++axis) values[axis] = shape.extents[axis - 1];
}

ConvRunner::ConvRunner(OwnedPlan plan, const convoy_epilogue_t& epilogue,
                       std::int64_t filter_elements)
    : ConvRunner(plan.get(), epilogue, nullptr, filter_elements) {
  owned_ = std::move(plan);
}

ConvRunner::ConvRunner(convoy_plan_t plan, const convoy_epilogue_t& epilogue,
                       const convoy_prologue_t* prologue, std::int64_t filter_elements)
    : plan_(plan), epilogue_(epilogue), filter_elements_(filter_elements) {
  if (prologue != nullptr) prologue_ = *prologue;
  convoy_run_arguments_init(&arguments_, sizeof(arguments_));
  convoy_tensor_shape_t shape{};
  check(convoy_plan_activation_shape(plan, &shape));
  dtype_ = shape.dtype;
  activation_ = Extents(shape);
  output_ = extents_of(plan, convoy_plan_output_shape);
  if (activation_.rank == 5) {
    cache_ = extents_of(plan, convoy_plan_cache_shape);
    next_cache_ = extents_of(plan, convoy_plan_next_cache_shape);
  }
  std::size_t workspace = 0;
  check(convoy_plan_workspace_bytes(plan, &workspace));
  workspace_ = static_cast<std::int64_t>(workspace);
}

Tensor ConvRunner::run(const ConvInputs& inputs, float beta, Tensor* following) const {
  Facts x(inputs.x);
  if (library_dtype(x, "x") != dtype_) {
    fail(CONVOY_INVALID_ARGUMENT, "x is of another type than this call was made for");
  }
  // NOTE: what is converted is held until the run is enqueued; PyTorch's allocator orders its reuse
  // by the stream.
  const Tensor activation = fitting(inputs.x, "x", activation_, x);
  Tensor output = empty_channels_last(output_.span(), x);
  convoy_epilogue_t epilogue = epilogue_;
  convoy_run_arguments_t arguments = arguments_;
  arguments.activation = Facts(activation).data;
  arguments.output = Facts(output).data;
  arguments.epilogue = &epilogue;
  if (!std::isnan(beta)) epilogue.beta = beta;

  std::optional<Tensor> weight, bias, residual, cache, workspace;
  if (inputs.packed != nullptr) {
    arguments.packed_filter = inputs.packed;
  } else if (inputs.weight) {
    const Facts given(*inputs.weight);
    check_like(given, "weight", x);
    if (given.elements() != filter_elements_) {
      fail(CONVOY_INVALID_ARGUMENT, "weight is " + described(given) +
                                        ", which is not the shape that this call was made for");
    }
    weight = channels_last(*inputs.weight);
    arguments.filter = Facts(*weight).data;
  }
  if (inputs.bias) {
    bias = parameter(*inputs.bias, "bias", output_.values[1], epilogue_.bias_dtype, x);
    epilogue.bias = Facts(*bias).data;
  }
  if (inputs.residual) {
    residual = fitting(*inputs.residual, "residual", output_, x);
    epilogue.residual = Facts(*residual).data;
  }
  if (inputs.cache && cache_.rank == 5 && cache_.values[2] > 0) {
    cache = fitting(*inputs.cache, "cache", cache_, x);
    arguments.cache = Facts(*cache).data;
  }
  convoy_prologue_t prologue;
  if (prologue_ && inputs.coefficients != nullptr) {
    const Facts given(*inputs.coefficients);
    const std::int64_t count = x.sizes[0] * x.sizes[1];
    if (library_dtype(given, "coefficients") != CONVOY_FP32 || !given.same_place(x) ||
        given.elements() != 2 * count || !given.contiguous()) {
      fail(CONVOY_INVALID_ARGUMENT,
           "coefficients are " + described(given) + ", " + type_and_place(given) +
               "; legal: dense torch.float32 (2, " + std::to_string(x.sizes[0]) + ", " +
               std::to_string(x.sizes[1]) + ") on the device of x");
    }
    prologue = *prologue_;
    prologue.scale = static_cast<const float*>(given.data);
    prologue.shift = prologue.scale + count;
    arguments.prologue = &prologue;
  }
  if (following != nullptr) {
    *following = empty_channels_last(next_cache_.span(), x);
    arguments.next_cache = Facts(*following).data;
  }
  if (workspace_ > 0 && x.on_gpu()) {
    workspace = bytes(workspace_, x);
    arguments.workspace = Facts(*workspace).data;
  }
  check(convoy_run(plan_, &arguments, stream_of(x)));
  return output;
}

NormRunner::NormRunner(OwnedNormPlan plan, const convoy_norm_arguments_t& arguments,
                       const NormTensors& tensors)
    : NormRunner(plan.get(), arguments, tensors) {
  owned_ = std::move(plan);
}

NormRunner::NormRunner(convoy_norm_plan_t plan, const convoy_norm_arguments_t& arguments,
                       const NormTensors& tensors)
    : plan_(plan), arguments_(arguments), tensors_(tensors) {
  std::size_t workspace = 0;
  check(convoy_norm_workspace_bytes(plan, &workspace));
  workspace_ = static_cast<std::int64_t>(workspace);
}

Tensor NormRunner::run(const Tensor& x, const std::optional<Tensor>& weight,
                       const std::optional<Tensor>& bias) const {
  const Facts given(x);
  if (given.sizes.size() < 2 || given.elements() != tensors_.elements ||
      given.sizes[1] != tensors_.channels || library_dtype(given, "x") != tensors_.dtype) {
    fail(CONVOY_INVALID_ARGUMENT,
         "x is " + described(given) + ", of another shape or type than this call was made for");
  }
  const Tensor input = given.channels_last() ? x : channels_last(x);
  const Facts facts(input);
  const std::array<std::int64_t, 3> coefficients{2, tensors_.images, tensors_.channels};
  Tensor output = tensors_.images > 0 ? empty_fp32(coefficients, facts)
                                      : empty_channels_last(facts.sizes, facts);
  convoy_norm_arguments_t arguments = arguments_;
  arguments.input = facts.data;
  arguments.output = Facts(output).data;
  std::optional<Tensor> scale, shift, workspace;
  if (weight) {
    scale = parameter(*weight, "weight", tensors_.channels, tensors_.parameter_dtype, facts);
    arguments.scale = Facts(*scale).data;
  }
  if (bias) {
    shift = parameter(*bias, "bias", tensors_.channels, tensors_.parameter_dtype, facts);
    arguments.bias = Facts(*shift).data;
  }
  if (workspace_ > 0 && facts.on_gpu()) {
    workspace = bytes(workspace_, facts);
    arguments.workspace = Facts(*workspace).data;
  }
  check(convoy_norm_run(plan_, &arguments, stream_of(facts)));
  return output;
}

}  // namespace convoy_torch
