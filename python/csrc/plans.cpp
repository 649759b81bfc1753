// SPDX-License-Identifier: Apache-2.0
#include "plans.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <utility>

namespace convoy_torch {
namespace {

/// All that a plan depends on, as numbers.
using Key = std::array<std::int64_t, 48>;

class KeyWriter {
 public:
  void add(std::int64_t value) { key_.at(at_++) = value; }
  void add(std::span<const std::int64_t> values) {
    add(static_cast<std::int64_t>(values.size()));
    for (const std::int64_t value : values) add(value);
  }
  const Key& key() const { return key_; }

 private:
  Key key_{};
  std::size_t at_ = 0;
};

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::uint64_t hash = 1469598103934665603u;  // FNV-1a, a word at a time.
    for (const std::int64_t value : key) {
      hash = (hash ^ static_cast<std::uint64_t>(value)) * 1099511628211u;
    }
    return hash ^ (hash >> 32);
  }
};

/// Values by key, up to a number of them.
template <class Value>
class Cache {
 public:
  template <class Make>
  Value get(const Key& key, const Make& make) {
    {
      const std::shared_lock lock(mutex_);
      const auto found = values_.find(key);
      if (found != values_.end()) return found->second;
    }
    Value made = make();
    const std::unique_lock lock(mutex_);
    if (values_.size() >= limit) values_.clear();
    return values_.try_emplace(key, std::move(made)).first->second;
  }
  void clear() {
    const std::unique_lock lock(mutex_);
    values_.clear();
  }

 private:
  static constexpr std::size_t limit = 4096;
  std::shared_mutex mutex_;
  std::unordered_map<Key, Value, KeyHash> values_;
};

struct Name {
  const char* text;
  std::int32_t number;
};

std::int32_t choose(std::initializer_list<Name> names, const std::string& text, const char* what) {
  std::string legal;
  for (const Name& name : names) {
    if (text == name.text) return name.number;
    legal += (legal.empty() ? "" : ", ") + std::string(name.text);
  }
  fail(CONVOY_INVALID_ARGUMENT,
       std::string(what) + " = '" + text + "' is not legal; legal: " + legal);
}

std::int32_t activation_number(const std::string& text) {
  return choose({{"none", CONVOY_ACTIVATION_NONE},
                 {"relu", CONVOY_ACTIVATION_RELU},
                 {"leaky_relu", CONVOY_ACTIVATION_LEAKY_RELU},
                 {"gelu", CONVOY_ACTIVATION_GELU},
                 {"gelu_tanh", CONVOY_ACTIVATION_GELU_TANH},
                 {"silu", CONVOY_ACTIVATION_SILU},
                 {"sigmoid", CONVOY_ACTIVATION_SIGMOID},
                 {"tanh", CONVOY_ACTIVATION_TANH},
                 {"hardswish", CONVOY_ACTIVATION_HARDSWISH},
                 {"clamp", CONVOY_ACTIVATION_CLAMP}},
                text, "activation");
}

std::int32_t padding_mode_number(const std::string& text) {
  return choose({{"zeros", CONVOY_PAD_ZERO},
                 {"zero", CONVOY_PAD_ZERO},
                 {"replicate", CONVOY_PAD_REPLICATE},
                 {"reflect", CONVOY_PAD_REFLECT}},
                text, "padding_mode");
}

/// The options of a convolution as numbers.
struct ConvNumbers {
  std::int32_t dtype, bias_dtype, activation, folding, mode;
};

