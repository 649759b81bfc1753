// SPDX-License-Identifier: Apache-2.0
#include "reference/reference.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "convoy/dtype.hpp"
#include "core/filter_layout.hpp"
#include "core/padding.hpp"
#include "core/text.hpp"

namespace convoy::reference {
namespace {

/// The C channels of the input under one tap, or null where the tap reads zero.
const float* tap_input(const ConvGeometry& g, const Operands& operands, std::int64_t n,
                       std::int64_t d, std::int64_t h, std::int64_t w) {
  const auto seen = g.seen();
  d = padded_source(d, seen[0], g.pad_mode[0]);
  h = padded_source(h, seen[1], g.pad_mode[1]);
  w = padded_source(w, seen[2], g.pad_mode[2]);
  if (d < 0 || h < 0 || w < 0) return nullptr;
  h /= g.upsample;
  w /= g.upsample;
  if (d < g.cached_frames) {
    return operands.cache +
           (((n * g.cached_frames + d) * g.in[1] + h) * g.in[2] + w) * g.in_channels;
  }
  d -= g.cached_frames;
  return operands.activation + (((n * g.in[0] + d) * g.in[1] + h) * g.in[2] + w) * g.in_channels;
}

std::vector<float> magnitudes(const float* values, std::int64_t count) {
  if (values == nullptr) return {};
  std::vector<float> out(values, values + count);
  for (float& value : out) value = std::fabs(value);
  return out;
}

/// The same in absolute terms among the subnormals.
double smallest_half_step(DType dtype) {
  return dtype == DType::fp16 ? 0x1p-25 : 0x1p-134;
}

/// Largest slope of an activation, rounded up.
double steepest(const Epilogue& epilogue) {
  switch (epilogue.activation) {
    case Activation::leaky_relu:
      return std::max(1.0, std::fabs(static_cast<double>(
                               parameter_a_of(epilogue.activation, epilogue.parameter_a))));
    case Activation::gelu:
    case Activation::gelu_tanh:
      return 1.13;
    case Activation::silu:
      return 1.1;
    case Activation::hardswish:
      return 1.5;
    default:
      return 1.0;
  }
}

/// Whether kernels compute the activation by a fitted gate, whose error the rounding of the output
/// hides unless a residual cancels the rest (kernels/common/gates.hpp).
bool has_gate(const Epilogue& epilogue, DType output_dtype) {
  return (epilogue.activation == Activation::gelu ||
          epilogue.activation == Activation::gelu_tanh) &&
         output_dtype != DType::fp32 && epilogue.rounding != EpilogueRounding::each_step;
}
/// Its error is at most this times (2^-12·|activated| + 2^-20).
constexpr double kGateError = 0.04;

}  // namespace

std::vector<std::int64_t> shuffle_order(const ConvGeometry& g, const OutputShuffle& shuffle) {
  const auto [ft, fh, fw] = shuffle.factors;
  const std::int64_t channels = g.out_channels / (ft * fh * fw);
  const std::int64_t frames = g.out[0] * ft - shuffle.dropped_frames;
  const std::int64_t rows = g.out[1] * fh, columns = g.out[2] * fw;
  std::vector<std::int64_t> order(
      static_cast<std::size_t>(g.batch * frames * rows * columns * channels));
  std::int64_t element = 0;
  for (std::int64_t n = 0; n < g.batch; ++n) {
    for (std::int64_t z = 0; z < g.out[0]; ++z) {
      for (std::int64_t p = 0; p < g.out[1]; ++p) {
        for (std::int64_t q = 0; q < g.out[2]; ++q) {
          for (std::int64_t k = 0; k < g.out_channels; ++k, ++element) {
            std::int64_t c = 0, phase = 0;
            if (shuffle.order == ShuffleOrder::channels_inner) {
              c = k % channels;
              phase = k / channels;
            } else {
              phase = k % (ft * fh * fw);
              c = k / (ft * fh * fw);
            }
            const std::int64_t frame = z * ft + phase / (fh * fw) - shuffle.dropped_frames;
            if (frame < 0) continue;
            const std::int64_t row = p * fh + phase / fw % fh, column = q * fw + phase % fw;
            order[static_cast<std::size_t>(
                (((n * frames + frame) * rows + row) * columns + column) * channels + c)] = element;
          }
        }
      }
    }
  }
  return order;
}

std::vector<float> residual_of_filters(const ConvGeometry& g, const OutputShuffle& shuffle,
                                       const float* residual) {
  std::vector<float> filters(static_cast<std::size_t>(g.output_elements()));
  if (shuffle.residual == ShuffleResidual::output) {
    const std::vector<std::int64_t> order = shuffle_order(g, shuffle);
    for (std::size_t i = 0; i < order.size(); ++i) {
      filters[static_cast<std::size_t>(order[i])] = residual[i];
    }
    return filters;
  }
  const std::int64_t channels = shuffle.residual_channels;
  for (std::size_t i = 0; i < filters.size(); ++i) {
    const std::int64_t pixel = static_cast<std::int64_t>(i) / g.out_channels;
    const std::int64_t k = static_cast<std::int64_t>(i) % g.out_channels;
    const bool interleaved = shuffle.residual == ShuffleResidual::interleaved;
    filters[i] =
        residual[pixel * channels + (interleaved ? k * channels / g.out_channels : k % channels)];
  }
  return filters;
}

Expectation shuffled(const ConvGeometry& g, const OutputShuffle& shuffle,
                     const Expectation& expectation) {
  Expectation result;
  for (const std::int64_t from : shuffle_order(g, shuffle)) {
    const auto i = static_cast<std::size_t>(from);
    result.value.push_back(expectation.value[i]);
    result.bound.push_back(expectation.bound[i]);
    if (!expectation.unusual.empty()) result.unusual.push_back(expectation.unusual[i]);
  }
  return result;
}

double half_ulp(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 0x1p-8;
    case DType::fp16:
      return 0x1p-11;
    case DType::fp32:
      break;
  }
  return 0x1p-24;
}

