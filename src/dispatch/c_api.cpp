// SPDX-License-Identifier: Apache-2.0
// The C interface: translates structs and exceptions, and decides nothing.
#include "dispatch/c_api.hpp"

struct convoy_plan_s {
  convoy::Plan plan;
};
struct convoy_norm_plan_s {
  convoy::NormPlan plan;
};
struct convoy_elementwise_plan_s {
  convoy::ElementwisePlan plan;
  int operands;
};
struct convoy_candidates_s {
  std::vector<convoy::Candidate> list;
};

namespace convoy::c_api {
namespace {

thread_local std::string last_error;

convoy_conv2d_shape_t default_conv2d() {
  convoy_conv2d_shape_t s{};
  s.struct_size = sizeof(s);
  s.batch = s.filter_h = s.filter_w = s.stride_h = s.stride_w = 1;
  s.dilation_h = s.dilation_w = s.groups = s.upsample = 1;
  return s;
}

convoy_conv3d_shape_t default_conv3d() {
  convoy_conv3d_shape_t s{};
  s.struct_size = sizeof(s);
  s.batch = s.groups = 1;
  for (int axis = 0; axis < 3; ++axis) s.filter[axis] = s.stride[axis] = s.dilation[axis] = 1;
  return s;
}

convoy_epilogue_t default_epilogue() {
  const Epilogue e;
  convoy_epilogue_t c{};
  c.struct_size = sizeof(c);
  c.bias_dtype = static_cast<int32_t>(e.bias_dtype);
  c.scale = e.scale;
  c.beta = e.beta;
  c.parameter_a = e.parameter_a;
  c.parameter_b = e.parameter_b;
  return c;
}

convoy_prologue_t default_prologue() {
  convoy_prologue_t p{};
  p.struct_size = sizeof(p);
  return p;
}

convoy_shuffle_t default_shuffle() {
  convoy_shuffle_t s{};
  s.struct_size = sizeof(s);
  std::fill_n(s.factors, 3, 1);
  return s;
}

convoy_plan_options_t default_options() {
  convoy_plan_options_t o{};
  o.struct_size = sizeof(o);
  o.output_dtype = -1;
  o.device_index = -1;
  return o;
}

convoy_run_arguments_t default_arguments() {
  convoy_run_arguments_t a{};
  a.struct_size = sizeof(a);
  return a;
}

convoy_norm_shape_t default_norm_shape() {
  convoy_norm_shape_t s{};
  s.struct_size = sizeof(s);
  s.batch = s.groups = 1;
  s.epsilon = GroupNormProblem{}.epsilon;
  return s;
}

convoy_norm_options_t default_norm_options() {
  convoy_norm_options_t o{};
  o.struct_size = sizeof(o);
  o.parameter_dtype = CONVOY_FP32;
  o.scale = o.bias = 1;
  o.device_index = -1;
  return o;
}

convoy_norm_arguments_t default_norm_arguments() {
  const NormArguments defaults;
  convoy_norm_arguments_t a{};
  a.struct_size = sizeof(a);
  a.parameter_a = defaults.parameter_a;
  a.parameter_b = defaults.parameter_b;
  return a;
}

convoy_elementwise_t default_elementwise() {
  convoy_elementwise_t e{};
  e.struct_size = sizeof(e);
  std::fill_n(e.extents, 4, 1);
  for (convoy_elementwise_operand_t& operand : e.operands) std::fill_n(operand.ratio, 3, 1);
  for (convoy_elementwise_step_t& step : e.steps) {
    step.operand = CONVOY_ELEMENTWISE_NUMBER;
    step.parameter_a = ElementwiseStep{}.parameter_a;
    step.parameter_b = ElementwiseStep{}.parameter_b;
  }
  e.device_index = -1;
  return e;
}

/// `count`, which says how many of a struct's `most` elements are there.
int counted(int32_t count, int least, int most, const char* name) {
  if (count >= least && count <= most) return count;
  throw_invalid(name, " = ", count, " is not legal; legal: ", least, " to ", most,
                "; nearest: ", std::clamp(count, least, most));
}

/// NOTE: a later version may give the field a meaning.
void require_zero(int32_t reserved, const char* name) {
  if (reserved != 0) throw_invalid(name, " = ", reserved, " is not legal; legal: 0; nearest: 0");
}

ElementwiseProblem elementwise_of(const convoy_elementwise_t& c) {
  ElementwiseProblem problem{.batch = c.extents[0],
                             .depth = c.extents[1],
                             .height = c.extents[2],
                             .width = c.extents[3],
                             .channels = c.extents[4]};
  const int operands =
      counted(c.operand_count, 1, ElementwiseProblem::kOperands, "problem.operand_count");
  for (int i = 0; i < operands; ++i) {
    ElementwiseOperand& operand = problem.operands.emplace_back();
    std::copy_n(c.operands[i].strides, 5, operand.strides);
    std::copy_n(c.operands[i].ratio, 3, operand.ratio);
    std::copy_n(c.operands[i].offset, 3, operand.offset);
  }
  const int steps = counted(c.step_count, 0, ElementwiseProblem::kSteps, "problem.step_count");
  for (int i = 0; i < steps; ++i) {
    const convoy_elementwise_step_t& step = c.steps[i];
    problem.steps.push_back({.op = static_cast<ElementwiseOp>(step.op),
                             .operand = step.operand,
                             .number = step.number,
                             .activation = static_cast<Activation>(step.activation),
                             .parameter_a = step.parameter_a,
                             .parameter_b = step.parameter_b});
  }
  return problem;
}

Epilogue epilogue_of(const convoy_epilogue_t* given) {
  if (given == nullptr) return {};
  const convoy_epilogue_t c = adopt(given, default_epilogue(), "epilogue");
  Epilogue e;
  e.scale = c.scale;
  e.bias = c.bias;
  e.bias_dtype = static_cast<DType>(c.bias_dtype);
  e.activation = static_cast<Activation>(c.activation);
  e.parameter_a = c.parameter_a;
  e.parameter_b = c.parameter_b;
  e.residual = c.residual;
  e.beta = c.beta;
  e.order = static_cast<ResidualOrder>(c.residual_order);
  e.rounding = static_cast<EpilogueRounding>(c.rounding);
  return e;
}

Prologue prologue_of(const convoy_prologue_t* given) {
  if (given == nullptr) return {};
  const convoy_prologue_t c = adopt(given, default_prologue(), "prologue");
  return {.norm = static_cast<PrologueNorm>(c.norm),
          .activation = static_cast<Activation>(c.activation),
          .scale = c.scale,
          .shift = c.shift,
          .inverse_rms = c.inverse_rms};
}

OutputShuffle shuffle_of(const convoy_shuffle_t* given) {
  if (given == nullptr) return {};
  const convoy_shuffle_t c = adopt(given, default_shuffle(), "shuffle");
  return {.factors = {c.factors[0], c.factors[1], c.factors[2]},
          .order = static_cast<ShuffleOrder>(c.order),
          .dropped_frames = c.dropped_frames,
          .residual = static_cast<ShuffleResidual>(c.residual),
          .residual_channels = c.residual_channels};
}

std::optional<TensorShape> shape_of(const convoy_tensor_shape_t* c) {
  if (c == nullptr) return std::nullopt;
  TensorShape shape;
  shape.dtype = static_cast<DType>(c->dtype);
  shape.layout = static_cast<Layout>(c->layout);
  std::copy_n(c->extents, 5, shape.extents.begin());
  return shape;
}

convoy_tensor_shape_t c_shape(const TensorShape& shape) {
  convoy_tensor_shape_t c{};
  c.dtype = static_cast<int32_t>(shape.dtype);
  c.layout = static_cast<int32_t>(shape.layout);
  std::copy_n(shape.extents.begin(), 5, c.extents);
  return c;
}

NormOptions norm_options_of(const convoy_norm_options_t* given) {
  if (given == nullptr) return {};
  const convoy_norm_options_t c = adopt(given, default_norm_options(), "options");
  return {.dtype = static_cast<DType>(c.dtype),
          .scale = c.scale != 0,
          .bias = c.bias != 0,
          .parameter_dtype = static_cast<DType>(c.parameter_dtype),
          .activation = static_cast<Activation>(c.activation),
          .device = static_cast<Device>(c.device),
          .device_index = c.device_index,
          .result = static_cast<NormResult>(c.result)};
}

NormArguments norm_arguments_of(const convoy_norm_arguments_t* given) {
  const convoy_norm_arguments_t c = adopt(given, default_norm_arguments(), "arguments");
  return {.output = c.output,
          .input = c.input,
          .scale = c.scale,
          .bias = c.bias,
          .parameter_a = c.parameter_a,
          .parameter_b = c.parameter_b,
          .workspace = c.workspace,
          .statistics = c.statistics};
}

void hand_back_info(convoy_plan_info_t* info, const PlanInfo& from) {
  hand_back(info,
            convoy_plan_info_t{0, from.kernel.c_str(), from.backend.c_str(), from.problem.c_str(),
                               from.flops, from.min_bytes, from.statistics.c_str(), from.tf32, 0,
                               from.filter_format.c_str()},
            "info");
}

template <typename Shape>
convoy_status_t make_plan(const Shape* shape, const convoy_plan_options_t* options,
                          convoy_plan_t* result) {
  return guarded([&] {
    *require(result, "plan") = nullptr;
    *result = new convoy_plan_s{plan(problem_of(shape), options_of(options))};
  });
}

template <typename Shape>
convoy_status_t judge(const Shape* shape, const convoy_plan_options_t* options) {
  return guarded([&] {
    const auto problem = problem_of(shape);
    const PlanOptions plan_options = options_of(options);
    const Support support = supports(problem, plan_options);
    if (support) return;
    // Throws for a request that makes no sense; the answer says the rest.
    candidates(problem, plan_options);
    throw Error(Status::unsupported, support.reason);
  });
}

template <typename Shape>
convoy_status_t list(const Shape* shape, const convoy_plan_options_t* options,
                     convoy_candidates_t* result) {
  return guarded([&] {
    *require(result, "list") = nullptr;
    *result = new convoy_candidates_s{candidates(problem_of(shape), options_of(options))};
  });
}

}  // namespace

/// NOTE: no std::string, whose memory may be what is missing.
convoy_status_t fail(Status status, const char* message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();
  }
  return static_cast<convoy_status_t>(status);
}

