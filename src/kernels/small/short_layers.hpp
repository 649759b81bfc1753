// SPDX-License-Identifier: Apache-2.0
//
// What the kernels whose stores know short epilogues alone ask of a layer.
#pragma once

#include <string>

#include "core/candidate.hpp"
#include "core/checked.hpp"
#include "core/text.hpp"
#include "kernels/common/short_epilogue.cuh"

namespace convoy::small {

/// Why the layer's types or its epilogue are not for such a kernel, or it has groups; empty if they
/// are.
inline std::string short_layer_refusal(const PlanRequest& request) {
  if (request.dtype == DType::fp32) return "dtype = fp32; legal: bf16 or fp16";
  if (request.output_dtype != request.dtype) {
    return text("output_dtype = ", to_string(request.output_dtype), "; legal: dtype, ",
                to_string(request.dtype));
  }
  if (!is_short(request.epilogue, request.output_dtype)) {
    return text("epilogue = ", to_string(request.epilogue),
                "; legal: none, relu, leaky_relu, silu, clamp, hardswish, gelu, gelu_tanh, rounded "
                "once");
  }
  if (request.geometry.groups != 1) return text("groups = ", request.geometry.groups, "; legal: 1");
  return {};
}

/// Why a number of channels is no multiple of `multiple`; empty if it is.
inline std::string channels_refusal(const char* name, std::int64_t channels,
                                    std::int64_t multiple) {
  if (channels % multiple == 0) return {};
  return text(name, " = ", channels, "; legal: a multiple of ", multiple,
              "; nearest: ", round_up(channels, multiple));
}

/// An activation of some twenty instructions.
constexpr bool is_curved(Activation activation) {
  return activation == Activation::silu || activation == Activation::gelu ||
         activation == Activation::gelu_tanh;
}

}  // namespace convoy::small
