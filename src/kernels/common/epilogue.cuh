// SPDX-License-Identifier: Apache-2.0
//
// What happens between the fp32 accumulator and the store: the run-time epilogue (scale, bias,
// activation, residual) is one function over a thread's values.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/common/epilogue_params.hpp"
#include "kernels/common/gates.cuh"

namespace convoy {

// ---- Conversions ----------------------------------------------------------------------------

template <typename Out>
__device__ __forceinline__ Out from_float(float x);
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}

__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(__half x) {
  return __half2float(x);
}
__device__ __forceinline__ float to_float(float x) {
  return x;
}

/// Two neighbours as one 32-bit register, the first in the low half, and back.
template <typename Out>
__device__ __forceinline__ std::uint32_t pack2(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t pack2<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
template <>
__device__ __forceinline__ std::uint32_t pack2<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
template <typename Out>
__device__ __forceinline__ float2 unpack2(std::uint32_t pair);
template <>
__device__ __forceinline__ float2 unpack2<__nv_bfloat16>(std::uint32_t pair) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
}
template <>
__device__ __forceinline__ float2 unpack2<__half>(std::uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

/// Call `body`, a template on the element type: Element, or with kEither __half where `is_fp16`.
// NOTE: a uniform branch around work on several values: one machine code for both 16-bit types
// takes less to build than two. For warps that nobody waits for (docs/lab/2026-11-29-tiles.md).
template <typename Element, bool kEither, typename Body>
__device__ __forceinline__ void with_either_half(bool is_fp16, const Body& body) {
  if constexpr (kEither) {
    if (is_fp16) {
      body.template operator()<__half>();
      return;
    }
  }
  body.template operator()<Element>();
}

/// x as it comes back from memory of the output type.
template <typename Out>
__device__ __forceinline__ float rounded(float x) {
  return to_float(from_float<Out>(x));
}

/// Rounds values as memory of the output does, of a type that the compiler knows,
template <typename Out>
struct RoundTo {
  static constexpr bool is_16_bit() { return sizeof(Out) == 2; }
  template <int kCount>
  __device__ __forceinline__ void operator()(float (&v)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = rounded<Out>(v[i]);
  }
};
/// and of one that a launch says: code that is there once for all types.
struct RoundToDType {
  DType dtype;
  __device__ __forceinline__ bool is_16_bit() const { return dtype != DType::fp32; }
  template <int kCount>
  __device__ __forceinline__ void operator()(float (&v)[kCount]) const {
    if (dtype == DType::bf16) {
      RoundTo<__nv_bfloat16>{}(v);
    } else if (dtype == DType::fp16) {
      RoundTo<__half>{}(v);
    }
  }
};

/// How to round to Element, or with kEither to fp16 where `is_fp16`.
template <typename Element, bool kEither>
__device__ __forceinline__ auto round_to_either_half(bool is_fp16) {
  if constexpr (kEither) {
    return RoundToDType{is_fp16 ? DType::fp16 : DType::bf16};
  } else {
    return RoundTo<Element>{};
  }
}

/// Element i of the bias.
/// NOTE: not __ldg, which for 16-bit types is assembly that the compiler takes out of a loop and
/// past the condition that a bias exists.
__device__ __forceinline__ float load_bias(const EpilogueParams& params, int i) {
  switch (params.bias_dtype) {
    case DType::bf16:
      return to_float(static_cast<const __nv_bfloat16*>(params.bias)[i]);
    case DType::fp16:
      return to_float(static_cast<const __half*>(params.bias)[i]);
    default:
      return static_cast<const float*>(params.bias)[i];
  }
}

// ---- The run-time epilogue ------------------------------------------------------------------

/// Apply the activation to all values. One uniform branch per call, so call it on several values.
/// NOTE: the formulas and the accurate exp, erf, tanh are those of unfused frameworks, so that
/// EpilogueRounding::each_step can reproduce their bits. SiLU, which decoders run on every layer,
/// uses the fast exp and division (relative error some 1e-6) where that promise is not asked for;
/// GELU its gate where the values are rounded to 16 bits (`is_16_bit`).
// NOTE: this code is in most kernels: both GELUs share their gate.
template <int kCount>
__device__ __forceinline__ void activate(const EpilogueParams& params, float (&v)[kCount],
                                         bool is_16_bit = false) {
  const auto map = [&v](const auto& function) {
#pragma unroll
    for (float& x : v) x = function(x);
  };
  switch (params.activation) {
    case Activation::none:
      break;
    case Activation::relu:
      // NOTE: !(x <= 0) rather than x > 0, so that NaN passes through.
      map([](float x) { return x <= 0.0f ? 0.0f : x; });
      break;
    case Activation::leaky_relu:
      // NOTE: not x > 0 ? x : a·x, whose product the compiler may branch around.
      map([&](float x) { return x * (x > 0.0f ? 1.0f : params.parameter_a); });
      break;
    case Activation::gelu:
    case Activation::gelu_tanh:
      if (is_16_bit && !params.round_each_step) {
        map([&](float x) { return gelu_of(x, params.gelu); });
      } else if (params.activation == Activation::gelu) {
        map([](float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); });
      } else {
        map([](float x) {
          return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
        });
      }
      break;
    case Activation::silu:
      if (params.round_each_step) {
        map([](float x) { return x / (1.0f + expf(-x)); });
      } else {
        map([](float x) { return __fdividef(x, 1.0f + __expf(-x)); });
      }
      break;
    case Activation::sigmoid:
      map([](float x) { return 1.0f / (1.0f + expf(-x)); });
      break;
    case Activation::tanh:
      map([](float x) { return tanhf(x); });
      break;
    case Activation::hardswish:
      map([](float x) { return x * fminf(fmaxf(x + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f); });
      break;
    case Activation::clamp:
      map([&](float x) {
        const float low = x < params.parameter_a ? params.parameter_a : x;
        return low > params.parameter_b ? params.parameter_b : low;
      });
      break;
  }
}

/// D = activation(scale·v + bias) + beta·source, or with `residual_first` the sum inside, rounded
/// by `round`, a RoundTo or RoundToDType, after every step where `round_each_step` asks for it.
/// `bias(i)` and `source(i)` give the values that go with v[i]; they are called only where the
/// parameters say that they exist. The result is not yet rounded for the store.
template <typename Round, int kCount, typename Bias, typename Source>
__device__ __forceinline__ void apply_epilogue(const Round& round, const EpilogueParams& params,
                                               float (&v)[kCount], const Bias& bias,
                                               const Source& source) {
  const auto round_all = [&] {
    if (params.round_each_step) round(v);
  };
  const auto add_residual = [&] {
    if (!params.has_residual) return;
    if (params.round_each_step) {
      round(v);
      float added[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) added[i] = params.beta * source(i);
      round(added);
#pragma unroll
      for (int i = 0; i < kCount; ++i) v[i] += added[i];
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) v[i] = fmaf(params.beta, source(i), v[i]);
    }
  };
  round_all();
  if (params.scale != 1.0f) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] *= params.scale;
    round_all();
  }
  if (params.bias != nullptr) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] += bias(i);
    round_all();
  }
  if (params.residual_first) add_residual();
  if (params.activation != Activation::none) {
    round_all();
    activate(params, v, round.is_16_bit());
  }
  if (!params.residual_first) add_residual();
}

}  // namespace convoy
