// SPDX-License-Identifier: Apache-2.0
//
// What the two norms share on the device: parameters, the activation.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "convoy/norm.hpp"
#include "kernels/common/channel_vector.cuh"
#include "kernels/common/epilogue.cuh"
#include "kernels/common/ptx.cuh"

namespace convoy::norm {

/// What a norm kernel is told of its parameters, by value.
struct NormParameters {
  const void* scale = nullptr;
  const void* bias = nullptr;
  DType dtype = DType::fp32;
  EpilogueParams epilogue;  ///< The activation and its values only.

  NormParameters() = default;
  NormParameters(const NormArguments& arguments, const NormOptions& options)
      : scale(arguments.scale), bias(arguments.bias), dtype(options.parameter_dtype) {
    epilogue.activation = options.activation;
    epilogue.parameter_a = parameter_a_of(options.activation, arguments.parameter_a);
    epilogue.parameter_b = parameter_b_of(arguments.parameter_b);
  }
};

/// The activations that kernels are compiled for: the rest is chosen at run time.
enum class NormActivation { none, silu, any };

__device__ __forceinline__ float load_parameter(const void* from, DType dtype, int i,
                                                float otherwise) {
  if (from == nullptr) return otherwise;
  switch (dtype) {
    case DType::bf16:
      return to_float(__ldg(static_cast<const __nv_bfloat16*>(from) + i));
    case DType::fp16:
      return to_float(__ldg(static_cast<const __half*>(from) + i));
    default:
      return __ldg(static_cast<const float*>(from) + i);
  }
}

template <NormActivation kActivation, int kVec>
__device__ __forceinline__ void activate_norm(const EpilogueParams& params, float (&v)[kVec]) {
  if constexpr (kActivation == NormActivation::silu) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) v[i] = __fdividef(v[i], 1.0f + __expf(-v[i]));
  } else if constexpr (kActivation == NormActivation::any) {
    activate(params, v);
  }
}

/// Which code applies this activation.
constexpr NormActivation norm_activation(Activation activation) {
  switch (activation) {
    case Activation::none:
      return NormActivation::none;
    case Activation::silu:
      return NormActivation::silu;
    default:
      return NormActivation::any;
  }
}

/// Call `body.template operator()<kActivation>()`.
template <typename Body>
void dispatch_activation(Activation activation, Body&& body) {
  switch (norm_activation(activation)) {
    case NormActivation::none:
      return body.template operator()<NormActivation::none>();
    case NormActivation::silu:
      return body.template operator()<NormActivation::silu>();
    case NormActivation::any:
      return body.template operator()<NormActivation::any>();
  }
}

}  // namespace convoy::norm
