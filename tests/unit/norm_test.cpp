// SPDX-License-Identifier: Apache-2.0
//
// The norms: validation, contracts of a run, and the CPU backend against fp64.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "convoy/convoy.hpp"
#include "expect_error.hpp"
#include "support/norm_case.hpp"

namespace convoy {
namespace {

using test::expect_error;
using test::NormCase;
using test::run_norm_case;

const NormOptions kCpu{.dtype = DType::fp32, .scale = false, .bias = false, .device = Device::cpu};

TEST(NormProblem, ErrorsNameWhatIsLegal) {
  const GroupNormProblem good{.pixels = 16, .channels = 320, .groups = 32};
  EXPECT_NO_THROW(good.validate());
  EXPECT_EQ(good.to_string(), "group_norm n1p16c320g32");
  const auto group = [&](auto&& change) {
    GroupNormProblem problem = good;
    change(problem);
    problem.validate();
  };
  expect_error(Status::invalid_argument, {"groups = 30", "channels = 320", "nearest: 32"},
               [&] { group([](auto& p) { p.groups = 30; }); });
  expect_error(Status::invalid_argument, {"groups = 0", "at least 1"},
               [&] { group([](auto& p) { p.groups = 0; }); });
  expect_error(Status::invalid_argument, {"groups = 1000", "nearest: 320"},
               [&] { group([](auto& p) { p.groups = 1000; }); });
  expect_error(Status::invalid_argument, {"batch = -1"},
               [&] { group([](auto& p) { p.batch = -1; }); });
  expect_error(Status::invalid_argument, {"pixels = -7"},
               [&] { group([](auto& p) { p.pixels = -7; }); });
  expect_error(Status::invalid_argument, {"channels = 0"},
               [&] { group([](auto& p) { p.channels = 0; }); });
  expect_error(Status::invalid_argument, {"epsilon = -1"},
               [&] { group([](auto& p) { p.epsilon = -1; }); });
  expect_error(Status::invalid_argument, {"epsilon = nan"},
               [&] { group([](auto& p) { p.epsilon = NAN; }); });
  expect_error(Status::invalid_argument, {"does not fit 64 bits"},
               [&] { group([](auto& p) { p.pixels = std::int64_t{1} << 60; }); });

  const RmsNormProblem rms{.pixels = 16, .channels = 96};
  EXPECT_EQ(rms.to_string(), "rms_norm p16c96");
  expect_error(Status::invalid_argument, {"rule = 2", "norm_floor"}, [&] {
    RmsNormProblem problem = rms;
    problem.rule = static_cast<RmsEpsilon>(2);
    problem.validate();
  });
  expect_error(Status::invalid_argument, {"dtype = 7", "fp32 (2)"},
               [&] { plan(rms, {.dtype = static_cast<DType>(7)}); });
  expect_error(Status::invalid_argument, {"activation = 10", "clamp"},
               [&] { plan(rms, {.activation = static_cast<Activation>(10)}); });
  expect_error(Status::invalid_argument, {"device_index = -2"},
               [&] { plan(rms, {.device_index = -2}); });
  expect_error(Status::invalid_argument, {"result = 2", "coefficients"},
               [&] { plan(rms, {.result = static_cast<NormResult>(2)}); });
  expect_error(Status::invalid_argument, {"scale = 1", "Prologue::scale"},
               [&] { plan(rms, {.result = NormResult::coefficients}); });
  expect_error(Status::invalid_argument, {"activation = silu", "Prologue::activation"}, [&] {
    plan(rms, {.activation = Activation::silu, .result = NormResult::coefficients});
  });
}

#ifdef CONVOY_WITH_CPU

TEST(NormRun, ChecksItsArguments) {
  alignas(16) float x[32] = {}, y[32] = {}, parameter[16] = {};
  const RmsNormProblem problem{.pixels = 4, .channels = 8};
  const NormPlan bare = plan(problem, kCpu);
  NormOptions options = kCpu;
  options.scale = true;
  const NormPlan scaled = plan(problem, options);
  EXPECT_EQ(bare.info().kernel, "cpu_rms_norm");
  EXPECT_EQ(bare.info().min_bytes, 2 * 32 * 4);
  const auto refused = [](const NormPlan& plan, const NormArguments& arguments,
                          std::initializer_list<const char*> parts) {
    expect_error(Status::invalid_argument, parts, [&] { plan.run(arguments); });
  };
  refused(bare, {.input = x}, {"output is null"});
  refused(bare, {.output = y}, {"input is null"});
  refused(bare, {.output = y + 1, .input = x}, {"output = ", "multiple of 16"});
  refused(bare, {.output = y, .input = x, .scale = parameter}, {"scale is given", "has no scale"});
  refused(bare, {.output = y, .input = x, .bias = parameter}, {"has no bias"});
  refused(scaled, {.output = y, .input = x}, {"scale is null"});
  refused(scaled, {.output = y, .input = x, .scale = y + 4}, {"output", "overlaps scale"});
  refused(bare, {.output = x + 4, .input = x}, {"output", "overlaps input"});
  refused(bare, {.output = y, .input = x, .workspace = x}, {"workspace", "overlaps input"});
  EXPECT_NO_THROW(scaled.run({.output = x, .input = x, .scale = parameter}));
}

TEST(NormRun, CoefficientsAreNotInPlace) {
  alignas(16) float x[32] = {}, y[32] = {};
  NormOptions options = kCpu;
  options.result = NormResult::coefficients;
  const NormPlan rms = plan(RmsNormProblem{.pixels = 4, .channels = 8}, options);
  EXPECT_EQ(rms.info().min_bytes, (32 + 4) * 4);
  expect_error(Status::invalid_argument, {"output", "overlaps input"},
               [&] { rms.run({.output = x, .input = x}); });
  expect_error(Status::invalid_argument, {"output", "+16 bytes", "overlaps input"},
               [&] { rms.run({.output = x + 28, .input = x}); });
  EXPECT_NO_THROW(rms.run({.output = y, .input = x}));
}

TEST(CpuNorm, CoefficientsNormaliseAsTheNormDoes) {
  for (const bool rms : {false, true}) {
    for (const RmsEpsilon rule : {RmsEpsilon::added, RmsEpsilon::norm_floor}) {
      NormCase test{
          .rms = rms, .batch = 3, .pixels = 70, .channels = 12, .groups = 3, .rule = rule};
      test.options = {.dtype = DType::bf16,
                      .scale = !rms,
                      .bias = !rms,
                      .device = Device::cpu,
                      .result = NormResult::coefficients};
      test.offset = 2;
      EXPECT_EQ(run_norm_case(test), "") << test.describe();
    }
  }
}

TEST(NormRun, AnEmptyTensorTouchesNothing) {
  for (const auto& [batch, pixels] : {std::pair{0, 5}, std::pair{5, 0}}) {
    const NormPlan empty =
        plan(GroupNormProblem{.batch = batch, .pixels = pixels, .channels = 8, .groups = 2}, kCpu);
    EXPECT_EQ(empty.workspace_bytes(), 0u);
    EXPECT_NO_THROW(empty.run({}));
  }
  EXPECT_NO_THROW(plan(RmsNormProblem{.pixels = 0, .channels = 3}, kCpu).run({}));
}

TEST(CpuNorm, LargeOffsetsKeepTheirPrecision) {
  for (const double offset : {1000.0, -30000.0}) {
    NormCase test{.batch = 2, .pixels = 3000, .channels = 12, .groups = 3, .epsilon = 1e-6f};
    test.options = {.dtype = DType::fp32, .device = Device::cpu};
    test.offset = offset;
    EXPECT_EQ(run_norm_case(test), "") << test.describe();
  }
}

TEST(CpuNorm, NanAndInfinityStayInTheirGroup) {
  alignas(16) float x[4 * 8], y[4 * 8];
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (int i = 0; i < 32; ++i) x[i] = static_cast<float>(i % 7);
    x[2 * 8 + 5] = bad;
    plan(GroupNormProblem{.pixels = 4, .channels = 8, .groups = 2}, kCpu)
        .run({.output = y, .input = x});
    for (int i = 0; i < 32; ++i) EXPECT_EQ(std::isnan(y[i]), i % 8 >= 4) << i;
    plan(RmsNormProblem{.pixels = 4, .channels = 8}, kCpu).run({.output = y, .input = x});
    for (int i = 0; i < 32; ++i) {
      const bool hit = std::isnan(bad) ? i / 8 == 2 : i == 21;
      EXPECT_EQ(std::isnan(y[i]), hit) << i;
    }
  }
}

TEST(CpuNorm, RandomCases) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 60; ++i) {
    const NormCase test = test::random_norm_case(random, Device::cpu);
    ASSERT_EQ(run_norm_case(test), "") << test.describe();
  }
}

