// SPDX-License-Identifier: Apache-2.0
//
// The Hopper kernel as users instantiate it: compute and store ops on registers and on the staged
// tile, with linear and with patched tiles, and ragged filters that are stored without TMA.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <type_traits>
#include <vector>

#include "convoy/device/sm90/conv_fprop.cuh"

namespace convoy {
namespace {

using bf16 = __nv_bfloat16;

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

struct Buffers {
  bf16* activation = nullptr;
  bf16* filter = nullptr;
  bf16* output = nullptr;
  bf16* copy = nullptr;
  ~Buffers() {
    for (bf16* p : {activation, filter, output, copy}) cudaFree(p);
  }
};

template <sm90::Config kConfig, typename ComputeOp, bool kReplaces>
void check(std::int64_t h, std::int64_t w, std::int64_t c, std::int64_t k) {
  int major = 0;
  int minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) != cudaSuccess ||
      major != 9 || minor != 0) {
    GTEST_SKIP() << "no Hopper GPU";
  }
  const Conv2dProblemShape problem{.in_height = h,
                                   .in_width = w,
                                   .in_channels = c,
                                   .out_channels = k,
                                   .filter_h = 3,
                                   .filter_w = 3,
                                   .pad_h = 1,
                                   .pad_w = 1};
  std::vector<bf16> a(static_cast<std::size_t>(h * w * c));
  std::vector<bf16> b(static_cast<std::size_t>(k * 9 * c));
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = __float2bfloat16(static_cast<float>(static_cast<int>(i * 7 % 11 % 3) - 1));
  }
  for (std::size_t i = 0; i < b.size(); ++i) {
    b[i] = __float2bfloat16(static_cast<float>(static_cast<int>(i * 5 % 13 % 3) - 1));
  }
  const std::size_t count = static_cast<std::size_t>(h * w * k);
  Buffers device;
  ASSERT_EQ(cudaMalloc(&device.activation, a.size() * 2), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&device.filter, b.size() * 2), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&device.output, count * 2), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&device.copy, count * 2), cudaSuccess);
  cudaMemcpy(device.activation, a.data(), a.size() * 2, cudaMemcpyHostToDevice);
  cudaMemcpy(device.filter, b.data(), b.size() * 2, cudaMemcpyHostToDevice);
  cudaMemset(device.output, 0xff, count * 2);
  cudaMemset(device.copy, 0xff, count * 2);

  using Store = Copy<kReplaces>;
  sm90::conv_fprop<kConfig>(device.output, device.activation, device.filter, problem, {},
                            ComputeOp{}, Store{device.copy, static_cast<int>(k)});
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  std::vector<bf16> output(count);
  std::vector<bf16> copy(count);
  cudaMemcpy(output.data(), device.output, count * 2, cudaMemcpyDeviceToHost);
  cudaMemcpy(copy.data(), device.copy, count * 2, cudaMemcpyDeviceToHost);

  for (std::int64_t m = 0; m < h * w; ++m) {
    for (std::int64_t n = 0; n < k; ++n) {
      float sum = 0;
      for (std::int64_t r = 0; r < 3; ++r) {
        for (std::int64_t s = 0; s < 3; ++s) {
          const std::int64_t y = m / w + r - 1;
          const std::int64_t x = m % w + s - 1;
          if (y < 0 || y >= h || x < 0 || x >= w) continue;
          for (std::int64_t i = 0; i < c; ++i) {
            sum += __bfloat162float(a[static_cast<std::size_t>((y * w + x) * c + i)]) *
                   __bfloat162float(b[static_cast<std::size_t>((n * 9 + r * 3 + s) * c + i)]);
          }
        }
      }
      // The op on the staged tile sees values already rounded to bf16.
      if (!ComputeOp::kOnRegisters) sum = __bfloat162float(__float2bfloat16(sum));
      const float want = __bfloat162float(
          __float2bfloat16(2.0f * sum + static_cast<float>(m % 5) - static_cast<float>(n)));
      const auto i = static_cast<std::size_t>(m * k + n);
      ASSERT_EQ(__bfloat162float(copy[i]), -want) << "pixel " << m << " filter " << n;
      if (kReplaces) {
        ASSERT_TRUE(std::isnan(__bfloat162float(output[i]))) << "the store was to be replaced";
      } else {
        ASSERT_EQ(__bfloat162float(output[i]), want) << "pixel " << m << " filter " << n;
      }
    }
  }
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
  Buffers device;
  cudaStream_t stream = nullptr;
  Conv2dProblemShape problem{.in_height = kSize,
                             .in_width = kSize,
                             .in_channels = kChannels,
                             .out_channels = kChannels,
                             .filter_h = 3,
                             .filter_w = 3,
                             .pad_h = 1,
                             .pad_w = 1};
  static constexpr std::size_t kPixels = kSize * kSize;

  explicit Job(int seed) {
    std::vector<bf16> a(kPixels * kChannels);
    std::vector<bf16> b(kChannels * 9 * kChannels);
    for (std::size_t i = 0; i < a.size(); ++i) {
      a[i] =
          __float2bfloat16(static_cast<float>((i * 7 + static_cast<std::size_t>(seed)) % 11) - 5);
    }
    for (std::size_t i = 0; i < b.size(); ++i) {
      b[i] = __float2bfloat16(static_cast<float>(i % 7) - 3);
    }
    cudaMalloc(&device.activation, a.size() * 2);
    cudaMalloc(&device.filter, b.size() * 2);
    cudaMalloc(&device.output, a.size() * 2);
    cudaMemcpy(device.activation, a.data(), a.size() * 2, cudaMemcpyHostToDevice);
    cudaMemcpy(device.filter, b.data(), b.size() * 2, cudaMemcpyHostToDevice);
    cudaMemset(device.output, 0xff, a.size() * 2);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  }
  ~Job() { cudaStreamDestroy(stream); }
  void enqueue() {
    sm90::conv_fprop<sm90::DefaultHalo<bf16>>(device.output, device.activation, device.filter,
                                              problem, {}, NoComputeOp{}, NoStoreOp{}, stream);
  }
  std::vector<bf16> result() {
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    std::vector<bf16> values(kPixels * kChannels);
    cudaMemcpy(values.data(), device.output, values.size() * 2, cudaMemcpyDeviceToHost);
    return values;
  }
};

