// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the small kernels share.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "convoy/dtype.hpp"
#include "kernel_case.hpp"
#include "support/guarded_buffer.hpp"

namespace convoy::test {

class Small : public ::testing::Test {
 protected:
  void SetUp() override {
    if (compute_capability() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

inline int multiprocessors() {
  int count = 0;
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0);
  return count;
}

/// Of a block, in bytes.
inline int shared_memory() {
  int bytes = 0;
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
  return bytes;
}

/// A bias, the activations that kernels apply in registers and a residual, in either order, beside
/// the output or in its place; then the output in another type, which goes the general way.
inline void expect_right_with_short_epilogues(const ConvCase& of) {
  for (const Activation activation :
       {Activation::none, Activation::relu, Activation::leaky_relu, Activation::silu,
        Activation::clamp, Activation::hardswish, Activation::gelu, Activation::gelu_tanh}) {
    const int number = static_cast<int>(activation);
    ConvCase test = of;
    test.bias = true;
    test.epilogue.bias_dtype = static_cast<DType>(number % 3);
    test.epilogue.activation = activation;
    test.options.output_dtype = of.options.dtype;
    expect_right(test);
    test.residual = true;
    test.residual_in_place = number % 2 == 0;
    test.epilogue.beta = 2.0f;
    test.epilogue.order =
        number % 3 == 0 ? ResidualOrder::before_activation : ResidualOrder::after_activation;
    expect_right(test);
    test.options.output_dtype = DType::fp32;
    expect_right(test);
  }
}

/// The same activations behind a scale, a residual in either order; an output of the input's type.
inline void expect_right_with_scaled_epilogues(ConvCase test) {
  test.bias = true;
  for (const Activation activation :
       {Activation::none, Activation::relu, Activation::leaky_relu, Activation::silu,
        Activation::clamp, Activation::hardswish, Activation::gelu, Activation::gelu_tanh}) {
    const int number = static_cast<int>(activation);
    test.epilogue.bias_dtype = static_cast<DType>(number % 3);
    test.epilogue.activation = activation;
    test.epilogue.scale = number % 2 == 0 ? 1.0f : 0.5f;
    test.epilogue.order =
        number % 3 == 0 ? ResidualOrder::before_activation : ResidualOrder::after_activation;
    test.epilogue.beta = 2.0f;
    for (const bool residual : {false, true}) {
      test.residual = residual;
      expect_right(test);
    }
  }
}

/// Why `test` is not for the kernel; empty where it is.
inline std::string refusal_of(const ConvCase& test, const char* kernel) {
  for (const Candidate& candidate : candidates_of(test)) {
    if (candidate.kernel == kernel) return candidate.reason;
  }
  return "not listed";
}

/// An Inf of the input, three channels of 8×40, reaches exactly the outputs whose taps lie on it:
/// in an even and in an odd column, since 32 bits hold two elements.
inline void expect_infinity_under_its_taps(const char* kernel, bool packed) {
  const Conv2dProblemShape shape{.in_height = 8,
                                 .in_width = 40,
                                 .in_channels = 3,
                                 .out_channels = 8,
                                 .filter_h = 3,
                                 .filter_w = 3,
                                 .pad_h = 1,
                                 .pad_w = 1};
  const std::vector<std::uint16_t> filter(8 * 27, bf16_from_float(1.0f));
  std::vector<std::uint16_t> output(8 * 40 * 8);
  const std::size_t input_bytes = 8 * 40 * 3 * 2;
  void *x = nullptr, *w = nullptr, *y = nullptr;
  ASSERT_EQ(cudaMalloc(&x, input_bytes), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&w, filter.size() * 2), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&y, output.size() * 2), cudaSuccess);
  cudaMemcpy(w, filter.data(), filter.size() * 2, cudaMemcpyHostToDevice);
  PlanOptions options;
  options.kernel = kernel;
  options.device = Device::cuda;
  options.packed_filter = packed;
  const Plan plan = convoy::plan(shape, options);
  const PackedFilter made = packed ? plan.pack_filter(w, FilterLayout::krsc) : PackedFilter();
  for (const int column : {20, 21}) {
    std::vector<std::uint16_t> input(input_bytes / 2, bf16_from_float(1.0f));
    input[(4 * 40 + column) * 3] = bf16_from_float(std::numeric_limits<float>::infinity());
    cudaMemcpy(x, input.data(), input_bytes, cudaMemcpyHostToDevice);
    plan.run({.output = y,
              .activation = ConstTensorView(x),
              .filter = packed ? FilterRef(made) : FilterRef(w)});
    ASSERT_EQ(cudaMemcpy(output.data(), y, output.size() * 2, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int p = 0; p < 8; ++p) {
      for (int q = 0; q < 40; ++q) {
        const bool under = std::abs(p - 4) <= 1 && std::abs(q - column) <= 1;
        const float value = float_from_bf16(output[(p * 40 + q) * 8]);
        EXPECT_EQ(under, std::isinf(value)) << kernel << " p " << p << " q " << q << ": " << value;
        EXPECT_FALSE(std::isnan(value)) << kernel << " p " << p << " q " << q;
      }
    }
  }
  cudaFree(x);
  cudaFree(w);
  cudaFree(y);
}

}  // namespace convoy::test
