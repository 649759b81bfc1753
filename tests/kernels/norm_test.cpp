// SPDX-License-Identifier: Apache-2.0
//
// The norms on a GPU, real or virtual, against fp64.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "convoy/dtype.hpp"
#include "support/guarded_buffer.hpp"
#include "support/norm_case.hpp"

namespace convoy::test {
namespace {

class Norm : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
  }
};

NormCase group_case(std::int64_t pixels, std::int64_t channels, std::int64_t groups,
                    DType dtype = DType::bf16) {
  NormCase test{.pixels = pixels, .channels = channels, .groups = groups};
  test.options = {.dtype = dtype, .activation = Activation::silu, .device = Device::cuda};
  return test;
}

NormCase rms_case(std::int64_t pixels, std::int64_t channels, DType dtype = DType::bf16) {
  NormCase test = group_case(pixels, channels, 1, dtype);
  test.rms = true;
  test.options.bias = false;
  test.rule = RmsEpsilon::norm_floor;
  test.epsilon = 1e-12f;
  return test;
}

TEST_F(Norm, GroupsOfEveryWidth) {
  // One, two, four, eight groups in a vector; groups of several vectors; of odd widths; of one
  // channel; one of all channels.
  const std::pair<std::int64_t, std::int64_t> shapes[] = {
      {512, 32}, {128, 32}, {64, 32}, {32, 32}, {320, 32}, {96, 1}, {48, 16}, {36, 4},
      {3, 1},    {7, 7},    {8, 1},   {96, 4},  {40, 8},   {1, 1},  {264, 3}};
  for (const auto& [channels, groups] : shapes) {
    for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
      const NormCase test = group_case(301, channels, groups, dtype);
      EXPECT_EQ(run_norm_case(test), "") << test.describe();
    }
  }
}

TEST_F(Norm, Coefficients) {
  const std::pair<std::int64_t, std::int64_t> shapes[] = {
      {512, 32}, {96, 1}, {36, 4}, {7, 7}, {9000, 3}};
  for (const auto& [channels, groups] : shapes) {
    for (const DType dtype : {DType::bf16, DType::fp32}) {
      if (channels == 9000 && dtype == DType::fp32) continue;
      for (const bool rms : {false, true}) {
        NormCase test =
            rms ? rms_case(43, channels, dtype) : group_case(43, channels, groups, dtype);
        test.batch = 3;
        test.options.activation = Activation::none;
        test.options.result = NormResult::coefficients;
        if (rms) test.options.scale = false;
        EXPECT_EQ(run_norm_case(test), "") << test.describe();
      }
    }
  }
}

TEST_F(Norm, GroupsAcrossSlicesOfChannels) {
  // More channels than a block has threads: groups that fill slices, share them, straddle them.
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{16384, 1},  {9000, 3}, {8200, 8200},
                                                          {9216, 512}, {1500, 4}, {20480, 5}};
  for (const auto& [channels, groups] : shapes) {
    NormCase test = group_case(9, channels, groups, DType::fp32);
    EXPECT_EQ(run_norm_case(test), "") << test.describe();
    test.options.dtype = DType::bf16;
    EXPECT_EQ(run_norm_case(test), "") << test.describe();
  }
}

TEST_F(Norm, ManyImagesAndTiles) {
  NormCase images = group_case(5, 16, 4);
  images.batch = 70;
  EXPECT_EQ(run_norm_case(images), "") << images.describe();
  // 12 tiles, the last one short.
  const NormCase tiles = group_case(3011, 128, 32);
  EXPECT_EQ(run_norm_case(tiles), "") << tiles.describe();
}

/// Several tiles for each multiprocessor of a real GPU.
TEST_F(Norm, ManyTiles) {
  const NormCase tiles = group_case(70011, 128, 32);
  EXPECT_EQ(run_norm_case(tiles), "") << tiles.describe();
}

TEST_F(Norm, LargeOffsetsKeepTheirPrecision) {
  for (const double offset : {1000.0, -30000.0}) {
    NormCase test = group_case(3001, 24, 3, DType::fp32);
    test.options.activation = Activation::none;
    test.epsilon = 1e-6f;
    test.offset = offset;
    EXPECT_EQ(run_norm_case(test), "") << test.describe();
  }
}

