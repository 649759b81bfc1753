// SPDX-License-Identifier: Apache-2.0
//
// Statistics of outputs on a GPU, real or virtual: in the epilogue of Hopper's tiles and by a pass
// of their own, against fp64 statistics of what was written (conv_case.cpp).
#include "kernel_case.hpp"
#include "support/guarded_buffer.hpp"

namespace convoy::test {
namespace {

ConvCase with_statistics(ConvCase c, std::int64_t groups) {
  c.options.statistics_groups = groups;
  return c;
}

/// Where the statistics of the case come from, as dispatch says; its kernel's refusal otherwise.
std::string source_of(const ConvCase& c) {
  for (const Candidate& line : candidates_of(c)) {
    if (line.kernel == c.options.kernel) {
      return line.reason.empty() ? line.statistics : "refused: " + line.reason;
    }
  }
  return "no such kernel";
}

class StatisticsOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (compute_capability() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_F(StatisticsOnGpu, ByAPassOfTheirOwn) {
  for (const DType dtype : {DType::bf16, DType::fp32}) {
    ConvCase c = with_statistics(with_kernel(shape_2d(2, 7, 9, 8, 24, 3, 1), "general", dtype), 3);
    c.bias = c.residual = true;
    EXPECT_EQ(source_of(c), "pass: statistics; legal: none (this kernel's epilogue)");
    expect_right(c);
    c.exact = false;
    c.bias_offset = 1e3f;
    expect_right(c);
    // Groups of what is written, not of filters.
    c.options.shuffle.factors = {1, 2, 2};
    expect_right(c);
  }
}

TEST_F(StatisticsOnGpu, GroupsThatDoNotDivide) {
  const ConvCase c = with_statistics(with_kernel(shape_2d(1, 5, 6, 8, 24, 3, 1), "general"), 7);
  EXPECT_EQ(wrong_with(c),
            "statistics_groups = 7 with 24 channels of the output; legal: 0 (none) or a divisor; "
            "nearest: 6");
}

#ifdef CONVOY_WITH_SM90

class StatisticsOnHopper : public ::testing::Test {
 protected:
  void SetUp() override {
    if (compute_capability() != 90) GTEST_SKIP() << "no GPU of compute capability 9.0";
  }
};

const std::string kTile = "sm90_fprop_128x128_pingpong_halo_bf16";

void expect_in_the_epilogue(const ConvCase& c) {
  EXPECT_EQ(source_of(c), "epilogue") << describe(c);
  expect_right(c);
}

/// Integers and reals, each activation that the epilogue has, with and without a residual; then
/// means of ten to a thousand deviations.
void expect_right_in_every_way(const ConvCase& of) {
  for (const Activation activation : {Activation::none, Activation::relu, Activation::silu}) {
    for (const bool residual : {false, true}) {
      ConvCase c = of;
      c.epilogue.activation = activation;
      c.bias = residual || activation != Activation::none;
      c.residual = residual;
      c.exact = activation == Activation::relu;
      c.runs = activation == Activation::silu ? 2 : 1;  // The same bits.
      expect_in_the_epilogue(c);
    }
  }
  for (const float offset : {10.0f, 100.0f, 1e3f}) {
    ConvCase c = of;
    c.exact = false;
    c.bias = true;
    c.bias_offset = offset;
    expect_in_the_epilogue(c);
  }
}

TEST_F(StatisticsOnHopper, TilesThatHangOver) {
  // Several tiles a warpgroup, of two images; rows and columns of pieces outside.
  expect_right_in_every_way(
      with_statistics(with_kernel(shape_2d(2, 37, 43, 16, 128, 3, 1), kTile), 32));
}

TEST_F(StatisticsOnHopper, Fp16) {
  const ConvCase tile = with_kernel(shape_2d(2, 13, 21, 16, 128, 3, 1),
                                    "sm90_fprop_128x128_pingpong_halo_fp16", DType::fp16);
  if (source_of(with_statistics(tile, 32)) != "epilogue") {
    GTEST_SKIP() << "built with CONVOY_EPILOGUES=turns";
  }
  for (const float offset : {0.0f, 10.0f, 100.0f, 1e3f, 6e4f}) {
    ConvCase c = with_statistics(tile, 32);
    c.exact = false;
    c.bias = true;
    c.bias_offset = offset;
    expect_in_the_epilogue(c);
  }
}

TEST_F(StatisticsOnHopper, FilterTiles) {
  // Two filter tiles, the last one half empty; groups of 4, in both tiles, in one, of all filters.
  for (const std::int64_t groups : {48, 8, 3, 1}) {
    ConvCase c = with_statistics(with_kernel(shape_2d(2, 18, 21, 16, 192, 3, 1), kTile), groups);
    c.exact = false;
    c.bias = true;
    expect_in_the_epilogue(c);
  }
  // Five, which do not divide the CTAs' tiles: a record of each.
  ConvCase c = with_statistics(with_kernel(shape_2d(2, 33, 18, 16, 640, 3, 1), kTile), 32);
  c.exact = false;
  expect_in_the_epilogue(c);
}

TEST_F(StatisticsOnHopper, FramesAsRows) {
  ConvCase c = with_statistics(with_kernel(temporal(9, 3, 1, 5, 13, 16, 64), kTile), 8);
  c.bias = c.residual = true;
  expect_in_the_epilogue(c);
}

TEST_F(StatisticsOnHopper, FramesOfAnImage) {
  for (const std::int64_t cached : {0, 2}) {
    ConvGeometry g = shape_3d(cached, 3, 2 - cached, 9, 19, 16, 32);
    g.batch = 2;
    ConvCase c = with_statistics(with_kernel(g, kTile), 8);
    c.bias = c.residual = true;
    c.exact = cached == 0;
    expect_in_the_epilogue(c);
  }
}

TEST_F(StatisticsOnHopper, Upsampling) {
  ConvGeometry g = shape_2d(2, 9, 12, 40, 32, 3, 1);
  g.upsample = 2;
  ConvCase c = with_statistics(with_kernel(g, kTile), 8);
  c.options.packed_filter = true;
  expect_in_the_epilogue(c);
  c.exact = false;
  c.epilogue.activation = Activation::silu;
  expect_in_the_epilogue(c);
}

TEST_F(StatisticsOnHopper, BorderAndPrologue) {
  ConvGeometry g = shape_2d(2, 19, 20, 72, 40, 3, 1);
  g.pad_mode[1] = g.pad_mode[2] = PadMode::replicate;
  expect_in_the_epilogue(with_statistics(with_kernel(g, kTile), 10));
  ConvCase c = with_statistics(with_kernel(g, "sm90_fprop_128x128_pingpong_normalised_bf16"), 10);
  c.options.prologue = {.norm = PrologueNorm::scale_shift, .activation = Activation::silu};
  c.exact = false;
  c.bias = c.residual = true;
  expect_in_the_epilogue(c);
}

TEST_F(StatisticsOnHopper, WhatTheEpilogueRefuses) {
  // All of these are run with a pass.
  const auto expect_pass = [](const ConvCase& c, const std::string& reason) {
    EXPECT_EQ(source_of(c), "pass: " + reason);
    expect_right(c);
  };
  const ConvCase c = with_kernel(shape_2d(2, 9, 10, 16, 64, 3, 1), kTile);
  expect_pass(with_statistics(c, 32),
              "statistics of 32 groups of 2 filters; legal: groups of a multiple of 4 filters");
  ConvCase gelu = with_statistics(c, 8);
  gelu.epilogue.activation = Activation::gelu;
  gelu.exact = false;
  expect_pass(gelu,
              "statistics of 8 groups behind an epilogue gelu; legal: none, relu, silu, "
              "rounded once");
  ConvCase rounded = with_statistics(c, 8);
  rounded.epilogue.rounding = EpilogueRounding::each_step;
  expect_pass(rounded,
              "statistics of 8 groups behind an epilogue each_step; legal: none, relu, "
              "silu, rounded once");
  expect_pass(with_statistics(with_kernel(shape_2d(2, 9, 10, 16, 20, 3, 1), kTile), 5),
              "statistics of 5 groups of out_channels = 20; legal: rows of a multiple of 16 bytes "
              "(TMA stores)");
  expect_pass(
      with_statistics(
          with_kernel(shape_2d(2, 9, 10, 16, 64, 3, 1), "sm90_fprop_128x128_pingpong_bf16"), 8),
      "statistics of 8 groups; legal: none (no such epilogue in this instance)");
}

TEST_F(StatisticsOnHopper, TheirTimeCounts) {
  const auto estimate = [](const ConvCase& c) {
    for (const Candidate& line : candidates(c.problem, options_of(c), known_gpu("h200"))) {
      if (line.kernel == c.options.kernel) return line.estimated_us;
    }
    return 0.0;
  };
  for (const std::string& kernel : {kTile, std::string("general")}) {
    ConvCase c = with_kernel(shape_2d(1, 1024, 1024, 128, 128, 3, 1), kernel);
    const double plain = estimate(c);
    c.options.statistics_groups = 32;
    // 42 us in the epilogue, 83 by a pass; measured times of the layer scale both.
    EXPECT_NEAR(estimate(c) - plain, kernel == kTile ? 42 : 83, 8) << kernel;
  }
}

#endif  // CONVOY_WITH_SM90

}  // namespace
}  // namespace convoy::test
