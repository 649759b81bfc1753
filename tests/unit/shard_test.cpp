// SPDX-License-Identifier: Apache-2.0
#include "convoy/shard.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "convoy/convoy.hpp"
#include "expect_error.hpp"
#include "support/shard_case.hpp"

namespace convoy::test {
namespace {

Conv2dProblemShape layer(std::int64_t height) {
  return {.in_height = height,
          .in_width = 8,
          .in_channels = 16,
          .out_channels = 16,
          .filter_h = 3,
          .filter_w = 3,
          .pad_h = 1,
          .pad_w = 1};
}

TEST(Shard, CutsRowsWithTheirHalos) {
  const auto parts = shard_layouts(layer(11), {.count = 3});
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].input, (ShardRange{0, 4, 0, 1}));
  EXPECT_EQ(parts[1].input, (ShardRange{4, 8, 1, 1}));
  EXPECT_EQ(parts[2].input, (ShardRange{8, 11, 1, 0}));
  EXPECT_EQ(parts[1].output, (ShardRange{4, 8, 0, 0}));
  const auto& first = std::get<Conv2dProblemShape>(parts[0].local);
  EXPECT_EQ(first.in_height, 5);
  EXPECT_EQ(first.pad_h, 1);
  EXPECT_EQ(first.pad_h_end, 0);
}

TEST(Shard, KeepsMarginsThroughALayer) {
  const auto parts = shard_layouts(layer(12), {.count = 2, .input_margin = 1, .output_margin = 1});
  EXPECT_EQ(parts[1].output, (ShardRange{6, 12, 1, 0}));
  EXPECT_EQ(parts[1].halo_begin, 1);
  const auto& local = std::get<Conv2dProblemShape>(parts[1].local);
  EXPECT_EQ(local.in_height, 7);
  EXPECT_EQ(local.pad_h, 1);
}

TEST(Shard, UpsamplingDoublesWhatARankOwns) {
  Conv2dProblemShape p = layer(8);
  p.upsample = 2;
  const auto parts = shard_layouts(p, {.count = 2});
  EXPECT_EQ(parts[1].input, (ShardRange{4, 8, 1, 0}));
  EXPECT_EQ(parts[1].output, (ShardRange{8, 16, 1, 0}));
  EXPECT_EQ(output_starts(parts), (std::vector<std::int64_t>{0, 8}));
}

TEST(Shard, ReflectedPaddingReadsANeighbour) {
  // Output 0 of rank 0 reads row 2 in place of row -2, which is rank 1's.
  Conv2dProblemShape p = layer(12);
  p.pad_h = 2;
  p.pad_mode = PadMode::reflect;
  const auto parts = shard_layouts(p, {.count = 3, .starts = {0, 2, 8}});
  EXPECT_EQ(parts[0].halo_end, 1);
}

TEST(Shard, RefusesWhatCannotBeCut) {
  Conv2dProblemShape wide = layer(16);
  wide.filter_h = 7;
  wide.pad_h = 3;
  // Eight ranks have two rows each, and the taps reach three.
  expect_error(
      Status::invalid_argument,
      {"count = 8", "rank 0 needs 3", "rank 1 has 2", "largest legal count, cut evenly: 5"},
      [&] { shard_layouts(wide, {.count = 8}); });
  expect_error(Status::invalid_argument, {"count = 9", "8 elements of height", "nearest: 8"},
               [] { shard_layouts(layer(8), {.count = 9}); });
  expect_error(Status::invalid_argument, {"count = 0", "at least 1"},
               [] { shard_layouts(layer(8), {.count = 0}); });
  expect_error(Status::invalid_argument, {"axis = frames", "height, width, batch"},
               [] { shard_layouts(layer(8), {.count = 2, .axis = ShardAxis::frames}); });
  expect_error(Status::invalid_argument, {"starts[1] = 0", "1 to 7"}, [] {
    shard_layouts(layer(8), {.count = 2, .starts = {0, 0}});
  });
  expect_error(Status::invalid_argument, {"starts has 1", "2"},
               [] { shard_layouts(layer(8), {.count = 2, .starts = {0}}); });
  expect_error(Status::invalid_argument, {"input_margin = -1", "at least 0"},
               [] { shard_layouts(layer(8), {.count = 2, .input_margin = -1}); });
}