TEST_F(Norm, EveryActivation) {
  for (const Activation activation :
       {Activation::relu, Activation::leaky_relu, Activation::gelu, Activation::gelu_tanh,
        Activation::sigmoid, Activation::tanh, Activation::hardswish, Activation::clamp}) {
    for (const std::int64_t channels : {64, 5}) {
      for (const DType dtype : {DType::bf16, DType::fp32}) {
        for (const bool rms : {false, true}) {
          NormCase test = rms ? rms_case(33, channels, dtype) : group_case(33, channels, 1, dtype);
          test.options.activation = activation;
          EXPECT_EQ(run_norm_case(test), "") << test.describe();
        }
      }
    }
  }
}

TEST_F(Norm, RmsOfEveryWidth) {
  for (const std::int64_t channels :
       {96, 192, 384, 512, 8, 16, 24, 40, 128, 1024, 1032, 2048, 3, 5, 33, 100, 1000, 4099}) {
    for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
      for (const RmsEpsilon rule : {RmsEpsilon::added, RmsEpsilon::norm_floor}) {
        NormCase test = rms_case(103, channels, dtype);
        test.rule = rule;
        test.options.bias = rule == RmsEpsilon::added;
        test.in_place = rule == RmsEpsilon::added;
        EXPECT_EQ(run_norm_case(test), "") << test.describe();
      }
    }
  }
}

TEST_F(Norm, ZeroPixelsStayZeroUnderTheFloor) {
  const NormPlan floor = plan(
      RmsNormProblem{
          .pixels = 4, .channels = 96, .epsilon = 1e-12f, .rule = RmsEpsilon::norm_floor},
      {.scale = false, .bias = false, .device = Device::cuda});
  GuardedBuffer x(Device::cuda, 4 * 96 * 2), y(Device::cuda, 4 * 96 * 2);
  const std::vector<unsigned char> zeros(4 * 96 * 2);
  x.upload(zeros.data());
  floor.run({.output = y.data(), .input = x.data()});
  synchronize(Device::cuda);
  EXPECT_EQ(y.download(), zeros);
}

TEST_F(Norm, NanAndInfinityStayInTheirGroup) {
  constexpr std::int64_t kPixels = 700, kChannels = 32;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> x(kPixels * kChannels);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 13);
    x[600 * kChannels + 13] = bad;
    GuardedBuffer in(Device::cuda, x.size() * 4), out(Device::cuda, x.size() * 4);
    in.upload(x.data());
    const NormOptions options{
        .dtype = DType::fp32, .scale = false, .bias = false, .device = Device::cuda};
    const NormPlan group =
        plan(GroupNormProblem{.pixels = kPixels, .channels = kChannels, .groups = 4}, options);
    GuardedBuffer workspace(Device::cuda, group.workspace_bytes());
    group.run({.output = out.data(), .input = in.data(), .workspace = workspace.data()});
    synchronize(Device::cuda);
    std::vector<unsigned char> bytes = out.download();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float y = load_element(bytes.data(), static_cast<std::int64_t>(i), DType::fp32);
      ASSERT_EQ(std::isnan(y), i % kChannels / 8 == 1) << i;
    }
    plan(RmsNormProblem{.pixels = kPixels, .channels = kChannels}, options)
        .run({.output = out.data(), .input = in.data()});
    synchronize(Device::cuda);
    bytes = out.download();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float y = load_element(bytes.data(), static_cast<std::int64_t>(i), DType::fp32);
      const bool hit = i / kChannels == 600 && (std::isnan(bad) || i % kChannels == 13);
      ASSERT_EQ(std::isnan(y), hit) << i;
    }
  }
}

TEST_F(Norm, TheLargestValuesOfTheType) {
  // Squares of these do not fit fp32; a constant image has no deviation all the same.
  std::vector<float> x(64 * 8, 1e30f);
  GuardedBuffer in(Device::cuda, x.size() * 4), out(Device::cuda, x.size() * 4);
  in.upload(x.data());
  const NormPlan group =
      plan(GroupNormProblem{.pixels = 64, .channels = 8, .groups = 2},
           {.dtype = DType::fp32, .scale = false, .bias = false, .device = Device::cuda});
  GuardedBuffer workspace(Device::cuda, group.workspace_bytes());
  group.run({.output = out.data(), .input = in.data(), .workspace = workspace.data()});
  synchronize(Device::cuda);
  EXPECT_EQ(out.download(), std::vector<unsigned char>(x.size() * 4));
}

