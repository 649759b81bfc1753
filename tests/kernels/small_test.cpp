// SPDX-License-Identifier: Apache-2.0
//
// The small kernels together: what several of them take, every epilogue, tensors past 2^31
// elements, random problems.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "convoy/dtype.hpp"
#include "small_case.hpp"

namespace convoy::test {
namespace {

// One row of output: tiles are strips side by side.
TEST_F(Small, RowsOfSamples) {
  const auto row = [](std::int64_t w, std::int64_t c, std::int64_t k, std::int64_t filter,
                      std::int64_t pad, std::int64_t stride = 1, std::int64_t dilation = 1) {
    return geometry_of(Conv2dProblemShape{.batch = 2,
                                          .in_height = 1,
                                          .in_width = w,
                                          .in_channels = c,
                                          .out_channels = k,
                                          .filter_w = filter,
                                          .pad_w = pad,
                                          .stride_w = stride,
                                          .dilation_w = dilation});
  };
  for (const auto& [kernel, g] : {std::pair{"few_channels", row(700, 1, 32, 7, 3)},
                                  std::pair{"few_channels", row(401, 2, 70, 5, 4, 3)},
                                  std::pair{"few_channels", row(300, 24, 16, 3, 2, 1, 2)},
                                  std::pair{"few_channels", row(5000, 16, 16, 3, 1)},
                                  std::pair{"narrow_input", row(700, 1, 32, 7, 3)},
                                  std::pair{"narrow_input", row(2000, 3, 64, 10, 4, 5)},
                                  std::pair{"few_filters", row(900, 32, 1, 7, 3)},
                                  std::pair{"few_filters", row(70, 96, 3, 3, 1)},
                                  std::pair{"few_filters", row(4000, 8, 16, 1, 0)}}) {
    expect_right(with_kernel(g, kernel));
  }
  ConvGeometry reflected = row(90, 3, 8, 7, 3);
  reflected.pad_mode = {PadMode::zero, PadMode::zero, PadMode::reflect};
  expect_right(with_kernel(reflected, "few_channels", DType::fp16));
  ConvGeometry frames = shape_3d(2, 4, 0, 1, 100, 16, 4);
  frames.filter[1] = 1;
  frames.pad_begin[1] = frames.pad_end[1] = 0;
  expect_right(with_kernel(frames, "few_filters"));
}

// Each of the rewritten problems on every kernel that takes it, with dense filters on half of the
// kernels and packed ones on the others, for the next problem the other way round.
TEST_F(Small, Rewritings) {
  int problem = 0;
  const auto check = [&](const ConvGeometry& g) {
    ConvCase test = with_kernel(g, "");
    for (const bool packed : {false, true}) {
      test.options.packed_filter = packed;
      if (packed) test.filter_layout = g.rank == 2 ? FilterLayout::kcrs : FilterLayout::trscf;
      int runs = 0;
      for (const Candidate& candidate : candidates_of(test)) {
        if (!candidate.reason.empty()) continue;
        // A quarter of them each time. NOTE: by their names, since fewer take a dense filter.
        const std::size_t turn = static_cast<std::size_t>(problem + (packed ? 2 : 0)) % 4;
        if (std::hash<std::string>{}(candidate.kernel) % 4 != turn) continue;
        test.options.kernel = candidate.kernel;
        expect_right(test);
        ++runs;
      }
      EXPECT_GT(runs, 0);
      test.options.kernel.clear();
    }
    ++problem;
  };
  check(shape_2d(2, 32, 48, 3, 24, 16, 0, 16));  // Patches of a vision transformer.
  check(shape_2d(3, 12, 20, 64, 40, 2, 0, 2));   // ConvNeXt's downsampling.
  check(shape_2d(1, 16, 16, 8, 16, 4, 2, 2));    // Padding of one stride.
  Conv3dProblemShape patch{.batch = 9,
                           .in_depth = 2,
                           .in_height = 4,
                           .in_width = 8,
                           .in_channels = 3,
                           .out_channels = 24,
                           .filter = {2, 4, 8},
                           .stride = {2, 4, 8}};
  check(geometry_of(patch));  // One patch an item: a matrix product.
  patch.in_depth = 4;
  patch.in_height = 12;
  patch.in_width = 24;
  check(geometry_of(patch));               // Rows of patches beside their frames.
  check(temporal(6, 3, 2, 4, 9, 24, 40));  // Frames as rows.
  check(temporal(7, 5, 2, 3, 5, 16, 8, 2));
}

TEST_F(Small, EveryOutputTypeAndEpilogue) {
  const ConvGeometry few_filters = shape_2d(1, 10, 33, 16, 3, 3, 1);
  const ConvGeometry few_channels = shape_2d(1, 10, 33, 4, 24, 3, 1);
  const ConvGeometry plain = shape_2d(1, 10, 33, 24, 20, 3, 1);
  const ConvGeometry point = shape_2d(1, 10, 33, 16, 16, 1, 0);
  ConvGeometry depthwise = shape_2d(1, 10, 33, 16, 16, 3, 1);
  depthwise.groups = 16;
  ConvGeometry grouped = depthwise;
  grouped.groups = 4;
  ConvGeometry rows = shape_2d(1, 10, 33, 16, 16, 7, 3);
  rows.groups = 16;
  ConvGeometry wide = shape_2d(1, 10, 33, 64, 64, 3, 1);
  wide.groups = 2;
  std::vector<std::pair<const char*, const ConvGeometry*>> kernels = {
      {"few_filters", &few_filters},  {"few_channels", &few_channels},
      {"pointwise", &point},          {"depthwise", &depthwise},
      {"grouped", &grouped},          {"general", &plain},
      {"depthwise", &rows},           {"grouped_patch", &wide},
      {"narrow_input", &few_channels}};
  for (const auto& [kernel, geometry] : kernels) {
    expect_right_with_every_epilogue(with_kernel(*geometry, kernel));
  }
}

TEST_F(Small, ShortEpilogues) {
  ConvGeometry depthwise = shape_2d(1, 10, 33, 16, 16, 3, 1);
  depthwise.groups = 16;
  ConvGeometry rows = shape_2d(1, 10, 33, 16, 16, 5, 2);
  rows.groups = 16;
  ConvGeometry line = shape_2d(2, 1, 33, 24, 24, 1, 0);
  line.groups = 24;
  line.filter[2] = 5;
  line.pad_begin[2] = line.pad_end[2] = 2;
  ConvGeometry nine = shape_2d(1, 9, 11, 40, 40, 3, 1);
  nine.groups = 5;
  ConvGeometry points = shape_2d(1, 7, 9, 32, 32, 1, 0);
  points.groups = 16;
  expect_right_with_short_epilogues(with_kernel(depthwise, "depthwise"));
  expect_right_with_short_epilogues(with_kernel(rows, "depthwise", DType::fp16));
  expect_right_with_short_epilogues(with_kernel(line, "depthwise"));
  expect_right_with_short_epilogues(with_kernel(nine, "grouped"));
  expect_right_with_short_epilogues(with_kernel(points, "grouped", DType::fp16));
}

// One element to be found beyond 2^31: a tensor of 2^31 + 2^26 elements (4.3 GB).
TEST_F(Small, PastTwoToThe31Elements) {
  std::size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  if (free_bytes < (std::size_t{12} << 30)) GTEST_SKIP() << "needs 12 GiB of device memory";
  const std::int64_t height = 33 * 1024, width = 1024, channels = 64;
  const std::size_t elements = std::size_t(height) * width * channels;
  for (const char* kernel : {"general", "few_filters"}) {
    Conv2dProblemShape shape{.in_height = height,
                             .in_width = width,
                             .in_channels = channels,
                             .out_channels = 1,
                             .filter_h = 3,
                             .filter_w = 3,
                             .pad_h = 1,
                             .pad_w = 1};
    PlanOptions options;
    options.kernel = kernel;
    options.device = Device::cuda;
    const Plan plan = convoy::plan(shape, options);
    void *x = nullptr, *w = nullptr, *y = nullptr;
    ASSERT_EQ(cudaMalloc(&x, elements * 2), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&w, 9 * channels * 2), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&y, std::size_t(height) * width * 2), cudaSuccess);
    cudaMemset(x, 0, elements * 2);
    std::vector<std::uint16_t> filter(9 * channels, bf16_from_float(1.0f));
    cudaMemcpy(w, filter.data(), filter.size() * 2, cudaMemcpyHostToDevice);
    // The last pixel but one, and its alias 2^32 bytes below must stay alone.
    const std::uint16_t five = bf16_from_float(5.0f);
    const std::size_t at = ((std::size_t(height) - 2) * width + width - 2) * channels + 7;
    cudaMemcpy(static_cast<std::uint16_t*>(x) + at, &five, 2, cudaMemcpyHostToDevice);
    plan.run({.output = y, .activation = ConstTensorView(x), .filter = FilterRef(w)});
    std::vector<std::uint16_t> output(std::size_t(height) * width);
    ASSERT_EQ(cudaMemcpy(output.data(), y, output.size() * 2, cudaMemcpyDeviceToHost), cudaSuccess);
    std::int64_t fives = 0;
    for (std::uint16_t bits : output) fives += bits == five;
    EXPECT_EQ(fives, 9) << kernel;
    EXPECT_EQ(output.back(), five) << kernel;
    EXPECT_EQ(std::count(output.begin(), output.end(), 0), height * width - 9) << kernel;
    cudaFree(x);
    cudaFree(w);
    cudaFree(y);
  }
}

