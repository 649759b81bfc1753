// SPDX-License-Identifier: Apache-2.0
// Statistics of outputs on the CPU: what they are, what is refused, what a run checks.
#include <gtest/gtest.h>

#include "convoy/convoy.hpp"
#include "expect_error.hpp"
#include "support/conv_case.hpp"

namespace convoy {
namespace {

using test::expect_error;

#ifdef CONVOY_WITH_CPU

const Conv2dProblemShape kOfStatistics{
    .batch = 2, .in_height = 5, .in_width = 6, .in_channels = 4, .out_channels = 12};

TEST(Statistics, AreThoseOfTheOutput) {
  test::ConvCase c;
  c.problem = kOfStatistics;
  c.options = {.dtype = DType::fp32, .device = Device::cpu, .statistics_groups = 3};
  for (const bool bring_workspace : {false, true}) {
    c.bring_workspace = bring_workspace;
    c.bias = c.residual = bring_workspace;
    EXPECT_EQ(test::wrong_with(c), "") << test::describe(c);
  }
  EXPECT_EQ(test::plan_case(c).info().statistics, "pass");
  c.options.statistics_groups = 0;
  EXPECT_EQ(test::plan_case(c).info().statistics, "");
}

TEST(Statistics, GroupsMustDivideTheChannels) {
  for (const std::int64_t groups : {-1, 5, 24}) {
    expect_error(
        Status::invalid_argument, {"statistics_groups = ", "12 channels", "a divisor"},
        [&] { plan(kOfStatistics, {.device = Device::cpu, .statistics_groups = groups}); });
  }
  // Of what is written.
  expect_error(
      Status::invalid_argument, {"statistics_groups = 6", "3 channels", "nearest: 3"}, [&] {
        plan(kOfStatistics,
             {.device = Device::cpu, .shuffle = {.factors = {1, 2, 2}}, .statistics_groups = 6});
      });
}

TEST(Statistics, OfNothingAreRefused) {
  for (const auto& [height, channels] : {std::pair{5, 0}, {0, 12}}) {
    Conv2dProblemShape nothing = kOfStatistics;
    nothing.in_height = height;
    nothing.out_channels = channels;
    const PlanOptions none{.device = Device::cpu};
    const bool legal = supports(nothing, none).supported;
    EXPECT_EQ(legal, height > 0);
    if (!legal) continue;
    expect_error(Status::invalid_argument,
                 {"statistics_groups = 3", "without elements", "legal: 0"},
                 [&] { plan(nothing, {.device = Device::cpu, .statistics_groups = 3}); });
    nothing.batch = 0;  // None of no image.
    EXPECT_NO_THROW(plan(nothing, {.device = Device::cpu, .statistics_groups = 3}));
  }
}

TEST(Statistics, ARunMustBringWhatThePlanWrites) {
  alignas(16) float x[240] = {}, w[48] = {}, y[720] = {}, s[16] = {};
  const auto run = [&](std::int64_t groups, float* statistics) {
    plan(kOfStatistics, {.dtype = DType::fp32, .device = Device::cpu, .statistics_groups = groups})
        .run({.output = y, .activation = x, .filter = w, .statistics = statistics});
  };
  const auto refused = [&](std::int64_t groups, float* statistics,
                           std::initializer_list<const char*> parts) {
    expect_error(Status::invalid_argument, parts, [&] { run(groups, statistics); });
  };
  refused(3, nullptr, {"statistics is null"});
  refused(3, s + 1, {"statistics", "not aligned"});
  refused(3, x, {"statistics", "overlaps activation"});
  refused(3, y + 4, {"statistics", "overlaps output"});
  refused(0, s, {"statistics is given", "statistics_groups = 0"});
  EXPECT_NO_THROW(run(3, s));
}

#endif  // CONVOY_WITH_CPU

}  // namespace
}  // namespace convoy
