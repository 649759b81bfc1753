// SPDX-License-Identifier: Apache-2.0
//
// What most layers of networks end with, a bias and an activation of few instructions, for kernels
// that store from registers: applied to all of a thread's outputs at once. Everything else goes
// through `store_channels`, a vector at a time, out of code that is there once.
#pragma once

#include "kernels/common/output.cuh"

namespace convoy::small {

/// Whether the epilogue is at most such a bias and activation, in fp32.
inline bool is_short(const EpilogueParams& e) {
  const bool is_cheap = e.activation == Activation::none || e.activation == Activation::relu ||
                        e.activation == Activation::silu || e.activation == Activation::clamp ||
                        e.activation == Activation::hardswish;
  return e.scale == 1.0f && !e.has_residual && !e.round_each_step && is_cheap;
}

#ifdef __CUDACC__

/// The epilogue of kWidth channels of kPixels pixels, where it `is_short`, their bias as
/// `load_biases` gives it.
template <int kPixels, int kWidth>
__device__ __forceinline__ void apply_short_epilogue(const EpilogueParams& epilogue,
                                                     float (&v)[kPixels][kWidth],
                                                     const float (&bias)[kWidth]) {
#pragma unroll
  for (auto& pixel : v) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) pixel[i] += bias[i];
  }
  // NOTE: of an activation that the compiler knows, no other's code is there.
  const auto apply = [&](Activation activation) {
    EpilogueParams known = epilogue;
    known.activation = activation;
    known.round_each_step = false;
    activate(known, reinterpret_cast<float(&)[kPixels * kWidth]>(v));
  };
  switch (epilogue.activation) {
    case Activation::relu:
      return apply(Activation::relu);
    case Activation::silu:
      return apply(Activation::silu);
    case Activation::clamp:
      return apply(Activation::clamp);
    case Activation::hardswish:
      return apply(Activation::hardswish);
    default:
      return;
  }
}

/// The same of channels [channel, channel + kWidth), the bias read here.
template <int kPixels, int kWidth>
__device__ __forceinline__ void apply_short_epilogue(const EpilogueParams& epilogue,
                                                     float (&v)[kPixels][kWidth],
                                                     std::int64_t channel) {
  float bias[kWidth];
  load_biases(epilogue, bias, channel, kWidth);
  apply_short_epilogue(epilogue, v, bias);
}

#endif  // __CUDACC__

}  // namespace convoy::small
