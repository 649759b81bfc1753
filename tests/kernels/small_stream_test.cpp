// SPDX-License-Identifier: Apache-2.0
//
// pointwise_stream, line_stream.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "small_case.hpp"

namespace convoy::test {
namespace {

/// Bulk copies are Hopper's and later.
class Stream : public Small {
 protected:
  void SetUp() override {
    Small::SetUp();
    if (!IsSkipped() && compute_capability() < 90) GTEST_SKIP() << "needs compute capability 9.0";
  }
};

class PointwiseStream : public Stream {
 protected:
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
    expect_right_with_scaled_epilogues(stream(shape_2d(1, 9, 15, channels, filters, 1, 0)));
  }
}

TEST_F(PointwiseStream, Refusals) {
  const auto refusal = [](const ConvCase& test) { return refusal_of(test, "pointwise_stream"); };
  EXPECT_EQ(refusal(stream(shape_2d(1, 9, 15, 8, 8, 1, 0))), "");
  EXPECT_EQ(refusal(stream(shape_2d(1, 9, 15, 7, 8, 1, 0))),
            "in_channels = 7; legal: a multiple of 2; nearest: 8");
  EXPECT_NE(refusal(stream(shape_2d(1, 9, 15, 1032, 8, 1, 0))).find("legal: at most 1024"),
            std::string::npos);
  EXPECT_NE(refusal(stream(shape_2d(1, 9, 15, 1024, 1024, 1, 0))).find("shared memory"),
            std::string::npos);
  EXPECT_NE(
      refusal(stream(shape_2d(1, 9, 15, 8, 8, 3, 1))).find("filter, stride, padding of height"),
      std::string::npos);
  ConvCase test = stream(shape_2d(1, 9, 15, 8, 8, 1, 0));
  test.epilogue.activation = Activation::sigmoid;
  EXPECT_NE(refusal(test).find("epilogue = sigmoid"), std::string::npos);
  test.epilogue.activation = Activation::none;
  test.options.output_dtype = DType::fp32;
  EXPECT_EQ(refusal(test), "output_dtype = fp32; legal: dtype, bf16");
}

/// What a line is, and its filter.
struct Line {
  std::int64_t images = 1, height = 1, width = 0, channels = 16, filters = 16, taps = 3;
  std::int64_t dilation = 1, stride = 1, pad_begin = 1, pad_end = 1;
  PadMode mode = PadMode::zero;
};

class LineStream : public Stream {
 protected:
  static ConvCase stream(const Line& line, DType dtype = DType::bf16) {
    const Conv3dProblemShape shape{.batch = line.images,
                                   .in_depth = 1,
                                   .in_height = line.height,
                                   .in_width = line.width,
                                   .in_channels = line.channels,
                                   .out_channels = line.filters,
                                   .filter = {1, 1, line.taps},
                                   .pad_begin = {0, 0, line.pad_begin},
                                   .pad_end = {0, 0, line.pad_end},
                                   .stride = {1, 1, line.stride},
                                   .dilation = {1, 1, line.dilation},
                                   .pad_mode = {PadMode::zero, PadMode::zero, line.mode}};
    return with_kernel(geometry_of(shape), "line_stream", dtype);
  }
};

// Each way of reading channels, and of dealing filters.
TEST_F(LineStream, Channels) {
  for (const std::int64_t channels : {8, 16, 24, 32, 64}) {
    for (const std::int64_t filters : {8, 16, 24, 32, 72}) {
      expect_right(stream({.width = 333, .channels = channels, .filters = filters},
                          channels % 16 == 0 ? DType::bf16 : DType::fp16));
    }
  }
}

// Taps that reach outside the line on either side, by more than a chunk too; filters longer than
// the line; outputs that see padding alone.
TEST_F(LineStream, Ends) {
  for (const std::int64_t width : {1, 15, 31, 32, 33, 64, 257}) {
    expect_right(stream({.images = 3, .width = width}));
    expect_right(stream({.height = 2, .width = width, .taps = 2, .pad_begin = 0, .pad_end = 1}));
    expect_right(stream({.images = 2, .width = width, .channels = 32, .pad_begin = 70}));
    expect_right(
        stream({.width = width, .taps = 11, .dilation = 5, .pad_begin = 25, .pad_end = 100}));
  }
  expect_right(stream({.width = 100, .taps = 5, .pad_begin = 0, .pad_end = 0}));
}

TEST_F(LineStream, StridesAndDilation) {
  for (const std::int64_t stride : {2, 3, 8}) {
    expect_right(stream({.images = 2,
                         .width = 1001,
                         .taps = 2 * stride,
                         .stride = stride,
                         .pad_begin = stride / 2,
                         .pad_end = stride / 2}));
  }
  for (const std::int64_t dilation : {3, 5, 27}) {
    expect_right(stream({.images = 2,
                         .width = 700,
                         .channels = 24,
                         .filters = 48,
                         .taps = 7,
                         .dilation = dilation,
                         .pad_begin = 3 * dilation,
                         .pad_end = 3 * dilation}));
  }
  expect_right(stream({.width = 700, .taps = 4, .dilation = 2, .stride = 3}));
}

// Rings that come round several times; rows of images, each a line.
TEST_F(LineStream, ManyChunks) {
  expect_right(stream({.images = 3, .width = 20011}));
  ConvCase test = stream({.images = 2,
                          .height = 37,
                          .width = 301,
                          .channels = 32,
                          .filters = 8,
                          .taps = 5,
                          .pad_begin = 2,
                          .pad_end = 2},
                         DType::fp16);
  test.residual = true;
  test.epilogue.beta = 2.0f;
  expect_right(test);
  test.residual_in_place = true;
  expect_right(test);
}

TEST_F(LineStream, Epilogues) {
  expect_right_with_scaled_epilogues(stream({.width = 333}));
  expect_right_with_scaled_epilogues(stream({.width = 333, .channels = 40, .filters = 72}));
}

TEST_F(LineStream, Refusals) {
  const auto refusal = [](const ConvCase& test) { return refusal_of(test, "line_stream"); };
  EXPECT_EQ(refusal(stream({.width = 100})), "");
  EXPECT_EQ(refusal(stream({.width = 100, .channels = 12})),
            "in_channels = 12; legal: a multiple of 8; nearest: 16");
  EXPECT_EQ(refusal(stream({.width = 100, .filters = 18})),
            "out_channels = 18; legal: a multiple of 8; nearest: 24");
  EXPECT_EQ(refusal(stream({.width = 100, .taps = 1})),
            "filter of width = 1; legal: 2 and more (pointwise_stream takes 1)");
  EXPECT_NE(refusal(stream({.width = 9000, .taps = 65})).find("legal: at most 64"),
            std::string::npos);
  EXPECT_NE(refusal(stream({.width = 100, .channels = 512, .filters = 512})).find("shared memory"),
            std::string::npos);
  EXPECT_NE(refusal(stream({.width = 100, .mode = PadMode::reflect}))
                .find("padding mode of width = reflect"),
            std::string::npos);
}

}  // namespace
}  // namespace convoy::test
