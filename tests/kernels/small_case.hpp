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

/// A bias and the activations that kernels apply in registers, and the output in another type.
inline void expect_right_with_short_epilogues(ConvCase test) {
  for (const Activation activation : {Activation::none, Activation::relu, Activation::silu,
                                      Activation::clamp, Activation::hardswish}) {
    for (const DType out : {test.options.dtype, DType::fp32}) {
      test.options.output_dtype = out;
      test.bias = true;
      test.epilogue.bias_dtype = static_cast<DType>(static_cast<int>(activation) % 3);
      test.epilogue.activation = activation;
      expect_right(test);
    }
  }
}

}  // namespace convoy::test
