// SPDX-License-Identifier: Apache-2.0
//
// What most layers of networks end with, a bias, an activation of few instructions and a residual,
// for kernels that store from registers: applied to all of a thread's outputs at once. Everything
// else goes through `store_channels`, a vector at a time, out of code that is there once.
#pragma once

#include <type_traits>

#include "kernels/common/output.cuh"

namespace convoy {

/// Whether the activation is of few instructions, for outputs of `dtype`: the GELUs are those that
/// 16 bits hide (common/gates.hpp).
constexpr bool is_short(Activation activation, DType dtype) {
  switch (activation) {
    case Activation::none:
    case Activation::relu:
    case Activation::leaky_relu:
    case Activation::silu:
    case Activation::clamp:
    case Activation::hardswish:
      return true;
    case Activation::gelu:
    case Activation::gelu_tanh:
      return dtype != DType::fp32;
    default:
      return false;
  }
}

/// Whether the epilogue is at most such steps, in fp32.
constexpr bool is_short(const EpilogueParams& e, DType dtype) {
  return e.scale == 1.0f && !e.round_each_step && is_short(e.activation, dtype);
}
constexpr bool is_short(const EpilogueKind& e, DType dtype) {
  return e.rounding == EpilogueRounding::once && is_short(e.activation, dtype);
}

/// Whether a kernel whose short code takes no residual, and filters in fours, stores by it.
inline bool is_stored_short(const PlanRequest& request) {
  return request.output_dtype == request.dtype && request.geometry.out_channels % 4 == 0 &&
         !request.epilogue.residual && is_short(request.epilogue, request.output_dtype);
}

#ifdef __CUDACC__

/// In place of `element` below: there is no residual.
struct NoResidual {
  __device__ std::int64_t operator()(int) const { return -1; }
};

/// The activation of an epilogue that `is_short`, of outputs of Element.
template <typename Element, int kCount>
__device__ __forceinline__ void apply_short_activation(const EpilogueParams& epilogue,
                                                       float (&v)[kCount]) {
  // NOTE: of an activation that the compiler knows, no other's code is there.
  const auto apply = [&](Activation activation) {
    EpilogueParams known = epilogue;
    known.activation = activation;
    known.round_each_step = false;
    activate(known, v, sizeof(Element) == 2);
  };
  switch (epilogue.activation) {
    case Activation::relu:
      apply(Activation::relu);
      break;
    case Activation::leaky_relu:
      apply(Activation::leaky_relu);
      break;
    case Activation::silu:
      apply(Activation::silu);
      break;
    case Activation::clamp:
      apply(Activation::clamp);
      break;
    case Activation::hardswish:
      apply(Activation::hardswish);
      break;
    case Activation::gelu:
    case Activation::gelu_tanh:  // The same code, of another gate.
      if constexpr (sizeof(Element) == 2) apply(Activation::gelu);
      break;
    default:
      break;
  }
}

/// The epilogue of kWidth channels of kPixels pixels, where it `is_short`, their bias as
/// `load_biases` gives it. `element(i)`: where v[i] goes in an output of Element, a multiple of
/// kWidth, or below zero where it goes nowhere.
template <typename Element, int kPixels, int kWidth, typename ElementOf>
__device__ __forceinline__ void apply_short_epilogue(const ConvOutput& out,
                                                     float (&v)[kPixels][kWidth],
                                                     const float (&bias)[kWidth],
                                                     const ElementOf& element) {
  using Vector = OutputVector<Element, kWidth>;
  const EpilogueParams& epilogue = out.epilogue;
  const bool has_residual = !std::is_same_v<ElementOf, NoResidual> && epilogue.has_residual;
  const auto add_residual = [&] {
    Vector residual[kPixels];
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      const std::int64_t at = element(i);
      if (at >= 0) {
        residual[i] =
            *reinterpret_cast<const Vector*>(static_cast<const Element*>(out.residual) + at);
      }
    }
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        v[i][j] = fmaf(epilogue.beta, to_float(residual[i].values[j]), v[i][j]);
      }
    }
  };
