// SPDX-License-Identifier: Apache-2.0
//
// Hopper's kernel of few channels by warpgroup MMA.
#include <string>
#include <utility>

#include "small_case.hpp"

namespace convoy::test {
namespace {

class Sm90Stem : public ::testing::Test {
 protected:
  void SetUp() override {
    if (compute_capability() != 90) GTEST_SKIP() << "needs compute capability 9.0";
  }
};

ConvCase stem_case(const ConvGeometry& g, DType dtype = DType::bf16) {
  ConvCase test = with_kernel(g, "sm90_stem", dtype);
  test.options.packed_filter = true;
  return test;
}
void stem(const ConvGeometry& g, DType dtype = DType::bf16) {
  expect_right(stem_case(g, dtype));
}

TEST_F(Sm90Stem, FewChannels) {
  stem(shape_2d(1, 16, 24, 16, 512, 3, 1));            // Flux's conv_in: whole tiles.
  stem(shape_2d(2, 19, 21, 16, 72, 3, 1));             // Ragged pixels and filters.
  stem(shape_2d(2, 16, 24, 4, 320, 3, 1));             // SDXL's conv_in: runs of 12 elements.
  stem(shape_2d(1, 17, 24, 4, 64, 5, 2, 2));           // Runs of 20, strided both ways.
  stem(shape_2d(1, 9, 11, 4, 40, 2, 0), DType::fp16);  // One cell a run, two of them.
  stem(shape_2d(1, 9, 11, 4, 40, 1, 0));               // Half a cell is all there is.
  stem(shape_2d(1, 20, 12, 8, 64, 3, 1));              // Nine cells: an odd last step.
  stem(shape_2d(1, 12, 20, 32, 136, 3, 1));            // Four planes, three blocks of filters.
  stem(shape_2d(1, 12, 20, 64, 24, 1, 0));             // 1×1.
  stem(shape_2d(1, 12, 20, 16, 37, 3, 1));             // Odd K: stored one by one.
  stem(shape_3d(2, 1, 0, 17, 20, 16, 384));            // Wan's conv_in.
  stem(shape_3d(1, 3, 1, 9, 20, 16, 64), DType::fp16);
  stem(shape_3d(0, 1, 2, 9, 20, 16, 64));    // Taps that meet padding only are left out.
  stem(shape_2d(1, 20, 28, 64, 72, 3, 1));   // Patch rows one at a time; 128 filters do not fit.
  stem(shape_3d(2, 1, 0, 17, 20, 8, 72));    // A piece of the filters ends within a frame.
  stem(shape_2d(2, 60, 50, 16, 40, 3, 1));   // Several tiles a warpgroup on 8 multiprocessors,
  stem(shape_3d(2, 1, 0, 33, 60, 16, 136));  // the same with frames that come apart.
  Conv2dProblemShape dilated{.in_height = 30,
                             .in_width = 31,
                             .in_channels = 16,
                             .out_channels = 64,
                             .filter_h = 3,
                             .filter_w = 3,
                             .pad_h = 2,
                             .pad_w = 3,
                             .stride_h = 2,
                             .dilation_h = 2,
                             .dilation_w = 3};
  stem(geometry_of(dilated));
}

// Channels that are no whole cells and not four: cells come through registers.
TEST_F(Sm90Stem, Runs) {
  stem(shape_2d(1, 33, 40, 3, 64, 3, 1));                  // RGB: two cells hold nine elements.
  stem(shape_2d(2, 41, 37, 3, 64, 7, 3, 2));               // Rows of odd length; three cells a run.
  stem(shape_2d(1, 20, 40, 1, 40, 5, 2, 2), DType::fp16);  // One channel.
  stem(shape_2d(1, 20, 67, 2, 24, 3, 1, 3));               // Two, three columns apart; 32 filters.
  stem(shape_2d(1, 16, 24, 6, 180, 3, 1, 3));              // Filters in fours, two blocks of them.
  stem(shape_2d(2, 15, 9, 5, 33, 3, 1), DType::fp16);      // Odd channels and filters.
  stem(shape_2d(1, 12, 10, 7, 4, 1, 0));                   // 1×1: seven of eight elements.
  stem(shape_2d(1, 64, 48, 3, 96, 4, 0, 4));               // Patches of 4×4.
  stem(shape_3d(0, 2, 2, 9, 20, 3, 32), DType::fp16);      // Causal RGB.
  stem(shape_3d(2, 1, 0, 9, 20, 5, 48));                   // Cached frames in front.
  stem(shape_3d(1, 3, 1, 35, 20, 3, 136));                 // More rounds of rows than come ahead,
  stem(shape_2d(1, 70, 20, 1, 16, 27, 13));                // the same of one frame.
  stem(shape_2d(2, 150, 130, 3, 12, 3, 1, 2));             // Several tiles a warpgroup.
}

// The last element of a tensor lies in the last word of its last row.
TEST_F(Sm90Stem, RunsOfOddTensorsAreRefused) {
  std::string reason = "not listed";
  for (const Candidate& candidate : candidates_of(stem_case(shape_2d(1, 15, 9, 5, 32, 3, 1)))) {
    if (candidate.kernel == "sm90_stem") reason = candidate.reason;
  }
  EXPECT_EQ(reason, "elements of a tensor = 675; legal: even");
}

TEST_F(Sm90Stem, WalksOverManyTiles) {
  for (const int channels : {16, 3}) {
    ConvCase many = stem_case(shape_2d(2, 256, 200, channels, 128, 3, 1));
    many.sample = 50000;
    expect_right(many);
  }
}

TEST_F(Sm90Stem, EveryOutputTypeAndEpilogue) {
  for (const auto& [channels, filters] : {std::pair{4, 24}, std::pair{3, 24}, std::pair{3, 68}}) {
    const ConvCase test = stem_case(shape_2d(1, 10, 34, channels, filters, 3, 1));
    expect_right_with_every_epilogue(test);
    expect_right_with_short_epilogues(test);
  }
}

TEST_F(Sm90Stem, InfinityStaysUnderItsTaps) {
  expect_infinity_under_its_taps("sm90_stem", true);
}

}  // namespace
}  // namespace convoy::test
