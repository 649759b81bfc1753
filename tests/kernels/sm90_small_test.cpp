// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "convoy/error.hpp"
#include "kernels/sm90/host.hpp"
#include "support/conv_case.hpp"
#include "support/guarded_buffer.hpp"

namespace convoy::test {
namespace {

// Small problems for each way through a kernel, one kernel or tile at a time (CONVOY_TEST_KERNEL),
// under tools that slow it a thousandfold: tests/kernels/sanitize_sm90.sh. Two multiprocessors are
// asked for, so that a few tiles make rings wrap and warpgroups take turns.
class Sm90Small : public ::testing::Test {
 protected:
  static std::string kernel() {
    const char* const name = std::getenv("CONVOY_TEST_KERNEL");
    return name != nullptr ? name : "";
  }
  // The instance of that name; of a name without a type the one that has all paths of the epilogue,
  // or the first.
  static const sm90::Instance* named_instance() {
    const sm90::Instance* found = nullptr;
    for (const sm90::Instance& instance : sm90::instances()) {
      const std::string name = sm90::name_of(instance);
      const sm90::Config& c = instance.config;
      if (name == kernel()) return &instance;
      if (c.in != c.out || name != kernel() + "_" + to_string(c.in)) continue;
      if (found == nullptr || instance.has(sm90::EpiloguePath::fused)) found = &instance;
    }
    return found;
  }
  // NOTE: the bound of a launch without a plan knows nothing of TF32: products are of small
  // integers then, and sums have one value.
  static bool exact_products() { return kernel().ends_with("tf32"); }
  static void TearDownTestSuite() {
    if (kernel().empty()) return;
    EXPECT_GT(launches, 0) << "no problem that " << kernel() << " runs";
  }
  void SetUp() override {
    if (compute_capability() == 0) GTEST_SKIP() << "no CUDA device";
    if (kernel().empty()) GTEST_SKIP() << "CONVOY_TEST_KERNEL is not set";
  }
  void run(ConvCase test) {
    if (const sm90::Instance* const instance = named_instance()) {
      test.options.dtype = instance->config.in;
      test.options.allow_tf32 = instance->config.in == DType::fp32;
      const DType out = instance->config.out;
      if (test.options.output_dtype.value_or(out) != out) return;
      if (out != instance->config.in) test.options.output_dtype = out;
      const ConvGeometry problem = geometry_of(test.problem);
      if (!sm90::refusal(*instance, problem, false).empty()) return;
      const EpilogueKind epilogue = options_of(test).epilogue;
      if (!sm90::epilogue_refusal(*instance, problem, epilogue).empty()) return;
      // Takes nothing but a norm in front.
      if (kernel().find("normalised") != std::string::npos) {
        test.options.prologue = {PrologueNorm::scale_shift, Activation::silu};
        run_planned(test);
        return;
      }
      sm90::LaunchOptions options;
      options.multiprocessors = 2;
      options.splits = instance->config.splits_k() ? 2 : 1;
      // What shows only once the tiling is known: filters that do not stay in a multiprocessor.
      try {
        sm90::plan_launch(*instance, problem, options);
      } catch (const Error& error) {
        if (error.status() != Status::unsupported) throw;
        return;
      }
      test.launch = [&](const ConvGeometry& geometry, const RunPointers& pointers) {
        sm90::prepare(*instance);
        const NoComputeOp compute;
        const NoStoreOp store;
        sm90::launch(sm90::plan_launch(*instance, geometry, options), pointers, &compute, &store,
                     nullptr);
      };
      ++launches;
      EXPECT_EQ(wrong_with(test), "") << describe(test);
    }
    if (kernel() == "sm90_stem" && !test.options.output_dtype) {
      test.options.packed_filter = true;
      run_planned(test);
    }
  }
  // By a plan of that kernel, where it takes the problem.
  static void run_planned(ConvCase test) {
    test.options.kernel = kernel();
    for (const Candidate& candidate : candidates_of(test)) {
      if (candidate.kernel != kernel() || !candidate.reason.empty()) continue;
      ++launches;
      EXPECT_EQ(wrong_with(test), "") << describe(test);
    }
  }
  static inline int launches = 0;
};

TEST_F(Sm90Small, Taps) {
  ConvCase test = image({.in_height = 14,
                         .in_width = 27,
                         .in_channels = 72,
                         .out_channels = 72,
                         .filter_h = 3,
                         .filter_w = 3,
                         .pad_h = 1,
                         .pad_w = 1});
  run(test);
  test.bias = test.residual = true;
  test.epilogue.activation = exact_products() ? Activation::relu : Activation::silu;
  run(test);
}

TEST_F(Sm90Small, Pixels) {
  // 3 or 6 tiles of 128 or 64 pixels, times one or more of filters (two of 160 or 192).
  ConvCase test = image({.in_height = 9, .in_width = 42, .in_channels = 136, .out_channels = 200});
  for (const Activation activation : {Activation::none, Activation::gelu, Activation::leaky_relu}) {
    if (exact_products() && activation != Activation::none) continue;
    test.epilogue.activation = activation;
    test.bias = test.residual = activation != Activation::none;
    run(test);
  }
}

TEST_F(Sm90Small, StridedTaps) {
  run(image({.in_height = 21,
             .in_width = 23,
             .in_channels = 16,
             .out_channels = 24,
             .filter_h = 3,
             .filter_w = 3,
             .pad_h = 1,
             .pad_w = 1,
             .stride_h = 2,
             .stride_w = 2}));
}

TEST_F(Sm90Small, Groups) {
  ConvCase test = image({.in_height = 9,
                         .in_width = 17,
                         .in_channels = 2 * 24,
                         .out_channels = 2 * 40,
                         .filter_h = 3,
                         .filter_w = 3,
                         .pad_h = 1,
                         .pad_w = 1,
                         .groups = 2});
  test.bias = test.residual = true;
  run(test);
}

TEST_F(Sm90Small, RowsThatTmaCannotStore) {
  ConvCase test = image({.in_height = 5, .in_width = 9, .in_channels = 8, .out_channels = 13});
  test.residual = true;
  run(test);
}

TEST_F(Sm90Small, VolumeWithCache) {
  run(volume({.in_depth = 2,
              .in_height = 5,
              .in_width = 6,
              .in_channels = 24,
              .out_channels = 16,
              .filter = {3, 3, 3},
              .pad_begin = {0, 1, 1},
              .pad_end = {0, 1, 1},
              .cached_frames = 2}));
}

// Tiles whose patches all reach outside, and ping-pong's turns among them; then tiles that do and
// that do not.
TEST_F(Sm90Small, BorderOfPatches) {
  ConvCase test = image({.in_height = 17,
                         .in_width = 40,
                         .in_channels = 72,
                         .out_channels = 24,
                         .filter_h = 3,
                         .filter_w = 3,
                         .pad_h = 1,
                         .pad_w = 1,
                         .pad_mode = PadMode::reflect});
  run(test);
  test = image({.in_height = 40,
                .in_width = 56,
                .in_channels = 16,
                .out_channels = 24,
                .filter_h = 3,
                .filter_w = 3,
                .pad_h = 1,
                .pad_w = 1,
                .pad_mode = PadMode::replicate});
  run(test);
  run(volume({.in_depth = 2,
              .in_height = 5,
              .in_width = 6,
              .in_channels = 72,
              .out_channels = 16,
              .filter = {3, 3, 3},
              .pad_begin = {1, 1, 1},
              .pad_end = {0, 1, 1},
              .pad_mode = {PadMode::replicate, PadMode::replicate, PadMode::reflect},
              .cached_frames = 1}));
}

TEST_F(Sm90Small, FewChannels) {
  run(image({.in_height = 9,
             .in_width = 17,
             .in_channels = 16,
             .out_channels = 72,
             .filter_h = 3,
             .filter_w = 3,
             .pad_h = 1,
             .pad_w = 1}));
}

}  // namespace
}  // namespace convoy::test
