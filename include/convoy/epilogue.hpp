// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <optional>
#include <string>

#include "convoy/export.h"
#include "convoy/tensor.hpp"
#include "convoy/types.hpp"

namespace convoy {

/// Pointwise functions of the epilogue, on fp32. `parameter_a/b` are Epilogue's. NaN stays NaN.
enum class Activation : int {
  none = 0,
  relu = 1,        ///< max(x, 0)
  leaky_relu = 2,  ///< x > 0 ? x : parameter_a·x
  gelu = 3,        ///< x/2·(1 + erf(x/√2))
  gelu_tanh = 4,   ///< x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
  silu = 5,        ///< x / (1 + exp(−x))
  sigmoid = 6,     ///< 1 / (1 + exp(−x))
  tanh = 7,        ///< tanh(x)
  hardswish = 8,   ///< x·min(max(x + 3, 0), 6) / 6
  clamp = 9,       ///< min(max(x, parameter_a), parameter_b)
};
/// The enumerator's name, "silu".
CONVOY_API const char* to_string(Activation activation) noexcept;

/// What Epilogue::parameter_a stands for: the given value, or the activation's default for NaN.
constexpr float parameter_a_of(Activation activation, float given) {
  if (given == given) return given;
  return activation == Activation::clamp ? 0.0f : 0.01f;
}
/// What Epilogue::parameter_b stands for: the given value, or the default for NaN.
constexpr float parameter_b_of(float given) {
  return given == given ? given : 6.0f;
}

/// Where the residual joins.
enum class ResidualOrder : int {
  after_activation = 0,   ///< D = activation(scale·conv + bias) + beta·C, the default.
  before_activation = 1,  ///< D = activation(scale·conv + bias + beta·C)
};
/// The enumerator's name.
CONVOY_API const char* to_string(ResidualOrder order) noexcept;

/// Where values are rounded to the output type.
enum class EpilogueRounding : int {
  once = 0,       ///< fp32 throughout, one rounding at the store, the default.
  each_step = 1,  ///< After the convolution, scale, bias, activation, beta·C and the sum: the bits
                  ///< that a chain of separate kernels in the output type gives.
};
/// The enumerator's name.
CONVOY_API const char* to_string(EpilogueRounding rounding) noexcept;

/// The part of an Epilogue that chooses the kernel; values and pointers may change from run to run.
struct EpilogueKind {
  bool bias = false;                                      ///< A run brings a bias.
  DType bias_dtype = DType::fp32;                         ///< Type of the bias.
  Activation activation = Activation::none;               ///< The pointwise function.
  bool residual = false;                                  ///< A run brings a residual.
  ResidualOrder order = ResidualOrder::after_activation;  ///< Where the residual joins.
  EpilogueRounding rounding = EpilogueRounding::once;     ///< Where values are rounded.

  /// All fields are equal.
  friend bool operator==(const EpilogueKind&, const EpilogueKind&) = default;
};

/// The steps in their order: "bias_fp32+silu+residual",
/// "residual_before_activation+relu+each_step"; "none" where nothing is done.
CONVOY_API std::string to_string(const EpilogueKind& kind);

/// What happens between the fp32 accumulator and the store:
/// D = activation(scale·conv + bias) + beta·C, or with `before_activation` the sum inside.
struct Epilogue {
  float scale = 1.0f;                        ///< Multiplies the convolution's sum.
  const void* bias = nullptr;                ///< [K] of `bias_dtype`, or null for none.
  DType bias_dtype = DType::fp32;            ///< Type of the bias.
  Activation activation = Activation::none;  ///< The pointwise function.
  /// leaky_relu: slope, by default 0.01; clamp: lower bound, by default 0. NaN: the default.
  float parameter_a = std::numeric_limits<float>::quiet_NaN();
  /// clamp: upper bound, by default 6. NaN: the default.
  float parameter_b = std::numeric_limits<float>::quiet_NaN();
  /// C: same shape and type as the output, or null for none. It may be the output itself.
  const void* residual = nullptr;
  float beta = 1.0f;  ///< With beta == 0 the residual is never read.
  ResidualOrder order = ResidualOrder::after_activation;  ///< Where the residual joins.
  EpilogueRounding rounding = EpilogueRounding::once;     ///< Where values are rounded.
  /// Shape of C where the caller wants it checked: one that differs from the output's is an
  /// Error{invalid_argument}.
  std::optional<TensorShape> residual_shape{};

  /// What PlanOptions::epilogue needs of it.
  EpilogueKind kind() const {
    return {.bias = bias != nullptr,
            .bias_dtype = bias_dtype,
            .activation = activation,
            .residual = residual != nullptr,
            .order = order,
            .rounding = rounding};
  }
};

/// The same with those values that are not 1: "scale(0.5)+bias_fp32+clamp(-1,6)+residual(0.25)".
CONVOY_API std::string to_string(const Epilogue& epilogue);

}  // namespace convoy
