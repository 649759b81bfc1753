// SPDX-License-Identifier: Apache-2.0
// Threads that plan, pack, run and forget the same layers and norms side by side.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "convoy/convoy.hpp"

namespace convoy {
namespace {

/// One of a few layers whose outputs are all the same number: what is wrong with it, or nothing.
std::string wrong_with_a_layer(std::int64_t which) {
  const std::int64_t channels = 1 + which % 5, filters = 1 + which % 3, width = 2 + which % 7;
  const Conv2dProblemShape problem{
      .in_height = 3, .in_width = width, .in_channels = channels, .out_channels = filters};
  std::vector<float> x(static_cast<std::size_t>(3 * width * channels), 2.0f);
  const std::vector<float> filter(static_cast<std::size_t>(filters * channels), 3.0f);
  std::vector<float> y(static_cast<std::size_t>(3 * width * filters));
  const bool packs = which % 2 == 0;
  const PlanOptions options = {.dtype = DType::fp32, .device = Device::cpu, .packed_filter = packs};
  const Plan made = plan(problem, options);
  const PackedFilter packed =
      packs ? made.pack_filter(filter.data(), FilterLayout::kcrs) : PackedFilter();
  made.run({.output = y.data(),
            .activation = x.data(),
            .filter = packs ? FilterRef(packed) : FilterRef(filter.data())});
  const float expected = 6.0f * static_cast<float>(channels);
  if (std::any_of(y.begin(), y.end(), [&](float v) { return v != expected; })) return "convolution";
  if (candidates(problem, options).empty() || !supports(problem, options)) return "candidates";

  // (2 - 2) / sqrt(0 + 1) + 4, and 2 / sqrt(4) + 4.
  const std::vector<float> bias(static_cast<std::size_t>(channels), 4.0f);
  const NormOptions norm = {.dtype = DType::fp32, .scale = false, .device = Device::cpu};
  const NormArguments arguments = {.output = x.data(), .input = x.data(), .bias = bias.data()};
  const GroupNormProblem group = {
      .pixels = 3 * width, .channels = channels, .groups = 1, .epsilon = 1.0f};
  plan(group, norm).run(arguments);
  if (std::any_of(x.begin(), x.end(), [](float v) { return v != 4.0f; })) return "group norm";
  const RmsNormProblem rms = {.pixels = 3 * width, .channels = channels, .epsilon = 0.0f};
  plan(rms, norm).run(arguments);
  if (std::any_of(x.begin(), x.end(), [](float v) { return v != 5.0f; })) return "RMS norm";
  try {
    plan(problem, {.device = Device::cpu, .kernel = "none"});
    return "no refusal";
  } catch (const Error&) {
    return "";
  }
}

TEST(Threads, PlanPackRunAndForgetSideBySide) {
  constexpr int kThreads = 4;
  std::vector<std::string> wrong(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&wrong, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < 60 && wrong[t].empty(); ++i) {
        wrong[t] = wrong_with_a_layer(random() % 10);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : wrong) EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace convoy