void to_ktrsc(void* ktrsc, const void* filter, DType dtype, FilterLayout layout,
              const ConvGeometry& geometry) {
  repack_filter(ktrsc, filter, dtype, layout, geometry);
}

namespace {

/// The inputs of one output pixel, tap by tap; null where a tap lies in zero padding.
void gather_inputs(const ConvGeometry& g, const Operands& operands, std::int64_t pixel,
                   std::vector<const float*>& inputs) {
  const std::int64_t q = pixel % g.out[2];
  const std::int64_t p = pixel / g.out[2] % g.out[1];
  const std::int64_t z = pixel / (g.out[2] * g.out[1]) % g.out[0];
  const std::int64_t n = pixel / (g.out[2] * g.out[1] * g.out[0]);
  inputs.resize(static_cast<std::size_t>(g.taps()));
  auto input = inputs.begin();
  for (std::int64_t t = 0; t < g.filter[0]; ++t) {
    for (std::int64_t r = 0; r < g.filter[1]; ++r) {
      for (std::int64_t s = 0; s < g.filter[2]; ++s) {
        *input++ = tap_input(g, operands, n, z * g.stride[0] - g.pad_begin[0] + t * g.dilation[0],
                             p * g.stride[1] - g.pad_begin[1] + r * g.dilation[1],
                             q * g.stride[2] - g.pad_begin[2] + s * g.dilation[2]);
      }
    }
  }
}

/// The sum of filter k over the inputs of a pixel.
double sum_fp64(const ConvGeometry& g, const Operands& operands,
                const std::vector<const float*>& inputs, std::int64_t k) {
  const std::int64_t group_channels = g.group_channels();
  const std::int64_t first_channel = k / g.group_filters() * group_channels;
  const float* filter = operands.filter + k * g.gemm_k();
  double sum = 0.0;
  for (const float* in : inputs) {
    for (std::int64_t c = 0; in != nullptr && c < group_channels; ++c) {
      sum += static_cast<double>(in[first_channel + c]) * static_cast<double>(filter[c]);
    }
    filter += group_channels;
  }
  return sum;
}

}  // namespace

std::vector<double> convolve_fp64(const ConvGeometry& g, const Operands& operands,
                                  std::int64_t step) {
  std::vector<double> out;
  out.reserve(static_cast<std::size_t>((g.output_elements() + step - 1) / step));
  std::vector<const float*> inputs;
  std::int64_t gathered = -1;
  for (std::int64_t element = 0; element < g.output_elements(); element += step) {
    const std::int64_t pixel = element / g.out_channels;
    if (pixel != gathered) {
      gathered = pixel;
      gather_inputs(g, operands, pixel, inputs);
    }
    out.push_back(sum_fp64(g, operands, inputs, element % g.out_channels));
  }
  return out;
}

float round_to_tf32(float x) {
  if (!std::isfinite(x)) return x;
  // The lower 13 of fp32's 23 bits of mantissa go; a carry moves into the exponent.
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu);
}