void check_tensors(const Facts& x, const Facts& weight, const ConvInputs& inputs,
                   const ConvOptions& options) {
  const std::size_t axes = x.sizes.size() - 2;
  if (x.sizes.size() != weight.sizes.size() || (axes != 2 && axes != 3)) {
    fail(CONVOY_INVALID_ARGUMENT, "x has " + std::to_string(x.sizes.size()) + " axes and weight " +
                                      std::to_string(weight.sizes.size()) +
                                      "; legal: 4 each (conv2d) or 5 (conv3d)");
  }
  check_like(weight, "weight", x);
  if (weight.sizes[1] * options.groups != x.sizes[1]) {
    fail(CONVOY_INVALID_ARGUMENT, "weight has " + std::to_string(weight.sizes[1]) +
                                      " channels for " + std::to_string(options.groups) +
                                      " groups, but x has " + std::to_string(x.sizes[1]) +
                                      "; legal: channels of x = groups * channels of the weight");
  }
  if (options.stride.size() != axes || options.dilation.size() != axes ||
      options.padding.size() != 2 * axes) {
    fail(CONVOY_INVALID_ARGUMENT,
         "stride, padding and dilation have " + std::to_string(options.stride.size()) + ", " +
             std::to_string(options.padding.size()) + " and " +
             std::to_string(options.dilation.size()) + " numbers; legal: " + std::to_string(axes) +
             ", " + std::to_string(2 * axes) + " and " + std::to_string(axes));
  }
  if (inputs.cache && Facts(*inputs.cache).sizes.size() != x.sizes.size()) {
    fail(CONVOY_INVALID_ARGUMENT, "cache is " + described(Facts(*inputs.cache)) + ", but x is " +
                                      described(x) +
                                      "; legal: the shape of x but for the frames (axis 2)");
  }
}

convoy_status_t plan_2d(const Facts& x, const Facts& weight, const ConvOptions& options,
                        std::int32_t mode, const convoy_plan_options_t& chosen,
                        convoy_plan_t* plan) {
  convoy_conv2d_shape_t shape;
  convoy_conv2d_shape_init(&shape, sizeof(shape));
  shape.batch = x.sizes[0], shape.in_channels = x.sizes[1];
  shape.in_height = x.sizes[2], shape.in_width = x.sizes[3];
  shape.out_channels = weight.sizes[0];
  shape.filter_h = weight.sizes[2], shape.filter_w = weight.sizes[3];
  shape.pad_top = options.padding[0], shape.pad_bottom = options.padding[1];
  shape.pad_left = options.padding[2], shape.pad_right = options.padding[3];
  shape.stride_h = options.stride[0], shape.stride_w = options.stride[1];
  shape.dilation_h = options.dilation[0], shape.dilation_w = options.dilation[1];
  shape.groups = options.groups;
  shape.upsample = options.upsample;
  shape.pad_mode = mode;
  return convoy_plan_conv2d(&shape, &chosen, plan);
}

convoy_status_t plan_3d(const Facts& x, const Facts& weight, const ConvInputs& inputs,
                        const ConvOptions& options, std::int32_t mode,
                        const convoy_plan_options_t& chosen, convoy_plan_t* plan) {
  convoy_conv3d_shape_t shape;
  convoy_conv3d_shape_init(&shape, sizeof(shape));
  shape.batch = x.sizes[0], shape.in_channels = x.sizes[1];
  shape.in_depth = x.sizes[2], shape.in_height = x.sizes[3], shape.in_width = x.sizes[4];
  shape.out_channels = weight.sizes[0];
  for (std::size_t axis = 0; axis < 3; ++axis) {
    shape.filter[axis] = weight.sizes[axis + 2];
    shape.pad_begin[axis] = options.padding[2 * axis];
    shape.pad_end[axis] = options.padding[2 * axis + 1];
    shape.stride[axis] = options.stride[axis];
    shape.dilation[axis] = options.dilation[axis];
    shape.pad_mode[axis] = mode;
  }
  shape.groups = options.groups;
  shape.cached_frames = inputs.cache ? Facts(*inputs.cache).sizes[2] : 0;
  return convoy_plan_conv3d(&shape, &chosen, plan);
}

