// SPDX-License-Identifier: Apache-2.0
//
// pointwise, pointwise_stream.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "small_case.hpp"

namespace convoy::test {
namespace {

TEST_F(Small, PointwiseFewChannels) {
  const auto pointwise = [](const ConvGeometry& g, DType dtype = DType::bf16) {
    expect_right(with_kernel(g, "pointwise", dtype));
  };
  pointwise(shape_2d(1, 16, 16, 16, 16, 1, 0));              // Whole blocks.
  pointwise(shape_2d(3, 7, 13, 16, 11, 1, 0));               // Ragged pixels and filters.
  pointwise(shape_2d(1, 9, 15, 32, 32, 1, 0), DType::fp16);  // Two steps.
  pointwise(shape_2d(1, 9, 15, 32, 20, 1, 0));
  pointwise(shape_2d(1, 9, 15, 8, 8, 1, 0));  // Half a step.
  pointwise(shape_2d(1, 7, 13, 8, 3, 1, 0), DType::fp16);
  ConvCase with_bias = with_kernel(shape_2d(1, 9, 15, 32, 20, 1, 0), "pointwise");
  with_bias.bias = true;  // In the plain kernel, and rounded before it is added in the other one.
  expect_right(with_bias);
  with_bias.epilogue.rounding = EpilogueRounding::each_step;
  expect_right(with_bias);
}

TEST_F(Small, PointwiseManyFilters) {
  const auto pointwise = [](const ConvGeometry& g, DType dtype = DType::bf16) {
    expect_right(with_kernel(g, "pointwise", dtype));
  };
  pointwise(shape_2d(1, 9, 15, 8, 32, 1, 0));  // Half a step, two blocks of filters.
  pointwise(shape_2d(2, 7, 13, 16, 48, 1, 0), DType::fp16);
  pointwise(shape_2d(1, 9, 15, 24, 20, 1, 0));   // A step and a half, 16 filters and 4.
  pointwise(shape_2d(1, 9, 15, 40, 132, 1, 0));  // Three steps.
  pointwise(shape_2d(1, 7, 13, 56, 24, 1, 0), DType::fp16);
  pointwise(shape_2d(1, 9, 15, 64, 37, 1, 0));    // Odd K: the general epilogue.
  pointwise(shape_2d(1, 40, 51, 24, 132, 1, 0));  // Several turns of a block on 8 multiprocessors,
  pointwise(shape_2d(2, 99, 61, 8, 72, 1, 0));    // and more blocks than are resident.
  ConvCase test = with_kernel(shape_2d(1, 9, 15, 24, 68, 1, 0), "pointwise");
  test.bias = true;
  expect_right_with_short_epilogues(test);
  test.exact = false;
  test.epilogue.activation = Activation::sigmoid;  // In the general kernel.
  expect_right(test);
}

/// Bulk copies are Hopper's and later.
class PointwiseStream : public Small {
 protected:
  void SetUp() override {
    Small::SetUp();
    if (!IsSkipped() && compute_capability() < 90) GTEST_SKIP() << "needs compute capability 9.0";
  }
  static ConvCase stream(const ConvGeometry& g, DType dtype = DType::bf16) {
    return with_kernel(g, "pointwise_stream", dtype);
  }
};

TEST_F(PointwiseStream, Channels) {
  expect_right(stream(shape_2d(1, 16, 16, 16, 16, 1, 0)));  // Half a unit of channels.
  expect_right(stream(shape_2d(1, 16, 16, 32, 32, 1, 0), DType::fp16));
  expect_right(stream(shape_2d(1, 9, 15, 24, 56, 1, 0)));   // Two groups of filters,
  expect_right(stream(shape_2d(1, 9, 15, 40, 72, 1, 0)));   // three in two turns,
  expect_right(stream(shape_2d(1, 9, 15, 64, 128, 1, 0)));  // four.
  expect_right(stream(shape_2d(1, 9, 15, 264, 24, 1, 0)));
  if (shared_memory() < 200 << 10) return;
  expect_right(stream(shape_2d(1, 9, 15, 112, 240, 1, 0)));  // four turns of two.
  expect_right(stream(shape_2d(1, 9, 15, 384, 8, 1, 0)));
}

// Pixels and outputs whose rows are no multiple of 16 bytes.
TEST_F(PointwiseStream, OddRows) {
  expect_right(stream(shape_2d(1, 9, 15, 36, 18, 1, 0)));
  expect_right(stream(shape_2d(1, 9, 15, 2, 32, 1, 0), DType::fp16));
  expect_right(stream(shape_2d(1, 9, 15, 12, 5, 1, 0)));
  expect_right(stream(shape_2d(1, 9, 15, 32, 1, 1, 0)));
  expect_right(stream(shape_2d(1, 9, 15, 6, 100, 1, 0), DType::fp16));
  expect_right(stream(shape_2d(1, 9, 15, 130, 70, 1, 0)));
}

// The last chunk ends anywhere: with less than 16 bytes, before the second block of its pixels.
TEST_F(PointwiseStream, LastChunks) {
  for (const int pixels : {1, 2, 3, 15, 16, 17, 31, 33, 1025}) {
    expect_right(stream(shape_2d(1, 1, pixels, 2, 1, 1, 0)));
    expect_right(stream(shape_2d(1, 1, pixels, 8, 24, 1, 0)));
    ConvCase test = stream(shape_2d(1, 1, pixels, 10, 3, 1, 0));
    test.residual = true;
    test.epilogue.beta = 2.0f;
    expect_right(test);
  }
}

// Rings that come round several times, chunks of several steps, images and volumes.
TEST_F(PointwiseStream, ManyChunks) {
  expect_right(stream(shape_2d(3, 160, 171, 16, 24, 1, 0)));
  expect_right(stream(shape_2d(2, 99, 97, 64, 96, 1, 0), DType::fp16));
  expect_right(stream(shape_2d(1, 256, 255, 4, 8, 1, 0)));
  ConvCase test = stream(shape_2d(2, 120, 171, 24, 40, 1, 0));
  test.residual = true;
  test.epilogue.beta = 2.0f;
  expect_right(test);
  test.residual_in_place = true;
  expect_right(test);
}

TEST_F(PointwiseStream, Epilogues) {
  for (const auto& [channels, filters] : {std::pair{24, 40}, std::pair{40, 72}, std::pair{6, 11}}) {
    ConvCase test = stream(shape_2d(1, 9, 15, channels, filters, 1, 0));
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
}

TEST_F(PointwiseStream, Refusals) {
  const auto reason = [](const ConvCase& test) {
    for (const Candidate& candidate : candidates_of(test)) {
      if (candidate.kernel == "pointwise_stream") return candidate.reason;
    }
    return std::string("not listed");
  };
  EXPECT_EQ(reason(stream(shape_2d(1, 9, 15, 8, 8, 1, 0))), "");
  EXPECT_EQ(reason(stream(shape_2d(1, 9, 15, 7, 8, 1, 0))),
            "in_channels = 7; legal: a multiple of 2; nearest: 8");
  EXPECT_NE(reason(stream(shape_2d(1, 9, 15, 1032, 8, 1, 0))).find("legal: at most 1024"),
            std::string::npos);
  EXPECT_NE(reason(stream(shape_2d(1, 9, 15, 1024, 1024, 1, 0))).find("shared memory"),
            std::string::npos);
  EXPECT_NE(
      reason(stream(shape_2d(1, 9, 15, 8, 8, 3, 1))).find("filter, stride, padding of height"),
      std::string::npos);
  ConvCase test = stream(shape_2d(1, 9, 15, 8, 8, 1, 0));
  test.epilogue.activation = Activation::sigmoid;
  EXPECT_NE(reason(test).find("epilogue = sigmoid"), std::string::npos);
  test.epilogue.activation = Activation::none;
  test.options.output_dtype = DType::fp32;
  EXPECT_EQ(reason(test), "output_dtype = fp32; legal: dtype, bf16");
}

}  // namespace
}  // namespace convoy::test