Conv2dProblemShape problem_of(const convoy_conv2d_shape_t* given) {
  const convoy_conv2d_shape_t s = adopt(given, default_conv2d(), "shape");
  require_zero(s.reserved, "shape.reserved");
  return {.batch = s.batch,
          .in_height = s.in_height,
          .in_width = s.in_width,
          .in_channels = s.in_channels,
          .out_channels = s.out_channels,
          .filter_h = s.filter_h,
          .filter_w = s.filter_w,
          .pad_h = s.pad_top,
          .pad_w = s.pad_left,
          .stride_h = s.stride_h,
          .stride_w = s.stride_w,
          .dilation_h = s.dilation_h,
          .dilation_w = s.dilation_w,
          .groups = s.groups,
          .pad_h_end = s.pad_bottom,
          .pad_w_end = s.pad_right,
          .pad_mode = static_cast<PadMode>(s.pad_mode),
          .upsample = s.upsample};
}

Conv3dProblemShape problem_of(const convoy_conv3d_shape_t* given) {
  const convoy_conv3d_shape_t s = adopt(given, default_conv3d(), "shape");
  require_zero(s.reserved, "shape.reserved");
  Conv3dProblemShape p;
  p.batch = s.batch;
  p.in_depth = s.in_depth;
  p.in_height = s.in_height;
  p.in_width = s.in_width;
  p.in_channels = s.in_channels;
  p.out_channels = s.out_channels;
  for (size_t axis = 0; axis < 3; ++axis) {
    p.filter[axis] = s.filter[axis];
    p.pad_begin[axis] = s.pad_begin[axis];
    p.pad_end[axis] = s.pad_end[axis];
    p.stride[axis] = s.stride[axis];
    p.dilation[axis] = s.dilation[axis];
    p.pad_mode[axis] = static_cast<PadMode>(s.pad_mode[axis]);
  }
  p.groups = s.groups;
  p.cached_frames = s.cached_frames;
  return p;
}