// A row of 2^31 + 2^25 elements,
constexpr std::int64_t kLongRowWidth = (std::int64_t{1} << 28) + (1 << 22);
constexpr std::int64_t kLongRowChannels = 8;
Plan long_row_plan() {
  const Conv2dProblemShape shape{.in_height = 1,
                                 .in_width = kLongRowWidth,
                                 .in_channels = kLongRowChannels,
                                 .out_channels = kLongRowChannels,
                                 .filter_h = 1,
                                 .filter_w = 3,
                                 .pad_w = 1};
  PlanOptions options;
  options.kernel = "narrow_input";
  options.device = Device::cuda;
  return convoy::plan(shape, options);
}

// planned, which takes no memory,
TEST_F(Small, LongRowIsPlanned) {
  if (compute_capability() < 90) GTEST_SKIP() << "narrow_input needs stmatrix";
  EXPECT_EQ(long_row_plan().info().kernel, "narrow_input");
}

// and run: one value in its last pixel but one is not zero.
TEST_F(Small, RowPastTwoToThe31Elements) {
  std::size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  if (free_bytes < (std::size_t{12} << 30)) GTEST_SKIP() << "needs 12 GiB of device memory";
  constexpr std::int64_t width = kLongRowWidth, channels = kLongRowChannels;
  const Plan plan = long_row_plan();
  const std::size_t bytes = static_cast<std::size_t>(width * channels) * 2;
  void *x = nullptr, *w = nullptr, *y = nullptr;
  ASSERT_EQ(cudaMalloc(&x, bytes), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&w, 3 * channels * channels * 2), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&y, bytes), cudaSuccess);
  cudaMemset(x, 0, bytes);
  const std::vector<std::uint16_t> filter(3 * channels * channels, bf16_from_float(1.0f));
  cudaMemcpy(w, filter.data(), filter.size() * 2, cudaMemcpyHostToDevice);
  const std::uint16_t five = bf16_from_float(5.0f);
  cudaMemcpy(static_cast<std::uint16_t*>(x) + (width - 2) * channels + 7, &five, 2,
             cudaMemcpyHostToDevice);
  plan.run({.output = y, .activation = ConstTensorView(x), .filter = FilterRef(w)});
  std::vector<std::uint16_t> last(8 * channels);
  ASSERT_EQ(cudaMemcpy(last.data(), static_cast<std::uint16_t*>(y) + (width - 8) * channels,
                       last.size() * 2, cudaMemcpyDeviceToHost),
            cudaSuccess);
  EXPECT_EQ(std::count(last.begin(), last.end() - 3 * channels, 0), 5 * channels);
  EXPECT_EQ(std::count(last.end() - 3 * channels, last.end(), five), 3 * channels);
  cudaFree(x);
  cudaFree(w);
  cudaFree(y);
}