bool same_bits(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 2) == 0;
}

bool on_hopper() {
  int major = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess &&
         major == 9;
}

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
  const auto draw = [](std::int64_t count, std::size_t factor) {
    std::vector<bf16> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = __float2bfloat16(static_cast<float>(static_cast<int>(i * factor % 13 % 3) - 1));
    }
    return values;
  };
  const std::vector<bf16> a = draw(h * w * c, 7);
  const std::vector<bf16> b = draw(k * taps * taps * c, 5);
  const std::vector<bf16> residual = draw(h * w * k, 3);
  std::vector<float> bias(static_cast<std::size_t>(k));
  for (std::size_t n = 0; n < bias.size(); ++n) bias[n] = static_cast<float>(n % 9) - 4.0f;
  std::vector<bf16> bias_bf16;
  std::vector<__half> bias_fp16;
  for (const float value : bias) {
    bias_bf16.push_back(__float2bfloat16(value));
    bias_fp16.push_back(__float2half(value));
  }
  Buffers device;
  void* device_bias = nullptr;
  ASSERT_EQ(cudaMalloc(&device.activation, a.size() * 2), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&device.filter, b.size() * 2), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&device.output, residual.size() * 2), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&device.copy, residual.size() * 2), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&device_bias, bias.size() * 4), cudaSuccess);
  cudaMemcpy(device.activation, a.data(), a.size() * 2, cudaMemcpyHostToDevice);
  cudaMemcpy(device.filter, b.data(), b.size() * 2, cudaMemcpyHostToDevice);
  cudaMemcpy(device.copy, residual.data(), residual.size() * 2, cudaMemcpyHostToDevice);

  std::vector<float> sums(residual.size());
  for (std::int64_t m = 0; m < h * w; ++m) {
    for (std::int64_t n = 0; n < k; ++n) {
      float sum = 0;
      for (std::int64_t tap = 0; tap < taps * taps; ++tap) {
        const std::int64_t y = m / w + tap / taps - taps / 2;
        const std::int64_t x = m % w + tap % taps - taps / 2;
        if (y < 0 || y >= h || x < 0 || x >= w) continue;
        for (std::int64_t i = 0; i < c; ++i) {
          sum += __bfloat162float(a[static_cast<std::size_t>((y * w + x) * c + i)]) *
                 __bfloat162float(b[static_cast<std::size_t>((n * taps * taps + tap) * c + i)]);
        }
      }
      sums[static_cast<std::size_t>(m * k + n)] = sum;
    }
  }
  const struct {
    DType dtype;
    const void* values;
  } biases[] = {{},
                {DType::fp32, bias.data()},
                {DType::bf16, bias_bf16.data()},
                {DType::fp16, bias_fp16.data()}};
  for (int variant = 0; variant < 4; ++variant) {
    sm90::FpropExtras extras;
    if (variant > 0) {
      extras.epilogue.bias = device_bias;
      extras.epilogue.bias_dtype = biases[variant].dtype;
      extras.epilogue.scale = 2.0f;
      cudaMemcpy(device_bias, biases[variant].values, bias.size() * size_of(biases[variant].dtype),
                 cudaMemcpyHostToDevice);
    }
    if (variant == 2) {
      extras.epilogue.activation = Activation::relu;
      extras.epilogue.residual = device.copy;
      extras.epilogue.beta = 3.0f;
    }
    cudaMemset(device.output, 0xff, residual.size() * 2);
    sm90::conv_fprop<kConfig>(device.output, device.activation, device.filter, problem, extras);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<bf16> output(residual.size());
    cudaMemcpy(output.data(), device.output, output.size() * 2, cudaMemcpyDeviceToHost);
    for (std::size_t i = 0; i < output.size(); ++i) {
      float want = sums[i];
      if (variant > 0) want = 2.0f * want + bias[i % bias.size()];
      if (variant == 2) want = std::max(want, 0.0f) + 3.0f * __bfloat162float(residual[i]);
      ASSERT_EQ(__bfloat162float(output[i]), __bfloat162float(__float2bfloat16(want)))
          << "variant " << variant << " pixel " << i / bias.size() << " filter " << i % bias.size();
    }
  }
  cudaFree(device_bias);
}

