// SPDX-License-Identifier: Apache-2.0
// Shuffled outputs on the CPU: which element goes where, what is refused, what a run checks.
#include "convoy/shuffle.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "convoy/convoy.hpp"
#include "expect_error.hpp"
#include "support/conv_case.hpp"

namespace convoy {
namespace {

using test::expect_error;

TEST(Shuffle, TheTextNamesItsFields) {
  EXPECT_EQ(to_string(OutputShuffle{}), "none");
  EXPECT_EQ(to_string(OutputShuffle{.factors = {1, 2, 2}}), "shuffle(1x2x2)");
  EXPECT_EQ(to_string(OutputShuffle{.factors = {2, 2, 2},
                                    .order = ShuffleOrder::channels_inner,
                                    .dropped_frames = 1,
                                    .residual = ShuffleResidual::tiled,
                                    .residual_channels = 64}),
            "shuffle(2x2x2,inner,drop1,tiled64)");
}

TEST(Shuffle, WhatMakesNoSenseIsRefused) {
  const Conv3dProblemShape problem{
      .in_depth = 2, .in_height = 4, .in_width = 4, .in_channels = 8, .out_channels = 16};
  const auto refused = [&](const OutputShuffle& shuffle, std::initializer_list<const char*> parts,
                           bool residual = true) {
    expect_error(Status::invalid_argument, parts, [&] {
      plan(problem,
           {.epilogue = {.residual = residual}, .device = Device::cpu, .shuffle = shuffle});
    });
  };
  refused({.factors = {1, 0, 2}}, {"factors[1] (rows) = 0", "nearest: 1"});
  refused({.factors = {1, 1, 65}}, {"factors[2] (columns) = 65", "nearest: 64"});
  refused({.factors = {1, 3, 2}}, {"out_channels = 16", "1*3*2 = 6 pixels", "nearest: 18"});
  refused({.factors = {2, 1, 1}, .dropped_frames = 2},
          {"dropped_frames = 2", "legal: 0 to 1", "nearest: 1"});
  refused({.factors = {1, 2, 2}, .dropped_frames = -1}, {"dropped_frames = -1", "nearest: 0"});
  refused({.factors = {1, 2, 2}, .residual_channels = 8}, {"residual_channels = 8", "legal: 0"});
  refused({.factors = {1, 2, 2}, .residual = ShuffleResidual::tiled, .residual_channels = 5},
          {"residual_channels = 5 does not divide out_channels = 16", "nearest: 4"});
  refused({.factors = {1, 2, 2}, .residual = ShuffleResidual::tiled, .residual_channels = 8},
          {"shuffle.residual = tiled without a residual"}, false);
  refused({.residual = ShuffleResidual::interleaved, .residual_channels = 8},
          {"shuffle.residual = interleaved without a shuffle"});
  refused({.factors = {1, 2, 2}, .order = static_cast<ShuffleOrder>(2)}, {"shuffle.order = 2"});
  refused({.factors = {1, 2, 2}, .residual = static_cast<ShuffleResidual>(3)},
          {"shuffle.residual = 3"});
  const Conv2dProblemShape flat{
      .in_height = 4, .in_width = 4, .in_channels = 8, .out_channels = 16};
  expect_error(Status::invalid_argument, {"factors[0] (frames) = 2 of a 2-D problem"}, [&] {
    plan(flat, {.device = Device::cpu, .shuffle = {.factors = {2, 1, 1}}});
  });
}

#ifdef CONVOY_WITH_CPU

/// A 1x1 convolution by the identity: what goes in comes out, elsewhere.
std::vector<float> shuffled(std::vector<float> x, std::int64_t frames, std::int64_t channels,
                            const OutputShuffle& shuffle, const float* residual = nullptr) {
  const std::int64_t columns = static_cast<std::int64_t>(x.size()) / frames / channels;
  const Conv3dProblemShape problem{.in_depth = frames,
                                   .in_height = 1,
                                   .in_width = columns,
                                   .in_channels = channels,
                                   .out_channels = channels};
  std::vector<float> w(static_cast<std::size_t>(channels * channels)), y(x.size(), -1.0f);
  for (std::int64_t c = 0; c < channels; ++c) w[static_cast<std::size_t>(c * channels + c)] = 1.0f;
  const Plan made = plan(problem, {.dtype = DType::fp32,
                                   .epilogue = {.residual = residual != nullptr},
                                   .device = Device::cpu,
                                   .shuffle = shuffle});
  made.run({.output = y.data(),
            .activation = x.data(),
            .filter = w.data(),
            .epilogue = {.residual = residual}});
  return y;
}

TEST(Shuffle, FiltersBecomePixels) {
  // Two columns of four filters: as pixel_shuffle has them, and with channels inside.
  const std::vector<float> x = {0, 1, 2, 3, 10, 11, 12, 13};
  EXPECT_EQ(shuffled(x, 1, 4, {.factors = {1, 1, 2}}),
            (std::vector<float>{0, 2, 1, 3, 10, 12, 11, 13}));
  EXPECT_EQ(shuffled(x, 1, 4, {.factors = {1, 1, 2}, .order = ShuffleOrder::channels_inner}),
            (std::vector<float>{0, 1, 2, 3, 10, 11, 12, 13}));
  EXPECT_EQ(shuffled(x, 1, 4, {.factors = {1, 2, 2}}),
            (std::vector<float>{0, 1, 10, 11, 2, 3, 12, 13}));
}

TEST(Shuffle, FramesInterleaveAndTheFirstIsDropped) {
  // Two frames of one column of four filters.
  const std::vector<float> x = {0, 1, 2, 3, 10, 11, 12, 13};
  OutputShuffle shuffle{.factors = {2, 1, 1}, .order = ShuffleOrder::channels_inner};
  EXPECT_EQ(shuffled(x, 2, 4, shuffle), x);
  shuffle.dropped_frames = 1;
  EXPECT_EQ(shuffled(x, 2, 4, shuffle), (std::vector<float>{2, 3, 10, 11, 12, 13, -1, -1}));
}

TEST(Shuffle, ChannelsOfAResidualRepeat) {
  const std::vector<float> x(4, 0.0f);
  alignas(16) const float residual[2] = {1, 2};
  OutputShuffle shuffle{.factors = {1, 1, 2},
                        .order = ShuffleOrder::channels_inner,
                        .residual = ShuffleResidual::interleaved,
                        .residual_channels = 2};
  EXPECT_EQ(shuffled(x, 1, 4, shuffle, residual), (std::vector<float>{1, 1, 2, 2}));
  shuffle.residual = ShuffleResidual::tiled;
  EXPECT_EQ(shuffled(x, 1, 4, shuffle, residual), (std::vector<float>{1, 2, 1, 2}));
}

TEST(Shuffle, ShapesAreThoseOfTheOutput) {
  const Conv3dProblemShape problem{.batch = 2,
                                   .in_depth = 3,
                                   .in_height = 4,
                                   .in_width = 5,
                                   .in_channels = 8,
                                   .out_channels = 48};
  const OutputShuffle shuffle{.factors = {2, 2, 1},
                              .dropped_frames = 1,
                              .residual = ShuffleResidual::tiled,
                              .residual_channels = 8};
  const Plan made =
      plan(problem, {.epilogue = {.residual = true}, .device = Device::cpu, .shuffle = shuffle});
  EXPECT_EQ(made.output_shape().extents, (std::array<std::int64_t, 5>{2, 5, 8, 5, 12}));
  EXPECT_EQ(made.residual_shape().extents, (std::array<std::int64_t, 5>{2, 3, 4, 5, 8}));
  // A shape of another residual is refused, and one that overlaps the output.
  std::vector<std::uint16_t> x(2 * 3 * 4 * 5 * 8), w(48 * 8), y(2 * 5 * 8 * 5 * 12);
  RunArguments arguments{.output = y.data(),
                         .activation = x.data(),
                         .filter = w.data(),
                         .epilogue = {.residual = y.data()}};
  expect_error(Status::invalid_argument, {"output", "epilogue.residual", "overlap"},
               [&] { made.run(arguments); });
  arguments.epilogue.residual = x.data();
  arguments.epilogue.residual_shape = made.output_shape();
  expect_error(Status::invalid_argument,
               {"epilogue.residual is bf16 NDHWC [2, 5, 8, 5, 12]", "[2, 3, 4, 5, 8]"},
               [&] { made.run(arguments); });
  arguments.epilogue.residual_shape = made.residual_shape();
  made.run(arguments);
}

#endif  // CONVOY_WITH_CPU

}  // namespace
}  // namespace convoy
