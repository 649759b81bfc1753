// SPDX-License-Identifier: Apache-2.0
//
// The Hopper kernel as users instantiate it: compute and store ops on registers and on the staged
// tile, with linear and with patched tiles, and ragged filters that are stored without TMA. What
// the library's own instances do is tested on those: sm90_test.cpp, sm90_activations_test.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "convoy/device/sm90/conv_fprop.cuh"
#include "support/integer_tensors.hpp"

namespace convoy {
namespace {

using bf16 = __nv_bfloat16;
using test::GuardedBuffer;
using test::on_hopper;

// v -> 2v + (m mod 5) - n: depends on every coordinate, exact in bf16 for what the tests compute.
template <bool kRegisters>
struct Tag {
  static constexpr bool kEnabled = true;
  static constexpr bool kOnRegisters = kRegisters;
  template <int kWidth>
  __device__ void operator()(std::int64_t m, int n, float (&values)[kWidth]) const {
    for (int i = 0; i < kWidth; ++i) {
      values[i] = 2.0f * values[i] + static_cast<float>(m % 5) - static_cast<float>(n + i);
    }
  }
};

// Count what is stored, and copy it negated.
template <bool kReplaces>
struct Copy {
  static constexpr bool kEnabled = true;
  static constexpr bool kReplacesStore = kReplaces;
  bf16* copy;
  int filters;
  template <typename Out, int kWidth>
  __device__ void operator()(std::int64_t m, int n, const Out (&values)[kWidth]) const {
    for (int i = 0; i < kWidth && n + i < filters; ++i) {
      copy[m * filters + n + i] = __float2bfloat16(-__bfloat162float(values[i]));
    }
  }
};

// Values -1, 0, 1.
std::vector<float> draw(std::int64_t count, std::size_t factor) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(static_cast<int>(i * factor % 13 % 3) - 1);
  }
  return values;
}

GuardedBuffer upload(const std::vector<float>& values, DType dtype = DType::bf16) {
  GuardedBuffer buffer(values.size() * size_of(dtype));
  buffer.upload(test::encode(values, dtype).data());
  return buffer;
}
bf16* data(const GuardedBuffer& buffer) {
  return static_cast<bf16*>(buffer.data());
}
float round_bf16(double value) {
  return round_to(DType::bf16, static_cast<float>(value));
}

template <sm90::Config kConfig, typename ComputeOp, bool kReplaces>
void check(std::int64_t h, std::int64_t w, std::int64_t c, std::int64_t k) {
  if (!on_hopper()) GTEST_SKIP() << "no Hopper GPU";
  const Conv2dProblemShape problem{.in_height = h,
                                   .in_width = w,
                                   .in_channels = c,
                                   .out_channels = k,
                                   .filter_h = 3,
                                   .filter_w = 3,
                                   .pad_h = 1,
                                   .pad_w = 1};
  const std::vector<float> a = draw(h * w * c, 7), b = draw(k * 9 * c, 5);
  const GuardedBuffer activation = upload(a), filter = upload(b);
  const GuardedBuffer output(static_cast<std::size_t>(h * w * k) * 2), copy(output.bytes());
  using Store = Copy<kReplaces>;
  sm90::conv_fprop<kConfig>(data(output), data(activation), data(filter), problem, {}, ComputeOp{},
                            Store{data(copy), static_cast<int>(k)});
  CONVOY_ASSERT_CUDA(cudaDeviceSynchronize());

  std::vector<double> want =
      reference::convolve_fp64(geometry_of(problem), {a.data(), nullptr, b.data()});
  std::vector<double> negated(want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    const auto m = static_cast<std::int64_t>(i) / k, n = static_cast<std::int64_t>(i) % k;
    // The op on the staged tile sees values already rounded to bf16.
    const double sum = ComputeOp::kOnRegisters ? want[i] : round_bf16(want[i]);
    want[i] = 2.0 * sum + static_cast<double>(m % 5) - static_cast<double>(n);
    negated[i] = -round_bf16(want[i]);
  }
  EXPECT_EQ(test::difference(copy.download(), negated, DType::bf16, k), "");
  if (kReplaces) {
    const std::vector<unsigned char> untouched(output.bytes(), 0xff);
    EXPECT_EQ(output.download(), untouched) << "the store was to be replaced";
  } else {
    EXPECT_EQ(test::difference(output.download(), want, DType::bf16, k), "");
  }
  EXPECT_TRUE(output.guards_intact() && copy.guards_intact());
}