PlanOptions options_of(const convoy_plan_options_t* given) {
  if (given == nullptr) return {};
  const convoy_plan_options_t c = adopt(given, default_options(), "options");
  require_zero(c.reserved, "options.reserved");
  PlanOptions options;
  options.dtype = static_cast<DType>(c.dtype);
  if (c.output_dtype != -1) options.output_dtype = static_cast<DType>(c.output_dtype);
  options.epilogue = epilogue_of(c.epilogue).kind();
  options.prologue = prologue_of(c.prologue).kind();
  options.shuffle = shuffle_of(c.shuffle);
  options.statistics_groups = c.statistics_groups;
  options.device = static_cast<Device>(c.device);
  options.device_index = c.device_index;
  options.packed_filter = c.packed_filter != 0;
  options.upsample_folding = static_cast<UpsampleFolding>(c.upsample_folding);
  options.allow_tf32 = c.allow_tf32 != 0;
  if (c.kernel != nullptr) options.kernel = c.kernel;
  return options;
}

RunArguments arguments_of(const convoy_run_arguments_t* given) {
  const convoy_run_arguments_t c = adopt(given, default_arguments(), "arguments");
  RunArguments a;
  a.output.data = c.output;
  a.output.shape = shape_of(c.output_shape);
  a.activation.data = c.activation;
  a.activation.shape = shape_of(c.activation_shape);
  if (c.filter != nullptr && c.packed_filter != nullptr) {
    throw_invalid(
        "arguments.filter and arguments.packed_filter are both given; legal: one of them");
  }
  a.filter = c.packed_filter != nullptr ? FilterRef(c.packed_filter->packed) : FilterRef(c.filter);
  a.epilogue = epilogue_of(c.epilogue);
  a.epilogue.residual_shape = shape_of(c.residual_shape);
  a.prologue = prologue_of(c.prologue);
  a.cache.data = c.cache;
  a.cache.shape = shape_of(c.cache_shape);
  a.next_cache.data = c.next_cache;
  a.next_cache.shape = shape_of(c.next_cache_shape);
  a.workspace = c.workspace;
  a.statistics = c.statistics;
  return a;
}

}  // namespace convoy::c_api