#pragma unroll
  for (auto& pixel : v) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) pixel[i] += bias[i];
  }
  if (has_residual && epilogue.residual_first) add_residual();
  apply_short_activation<Element>(epilogue, reinterpret_cast<float(&)[kPixels * kWidth]>(v));
  if (has_residual && !epilogue.residual_first) add_residual();
}

/// The same of channels [channel, channel + kWidth), the bias read here.
template <typename Element, int kPixels, int kWidth, typename ElementOf>
__device__ __forceinline__ void apply_short_epilogue(const ConvOutput& out,
                                                     float (&v)[kPixels][kWidth],
                                                     std::int64_t channel,
                                                     const ElementOf& element) {
  float bias[kWidth];
  load_biases(out.epilogue, bias, channel, kWidth);
  apply_short_epilogue<Element>(out, v, bias, element);
}

/// A short epilogue with a scale, of kWidth channels of kPixels pixels: -0 in `bias` where there is
/// none, `residual` in pairs. kResidual: there may be one.
template <typename Element, bool kResidual, int kPixels, int kWidth>
__device__ __forceinline__ void apply_scaled_short_epilogue(
    const EpilogueParams& epilogue, float (&v)[kPixels][kWidth], const float (&bias)[kWidth],
    const std::uint32_t (&residual)[kPixels][kWidth / 2]) {
#pragma unroll
  for (int i = 0; i < kPixels * kWidth; ++i) {
    float& value = v[i / kWidth][i % kWidth];
    value = fmaf(value, epilogue.scale, bias[i % kWidth]);
  }
  const auto add_residual = [&] {
#pragma unroll
    for (int i = 0; i < kPixels * kWidth; ++i) {
      const float2 pair = unpack2<Element>(residual[i / kWidth][i % kWidth / 2]);
      float& value = v[i / kWidth][i % kWidth];
      value = fmaf(epilogue.beta, i % 2 == 0 ? pair.x : pair.y, value);
    }
  };
  const bool has_residual = kResidual && epilogue.has_residual;
  if (has_residual && epilogue.residual_first) add_residual();
  apply_short_activation<Element>(epilogue, reinterpret_cast<float(&)[kPixels * kWidth]>(v));
  if (has_residual && !epilogue.residual_first) add_residual();
}

/// A thread's outputs by value, for a function that is not inlined.
template <int kPixels, int kWidth>
struct ShortOutputs {
  float values[kPixels][kWidth];
};

/// Short epilogue with a residual, and the stores: pixel i of `count` at element `first` +
/// i · step, its channels from `channel` on.
// NOTE: a function of its own. Where rows and filters lie in registers, its code, inlined, costs
// layers without a residual 2 to 3 %.
template <typename Element, int kPixels, int kWidth>
__device__ __noinline__ void store_short_with_residual(const ConvOutput& out,
                                                       ShortOutputs<kPixels, kWidth> outputs,
                                                       std::int64_t first, std::int64_t step,
                                                       int count, std::int64_t channel) {
  using Vector = OutputVector<Element, kWidth>;
  const auto element = [&](int i) { return i < count ? first + i * step : -1; };
  apply_short_epilogue<Element>(out, outputs.values, channel, element);
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    if (i >= count) break;
    Vector stored;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) stored.values[j] = from_float<Element>(outputs.values[i][j]);
    *reinterpret_cast<Vector*>(static_cast<Element*>(out.data) + element(i)) = stored;
  }
}

/// The same of values that lie in an array.
template <typename Element, int kPixels, int kWidth>
__device__ __forceinline__ void store_short_with_residual(const ConvOutput& out,
                                                          const float (&v)[kPixels][kWidth],
                                                          std::int64_t first, std::int64_t step,
                                                          int count, std::int64_t channel) {
  ShortOutputs<kPixels, kWidth> outputs;
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) outputs.values[i][j] = v[i][j];
  }
  store_short_with_residual<Element>(out, outputs, first, step, count, channel);
}

#endif  // __CUDACC__

}  // namespace convoy
