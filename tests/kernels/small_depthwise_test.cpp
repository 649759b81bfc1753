// SPDX-License-Identifier: Apache-2.0
//
// depthwise, each of the kernels behind it.
#include <gtest/gtest.h>

#include <array>

#include "small_case.hpp"

namespace convoy::test {
namespace {

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
    test.epilogue.activation = Activation::tanh;  // Not in registers.
    expect_right(test);
  }
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
    test.epilogue.activation = Activation::tanh;  // Not in registers.
    expect_right(test);
  };
  ring(7, 30, 64, 1, DType::bf16);   // The last strip is short.
  ring(8, 30, 144, 0, DType::fp16);  // 18 lanes; two threads have no strip.
}

/// 5×5 and 7×7 on more than a round of threads with a row each: TMA brings tiles of the input.
class DepthwiseTile : public Small {
 protected:
  void SetUp() override {
    Small::SetUp();
    if (!IsSkipped() && compute_capability() < 90) GTEST_SKIP() << "needs compute capability 9.0";
  }
  static Conv3dProblemShape volumes(std::int64_t n, std::array<std::int64_t, 3> in, std::int64_t c,
                                    std::int64_t filter, std::array<std::int64_t, 3> stride) {
    const std::int64_t pad = filter / 2;
    return {.batch = n,
            .in_depth = in[0],
            .in_height = in[1],
            .in_width = in[2],
            .in_channels = c,
            .out_channels = c,
            .filter = {filter, filter, filter},
            .pad_begin = {pad, pad, pad},
            .pad_end = {pad, pad, pad},
            .stride = stride,
            .groups = c};
  }
  static void expect_volume(const Conv3dProblemShape& shape, DType dtype) {
    ConvCase test = with_kernel(geometry_of(shape), "depthwise", dtype);
    test.sample = 20000;
    expect_right(test);
  }
  /// So many images that there are two rounds of threads.
  static ConvCase tiles(std::int64_t h, std::int64_t w, std::int64_t c, std::int64_t filter,
                        std::int64_t stride, DType dtype, std::int64_t pad, std::int64_t more = 0) {
    Conv3dProblemShape shape{.batch = 1,
                             .in_depth = 1,
                             .in_height = h,
                             .in_width = w,
                             .in_channels = c,
                             .out_channels = c,
                             .filter = {1, filter, filter},
                             .pad_begin = {0, pad, pad},
                             .pad_end = {0, pad + more, pad},
                             .stride = {1, stride, stride},
                             .groups = c};
    const ConvGeometry image = geometry_of(shape);
    constexpr std::int64_t kThreads = 6 * 128;  // Of a multiprocessor, at most.
    const std::int64_t threads = image.out[1] * ((image.out[2] + 1) / 2) * c / 2;
    shape.batch = 1 + 2 * kThreads * multiprocessors() / threads;
    ConvCase test = with_kernel(geometry_of(shape), "depthwise", dtype);
    test.sample = 20000;
    return test;
  }
};

TEST_F(DepthwiseTile, FiltersAndStrides) {
  for (const std::int64_t filter : {5, 7}) {
    for (const std::int64_t stride : {1, 2}) {
      const std::int64_t pad = filter / 2;
      expect_right(tiles(14, 14, 64, filter, stride, DType::bf16, pad));  // A slab.
      expect_right(tiles(13, 19, 80, filter, stride, DType::fp16, pad));  // Two of 40 channels.
      expect_right(tiles(9, 31, 160, filter, stride, DType::bf16, pad));  // The last is shorter.
      expect_right(tiles(30, 32, 8, filter, stride, DType::fp16, 0));     // Four lanes.
      expect_right(tiles(10, 12, 24, filter, stride, DType::bf16, pad + 4, 3));
    }
  }
}

// Several images a tile, of which the last has fewer; images of a pixel; tiles beside each other.
TEST_F(DepthwiseTile, Extents) {
  expect_right(tiles(3, 4, 72, 5, 1, DType::bf16, 2));
  expect_right(tiles(7, 7, 136, 7, 1, DType::fp16, 3));
  expect_right(tiles(1, 1, 64, 7, 1, DType::bf16, 3));
  expect_right(tiles(5, 301, 16, 7, 1, DType::bf16, 3));
  expect_right(tiles(131, 18, 40, 5, 2, DType::fp16, 2));
}

// Frames under a filter: more than stages, fewer than taps; each stride; a shorter last chunk.
TEST_F(DepthwiseTile, Volumes) {
  for (const std::int64_t filter : {3, 5}) {
    expect_volume(volumes(2, {11, 9, 13}, 64, filter, {1, 1, 1}), DType::bf16);
    expect_volume(volumes(3, {9, 10, 15}, 80, filter, {2, 2, 2}), DType::fp16);
    expect_volume(volumes(1, {7, 12, 9}, 24, filter, {1, 2, 2}), DType::bf16);
    expect_volume(volumes(1, {13, 5, 6}, 8, filter, {3, 1, 1}), DType::fp16);
    expect_volume(volumes(70, {1, 4, 5}, 72, filter, {1, 1, 1}), DType::bf16);
    expect_volume(volumes(9, {2, 3, 33}, 136, filter, {1, 1, 1}), DType::fp16);
  }
  Conv3dProblemShape odd = volumes(2, {6, 7, 11}, 40, 3, {1, 1, 1});
  odd.pad_begin = {2, 0, 3};
  odd.pad_end = {0, 4, 1};
  expect_volume(odd, DType::bf16);
  odd.pad_begin[0] = 5;  // Frames of which all taps lie outside.
  expect_volume(odd, DType::bf16);
}

TEST_F(DepthwiseTile, VolumesWithEpilogues) {
  ConvCase test =
      with_kernel(geometry_of(volumes(2, {4, 6, 8}, 48, 3, {1, 1, 1})), "depthwise", DType::bf16);
  expect_right_with_short_epilogues(test);
}

TEST_F(DepthwiseTile, Epilogues) {
  ConvCase test = tiles(9, 11, 40, 5, 1, DType::bf16, 2);
  test.sample = 4000;
  expect_right_with_short_epilogues(test);
  test.bias = true;
  test.epilogue.activation = Activation::tanh;  // Not in registers.
  expect_right(test);
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
      test.epilogue.activation = Activation::tanh;  // Not in registers.
      expect_right(test);
      const std::int64_t rows = (23 + stride - 1) / stride,
                         strips = (29 + 4 * stride - 1) / (4 * stride);
      check(2 + 1024 * multiprocessors() / (rows * strips * 8), 16, 23, 29, filter / 2);
    }
  }
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

}  // namespace
}  // namespace convoy::test