NumberedConv make_conv(const Facts& x, const Facts& weight, const ConvInputs& inputs,
                       const ConvOptions& options, const ConvNumbers& numbers) {
  convoy_epilogue_t epilogue;
  convoy_epilogue_init(&epilogue, sizeof(epilogue));
  epilogue.activation = numbers.activation;
  if (inputs.bias) epilogue.bias_dtype = numbers.bias_dtype;
  convoy_epilogue_t present = epilogue;  // Only being null or not matters here.
  if (inputs.bias) present.bias = &epilogue;
  if (inputs.residual) present.residual = &epilogue;

  convoy_plan_options_t chosen;
  convoy_plan_options_init(&chosen, sizeof(chosen));
  chosen.dtype = numbers.dtype;
  chosen.device = x.on_gpu() ? CONVOY_DEVICE_CUDA : CONVOY_DEVICE_CPU;
  chosen.device_index = x.on_gpu() ? x.device_index : -1;
  chosen.packed_filter = options.packed ? 1 : 0;
  chosen.upsample_folding = numbers.folding;
  chosen.allow_tf32 = options.allow_tf32 ? 1 : 0;
  chosen.epilogue = &present;

  convoy_plan_t plan = nullptr;
  check(x.sizes.size() == 4 ? plan_2d(x, weight, options, numbers.mode, chosen, &plan)
                            : plan_3d(x, weight, inputs, options, numbers.mode, chosen, &plan));
  NumberedConv made;
  made.runner = std::make_shared<const ConvRunner>(OwnedPlan(plan), epilogue, weight.elements());
  if (options.packed) made.number = std::make_shared<const ConvNumber>(made.runner);
  return made;
}

Cache<NumberedConv>& convs() {
  static auto& cache = *new Cache<NumberedConv>;  // NOTE: never destroyed: the CUDA driver may go
  return cache;                                   // before it at the end of the process.
}

Cache<std::shared_ptr<const NormRunner>>& norms() {
  static auto& cache = *new Cache<std::shared_ptr<const NormRunner>>;
  return cache;
}

}  // namespace

Registry<ConvRunner>& numbered_convs() {
  static auto& registry = *new Registry<ConvRunner>;
  return registry;
}

Registry<NormRunner>& numbered_norms() {
  static auto& registry = *new Registry<NormRunner>;
  return registry;
}

ConvNumber::ConvNumber(std::shared_ptr<const ConvRunner> runner)
    : value_(numbered_convs().add(std::move(runner))) {}

ConvNumber::~ConvNumber() {
  numbered_convs().remove(value_);
}

void forget_plans() {
  convs().clear();
  norms().clear();
}

NumberedConv conv_runner(const ConvInputs& inputs, const ConvOptions& options) {
  const Facts x(inputs.x), weight(*inputs.weight);
  check_tensors(x, weight, inputs, options);
  const ConvNumbers numbers{
      library_dtype(x, "x"), inputs.bias ? library_dtype(Facts(*inputs.bias), "bias") : -1,
      activation_number(options.activation),
      choose({{"exact", CONVOY_UPSAMPLE_FOLDING_EXACT}, {"fast", CONVOY_UPSAMPLE_FOLDING_FAST}},
             options.upsample_folding, "upsample_folding"),
      padding_mode_number(options.padding_mode)};
  KeyWriter key;
  key.add(x.sizes);
  key.add(weight.sizes);
  key.add(options.stride);
  key.add(options.padding);
  key.add(options.dilation);
  for (const std::int64_t value :
       {static_cast<std::int64_t>(x.device_type), static_cast<std::int64_t>(x.device_index),
        static_cast<std::int64_t>(numbers.dtype), static_cast<std::int64_t>(numbers.bias_dtype),
        static_cast<std::int64_t>(numbers.activation), static_cast<std::int64_t>(numbers.folding),
        static_cast<std::int64_t>(numbers.mode), options.groups, options.upsample,
        static_cast<std::int64_t>(options.packed), static_cast<std::int64_t>(options.allow_tf32),
        static_cast<std::int64_t>(inputs.residual.has_value()),
        inputs.cache ? Facts(*inputs.cache).sizes[2] : -1}) {
    key.add(value);
  }
  return convs().get(key.key(), [&] { return make_conv(x, weight, inputs, options, numbers); });
}

