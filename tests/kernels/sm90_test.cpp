// SPDX-License-Identifier: Apache-2.0
//
// Every Hopper candidate on shapes with a reason, then on random problems. Small integers, so that
// every bit of the output is determined.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "kernel_case.hpp"
#include "kernels/sm90/host.hpp"
#include "support/conv_case.hpp"
#include "support/guarded_buffer.hpp"

namespace convoy::test {
namespace {

bool is_sm90(const Candidate& candidate) {
  return candidate.kernel.starts_with("sm90_");
}

// Run the case on every sm90 candidate that accepts it and has `part` in its name; return how many
// there were.
int run_on_all(ConvCase test, const std::string& part = "") {
  int ran = 0;
  for (const Candidate& candidate : candidates_of(test)) {
    if (!is_sm90(candidate) || !candidate.reason.empty()) continue;
    if (candidate.kernel.find(part) == std::string::npos) continue;
    test.options.kernel = candidate.kernel;
    ++ran;
    EXPECT_EQ(wrong_with(test), "") << describe(test);
  }
  return ran;
}

class Sm90 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (compute_capability() == 0) GTEST_SKIP() << "no CUDA device";
    ConvCase probe = image({.in_height = 8, .in_width = 8, .in_channels = 8, .out_channels = 8});
    for (const Candidate& candidate : candidates_of(probe)) {
      if (is_sm90(candidate) && candidate.reason.empty()) return;
    }
    GTEST_SKIP() << "no Hopper GPU";
  }
};

TEST_F(Sm90, RaggedTilesAndChannels) {
  // Half a channel block, filters that end inside a tile, patches cut on both sides.
  EXPECT_GT(run_on_all(image({.in_height = 11,
                              .in_width = 19,
                              .in_channels = 96,
                              .out_channels = 104,
                              .filter_h = 3,
                              .filter_w = 3,
                              .pad_h = 1,
                              .pad_w = 1})),
            10);
}

TEST_F(Sm90, StoresWithoutTma) {
  ConvCase test = image({.in_height = 9,
                         .in_width = 10,
                         .in_channels = 40,
                         .out_channels = 37,
                         .filter_h = 3,
                         .filter_w = 3,
                         .pad_h = 1,
                         .pad_w = 1});
  test.bias = test.residual = true;
  EXPECT_GT(run_on_all(test), 10);
  // Whole rows of the output in a piece: eight pixels at a time where they begin at 16 bytes.
  for (const int filters : {3, 19, 36}) {
    for (const int taps : {1, 3}) {
      test = image({.batch = 2,
                    .in_height = 5,
                    .in_width = 20,
                    .in_channels = 24,
                    .out_channels = filters,
                    .filter_h = taps,
                    .filter_w = taps,
                    .pad_h = taps / 2,
                    .pad_w = taps / 2});
      test.residual = filters == 19;
      EXPECT_GT(run_on_all(test), 10);
    }
  }
}

TEST_F(Sm90, StrideDilationAndAsymmetricPadding) {
  EXPECT_GT(run_on_all(image({.batch = 2,
                              .in_height = 17,
                              .in_width = 21,
                              .in_channels = 16,
                              .out_channels = 64,
                              .filter_h = 3,
                              .filter_w = 2,
                              .pad_h = 2,
                              .pad_w = 0,
                              .stride_h = 2,
                              .stride_w = 3,
                              .dilation_h = 2,
                              .pad_h_end = 1,
                              .pad_w_end = 2})),
            5);
}

TEST_F(Sm90, PlanesOfTheInput) {
  // Every way that taps fall on planes: one filter smaller than its stride, strides that differ, a
  // dilation beside a stride, padding that starts on another plane.
  const Conv2dProblemShape base{.batch = 2,
                                .in_height = 19,
                                .in_width = 23,
                                .in_channels = 72,
                                .out_channels = 40,
                                .filter_h = 3,
                                .filter_w = 3,
                                .pad_h = 1,
                                .pad_w = 1,
                                .stride_h = 2,
                                .stride_w = 2};
  EXPECT_GT(run_on_all(image(base), "_planes_"), 1);
  Conv2dProblemShape shape = base;
  shape.filter_h = shape.filter_w = 5;
  shape.pad_h = 2;
  shape.pad_w_end = 3;
  EXPECT_GT(run_on_all(image(shape), "_planes_"), 1);
  shape.stride_w = 3;
  EXPECT_GT(run_on_all(image(shape), "_planes_"), 1);
  shape = base;
  shape.stride_h = 1;
  shape.dilation_h = 2;
  EXPECT_GT(run_on_all(image(shape), "_planes_"), 1);
  shape = base;
  shape.filter_h = 1;
  shape.pad_h = 0;
  shape.stride_w = 4;
  EXPECT_GT(run_on_all(image(shape), "_planes_"), 1);
  ConvCase test = image(base);
  test.bias = test.residual = true;
  EXPECT_GT(run_on_all(test, "_planes_"), 1);
}

