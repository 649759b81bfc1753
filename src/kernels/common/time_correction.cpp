// SPDX-License-Identifier: Apache-2.0
#include "kernels/common/time_correction.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "core/checked.hpp"

namespace convoy {
namespace {

// NOTE: weights lie output by output, so that compilers add several outputs at once.
template <int kHidden>
struct Network {
  float first[kCorrectionInputs][kHidden], first_bias[kHidden];
  float second[kHidden][kHidden], second_bias[kHidden];
  float last[kHidden][1], last_bias[1];
};

// Made by bench/choice/train_correction.py.
#include "kernels/common/time_correction_half.inc"
#include "kernels/common/time_correction_tf32.inc"

bool times_are_corrected = true;

float logarithm(double x) {
  return static_cast<float>(std::log(std::max(x, 1e-3)));
}

// Bytes that rows of so many bytes are aligned to, at most 128, as a power of 2.
float alignment(std::int64_t bytes) {
  return static_cast<float>(std::log2(std::gcd(bytes, std::int64_t{128})));
}

float silu(float x) {
  return x / (1.0f + std::exp(-x));
}

template <std::size_t kIn, std::size_t kOut>
std::array<float, kOut> layer(const float (&weights)[kIn][kOut], const float (&bias)[kOut],
                              const std::array<float, kIn>& inputs) {
  std::array<float, kOut> outputs;
  for (std::size_t i = 0; i < kOut; ++i) outputs[i] = bias[i];
  for (std::size_t j = 0; j < kIn; ++j) {
    for (std::size_t i = 0; i < kOut; ++i) outputs[i] += weights[j][i] * inputs[j];
  }
  return outputs;
}

template <std::size_t kCount>
void activate(std::array<float, kCount>& values) {
  for (float& value : values) value = silu(value);
}

template <int kHidden>
float output(const Network<kHidden>& network, const std::array<float, kCorrectionInputs>& inputs) {
  auto first = layer(network.first, network.first_bias, inputs);
  activate(first);
  auto second = layer(network.second, network.second_bias, first);
  activate(second);
  return layer(network.last, network.last_bias, second)[0];
}

}  // namespace

std::array<float, kCorrectionInputs> correction_inputs(CorrectedKernel kernel,
                                                       const ModelledTime& t, const ConvGeometry& g,
                                                       const EpilogueKind& epilogue, DType dtype) {
  std::array<float, kCorrectionInputs> x{};
  std::size_t i = 0;
  const auto add = [&](double value) { x[i++] = static_cast<float>(value); };
  const auto add_logarithm = [&](double value) { x[i++] = logarithm(value); };
  for (const double value :
       {t.us, t.compute_us, t.memory_us, t.rounds, t.blocks, t.main_cycles, t.epilogue_cycles,
        t.mma_cycles, t.load_cycles, t.l2_bytes, t.block_m, t.block_n, t.stages, t.splits}) {
    add_logarithm(value);
  }
  for (const double value :
       {t.filled, t.busy, t.steps / 4.0, t.consumers, t.cluster_m - 1.0, t.cluster_n - 1.0,
        double(t.pingpong), double(t.swapped), double(t.halo), double(t.planes), double(t.resident),
        double(t.splits_k), double(t.direct_store)}) {
    add(value);
  }
  const double taps = static_cast<double>(g.filter[0] * g.filter[1] * g.filter[2]);
  const auto pixels = static_cast<double>(g.gemm_m());
  const auto filters = static_cast<double>(g.out_channels);
  add_logarithm(static_cast<double>(g.in_channels));
  add_logarithm(filters);
  add_logarithm(taps);
  add_logarithm(pixels);
  const auto bytes = static_cast<std::int64_t>(size_of(dtype));
  x[i++] = alignment(g.in_channels * bytes);
  x[i++] = alignment(g.out_channels * bytes);
  // Shares of the tiles that lie inside the output.
  add(filters / (std::ceil(filters / t.block_n) * t.block_n));
  add(pixels / (std::ceil(pixels / t.block_m) * t.block_m));
  add(g.stride[1] > 1 || g.stride[2] > 1);
  const Activation activation = epilogue.activation;
  const bool is_curved = activation == Activation::silu || activation == Activation::gelu ||
                         activation == Activation::gelu_tanh || activation == Activation::sigmoid ||
                         activation == Activation::tanh;
  add(epilogue.bias);
  add(activation != Activation::none && !is_curved);
  add(is_curved);
  add(epilogue.residual);
  add(kernel == CorrectedKernel::pointwise);
  add(kernel == CorrectedKernel::pointwise_stream);
  add(kernel == CorrectedKernel::stem);
  add(kernel == CorrectedKernel::mma_fprop);
  add(kernel == CorrectedKernel::few_filters);
  add(kernel == CorrectedKernel::sliced_k);
  add(std::log2(std::max(1.0, pixels / 132.0 / t.block_m)));
  add_logarithm(static_cast<double>(std::max(g.dilation[1], g.dilation[2])));
  add_logarithm(static_cast<double>(g.activation_elements()));
  add_logarithm(static_cast<double>(g.filter_elements()));
  add(g.upsample > 1);
  add(std::log2(static_cast<double>(g.groups)));
  add(is_curved && activation != Activation::silu);
  add(kernel == CorrectedKernel::narrow_input);
  add(kernel == CorrectedKernel::few_channels);
  add(kernel == CorrectedKernel::pointwise_narrow);
  return x;
}

double corrected_us(CorrectedKernel kernel, const ModelledTime& time, const ConvGeometry& geometry,
                    const EpilogueKind& epilogue, DType dtype) {
  if (!times_are_corrected) return time.us;
  const auto inputs = correction_inputs(kernel, time, geometry, epilogue, dtype);
  const float sum = dtype == DType::fp32 ? output(kTf32, inputs) : output(kHalfPrecision, inputs);
  return time.us * std::exp(0.5 * std::tanh(static_cast<double>(sum)));
}

bool knows_problem(const ConvGeometry& geometry, DType dtype) {
  return dtype != DType::fp32 || (geometry.groups == 1 && geometry.upsample == 1);
}

double corrected_us(CorrectedKernel kernel, const ModelledTime& time, const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  const bool is_known = request.device.compute_capability == 90 &&
                        request.output_dtype == request.dtype &&
                        (request.dtype != DType::fp32 || request.allow_tf32) &&
                        knows_problem(g, request.dtype) && !request.prologue.any();
  return is_known ? corrected_us(kernel, time, g, request.epilogue, request.dtype) : time.us;
}

void correct_times(bool corrected) {
  times_are_corrected = corrected;
}

}  // namespace convoy
