// SPDX-License-Identifier: Apache-2.0
// What the fuzzer's small problems do not reach: large ones in several blocks, rounding once,
// special values, threads.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "convoy/dtype.hpp"
#include "cpu/conv_blocks.hpp"
#include "cpu/convert.hpp"
#include "cpu/epilogue.hpp"
#include "reference/reference.hpp"
#include "support/conv_case.hpp"

namespace convoy {
namespace {

test::ConvCase case_of(ProblemShape problem, DType dtype) {
  test::ConvCase c;
  c.seed = 7;
  c.problem = std::move(problem);
  c.options.dtype = dtype;
  c.options.device = Device::cpu;
  const bool flat = std::holds_alternative<Conv2dProblemShape>(c.problem);
  c.filter_layout = flat ? FilterLayout::krsc : FilterLayout::ktrsc;
  return c;
}

void expect_pass(const test::ConvCase& c) {
  const test::CaseResult result = test::run_case(c);
  EXPECT_TRUE(result.pass) << test::describe(c) << ": " << result.detail;
}

/// Rows of one image, staged: 24 MiB of fp32 output. Blocks meet between rows: one column of taps.
const Conv2dProblemShape kTallImage{.in_height = 611,
                                    .in_width = 640,
                                    .in_channels = 3,
                                    .out_channels = 16,
                                    .filter_h = 3,
                                    .filter_w = 1,
                                    .pad_h = 1,
                                    .stride_h = 1};

TEST(CpuBlocks, CoverTheOutputOnce) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const test::ConvCase c = test::random_case(seed, {.flops = 1e8});
    const ConvGeometry g = geometry_of(c.problem);
    if (g.empty()) continue;
    const std::int64_t row = g.out[2] * g.out_channels;
    for (const std::int64_t limit : {row, 3 * row, row * g.out[1], 5 * row * g.out[1] + 1,
                                     g.output_elements(), 10 * g.output_elements()}) {
      std::int64_t next = 0;
      for (const cpu::ConvBlock& block : cpu::cut_into_blocks(g, row, limit, true)) {
        ASSERT_EQ(block.first_output, next) << test::describe(c);
        ASSERT_LE(block.output_elements, std::max(limit, row));
        ASSERT_GT(block.output_elements, 0);
        next += block.output_elements;
      }
      ASSERT_EQ(next, g.output_elements()) << test::describe(c);
    }
  }
}

TEST(CpuBlocks, AreCountedBeforeTheyAreCut) {
  for (const ProblemShape& problem :
       {ProblemShape(kTallImage), ProblemShape(Conv3dProblemShape{.batch = 5,
                                  .in_depth = 3,
                                  .in_height = 7,
                                  .in_width = 4,
                                  .in_channels = 2,
                                  .out_channels = 3})}) {
    const ConvGeometry g = geometry_of(problem);
    for (const std::int64_t limit : {1, 3, 8, 20, 50, 100000}) {
      EXPECT_EQ(cpu::count_blocks(g, 1, limit),
                std::ssize(cpu::cut_into_blocks(g, 1, limit, true)));
    }
  }
}

TEST(CpuBlocks, TooManyAreRefusedAtOnce) {
  const Conv2dProblemShape padded{.in_height = 63,
                                  .in_width = 65537,
                                  .in_channels = 16,
                                  .out_channels = 16,
                                  .filter_h = 65537,
                                  .pad_h = 2147483647,
                                  .stride_h = 7,
                                  .stride_w = 8,
                                  .dilation_h = 63,
                                  .groups = 16,
                                  .pad_h_end = 16777215};
  const Support support = supports(padded, {.device = Device::cpu});
  EXPECT_FALSE(support);
  EXPECT_NE(support.reason.find("blocks of the output"), std::string::npos) << support.reason;
  EXPECT_NE(support.reason.find("legal: at most 1048576"), std::string::npos) << support.reason;
  EXPECT_THROW(plan(padded, {.device = Device::cpu}), Error);
  // A hundred gigabytes are none too many.
  EXPECT_TRUE(supports(Conv2dProblemShape{.batch = 64,
                                          .in_height = 4096,
                                          .in_width = 4096,
                                          .in_channels = 64,
                                          .out_channels = 64,
                                          .filter_h = 3,
                                          .filter_w = 3},
                       {.device = Device::cpu}));
}