TEST_F(Sm90, PlanesOfFrames) {
  ConvCase test = volume({.in_depth = 5,
                          .in_height = 13,
                          .in_width = 11,
                          .in_channels = 24,
                          .out_channels = 40,
                          .filter = {3, 3, 3},
                          .pad_begin = {0, 1, 1},
                          .pad_end = {0, 1, 1},
                          .stride = {2, 2, 2},
                          .cached_frames = 2});
  EXPECT_GT(run_on_all(test, "_planes_"), 1);
}

TEST_F(Sm90, PlanesOfManyTiles) {
  // Persistent CTAs: rings of planes that wrap, warpgroups that skip each other's.
  ConvCase test = image({.in_height = 399,
                         .in_width = 300,
                         .in_channels = 24,
                         .out_channels = 136,
                         .filter_h = 3,
                         .filter_w = 3,
                         .pad_h = 1,
                         .pad_w = 1,
                         .stride_h = 2,
                         .stride_w = 2});
  test.sample = 20000;
  EXPECT_GT(run_on_all(test, "_planes_"), 1);
}

TEST_F(Sm90, FewFiltersOfManyChannels) {
  EXPECT_GT(run_on_all(image({.in_height = 17,
                              .in_width = 19,
                              .in_channels = 136,
                              .out_channels = 24,
                              .filter_h = 3,
                              .filter_w = 3,
                              .pad_h = 1,
                              .pad_w = 1})),
            10);
}

// Groups: blocks of channels and tiles of filters end where a group does, whatever the loader.
TEST_F(Sm90, Groups) {
  // 56 channels (half an MMA step behind the last), 40 filters; patches and runs.
  Conv2dProblemShape shape{.batch = 2,
                           .in_height = 11,
                           .in_width = 19,
                           .in_channels = 5 * 56,
                           .out_channels = 5 * 40,
                           .filter_h = 3,
                           .filter_w = 3,
                           .pad_h = 1,
                           .pad_w = 1,
                           .groups = 5};
  ConvCase test = image(shape);
  EXPECT_GT(run_on_all(test), 5);
  test.bias = test.residual = true;
  test.epilogue.activation = Activation::relu;
  for (const EpilogueRounding rounding : {EpilogueRounding::once, EpilogueRounding::each_step}) {
    test.epilogue.rounding = rounding;
    EXPECT_GT(run_on_all(test), 5);
  }
}

TEST_F(Sm90, GroupsWithStrides) {
  // Four, as an upsampling has phases; planes, runs that straddle images; several blocks of
  // channels and tiles of filters.
  Conv2dProblemShape shape{.batch = 2,
                           .in_height = 9,
                           .in_width = 21,
                           .in_channels = 4 * 72,
                           .out_channels = 4 * 136,
                           .filter_h = 3,
                           .filter_w = 3,
                           .pad_h = 1,
                           .pad_w = 1,
                           .stride_h = 2,
                           .stride_w = 2,
                           .groups = 4};
  ConvCase test = image(shape);
  test.bias = true;
  EXPECT_GT(run_on_all(test, "_planes_"), 1);
  EXPECT_EQ(run_on_all(test, "_grouped_"), 2);
  // 1x1.
  shape.filter_h = shape.filter_w = 1, shape.pad_h = shape.pad_w = 0;
  EXPECT_EQ(run_on_all(image(shape)), 2);
  shape.stride_h = shape.stride_w = 1;
  test = image(shape);
  test.bias = test.residual = true;
  EXPECT_EQ(run_on_all(test), 2);
  // Beyond the offsets of an im2col copy: 8 x 8 boxes.
  shape.filter_w = 33, shape.pad_w = 128, shape.dilation_w = 8;
  shape.in_channels = 4 * 16, shape.out_channels = 4 * 8;
  EXPECT_GT(run_on_all(image(shape)), 0);
}

TEST_F(Sm90, GroupsOfFrames) {
  ConvCase test = volume({.batch = 2,
                          .in_depth = 3,
                          .in_height = 9,
                          .in_width = 10,
                          .in_channels = 2 * 40,
                          .out_channels = 2 * 24,
                          .filter = {3, 3, 3},
                          .pad_begin = {0, 1, 1},
                          .pad_end = {0, 1, 1},
                          .groups = 2,
                          .cached_frames = 2});
  test.next_cache = true;
  test.bias = true;
  EXPECT_GT(run_on_all(test), 5);
}

TEST_F(Sm90, GroupsOfManyTiles) {
  ConvCase test = image({.batch = 2,
                         .in_height = 61,
                         .in_width = 70,
                         .in_channels = 8 * 32,
                         .out_channels = 8 * 32,
                         .filter_h = 3,
                         .filter_w = 3,
                         .pad_h = 1,
                         .pad_w = 1,
                         .groups = 8});
  test.sample = 20000;
  EXPECT_GT(run_on_all(test), 5);
}