TEST(Sm90Api, EpiloguesInTurns) {
  check_epilogues<sm90::Default<bf16>>(11, 25, 72, 136, 3);
}
TEST(Sm90Api, EpiloguesOfPatches) {
  check_epilogues<sm90::DefaultHalo<bf16>>(11, 25, 72, 136, 3);
}
TEST(Sm90Api, EpiloguesOfATileInAClusterOfOne) {
  check_epilogues<sm90::Config{.block_m = 64,
                               .block_n = 128,
                               .consumers = 1,
                               .filter_stages = 4,
                               .schedule = sm90::Schedule::split_k}>(11, 13, 72, 136, 3);
}
TEST(Sm90Api, EpiloguesOfThreeWarpgroups) {
  check_epilogues<sm90::Config{
      .block_m = 192, .block_n = 96, .consumers = 3, .filter_stages = 5, .staging_pieces = 3}>(
      11, 37, 72, 104, 1);
}

// Filters as the rows of the MMA: several tiles of 96 pixels, ragged pixels and filters; taps that
// im2col fetches; rows of the output that TMA cannot store.
template <typename T, int kConsumers = 2>
inline constexpr sm90::Config Swapped = {.in = sm90::dtype_of<T>(),
                                         .out = sm90::dtype_of<T>(),
                                         .block_m = 96,
                                         .block_n = 128,
                                         .consumers = kConsumers,
                                         .filter_stages = 5,
                                         .staging_pieces = 0,
                                         .mma_rows = sm90::MmaRows::filters};
TEST(Sm90Api, EpiloguesOfSwappedTiles) {
  check_epilogues<Swapped<bf16>>(11, 37, 72, 136, 1);
}
TEST(Sm90Api, EpiloguesOfSwappedTilesWithTaps) {
  check_epilogues<Swapped<bf16>>(9, 17, 136, 104, 3);
}
TEST(Sm90Api, EpiloguesOfSwappedTilesWithoutTma) {
  check_epilogues<Swapped<bf16>>(7, 19, 24, 131, 3);
}
TEST(Sm90Api, EpiloguesOfSwappedTilesInFourBlocks) {
  check_epilogues<sm90::Config{.block_m = 96,
                               .block_n = 256,
                               .consumers = 2,
                               .filter_stages = 4,
                               .staging_pieces = 0,
                               .mma_rows = sm90::MmaRows::filters}>(11, 37, 72, 264, 1);
}
TEST(Sm90Api, EpiloguesOfSwappedTilesOfOneWarpgroup) {
  check_epilogues<Swapped<bf16, 1>>(11, 37, 392, 136, 1);
}