TEST_F(Norm, AWorkspaceIsAskedFor) {
  const NormPlan group = plan(GroupNormProblem{.pixels = 64, .channels = 8, .groups = 2},
                              {.scale = false, .bias = false, .device = Device::cuda});
  ASSERT_GT(group.workspace_bytes(), 0u);
  EXPECT_EQ(group.info().kernel, "group_norm");
  GuardedBuffer x(Device::cuda, 64 * 8 * 2);
  try {
    group.run({.output = x.data(), .input = x.data()});
    ADD_FAILURE() << "ran without a workspace";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("workspace is null, but the plan needs"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(Norm, RandomCases) {
  const char* count = std::getenv("CONVOY_FUZZ_COUNT");
  const char* seed = std::getenv("CONVOY_FUZZ_SEED");
  std::mt19937_64 random(seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1);
  for (int i = 0; i < (count != nullptr ? std::atoi(count) : 100); ++i) {
    const NormCase test = random_norm_case(random, Device::cuda);
    ASSERT_EQ(run_norm_case(test), "") << test.describe();
  }
}

/// A tensor of more than 2^31 elements, made of copies of one pattern whose norm is known.
TEST_F(Norm, PastTwoToThe31Elements) {
  constexpr std::int64_t kChannels = 64, kPattern = 1 << 14, kCopies = (1 << 11) + 3;
  constexpr std::int64_t kPixels = kPattern * kCopies;
  static_assert(kPixels * kChannels > std::int64_t{1} << 31);
  std::size_t free_bytes = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
  if (free_bytes < (std::size_t{6} << 30)) GTEST_SKIP() << "needs 6 GiB of device memory";

  NormCase small = group_case(kPattern, kChannels, 32);
  small.options.scale = small.options.bias = false;
  for (const bool rms : {false, true}) {
    small.rms = rms;
    // The pattern alone, and the copies.
    std::mt19937_64 random(3);
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t> pattern(kPattern * kChannels);
    for (std::uint16_t& value : pattern) value = bf16_from_float(normal(random));
    const std::size_t bytes = pattern.size() * 2;
    NormCase large = small;
    large.pixels = kPixels;
    std::vector<unsigned char> want, first, middle, last;
    for (const std::int64_t copies : {std::int64_t{1}, kCopies}) {
      const NormPlan plan = plan_norm(copies == 1 ? small : large);
      GuardedBuffer x(Device::cuda, bytes * static_cast<std::size_t>(copies));
      GuardedBuffer workspace(Device::cuda, plan.workspace_bytes());
      auto* data = static_cast<unsigned char*>(x.data());
      for (std::int64_t i = 0; i < copies; ++i) {
        ASSERT_EQ(cudaMemcpy(data + static_cast<std::size_t>(i) * bytes, pattern.data(), bytes,
                             cudaMemcpyDefault),
                  cudaSuccess);
      }
      plan.run({.output = data,
                .input = data,
                .workspace = plan.workspace_bytes() > 0 ? workspace.data() : nullptr});
      synchronize(Device::cuda);
      EXPECT_TRUE(x.guards_intact());
      for (const std::int64_t i : {std::int64_t{0}, copies / 2, copies - 1}) {
        std::vector<unsigned char> got(bytes);
        ASSERT_EQ(cudaMemcpy(got.data(), data + static_cast<std::size_t>(i) * bytes, bytes,
                             cudaMemcpyDefault),
                  cudaSuccess);
        if (want.empty()) want = got;
        // The statistics differ in their last bits.
        for (std::int64_t j = 0; j < kPattern * kChannels; ++j) {
          const float a = load_element(want.data(), j, DType::bf16);
          const float b = load_element(got.data(), j, DType::bf16);
          ASSERT_LE(std::fabs(a - b), 0.01f * std::fabs(a) + 1e-3f) << i << " " << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace convoy::test