// Packed filters: blocks of channels in lines of 128 bytes, zeros behind.
TEST_F(Sm90, PackedFiltersInLines) {
  // A part of a step, of a block, several blocks of 48 and of 64 channels; a whole line is dense.
  const std::map<std::int64_t, std::string> blocks = {{8, "ktrsc_blocks_16"},
                                                      {24, "ktrsc_blocks_32"},
                                                      {40, "ktrsc_blocks_48"},
                                                      {64, "ktrsc"},
                                                      {72, "ktrsc_blocks_48"},
                                                      {96, "ktrsc_blocks_48"},
                                                      {120, "ktrsc_blocks_64"},
                                                      {168, "ktrsc_blocks_64"},
                                                      {192, "ktrsc"}};
  for (const auto& [channels, format] : blocks) {
    for (const std::int64_t groups : {1, 3}) {
      ConvCase test = image({.in_height = 9,
                             .in_width = 10,
                             .in_channels = groups * channels,
                             .out_channels = groups * 40,
                             .filter_h = 3,
                             .filter_w = 2,
                             .pad_h = 1,
                             .groups = groups});
      test.options.packed_filter = true;
      EXPECT_GT(run_on_all(test), 5);
      test.options.kernel = "sm90_fprop_64x64_pingpong_halo_bf16";
      EXPECT_TRUE(plan_case(test).filter_format().starts_with(format + " "));
    }
  }
}

TEST_F(Sm90, GroupsThatAreRefused) {
  const auto reason = [](const Conv2dProblemShape& shape, const std::string& kernel) {
    for (const Candidate& candidate : candidates_of(image(shape))) {
      if (candidate.kernel == kernel) return candidate.reason;
    }
    return "no " + kernel;
  };
  const auto expect = [&](const Conv2dProblemShape& shape, const std::string& tile,
                          const std::string& part) {
    const std::string got = reason(shape, "sm90_fprop_" + tile + "_bf16");
    EXPECT_NE(got.find(part), std::string::npos) << got;
  };
  const std::string tile = "128x64_pingpong_grouped";
  Conv2dProblemShape shape{
      .in_height = 8, .in_width = 8, .in_channels = 24, .out_channels = 32, .groups = 2};
  expect(shape, tile, "in_channels / groups = 12; legal: a multiple of 8");
  shape.in_channels = 32, shape.out_channels = 24;
  expect(shape, tile, "out_channels / groups = 12; legal: a multiple of 8");
  shape.out_channels = 32;
  expect(shape, "128x64_pingpong", "groups = 2; legal: 1 (tiles of halo, planes and grouped");
  EXPECT_EQ(reason(shape, "sm90_fprop_" + tile + "_bf16"), "");
  shape.groups = 1;
  expect(shape, tile, "groups = 1; legal: more");
  shape.groups = 2;
  shape.filter_h = shape.filter_w = 3, shape.pad_h = shape.pad_w = 1, shape.upsample = 2;
  const ConvGeometry upsampled = geometry_of(shape);
  shape.upsample = 1;
  const ConvGeometry g = geometry_of(shape);
  for (const sm90::Instance& instance : sm90::instances()) {
    const sm90::Config& config = instance.config;
    if (config.in == DType::fp32) continue;
    EXPECT_NE(sm90::refusal(instance, upsampled, true), "") << sm90::name_of(instance);
    if (instance.has(sm90::EpiloguePath::statistics)) {
      EXPECT_EQ(sm90::statistics_refusal(instance, g, {}, 4),
                "statistics of 4 groups of a convolution of groups = 2; legal: 1");
    }
  }
}

