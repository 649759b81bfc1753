// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the small kernels share.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

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

}  // namespace convoy::test