TEST(Sm90Api, ComputeOpOnRegisters) {
  check<sm90::Default<bf16>, Tag<true>, false>(9, 13, 24, 40);
}
TEST(Sm90Api, ComputeOpOnTheStagedTile) {
  check<sm90::Default<bf16>, Tag<false>, false>(9, 13, 24, 40);
}
TEST(Sm90Api, StoreOpReplacesTheStore) {
  check<sm90::Default<bf16>, Tag<true>, true>(9, 13, 24, 40);
}
TEST(Sm90Api, PatchedTiles) {
  check<sm90::DefaultHalo<bf16>, Tag<true>, false>(9, 13, 24, 40);
}
TEST(Sm90Api, RaggedFiltersWithoutTma) {
  check<sm90::DefaultHalo<bf16>, Tag<false>, false>(9, 13, 24, 37);
}

// A convolution with its own buffers and stream.
struct Job {
  static constexpr std::int64_t kSize = 20;
  static constexpr std::int64_t kChannels = 64;
  GuardedBuffer activation, filter, output;
  test::Stream stream{Device::cuda};
  Conv2dProblemShape problem{.in_height = kSize,
                             .in_width = kSize,
                             .in_channels = kChannels,
                             .out_channels = kChannels,
                             .filter_h = 3,
                             .filter_w = 3,
                             .pad_h = 1,
                             .pad_w = 1};
  static constexpr std::size_t kPixels = kSize * kSize;

  explicit Job(int seed) : output(kPixels * kChannels * 2) {
    std::vector<float> a(kPixels * kChannels), b(kChannels * 9 * kChannels);
    for (std::size_t i = 0; i < a.size(); ++i) {
      a[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(seed)) % 11) - 5;
    }
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i % 7) - 3;
    activation = upload(a);
    filter = upload(b);
  }
  void enqueue() {
    sm90::conv_fprop<sm90::DefaultHalo<bf16>>(data(output), data(activation), data(filter), problem,
                                              {}, NoComputeOp{}, NoStoreOp{}, stream.get());
  }
  std::vector<unsigned char> result() { return output.download(stream.get()); }
};

// The kernels without ops: plain, with bias and scale, with bias, ReLU and residual, each against
// sums of small integers; the bias in every type.
template <sm90::Config kConfig>
void check_epilogues(std::int64_t h, std::int64_t w, std::int64_t c, std::int64_t k, int taps) {
  if (!on_hopper()) GTEST_SKIP() << "no Hopper GPU";
  const Conv2dProblemShape problem{.in_height = h,
                                   .in_width = w,
                                   .in_channels = c,
                                   .out_channels = k,
                                   .filter_h = taps,
                                   .filter_w = taps,
                                   .pad_h = taps / 2,
                                   .pad_w = taps / 2};
  const std::vector<float> a = draw(h * w * c, 7), b = draw(k * taps * taps * c, 5);
  const std::vector<float> residual = draw(h * w * k, 3);
  std::vector<float> bias(static_cast<std::size_t>(k));
  for (std::size_t n = 0; n < bias.size(); ++n) bias[n] = static_cast<float>(n % 9) - 4.0f;
  const GuardedBuffer activation = upload(a), filter = upload(b), source = upload(residual);
  GuardedBuffer output(residual.size() * 2);
  const std::vector<double> sums =
      reference::convolve_fp64(geometry_of(problem), {a.data(), nullptr, b.data()});
  const DType bias_dtypes[] = {DType::fp32, DType::fp32, DType::bf16, DType::fp16};
  for (int variant = 0; variant < 4; ++variant) {
    sm90::FpropExtras extras;
    const GuardedBuffer device_bias = upload(bias, bias_dtypes[variant]);
    if (variant > 0) {
      extras.epilogue.bias = device_bias.data();
      extras.epilogue.bias_dtype = bias_dtypes[variant];
      extras.epilogue.scale = 2.0f;
    }
    if (variant == 2) {
      extras.epilogue.activation = Activation::relu;
      extras.epilogue.residual = source.data();
      extras.epilogue.beta = 3.0f;
    }
    output.fill_with_nan();
    sm90::conv_fprop<kConfig>(data(output), data(activation), data(filter), problem, extras);
    CONVOY_ASSERT_CUDA(cudaDeviceSynchronize());
    const reference::EpilogueOperands operands = {extras.epilogue,
                                                  variant > 0 ? bias.data() : nullptr,
                                                  variant == 2 ? residual.data() : nullptr};
    std::vector<double> want(sums.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      want[i] =
          reference::finish_fp64(sums[i], static_cast<std::int64_t>(i), k, operands, DType::bf16);
    }
    EXPECT_EQ(test::difference(output.download(), want, DType::bf16, k), "")
        << "variant " << variant;
    EXPECT_TRUE(output.guards_intact());
  }
}