TEST(Sm90Instances, RefuseEpiloguesWithoutAnEntryPoint) {
  const auto geometry = [](std::int64_t filters) {
    const Conv2dProblemShape shape{
        .in_height = 8, .in_width = 8, .in_channels = 64, .out_channels = filters};
    return geometry_of(shape);
  };
  const EpilogueKind each_step{.rounding = EpilogueRounding::each_step};
  const EpilogueKind gelu{.activation = Activation::gelu};
  const EpilogueKind silu{.activation = Activation::silu, .residual = true};
  const EpilogueKind leaky{.activation = Activation::leaky_relu, .residual = true};
  const EpilogueKind hardswish{.activation = Activation::hardswish};
  EpilogueKind hardswish_and_residual = hardswish;
  hardswish_and_residual.residual = true;
  const auto refused = [](const EpilogueKind& epilogue, const char* legal) {
    return "an epilogue " + to_string(epilogue) + "; legal: " + legal;
  };
  int usual = 0, curved = 0, uncurved = 0, all = 0;
  for (const sm90::Instance& instance : sm90::instances()) {
    SCOPED_TRACE(sm90::name_of(instance));
    const auto reason = [&](std::int64_t filters, const EpilogueKind& epilogue) {
      return sm90::epilogue_refusal(instance, geometry(filters), epilogue);
    };
    const bool splits = instance.config.splits_k();
    const bool general = instance.has(sm90::EpiloguePath::general);
    const bool of_curved = instance.has(sm90::EpiloguePath::curved);
    EXPECT_EQ(reason(64, silu), "");
    EXPECT_EQ(reason(64, leaky), "");
    EXPECT_EQ(reason(64, hardswish).empty(), !splits || general || of_curved);
    EXPECT_EQ(reason(64, hardswish_and_residual).empty(), general || (splits && of_curved));
    if (general) {
      const bool takes_gelu = of_curved || instance.config.out == DType::fp32 ||
                              !instance.has(sm90::EpiloguePath::fused);
      ++(takes_gelu ? all : uncurved);
      EXPECT_EQ(reason(63, each_step), "");
      EXPECT_EQ(reason(63, gelu), "");
      EXPECT_EQ(reason(64, gelu), takes_gelu ? ""
                                             : refused(gelu,
                                                       "any but gelu, gelu_tanh, sigmoid or tanh "
                                                       "without a residual, rounded once"));
    } else {
      const char* const legal =
          splits ? (of_curved ? "rounded once" : "none, relu, silu, leaky_relu, rounded once")
          : of_curved
              ? "none, relu, silu, leaky_relu, and any without a residual, rounded once"
              : "none, relu, silu, leaky_relu, and clamp, hardswish without a residual, rounded "
                "once";
      ++(of_curved ? curved : usual);
      EXPECT_EQ(reason(64, each_step), refused(each_step, legal));
      EXPECT_EQ(reason(64, gelu), of_curved ? "" : refused(gelu, legal));
      EXPECT_EQ(reason(63, {}),
                "out_channels = 63; legal: rows of a multiple of 16 bytes (TMA stores)");
    }
  }
  EXPECT_GT(usual, 10);
  EXPECT_GT(curved, 1);
  EXPECT_GT(uncurved, 1);
  EXPECT_GT(all, 30);
}

// Products of matrices have entry points of their own, with shorter paths too; what has none takes
// that of every layer.
TEST(Sm90Instances, MatricesHaveEntryPointsOfTheirOwn) {
  using enum sm90::EpiloguePath;
  int own = 0, apart = 0, resident = 0;
  for (const sm90::Instance& instance : sm90::instances()) {
    SCOPED_TRACE(sm90::name_of(instance));
    const auto entry = [&](sm90::EpiloguePath path, bool is_matrix) {
      return sm90::entry_of(instance, path, is_matrix);
    };
    const bool has_all = instance.has(fused);  // Else the general one is alone.
    for (const sm90::EpiloguePath path : {linear, plain, fused}) {
      EXPECT_NE(entry(path, false), nullptr);
      EXPECT_NE(entry(path, true), nullptr);
      if (!has_all) EXPECT_EQ(entry(path, false), entry(general, false));
    }
    const bool is_runs = instance.config.input == sm90::Input::runs;
    if (!is_runs || !has_all) {
      EXPECT_EQ(entry(linear, true), entry(linear, false));
      resident += instance.config.is_resident() && entry(linear, true) != entry(plain, true);
      continue;
    }
    if (!instance.config.splits_k()) EXPECT_NE(entry(plain, false), entry(fused, false));
    EXPECT_EQ(entry(linear, false), entry(instance.config.splits_k() ? fused : plain, false));
    own += entry(linear, true) != entry(linear, false);
    apart += entry(fused, true) != entry(fused, false);
    EXPECT_EQ(entry(fused, true) != entry(fused, false), instance.config.takes_matrices_apart());
  }
  EXPECT_GT(own, 20);
  EXPECT_GT(apart, 10);
  EXPECT_GT(resident, 5);
}

TEST_F(Sm90, WideHalos) {
  // 5x5 in narrow tiles.
  ConvCase test = image({.in_height = 21,
                         .in_width = 37,
                         .in_channels = 40,
                         .out_channels = 48,
                         .filter_h = 5,
                         .filter_w = 5,
                         .pad_h = 2,
                         .pad_w = 2});
  test.bias = test.residual = true;
  EXPECT_GT(run_on_all(test, "x64_pingpong_halo_"), 0);
  EXPECT_GT(run_on_all(test, "x32_pingpong_halo_"), 1);
}

// Some M tiles go before many filters, and the last group of them has fewer; over images, and of
// CTAs that share tiles.
TEST_F(Sm90, TilesInGroups) {
  int multiprocessors = 0;
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0);
  for (const auto& [batch, height] : {std::pair{1, 19}, std::pair{3, 7}}) {
    const Conv2dProblemShape shape{.batch = batch,
                                   .in_height = height,
                                   .in_width = 40,
                                   .in_channels = 16,
                                   .out_channels = 2568};
    const ConvGeometry g = geometry_of(shape);
    ConvCase test = image(shape);
    test.bias = true;
    int ran = 0, uneven = 0;
    for (const sm90::Instance& instance : sm90::instances()) {
      if (instance.config.in != DType::bf16 || instance.config.out != DType::bf16) continue;
      if (!sm90::refusal(instance, g, true).empty()) continue;
      if (instance.config.is_resident()) continue;
      sm90::LaunchOptions options;
      options.packed_filter = true;
      options.multiprocessors = multiprocessors;
      const sm90::Tiling tiling = sm90::plan_tiling(instance, g, options);
      const sm90::TileOrder& order = tiling.params.order;
      if (order.group == 1 || order.group == order.m_tiles) continue;
      uneven += order.m_tiles % order.group != 0;
      ran += run_on_all(test, sm90::name_of(instance));
    }
    EXPECT_GE(ran, 6);
    EXPECT_GE(uneven, 2);
  }
}

