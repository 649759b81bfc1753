// SPDX-License-Identifier: Apache-2.0
//
// The Hopper kernel as users instantiate it: compute and store ops on registers and on the staged
// tile, with linear and with patched tiles, and ragged filters that are stored without TMA.
#include <cmath>
#include <cstring>
#include <thread>
#include <type_traits>
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

TEST(Sm90Api, EpiloguesInTurns) {
  check_epilogues<sm90::Default<bf16>>(11, 25, 72, 136, 3);
}
TEST(Sm90Api, EpiloguesOfPatches) {
  check_epilogues<sm90::DefaultHalo<bf16>>(11, 25, 72, 136, 3);
}
TEST(Sm90Api, EpiloguesOfThreeWarpgroups) {
  check_epilogues<sm90::Config{
      .block_m = 192, .block_n = 96, .consumers = 3, .filter_stages = 5, .staging_pieces = 3}>(
      11, 37, 72, 104, 1);
}

// Filters as the rows of the MMA.
template <typename T>
inline constexpr sm90::Config Swapped = {.in = sm90::dtype_of<T>(),
                                         .out = sm90::dtype_of<T>(),
                                         .block_m = 96,
                                         .block_n = 128,
                                         .consumers = 2,
                                         .filter_stages = 5,
                                         .staging_pieces = 0,
                                         .mma_rows = sm90::MmaRows::filters};
static_assert(Swapped<bf16>.is_swapped());  // See conv_fprop.cuh.
TEST(Sm90Api, EpiloguesOfSwappedTiles) {
  check_epilogues<Swapped<bf16>>(11, 37, 72, 136, 1);
}

// Every activation of the fused path against double precision: a 1x1 convolution with the identity,
// so that the output is the activation of the input. `unit`: of rounding to the output type.
template <sm90::Config kConfig>
void check_activations(double unit) {
  if (!on_hopper()) GTEST_SKIP() << "no Hopper GPU";
  using T = sm90::Element<kConfig.in>;
  using Out = sm90::Element<kConfig.out>;
  constexpr std::int64_t kChannels = 64;
  constexpr std::int64_t kPixels = 64;
  const Conv2dProblemShape problem{
      .in_height = 8, .in_width = 8, .in_channels = kChannels, .out_channels = kChannels};
  std::vector<float> a(kPixels * kChannels), b(kChannels * kChannels);
  for (std::size_t i = 0; i < a.size(); ++i) {
    // -8 to 8 in steps of 1/256; every seventh near zero.
    const float x = (static_cast<float>(i) - 2048.0f) / 256.0f;
    a[i] = round_to(kConfig.in, i % 7 == 0 ? x / 1024.0f : x);
  }
  for (std::size_t i = 0; i < kChannels; ++i) b[i * kChannels + i] = 1.0f;
  const GuardedBuffer activation = upload(a, kConfig.in), filter = upload(b, kConfig.in);
  GuardedBuffer output(a.size() * sizeof(Out));
  for (const Activation kind :
       {Activation::none, Activation::relu, Activation::leaky_relu, Activation::gelu,
        Activation::gelu_tanh, Activation::silu, Activation::sigmoid, Activation::tanh,
        Activation::hardswish, Activation::clamp}) {
    sm90::FpropExtras extras;
    extras.epilogue.activation = kind;
    extras.epilogue.parameter_a = -1.5f;
    extras.epilogue.parameter_b = 2.5f;
    output.fill_with_nan();
    sm90::conv_fprop<kConfig>(static_cast<Out*>(output.data()), static_cast<T*>(activation.data()),
                              static_cast<T*>(filter.data()), problem, extras);
    CONVOY_ASSERT_CUDA(cudaDeviceSynchronize());
    reference::Expectation want;
    for (const float x : a) {
      want.value.push_back(reference::activate_fp64(x, kind, -1.5, 2.5));
      want.bound.push_back(unit * std::abs(want.value.back()) + 0x1p-20);
    }
    const reference::Comparison found =
        reference::compare(output.download().data(), kConfig.out, want);
    EXPECT_TRUE(found.pass) << to_string(kind) << " of " << a[static_cast<std::size_t>(found.worst)]
                            << " is " << found.worst_got << ", expected " << found.worst_expected;
  }
}
TEST(Sm90Api, ActivationsInBf16) {
  check_activations<sm90::Default<bf16>>(0x1p-8);
}
TEST(Sm90Api, ActivationsInFp16) {
  check_activations<sm90::Default<__half>>(0x1p-11);
}
TEST(Sm90Api, ActivationsOfSwappedTiles) {
  check_activations<Swapped<bf16>>(0x1p-8);
}
TEST(Sm90Api, ActivationsInFp32) {
  // No approximation but SiLU's.
  check_activations<sm90::Config{.in = DType::fp16,
                                 .out = DType::fp32,
                                 .block_m = 64,
                                 .block_n = 128,
                                 .consumers = 1,
                                 .filter_stages = 4,
                                 .staging_pieces = 2,
                                 .schedule = sm90::Schedule::split_k}>(0x1p-19);
}