TEST(Shard, TheLongestTimeoutWaitsForALateRank) {
  for (const auto timeout :
       {std::chrono::milliseconds::max(), std::chrono::milliseconds(INT64_MAX / 1'000'000)}) {
    auto ranks = Communicator::in_process(2, timeout);
    const auto gather = [&](int rank) {
      int received[2] = {-1, -1};
      ranks[std::size_t(rank)].all_gather(&rank, received, sizeof(int));
      EXPECT_EQ(received[0], 0);
      EXPECT_EQ(received[1], 1);
    };
    std::thread late([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      EXPECT_NO_THROW(gather(1));
    });
    EXPECT_NO_THROW(gather(0));
    late.join();
  }
}

#ifdef CONVOY_WITH_CPU

TEST(Shard, HasTheBitsOfOneRank) {
  int ran = 0;
  std::uint64_t seed = 0;
  for (const int count : {1, 2, 3, 4, 8}) {
    for (const ShardAxis axis :
         {ShardAxis::height, ShardAxis::width, ShardAxis::frames, ShardAxis::batch}) {
      for (int i = 0; i < 6; ++i) {
        ShardCase c = random_shard_case(++seed, count, axis, {.flops = 1e6});
        c.conv.options.device = Device::cpu;
        const ShardResult result = run_shard_case(c);
        EXPECT_EQ(result.wrong, "") << "seed " << seed << ": " << describe(c);
        ran += result.ran ? 1 : 0;
      }
    }
  }
  EXPECT_GT(ran, 60);
}

TEST(Shard, TheInteriorAndItsBordersHaveTheBitsOfOneRank) {
  std::vector<Conv2dProblemShape> layers(4, layer(21));
  layers[1].filter_h = 5, layers[1].pad_h = 3, layers[1].pad_h_end = 1;
  layers[2].stride_h = 2, layers[2].dilation_h = 2;
  layers[3].pad_mode = PadMode::replicate, layers[3].filter_h = 1, layers[3].pad_h = 2;
  int interior = 0;
  for (const Conv2dProblemShape& problem : layers) {
    for (const int count : {2, 3}) {
      ShardCase c;
      c.conv.problem = problem;
      c.conv.options = {.dtype = DType::bf16, .device = Device::cpu};
      c.conv.bias = c.conv.residual = true;
      c.spec = {.count = count, .output_margin = count - 2};
      const ShardResult result = run_shard_case(c);
      EXPECT_EQ(result.wrong, "") << describe(c);
      EXPECT_TRUE(result.ran) << result.refusal;
      interior += result.interior ? 1 : 0;
    }
  }
  EXPECT_EQ(interior, 8);
}

/// What each of `count` ranks throws.
std::vector<std::string> faults(int count, int timeout_ms,
                                const std::function<void(const Communicator&)>& body) {
  return RankThreads(Device::cpu, count, std::chrono::milliseconds(timeout_ms)).run(body);
}

TEST(Shard, RanksThatDifferSaySo) {
  const auto thrown = faults(3, 20'000, [](const Communicator& c) {
    plan_shard(layer(c.rank() == 1 ? 13 : 12), {.dtype = DType::fp32, .device = Device::cpu}, c,
               {.count = 3});
  });
  for (const std::string& what : thrown) {
    EXPECT_NE(what.find("rank 1 plans n1h13"), std::string::npos) << what;
  }
}

TEST(Shard, ARankThatCannotTellsTheOthers) {
  const auto thrown = faults(2, 20'000, [](const Communicator& c) {
    PlanOptions options{.dtype = DType::fp32, .device = Device::cpu};
    if (c.rank() == 1) options.kernel = "sm90_fprop_128x128x64";
    plan_shard(layer(12), options, c, {.count = 2});
  });
  EXPECT_NE(thrown[0].find("rank 1 cannot take part"), std::string::npos) << thrown[0];
  EXPECT_NE(thrown[1], "");
}

TEST(Shard, NormalisedLayersHaveTheBitsOfOneRank) {
  Conv2dProblemShape problem = layer(21);
  int interior = 0;
  for (const ShardAxis axis : {ShardAxis::height, ShardAxis::width, ShardAxis::batch}) {
    for (const int count : {2, 3}) {
      ShardCase c;
      problem.batch = axis == ShardAxis::height ? 1 : 3;
      c.conv.problem = problem;
      c.conv.options = {
          .dtype = DType::bf16,
          .prologue = {.norm = PrologueNorm::scale_shift, .activation = Activation::relu},
          .device = Device::cpu};
      c.spec = {.count = count, .axis = axis};
      const ShardResult result = run_shard_case(c);
      EXPECT_EQ(result.wrong, "") << describe(c);
      EXPECT_TRUE(result.ran) << result.refusal;
      interior += result.interior ? 1 : 0;
    }
  }
  EXPECT_EQ(interior, 2);
}