TEST(CpuNorm, GivenStatisticsAreThoseOfTheWhole) {
  // Two images of 12 pixels, cut behind the fifth: the parts by the whole's statistics.
  constexpr std::int64_t kPixels = 12, kChannels = 8, kFirst = 5;
  const NormOptions options{.dtype = DType::fp32,
                            .scale = false,
                            .bias = false,
                            .activation = Activation::silu,
                            .device = Device::cpu};
  alignas(64) float input[2 * kPixels * kChannels], whole[2 * kPixels * kChannels];
  for (int i = 0; i < 2 * kPixels * kChannels; ++i) {
    input[i] = static_cast<float>(i * 37 % 101) * 0.1f + (i < 96 ? 3.0f : 1.0f);
  }
  const NormPlan all = plan(GroupNormProblem{2, kPixels, kChannels, 2}, options);
  all.run({.output = whole, .input = input});

  alignas(64) float own[2][2][2], rest[2][2][2], both[2][2][2];  // [image][group][mean, variance]
  const NormPlan first = plan(GroupNormProblem{2, kFirst, kChannels, 2}, options);
  const NormPlan second = plan(GroupNormProblem{2, kPixels - kFirst, kChannels, 2}, options);
  first.statistics({.output = &own[0][0][0], .input = input, .image_pitch = kPixels * kChannels});
  // NOTE: the fifth pixel of 32 bytes begins at a multiple of 16.
  second.statistics({.output = &rest[0][0][0],
                     .input = input + kFirst * kChannels,
                     .image_pitch = kPixels * kChannels});
  for (int n = 0; n < 2; ++n) {
    for (int g = 0; g < 2; ++g) {
      const double a = 5.0 / 12, b = 7.0 / 12;
      const double mean = a * own[n][g][0] + b * rest[n][g][0];
      const double variance = a * (own[n][g][1] + std::pow(own[n][g][0] - mean, 2)) +
                              b * (rest[n][g][1] + std::pow(rest[n][g][0] - mean, 2));
      both[n][g][0] = static_cast<float>(mean);
      both[n][g][1] = static_cast<float>(variance);
    }
  }
  alignas(64) float part[2 * kPixels * kChannels];
  all.run({.output = part, .input = input, .statistics = &both[0][0][0]});
  for (int i = 0; i < 2 * kPixels * kChannels; ++i) {
    EXPECT_NEAR(part[i], whole[i], 2e-6 * (1 + std::abs(whole[i]))) << i;
  }
}

TEST(CpuNorm, StatisticsAreChecked) {
  alignas(64) float memory[64];
  const NormPlan group = plan(GroupNormProblem{2, 2, 8, 2}, kCpu);
  expect_error(Status::invalid_argument, {"image_pitch = 15", "at least 16"},
               [&] { group.statistics({.output = memory, .input = memory, .image_pitch = 15}); });
  expect_error(Status::invalid_argument, {"output [", "overlaps input"},
               [&] { group.statistics({.output = memory, .input = memory}); });
  expect_error(Status::invalid_argument, {"input is null"},
               [&] { group.statistics({.output = memory}); });
  const NormPlan rms = plan(RmsNormProblem{2, 8}, kCpu);
  expect_error(Status::unsupported, {"RMSNorm has no statistics"},
               [&] { rms.statistics({.output = memory, .input = memory + 16}); });
  expect_error(Status::invalid_argument, {"statistics is given"},
               [&] { rms.run({.output = memory, .input = memory, .statistics = memory + 32}); });
}

#endif  // CONVOY_WITH_CPU

}  // namespace
}  // namespace convoy