TEST(Sm90Api, EpiloguesOfPatches) {
  check_epilogues<sm90::DefaultHalo<bf16>>(11, 25, 72, 136, 3);
}

// Filters that are no multiple of 32; and as the rows of the MMA.
inline constexpr sm90::Config kWidth56{
    .block_n = 56, .filter_stages = 4, .staging_pieces = 2, .schedule = sm90::Schedule::pingpong};
inline constexpr sm90::Config kWidth40{.block_n = 40,
                                       .filter_stages = 5,
                                       .act_stages = 2,
                                       .halo_pixels = 180,
                                       .staging_pieces = 2,
                                       .input = sm90::Input::halo,
                                       .schedule = sm90::Schedule::pingpong};
inline constexpr sm90::Config kFiltersAsRows{.block_m = 48,
                                             .block_n = 64,
                                             .consumers = 1,
                                             .filter_stages = 8,
                                             .mma_rows = sm90::MmaRows::filters};
TEST(Sm90Api, EpiloguesOfOddTiles) {
  check_epilogues<kWidth56>(11, 25, 72, 136, 1);
  check_epilogues<kWidth40>(11, 25, 72, 136, 3);
}
TEST(Sm90Api, EpiloguesOfFiltersAsRows) {
  check_epilogues<kFiltersAsRows>(11, 25, 72, 136, 3);
}
TEST(Sm90Api, ReplayedGraphGivesTheSameBits) {
  if (!on_hopper()) GTEST_SKIP() << "no Hopper GPU";
  Job job(1);
  job.enqueue();
  const std::vector<unsigned char> want = job.result();
  ASSERT_FALSE(std::isnan(load_element(want.data(), 0, DType::bf16)));

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(job.stream.get(), cudaStreamCaptureModeGlobal), cudaSuccess);
  job.enqueue();
  job.enqueue();
  ASSERT_EQ(cudaStreamEndCapture(job.stream.get(), &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (int replay = 0; replay < 2; ++replay) {
    job.output.fill_with_nan(job.stream.get());
    ASSERT_EQ(cudaGraphLaunch(executable, job.stream.get()), cudaSuccess);
    EXPECT_EQ(job.result(), want);
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST(Sm90Api, ThreadsWithStreamsOfTheirOwn) {
  if (!on_hopper()) GTEST_SKIP() << "no Hopper GPU";
  constexpr int kThreads = 4;
  std::vector<std::vector<unsigned char>> want;
  for (int t = 0; t < kThreads; ++t) {
    Job job(t);
    job.enqueue();
    want.push_back(job.result());
  }
  ASSERT_NE(want[0], want[1]);
  std::vector<int> right(kThreads, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Job job(t);
      for (int i = 0; i < 5; ++i) job.enqueue();
      right[static_cast<std::size_t>(t)] = job.result() == want[static_cast<std::size_t>(t)];
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kThreads; ++t) EXPECT_EQ(right[static_cast<std::size_t>(t)], 1) << t;
}

}  // namespace
}  // namespace convoy