// ---- Random problems ------------------------------------------------------------------------

// CONVOY_FUZZ_COUNT problems from CONVOY_FUZZ_SEED; a failure's message gives its own seed.
TEST_F(Small, RandomProblems) {
  const char* count_text = std::getenv("CONVOY_FUZZ_COUNT");
  const char* seed_text = std::getenv("CONVOY_FUZZ_SEED");
  const std::uint64_t count = count_text ? std::strtoull(count_text, nullptr, 10) : 40;
  const std::uint64_t first = seed_text ? std::strtoull(seed_text, nullptr, 10) : 1;
  const std::set<std::string> small = {"few_filters",      "few_filters_async", "few_channels",
                                       "narrow_input",     "pointwise",         "depthwise",
                                       "grouped",          "grouped_patch",     "pointwise_narrow",
                                       "pointwise_stream", "line_stream",       "general"};
  std::set<std::string> used;
  for (std::uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
    ConvCase test = random_case(seed, {.flops = 2e7});
    test.options.device = Device::cuda;
    test.runs = 1;
    for (const Candidate& candidate : candidates_of(test)) {
      if (!candidate.reason.empty() || !small.contains(candidate.kernel)) continue;
      test.options.kernel = candidate.kernel;
      expect_right(test);
      used.insert(candidate.kernel);
    }
    test.options.kernel.clear();
    expect_right(test);
  }
  if (count >= 200) {
    for (const char* kernel :
         {"general", "few_channels", "narrow_input", "few_filters", "depthwise"}) {
      EXPECT_EQ(used.count(kernel), 1u) << kernel << " never ran";
    }
  }
}

}  // namespace
}  // namespace convoy::test
