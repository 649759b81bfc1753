// SPDX-License-Identifier: Apache-2.0
#include "layer_norm.hpp"

#include <algorithm>
#include <cmath>

#include "io/tensor_file.hpp"
#include "reference/reference.hpp"
#include "text.hpp"

namespace convoy::cli {
namespace {

using io::HostTensor;

HostTensor read_parameter(const std::string& file, std::int64_t channels, float otherwise,
                          const char* what) {
  HostTensor parameter(DType::fp32, {channels});
  if (file.empty()) {
    std::fill_n(reinterpret_cast<float*>(parameter.bytes.data()), channels, otherwise);
    return parameter;
  }
  const HostTensor given = io::read_tensor(file);
  if (given.shape != parameter.shape) {
    throw_invalid(file, ": the norm's ", what, " has shape ", io::shape_to_string(given.shape),
                  "; legal: ", io::shape_to_string(parameter.shape));
  }
  return io::convert(given, DType::fp32);
}

NormPlan make_plan(const LayerNorm& norm, const ConvGeometry& g, DType dtype, Device device) {
  const std::int64_t pixels = g.in[0] * g.in[1] * g.in[2];
  const NormOptions options{.dtype = dtype,
                            .scale = !norm.rms,
                            .bias = !norm.rms,
                            .device = device,
                            .result = NormResult::coefficients};
  if (norm.rms) {
    return plan(RmsNormProblem{.pixels = g.batch * pixels,
                               .channels = g.in_channels,
                               .epsilon = norm.epsilon,
                               .rule = norm.rule},
                options);
  }
  return plan(GroupNormProblem{.batch = g.batch,
                               .pixels = pixels,
                               .channels = g.in_channels,
                               .groups = norm.groups,
                               .epsilon = norm.epsilon},
              options);
}

std::size_t coefficient_bytes(const LayerNorm& norm, const ConvGeometry& g) {
  const std::int64_t count =
      norm.rms ? g.batch * g.in[0] * g.in[1] * g.in[2] : 2 * g.batch * g.in_channels;
  return std::size_t(count) * sizeof(float);
}

}  // namespace

CLI::Option* NormWords::add_kind_to(CLI::App& command, const std::string& help) {
  CLI::Option* const which = prologue.add_to(command, help);
  command.add_option("--norm-groups", groups, "of a group norm")
      ->check(whole_number())
      ->needs(which)
      ->default_str(std::to_string(LayerNorm{}.groups));
  return which;
}

void NormWords::add_to(CLI::App& command) {
  CLI::Option* const which =
      add_kind_to(command, "group or rms: normalise the input in front of the convolution");
  command.add_option("--norm-epsilon", epsilon, "1e-5 (group), 1e-6 (rms)")
      ->check(finite_number())
      ->needs(which);
  command.add_option("--norm-rule", rule, "of an rms norm's epsilon: added or norm_floor")
      ->needs(which)
      ->default_str(to_string(RmsEpsilon::added));
  const char* const files = "[C]: .npy, .safetensors, .safetensors:TENSOR";
  command.add_option("--norm-scale", scale, files)->needs(which);
  command.add_option("--norm-bias", bias, std::string("of a group norm, ") + files)->needs(which);
}

std::optional<LayerNorm> NormWords::read(std::int64_t channels) const {
  const PrologueKind kind = prologue.kind();
  if (!kind.any()) return std::nullopt;
  LayerNorm result;
  result.rms = kind.norm == PrologueNorm::rms;
  result.activation = kind.activation;
  if (result.rms && !bias.empty()) {
    throw_invalid("--norm-bias with --norm rms; legal: --norm-scale alone, or --norm group");
  }
  if (result.rms && groups) {
    throw_invalid("--norm-groups = ", *groups, " with --norm rms; legal: with --norm group");
  }
  if (!result.rms && !rule.empty()) {
    throw_invalid("--norm-rule = '", rule, "' with --norm group; legal: with --norm rms");
  }
  result.groups = groups.value_or(result.groups);
  result.epsilon =
      epsilon.value_or(result.rms ? RmsNormProblem{}.epsilon : GroupNormProblem{}.epsilon);
  const bool added = rule.empty() || rule == to_string(RmsEpsilon::added);
  if (!added && rule != to_string(RmsEpsilon::norm_floor)) {
    throw_invalid("norm rule '", rule, "' is not known; legal: added, norm_floor");
  }
  result.rule = added ? RmsEpsilon::added : RmsEpsilon::norm_floor;
  result.scale = read_parameter(scale, channels, 1.0f, "scale");
  result.bias = read_parameter(bias, channels, 0.0f, "bias");
  return result;
}

PreparedNorm::PreparedNorm(const LayerNorm& norm, const ConvGeometry& g, DType dtype, Device device,
                           const void* activation, const void* scale, const void* bias)
    : plan_(make_plan(norm, g, dtype, device)),
      coefficients_(device, coefficient_bytes(norm, g)),
      workspace_(device, plan_.workspace_bytes()) {
  arguments_.output = coefficients_.data();
  arguments_.input = activation;
  if (workspace_.bytes() > 0) arguments_.workspace = workspace_.data();
  auto* const floats = static_cast<const float*>(coefficients_.data());
  prologue_.norm = norm.kind().norm;
  prologue_.activation = norm.activation;
  if (norm.rms) {
    prologue_.inverse_rms = floats;
    prologue_.scale = static_cast<const float*>(scale);
  } else {
    arguments_.scale = scale;
    arguments_.bias = bias;
    prologue_.scale = floats;
    prologue_.shift = floats + g.batch * g.in_channels;
  }
}

std::vector<float> normalised(const LayerNorm& norm, const ConvGeometry& g, const float* activation,
                              DType dtype, double& error) {
  const std::int64_t pixels = g.in[0] * g.in[1] * g.in[2], channels = g.in_channels;
  auto* const gamma = reinterpret_cast<const float*>(norm.scale.bytes.data());
  auto* const beta = reinterpret_cast<const float*>(norm.bias.bytes.data());
  const double epsilon = norm.epsilon;
  std::vector<float> scale(gamma, gamma + channels), shift, inverse;
  if (norm.rms) {
    for (std::int64_t pixel = 0; pixel < g.batch * pixels; ++pixel) {
      double sum = 0;
      for (std::int64_t c = 0; c < channels; ++c) {
        sum += double(activation[pixel * channels + c]) * double(activation[pixel * channels + c]);
      }
      const double divisor = norm.rule == RmsEpsilon::added
                                 ? std::sqrt(sum / double(channels) + epsilon)
                                 : std::max(std::sqrt(sum), epsilon) / std::sqrt(double(channels));
      inverse.push_back(float(1.0 / divisor));
    }
  } else {
    scale.clear();
    const std::int64_t width = channels / norm.groups;
    for (std::int64_t n = 0; n < g.batch; ++n) {
      for (std::int64_t group = 0; group < norm.groups; ++group) {
        const double count = double(width) * double(pixels);
        const auto each = [&](const auto& use) {
          for (std::int64_t pixel = n * pixels; pixel < (n + 1) * pixels; ++pixel) {
            const float* const first = activation + pixel * channels + group * width;
            for (std::int64_t c = 0; c < width; ++c) use(double(first[c]));
          }
        };
        double mean = 0, variance = 0;
        each([&](double x) { mean += x / count; });
        each([&](double x) { variance += (x - mean) * (x - mean) / count; });
        for (std::int64_t c = group * width; c < (group + 1) * width; ++c) {
          const double factor = double(gamma[c]) / std::sqrt(variance + epsilon);
          scale.push_back(float(factor));
          shift.push_back(float(double(beta[c]) - mean * factor));
        }
      }
    }
  }
  return reference::apply_prologue(g, activation,
                                   {.norm = norm.kind().norm,
                                    .activation = norm.activation,
                                    .scale = scale.data(),
                                    .shift = shift.data(),
                                    .inverse_rms = inverse.data()},
                                   dtype, &error);
}

}  // namespace convoy::cli