TEST(CpuBackend, ManyBlocksOfRows) {
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    test::ConvCase c = case_of(kTallImage, dtype);
    c.exact = true;
    c.epilogue.activation = Activation::relu;
    expect_pass(c);
    if (dtype != DType::bf16) continue;
    Conv2dProblemShape strided = kTallImage;
    strided.stride_h = 2;
    strided.pad_h_end = 0;
    strided.pad_mode = PadMode::replicate;
    c.problem = strided;
    expect_pass(c);
  }
}

TEST(CpuBackend, ManyBlocksOfFramesRowsAndImages) {
  Conv3dProblemShape p;
  p.batch = 2;
  p.in_depth = 5;
  p.in_height = 90;
  p.in_width = 100;
  p.in_channels = 4;
  p.out_channels = 32;
  p.filter = {3, 3, 3};
  p.pad_begin = {2, 1, 1};
  p.pad_end = {0, 1, 1};
  test::ConvCase c = case_of(p, DType::bf16);
  c.exact = true;
  c.residual = true;
  c.next_cache = true;
  expect_pass(c);  // Frames, read in place.
  p.in_height = 330;
  p.in_depth = 2;
  p.batch = 1;
  p.in_channels = 2;
  c.problem = p;
  expect_pass(c);  // Rows of several frames: gathered.
  p.cached_frames = 2;
  p.pad_begin[0] = 0;
  c.problem = p;
  expect_pass(c);
  const Conv2dProblemShape images{.batch = 40,
                                  .in_height = 50,
                                  .in_width = 50,
                                  .in_channels = 2,
                                  .out_channels = 33,
                                  .filter_h = 3,
                                  .filter_w = 1,
                                  .pad_h = 1};
  c = case_of(images, DType::fp16);
  c.exact = true;
  expect_pass(c);
}

TEST(CpuBackend, RoundsOnceWhateverTheDepth) {
  // Many channels, so that an implementation that kept partial sums in bf16 would be far off.
  const Conv2dProblemShape deep{.in_height = 6,
                                .in_width = 6,
                                .in_channels = 2048,
                                .out_channels = 40,
                                .filter_h = 3,
                                .filter_w = 3,
                                .pad_h = 1,
                                .pad_w = 1};
  for (DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    for (bool packed : {false, true}) {
      test::ConvCase c = case_of(deep, dtype);
      c.options.packed_filter = packed;
      expect_pass(c);
      c.epilogue.activation = Activation::silu;
      c.bias = true;
      expect_pass(c);
    }
  }
}

TEST(CpuBackend, SixteenBitInputAndFullOutput) {
  // Exact sums past the range of the input type.
  const Conv2dProblemShape p{.in_height = 4, .in_width = 4, .in_channels = 3000, .out_channels = 8};
  for (DType dtype : {DType::bf16, DType::fp16}) {
    test::ConvCase c = case_of(p, dtype);
    c.options.output_dtype = DType::fp32;
    c.exact = true;
    expect_pass(c);
  }
}

