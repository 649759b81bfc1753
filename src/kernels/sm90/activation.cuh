// SPDX-License-Identifier: Apache-2.0
//
// Activations and residuals of the short paths of the Hopper epilogue, on values in registers.
#pragma once

#include <type_traits>

#include "kernels/common/epilogue.cuh"
#include "kernels/common/gates.cuh"
#include "kernels/sm90/params.hpp"

namespace convoy::sm90 {

/// The larger of two values; NaN where either is.
__device__ __forceinline__ float larger(float x, float y) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
  return x;
}

/// The same of each half of two words.
template <typename Out>
__device__ __forceinline__ std::uint32_t larger_pair(std::uint32_t x, std::uint32_t y) {
  std::uint32_t both;
  if constexpr (std::is_same_v<Out, __nv_bfloat16>) {
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(both) : "r"(x), "r"(y));
  } else {
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(both) : "r"(x), "r"(y));
  }
  return both;
}

/// ReLU; a NaN passes through.
__device__ __forceinline__ float rectified(float x) {
  return larger(x, 0.0f);
}

/// Pairs of values as words of 16-bit outputs. EpiloguePath::linear: the larger of them and of
/// zero or minus infinity, which is ReLU without a branch.
template <typename Out, EpiloguePath kPath>
struct RoundedPairs {
  static constexpr bool kRectifies = kPath == EpiloguePath::linear;
  std::uint32_t lowest = 0;

  __device__ __forceinline__ explicit RoundedPairs(const Params& p) {
    if constexpr (kRectifies) {
      const float infinity = __int_as_float(0x7f800000);
      lowest = p.epilogue.activation == Activation::relu ? 0 : pack2<Out>(-infinity, -infinity);
    }
  }
  __device__ __forceinline__ std::uint32_t operator()(float x, float y) const {
    const std::uint32_t pair = pack2<Out>(x, y);
    if constexpr (!kRectifies) return pair;
    return larger_pair<Out>(pair, lowest);
  }
};

/// Forms of CurvedActivation.
__device__ __forceinline__ float leaky(const CurvedActivation& f, float x) {
  return x > 0.0f ? x : x * f.c[0];
}
template <bool kTimesX>
__device__ __forceinline__ float clamped(const CurvedActivation& f, float x) {
  // NOTE: .NaN, so that NaN passes through.
  float y = larger(fmaf(x, f.c[0], f.c[1]), f.c[2]);
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(y) : "f"(f.c[3]));
  return kTimesX ? x * y : y;
}
__device__ __forceinline__ float sigmoid(const CurvedActivation& f, float x) {
  const float y = fmaf(logistic(x * f.c[0]), f.scale, f.offset);
  return fabsf(x) < f.linear_to ? fmaf(x * x * x, -1.0f / 3.0f, x) : y;
}

/// The forms of straight pieces, leaky and clamp. `each(g)` makes g(x) of every x.
template <typename Each>
__device__ __forceinline__ void activate_straight(const CurvedActivation& f, const Each& each) {
  if (f.form == CurvedActivation::Form::leaky) {
    each([&](float x) { return leaky(f, x); });
  } else if (f.times_x) {
    each([&](float x) { return clamped<true>(f, x); });
  } else {
    each([&](float x) { return clamped<false>(f, x); });
  }
}

/// The forms by the special-function unit, gate and sigmoid.
template <typename Each>
__device__ __forceinline__ void activate_curve(const CurvedActivation& f, const Each& each) {
  if (f.form == CurvedActivation::Form::gate) {
    each([&](float x) { return x * logistic(gate_exponent(x, f.c)); });
  } else {
    each([&](float x) { return sigmoid(f, x); });
  }
}

/// A tile that is stored whole: by these paths without a residual, its activation applied to the
/// accumulators.
template <EpiloguePath kPath>
inline constexpr bool is_in_place =
    kPath == EpiloguePath::linear || kPath == EpiloguePath::plain || kPath == EpiloguePath::curved;

/// Tiles that are stored whole have a residual, none, or either, by path.
template <EpiloguePath kPath>
__device__ __forceinline__ bool tile_has_residual(const Params& p) {
  if constexpr (is_in_place<kPath>) return false;
  if constexpr (kPath == EpiloguePath::fused) return true;
  return p.epilogue.has_residual;
}

/// What scale and bias are multiplied by for activate_in_place.
template <EpiloguePath kPath>
__device__ __forceinline__ float in_place_factor(const Params& p) {
  const bool is_silu = kPath == EpiloguePath::plain && p.epilogue.activation == Activation::silu;
  return is_silu ? silu_exponent(1.0f) : 1.0f;
}

/// The activation of EpiloguePath::plain or curved. `each(f)` makes f(x) of every x, values times
/// in_place_factor.
// NOTE: in place, of accumulators: of copies of them, which a branch may have changed or not, ptxas
// spills hundreds of bytes.
template <EpiloguePath kPath, typename Each>
__device__ __forceinline__ void activate_in_place(const Params& p, const Each& each) {
  if constexpr (kPath == EpiloguePath::linear) return;  // RoundedPairs has what there is.
  if constexpr (kPath == EpiloguePath::curved) {
    activate_curve(p.activation, each);
    return;
  }
  if (p.epilogue.activation == Activation::none) return;
  if (p.epilogue.activation == Activation::relu) {
    each([](float x) { return rectified(x); });
  } else if (p.epilogue.activation == Activation::silu) {
    each([](float t) { return silu_of_exponent(t); });
  } else {
    activate_straight(p.activation, each);
  }
}

/// EpiloguePath::fused, statistics, and of split tiles curved, bias already added.
template <EpiloguePath kPath, int kCount, typename Source>
__device__ __forceinline__ void apply_fused_epilogue(const Params& p, bool has_residual,
                                                     float (&v)[kCount], const Source& source) {
  const bool first = p.epilogue.residual_first;
  const auto add_residual = [&] {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = fmaf(p.epilogue.beta, source(i), v[i]);
  };
  if (has_residual && first) add_residual();
  const auto each = [&](const auto& f) {
#pragma unroll
    for (float& x : v) x = f(x);
  };
  if constexpr (kPath == EpiloguePath::curved) {
    using Form = CurvedActivation::Form;
    const Form form = p.activation.form;
    if (form == Form::gate || form == Form::sigmoid) {
      activate_curve(p.activation, each);
    } else {
      activate_straight(p.activation, each);
    }
  } else if (p.epilogue.activation == Activation::silu) {
    each([](float x) { return x * logistic(silu_exponent(x)); });
  } else if (p.epilogue.activation == Activation::relu) {
    each([](float x) { return rectified(x); });
  } else if (kPath == EpiloguePath::fused && p.epilogue.activation == Activation::leaky_relu) {
    each([&](float x) { return leaky(p.activation, x); });
  }
  if (has_residual && !first) add_residual();
}

}  // namespace convoy::sm90
