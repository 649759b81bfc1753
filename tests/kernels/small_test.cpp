// SPDX-License-Identifier: Apache-2.0
//
// The small kernels (few channels, few filters, pointwise, depthwise, grouped, general):
// each on shapes that were chosen for it, then every one on random problems.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <set>

#include "convoy/dtype.hpp"
#include "kernel_case.hpp"
#include "kernels/common/filter_packing.hpp"
#include "support/guarded_buffer.hpp"

namespace convoy::test {
namespace {

class Small : public ::testing::Test {
 protected:
  void SetUp() override {
    if (compute_capability() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

int multiprocessors() {
  int count = 0;
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0);
  return count;
}

// Of a block, in bytes.
int shared_memory() {
  int bytes = 0;
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
  return bytes;
}

TEST_F(Small, HaloFewFilters) {
  const auto halo = [](const ConvGeometry& g, DType dtype = DType::bf16) {
    expect_right(with_kernel(g, "few_filters", dtype));
  };
  halo(shape_2d(1, 33, 61, 64, 3, 3, 1));               // One stage of channels; ragged tiles.
  halo(shape_2d(2, 16, 30, 128, 3, 3, 1));              // Whole tiles, two stages, two images.
  halo(shape_2d(1, 9, 31, 320, 4, 3, 1), DType::fp16);  // Five stages.
  halo(shape_2d(1, 5, 7, 8, 1, 3, 1));                  // Fewer channels than one step.
  halo(shape_2d(1, 20, 40, 96, 16, 3, 1));              // 48 columns; the last stage half full.
  halo(shape_2d(1, 12, 40, 72, 12, 1, 0));              // 1×1: no halo.
  halo(shape_2d(1, 20, 40, 24, 8, 7, 3));               // 56 columns, seven rows of halo.
  halo(shape_2d(1, 20, 40, 32, 3, 3, 0));               // No padding.
  halo(shape_2d(1, 1, 1, 16, 3, 3, 2));                 // The output is larger than the input.
  halo(shape_3d(2, 4, 0, 18, 35, 96, 3));               // Cached frames in front.
  halo(shape_3d(0, 1, 2, 18, 35, 96, 3));               // Causal padding instead of the cache.
  halo(shape_3d(1, 4, 1, 18, 35, 32, 4), DType::fp16);  // Some of both.
  halo(shape_3d(0, 9, 1, 5, 35, 16, 7));                // 63 columns; depth is cut into chunks.
}

// Loaded by cp.async: ragged tiles, rests of channels, frames, strips side by side, all padding.
TEST_F(Small, FewFiltersAsync) {
  const auto check = [](ConvGeometry g, std::array<PadMode, 3> modes = {},
                        DType dtype = DType::bf16) {
    g.pad_mode = modes;
    expect_right(with_kernel(g, "few_filters_async", dtype));
  };
  constexpr PadMode kZero = PadMode::zero;
  check(shape_2d(2, 33, 61, 72, 3, 3, 1));                   // Straight-line sums, two stages.
  check(shape_2d(1, 1, 1, 16, 3, 3, 2));                     // The output is larger.
  check(shape_2d(1, 9, 31, 136, 4, 3, 1), {}, DType::fp16);  // 12 of 16 columns, three stages.
  check(shape_2d(1, 12, 40, 72, 24, 1, 0));                  // 1×1, 32 columns.
  check(shape_3d(2, 4, 0, 18, 35, 96, 3), {}, DType::fp16);  // Cached frames in front.
  if (shared_memory() > (128 << 10)) {
    check(shape_2d(1, 20, 40, 24, 8, 7, 3));  // 56 columns.
    check(shape_3d(0, 9, 1, 5, 35, 16, 7));   // 63; depth is cut into chunks.
  }
  for (const PadMode mode : {PadMode::replicate, PadMode::reflect}) {
    check(shape_2d(1, 37, 67, 72, 3, 3, 1), {kZero, mode, mode});
    check(shape_2d(1, 4, 5, 16, 4, 5, 2), {kZero, mode, mode});
    check(shape_3d(0, 4, 2, 9, 33, 24, 3), {mode, kZero, mode});
    check(shape_3d(2, 2, 1, 3, 31, 16, 2), {PadMode::replicate, mode, mode});
    const Conv2dProblemShape row{.in_height = 1,
                                 .in_width = 400,
                                 .in_channels = 16,
                                 .out_channels = 2,
                                 .filter_w = 7,
                                 .pad_w = 3,
                                 .pad_mode = mode};
    check(geometry_of(row), {kZero, kZero, mode});
  }
  expect_right_with_every_epilogue(
      with_kernel(shape_2d(1, 6, 33, 16, 5, 3, 1), "few_filters_async"));
}

TEST_F(Small, PatchFewChannels) {
  const auto patch = [](const ConvGeometry& g, DType dtype = DType::bf16) {
    expect_right(with_kernel(g, "few_channels", dtype));
  };
  patch(shape_2d(2, 41, 37, 3, 64, 7, 3, 2));           // The stem of ResNet, odd extents.
  patch(shape_2d(1, 33, 20, 3, 70, 3, 1));              // Stride·C odd; ragged filters.
  patch(shape_2d(1, 33, 20, 1, 8, 5, 2), DType::fp16);  // One channel.
  patch(shape_2d(2, 16, 24, 4, 320, 3, 1));             // SDXL's conv_in.
  patch(shape_2d(1, 16, 24, 16, 512, 3, 1));            // Flux's conv_in.
  patch(shape_2d(1, 16, 24, 6, 33, 3, 1, 3));           // Six channels, stride 3, odd K.
  patch(shape_2d(1, 40, 40, 24, 64, 3, 1));             // Chunks by tap, three a pixel.
  patch(shape_2d(1, 8, 8, 16, 16, 1, 0));               // post_quant_conv: 16 filters a block.
  patch(shape_2d(1, 100, 300, 16, 9, 3, 1));            // The same, ragged, in tall tiles.
  patch(shape_2d(1, 64, 48, 3, 96, 4, 0, 4));           // Patch embedding of 4×4.
  patch(shape_3d(2, 1, 0, 17, 20, 16, 384));            // Wan's conv_in.
  patch(shape_3d(0, 2, 2, 9, 20, 3, 32), DType::fp16);  // Causal RGB.
  Conv2dProblemShape dilated{.in_height = 30,
                             .in_width = 30,
                             .in_channels = 3,
                             .out_channels = 16,
                             .filter_h = 3,
                             .filter_w = 3,
                             .pad_h = 2,
                             .pad_w = 3,
                             .dilation_h = 2,
                             .dilation_w = 3};
  patch(geometry_of(dilated));  // Chunks by tap with a mask.
}

TEST_F(Small, NarrowInput) {
  const auto narrow = [](const ConvGeometry& g, DType dtype = DType::bf16) {
    expect_right(with_kernel(g, "narrow_input", dtype));
  };
  narrow(shape_2d(2, 41, 37, 3, 64, 7, 3, 2));            // The stem of ResNet, odd extents.
  narrow(shape_2d(1, 33, 70, 3, 70, 3, 1));               // Ragged filters: staged as floats.
  narrow(shape_2d(1, 18, 37, 3, 180, 3, 1));              // Rows of 8 bytes: stored in fours.
  narrow(shape_2d(1, 9, 35, 4, 20, 3, 1), DType::fp16);   // The same of a strip of 32.
  narrow(shape_2d(1, 33, 20, 1, 8, 5, 2), DType::fp16);   // One channel: eight copies.
  narrow(shape_2d(1, 20, 40, 1, 40, 3, 1, 2));            // Four copies, two elements apart.
  narrow(shape_2d(1, 20, 40, 1, 16, 4, 0, 4));            // Two copies.
  narrow(shape_2d(1, 20, 67, 2, 24, 3, 1, 3));            // Two channels as four, odd stride.
  narrow(shape_2d(2, 16, 24, 4, 320, 3, 1));              // SDXL's conv_in: five strips.
  narrow(shape_2d(1, 16, 24, 6, 33, 3, 1, 3));            // Six channels, stride 3, odd K.
  narrow(shape_2d(1, 17, 33, 8, 96, 3, 1), DType::fp16);  // Whole pixels of 16 bytes.
  narrow(shape_2d(1, 9, 40, 8, 32, 1, 0));                // A 1x1 filter.
  narrow(shape_3d(0, 2, 2, 9, 20, 3, 32), DType::fp16);   // Causal RGB.
  narrow(shape_3d(2, 1, 0, 9, 20, 5, 48));                // Cached frames in front.
  Conv2dProblemShape tall{.in_height = 30,
                          .in_width = 40,
                          .in_channels = 3,
                          .out_channels = 16,
                          .filter_h = 3,
                          .filter_w = 3,
                          .pad_h = 2,
                          .pad_w = 1,
                          .dilation_h = 2};
  narrow(geometry_of(tall));
  tall.upsample = 2;
  narrow(geometry_of(tall));
  // More tiles than blocks.
  ConvCase test = with_kernel(shape_2d(2, 4 * multiprocessors(), 400, 3, 64, 3, 1), "narrow_input");
  test.sample = 50000;
  expect_right(test);
}

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
  for (const Activation activation : {Activation::none, Activation::relu, Activation::clamp}) {
    test.epilogue.activation = activation;
    expect_right(test);  // In the short kernel,
  }
  test.residual = true;
  expect_right(test);  // and in the general one.
  test.options.output_dtype = DType::fp32;
  expect_right(test);
  test.options.output_dtype = DType::bf16;
  test.residual = test.exact = false;
  test.epilogue.activation = Activation::silu;
  expect_right(test);
}

TEST_F(Small, PatchWalksOverManyTiles) {
  // More tiles than blocks, and 16-row tiles.
  ConvCase test = with_kernel(shape_2d(2, 512, 400, 3, 64, 3, 1), "few_channels");
  test.sample = 50000;
  expect_right(test);
  test.problem = problem_of(shape_2d(3, 300, 300, 16, 128, 3, 1, 2));
  expect_right(test);
}

TEST_F(Small, Depthwise) {
  const auto depthwise = [](std::int64_t c, std::int64_t filter, std::int64_t stride, DType dtype) {
    Conv2dProblemShape shape{.batch = 2,
                             .in_height = 19,
                             .in_width = 23,
                             .in_channels = c,
                             .out_channels = c,
                             .filter_h = filter,
                             .filter_w = filter,
                             .pad_h = filter / 2,
                             .pad_w = filter / 2,
                             .stride_h = stride,
                             .stride_w = stride,
                             .groups = c};
    expect_right(with_kernel(geometry_of(shape), "depthwise", dtype));
  };
  depthwise(64, 3, 1, DType::bf16);
  depthwise(72, 5, 2, DType::fp16);  // The last slab of channels is partly filled.
  depthwise(8, 7, 1, DType::fp32);
  depthwise(24, 3, 2, DType::bf16);
  depthwise(40, 3, 1, DType::fp16);
}

// What no other depthwise kernel takes: large filters, which come in chunks, channels in no
// vectors, several filters a channel, any padding. Small images, so that several threads share a
// strip.
TEST_F(Small, DepthwiseAny) {
  struct Layer {
    std::array<std::int64_t, 3> in, filter;
    std::int64_t channels, filters_of_channel = 1;
    DType dtype = DType::bf16;
    std::array<std::int64_t, 3> stride = {1, 1, 1}, dilation = {1, 1, 1};
    PadMode mode = PadMode::zero;
    std::int64_t upsample = 1, cached = 0;
  };
  const auto right = [](const Layer& layer) {
    Conv3dProblemShape shape{.batch = 2,
                             .in_depth = layer.in[0],
                             .in_height = layer.in[1],
                             .in_width = layer.in[2],
                             .in_channels = layer.channels,
                             .out_channels = layer.channels * layer.filters_of_channel,
                             .filter = layer.filter,
                             .stride = layer.stride,
                             .dilation = layer.dilation,
                             .cached_frames = layer.cached};
    shape.groups = layer.channels;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      const std::int64_t reach = (layer.filter[axis] - 1) * layer.dilation[axis];
      shape.pad_begin[axis] = axis == 0 && layer.cached > 0 ? 0 : reach / 2;
      shape.pad_end[axis] = axis == 0 && layer.cached > 0 ? 0 : reach - reach / 2;
      shape.pad_mode[axis] = layer.mode;
    }
    ConvGeometry g = geometry_of(shape);
    if (layer.upsample > 1) g.rank = 2;  // In 3-D there is none.
    g.upsample = layer.upsample;
    for (const std::size_t axis : {1, 2}) g.out[axis] += (g.upsample - 1) * g.in[axis];
    ConvCase test = with_kernel(g, "depthwise", layer.dtype);
    test.sample = 4000;
    expect_right(test);
  };
  right({.in = {1, 14, 14}, .filter = {1, 31, 31}, .channels = 72});  // Chunks of five rows.
  right({.in = {1, 9, 11}, .filter = {1, 13, 13}, .channels = 8, .dtype = DType::fp16});
  right({.in = {1, 5, 300}, .filter = {1, 3, 201}, .channels = 16});  // Chunks of a row.
  right({.in = {5, 12, 10}, .filter = {5, 5, 5}, .channels = 64, .stride = {2, 2, 2}});
  right({.in = {4, 9, 9}, .filter = {3, 3, 3}, .channels = 54});  // Vectors of two.
  right({.in = {3, 6, 7}, .filter = {2, 4, 4}, .channels = 6, .dilation = {1, 1, 2}});
  right({.in = {1, 10, 11}, .filter = {1, 3, 3}, .channels = 27, .dtype = DType::fp16});
  right({.in = {1, 12, 9}, .filter = {1, 5, 5}, .channels = 40, .filters_of_channel = 2});
  right({.in = {1, 8, 9}, .filter = {1, 3, 3}, .channels = 5, .filters_of_channel = 3});
  right({.in = {1, 16, 17}, .filter = {1, 9, 9}, .channels = 24, .dtype = DType::fp32});
  right({.in = {1, 16, 17}, .filter = {1, 3, 3}, .channels = 6, .dtype = DType::fp32});
  right({.in = {1, 9, 10}, .filter = {1, 11, 7}, .channels = 16, .mode = PadMode::replicate});
  right({.in = {1, 9, 10}, .filter = {1, 3, 3}, .channels = 10, .mode = PadMode::reflect});
  right({.in = {1, 6, 7}, .filter = {1, 5, 5}, .channels = 8, .upsample = 2});
  right({.in = {5, 6, 7}, .filter = {3, 3, 3}, .channels = 14, .cached = 2});
  // More strips than places: a block takes several.
  right({.in = {1, multiprocessors(), 260}, .filter = {1, 2, 2}, .channels = 66});
  right({.in = {1, multiprocessors(), 260}, .filter = {1, 13, 13}, .channels = 8});
}

// Filters along one axis: lines of any axis, several a block or in chunks, dilated or not, short
// strips and long ones.
TEST_F(Small, DepthwiseAlongOneAxis) {
  const auto line = [](std::size_t axis, std::array<std::int64_t, 3> in, std::int64_t c,
                       std::int64_t taps, std::int64_t front, std::int64_t behind,
                       std::int64_t dilation = 1, std::int64_t cached = 0) {
    Conv3dProblemShape shape{.batch = 2,
                             .in_depth = in[0],
                             .in_height = in[1],
                             .in_width = in[2],
                             .in_channels = c,
                             .out_channels = c,
                             .filter = {1, 1, 1},
                             .cached_frames = cached};
    shape.groups = c;
    shape.filter[axis] = taps;
    shape.dilation[axis] = dilation;
    shape.pad_begin[axis] = front;
    shape.pad_end[axis] = behind;
    return geometry_of(shape);
  };
  const auto right = [](const ConvGeometry& g, DType dtype = DType::bf16) {
    ConvCase test = with_kernel(g, "depthwise", dtype);
    test.sample = 20000;
    expect_right(test);
  };
  right(line(2, {1, 1, 75}, 64, 31, 15, 15));              // The last strip is short.
  right(line(2, {1, 1, 50}, 72, 4, 3, 0), DType::fp16);    // Causal; even; 36 lanes.
  right(line(2, {1, 2, 37}, 152, 7, 9, 9, 3));             // Dilated; slabs of 40 lanes.
  right(line(2, {1, 1, 9}, 8, 160, 80, 80), DType::fp16);  // Longer than the line.
  right(line(1, {2, 21, 5}, 48, 9, 4, 4));                 // Columns are lines.
  right(line(0, {6, 3, 5}, 40, 3, 2, 0), DType::fp16);     // Frames.
  right(line(0, {7, 3, 3}, 16, 5, 4, 4, 2));               // Frames, dilated.
  right(line(0, {5, 3, 4}, 24, 3, 0, 0, 1, 2));            // Frames, a cache in front.
  // Enough outputs for strips of 8, of 16.
  const std::int64_t words = 256 * std::int64_t{multiprocessors()};
  right(line(2, {1, 1, 5 * words / 64 + 5}, 128, 8, 3, 4));
  right(line(2, {1, 1, 10 * words / 64 + 3}, 128, 11, 5, 5), DType::fp16);
}

// 3×3 on more than one round of blocks: input rows come through a ring in shared memory.
TEST_F(Small, DepthwiseRing) {
  const auto ring = [](std::int64_t h, std::int64_t w, std::int64_t c, std::int64_t pad,
                       DType dtype) {
    ConvGeometry g = shape_2d(256 * multiprocessors() / c, h, w, c, c, 3, pad);
    g.groups = c;
    ConvCase test = with_kernel(g, "depthwise", dtype);
    test.sample = 20000;
    expect_right(test);
    test.bias = true;
    test.epilogue.activation = Activation::silu;
    expect_right(test);
    test.epilogue.activation = Activation::gelu;  // Not in registers.
    expect_right(test);
  };
  ring(7, 30, 64, 1, DType::bf16);   // The last strip is short.
  ring(8, 30, 144, 0, DType::fp16);  // 18 lanes; two threads have no strip.
}

// One group: a long row of pixels.
TEST_F(Small, PatchesOfLines) {
  const auto line = [](std::int64_t w, std::int64_t c, std::int64_t k, std::int64_t taps,
                       std::int64_t dilation, DType dtype = DType::bf16) {
    Conv2dProblemShape shape{.batch = 2,
                             .in_height = 1,
                             .in_width = w,
                             .in_channels = c,
                             .out_channels = k,
                             .filter_w = taps,
                             .pad_w = taps / 2 * dilation,
                             .dilation_w = dilation};
    expect_right(with_kernel(geometry_of(shape), "grouped_patch", dtype));
  };
  line(1000, 32, 32, 7, 3);
  line(700, 24, 40, 11, 5, DType::fp16);
}

// A bias and the activations that kernels apply in registers, and the output in another type.
void expect_right_with_short_epilogues(ConvCase test) {
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

TEST_F(Small, ShortEpilogues) {
  ConvGeometry depthwise = shape_2d(1, 10, 33, 16, 16, 3, 1);
  depthwise.groups = 16;
  ConvGeometry rows = shape_2d(1, 10, 33, 16, 16, 5, 2);
  rows.groups = 16;
  ConvGeometry line = shape_2d(2, 1, 33, 24, 24, 1, 0);
  line.groups = 24;
  line.filter[2] = 5;
  line.pad_begin[2] = line.pad_end[2] = 2;
  ConvGeometry nine = shape_2d(1, 9, 11, 40, 40, 3, 1);
  nine.groups = 5;
  ConvGeometry points = shape_2d(1, 7, 9, 32, 32, 1, 0);
  points.groups = 16;
  expect_right_with_short_epilogues(with_kernel(depthwise, "depthwise"));
  expect_right_with_short_epilogues(with_kernel(rows, "depthwise", DType::fp16));
  expect_right_with_short_epilogues(with_kernel(line, "depthwise"));
  expect_right_with_short_epilogues(with_kernel(nine, "grouped"));
  expect_right_with_short_epilogues(with_kernel(points, "grouped", DType::fp16));
}

// More output rows than threads at once: a thread walks down several.
TEST_F(Small, DepthwiseWalksDownSeveralRows) {
  const std::int64_t resident = 512 * std::int64_t{multiprocessors()};
  for (const std::int64_t stride : {1, 2}) {
    const ConvGeometry image = shape_2d(1, 47, 61, 96, 96, 3, 1, stride);
    const std::int64_t threads = image.out[1] * ((image.out[2] + 3) / 4) * (96 / 4);
    ConvGeometry g = shape_2d(1 + 2 * resident / threads, 47, 61, 96, 96, 3, 1, stride);
    g.groups = 96;
    ConvCase test = with_kernel(g, "depthwise", stride == 1 ? DType::bf16 : DType::fp16);
    test.sample = 20000;
    expect_right(test);
    test.bias = true;
    test.epilogue.activation = Activation::silu;
    expect_right(test);
    test.epilogue.activation = Activation::gelu;  // Not in registers.
    expect_right(test);
  }
}

TEST_F(Small, Grouped) {
  const auto grouped = [](ConvGeometry g, std::int64_t groups, DType dtype = DType::bf16) {
    g.groups = groups;
    expect_right(with_kernel(g, "grouped", dtype));
  };
  grouped(shape_2d(2, 9, 13, 128, 128, 3, 1), 32);           // ResNeXt: four a group.
  grouped(shape_2d(1, 9, 13, 80, 80, 3, 1, 2), 10);          // Eight; a block partly filled.
  grouped(shape_2d(1, 8, 8, 48, 48, 3, 0), 3, DType::fp16);  // 16: groups are whole steps.
  grouped(shape_2d(1, 7, 9, 32, 32, 1, 0), 16);              // Two; 1×1.
  grouped(shape_2d(2, 11, 9, 88, 88, 3, 1, 2), 11);          // Eight; half of the last step.
  grouped(shape_2d(1, 7, 9, 36, 36, 3, 1), 9);               // Four; a quarter of it.
  grouped(shape_3d(1, 2, 1, 6, 7, 32, 32), 8);               // Depth, a cache.
  const Conv2dProblemShape dilated{.in_height = 12,
                                   .in_width = 10,
                                   .in_channels = 32,
                                   .out_channels = 32,
                                   .filter_h = 3,
                                   .filter_w = 3,
                                   .pad_h = 2,
                                   .pad_w = 1,
                                   .dilation_h = 2,
                                   .dilation_w = 3};
  grouped(geometry_of(dilated), 4);
}

// One row of output: tiles are strips side by side.
TEST_F(Small, RowsOfSamples) {
  const auto row = [](std::int64_t w, std::int64_t c, std::int64_t k, std::int64_t filter,
                      std::int64_t pad, std::int64_t stride = 1, std::int64_t dilation = 1) {
    return geometry_of(Conv2dProblemShape{.batch = 2,
                                          .in_height = 1,
                                          .in_width = w,
                                          .in_channels = c,
                                          .out_channels = k,
                                          .filter_w = filter,
                                          .pad_w = pad,
                                          .stride_w = stride,
                                          .dilation_w = dilation});
  };
  for (const auto& [kernel, g] : {std::pair{"few_channels", row(700, 1, 32, 7, 3)},
                                  std::pair{"few_channels", row(401, 2, 70, 5, 4, 3)},
                                  std::pair{"few_channels", row(300, 24, 16, 3, 2, 1, 2)},
                                  std::pair{"few_channels", row(5000, 16, 16, 3, 1)},
                                  std::pair{"narrow_input", row(700, 1, 32, 7, 3)},
                                  std::pair{"narrow_input", row(2000, 3, 64, 10, 4, 5)},
                                  std::pair{"few_filters", row(900, 32, 1, 7, 3)},
                                  std::pair{"few_filters", row(70, 96, 3, 3, 1)},
                                  std::pair{"few_filters", row(4000, 8, 16, 1, 0)}}) {
    expect_right(with_kernel(g, kernel));
  }
  ConvGeometry reflected = row(90, 3, 8, 7, 3);
  reflected.pad_mode = {PadMode::zero, PadMode::zero, PadMode::reflect};
  expect_right(with_kernel(reflected, "few_channels", DType::fp16));
  ConvGeometry frames = shape_3d(2, 4, 0, 1, 100, 16, 4);
  frames.filter[1] = 1;
  frames.pad_begin[1] = frames.pad_end[1] = 0;
  expect_right(with_kernel(frames, "few_filters"));
}

// Filters that lie in registers, along each axis; strides, dilation, a cache, every type.
TEST_F(Small, DepthwiseRows) {
  const auto volume = [](std::array<std::int64_t, 3> in, std::array<std::int64_t, 3> filter,
                         std::array<std::int64_t, 3> pad, std::int64_t channels) {
    Conv3dProblemShape shape{.batch = 2,
                             .in_depth = in[0],
                             .in_height = in[1],
                             .in_width = in[2],
                             .in_channels = channels,
                             .out_channels = channels,
                             .filter = filter,
                             .pad_begin = pad,
                             .pad_end = pad,
                             .groups = channels};
    return shape;
  };
  const auto check = [](const Conv3dProblemShape& shape, DType dtype = DType::bf16) {
    expect_right(with_kernel(geometry_of(shape), "depthwise", dtype));
  };
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    for (const std::int64_t filter : {3, 5, 7}) {
      for (const std::int64_t stride : {1, 2}) {
        Conv3dProblemShape shape =
            volume({1, 19, 13}, {1, filter, filter}, {0, filter / 2, filter / 2}, 24);
        shape.stride = {1, stride, stride};
        check(shape, dtype);
      }
    }
    check(volume({4, 5, 7}, {3, 3, 3}, {1, 1, 1}, 16), dtype);
    for (const std::int64_t filter : {3, 4, 5, 7, 9, 15, 31}) {
      check(volume({1, 1, 70}, {1, 1, filter}, {0, 0, filter - 1}, 40), dtype);
    }
  }
  check(volume({1, 40, 5}, {1, 9, 1}, {0, 4, 2}, 16));  // Along the height; columns of padding.
  check(volume({12, 3, 5}, {5, 1, 1}, {2, 0, 0}, 64));  // Along the depth: 32 lanes.
  Conv3dProblemShape cached = volume({6, 3, 5}, {4, 1, 1}, {0, 0, 0}, 8);
  cached.cached_frames = 3;
  check(cached);
  Conv3dProblemShape dilated = volume({1, 21, 18}, {1, 3, 3}, {0, 2, 3}, 8);
  dilated.dilation = {1, 2, 3};
  check(dilated);
  Conv3dProblemShape strided_columns = volume({1, 20, 9}, {1, 3, 1}, {0, 1, 1}, 8);
  strided_columns.stride = {1, 1, 2};
  check(strided_columns);
  Conv3dProblemShape frames = volume({5, 6, 9}, {3, 3, 3}, {0, 1, 0}, 8);
  frames.stride = {2, 1, 1};
  frames.dilation = {2, 1, 1};
  check(frames);
}

// 5×5 and 7×7: in small layers a thread computes a row, in large ones it walks down several.
TEST_F(Small, DepthwiseRowAThread) {
  for (const std::int64_t filter : {5, 7}) {
    for (const std::int64_t stride : {1, 2}) {
      const auto check = [&](std::int64_t batch, std::int64_t channels, std::int64_t height,
                             std::int64_t width, std::int64_t pad) {
        ConvGeometry g = shape_2d(batch, height, width, channels, channels, filter, pad, stride);
        g.groups = channels;
        ConvCase test = with_kernel(g, "depthwise", batch % 2 == 1 ? DType::bf16 : DType::fp16);
        test.sample = 20000;
        expect_right(test);
        return test;
      };
      check(3, 8, 7, 9, filter / 2);                    // 4 lanes, a block with idle ones.
      check(2, 48, 11, 14, filter - 1);                 // 8 lanes, many rows of padding.
      check(1, 96, 13, 8, 0);                           // 16 lanes.
      ConvCase test = check(1, 128, 5, 5, filter / 2);  // 32 lanes, two blocks of channels.
      expect_right_with_short_epilogues(test);
      test.options.output_dtype = test.options.dtype;
      test.epilogue.activation = Activation::gelu;  // Not in registers.
      expect_right(test);
      const std::int64_t rows = (23 + stride - 1) / stride,
                         strips = (29 + 4 * stride - 1) / (4 * stride);
      check(2 + 1024 * multiprocessors() / (rows * strips * 8), 16, 23, 29, filter / 2);
    }
  }
}

// Padding that is copied inside a tile: on every side, beside zeros, of strips side by side, of
// frames, with more tiles than one.
TEST_F(Small, FewFiltersBorders) {
  for (const PadMode mode : {PadMode::replicate, PadMode::reflect}) {
    const auto check = [&](ConvGeometry g, std::array<PadMode, 3> modes) {
      g.pad_mode = modes;
      expect_right(with_kernel(g, "few_filters"));
    };
    check(shape_2d(2, 37, 67, 72, 3, 3, 1), {PadMode::zero, mode, mode});
    check(shape_2d(1, 4, 5, 16, 4, 5, 2), {PadMode::zero, mode, mode});
    check(shape_3d(0, 4, 2, 9, 33, 24, 3), {mode, PadMode::zero, mode});
    check(shape_3d(1, 3, 1, 20, 30, 136, 3), {mode, mode, PadMode::zero});
    check(shape_3d(2, 2, 1, 3, 31, 16, 2), {PadMode::replicate, mode, mode});
    Conv2dProblemShape row{.in_height = 1,
                           .in_width = 400,
                           .in_channels = 16,
                           .out_channels = 2,
                           .filter_w = 7,
                           .pad_w = 3,
                           .pad_mode = mode};
    expect_right(with_kernel(geometry_of(row), "few_filters"));
  }
}

TEST_F(Small, GroupedPatch) {
  const auto grouped = [](ConvGeometry g, std::int64_t groups, DType dtype = DType::bf16) {
    g.groups = groups;
    expect_right(with_kernel(g, "grouped_patch", dtype));
  };
  grouped(shape_2d(2, 9, 13, 128, 128, 3, 1), 4);              // 32 a group, two a block.
  grouped(shape_2d(3, 7, 7, 192, 192, 3, 1), 3, DType::fp16);  // 64; a tile holds two images.
  grouped(shape_2d(1, 6, 9, 256, 256, 3, 1), 2);               // 128: two blocks of filters.
  grouped(shape_2d(1, 13, 18, 96, 96, 3, 1, 2), 3);            // Stride 2.
  grouped(shape_2d(1, 12, 20, 72, 72, 3, 1), 3);               // 24: odd chunks, three tiles.
  grouped(shape_2d(1, 9, 13, 80, 80, 3, 2), 10);               // Eight.
  grouped(shape_2d(1, 9, 13, 80, 80, 5, 2), 5);                // 16; the last block partly filled.
  grouped(shape_2d(2, 8, 30, 64, 192, 3, 1), 4);               // 16 channels, 48 filters.
  grouped(shape_2d(2, 8, 30, 320, 80, 3, 1), 2);               // 160 channels, 40 filters.
  grouped(shape_2d(2, 17, 31, 224, 224, 1, 0), 7);             // 1×1: one row of pixels.
  grouped(shape_3d(2, 4, 0, 6, 7, 64, 64), 2);                 // Depth, a cache.
  ConvGeometry reflected = shape_2d(1, 9, 11, 32, 32, 3, 1);
  reflected.pad_mode = {PadMode::zero, PadMode::reflect, PadMode::replicate};
  grouped(reflected, 2);
  ConvGeometry dilated = shape_2d(1, 20, 21, 64, 64, 3, 2);
  dilated.dilation = {1, 2, 2};
  grouped(dilated, 2);
  grouped(shape_2d(2, 40, 50, 64, 64, 3, 1), 2);  // Blocks walk over many tiles.
}

// Each of the rewritten problems on every kernel that takes it, with dense filters on half of the
// kernels and packed ones on the others, for the next problem the other way round.
TEST_F(Small, SpaceToDepth) {
  int problem = 0;
  const auto check = [&](const ConvGeometry& g) {
    ConvCase test = with_kernel(g, "");
    for (const bool packed : {false, true}) {
      test.options.packed_filter = packed;
      if (packed) test.filter_layout = g.rank == 2 ? FilterLayout::kcrs : FilterLayout::trscf;
      int runs = 0;
      for (const Candidate& candidate : candidates_of(test)) {
        if (!candidate.reason.empty()) continue;
        // NOTE: by its name, since fewer take a dense filter.
        const bool odd = std::hash<std::string>{}(candidate.kernel) % 2 == 1;
        if (packed == ((problem % 2 == 1) == odd)) continue;
        test.options.kernel = candidate.kernel;
        expect_right(test);
        ++runs;
      }
      EXPECT_GT(runs, 0);
      test.options.kernel.clear();
    }
    ++problem;
  };
  check(shape_2d(2, 32, 48, 3, 24, 16, 0, 16));  // Patches of a vision transformer.
  check(shape_2d(3, 12, 20, 64, 40, 2, 0, 2));   // ConvNeXt's downsampling.
  check(shape_2d(1, 16, 16, 8, 16, 4, 2, 2));    // Padding of one stride.
  Conv3dProblemShape patch{.batch = 9,
                           .in_depth = 2,
                           .in_height = 4,
                           .in_width = 8,
                           .in_channels = 3,
                           .out_channels = 24,
                           .filter = {2, 4, 8},
                           .stride = {2, 4, 8}};
  check(geometry_of(patch));  // One patch an item: a matrix product.
  patch.in_depth = 4;
  patch.in_height = 12;
  patch.in_width = 24;
  check(geometry_of(patch));  // Rows of patches beside their frames.
}

TEST_F(Small, General) {
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    const auto general = [&](const ConvGeometry& g) {
      expect_right(with_kernel(g, "general", dtype));
    };
    general(shape_2d(1, 15, 17, 64, 80, 3, 1));      // Vectors of 8.
    general(shape_2d(1, 15, 17, 6, 5, 3, 1));        // Vectors of 2, few filters.
    general(shape_2d(1, 15, 17, 7, 65, 3, 2, 2));    // Element by element, odd everything.
    general(shape_2d(1, 32, 48, 3, 24, 16, 0, 16));  // Patch embedding: width folded into channels.
    general(shape_2d(1, 20, 31, 3, 24, 4, 0, 3));    // Overlapping patches, folded.
    general(shape_3d(2, 2, 0, 7, 9, 12, 20));        // Cached frames.
    ConvGeometry grouped = shape_2d(1, 10, 11, 24, 36, 3, 1);
    grouped.groups = 3;
    general(grouped);
    for (const PadMode mode : {PadMode::replicate, PadMode::reflect}) {
      ConvGeometry padded = shape_2d(1, 9, 11, 16, 24, 5, 2);
      padded.pad_mode = {PadMode::zero, mode, mode};
      general(padded);
    }
    Conv2dProblemShape upsampled{.in_height = 6,
                                 .in_width = 7,
                                 .in_channels = 16,
                                 .out_channels = 24,
                                 .filter_h = 3,
                                 .filter_w = 3,
                                 .pad_h = 1,
                                 .pad_w = 1,
                                 .upsample = 2};
    general(geometry_of(upsampled));
  }
}

TEST_F(Small, EveryOutputTypeAndEpilogue) {
  const ConvGeometry few_filters = shape_2d(1, 10, 33, 16, 3, 3, 1);
  const ConvGeometry few_channels = shape_2d(1, 10, 33, 4, 24, 3, 1);
  const ConvGeometry plain = shape_2d(1, 10, 33, 24, 20, 3, 1);
  const ConvGeometry point = shape_2d(1, 10, 33, 16, 16, 1, 0);
  ConvGeometry depthwise = shape_2d(1, 10, 33, 16, 16, 3, 1);
  depthwise.groups = 16;
  ConvGeometry grouped = depthwise;
  grouped.groups = 4;
  ConvGeometry rows = shape_2d(1, 10, 33, 16, 16, 7, 3);
  rows.groups = 16;
  ConvGeometry wide = shape_2d(1, 10, 33, 64, 64, 3, 1);
  wide.groups = 2;
  std::vector<std::pair<const char*, const ConvGeometry*>> kernels = {
      {"few_filters", &few_filters},  {"few_channels", &few_channels},
      {"pointwise", &point},          {"depthwise", &depthwise},
      {"grouped", &grouped},          {"general", &plain},
      {"depthwise", &rows},           {"grouped_patch", &wide},
      {"narrow_input", &few_channels}};
  for (const auto& [kernel, geometry] : kernels) {
    expect_right_with_every_epilogue(with_kernel(*geometry, kernel));
  }
}

TEST_F(Small, FilterLayouts) {
  for (const FilterLayout layout : {FilterLayout::krsc, FilterLayout::kcrs, FilterLayout::rscf}) {
    for (const DType dtype : {DType::bf16, DType::fp32}) {
      ConvCase test = with_kernel(shape_2d(1, 6, 7, 10, 12, 3, 1), "general", dtype);
      test.filter_layout = layout;
      expect_right(test);
    }
  }
  ConvCase test = with_kernel(shape_3d(0, 3, 2, 5, 6, 8, 12), "general");
  test.filter_layout = FilterLayout::kctrs;
  expect_right(test);
  test.filter_layout = FilterLayout::trscf;
  expect_right(test);
}

TEST_F(Small, NextCache) {
  for (const std::int64_t channels : {3, 16}) {
    for (const std::int64_t cached : {0, 1, 2}) {
      for (const std::int64_t frames : {1, 2, 4}) {
        ConvCase test =
            with_kernel(shape_3d(cached, frames, 2 - cached, 5, 6, channels, 4), "general");
        test.next_cache = true;
        expect_right(test);
      }
    }
  }
}

// Four 2×2 phase convolutions of the small input are the 3×3 convolution of the upsampled one.
void check_folded_filters(UpsampleFolding folding) {
  Conv2dProblemShape shape{.in_height = 4,
                           .in_width = 5,
                           .in_channels = 3,
                           .out_channels = 2,
                           .filter_h = 3,
                           .filter_w = 3,
                           .pad_h = 1,
                           .pad_w = 1,
                           .upsample = 2};
  ConvGeometry g = geometry_of(shape);
  g.upsample_folding = folding;
  const int terms = folding == UpsampleFolding::exact ? 2 : 1;
  ASSERT_EQ(upsample_folding_refusal(g), "");
  std::mt19937 random(5);
  std::vector<float> filter(2 * 3 * 3 * 3), input(4 * 5 * 3);
  // Sums of these need more bits than bf16 has, and fewer than two of it.
  for (float& x : filter) x = float(int(random() % 511) - 255);
  for (float& x : input) x = float(int(random() % 7) - 3);
  void *source = nullptr, *packed = nullptr;
  const std::size_t bytes = upsampled_filter_bytes(g, DType::bf16);
  ASSERT_EQ(bytes, 4u * 2 * 2 * 2 * 3 * terms * 2);
  std::vector<std::uint16_t> stored(filter.size());
  for (std::size_t i = 0; i < filter.size(); ++i)
    store_element(stored.data(), i, DType::bf16, filter[i]);
  ASSERT_EQ(cudaMalloc(&source, stored.size() * 2), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&packed, bytes), cudaSuccess);
  cudaMemcpy(source, stored.data(), stored.size() * 2, cudaMemcpyHostToDevice);
  pack_upsampled_filter(packed, source, FilterLayout::krsc, g, DType::bf16, nullptr);
  std::vector<std::uint16_t> phases(bytes / 2);
  ASSERT_EQ(cudaMemcpy(phases.data(), packed, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
  cudaFree(source);
  cudaFree(packed);

  const auto at = [&](int h, int w, int c) {
    return h < 0 || w < 0 || h >= 4 || w >= 5 ? 0.0f : input[(h * 5 + w) * 3 + c];
  };
  int rounded = 0;
  const auto floor_half = [](int x) { return x < 0 ? (x - 1) / 2 : x / 2; };
  for (int p = 0; p < 8; ++p) {
    for (int q = 0; q < 10; ++q) {
      for (int k = 0; k < 2; ++k) {
        float direct = 0, folded = 0, magnitude = 0;
        for (int r = 0; r < 3; ++r) {
          for (int s = 0; s < 3; ++s) {
            for (int c = 0; c < 3; ++c) {
              const float x = at(floor_half(p + r - 1), floor_half(q + s - 1), c);
              direct += x * filter[((k * 3 + r) * 3 + s) * 3 + c];
              magnitude += std::fabs(x * filter[((k * 3 + r) * 3 + s) * 3 + c]);
            }
          }
        }
        const int a = p % 2, b = q % 2;
        for (int term = 0; term < terms; ++term) {
          for (int u = 0; u < 2; ++u) {
            for (int v = 0; v < 2; ++v) {
              for (int c = 0; c < 3; ++c) {
                const int filter_of_term = ((a * 2 + b) * 2 + k) * terms + term;
                folded += at(p / 2 - 1 + a + u, q / 2 - 1 + b + v, c) *
                          load_element(phases.data(), ((filter_of_term * 2 + u) * 2 + v) * 3 + c,
                                       DType::bf16);
              }
            }
          }
        }
        if (folding == UpsampleFolding::exact) {
          ASSERT_EQ(direct, folded) << "p " << p << " q " << q << " k " << k;
        } else {
          ASSERT_NEAR(direct, folded, magnitude / 256) << "p " << p << " q " << q << " k " << k;
          rounded += direct != folded ? 1 : 0;
        }
      }
    }
  }
  EXPECT_EQ(rounded > 0, folding == UpsampleFolding::fast);
}

TEST_F(Small, FoldedUpsamplingFilters) {
  check_folded_filters(UpsampleFolding::exact);
  check_folded_filters(UpsampleFolding::fast);
}

// Rows and columns far past a small image: one reflection of them lies outside it again, in memory
// that is not the tensor's.
TEST_F(Small, ReflectedPaddingUnderATileThatReachesPastTheOutput) {
  const auto reflected = [](int channels, int filters, const char* kernel) {
    ConvGeometry g = shape_2d(2, 2, 3, channels, filters, 3, 1);
    g.pad_mode = {PadMode::zero, PadMode::reflect, PadMode::reflect};
    expect_right(with_kernel(g, kernel));
  };
  for (const int channels : {3, 6, 16}) reflected(channels, 8, "few_channels");
  for (const int channels : {1, 3, 6}) reflected(channels, 8, "narrow_input");
  reflected(6, 8, "general");
}

// An Inf of the input reaches exactly the outputs whose taps lie on it.
TEST_F(Small, InfinityStaysUnderItsTaps) {
  Conv2dProblemShape shape{.in_height = 8,
                           .in_width = 40,
                           .in_channels = 3,
                           .out_channels = 8,
                           .filter_h = 3,
                           .filter_w = 3,
                           .pad_h = 1,
                           .pad_w = 1};
  std::vector<std::uint16_t> input(8 * 40 * 3, bf16_from_float(1.0f)),
      filter(8 * 27, bf16_from_float(1.0f)), output(8 * 40 * 8);
  input[(4 * 40 + 20) * 3] = bf16_from_float(std::numeric_limits<float>::infinity());
  void *x = nullptr, *w = nullptr, *y = nullptr;
  ASSERT_EQ(cudaMalloc(&x, input.size() * 2), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&w, filter.size() * 2), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&y, output.size() * 2), cudaSuccess);
  cudaMemcpy(x, input.data(), input.size() * 2, cudaMemcpyHostToDevice);
  cudaMemcpy(w, filter.data(), filter.size() * 2, cudaMemcpyHostToDevice);
  for (const char* kernel : {"few_channels", "narrow_input"}) {
    PlanOptions options;
    options.kernel = kernel;
    options.device = Device::cuda;
    const Plan plan = convoy::plan(shape, options);
    plan.run({.output = y, .activation = ConstTensorView(x), .filter = FilterRef(w)});
    ASSERT_EQ(cudaMemcpy(output.data(), y, output.size() * 2, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int p = 0; p < 8; ++p) {
      for (int q = 0; q < 40; ++q) {
        const bool under = std::abs(p - 4) <= 1 && std::abs(q - 20) <= 1;
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

// One element to be found beyond 2^31: a tensor of 2^31 + 2^26 elements (4.3 GB).
TEST_F(Small, PastTwoToThe31Elements) {
  std::size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  if (free_bytes < (std::size_t{12} << 30)) GTEST_SKIP() << "needs 12 GiB of device memory";
  const std::int64_t height = 33 * 1024, width = 1024, channels = 64;
  const std::size_t elements = std::size_t(height) * width * channels;
  for (const char* kernel : {"general", "few_filters"}) {
    Conv2dProblemShape shape{.in_height = height,
                             .in_width = width,
                             .in_channels = channels,
                             .out_channels = 1,
                             .filter_h = 3,
                             .filter_w = 3,
                             .pad_h = 1,
                             .pad_w = 1};
    PlanOptions options;
    options.kernel = kernel;
    options.device = Device::cuda;
    const Plan plan = convoy::plan(shape, options);
    void *x = nullptr, *w = nullptr, *y = nullptr;
    ASSERT_EQ(cudaMalloc(&x, elements * 2), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&w, 9 * channels * 2), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&y, std::size_t(height) * width * 2), cudaSuccess);
    cudaMemset(x, 0, elements * 2);
    std::vector<std::uint16_t> filter(9 * channels, bf16_from_float(1.0f));
    cudaMemcpy(w, filter.data(), filter.size() * 2, cudaMemcpyHostToDevice);
    // The last pixel but one, and its alias 2^32 bytes below must stay alone.
    const std::uint16_t five = bf16_from_float(5.0f);
    const std::size_t at = ((std::size_t(height) - 2) * width + width - 2) * channels + 7;
    cudaMemcpy(static_cast<std::uint16_t*>(x) + at, &five, 2, cudaMemcpyHostToDevice);
    plan.run({.output = y, .activation = ConstTensorView(x), .filter = FilterRef(w)});
    std::vector<std::uint16_t> output(std::size_t(height) * width);
    ASSERT_EQ(cudaMemcpy(output.data(), y, output.size() * 2, cudaMemcpyDeviceToHost), cudaSuccess);
    std::int64_t fives = 0;
    for (std::uint16_t bits : output) fives += bits == five;
    EXPECT_EQ(fives, 9) << kernel;
    EXPECT_EQ(output.back(), five) << kernel;
    EXPECT_EQ(std::count(output.begin(), output.end(), 0), height * width - 9) << kernel;
    cudaFree(x);
    cudaFree(w);
    cudaFree(y);
  }
}

// ---- Random problems ------------------------------------------------------------------------

// CONVOY_FUZZ_COUNT problems from CONVOY_FUZZ_SEED; a failure's message gives its own seed.
TEST_F(Small, RandomProblems) {
  const char* count_text = std::getenv("CONVOY_FUZZ_COUNT");
  const char* seed_text = std::getenv("CONVOY_FUZZ_SEED");
  const std::uint64_t count = count_text ? std::strtoull(count_text, nullptr, 10) : 40;
  const std::uint64_t first = seed_text ? std::strtoull(seed_text, nullptr, 10) : 1;
  const std::set<std::string> small = {"few_filters",  "few_filters_async", "few_channels",
                                       "narrow_input", "pointwise",         "depthwise",
                                       "grouped",      "grouped_patch",     "general"};
  std::set<std::string> used;
  for (std::uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
    ConvCase test = random_case(seed, {.flops = 2e7});
    test.options.device = Device::cuda;
    test.runs = 1;
    for (const Candidate& candidate : candidates_of(test)) {
      if (!candidate.reason.empty() || !small.contains(candidate.kernel)) continue;
      test.options.kernel = candidate.kernel;
      expect_right(test);
      used.insert(candidate.kernel);
    }
    test.options.kernel.clear();
    expect_right(test);
  }
  if (count >= 200) {
    for (const char* kernel :
         {"general", "few_channels", "narrow_input", "few_filters", "depthwise"}) {
      EXPECT_EQ(used.count(kernel), 1u) << kernel << " never ran";
    }
  }
}

}  // namespace
}  // namespace convoy::test