namespace {

/// Whether output elements have a tap in zero padding whose filter is not finite: every `step`-th
/// element; empty where the filter is finite.
std::vector<bool> meets_padding(const ConvGeometry& g, const Operands& operands,
                                std::int64_t step) {
  std::vector<bool> wild(static_cast<std::size_t>(g.out_channels * g.taps()));
  bool any = false;
  for (std::int64_t i = 0; i < g.filter_elements(); ++i) {
    if (std::isfinite(operands.filter[i])) continue;
    wild[static_cast<std::size_t>(i / g.group_channels())] = any = true;
  }
  std::vector<bool> out;
  std::vector<const float*> inputs;
  for (std::int64_t element = 0; any && element < g.output_elements(); element += step) {
    gather_inputs(g, operands, element / g.out_channels, inputs);
    const std::size_t first = static_cast<std::size_t>(element % g.out_channels) * inputs.size();
    bool meets = false;
    for (std::size_t tap = 0; tap < inputs.size(); ++tap) {
      meets = meets || (inputs[tap] == nullptr && wild[first + tap]);
    }
    out.push_back(meets);
  }
  return out;
}

}  // namespace

double round_fp64(DType dtype, double x) {
  if (std::isnan(x) || std::isinf(x) || x == 0.0) return x;
  // Round to the step of the type at x's binade; ldexp and nearbyint are exact.
  const int digits = dtype == DType::bf16 ? 8 : dtype == DType::fp16 ? 11 : 24;
  const int least_exponent = dtype == DType::fp16 ? -24 : dtype == DType::bf16 ? -133 : -149;
  const double largest = dtype == DType::fp16   ? 65504.0
                         : dtype == DType::bf16 ? 0x1.fep127
                                                : 0x1.fffffep127;
  int exponent = 0;
  std::frexp(x, &exponent);
  const int step = std::max(exponent - digits, least_exponent);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -step)), step);
  return std::fabs(rounded) > largest ? std::copysign(INFINITY, x) : rounded;
}

double activate_fp64(double x, Activation activation, float a, float b) {
  a = parameter_a_of(activation, a);
  b = parameter_b_of(b);
  if (std::isnan(x)) return x;
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x <= 0.0 ? 0.0 : x;
    case Activation::leaky_relu:
      return x > 0.0 ? x : a * x;
    case Activation::gelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh:
      return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x / (1.0 + std::exp(-x));
    case Activation::sigmoid:
      return 1.0 / (1.0 + std::exp(-x));
    case Activation::tanh:
      return std::tanh(x);
    case Activation::hardswish:
      return x * std::clamp(x + 3.0, 0.0, 6.0) / 6.0;
    case Activation::clamp:
      return std::min(std::max(x, static_cast<double>(a)), static_cast<double>(b));
  }
  return x;
}

double finish_fp64(double sum, std::int64_t element, std::int64_t channels,
                   const EpilogueOperands& operands, DType output_dtype) {
  const Epilogue& e = operands.epilogue;
  const auto step = [&](double x) {
    return e.rounding == EpilogueRounding::each_step ? round_fp64(output_dtype, x) : x;
  };
  const auto with_residual = [&](double x) {
    if (operands.residual == nullptr || e.beta == 0.0f) return x;
    return step(x + step(static_cast<double>(e.beta) * operands.residual[element]));
  };
  double x = step(sum);
  x = step(static_cast<double>(e.scale) * x);
  if (operands.bias != nullptr) x = step(x + operands.bias[element % channels]);
  if (e.order == ResidualOrder::before_activation) x = with_residual(x);
  x = step(activate_fp64(x, e.activation, e.parameter_a, e.parameter_b));
  if (e.order == ResidualOrder::after_activation) x = with_residual(x);
  return x;
}

std::vector<float> apply_prologue(const ConvGeometry& g, const float* activation,
                                  const Prologue& prologue, DType dtype, double* error) {
  const std::int64_t channels = g.in_channels, pixels = g.in[0] * g.in[1] * g.in[2];
  double largest = 0.0;  // Of what a shift is added to.
  std::vector<float> out(static_cast<std::size_t>(g.activation_elements()));
  for (std::int64_t i = 0; i < g.activation_elements(); ++i) {
    const std::int64_t pixel = i / channels, channel = i % channels;
    double x = activation[i];
    switch (prologue.norm) {
      case PrologueNorm::none:
        break;
      case PrologueNorm::scale_shift: {
        const std::int64_t at = pixel / pixels * channels + channel;
        x *= static_cast<double>(prologue.scale[at]);
        largest = std::max(largest, std::abs(x));
        x += static_cast<double>(prologue.shift[at]);
        break;
      }
      case PrologueNorm::rms:
        x *= static_cast<double>(prologue.inverse_rms[pixel]) *
             static_cast<double>(prologue.scale[channel]);
        break;
    }
    x = activate_fp64(x, prologue.activation, NAN, NAN);
    out[static_cast<std::size_t>(i)] = static_cast<float>(round_fp64(dtype, x));
  }
  if (error != nullptr) {
    const bool cancels =
        prologue.activation == Activation::gelu || prologue.activation == Activation::gelu_tanh;
    // A product and a sum, each rounded; no activation is steeper than 1.13.
    *error = 1.25 * 0x1p-23 * (std::isfinite(largest) ? largest : 0.0) + (cancels ? 0x1p-20 : 0.0);
  }
  return out;
}