TEST(Shard, RefusesProloguesOfPixels) {
  const auto thrown = faults(2, 20'000, [](const Communicator& c) {
    plan_shard(
        layer(12),
        {.dtype = DType::fp32, .prologue = {.norm = PrologueNorm::rms}, .device = Device::cpu}, c,
        {.count = 2});
  });
  for (const std::string& what : thrown) {
    EXPECT_NE(what.find("prologue = rms; legal in a shard: scale_shift"), std::string::npos)
        << what;
  }
}

TEST(Shard, ARankThatIsGoneIsNamed) {
  const auto begin = std::chrono::steady_clock::now();
  const auto thrown = faults(3, 20'000, [](const Communicator& c) {
    const ShardedPlan plan =
        plan_shard(layer(12), {.dtype = DType::fp32, .device = Device::cpu}, c, {.count = 3});
    if (c.rank() == 1) throw std::runtime_error("dies here");
    std::vector<float> rows(static_cast<std::size_t>(plan.layout().input.stored()) * 8 * 16);
    plan.exchange(rows.data());
  });
  EXPECT_NE(thrown[0].find("rank 1 is gone"), std::string::npos) << thrown[0];
  EXPECT_NE(thrown[2].find("rank 1 is gone"), std::string::npos) << thrown[2];
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(Shard, ARankThatStopsIsATimeOut) {
  std::atomic<int> waiting{2};
  const auto thrown = faults(3, 200, [&](const Communicator& c) {
    char mine = 0, all[3];
    if (c.rank() == 2) {
      while (waiting > 0) std::this_thread::yield();
      return;
    }
    try {
      c.all_gather(&mine, all, 1);
    } catch (const Error&) {
      --waiting;
      throw;
    }
  });
  for (const int rank : {0, 1}) {
    const std::string& what = thrown[static_cast<std::size_t>(rank)];
    EXPECT_NE(what.find("waited 200 ms for rank 2"), std::string::npos) << what;
  }
}

TEST(Shard, TensorsThatDifferAreNamed) {
  const auto thrown = faults(2, 20'000, [](const Communicator& c) {
    std::vector<char> rows(256);
    const std::size_t inner = c.rank() == 0 ? 16 : 8;
    exchange_halos(c, {.data = rows.data(), .inner = inner, .ranges = {{0, 4, 0, 1}, {4, 8, 1, 0}}},
                   {0, 1}, {1, 0});
  });
  for (const std::string& what : thrown) {
    EXPECT_NE(what.find("their tensors differ"), std::string::npos) << what;
  }
}

TEST(Shard, ARunThatFailsEndsTheOthers) {
  const auto thrown = faults(2, 20'000, [](const Communicator& c) {
    const ShardedPlan plan =
        plan_shard(layer(12), {.dtype = DType::fp32, .device = Device::cpu}, c, {.count = 2});
    alignas(64) static thread_local float rows[8 * 8 * 16], out[8 * 8 * 16], filter[9 * 16 * 16];
    plan.run({.output = TensorView(out),
              .activation = c.rank() == 0 ? rows : nullptr,
              .filter = FilterRef(filter)});
  });
  EXPECT_EQ(thrown[0], "rank 1 gave up: activation is null");
  EXPECT_EQ(thrown[1], "activation is null");
}

TEST(Shard, HalosAreChecked) {
  const Communicator c = Communicator::in_process(1).front();
  char row[16];
  expect_error(Status::invalid_argument, {"halo_end of rank 0 = 1", "legal: 0 to 0"}, [&] {
    exchange_halos(c, {.data = row, .inner = 16, .ranges = {{0, 1, 0, 1}}}, {0}, {1});
  });
  expect_error(Status::invalid_argument, {"ranges has 0"},
               [&] { exchange_halos(c, {.data = row, .inner = 16}, {}, {}); });
}

#endif

#ifndef CONVOY_WITH_CUDA
TEST(Shard, NcclNeedsCuda) {
  expect_error(Status::unsupported, {"without CUDA"}, [] { Communicator::nccl_id(); });
}
#endif

}  // namespace
}  // namespace convoy::test