/// out = epilogue(1x1 identity convolution of `in`), one channel.
std::vector<float> run_epilogue(const std::vector<float>& in, DType dtype, Epilogue epilogue) {
  const Conv2dProblemShape p{.in_height = 1,
                             .in_width = static_cast<std::int64_t>(in.size()),
                             .in_channels = 1,
                             .out_channels = 1};
  const Plan made = plan(p, {.dtype = dtype, .epilogue = epilogue.kind(), .device = Device::cpu});
  alignas(16) float one[4] = {};
  store_element(one, 0, dtype, 1.0f);
  std::vector<float> activation(in.size() + 4), output(in.size() + 4);
  for (std::size_t i = 0; i < in.size(); ++i) {
    store_element(activation.data(), static_cast<std::int64_t>(i), dtype, in[i]);
  }
  made.run({.output = output.data(),
            .activation = activation.data(),
            .filter = one,
            .epilogue = epilogue});
  std::vector<float> out;
  for (std::size_t i = 0; i < in.size(); ++i) {
    out.push_back(load_element(output.data(), static_cast<std::int64_t>(i), dtype));
  }
  return out;
}

TEST(CpuBackend, EveryActivationAgainstFp64) {
  std::vector<float> in;
  for (int i = -2000; i <= 2000; ++i) in.push_back(round_to(DType::bf16, 0.005f * i));
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (int a = 0; a <= static_cast<int>(Activation::clamp); ++a) {
      Epilogue e;
      e.activation = static_cast<Activation>(a);
      e.parameter_a = e.activation == Activation::clamp ? -1.25f : 0.125f;
      e.parameter_b = 2.5f;
      const std::vector<float> out = run_epilogue(in, dtype, e);
      for (std::size_t i = 0; i < in.size(); ++i) {
        const float x = round_to(dtype, in[i]);
        const double exact =
            reference::activate_fp64(x, e.activation, e.parameter_a, e.parameter_b);
        const double ulp = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::fp16 ? 0x1p-11 : 0;
        ASSERT_NEAR(out[i], exact, ulp * std::fabs(exact) + 0x1p-25 + 4e-7 * std::fabs(x))
            << to_string(e.activation) << "(" << x << ") " << to_string(dtype);
      }
    }
  }
}

TEST(CpuBackend, NanAndInfinityPassAsIeeeSays) {
  const float inf = INFINITY;
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (int a = 0; a <= static_cast<int>(Activation::clamp); ++a) {
      Epilogue e;
      e.activation = static_cast<Activation>(a);
      if (e.activation == Activation::clamp) e.parameter_a = -1.0f;
      const std::vector<float> out = run_epilogue({NAN, inf, 1.0f}, dtype, e);
      EXPECT_TRUE(std::isnan(out[0])) << to_string(e.activation);
      switch (e.activation) {
        case Activation::sigmoid:
        case Activation::tanh:
          EXPECT_EQ(out[1], 1.0f) << to_string(e.activation);
          break;
        case Activation::clamp:
          EXPECT_EQ(out[1], parameter_b_of(e.parameter_b));
          break;
        default:
          EXPECT_EQ(out[1], inf) << to_string(e.activation);
      }
      EXPECT_FALSE(std::isnan(out[2]));
    }
    Epilogue plain;
    EXPECT_EQ(run_epilogue({-inf}, dtype, plain)[0], -inf);
    plain.activation = Activation::relu;
    EXPECT_EQ(run_epilogue({-inf}, dtype, plain)[0], 0.0f);
    plain.activation = Activation::leaky_relu;
    EXPECT_EQ(run_epilogue({-inf}, dtype, plain)[0], -inf);
  }
  // Past the largest fp16: infinity, not a wrong number.
  Epilogue twice;
  twice.scale = 2.0f;
  EXPECT_EQ(run_epilogue({60000.0f}, DType::fp16, twice)[0], inf);
}