std::shared_ptr<const NormRunner> norm_runner(const Tensor& tensor,
                                              std::optional<std::int64_t> groups,
                                              const std::optional<Tensor>& weight,
                                              const std::optional<Tensor>& bias, double epsilon,
                                              const std::string& rule,
                                              const std::string& activation) {
  const Facts x(tensor);
  if (x.sizes.size() != 4 && x.sizes.size() != 5) {
    fail(CONVOY_INVALID_ARGUMENT, "x has " + std::to_string(x.sizes.size()) +
                                      " axes; legal: 4 [N, C, H, W] or 5 [N, C, D, H, W]");
  }
  std::int32_t parameters = CONVOY_FP32;
  if (bias) parameters = library_dtype(Facts(*bias), "bias");
  if (weight) {
    const std::int32_t of_weight = library_dtype(Facts(*weight), "weight");
    if (bias && of_weight != parameters) {
      fail(CONVOY_INVALID_ARGUMENT, "bias is of another type than weight; legal: the same type");
    }
    parameters = of_weight;
  }
  const std::int32_t number = activation_number(activation);
  const std::int32_t rms =
      choose({{"added", CONVOY_RMS_EPSILON_ADDED}, {"norm_floor", CONVOY_RMS_EPSILON_NORM_FLOOR}},
             rule, "rule");
  const NormTensors tensors{x.elements(), x.sizes[1], library_dtype(x, "x"), parameters};
  KeyWriter key;
  key.add(x.sizes);
  for (const std::int64_t value :
       {groups.value_or(-1), static_cast<std::int64_t>(groups.has_value()),
        static_cast<std::int64_t>(x.device_type), static_cast<std::int64_t>(x.device_index),
        static_cast<std::int64_t>(tensors.dtype), static_cast<std::int64_t>(parameters),
        static_cast<std::int64_t>(weight.has_value()), static_cast<std::int64_t>(bias.has_value()),
        std::bit_cast<std::int64_t>(epsilon), static_cast<std::int64_t>(rms),
        static_cast<std::int64_t>(number)}) {
    key.add(value);
  }
  return norms().get(key.key(), [&] {
    convoy_norm_shape_t shape;
    convoy_norm_shape_init(&shape, sizeof(shape));
    shape.channels = tensors.channels;
    const std::int64_t images = groups ? x.sizes[0] : 1;
    const std::int64_t divisor = tensors.channels * images;
    shape.batch = images;
    shape.pixels = divisor > 0 ? tensors.elements / divisor : 0;
    shape.groups = groups.value_or(1);
    shape.epsilon = static_cast<float>(epsilon);
    shape.rms_epsilon = rms;
    convoy_norm_options_t options;
    convoy_norm_options_init(&options, sizeof(options));
    options.dtype = tensors.dtype;
    options.parameter_dtype = parameters;
    options.scale = weight ? 1 : 0;
    options.bias = bias ? 1 : 0;
    options.activation = number;
    options.device = x.on_gpu() ? CONVOY_DEVICE_CUDA : CONVOY_DEVICE_CPU;
    options.device_index = x.on_gpu() ? x.device_index : -1;
    convoy_norm_plan_t plan = nullptr;
    check(groups ? convoy_plan_group_norm(&shape, &options, &plan)
                 : convoy_plan_rms_norm(&shape, &options, &plan));
    convoy_norm_arguments_t arguments;
    convoy_norm_arguments_init(&arguments, sizeof(arguments));
    return std::make_shared<const NormRunner>(OwnedNormPlan(plan), arguments, tensors);
  });
}

}  // namespace convoy_torch