double activation_rounding(const PrologueKind& prologue, DType dtype, bool tf32) {
  if (!prologue.any()) return 0.0;
  if (dtype != DType::fp32) return 2.0 * half_ulp(dtype);
  return 0x1p-18 + (tf32 ? 0x1p-10 : 0.0);
}

double filter_rounding(const std::string& format, DType dtype) {
  if (format.starts_with("upsampled_phases_fast")) return half_ulp(dtype);
  if (format.starts_with("upsampled_phases_exact")) return half_ulp(dtype) * half_ulp(dtype);
  return 0.0;
}

Expectation expect(const ConvGeometry& g, const Operands& operands,
                   const EpilogueOperands& epilogue, DType output_dtype,
                   const ExpectOptions& options) {
  // The sum, and the sum of magnitudes that its rounding errors scale with.
  const std::vector<float> activation = magnitudes(operands.activation, g.activation_elements());
  const std::vector<float> cache = magnitudes(operands.cache, g.cache_elements());
  const std::vector<float> filter = magnitudes(operands.filter, g.filter_elements());
  const Operands absolute = {activation.data(), cache.data(), filter.data()};
  const bool by_loops = options.step > 1 || g.flops() <= options.most_fp64_flops;
  std::vector<double> sums;
  std::vector<double> sizes;
  if (by_loops) {
    sums = convolve_fp64(g, operands, options.step);
    sizes = convolve_fp64(g, absolute, options.step);
  } else {
    const std::vector<float> fast_sums = convolve_onednn(g, operands);
    const std::vector<float> fast_sizes = convolve_onednn(g, absolute);
    sums.assign(fast_sums.begin(), fast_sums.end());
    sizes.assign(fast_sizes.begin(), fast_sizes.end());
  }

  // NOTE: oneDNN is given the padding as zeros, and so multiplies it.
  const std::vector<bool> padding = meets_padding(g, operands, options.step);
  std::vector<const float*> inputs;
  for (std::size_t i = 0; !by_loops && i < padding.size(); ++i) {
    if (!padding[i]) continue;
    const std::int64_t element = static_cast<std::int64_t>(i), k = element % g.out_channels;
    gather_inputs(g, operands, element / g.out_channels, inputs);
    sums[i] = sum_fp64(g, operands, inputs, k);
    gather_inputs(g, absolute, element / g.out_channels, inputs);
    sizes[i] = sum_fp64(g, absolute, inputs, k);
  }

  // NOTE: tensor cores align and truncate the products of a K step of 16 before adding, so that
  // errors grow with the number of steps; 1/4 unit a term covers that and any order of fp32 adds.
  const double unit = 0x1p-24;
  double accumulation = unit * (8.0 + 0.25 * static_cast<double>(g.gemm_k()));
  if (!by_loops) accumulation *= 2.0;
  accumulation += options.filter_rounding + options.activation_rounding;

  const Epilogue& e = epilogue.epilogue;
  const std::int64_t channels = g.out_channels;
  // What an error of all elements that a filter meets comes to.
  std::vector<double> filter_sums(static_cast<std::size_t>(channels), 0.0);
  if (options.activation_error > 0.0) {
    for (std::size_t i = 0; i < filter.size(); ++i) {
      filter_sums[i / (filter.size() / filter_sums.size())] += static_cast<double>(filter[i]);
    }
  }
  Expectation expectation;
  expectation.step = options.step;
  expectation.value.resize(sums.size());
  expectation.bound.resize(sums.size());
  const auto note = [&](std::size_t i, Unusual unusual) {
    expectation.unusual.resize(sums.size());
    expectation.unusual[i] = unusual;
  };
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::int64_t element = static_cast<std::int64_t>(i) * options.step;
    expectation.value[i] = finish_fp64(sums[i], element, channels, epilogue, output_dtype);

    if (options.filter_rounding > 0.0 && !std::isfinite(sums[i])) {
      note(i, Unusual::not_finite);
    } else if (!padding.empty() && padding[i]) {
      note(i, Unusual::nan);
    }

    // Follow the error through the steps; `size` bounds the values on the way.
    const double step =
        e.rounding == EpilogueRounding::each_step ? 2.0 * half_ulp(output_dtype) : 4.0 * unit;
    const double added = epilogue.residual != nullptr && e.beta != 0.0f
                             ? static_cast<double>(e.beta) * epilogue.residual[element]
                             : 0.0;
    const double residual = std::fabs(added);
    const double bias = epilogue.bias != nullptr
                            ? std::fabs(static_cast<double>(epilogue.bias[element % channels]))
                            : 0.0;
    const double scaled = std::fabs(e.scale * sums[i]);
    const bool before = e.order == ResidualOrder::before_activation;
    double size = scaled + bias + (before ? residual : 0.0);
    const double element_error =
        options.activation_error * filter_sums[static_cast<std::size_t>(element % channels)];
    double error =
        std::fabs(static_cast<double>(e.scale)) * (accumulation * sizes[i] + element_error);
    error += step * (3.0 * size);
    error = error * steepest(e) + step * (size + (before ? 0.0 : 2.0 * residual));
    if (has_gate(e, output_dtype)) {
      const double activated = expectation.value[i] - (before ? 0.0 : added);
      error += kGateError * (0x1p-12 * std::fabs(activated) + 0x1p-20);
    }
    error += step * std::fabs(expectation.value[i]);
    error += half_ulp(output_dtype) * (std::fabs(expectation.value[i]) + error);
    error +=
        smallest_half_step(output_dtype) * (e.rounding == EpilogueRounding::each_step ? 8.0 : 1.0);
    expectation.bound[i] = error;
  }
  return expectation;
}