// SiLU of every 16-bit value, infinities and NaNs among them, next to values of any other size: the
// residual is the activation's argument, the convolution is zero.
template <sm90::Config kConfig>
void check_silu_of_every_value() {
  using T = sm90::Element<kConfig.in>;
  if (!on_hopper()) GTEST_SKIP() << "no Hopper GPU";
  constexpr std::int64_t kChannels = 64;
  constexpr std::size_t kValues = 1 << 16;
  const Conv2dProblemShape problem{
      .in_height = 32, .in_width = 32, .in_channels = kChannels, .out_channels = kChannels};
  std::vector<std::uint16_t> in(kValues);
  for (std::size_t i = 0; i < kValues; ++i) in[i] = static_cast<std::uint16_t>(i * 40503);
  const GuardedBuffer zeros = upload(std::vector<float>(kValues));
  GuardedBuffer residual(kValues * 2), output(kValues * 2);
  residual.upload(in.data());
  const auto* const zero = static_cast<const T*>(zeros.data());
  sm90::FpropExtras extras;
  extras.epilogue.activation = Activation::silu;
  extras.epilogue.residual = residual.data();
  extras.epilogue.order = ResidualOrder::before_activation;
  sm90::conv_fprop<kConfig>(static_cast<T*>(output.data()), zero, zero, problem, extras);
  CONVOY_ASSERT_CUDA(cudaDeviceSynchronize());
  const std::vector<unsigned char> got = output.download();
  int not_nearest = 0;
  for (std::size_t i = 0; i < kValues; ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const double x = load_element(in.data(), at, kConfig.in);
    const double want = reference::activate_fp64(x, Activation::silu, 0, 0);
    const double y = load_element(got.data(), at, kConfig.out);
    if (std::isnan(want) || std::isinf(want)) {
      EXPECT_TRUE(std::isnan(want) ? std::isnan(y) : y == want) << "SiLU of " << x << " is " << y;
      continue;
    }
    // Rounding to the output type, and what the special-function unit may be off before it. It
    // flushes fp32 subnormals to zero.
    const double unit = std::is_same_v<T, bf16> ? 0x1p-8 : 0x1p-11;
    const double floor = std::is_same_v<T, bf16> ? 0x1p-118 : 0x1p-25;
    EXPECT_NEAR(y, want, unit * (1 + 0x1p-8) * std::abs(want) + floor) << "SiLU of " << x;
    not_nearest += y != static_cast<double>(round_to(kConfig.out, static_cast<float>(want)));
  }
  // Values whose fp64 result lies so near the middle between two neighbours that fp32 picks the
  // other one.
  EXPECT_LT(not_nearest, 40) << "of 65536";
}
TEST(Sm90Api, SiluOfEveryBf16InTurns) {
  check_silu_of_every_value<sm90::Default<bf16>>();
}
TEST(Sm90Api, SiluOfEveryBf16) {  // Cooperative tiles have a formula of their own.
  check_silu_of_every_value<Swapped<bf16>>();
}
TEST(Sm90Api, SiluOfEveryFp16) {
  check_silu_of_every_value<sm90::Config{.in = DType::fp16,
                                         .out = DType::fp16,
                                         .block_m = 64,
                                         .block_n = 64,
                                         .consumers = 1,
                                         .filter_stages = 4,
                                         .schedule = sm90::Schedule::split_k}>();
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