TEST(CpuBackend, RoundingAtEachStepGivesTheBitsOfSeparateKernels) {
  // 257 needs nine bits: bf16 keeps 256.
  Epilogue e;
  alignas(16) float bias[4] = {1.0f};
  e.bias = bias;
  e.scale = 1.0f;
  EXPECT_EQ(run_epilogue({256.0f}, DType::bf16, e)[0], 256.0f);
  e.activation = Activation::leaky_relu;
  e.parameter_a = 0.5f;
  // Once: 0.5·(-258 + 1) = -128.5 -> -128. Each step: -257 -> -256 -> -128.
  EXPECT_EQ(run_epilogue({-258.0f}, DType::bf16, e)[0], -128.0f);
  e.scale = 0.75f;
  // Once: 0.75·259 is lost in 260·.75 + 1 = 196; each step: 195 -> 195, + 1 = 196.
  e.rounding = EpilogueRounding::each_step;
  EXPECT_EQ(run_epilogue({260.0f}, DType::bf16, e)[0], 196.0f);
  // 0.75·(-258) = -193.5 -> -194 (ties to even), + 1 = -193, times 1/2 = -96.5.
  EXPECT_EQ(run_epilogue({-258.0f}, DType::bf16, e)[0], -96.5f);
  e.rounding = EpilogueRounding::once;
  // (-193.5 + 1) / 2 = -96.25, ties to even between -96 and -96.5: -96.
  EXPECT_EQ(run_epilogue({-258.0f}, DType::bf16, e)[0], -96.0f);
}

TEST(CpuBackend, BulkConversionsAgreeWithTheScalarOnes) {
  for (DType dtype : {DType::bf16, DType::fp16}) {
    std::vector<std::uint16_t> all(65536), back(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    std::vector<float> wide(all.size());
    cpu::widen(wide.data(), all.data(), dtype, 65536);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const float expected = load_element(all.data(), static_cast<std::int64_t>(i), dtype);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(expected)) << i;
    }
    std::uint32_t state = 3;
    for (float& value : wide) {
      state = state * 1664525u + 1013904223u;
      value = std::bit_cast<float>(state);
    }
    std::vector<float> rounded = wide;
    // An odd count, so that the remainder loop runs too.
    cpu::narrow(back.data(), wide.data(), dtype, 65531);
    cpu::round_in_place(rounded.data(), dtype, 65531);
    for (std::size_t i = 0; i < 65531; ++i) {
      std::uint16_t expected[2] = {};
      store_element(expected, 0, dtype, wide[i]);
      ASSERT_EQ(back[i], expected[0]) << i;
      const float once = load_element(expected, 0, dtype);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(rounded[i]), std::bit_cast<std::uint32_t>(once)) << i;
    }
    EXPECT_EQ(std::bit_cast<std::uint32_t>(rounded[65531]),
              std::bit_cast<std::uint32_t>(wide[65531]));
  }
}

TEST(CpuBackend, OnePlanRunsInSeveralThreadsAtOnce) {
  const Conv2dProblemShape p{.in_height = 40,
                             .in_width = 40,
                             .in_channels = 16,
                             .out_channels = 24,
                             .filter_h = 3,
                             .filter_w = 3,
                             .pad_h = 1,
                             .pad_w = 1,
                             .pad_mode = PadMode::replicate};
  Epilogue e;
  e.activation = Activation::silu;
  const Plan made = plan(p, {.dtype = DType::fp16, .epilogue = e.kind(), .device = Device::cpu});
  std::vector<std::uint16_t> in(40 * 40 * 16), filter(24 * 9 * 16);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = fp16_from_float(0.01f * (i % 97) - 0.4f);
  for (std::size_t i = 0; i < filter.size(); ++i) {
    filter[i] = fp16_from_float(0.01f * (i % 31) - 0.15f);
  }
  constexpr int kThreads = 4;
  std::vector<std::vector<std::uint16_t>> out(kThreads, std::vector<std::uint16_t>(40 * 40 * 24));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i) {
        made.run({.output = out[t].data(),
                  .activation = in.data(),
                  .filter = filter.data(),
                  .epilogue = e});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(out[0], std::vector<std::uint16_t>(40 * 40 * 24));
  for (int t = 1; t < kThreads; ++t) EXPECT_EQ(out[0], out[t]);
}

}  // namespace
}  // namespace convoy
