// SPDX-License-Identifier: Apache-2.0
// The two references against each other, and the explicit im2col against both.
#include "reference/reference.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "convoy/dtype.hpp"
#include "convoy/im2col.hpp"
#include "expect_error.hpp"
#include "support/conv_case.hpp"

namespace convoy {
namespace {

std::vector<float> values(std::int64_t count, std::uint64_t seed) {
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& value : out) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(static_cast<std::int32_t>(seed >> 32)) * 0x1p-31f;
  }
  return out;
}

TEST(Reference, OnePixelByHand) {
  // 3x3 ones over 1..9, padding 1: the corner sees 1 + 2 + 4 + 5.
  const Conv2dProblemShape p{.in_height = 3,
                             .in_width = 3,
                             .in_channels = 1,
                             .out_channels = 1,
                             .filter_h = 3,
                             .filter_w = 3,
                             .pad_h = 1,
                             .pad_w = 1};
  const std::vector<float> in = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::vector<float> filter(9, 1.0f);
  const auto out = reference::convolve_fp64(geometry_of(p), {in.data(), nullptr, filter.data()});
  EXPECT_EQ(out, (std::vector<double>{12, 21, 16, 27, 45, 33, 24, 39, 28}));
  Conv2dProblemShape reflected = p;
  reflected.pad_mode = PadMode::reflect;
  // The corner's neighbourhood mirrors to 5 4 5 / 2 1 2 / 5 4 5.
  EXPECT_EQ(
      reference::convolve_fp64(geometry_of(reflected), {in.data(), nullptr, filter.data()})[0], 33);
  reflected.pad_mode = PadMode::replicate;
  // 1 1 2 / 1 1 2 / 4 4 5.
  EXPECT_EQ(
      reference::convolve_fp64(geometry_of(reflected), {in.data(), nullptr, filter.data()})[0], 21);
}

#ifdef CONVOY_WITH_CPU

// A tap in zero padding whose filter is infinite: NaN where it is multiplied, nothing where not.
TEST(Reference, ATapInPaddingMayMakeANaN) {
  const Conv2dProblemShape p{.in_height = 2,
                             .in_width = 2,
                             .in_channels = 1,
                             .out_channels = 1,
                             .filter_h = 2,
                             .filter_w = 1,
                             .pad_h = 1};
  const ConvGeometry g = geometry_of(p);  // Rows: padding and 0, 0 and 1, 1 and padding.
  const std::vector<float> in = {1, 2, 3, 4}, filter = {INFINITY, 1};
  for (const double most_loops : {4e9, 0.0}) {
    const auto expected = reference::expect(g, {in.data(), nullptr, filter.data()}, {}, DType::fp32,
                                            {.most_fp64_flops = most_loops});
    const float skipped[6] = {1, 2, INFINITY, INFINITY, INFINITY, INFINITY};
    const float multiplied[6] = {NAN, NAN, INFINITY, INFINITY, INFINITY, INFINITY};
    const float wrong[6] = {1, 2, NAN, INFINITY, INFINITY, INFINITY};
    const float also_wrong[6] = {INFINITY, 2, INFINITY, INFINITY, INFINITY, INFINITY};
    EXPECT_TRUE(reference::compare(skipped, DType::fp32, expected).pass);
    EXPECT_TRUE(reference::compare(multiplied, DType::fp32, expected).pass);
    EXPECT_EQ(reference::compare(wrong, DType::fp32, expected).worst, 2);
    EXPECT_EQ(reference::compare(also_wrong, DType::fp32, expected).worst, 0);
    EXPECT_EQ(reference::compare_exactly(multiplied, DType::fp32, expected), "");
  }
}

TEST(Reference, CachedFramesComeFirst) {
  Conv3dProblemShape p;
  p.in_depth = 2;
  p.in_height = p.in_width = 1;
  p.in_channels = p.out_channels = 1;
  p.filter = {3, 1, 1};
  p.cached_frames = 2;
  const std::vector<float> cache = {1, 2}, in = {3, 4}, filter = {100, 10, 1};
  EXPECT_EQ(reference::convolve_fp64(geometry_of(p), {in.data(), cache.data(), filter.data()}),
            (std::vector<double>{123, 234}));
}