namespace {

/// Whether x is right for other reasons than the expected value.
bool is_excused(double x, const Expectation& expectation, std::size_t i) {
  if (expectation.unusual.empty()) return false;
  switch (expectation.unusual[i]) {
    case Unusual::none:
      return false;
    case Unusual::nan:
      return std::isnan(x);
    case Unusual::not_finite:
      return !std::isfinite(x);
  }
  return false;
}

}  // namespace

Comparison compare(const void* got, DType dtype, const Expectation& expectation) {
  const double largest = dtype == DType::fp16   ? 65504.0
                         : dtype == DType::bf16 ? 0x1.fep127
                                                : 0x1.fffffep127;
  Comparison result;
  double worst_ratio = -1.0;
  double error_square = 0.0;
  double value_square = 0.0;
  for (std::size_t i = 0; i < expectation.value.size(); ++i) {
    const std::int64_t element = static_cast<std::int64_t>(i) * expectation.step;
    const double x = load_element(got, element, dtype);
    const double wanted = expectation.value[i];
    const double bound = expectation.bound[i];
    double error = std::fabs(x - wanted);
    if (x == wanted || (std::isnan(x) && std::isnan(wanted))) error = 0.0;
    if (is_excused(x, expectation, i)) error = 0.0;
    // Values that the type cannot hold round to infinity.
    if (std::isinf(x) && x * wanted > 0.0 && std::fabs(wanted) + bound > largest) error = 0.0;
    // The bound of an infinity or a NaN is none, and an exact value needs none.
    const double ratio = error == 0.0 ? 0.0 : std::isnan(error) ? INFINITY : error / bound;
    if (!(ratio <= 1.0)) ++result.mismatches;
    if (ratio > worst_ratio) {
      worst_ratio = ratio;
      result.worst = element;
      result.worst_got = x;
      result.worst_expected = wanted;
      result.worst_bound = bound;
    }
    if (std::isfinite(error)) {
      result.max_error = std::max(result.max_error, error);
      error_square += error * error;
      value_square += std::isfinite(wanted) ? wanted * wanted : 0.0;
    }
  }
  result.pass = result.mismatches == 0;
  result.relative_error = value_square > 0.0 ? std::sqrt(error_square / value_square) : 0.0;
  return result;
}

std::string compare_exactly(const void* got, DType dtype, const Expectation& expectation) {
  for (std::size_t i = 0; i < expectation.value.size(); ++i) {
    const std::int64_t element = static_cast<std::int64_t>(i) * expectation.step;
    const double wanted = round_fp64(dtype, expectation.value[i]);
    const double x = load_element(got, element, dtype);
    if (is_excused(x, expectation, i)) continue;
    const bool same =
        std::isnan(wanted) ? std::isnan(x) : x == wanted && std::signbit(x) == std::signbit(wanted);
    if (!same) return text("element ", element, " is ", x, ", exactly ", wanted, " expected");
  }
  return {};
}

}  // namespace convoy::reference
