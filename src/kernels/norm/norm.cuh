// SPDX-License-Identifier: Apache-2.0
//
// What the two norms share on the device: vectors of channels, parameters, the activation.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "convoy/norm.hpp"
#include "kernels/common/epilogue.cuh"
#include "kernels/common/ptx.cuh"

namespace convoy::norm {

/// Channels that a thread moves in one access: 16 bytes, or one where C is no multiple of that.
template <typename Element>
constexpr int kNormVector = 16 / static_cast<int>(sizeof(Element));

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

/// kVec neighbours as they lie in memory.
template <typename Element, int kVec>
struct NormVector {
  static constexpr bool kWide = kVec * sizeof(Element) == 16;
  static_assert(kWide || kVec == 1);
  uint4 wide;
  Element single;

  __device__ __forceinline__ void load(const Element* from) {
    if constexpr (kWide) {
      wide = *reinterpret_cast<const uint4*>(from);
    } else {
      single = *from;
    }
  }
  /// The last time that these bytes are read.
  __device__ __forceinline__ void load_last(const Element* from) {
    if constexpr (kWide) {
      wide = __ldcs(reinterpret_cast<const uint4*>(from));
    } else {
      single = *from;
    }
  }
  /// `streaming`: the tensor is too large for the cache, whoever reads it next.
  __device__ __forceinline__ void store(Element* to, bool streaming) const {
    if constexpr (kWide) {
      if (streaming) {
        __stcs(reinterpret_cast<uint4*>(to), wide);
      } else {
        *reinterpret_cast<uint4*>(to) = wide;
      }
    } else {
      *to = single;
    }
  }
  __device__ __forceinline__ void widen(float (&v)[kVec]) const {
    if constexpr (!kWide) {
      v[0] = to_float(single);
    } else if constexpr (sizeof(Element) == 4) {
      v[0] = __uint_as_float(wide.x), v[1] = __uint_as_float(wide.y);
      v[2] = __uint_as_float(wide.z), v[3] = __uint_as_float(wide.w);
    } else {
      const std::uint32_t words[4] = {wide.x, wide.y, wide.z, wide.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack2<Element>(words[i]);
        v[2 * i] = pair.x, v[2 * i + 1] = pair.y;
      }
    }
  }
  __device__ __forceinline__ void narrow(const float (&v)[kVec]) {
    if constexpr (!kWide) {
      single = from_float<Element>(v[0]);
    } else if constexpr (sizeof(Element) == 4) {
      wide = make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                        __float_as_uint(v[3]));
    } else {
      wide = make_uint4(pack2<Element>(v[0], v[1]), pack2<Element>(v[2], v[3]),
                        pack2<Element>(v[4], v[5]), pack2<Element>(v[6], v[7]));
    }
  }
};

template <NormActivation kActivation, int kVec>
__device__ __forceinline__ void activate_norm(const EpilogueParams& params, float (&v)[kVec]) {
  if constexpr (kActivation == NormActivation::silu) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) v[i] = __fdividef(v[i], 1.0f + __expf(-v[i]));
  } else if constexpr (kActivation == NormActivation::any) {
    activate(params, v);
  }
}

/// Call `body.template operator()<kActivation>()`.
template <typename Body>
void dispatch_activation(Activation activation, Body&& body) {
  switch (activation) {
    case Activation::none:
      return body.template operator()<NormActivation::none>();
    case Activation::silu:
      return body.template operator()<NormActivation::silu>();
    default:
      return body.template operator()<NormActivation::any>();
  }
}

}  // namespace convoy::norm