// Taps along the depth alone slide over a patch of frames by pixels, and over its planes.
TEST_F(Sm90, FramesAsRows) {
  ConvCase test = with_kernel(temporal(9, 3, 1, 3, 13, 72, 104), "");
  test.bias = test.residual = true;
  EXPECT_GT(run_on_all(test, "_halo_"), 5);
  EXPECT_GT(run_on_all(with_kernel(temporal(5, 3, 2, 5, 7, 40, 64), ""), "_halo_"), 5);
  EXPECT_GT(run_on_all(with_kernel(temporal(11, 5, 2, 2, 17, 64, 40, 2), ""), "_planes_"), 2);
}

// Images of one row: runs of pixels with their halo.
TEST_F(Sm90, Lines) {
  Conv2dProblemShape shape{.batch = 3,
                           .in_height = 1,
                           .in_width = 301,
                           .in_channels = 72,
                           .out_channels = 104,
                           .filter_h = 1,
                           .filter_w = 3,
                           .pad_w = 1};
  ConvCase test = image(shape);
  test.bias = test.residual = true;
  test.epilogue.activation = Activation::silu;
  EXPECT_GT(run_on_all(test, "_halo_"), 5);
  // Dilation, asymmetric padding; halos of two boxes in tiles of 256 pixels.
  shape.filter_w = 11, shape.dilation_w = 3, shape.pad_w = 29, shape.pad_w_end = 3;
  EXPECT_GT(run_on_all(image(shape), "_halo_"), 5);
  // Two taps, and no padding.
  shape.filter_w = 2, shape.dilation_w = 1, shape.pad_w = 0, shape.pad_w_end = 0;
  EXPECT_GT(run_on_all(image(shape), "_halo_"), 5);
  // Filters that TMA cannot store, rounded after each step.
  shape.filter_w = 5, shape.pad_w = 2, shape.out_channels = 19;
  test = image(shape);
  test.bias = test.residual = true;
  test.epilogue.rounding = EpilogueRounding::each_step;
  EXPECT_GT(run_on_all(test, "_halo_"), 5);
  // More tiles than multiprocessors.
  shape.batch = 5, shape.in_width = 4111, shape.in_channels = 16, shape.out_channels = 32;
  EXPECT_GT(run_on_all(image(shape), "_halo_"), 5);
  // In groups.
  shape.batch = 2, shape.in_width = 555, shape.groups = 3;
  shape.in_channels = 3 * 40, shape.out_channels = 3 * 24;
  EXPECT_GT(run_on_all(image(shape), "_halo_"), 5);
  // Of 3xTF32 and TF32 too.
  shape.groups = 1;
  test = image(shape);
  test.options.dtype = DType::fp32;
  test.options.allow_tf32 = true;
  EXPECT_GT(run_on_all(test, "_halo_"), 2);
}

TEST_F(Sm90, LinesOfFrames) {
  ConvCase test = volume({.batch = 2,
                          .in_depth = 3,
                          .in_height = 1,
                          .in_width = 300,
                          .in_channels = 40,
                          .out_channels = 56,
                          .filter = {3, 1, 5},
                          .pad_begin = {0, 0, 2},
                          .pad_end = {0, 0, 2},
                          .cached_frames = 2});
  test.next_cache = true;
  EXPECT_GT(run_on_all(test, "_halo_"), 5);
}

TEST_F(Sm90, BorderOfLines) {
  for (const PadMode mode : {PadMode::replicate, PadMode::reflect}) {
    for (const int dilation : {1, 4}) {
      Conv2dProblemShape shape{.batch = 2,
                               .in_height = 1,
                               .in_width = 397,
                               .in_channels = 72,
                               .out_channels = 40,
                               .filter_h = 1,
                               .filter_w = 5,
                               .pad_w = 2 * dilation,
                               .dilation_w = dilation,
                               .pad_mode = mode};
      EXPECT_GT(run_on_all(image(shape), "_halo_"), 4);
    }
  }
}

TEST_F(Sm90, DeepPixels) {
  // 1x1 with few tiles: a K loop that CTAs share unevenly, 17 blocks of channels.
  ConvCase test =
      image({.in_height = 12, .in_width = 13, .in_channels = 1048, .out_channels = 168});
  test.bias = test.residual = true;
  EXPECT_GT(run_on_all(test, "_splitk_"), 1);
}