// Clusters, with more channels than the stages hold: pairs of filter tiles share ragged tiles of
// pixels, cooperative and in turns, swapped too; pairs of patches share filters.
TEST(Sm90Api, EpiloguesOfSharedActivations) {
  check_epilogues<sm90::Config{.block_m = 128,
                               .block_n = 160,
                               .consumers = 2,
                               .cluster_n = 2,
                               .filter_stages = 5,
                               .staging_pieces = 5}>(11, 37, 392, 264, 1);
}
TEST(Sm90Api, EpiloguesOfSharedActivationsInTurns) {
  check_epilogues<sm90::Config{.block_m = 128,
                               .block_n = 192,
                               .consumers = 2,
                               .cluster_n = 2,
                               .filter_stages = 4,
                               .staging_pieces = 6,
                               .schedule = sm90::Schedule::pingpong}>(21, 37, 328, 680, 1);
}
TEST(Sm90Api, EpiloguesOfSharedActivationsSwapped) {
  check_epilogues<sm90::Config{.block_m = 96,
                               .block_n = 128,
                               .consumers = 1,
                               .cluster_n = 2,
                               .filter_stages = 5,
                               .staging_pieces = 0,
                               .mma_rows = sm90::MmaRows::filters}>(11, 37, 392, 200, 1);
}
TEST(Sm90Api, EpiloguesOfPatchesThatShareFilters) {
  check_epilogues<sm90::Config{.block_m = 128,
                               .block_n = 128,
                               .consumers = 2,
                               .cluster_m = 2,
                               .filter_stages = 5,
                               .act_stages = 2,
                               .halo_pixels = 180,
                               .input = sm90::Input::halo,
                               .schedule = sm90::Schedule::pingpong}>(19, 41, 136, 136, 3);
}

// 1x1 filters that stay in shared memory: several tiles a CTA, ragged pixels, channels and filters.
constexpr sm90::Config kResident = {.block_m = 128,
                                    .block_n = 128,
                                    .consumers = 2,
                                    .filter_stages = 8,
                                    .act_stages = 4,
                                    .staging_pieces = 4,
                                    .input = sm90::Input::resident,
                                    .schedule = sm90::Schedule::pingpong};
