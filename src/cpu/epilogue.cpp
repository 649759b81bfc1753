// SPDX-License-Identifier: Apache-2.0
#include "cpu/epilogue.hpp"

#include <algorithm>
#include <cmath>

#include "cpu/convert.hpp"
#include "cpu/simd.hpp"
#include "cpu/vector_math.hpp"

namespace convoy::cpu {
namespace {

CONVOY_VECTOR_CLONES
void multiply(float* values, float factor, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) values[i] *= factor;
}

CONVOY_VECTOR_CLONES
void add(float* values, const float* other, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) values[i] += other[i];
}

// Comparisons are written so that a NaN fails them and stays.
CONVOY_VECTOR_CLONES
void relu(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = values[i] <= 0.0f ? 0.0f : values[i];
}

CONVOY_VECTOR_CLONES
void leaky_relu(float* values, float slope, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    values[i] = values[i] > 0.0f ? values[i] : slope * values[i];
  }
}

CONVOY_VECTOR_CLONES
void gelu(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float x = values[i];
    values[i] = 0.5f * x * (1.0f + vector_erf(x * 0.70710678f));
  }
}

CONVOY_VECTOR_CLONES
void gelu_tanh(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float x = values[i];
    // 1/2·(1 + tanh u) = sigmoid(2u), without the cancellation for large negative u.
    const float u = 0.79788456f * (x + 0.044715f * x * x * x);
    values[i] = x * vector_sigmoid(2.0f * u);
  }
}

CONVOY_VECTOR_CLONES
void silu(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) values[i] /= 1.0f + vector_exp(-values[i]);
}

CONVOY_VECTOR_CLONES
void sigmoid(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = vector_sigmoid(values[i]);
}

CONVOY_VECTOR_CLONES
void tanh(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = vector_tanh(values[i]);
}

CONVOY_VECTOR_CLONES
void hardswish(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    float gate = values[i] + 3.0f;
    gate = gate < 0.0f ? 0.0f : gate;
    gate = gate > 6.0f ? 6.0f : gate;
    values[i] = values[i] * gate / 6.0f;
  }
}

CONVOY_VECTOR_CLONES
void clamp(float* values, float low, float high, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    float x = values[i];
    x = x < low ? low : x;
    values[i] = x > high ? high : x;
  }
}

/// The steps of one piece, `count` <= kEpiloguePiece values in place.
void finish_piece(float* values, void* output, DType dtype, std::int64_t first, std::int64_t count,
                  const Epilogue& epilogue, const float* bias) {
  const bool each_step = epilogue.rounding == EpilogueRounding::each_step && dtype != DType::fp32;
  const auto round_step = [&](float* step) {
    if (each_step) round_in_place(step, dtype, count);
  };
  const auto add_residual = [&] {
    if (epilogue.residual == nullptr || epilogue.beta == 0.0f) return;
    float residual[kEpiloguePiece];
    const auto* bytes = static_cast<const char*>(epilogue.residual);
    widen(residual, bytes + first * static_cast<std::int64_t>(size_of(dtype)), dtype, count);
    if (epilogue.beta != 1.0f) {
      multiply(residual, epilogue.beta, count);
      round_step(residual);
    }
    add(values, residual, count);
    round_step(values);
  };

  round_step(values);
  if (epilogue.scale != 1.0f) {
    multiply(values, epilogue.scale, count);
    round_step(values);
  }
  if (bias != nullptr) {
    add(values, bias, count);
    round_step(values);
  }
  if (epilogue.order == ResidualOrder::before_activation) add_residual();
  if (epilogue.activation != Activation::none) {
    activate(values, count, epilogue.activation, epilogue.parameter_a, epilogue.parameter_b);
    round_step(values);
  }
  if (epilogue.order == ResidualOrder::after_activation) add_residual();
  narrow(static_cast<char*>(output) + first * static_cast<std::int64_t>(size_of(dtype)), values,
         dtype, count);
}

}  // namespace

void activate(float* values, std::int64_t count, Activation activation, float a, float b) {
  a = parameter_a_of(activation, a);
  b = parameter_b_of(b);
  switch (activation) {
    case Activation::none:
      return;
    case Activation::relu:
      return relu(values, count);
    case Activation::leaky_relu:
      return leaky_relu(values, a, count);
    case Activation::gelu:
      return gelu(values, count);
    case Activation::gelu_tanh:
      return gelu_tanh(values, count);
    case Activation::silu:
      return silu(values, count);
    case Activation::sigmoid:
      return sigmoid(values, count);
    case Activation::tanh:
      return tanh(values, count);
    case Activation::hardswish:
      return hardswish(values, count);
    case Activation::clamp:
      return clamp(values, a, b, count);
  }
}

void tile_bias(float* table, const void* bias, DType dtype, std::int64_t channels) {
  widen(table, bias, dtype, channels);
  for (std::int64_t i = channels; i < bias_table_floats(channels); ++i) {
    table[i] = table[i - channels];
  }
}

void apply_epilogue(float* accumulators, void* output, DType dtype, std::int64_t first,
                    std::int64_t count, std::int64_t channels, const Epilogue& epilogue,
                    const float* bias_table) {
#pragma omp parallel for schedule(static)
  for (std::int64_t begin = 0; begin < count; begin += kEpiloguePiece) {
    const std::int64_t piece = std::min(kEpiloguePiece, count - begin);
    const float* bias = bias_table == nullptr ? nullptr : bias_table + (first + begin) % channels;
    finish_piece(accumulators + begin, output, dtype, first + begin, piece, epilogue, bias);
  }
}

}  // namespace convoy::cpu