TEST_F(Sm90, SharesWithoutBlocks) {
  // A block of channels that several CTAs share: one has it, the others none.
  ConvCase test = image({.in_height = 8, .in_width = 16, .in_channels = 48, .out_channels = 48});
  EXPECT_GT(run_on_all(test, "_splitk_"), 1);
  test.bias = test.residual = true;
  EXPECT_GT(run_on_all(test, "_splitk_"), 1);
}

TEST_F(Sm90, Tf32) {
  ConvCase test = image({.batch = 2,
                         .in_height = 11,
                         .in_width = 13,
                         .in_channels = 52,
                         .out_channels = 68,
                         .filter_h = 3,
                         .filter_w = 3,
                         .pad_h = 1,
                         .pad_w = 1});
  test.options.dtype = DType::fp32;
  EXPECT_EQ(run_on_all(test), 0) << "TF32 where nobody allowed it";
  test.options.allow_tf32 = true;
  EXPECT_GT(run_on_all(test, "_tf32"), 3);
  // Reals: operands must be rounded to nearest, ties to even, or sums are past their bound.
  test.exact = false;
  test.bias = test.residual = true;
  for (const Activation activation : {Activation::silu, Activation::gelu}) {
    test.epilogue.activation = activation;
    EXPECT_GT(run_on_all(test, "_tf32"), 3);
  }
  ConvCase pixels = image({.in_height = 9, .in_width = 42, .in_channels = 140, .out_channels = 70});
  pixels.options = test.options;
  pixels.exact = false;
  EXPECT_GT(run_on_all(pixels, "_tf32"), 1);
  // Planes; and whole tiles, for rings that wrap and shares of K.
  ConvCase strided = image({.batch = 2,
                            .in_height = 19,
                            .in_width = 34,
                            .in_channels = 72,
                            .out_channels = 132,
                            .filter_h = 3,
                            .filter_w = 3,
                            .pad_h = 1,
                            .pad_w = 1,
                            .stride_h = 2,
                            .stride_w = 2});
  strided.options = test.options;
  strided.exact = false;
  EXPECT_GT(run_on_all(strided, "_planes_tf32"), 0);
  ConvCase rows =
      image({.batch = 3, .in_height = 40, .in_width = 48, .in_channels = 232, .out_channels = 264});
  rows.options = test.options;
  rows.exact = false;
  EXPECT_GT(run_on_all(rows, "_pingpong_tf32"), 1);
  EXPECT_GT(run_on_all(rows, "_splitk_tf32"), 1);
}

TEST_F(Sm90, Tf32WithFoldedUpsampling) {
  ConvCase test = image({.in_height = 9,
                         .in_width = 12,
                         .in_channels = 36,
                         .out_channels = 48,
                         .filter_h = 3,
                         .filter_w = 3,
                         .pad_h = 1,
                         .pad_w = 1,
                         .upsample = 2});
  test.options.dtype = DType::fp32;
  test.options.allow_tf32 = true;
  test.options.packed_filter = true;
  test.exact = false;
  EXPECT_GT(run_on_all(test, "_tf32"), 1);
}

TEST_F(Sm90, BeyondTheLimitsOfIm2col) {
  EXPECT_GT(run_on_all(image({.in_height = 3,
                              .in_width = 150,
                              .in_channels = 8,
                              .out_channels = 16,
                              .filter_h = 1,
                              .filter_w = 3,
                              .pad_w = 130,
                              .dilation_w = 130})),
            5);
}

TEST_F(Sm90, CausalCacheAndNextCache) {
  ConvCase test = volume({.in_depth = 3,
                          .in_height = 9,
                          .in_width = 10,
                          .in_channels = 24,
                          .out_channels = 32,
                          .filter = {3, 3, 3},
                          .pad_begin = {0, 1, 1},
                          .pad_end = {0, 1, 1},
                          .cached_frames = 2});
  test.next_cache = true;
  test.bias = true;
  EXPECT_GT(run_on_all(test), 10);
}

TEST_F(Sm90, SkippedTemporalTaps) {
  EXPECT_GT(run_on_all(volume({.batch = 2,
                               .in_depth = 2,
                               .in_height = 5,
                               .in_width = 6,
                               .in_channels = 8,
                               .out_channels = 16,
                               .filter = {3, 3, 3},
                               .pad_begin = {2, 1, 1},
                               .pad_end = {1, 1, 1}})),
            10);
}

// Frames outside are other frames, whatever the loader.
TEST_F(Sm90, BorderOfFrames) {
  Conv3dProblemShape shape{.batch = 2,
                           .in_depth = 3,
                           .in_height = 5,
                           .in_width = 11,
                           .in_channels = 72,
                           .out_channels = 40,
                           .filter = {3, 3, 3},
                           .pad_begin = {2, 1, 1},
                           .pad_end = {0, 1, 1}};
  for (const PadMode mode : {PadMode::replicate, PadMode::reflect}) {
    for (const int cached : {0, 1, 2}) {
      shape.pad_mode[0] = mode;
      shape.cached_frames = cached;
      EXPECT_GT(run_on_all(volume(shape)), 10);
    }
  }
  shape.filter = {3, 1, 1};
  shape.pad_begin = shape.pad_end = {2, 0, 0};
  shape.stride = {2, 1, 1};
  EXPECT_GT(run_on_all(volume(shape)), 10);
}