using namespace convoy;
using namespace convoy::c_api;

extern "C" {

void convoy_conv2d_shape_init(convoy_conv2d_shape_t* shape, size_t struct_size) {
  initialise(shape, default_conv2d(), struct_size);
}
void convoy_conv3d_shape_init(convoy_conv3d_shape_t* shape, size_t struct_size) {
  initialise(shape, default_conv3d(), struct_size);
}
void convoy_epilogue_init(convoy_epilogue_t* epilogue, size_t struct_size) {
  initialise(epilogue, default_epilogue(), struct_size);
}
void convoy_prologue_init(convoy_prologue_t* prologue, size_t struct_size) {
  initialise(prologue, default_prologue(), struct_size);
}
void convoy_shuffle_init(convoy_shuffle_t* shuffle, size_t struct_size) {
  initialise(shuffle, default_shuffle(), struct_size);
}
void convoy_plan_options_init(convoy_plan_options_t* options, size_t struct_size) {
  initialise(options, default_options(), struct_size);
}
void convoy_run_arguments_init(convoy_run_arguments_t* arguments, size_t struct_size) {
  initialise(arguments, default_arguments(), struct_size);
}

convoy_status_t convoy_plan_conv2d(const convoy_conv2d_shape_t* shape,
                                   const convoy_plan_options_t* options, convoy_plan_t* plan) {
  return make_plan(shape, options, plan);
}
convoy_status_t convoy_plan_conv3d(const convoy_conv3d_shape_t* shape,
                                   const convoy_plan_options_t* options, convoy_plan_t* plan) {
  return make_plan(shape, options, plan);
}
void convoy_plan_destroy(convoy_plan_t plan) {
  delete plan;
}

convoy_status_t convoy_run(convoy_plan_t plan, const convoy_run_arguments_t* arguments,
                           void* stream) {
  return guarded(
      [&] { require(plan, "plan")->plan.run(arguments_of(arguments), stream_of(stream)); });
}

convoy_status_t convoy_plan_output_shape(convoy_plan_t plan, convoy_tensor_shape_t* shape) {
  return guarded(
      [&] { *require(shape, "shape") = c_shape(require(plan, "plan")->plan.output_shape()); });
}
convoy_status_t convoy_plan_residual_shape(convoy_plan_t plan, convoy_tensor_shape_t* shape) {
  return guarded(
      [&] { *require(shape, "shape") = c_shape(require(plan, "plan")->plan.residual_shape()); });
}
convoy_status_t convoy_plan_activation_shape(convoy_plan_t plan, convoy_tensor_shape_t* shape) {
  return guarded(
      [&] { *require(shape, "shape") = c_shape(require(plan, "plan")->plan.activation_shape()); });
}
convoy_status_t convoy_plan_cache_shape(convoy_plan_t plan, convoy_tensor_shape_t* shape) {
  return guarded(
      [&] { *require(shape, "shape") = c_shape(require(plan, "plan")->plan.cache_shape()); });
}
convoy_status_t convoy_plan_next_cache_shape(convoy_plan_t plan, convoy_tensor_shape_t* shape) {
  return guarded(
      [&] { *require(shape, "shape") = c_shape(require(plan, "plan")->plan.next_cache_shape()); });
}
convoy_status_t convoy_plan_workspace_bytes(convoy_plan_t plan, size_t* bytes) {
  return guarded([&] { *require(bytes, "bytes") = require(plan, "plan")->plan.workspace_bytes(); });
}
convoy_status_t convoy_plan_info(convoy_plan_t plan, convoy_plan_info_t* info) {
  return guarded([&] { hand_back_info(info, require(plan, "plan")->plan.info()); });
}

convoy_status_t convoy_pack_filter(convoy_plan_t plan, const void* filter, int32_t layout,
                                   void* stream, convoy_packed_filter_t* packed) {
  return guarded([&] {
    *require(packed, "packed") = nullptr;
    *packed = new convoy_packed_filter_s{
        require(plan, "plan")
            ->plan.pack_filter(filter, static_cast<FilterLayout>(layout), stream_of(stream))};
  });
}
void convoy_packed_filter_destroy(convoy_packed_filter_t packed) {
  delete packed;
}

void convoy_norm_shape_init(convoy_norm_shape_t* shape, size_t struct_size) {
  initialise(shape, default_norm_shape(), struct_size);
}
void convoy_norm_options_init(convoy_norm_options_t* options, size_t struct_size) {
  initialise(options, default_norm_options(), struct_size);
}
void convoy_norm_arguments_init(convoy_norm_arguments_t* arguments, size_t struct_size) {
  initialise(arguments, default_norm_arguments(), struct_size);
}
convoy_status_t convoy_plan_group_norm(const convoy_norm_shape_t* shape,
                                       const convoy_norm_options_t* options,
                                       convoy_norm_plan_t* result) {
  return guarded([&] {
    *require(result, "plan") = nullptr;
    const convoy_norm_shape_t s = adopt(shape, default_norm_shape(), "shape");
    const GroupNormProblem problem{.batch = s.batch,
                                   .pixels = s.pixels,
                                   .channels = s.channels,
                                   .groups = s.groups,
                                   .epsilon = s.epsilon};
    *result = new convoy_norm_plan_s{plan(problem, norm_options_of(options))};
  });
}
convoy_status_t convoy_plan_rms_norm(const convoy_norm_shape_t* shape,
                                     const convoy_norm_options_t* options,
                                     convoy_norm_plan_t* result) {
  return guarded([&] {
    *require(result, "plan") = nullptr;
    const convoy_norm_shape_t s = adopt(shape, default_norm_shape(), "shape");
    if (s.batch != 1 || s.groups != 1) {
      throw_invalid("shape.batch and shape.groups of an rms_norm = ", s.batch, " and ", s.groups,
                    " are not legal; legal: 1 and 1, with the pixels of all images in pixels");
    }
    const RmsNormProblem problem{.pixels = s.pixels,
                                 .channels = s.channels,
                                 .epsilon = s.epsilon,
                                 .rule = static_cast<RmsEpsilon>(s.rms_epsilon)};
    *result = new convoy_norm_plan_s{plan(problem, norm_options_of(options))};
  });
}
void convoy_norm_plan_destroy(convoy_norm_plan_t plan) {
  delete plan;
}
convoy_status_t convoy_norm_run(convoy_norm_plan_t plan, const convoy_norm_arguments_t* arguments,
                                void* stream) {
  return guarded(
      [&] { require(plan, "plan")->plan.run(norm_arguments_of(arguments), stream_of(stream)); });
}
convoy_status_t convoy_norm_statistics(convoy_norm_plan_t plan, const void* input,
                                       int64_t image_pitch, float* output, void* workspace,
                                       void* stream) {
  return guarded([&] {
    require(plan, "plan")
        ->plan.statistics(
            {.output = output, .input = input, .image_pitch = image_pitch, .workspace = workspace},
            stream_of(stream));
  });
}
convoy_status_t convoy_norm_workspace_bytes(convoy_norm_plan_t plan, size_t* bytes) {
  return guarded([&] { *require(bytes, "bytes") = require(plan, "plan")->plan.workspace_bytes(); });
}
convoy_status_t convoy_norm_info(convoy_norm_plan_t plan, convoy_plan_info_t* info) {
  return guarded([&] { hand_back_info(info, require(plan, "plan")->plan.info()); });
}

void convoy_elementwise_init(convoy_elementwise_t* problem, size_t struct_size) {
  initialise(problem, default_elementwise(), struct_size);
}
convoy_status_t convoy_plan_elementwise(const convoy_elementwise_t* problem,
                                        convoy_elementwise_plan_t* result) {
  return guarded([&] {
    *require(result, "plan") = nullptr;
    const convoy_elementwise_t c = adopt(problem, default_elementwise(), "problem");
    require_zero(c.reserved, "problem.reserved");
    *result = new convoy_elementwise_plan_s{
        plan(elementwise_of(c), {.dtype = static_cast<DType>(c.dtype),
                                 .device = static_cast<Device>(c.device),
                                 .device_index = c.device_index}),
        c.operand_count};
  });
}
void convoy_elementwise_plan_destroy(convoy_elementwise_plan_t plan) {
  delete plan;
}
convoy_status_t convoy_elementwise_run(convoy_elementwise_plan_t plan, void* output,
                                       const void* const* operands, const float* coefficients,
                                       void* stream) {
  return guarded([&] {
    ElementwiseArguments arguments{.output = output, .coefficients = coefficients};
    std::copy_n(require(operands, "operands"), require(plan, "plan")->operands, arguments.operands);
    plan->plan.run(arguments, stream_of(stream));
  });
}
convoy_status_t convoy_elementwise_info(convoy_elementwise_plan_t plan, convoy_plan_info_t* info) {
  return guarded([&] { hand_back_info(info, require(plan, "plan")->plan.info()); });
}

convoy_status_t convoy_supports_conv2d(const convoy_conv2d_shape_t* shape,
                                       const convoy_plan_options_t* options) {
  return judge(shape, options);
}
convoy_status_t convoy_supports_conv3d(const convoy_conv3d_shape_t* shape,
                                       const convoy_plan_options_t* options) {
  return judge(shape, options);
}

convoy_status_t convoy_candidates_conv2d(const convoy_conv2d_shape_t* shape,
                                         const convoy_plan_options_t* options,
                                         convoy_candidates_t* result) {
  return list(shape, options, result);
}
convoy_status_t convoy_candidates_conv3d(const convoy_conv3d_shape_t* shape,
                                         const convoy_plan_options_t* options,
                                         convoy_candidates_t* result) {
  return list(shape, options, result);
}
size_t convoy_candidates_count(convoy_candidates_t list) {
  return list == nullptr ? 0 : list->list.size();
}
convoy_status_t convoy_candidates_get(convoy_candidates_t list, size_t index,
                                      convoy_candidate_t* candidate) {
  return guarded([&] {
    const std::vector<Candidate>& all = require(list, "list")->list;
    if (index >= all.size()) {
      throw_invalid("index = ", index, " is not legal; legal: below ", all.size());
    }
    const Candidate& from = all[index];
    hand_back(
        candidate,
        convoy_candidate_t{0, from.kernel.c_str(), from.backend.c_str(), from.reason.c_str(),
                           from.estimated_us, from.chosen ? 1 : 0, 0, from.statistics.c_str()},
        "candidate");
  });
}
void convoy_candidates_destroy(convoy_candidates_t list) {
  delete list;
}

const char* convoy_last_error(void) {
  return last_error.c_str();
}
const char* convoy_status_string(convoy_status_t status) {
  return to_string(static_cast<Status>(status));
}
const char* convoy_version(void) {
  return version();
}
int convoy_version_number(void) {
  return CONVOY_VERSION;
}

}  // extern "C"
