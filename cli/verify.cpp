// SPDX-License-Identifier: Apache-2.0
#include "verify.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "progress.hpp"
#include "reference/reference.hpp"
#include "text.hpp"

namespace convoy::cli {
namespace {

/// Up to this many FLOP the reference is the fp64 loop, above it oneDNN in fp32 with twice the
/// bound.
constexpr double kMostLoopFlops = 4e9;

const float* floats(const io::HostTensor& tensor) {
  return reinterpret_cast<const float*>(tensor.bytes.data());
}

void round_to_tf32(io::HostTensor& tensor) {
  auto* const values = reinterpret_cast<float*>(tensor.bytes.data());
  std::transform(values, values + tensor.elements(), values, reference::round_to_tf32);
}

std::string position(std::int64_t index, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> at(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    at[axis] = index % shape[axis];
    index /= shape[axis];
  }
  return io::shape_to_string(at);
}

std::string describe_bound(const ConvGeometry& g, DType dtype, bool loops) {
  const char* roundoff = dtype == DType::bf16 ? "2^-8" : dtype == DType::fp16 ? "2^-11" : "2^-24";
  const double terms = (loops ? 1.0 : 2.0) * (8.0 + 0.25 * double(g.gemm_k()));
  return text(roundoff, " |y| (one rounding to ", to_string(dtype), ") + ", terms,
              " * 2^-24 sum|a w| (fp32 accumulation of ", g.gemm_k(), " products) + epilogue");
}

}  // namespace

Verification verify(const Layer& layer, const PlanInfo& info, const io::HostTensor& output,
                    const std::string& filter_format) {
  const Progress progress("verifying");
  const ConvGeometry g = geometry_of(layer.problem);
  Verification result;
  result.outputs = output.elements();
  const bool loops = g.flops() <= kMostLoopFlops;
  result.reference = loops ? "fp64 loops" : "oneDNN in fp32";
  result.bound = describe_bound(g, output.dtype, loops);
  const bool tf32 = info.tf32;
  const bool folded = filter_format.starts_with("upsampled_phases");
  const double filter_rounding =
      tf32 && folded ? 0x1p-11 : reference::filter_rounding(filter_format, layer.options.dtype);
  if (filter_rounding > 0.0) {
    result.bound += text(" + 2^", std::log2(filter_rounding), " sum|a w| (",
                         to_string(layer.options.upsample_folding), " folding of the upsampling)");
  }
  double activation_rounding = 0.0, activation_error = 0.0;
  if (layer.norm) {
    activation_rounding =
        reference::activation_rounding(layer.norm->kind(), layer.options.dtype, tf32);
    result.bound += text(" + 2^", std::log2(activation_rounding), " sum|a w| (normalised values)");
  }
  if (g.empty()) return result;

  // The operands as fp32, the filter as KTRSC.
  io::HostTensor ktrsc(layer.filter.dtype, layer.filter.shape);
  reference::to_ktrsc(ktrsc.bytes.data(), layer.filter.bytes.data(), ktrsc.dtype,
                      layer.filter_layout, g);
  io::HostTensor filter = io::convert(ktrsc, DType::fp32);
  io::HostTensor activation = io::convert(layer.activation, DType::fp32);
  if (layer.norm) {
    const std::vector<float> values =
        normalised(*layer.norm, g, floats(activation), layer.options.dtype, activation_error);
    if (activation_error > 0.0) {
      result.bound += text(" + ", activation_error, " sum|w| (what the norm and GELU cancel)");
    }
    std::copy(values.begin(), values.end(), reinterpret_cast<float*>(activation.bytes.data()));
  }
  io::HostTensor cache, residual;
  reference::Operands operands;
  operands.activation = floats(activation);
  operands.filter = floats(filter);
  if (layer.cache) {
    cache = io::convert(*layer.cache, DType::fp32);
    operands.cache = floats(cache);
  }
  reference::EpilogueOperands epilogue;
  epilogue.epilogue = layer.epilogue;
  if (layer.bias) epilogue.bias = floats(*layer.bias);
  if (layer.residual) {
    residual = io::convert(*layer.residual, DType::fp32);
    epilogue.residual = floats(residual);
  }
  const OutputShuffle& shuffle = layer.options.shuffle;
  std::vector<float> of_filters;
  if (layer.residual && shuffle.any()) {
    of_filters = reference::residual_of_filters(g, shuffle, floats(residual));
    epilogue.residual = of_filters.data();
  }

  // A kernel that multiplies as TF32 is judged by what it multiplies.
  if (tf32) {
    round_to_tf32(activation);
    if (layer.cache) round_to_tf32(cache);
    if (!folded) round_to_tf32(filter);
  }
  reference::Expectation expected = reference::expect(g, operands, epilogue, output.dtype,
                                                      {.most_fp64_flops = kMostLoopFlops,
                                                       .filter_rounding = filter_rounding,
                                                       .activation_rounding = activation_rounding,
                                                       .activation_error = activation_error});
  if (shuffle.any()) expected = reference::shuffled(g, shuffle, expected);
  const reference::Comparison found =
      reference::compare(output.bytes.data(), output.dtype, expected);
  result.passed = found.pass;
  result.failures = found.mismatches;
  result.max_error = found.max_error;
  result.rms_error = found.relative_error;
  const double worst_error = std::fabs(found.worst_got - found.worst_expected);
  result.worst_of_bound = worst_error > 0 ? worst_error / found.worst_bound : 0.0;
  result.worst = text(position(found.worst, output.shape), ": ", found.worst_got, ", reference ",
                      found.worst_expected, ", bound ", found.worst_bound);
  return result;
}

}  // namespace convoy::cli