// Patches that reach outside on every side, on two at once, and by more than a pixel; tiles of one
// row of real pixels; one axis of zeros.
TEST_F(Sm90, BorderOfPatches) {
  for (const PadMode mode : {PadMode::replicate, PadMode::reflect}) {
    // Patches of 8 x 16 at every edge and corner, and one at none.
    Conv2dProblemShape shape{.in_height = 25,
                             .in_width = 41,
                             .in_channels = 72,
                             .out_channels = 40,
                             .filter_h = 3,
                             .filter_w = 3,
                             .pad_h = 1,
                             .pad_w = 1,
                             .pad_mode = mode};
    EXPECT_GT(run_on_all(image(shape), "_halo_"), 5);
    shape.batch = 2;
    shape.in_height = 3;
    shape.in_width = 5;
    shape.pad_h_end = 2;
    shape.pad_w = 0;
    EXPECT_GT(run_on_all(image(shape), "_halo_"), 5);
    shape = {.in_height = 9,
             .in_width = 17,
             .in_channels = 16,
             .out_channels = 64,
             .filter_h = 5,
             .pad_h = 2,
             .pad_mode = mode};
    EXPECT_GT(run_on_all(image(shape), "_halo_"), 1);
    shape.filter_h = 1;
    shape.pad_h = 0;
    shape.filter_w = 3;
    shape.pad_w = shape.dilation_w = 2;
    EXPECT_GT(run_on_all(image(shape), "_halo_"), 1);
    ConvCase upsampled = image({.in_height = 9,
                                .in_width = 17,
                                .in_channels = 32,
                                .out_channels = 48,
                                .filter_h = 3,
                                .filter_w = 3,
                                .pad_h = 1,
                                .pad_w = 1,
                                .pad_mode = mode,
                                .upsample = 2});
    upsampled.options.packed_filter = true;
    EXPECT_GT(run_on_all(upsampled, "_halo_"), 5);
    Conv3dProblemShape causal{.in_depth = 2,
                              .in_height = 10,
                              .in_width = 18,
                              .in_channels = 136,
                              .out_channels = 40,
                              .filter = {3, 3, 3},
                              .pad_begin = {1, 1, 1},
                              .pad_end = {0, 1, 1},
                              .pad_mode = {PadMode::replicate, mode, PadMode::zero},
                              .cached_frames = 1};
    EXPECT_GT(run_on_all(volume(causal), "_halo_"), 5);
    causal.pad_mode = {mode, PadMode::zero, mode};
    EXPECT_GT(run_on_all(volume(causal), "_halo_"), 5);
  }
}

TEST_F(Sm90, BorderOfManyTiles) {
  ConvCase test = image({.batch = 3,
                         .in_height = 129,
                         .in_width = 200,
                         .in_channels = 72,
                         .out_channels = 96,
                         .filter_h = 3,
                         .filter_w = 3,
                         .pad_h = 1,
                         .pad_w = 1,
                         .pad_mode = PadMode::reflect});
  test.residual = true;
  test.sample = 20000;
  EXPECT_GT(run_on_all(test, "_halo_"), 5);
}

TEST_F(Sm90, EpilogueOrders) {
  for (const auto order : {ResidualOrder::after_activation, ResidualOrder::before_activation}) {
    for (const auto rounding : {EpilogueRounding::once, EpilogueRounding::each_step}) {
      ConvCase test = image({.in_height = 9,
                             .in_width = 9,
                             .in_channels = 16,
                             .out_channels = 72,
                             .filter_h = 3,
                             .filter_w = 3,
                             .pad_h = 1,
                             .pad_w = 1});
      test.bias = test.residual = true;
      test.residual_in_place = rounding == EpilogueRounding::each_step;
      test.epilogue.activation = Activation::relu;
      test.epilogue.scale = 0.5f;
      test.epilogue.beta = 2.0f;
      test.epilogue.order = order;
      test.epilogue.rounding = rounding;
      EXPECT_GT(run_on_all(test), 10);
    }
  }
}

