// SPDX-License-Identifier: Apache-2.0
//
// The Blackwell kernel against an exact integer reference: configurations x shapes, residuals,
// epilogues, hooks, and what is refused. Runs on a B200, real or virtual.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>

#include "convoy/error.hpp"
#include "kernels/common/filter_packing.hpp"
#include "kernels/sm100/host.hpp"
#include "sm100_configs.hpp"
#include "support/integer_tensors.hpp"

namespace convoy::sm100 {
namespace {

using test::conv2d;
using test::conv3d;
using test::GuardedBuffer;
using test::IntegerTensors;
using test::on_blackwell;

// Scheduling and delivery seeds vary from run to run of the matrix; the data may, too.
unsigned data_seed() {
  const char* text = std::getenv("CONVOY_TEST_SEED");
  return text == nullptr ? 1u : static_cast<unsigned>(std::atoi(text));
}

// CONVOY_TEST_SHARE = "i/n": of the tests that are listed by configuration, shape or instance, only
// those whose number is i modulo n. Runs of different delivery policies share the list so.
bool in_share(std::size_t number) {
  const char* text = std::getenv("CONVOY_TEST_SHARE");
  if (text == nullptr) return true;
  unsigned share = 0, of = 0;
  if (std::sscanf(text, "%u/%u", &share, &of) != 2 || share >= of) {
    std::fprintf(stderr, "CONVOY_TEST_SHARE is '%s'; legal: i/n with i below n\n", text);
    std::exit(1);
  }
  return number % of == share;
}

// The numbers below `count` that are of the share.
std::vector<std::size_t> share_of(std::size_t count) {
  std::vector<std::size_t> list;
  for (std::size_t i = 0; i < count; ++i) {
    if (in_share(i)) list.push_back(i);
  }
  return list;
}

struct Shape {
  const char* why;
  ConvGeometry geometry;
};

// Every shape is here for a reason.
const std::vector<Shape>& shapes() {
  static const std::vector<Shape> list = {
      {"one tile, every extent a multiple", conv2d(1, 16, 16, 64, 64, 3, 3, 1, 1)},
      {"one pixel: M = 1", conv2d(1, 1, 1, 64, 64, 1, 1)},
      {"1x1: plain GEMM with M, N and K tails", conv2d(1, 11, 13, 72, 40, 1, 1)},
      {"C = 8: an eighth of a swizzle span", conv2d(1, 9, 7, 8, 24, 3, 3, 1, 1)},
      {"C = 96: a half-filled second span", conv2d(1, 12, 12, 96, 96, 3, 3, 1, 1)},
      {"K = 8: a fraction of an output tile", conv2d(1, 10, 10, 32, 8, 3, 3, 1, 1)},
      {"K = 3: output rows that TMA cannot store", conv2d(1, 10, 10, 32, 3, 3, 3, 1, 1)},
      {"K past one N tile of every config", conv2d(1, 8, 8, 32, 520, 1, 1)},
      {"more tiles than resident CTAs: several waves, batch > 1",
       conv2d(3, 23, 19, 32, 72, 3, 3, 1, 1)},
      {"5x5", conv2d(1, 9, 14, 32, 32, 5, 5, 2, 2)},
      {"1x7, padding in W only", conv2d(2, 6, 17, 32, 32, 1, 7, 0, 3)},
      {"stride 2",
       conv2d(1, 15, 16, 32, 32, 3, 3, 1, 1, [](auto& p) { p.stride_h = p.stride_w = 2; })},
      {"kernel = stride (patch embedding), stride 8 is the last legal",
       conv2d(1, 24, 32, 16, 32, 8, 8, 0, 0, [](auto& p) { p.stride_h = p.stride_w = 8; })},
      {"different strides and dilations", conv2d(1, 14, 17, 32, 32, 3, 3, 2, 3,
                                                 [](auto& p) {
                                                   p.stride_w = 3;
                                                   p.dilation_h = 2;
                                                   p.dilation_w = 3;
                                                 })},
      {"asymmetric padding", conv2d(1, 9, 9, 32, 32, 3, 3, 0, 2,
                                    [](auto& p) {
                                      p.pad_h_end = 2;
                                      p.pad_w_end = 1;
                                    })},
      {"no padding: upper corners negative", conv2d(2, 7, 9, 32, 32, 3, 3)},
      {"more padding than filter: rows that see only zeros", conv2d(1, 4, 4, 32, 32, 3, 3, 5, 5)},
      {"3x3x3, frames fill their tiles",
       conv3d(1, {3, 16, 16}, 32, 32, {3, 3, 3}, {1, 1, 1}, {1, 1, 1})},
      {"3x3x3, small frames: tiles straddle them (5-D im2col)",
       conv3d(2, {4, 5, 6}, 32, 32, {3, 3, 3}, {1, 1, 1}, {1, 1, 1})},
      {"3x3x3, stride and dilation in depth",
       conv3d(1, {7, 6, 6}, 32, 32, {3, 3, 3}, {2, 1, 1}, {2, 1, 1}, 0,
              [](auto& p) {
                p.stride = {2, 1, 1};
                p.dilation = {2, 1, 1};
              })},
      {"causal: depths that meet only padding",
       conv3d(1, {3, 8, 9}, 32, 32, {3, 3, 3}, {2, 1, 1}, {0, 1, 1})},
      {"causal cache as a second pointer",
       conv3d(2, {2, 8, 9}, 32, 40, {3, 3, 3}, {0, 1, 1}, {0, 1, 1}, 2)},
      {"cache, then padding in front of it",
       conv3d(1, {2, 8, 8}, 32, 32, {3, 1, 1}, {2, 0, 0}, {0, 0, 0}, 1)},
      {"every depth of the first and last frames is padding",
       conv3d(1, {1, 6, 6}, 32, 32, {2, 3, 3}, {3, 1, 1}, {3, 1, 1})},
      {"nearest-2x upsampling folded into four phases",
       conv2d(2, 7, 9, 32, 40, 3, 3, 1, 1, [](auto& p) { p.upsample = 2; })},
      {"dilation past im2col's offsets: patches",
       conv2d(1, 275, 11, 32, 40, 3, 3, 1, 1, [](auto& p) { p.dilation_h = 130; })},
      {"padding past im2col's corners, strides: patches", conv2d(1, 7, 9, 32, 40, 3, 3, 129, 2,
                                                                 [](auto& p) {
                                                                   p.stride_h = 8;
                                                                   p.stride_w = 3;
                                                                 })},
      {"patches of single frames, with a cache",
       conv3d(1, {2, 9, 264}, 32, 24, {3, 3, 3}, {1, 1, 1}, {0, 1, 1}, 1,
              [](auto& p) {
                p.dilation = {1, 1, 128};
              })},
      {"1x1x1: frames are images, as they lie", conv3d(2, {3, 5, 7}, 48, 40, {1, 1, 1}, {}, {})},
      {"1x1 with a stride: im2col",
       conv2d(1, 13, 14, 64, 40, 1, 1, 0, 0, [](auto& p) { p.stride_h = p.stride_w = 2; })},
  };
  return list;
}

constexpr std::size_t kManyTiles = 8;

// What a run does besides convolving.
struct RunOptions {
  Epilogue epilogue{};  // Pointers are filled in.
  bool bias = false;
  bool residual = false;
  double tolerance = 0.0;
  const void* compute = nullptr;  // Addresses of the ops' values, for kernels with hooks.
  const void* store = nullptr;
  /// Reference of the epilogue for element (pixel, filter): convolution, bias, source -> output.
  std::function<double(std::int64_t, std::int64_t, double, double, double)> expected =
      [](std::int64_t, std::int64_t, double conv, double, double) { return conv; };
};

// Run one problem on one kernel and compare every output bit.
void run_and_compare(const Instance& kernel, const ConvGeometry& g, RunOptions options = {}) {
  const IntegerTensors problem(g, data_seed());
  const DType in = kernel.config.act_dtype, out = kernel.config.out_dtype;
  GuardedBuffer activation(problem.activation.size() * 2), cache(problem.cache.size() * 2);
  GuardedBuffer filter(problem.filter.size() * 2), bias(problem.bias.size() * 4);
  GuardedBuffer source(problem.source.size() * size_of(out));
  GuardedBuffer output(problem.source.size() * size_of(out));
  activation.upload(test::encode(problem.activation, in).data());
  cache.upload(test::encode(problem.cache, in).data());
  filter.upload(test::encode(problem.filter, in).data());
  bias.upload(problem.bias.data());
  source.upload(test::encode(problem.source, out).data());
  output.fill_with_nan();

  std::unique_ptr<GuardedBuffer> phases;
  RunPointers pointers;
  pointers.output = output.data();
  pointers.activation = activation.data();
  pointers.cache = g.cached_frames > 0 ? cache.data() : nullptr;
  pointers.filter = filter.data();
  if (g.upsample == 2) {
    phases = std::make_unique<GuardedBuffer>(upsampled_filter_bytes(g, in));
    pack_upsampled_filter(phases->data(), filter.data(), FilterLayout::krsc, g, in, nullptr);
    pointers.filter = phases->data();
  }
  pointers.epilogue = options.epilogue;
  if (options.bias) pointers.epilogue.bias = bias.data();
  if (options.residual) pointers.epilogue.residual = source.data();

  const NoComputeOp no_compute;
  const NoStoreOp no_store;
  prepare(kernel);
  const Launch plan = plan_launch(kernel, g, g.upsample == 2);
  launch(plan, pointers, options.compute != nullptr ? options.compute : &no_compute,
         options.store != nullptr ? options.store : &no_store, nullptr);
  CONVOY_ASSERT_CUDA(cudaDeviceSynchronize());

  std::vector<double> expected = problem.convolution();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto k = static_cast<std::int64_t>(i) % g.out_channels;
    const double value =
        options.expected(static_cast<std::int64_t>(i) / g.out_channels, k, expected[i],
                         problem.bias[static_cast<std::size_t>(k)], problem.source[i]);
    expected[i] = round_to(out, static_cast<float>(value));
  }
  EXPECT_TRUE(output.guards_intact()) << "around output";
  EXPECT_TRUE(source.guards_intact()) << "around source";
  EXPECT_EQ(test::difference(output.download(), expected, out, g.out_channels, options.tolerance),
            "");
}

// ---- Configurations x shapes --------------------------------------------------------------------

class Sm100 : public testing::Test {
 protected:
  void SetUp() override {
    if (!on_blackwell()) GTEST_SKIP() << "needs compute capability 10.x, real or virtual";
  }
};

template <typename Parameter>
class Sm100With : public testing::TestWithParam<Parameter> {
 protected:
  void SetUp() override {
    if (!on_blackwell()) GTEST_SKIP() << "needs compute capability 10.x, real or virtual";
  }
};

class Sm100Shapes : public Sm100With<std::tuple<std::size_t, std::size_t>> {};
class Sm100Configs : public Sm100With<std::size_t> {};
class Sm100Instances : public Sm100With<std::size_t> {};
// A small share may hold none of these.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Sm100Configs);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Sm100Instances);

TEST_P(Sm100Shapes, MatchesTheIntegerReference) {
  const auto [config, shape] = GetParam();
  const Instance kernel = test_kernels()[config].make();
  const Shape& problem = shapes()[shape];
  SCOPED_TRACE(text(test_kernels()[config].why, ": ", name_of(kernel)));
  SCOPED_TRACE(problem.why);
  if (kernel.config.input != Input::runs) {
    // What it is not for is refused with the reason.
    const ConvGeometry& g = problem.geometry;
    const bool planes = g.filter[0] == 1 && g.cached_frames == 0;
    const bool pixels = planes && g.filter[1] * g.filter[2] == 1 && g.stride[1] == 1;
    const bool patches = g.stride[1] == 1 && g.stride[2] == 1 && g.filter[1] * g.filter[2] > 1;
    const std::string reason = refusal(kernel, g, g.upsample == 2);
    if (kernel.config.input == Input::resident) {
      EXPECT_EQ(reason.find("(filters stay in shared memory)") == std::string::npos, pixels);
    } else if (reason.find(" pixels; legal: at most ") == std::string::npos) {
      EXPECT_EQ(reason.empty(), patches) << reason;
    }
    if (!reason.empty()) return;
  }
  if (const int parts = kernel.config.cluster_shape.k; parts > 1) {
    // Small reductions are refused with the number of parts that they have.
    const ConvGeometry& g = problem.geometry;
    const std::int64_t taps =
        (g.upsample == 2 ? 4 * upsampled_filter_terms(g) : g.filter[1] * g.filter[2]) *
        (row_layout(kernel.config, g).row_groups == RowGroups::volumes ? g.filter[0] : 1);
    const std::int64_t spans =
        taps * ((g.in_channels + kernel.config.atom_k() - 1) / kernel.config.atom_k());
    const std::string reason = refusal(kernel, g, g.upsample == 2);
    EXPECT_EQ(reason.find(text("a reduction of ", spans, " spans")) != std::string::npos,
              spans < parts)
        << reason;
    if (spans < parts) return;
  }
  run_and_compare(kernel, problem.geometry);
}

// Every configuration on every shape. NOTE: but for many tiles of split reductions, whose exchange
// of single vectors is slow on the virtual GPU: SplitReductionAddsThePartsInTheirOrder has them.
std::vector<std::tuple<std::size_t, std::size_t>> cases() {
  std::vector<std::tuple<std::size_t, std::size_t>> list;
  for (std::size_t config = 0; config < test_kernels().size(); ++config) {
    const bool splits = test_kernels()[config].make().config.splits_reduction();
    for (std::size_t shape = 0; shape < shapes().size(); ++shape) {
      if (splits && shape == kManyTiles) continue;
      // NOTE: the sum, so that of three shares every configuration and every shape meets each.
      if (in_share(config + shape)) list.emplace_back(config, shape);
    }
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(All, Sm100Shapes, testing::ValuesIn(cases()), [](const auto& info) {
  return text("config", std::get<0>(info.param), "_shape", std::get<1>(info.param));
});

TEST_P(Sm100Instances, OfTheLibraryMatchTheIntegerReference) {
  const Instance& kernel = instances()[GetParam()];
  SCOPED_TRACE(text(name_of(kernel), " ", to_string(kernel.config.act_dtype), " -> ",
                    to_string(kernel.config.out_dtype)));
  // Tails in M, N and K; two 64-byte and one and a half 128-byte spans; a cache; phases.
  for (const std::size_t shape : {2u, 4u, 7u, 21u, 24u}) {
    SCOPED_TRACE(shapes()[shape].why);
    const ConvGeometry& g = shapes()[shape].geometry;
    if (kernel.config.normalises()) {  // PrologueInPlace runs them.
      EXPECT_NE(prologue_refusal(kernel, g, {}), "");
      continue;
    }
    const std::string reason = refusal(kernel, g, g.upsample == 2);
    if (reason.find(" ways; legal") != std::string::npos) continue;
    if (kernel.config.input != Input::runs && !reason.empty()) continue;
    RunOptions options{.bias = true, .residual = true};
    options.expected = [](auto, auto, double conv, double bias, double source) {
      return conv + bias + source;
    };
    run_and_compare(kernel, shapes()[shape].geometry, options);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Sm100Instances, testing::ValuesIn(share_of(instances().size())),
                         [](const auto& info) { return text("instance", info.param); });

// ---- Borders ------------------------------------------------------------------------------------

// What pads by something else than zeros, for kernels that load patches with their border.
std::vector<Shape> border_shapes(PadMode mode) {
  const auto pads = [mode](Conv2dProblemShape& p) { p.pad_mode = mode; };
  return {
      {"patches of 8 x 16 at every edge and corner, one at none; half a second span",
       conv2d(1, 35, 25, 96, 40, 3, 3, 1, 1, pads)},
      {"one patch with every border, more rows behind than in front; batch of pairs that lack one",
       conv2d(3, 3, 5, 72, 40, 3, 3, 1, 0,
              [&](auto& p) {
                pads(p);
                p.pad_h_end = 2;
              })},
      {"5x1: by two rows", conv2d(1, 19, 9, 16, 64, 5, 1, 2, 0, pads)},
      {"1x2 with dilation: by two columns", conv2d(1, 9, 17, 16, 64, 1, 2, 0, 2,
                                                   [&](auto& p) {
                                                     pads(p);
                                                     p.dilation_w = 2;
                                                   })},
      {"a tile of one row of pixels, K = 3: output rows that TMA cannot store",
       conv2d(1, 17, 9, 32, 3, 3, 3, 1, 1, pads)},
      {"folded upsampling, which replicates in either mode", conv2d(1, 18, 9, 32, 48, 3, 3, 1, 1,
                                                                    [&](auto& p) {
                                                                      pads(p);
                                                                      p.upsample = 2;
                                                                    })},
      {"frames and rows, columns of zeros; a cache",
       conv3d(1, {2, 10, 18}, 136, 40, {3, 3, 3}, {1, 1, 1}, {0, 1, 1}, 1,
              [&](auto& p) {
                p.pad_mode = {PadMode::replicate, mode, PadMode::zero};
              })},
      {"frames and columns, rows of zeros",
       conv3d(1, {2, 18, 10}, 64, 40, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, 0,
              [&](auto& p) {
                p.pad_mode = {mode, PadMode::zero, mode};
              })},
  };
}

TEST_F(Sm100, BorderOfPatches) {
  int kernels = 0;
  std::size_t number = 0;
  for (const TestKernel& test : test_kernels()) {
    const Instance kernel = test.make();
    if (kernel.config.input != Input::halo) continue;
    ++kernels;
    SCOPED_TRACE(text(test.why, ": ", name_of(kernel)));
    for (const PadMode mode : {PadMode::replicate, PadMode::reflect}) {
      SCOPED_TRACE(to_string(mode));
      for (const Shape& shape : border_shapes(mode)) {
        SCOPED_TRACE(shape.why);
        if (in_share(number++)) run_and_compare(kernel, shape.geometry);
      }
    }
  }
  EXPECT_EQ(kernels, 2);
}

// Interior tiles between those at a border, several a CTA; a residual.
TEST_F(Sm100, BorderOfManyTiles) {
  if (!in_share(1)) return;
  RunOptions options{.residual = true};
  options.expected = [](auto, auto, double conv, double, double source) { return conv + source; };
  const ConvGeometry g =
      conv2d(2, 70, 49, 32, 72, 3, 3, 1, 1, [](auto& p) { p.pad_mode = PadMode::reflect; });
  const Instance pair = test_kernels()[13].make();
  ASSERT_TRUE(pair.config.input == Input::halo && pair.config.cta_group == 2);
  run_and_compare(pair, g, options);
}

// Frames outside are other frames, whichever way the rows are laid out.
TEST_F(Sm100, BorderOfFrames) {
  for (const PadMode mode : {PadMode::replicate, PadMode::reflect}) {
    SCOPED_TRACE(to_string(mode));
    const auto pads = [mode](auto& p) { p.pad_mode[0] = mode; };
    const std::vector<std::pair<RowGroups, ConvGeometry>> list = {
        {RowGroups::frames,
         conv3d(2, {3, 5, 11}, 72, 40, {3, 3, 3}, {2, 1, 1}, {0, 1, 1}, 0, pads)},
        {RowGroups::frames,
         conv3d(1, {2, 5, 11}, 32, 40, {3, 3, 3}, {2, 1, 1}, {1, 1, 1}, 2, pads)},
        {RowGroups::frames, conv3d(1, {4, 3, 5}, 32, 40, {3, 1, 1}, {2, 0, 0}, {2, 0, 0}, 0,
                                   [&](auto& p) {
                                     pads(p);
                                     p.stride = {2, 1, 1};
                                   })},
        {RowGroups::patches, conv3d(1, {2, 9, 264}, 32, 24, {3, 3, 3}, {2, 1, 1}, {0, 1, 1}, 1,
                                    [&](auto& p) {
                                      pads(p);
                                      p.dilation = {1, 1, 128};
                                    })},
    };
    std::size_t number = 0;
    for (const auto& [rows, g] : list) {
      if (!in_share(number + (mode == PadMode::reflect ? 1 : 0))) {
        ++number;
        continue;
      }
      // Pairs, single CTAs, and once a reduction split 8 ways.
      for (const std::size_t config : {0u, 1u, 8u}) {
        const Instance kernel = test_kernels()[config].make();
        SCOPED_TRACE(name_of(kernel));
        if (kernel.config.splits_reduction() && (number != 0 || mode == PadMode::reflect)) continue;
        ASSERT_EQ(row_layout(kernel.config, g).row_groups, rows);
        run_and_compare(kernel, g);
      }
      ++number;
    }
  }
}

// ---- Residual -----------------------------------------------------------------------------------

// Shapes that take the different ways of the epilogue: full tiles, tails, frames, direct stores,
// phases.
const std::vector<std::size_t>& epilogue_shapes() {
  static const std::vector<std::size_t> list = {1, 2, 6, 8, 21, 24, 27};
  return list;
}

TEST_P(Sm100Configs, ResidualIsBetaTimesSource) {
  const Instance kernel = test_kernels()[GetParam()].make();
  SCOPED_TRACE(name_of(kernel));
  // A 1x1 reduction is too short to split, and has no halo.
  const bool taps = kernel.config.splits_reduction() || kernel.config.input == Input::halo;
  const std::size_t shape = taps ? 4 : 2;
  for (const float beta : {1.0f, 0.5f, -1.0f}) {
    SCOPED_TRACE(beta);
    RunOptions options{.residual = true};
    options.epilogue.beta = beta;
    options.expected = [beta](auto, auto, double conv, double, double source) {
      return conv + beta * source;
    };
    run_and_compare(kernel, shapes()[shape].geometry, options);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Sm100Configs, testing::ValuesIn(share_of(test_kernels().size())),
                         [](const auto& info) { return text("config", info.param); });

TEST_F(Sm100, ResidualOnEveryWayOfTheEpilogue) {
  for (const std::size_t shape : epilogue_shapes()) {
    SCOPED_TRACE(shapes()[shape].why);
    RunOptions options{.residual = true};
    options.expected = [](auto, auto, double conv, double, double source) { return conv + source; };
    run_and_compare(test_kernels()[0].make(), shapes()[shape].geometry, options);
    run_and_compare(test_kernels()[2].make(), shapes()[shape].geometry, options);
    const Instance split = test_kernels()[9].make();
    ASSERT_TRUE(split.config.splits_reduction());
    if (shape == 1 || shape == kManyTiles) continue;  // A single span of channels; see cases().
    run_and_compare(split, shapes()[shape].geometry, options);
  }
}

TEST_F(Sm100, BetaZeroReadsNothing) {
  const Instance kernel = test_kernels()[0].make();
  const IntegerTensors problem(shapes()[2].geometry, data_seed());
  RunPointers pointers;
  GuardedBuffer activation(problem.activation.size() * 2), filter(problem.filter.size() * 2);
  GuardedBuffer output(problem.source.size() * 2);
  activation.upload(test::encode(problem.activation, DType::bf16).data());
  filter.upload(test::encode(problem.filter, DType::bf16).data());
  pointers.output = output.data();
  pointers.activation = activation.data();
  pointers.filter = filter.data();
  // An address that no kernel may touch.
  pointers.epilogue.residual = reinterpret_cast<const void*>(std::uintptr_t{0x10});
  pointers.epilogue.beta = 0.0f;
  prepare(kernel);
  const NoComputeOp compute;
  const NoStoreOp store;
  launch(plan_launch(kernel, problem.geometry, false), pointers, &compute, &store, nullptr);
  CONVOY_ASSERT_CUDA(cudaDeviceSynchronize());
  std::vector<double> expected = problem.convolution();
  for (double& value : expected) value = round_to(DType::bf16, static_cast<float>(value));
  EXPECT_EQ(
      test::difference(output.download(), expected, DType::bf16, problem.geometry.out_channels),
      "");
}

// ---- Split reductions, dependent launches -------------------------------------------------------

// Data whose fp32 sum depends on the order of its terms.
std::vector<float> wide_range(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    const auto draw = random();
    value =
        std::ldexp(static_cast<float>(draw % 511) - 255.0f, static_cast<int>(draw >> 9 & 15) - 8);
  }
  return values;
}

// Convolve `a` with `b`, no epilogue; the output's bytes.
std::vector<unsigned char> convolve(const Instance& kernel, const ConvGeometry& g,
                                    const std::vector<float>& a, const std::vector<float>& b) {
  GuardedBuffer activation(a.size() * 2), filter(b.size() * 2);
  GuardedBuffer output(static_cast<std::size_t>(g.output_elements()) *
                       size_of(kernel.config.out_dtype));
  activation.upload(test::encode(a, kernel.config.act_dtype).data());
  filter.upload(test::encode(b, kernel.config.act_dtype).data());
  output.fill_with_nan();
  RunPointers pointers;
  pointers.output = output.data();
  pointers.activation = activation.data();
  pointers.filter = filter.data();
  const NoComputeOp compute;
  const NoStoreOp store;
  prepare(kernel);
  launch(plan_launch(kernel, g, false), pointers, &compute, &store, nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return output.download();
}

TEST_F(Sm100, SplitReductionAddsThePartsInTheirOrder) {
  // M and N tails, four tiles. Nine taps of one span of channels are split 8 ways: the last part
  // has two. An unsplit kernel computes the parts one by one.
  const ConvGeometry g = conv2d(1, 23, 7, 64, 72, 3, 3, 1, 1);
  const Instance split = test_kernels()[8].make(), whole = test_kernels()[4].make();
  const int parts = split.config.cluster_shape.k;
  ASSERT_EQ(parts, 8);
  ASSERT_EQ(whole.config.out_dtype, DType::fp32);
  const auto a = wide_range(static_cast<std::size_t>(g.activation_elements()), 1);
  const auto b = wide_range(static_cast<std::size_t>(g.filter_elements()), 2);
  std::vector<float> sum(static_cast<std::size_t>(g.output_elements()));
  for (int part = 0; part < parts; ++part) {
    std::vector<float> masked = b;
    for (std::size_t i = 0; i < masked.size(); ++i) {
      const int tap = static_cast<int>(i / 64 % 9);
      if (tap < 9 * part / parts || tap >= 9 * (part + 1) / parts) masked[i] = 0.0f;
    }
    const std::vector<unsigned char> bytes = convolve(whole, g, a, masked);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const float value = load_element(bytes.data(), static_cast<std::int64_t>(i), DType::fp32);
      sum[i] = part == 0 ? value : sum[i] + value;
    }
  }
  std::vector<double> expected(sum.size());
  for (std::size_t i = 0; i < sum.size(); ++i) expected[i] = round_to(DType::bf16, sum[i]);
  for (int run = 0; run < 2; ++run) {
    EXPECT_EQ(test::difference(convolve(split, g, a, b), expected, DType::bf16, g.out_channels), "")
        << "run " << run;
  }
}

TEST_F(Sm100, DependentLaunchesReadWhatTheLastOneWrote) {
  // conv -> conv -> conv in one stream, each launched with programmatic serialisation; the last
  // adds the first's output.
  const ConvGeometry g = conv2d(1, 12, 12, 32, 32, 3, 3, 1, 1);
  IntegerTensors problem(g, data_seed());
  for (float& value : problem.activation) value = value == 2.0f ? 1.0f : 0.0f;
  for (std::size_t i = 0; i < problem.filter.size(); ++i) {
    // One tap of one channel a filter: values stay small integers.
    problem.filter[i] = i % 288 == (i / 288 * 37) % 288 ? 1.0f : 0.0f;
  }
  for (const std::size_t index : {1u, 0u, 8u}) {
    const Instance kernel = test_kernels()[index].make();
    SCOPED_TRACE(name_of(kernel));
    GuardedBuffer filter(problem.filter.size() * 2);
    std::vector<std::unique_ptr<GuardedBuffer>> tensors;
    for (int i = 0; i < 4; ++i) {
      tensors.push_back(std::make_unique<GuardedBuffer>(problem.activation.size() * 2));
      tensors.back()->fill_with_nan();
    }
    tensors[0]->upload(test::encode(problem.activation, DType::bf16).data());
    filter.upload(test::encode(problem.filter, DType::bf16).data());
    prepare(kernel);
    const NoComputeOp compute;
    const NoStoreOp store;
    const Launch plan = plan_launch(kernel, g, false);
    for (std::size_t i = 0; i < 3; ++i) {
      RunPointers pointers;
      pointers.activation = tensors[i]->data();
      pointers.output = tensors[i + 1]->data();
      pointers.filter = filter.data();
      if (i == 2) pointers.epilogue.residual = tensors[1]->data();
      launch(plan, pointers, &compute, &store, nullptr);
    }
    CONVOY_ASSERT_CUDA(cudaDeviceSynchronize());
    std::vector<double> expected[3];
    IntegerTensors step = problem;
    for (auto& result : expected) {
      result = step.convolution();
      step.activation.assign(result.begin(), result.end());
    }
    for (std::size_t i = 0; i < expected[2].size(); ++i) expected[2][i] += expected[0][i];
    EXPECT_EQ(test::difference(tensors[3]->download(), expected[2], DType::bf16, 32), "");
  }
}

// ---- Run-time epilogue --------------------------------------------------------------------------

struct ActivationCase {
  Activation activation;
  double tolerance;  // Relative to max(1, |x|); 0: exact.
  double (*reference)(double);
};

// NOTE: half a unit in the last place of bf16 is 2^-9; transcendental functions may round to the
// neighbour, one whole unit.
constexpr double kBf16Unit = 1.0 / 128;
const ActivationCase kActivations[] = {
    {Activation::none, 0, [](double x) { return x; }},
    {Activation::relu, 0, [](double x) { return x < 0 ? 0.0 : x; }},
    {Activation::leaky_relu, 0, [](double x) { return x > 0 ? x : 0.5 * x; }},
    {Activation::clamp, 0, [](double x) { return std::min(std::max(x, 0.5), 6.0); }},
    {Activation::hardswish, kBf16Unit,
     [](double x) { return x * std::min(std::max(x + 3.0, 0.0), 6.0) / 6.0; }},
    {Activation::gelu, kBf16Unit,
     [](double x) { return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0))); }},
    {Activation::gelu_tanh, kBf16Unit,
     [](double x) {
       return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
     }},
    {Activation::silu, kBf16Unit, [](double x) { return x / (1.0 + std::exp(-x)); }},
    {Activation::sigmoid, kBf16Unit, [](double x) { return 1.0 / (1.0 + std::exp(-x)); }},
    {Activation::tanh, kBf16Unit, [](double x) { return std::tanh(x); }},
};

TEST_F(Sm100, EveryActivationWithScaleBiasAndResidual) {
  const Instance kernel = test_kernels()[2].make();
  for (const ActivationCase& act : kActivations) {
    for (const ResidualOrder order :
         {ResidualOrder::after_activation, ResidualOrder::before_activation}) {
      SCOPED_TRACE(text(to_string(act.activation), ", residual ", to_string(order)));
      RunOptions options{.bias = true, .residual = true, .tolerance = act.tolerance};
      options.epilogue.scale = 0.125f;
      options.epilogue.activation = act.activation;
      options.epilogue.parameter_a = 0.5f;
      options.epilogue.parameter_b = 6.0f;
      options.epilogue.order = order;
      options.epilogue.beta = -0.5f;
      options.expected = [&](auto, auto, double conv, double bias, double source) {
        const double x = 0.125 * conv + bias;
        return order == ResidualOrder::before_activation ? act.reference(x - 0.5 * source)
                                                         : act.reference(x) - 0.5 * source;
      };
      run_and_compare(kernel, shapes()[2].geometry, options);
    }
  }
}

TEST_F(Sm100, RoundingAtEachStepReproducesAChainOfKernels) {
  const Instance kernel = test_kernels()[0].make();
  RunOptions options{.bias = true, .residual = true};
  options.epilogue.rounding = EpilogueRounding::each_step;
  options.epilogue.scale = 0.3f;
  options.epilogue.activation = Activation::relu;
  options.epilogue.beta = 0.7f;
  options.expected = [](auto, auto, double conv, double bias, double source) {
    const auto bf16 = [](float x) { return round_to(DType::bf16, x); };
    float v = bf16(static_cast<float>(conv));
    v = bf16(v * 0.3f);
    v = bf16(v + static_cast<float>(bias));
    v = v <= 0.0f ? 0.0f : v;
    return static_cast<double>(v + bf16(0.7f * static_cast<float>(source)));
  };
  run_and_compare(kernel, shapes()[8].geometry, options);
}

// ---- Hooks --------------------------------------------------------------------------------------

TEST_F(Sm100, ComputeHookOnRegistersAndOnTheStagedTile) {
  for (const bool registers : {true, false}) {
    for (const std::size_t shape : {2u, 8u, 21u, 24u}) {
      SCOPED_TRACE(text(registers ? "registers, " : "staged, ", shapes()[shape].why));
      const CoordinateOp op{.scale = 2.0f};
      for (const bool residual : {false, true}) {
        RunOptions options{.residual = residual, .compute = &op};
        options.expected = [residual](std::int64_t m, std::int64_t k, double conv, double,
                                      double source) {
          return 2.0 * conv + static_cast<double>((m * 3 + k) % 16) + (residual ? source : 0.0);
        };
        run_and_compare(hook_kernel(registers), shapes()[shape].geometry, options);
      }
    }
  }
}

TEST_F(Sm100, StoreHookSeesEveryElementOnceInPlaceOfTheStore) {
  for (const bool registers : {true, false}) {
    for (const std::size_t shape : {2u, 8u, 24u}) {
      SCOPED_TRACE(text(registers ? "registers, " : "staged, ", shapes()[shape].why));
      const ConvGeometry& g = shapes()[shape].geometry;
      const IntegerTensors problem(g, data_seed());
      GuardedBuffer seen(problem.source.size() * 4);
      CONVOY_ASSERT_CUDA(cudaMemset(seen.data(), 0, seen.bytes()));
      const CountingStore store{static_cast<float*>(seen.data()), g.out_channels};
      const Instance kernel = store_hook_kernel(registers);
      GuardedBuffer activation(problem.activation.size() * 2), filter(problem.filter.size() * 2);
      GuardedBuffer output(problem.source.size() * 2);
      activation.upload(test::encode(problem.activation, DType::bf16).data());
      filter.upload(test::encode(problem.filter, DType::bf16).data());
      std::unique_ptr<GuardedBuffer> phases;
      RunPointers pointers;
      pointers.output = output.data();
      pointers.activation = activation.data();
      pointers.filter = filter.data();
      if (g.upsample == 2) {
        phases = std::make_unique<GuardedBuffer>(upsampled_filter_bytes(g, DType::bf16));
        pack_upsampled_filter(phases->data(), filter.data(), FilterLayout::krsc, g, DType::bf16,
                              nullptr);
        pointers.filter = phases->data();
      }
      prepare(kernel);
      const NoComputeOp compute;
      launch(plan_launch(kernel, g, g.upsample == 2), pointers, &compute, &store, nullptr);
      CONVOY_ASSERT_CUDA(cudaDeviceSynchronize());
      std::vector<double> expected = problem.convolution();
      for (double& value : expected) {
        value = static_cast<double>(round_to(DType::bf16, static_cast<float>(value))) + 1000.0;
      }
      EXPECT_EQ(test::difference(seen.download(), expected, DType::fp32, g.out_channels), "");
      EXPECT_TRUE(seen.guards_intact()) << "around seen";
      // The kernel itself wrote nothing: the buffer is as it was.
      for (const unsigned char byte : output.download()) ASSERT_EQ(byte, 0xff);
    }
  }
}

// ---- Launch failure -----------------------------------------------------------------------------

TEST_F(Sm100, LaunchFailureIsReported) {
  Instance kernel = test_kernels()[0].make();
  prepare(kernel);
  kernel.shared_bytes = 400 * 1024;  // More than any block may have.
  const IntegerTensors problem(shapes()[1].geometry);
  GuardedBuffer activation(problem.activation.size() * 2), filter(problem.filter.size() * 2);
  GuardedBuffer output(problem.source.size() * 2);
  RunPointers pointers;
  pointers.output = output.data();
  pointers.activation = activation.data();
  pointers.filter = filter.data();
  const Launch plan = plan_launch(kernel, problem.geometry, false);
  const NoComputeOp compute;
  const NoStoreOp store;
  try {
    launch(plan, pointers, &compute, &store, nullptr);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::launch_failure);
    EXPECT_NE(std::string(error.what()).find("409600 bytes"), std::string::npos) << error.what();
  }
}
}  // namespace
}  // namespace convoy::sm100
