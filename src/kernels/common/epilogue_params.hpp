// SPDX-License-Identifier: Apache-2.0
//
// The epilogue as a launch is told of it. Compile-time ops are functors that a user gives as
// template arguments; here are those that do nothing.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "convoy/epilogue.hpp"
#include "kernels/common/gates.hpp"

namespace convoy {

/// convoy::Epilogue as the kernels carry it, by value.
struct EpilogueParams {
  const void* bias = nullptr;
  float scale = 1.0f;
  float beta = 0.0f;
  float parameter_a = 0.0f;
  float parameter_b = 0.0f;
  Activation activation = Activation::none;
  DType bias_dtype = DType::fp32;
  bool has_residual = false;     ///< A residual pointer is given and beta != 0.
  bool residual_first = false;   ///< ResidualOrder::before_activation
  bool round_each_step = false;  ///< EpilogueRounding::each_step
  GatePolynomial gelu;           ///< Where the activation is one.

  EpilogueParams() = default;
  explicit EpilogueParams(const Epilogue& epilogue)
      : bias(epilogue.bias),
        scale(epilogue.scale),
        beta(epilogue.beta),
        parameter_a(parameter_a_of(epilogue.activation, epilogue.parameter_a)),
        parameter_b(parameter_b_of(epilogue.parameter_b)),
        activation(epilogue.activation),
        bias_dtype(epilogue.bias != nullptr ? epilogue.bias_dtype : DType::fp32),
        has_residual(epilogue.residual != nullptr && epilogue.beta != 0.0f),
        residual_first(epilogue.order == ResidualOrder::before_activation),
        round_each_step(epilogue.rounding == EpilogueRounding::each_step),
        gelu(gelu_gate(epilogue.activation)) {}
};

/// The compute op that does nothing. A compute op maps values in place, before the store:
/// `void operator()(std::int64_t m, int n, float (&values)[kWidth]) const`, where m is the output
/// pixel (n·Z·P·Q order), n the first filter and kWidth the number of consecutive filters: 2 where
/// the op runs on accumulator registers, 8 (4 for fp32 outputs) where it runs on the tile staged in
/// shared memory (`kOnRegisters = false`), which then holds values already rounded to the output
/// type.
struct NoComputeOp {
  static constexpr bool kEnabled = false;
  static constexpr bool kOnRegisters = true;
  template <int kWidth>
  __device__ void operator()(std::int64_t, int, float (&)[kWidth]) const {}
};

/// The store op that does nothing. A store op sees what is written, in pieces of consecutive
/// filters: `void operator()(std::int64_t m, int n, const Out (&values)[kWidth]) const`. With
/// `kReplacesStore` the kernel itself writes nothing. On Blackwell it is called after the write of
/// its values was issued, and may take the bytes that element (m, n) of the output is aligned to as
/// its first template argument: `template <int kAlignment, typename Out, int kWidth>`. It may read
/// its arguments and memory of its own, not the output: the write may still be under way.
struct NoStoreOp {
  static constexpr bool kEnabled = false;
  static constexpr bool kReplacesStore = false;
  template <typename Out, int kWidth>
  __device__ void operator()(std::int64_t, int, const Out (&)[kWidth]) const {}
};

}  // namespace convoy