TEST(Reference, LoopsAndOnednnAgreeOnRandomProblems) {
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    const test::ConvCase c = test::random_case(seed, {.flops = 2e6});
    const ConvGeometry g = geometry_of(c.problem);
    const auto in = values(g.activation_elements(), seed);
    const auto cache = values(g.cache_elements(), seed + 1000);
    const auto filter = values(g.filter_elements(), seed + 2000);
    const reference::Operands operands = {in.data(), cache.data(), filter.data()};
    const auto exact = reference::convolve_fp64(g, operands);
    const auto fast = reference::convolve_onednn(g, operands);
    ASSERT_EQ(exact.size(), fast.size());
    // Each value is below 1, so that no partial sum passes K.
    const double bound = 0x1p-24 * std::pow(static_cast<double>(g.gemm_k()), 2);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      ASSERT_NEAR(exact[i], fast[i], bound) << "seed " << seed << " " << test::describe(c);
    }
    if (!exact.empty()) ++compared;
  }
  EXPECT_GT(compared, 350);
}
#endif

TEST(Reference, Im2colTimesFilterIsTheConvolution) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const test::ConvCase c = test::random_case(seed, {.flops = 5e5});
    const ConvGeometry g = geometry_of(c.problem);
    if (g.groups != 1 || g.empty()) continue;
    const auto in = values(g.activation_elements(), seed);
    const auto cache = values(g.cache_elements(), seed + 1000);
    const auto filter = values(g.filter_elements(), seed + 2000);
    // In two pieces, to try row ranges.
    std::vector<float> columns(static_cast<std::size_t>(g.gemm_m() * g.gemm_k()));
    const std::int64_t half = g.gemm_m() / 2;
    for (const auto& [begin, end] : {std::pair{std::int64_t{0}, half}, {half, g.gemm_m()}}) {
      float* rows = columns.data() + begin * g.gemm_k();
      if (const auto* flat = std::get_if<Conv2dProblemShape>(&c.problem)) {
        im2col(rows, in.data(), DType::fp32, *flat, begin, end);
      } else {
        im2col(rows, in.data(), DType::fp32, std::get<Conv3dProblemShape>(c.problem), begin, end,
               cache.data());
      }
    }
    const auto expected = reference::convolve_fp64(g, {in.data(), cache.data(), filter.data()});
    for (std::int64_t m = 0; m < g.gemm_m(); ++m) {
      for (std::int64_t k = 0; k < g.out_channels; ++k) {
        double sum = 0;
        for (std::int64_t i = 0; i < g.gemm_k(); ++i) {
          sum += static_cast<double>(columns[static_cast<std::size_t>(m * g.gemm_k() + i)]) *
                 filter[static_cast<std::size_t>(k * g.gemm_k() + i)];
        }
        ASSERT_NEAR(sum, expected[static_cast<std::size_t>(m * g.out_channels + k)], 1e-12)
            << "seed " << seed << " " << test::describe(c);
      }
    }
  }
}

TEST(Im2col, RefusesBadArguments) {
  Conv2dProblemShape p{.in_height = 3, .in_width = 3, .in_channels = 2, .out_channels = 2};
  float in[18] = {}, out[18] = {};
  const auto run = [&](void* to, const void* from, std::int64_t begin, std::int64_t end) {
    im2col(to, from, DType::fp32, p, begin, end);
  };
  test::expect_error(Status::invalid_argument, {"rows [0, 10)", "[0, 9)"},
                     [&] { run(out, in, 0, 10); });
  test::expect_error(Status::invalid_argument, {"rows [-1, 2)"}, [&] { run(out, in, -1, 2); });
  test::expect_error(Status::invalid_argument, {"rows [3, 2)"}, [&] { run(out, in, 3, 2); });
  test::expect_error(Status::invalid_argument, {"null"}, [&] { run(nullptr, in, 0, 1); });
  p.groups = 2;
  test::expect_error(Status::invalid_argument, {"groups = 2"}, [&] { run(out, in, 0, 1); });
}

TEST(Reference, RoundingStepsOfTheEpilogue) {
  // bf16 has 8 significant bits: 257 -> 256, 259 -> 260.
  reference::EpilogueOperands operands;
  const float bias[] = {1.0f};
  const float residual[] = {1.0f};
  operands.bias = bias;
  operands.residual = residual;
  EXPECT_EQ(reference::finish_fp64(256.0, 0, 1, operands, DType::bf16), 258.0);
  operands.epilogue.rounding = EpilogueRounding::each_step;
  EXPECT_EQ(reference::finish_fp64(256.0, 0, 1, operands, DType::bf16), 256.0);
  EXPECT_EQ(reference::finish_fp64(257.0, 0, 1, operands, DType::bf16), 256.0);
  EXPECT_EQ(reference::finish_fp64(259.0, 0, 1, operands, DType::bf16), 260.0);
}