// Each kernel's own tile in whole and ragged tiles, more channels than its stages hold, filters
// that TMA stores and that it cannot: plain, with bias and scale, activations, a residual too.
// NOTE: a kernel at a time, in its own type: in a build with CONVOY_EPILOGUES=turns the one that
// has a path for each, where there is one.
TEST_F(Sm90, EpiloguesOfEveryTile) {
  const Conv2dProblemShape shapes[] = {
      {.in_height = 11, .in_width = 37, .in_channels = 392, .out_channels = 264},
      {.in_height = 17, .in_width = 19, .in_channels = 72, .out_channels = 131},
      {.in_height = 11,
       .in_width = 25,
       .in_channels = 72,
       .out_channels = 136,
       .filter_h = 3,
       .filter_w = 3,
       .pad_h = 1,
       .pad_w = 1}};
  const auto tile_of = [](const sm90::Instance& instance) {
    const std::string name = sm90::name_of(instance), type = to_string(instance.config.in);
    return std::string(name).erase(name.rfind("_" + type), type.size() + 1);
  };
  std::map<std::string, const sm90::Instance*> chosen;
  for (const sm90::Instance& instance : sm90::instances()) {
    if (size_of(instance.config.in) != 2) continue;
    const sm90::Instance*& of_tile = chosen[tile_of(instance)];
    if (of_tile == nullptr || instance.has(sm90::EpiloguePath::fused)) of_tile = &instance;
  }
  int ran = 0;
  for (const sm90::Instance& instance : sm90::instances()) {
    if (size_of(instance.config.in) != 2 || &instance != chosen[tile_of(instance)]) continue;
    for (const Conv2dProblemShape& shape : shapes) {
      ConvCase test = image(shape);
      test.options.dtype = instance.config.in;
      test.options.output_dtype = instance.config.out;
      const std::string name = sm90::name_of(instance);
      ran += run_on_all(test, name);
      test.bias = true;
      test.epilogue.scale = 2.0f;
      test.epilogue.bias_dtype = DType::fp16;
      run_on_all(test, name);
      for (const Activation activation :
           {Activation::gelu_tanh, Activation::tanh, Activation::silu, Activation::hardswish,
            Activation::leaky_relu, Activation::relu}) {
        test.epilogue.activation = activation;
        run_on_all(test, name);
      }
      test.epilogue.bias_dtype = DType::bf16;
      test.epilogue.beta = 3.0f;
      test.residual = true;
      for (const Activation activation : {Activation::leaky_relu, Activation::relu}) {
        test.epilogue.activation = activation;
        run_on_all(test, name);
      }
    }
  }
  EXPECT_GT(ran, 60);
}

TEST_F(Sm90, FoldedUpsampling) {
  ConvCase test = image({.in_height = 9,
                         .in_width = 12,
                         .in_channels = 32,
                         .out_channels = 48,
                         .filter_h = 3,
                         .filter_w = 3,
                         .pad_h = 1,
                         .pad_w = 1,
                         .upsample = 2});
  test.options.packed_filter = true;
  EXPECT_GT(run_on_all(test), 10);
  test.options.upsample_folding = UpsampleFolding::fast;
  EXPECT_GT(run_on_all(test), 10);
}

// The bound of the unfolded convolution, as users see it who know of no folding.
TEST_F(Sm90, ExactlyFoldedUpsamplingKeepsTheUnfoldedBound) {
  ConvCase test = image({.in_height = 8,
                         .in_width = 8,
                         .in_channels = 64,
                         .out_channels = 64,
                         .filter_h = 3,
                         .filter_w = 3,
                         .pad_h = 1,
                         .pad_w = 1,
                         .upsample = 2});
  test.options.packed_filter = true;
  test.exact = false;
  test.allow_folding = false;
  EXPECT_GT(run_on_all(test), 10);
  test.options.dtype = DType::fp16;
  EXPECT_GT(run_on_all(test), 10);
}

TEST_F(Sm90, MoreTilesThanMultiprocessors) {
  // Persistent CTAs, ping-pong turns, rings that wrap.
  ConvCase test = image({.in_height = 200,
                         .in_width = 160,
                         .in_channels = 72,
                         .out_channels = 264,
                         .filter_h = 3,
                         .filter_w = 3,
                         .pad_h = 1,
                         .pad_w = 1});
  test.sample = 20000;
  int devices = 0;
  for (const Candidate& candidate : candidates_of(test)) devices += is_sm90(candidate) ? 1 : 0;
  ASSERT_GT(devices, 0);
  EXPECT_GT(run_on_all(test), 10);
}

TEST_F(Sm90, MoreTilesThanMultiprocessorsOfPixels) {
  // 1x1: three filter tiles of 128 that stay in shared memory, several tiles of pixels each.
  ConvCase test =
      image({.in_height = 200, .in_width = 160, .in_channels = 72, .out_channels = 264});
  test.sample = 20000;
  test.bias = test.residual = true;
  EXPECT_GT(run_on_all(test), 10);
}

TEST_F(Sm90, HalfPrecision) {
  ConvCase test = image({.in_height = 8,
                         .in_width = 9,
                         .in_channels = 24,
                         .out_channels = 40,
                         .filter_h = 3,
                         .filter_w = 3,
                         .pad_h = 1,
                         .pad_w = 1});
  test.options.dtype = DType::fp16;
  EXPECT_GT(run_on_all(test), 10);
  test.options.output_dtype = DType::fp32;
  EXPECT_GT(run_on_all(test), 0);
  test.options.dtype = DType::bf16;
  EXPECT_GT(run_on_all(test), 0);
}

}  // namespace
}  // namespace convoy::test