TEST(Sm90Api, EpiloguesOfResidentFilters) {
  check_epilogues<kResident>(33, 41, 136, 264, 1);
}
TEST(Sm90Api, EpiloguesOfResidentFiltersInOneBlock) {
  check_epilogues<kResident>(33, 41, 24, 104, 1);
}
TEST(Sm90Api, EpiloguesOfResidentFiltersInAllBlocks) {
  check_epilogues<kResident>(17, 41, 504, 136, 1);
}
TEST(Sm90Api, EpiloguesOfResidentFiltersWithoutTma) {
  check_epilogues<kResident>(17, 19, 72, 131, 1);
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
  std::vector<T> a(kPixels * kChannels);
  std::vector<T> b(kChannels * kChannels, T(0.0f));
  for (std::size_t i = 0; i < a.size(); ++i) {
    // -8 to 8 in steps of 1/256; every seventh near zero.
    const float x = (static_cast<float>(i) - 2048.0f) / 256.0f;
    a[i] = T(i % 7 == 0 ? x / 1024.0f : x);
  }
  for (std::size_t i = 0; i < kChannels; ++i) b[i * kChannels + i] = T(1.0f);
  T* activation = nullptr;
  T* filter = nullptr;
  Out* output = nullptr;
  ASSERT_EQ(cudaMalloc(&activation, a.size() * sizeof(T)), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&filter, b.size() * sizeof(T)), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&output, a.size() * sizeof(Out)), cudaSuccess);
  cudaMemcpy(activation, a.data(), a.size() * sizeof(T), cudaMemcpyHostToDevice);
  cudaMemcpy(filter, b.data(), b.size() * sizeof(T), cudaMemcpyHostToDevice);
  const auto want = [](Activation kind, double x) {
    switch (kind) {
      case Activation::relu:
        return std::max(x, 0.0);
      case Activation::leaky_relu:
        return x > 0 ? x : -1.5 * x;
      case Activation::gelu:
        return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
      case Activation::gelu_tanh:
        return x / (1 + std::exp(-2 * 0.79788456080286536 * (x + 0.044715 * x * x * x)));
      case Activation::silu:
        return x / (1 + std::exp(-x));
      case Activation::sigmoid:
        return 1 / (1 + std::exp(-x));
      case Activation::tanh:
        return std::tanh(x);
      case Activation::hardswish:
        return x * std::min(std::max(x + 3, 0.0), 6.0) / 6;
      case Activation::clamp:
        return std::min(std::max(x, -1.5), 2.5);
      default:
        return x;
    }
  };
  for (const Activation kind :
       {Activation::none, Activation::relu, Activation::leaky_relu, Activation::gelu,
        Activation::gelu_tanh, Activation::silu, Activation::sigmoid, Activation::tanh,
        Activation::hardswish, Activation::clamp}) {
    sm90::FpropExtras extras;
    extras.epilogue.activation = kind;
    extras.epilogue.parameter_a = -1.5f;
    extras.epilogue.parameter_b = 2.5f;
    cudaMemset(output, 0xff, a.size() * sizeof(Out));
    sm90::conv_fprop<kConfig>(output, activation, filter, problem, extras);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<Out> got(a.size());
    cudaMemcpy(got.data(), output, got.size() * sizeof(Out), cudaMemcpyDeviceToHost);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double x = static_cast<double>(static_cast<float>(a[i]));
      const double y = want(kind, x);
      ASSERT_NEAR(static_cast<double>(static_cast<float>(got[i])), y, unit * std::abs(y) + 0x1p-20)
          << to_string(kind) << " of " << x;
    }
  }
  cudaFree(activation);
  cudaFree(filter);
  cudaFree(output);
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
  T* zeros = nullptr;
  T* residual = nullptr;
  T* output = nullptr;
  ASSERT_EQ(cudaMalloc(&zeros, kValues * 2), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&residual, kValues * 2), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&output, kValues * 2), cudaSuccess);
  cudaMemset(zeros, 0, kValues * 2);
  cudaMemset(output, 0x55, kValues * 2);
  cudaMemcpy(residual, in.data(), kValues * 2, cudaMemcpyHostToDevice);
  sm90::FpropExtras extras;
  extras.epilogue.activation = Activation::silu;
  extras.epilogue.residual = residual;
  extras.epilogue.order = ResidualOrder::before_activation;
  sm90::conv_fprop<kConfig>(output, zeros, zeros, problem, extras);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  std::vector<T> got(kValues);
  cudaMemcpy(got.data(), output, kValues * 2, cudaMemcpyDeviceToHost);
  int not_nearest = 0;
  for (std::size_t i = 0; i < kValues; ++i) {
    T argument;
    std::memcpy(static_cast<void*>(&argument), &in[i], 2);
    const double x = static_cast<double>(static_cast<float>(argument));
    const double want = x / (1 + std::exp(-x));
    const auto y = static_cast<double>(static_cast<float>(got[i]));
    if (std::isnan(want) || std::isinf(want)) {
      EXPECT_TRUE(std::isnan(want) ? std::isnan(y) : y == want) << "SiLU of " << x << " is " << y;
      continue;
    }
    // Rounding to the output type, and what the special-function unit may be off before it. It
    // flushes fp32 subnormals to zero.
    const double unit = std::is_same_v<T, bf16> ? 0x1p-8 : 0x1p-11;
    const double floor = std::is_same_v<T, bf16> ? 0x1p-118 : 0x1p-25;
    EXPECT_NEAR(y, want, unit * (1 + 0x1p-8) * std::abs(want) + floor) << "SiLU of " << x;
    not_nearest += y != static_cast<double>(static_cast<float>(T(static_cast<float>(want))));
  }
  // Values whose fp64 result lies so near the middle between two neighbours that fp32 picks the
  // other one.
  EXPECT_LT(not_nearest, 40) << "of 65536";
  cudaFree(zeros);
  cudaFree(residual);
  cudaFree(output);
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
  const std::vector<bf16> want = job.result();
  ASSERT_FALSE(std::isnan(__bfloat162float(want[0])));

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(job.stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  job.enqueue();
  job.enqueue();
  ASSERT_EQ(cudaStreamEndCapture(job.stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (int replay = 0; replay < 2; ++replay) {
    cudaMemset(job.device.output, 0xff, want.size() * 2);
    ASSERT_EQ(cudaGraphLaunch(executable, job.stream), cudaSuccess);
    EXPECT_TRUE(same_bits(job.result(), want));
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST(Sm90Api, ThreadsWithStreamsOfTheirOwn) {
  if (!on_hopper()) GTEST_SKIP() << "no Hopper GPU";
  constexpr int kThreads = 4;
  std::vector<std::vector<bf16>> want;
  for (int t = 0; t < kThreads; ++t) {
    Job job(t);
    job.enqueue();
    want.push_back(job.result());
  }
  ASSERT_FALSE(same_bits(want[0], want[1]));
  std::vector<int> right(kThreads, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Job job(t);
      for (int i = 0; i < 5; ++i) job.enqueue();
      right[static_cast<std::size_t>(t)] =
          same_bits(job.result(), want[static_cast<std::size_t>(t)]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kThreads; ++t) EXPECT_EQ(right[static_cast<std::size_t>(t)], 1) << t;
}

}  // namespace
}  // namespace convoy