TEST(Reference, ASampleIsEveryStepThElement) {
  const test::ConvCase c = test::random_case(3, {.flops = 2e6});
  const ConvGeometry g = geometry_of(c.problem);
  ASSERT_GT(g.output_elements(), 100);
  const auto in = values(g.activation_elements(), 1);
  const auto cache = values(g.cache_elements(), 2);
  const auto filter = values(g.filter_elements(), 3);
  const reference::Operands operands = {in.data(), cache.data(), filter.data()};
  reference::Expectation all = reference::expect(g, operands, {}, DType::fp32);
  const reference::Expectation some = reference::expect(g, operands, {}, DType::fp32, {.step = 7});
  ASSERT_EQ(some.value.size(), (all.value.size() + 6) / 7);
  std::vector<float> got;
  for (std::size_t i = 0; i < all.value.size(); ++i) {
    got.push_back(static_cast<float>(all.value[i]));
    if (i % 7 == 0) {
      ASSERT_EQ(some.value[i / 7], all.value[i]);
      ASSERT_EQ(some.bound[i / 7], all.bound[i]);
    }
  }
  EXPECT_TRUE(reference::compare(got.data(), DType::fp32, some).pass);
  EXPECT_EQ(reference::compare_exactly(got.data(), DType::fp32, some), "");
  got[8] += 1.0f;  // Not of the sample.
  EXPECT_TRUE(reference::compare(got.data(), DType::fp32, some).pass);
  got[14] += 1.0f;
  EXPECT_EQ(reference::compare(got.data(), DType::fp32, some).worst, 14);
  EXPECT_NE(reference::compare_exactly(got.data(), DType::fp32, some), "");
}

TEST(Reference, EveryBitIsCompared) {
  const reference::Expectation wanted = {.value = {0.0, -0.0, 1.0 + 0x1p-9, NAN, -INFINITY},
                                         .bound = {}};
  std::vector<float> got = {0.0f, -0.0f, 1.0f, NAN, -INFINITY};
  const auto wrong = [&] {
    std::vector<unsigned char> bytes(got.size() * 2);
    for (std::size_t i = 0; i < got.size(); ++i) {
      store_element(bytes.data(), static_cast<std::int64_t>(i), DType::bf16, got[i]);
    }
    return reference::compare_exactly(bytes.data(), DType::bf16, wanted);
  };
  EXPECT_EQ(wrong(), "");  // 1 + 2^-9 rounds to 1 in bf16.
  got[0] = -0.0f;
  EXPECT_EQ(wrong(), "element 0 is -0, exactly 0 expected");
  got[0] = 0.0f;
  got[1] = 0.0f;
  EXPECT_EQ(wrong(), "element 1 is 0, exactly -0 expected");
  got[1] = -0.0f;
  got[2] = 1.0f + 0x1p-7f;
  EXPECT_NE(wrong(), "");
  got[2] = 1.0f;
  got[3] = 0.0f;
  EXPECT_NE(wrong(), "");
}

TEST(Reference, SignsOfZeros) {
  // -1 · 0 and 0 · 0: the sum starts at +0.
  const Conv2dProblemShape p{.in_height = 1, .in_width = 1, .in_channels = 1, .out_channels = 1};
  const float minus_one = -1.0f, zero = 0.0f;
  const double sum = reference::convolve_fp64(geometry_of(p), {&minus_one, nullptr, &zero})[0];
  EXPECT_FALSE(std::signbit(sum));
  reference::EpilogueOperands operands;
  operands.epilogue.scale = -2.0f;
  const auto finished = [&] { return reference::finish_fp64(sum, 0, 1, operands, DType::bf16); };
  EXPECT_TRUE(std::signbit(finished()));
  operands.epilogue.activation = Activation::relu;
  EXPECT_FALSE(std::signbit(finished()));
  operands.epilogue.activation = Activation::none;
  operands.bias = &zero;
  EXPECT_FALSE(std::signbit(finished()));
}

TEST(Reference, ComparisonFindsWhatIsWrong) {
  const reference::Expectation wanted = {.value = {1.0, 2.0, INFINITY, NAN},
                                         .bound = {0.1, 0.1, 0.1, 0.1}};
  float got[] = {1.05f, 2.0f, INFINITY, NAN};
  EXPECT_TRUE(reference::compare(got, DType::fp32, wanted).pass);
  got[1] = 2.2f;
  EXPECT_EQ(reference::compare(got, DType::fp32, wanted).worst, 1);
  EXPECT_FALSE(reference::compare(got, DType::fp32, wanted).pass);
  got[1] = NAN;
  EXPECT_FALSE(reference::compare(got, DType::fp32, wanted).pass);
  got[1] = 2.0f;
  got[2] = 1e30f;
  EXPECT_FALSE(reference::compare(got, DType::fp32, wanted).pass);
  got[2] = INFINITY;
  got[3] = 0.0f;
  EXPECT_FALSE(reference::compare(got, DType::fp32, wanted).pass);
}

}  // namespace
}  // namespace convoy
