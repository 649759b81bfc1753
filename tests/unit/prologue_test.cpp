// SPDX-License-Identifier: Apache-2.0
// Prologues on the CPU: what they compute, what is refused, what a run checks.
#include "convoy/prologue.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "convoy/convoy.hpp"
#include "convoy/dtype.hpp"
#include "expect_error.hpp"
#include "support/conv_case.hpp"

namespace convoy {
namespace {

using test::expect_error;

constexpr PrologueKind kGroup{.norm = PrologueNorm::scale_shift, .activation = Activation::silu};
constexpr PrologueKind kRms{.norm = PrologueNorm::rms, .activation = Activation::silu};

TEST(Prologue, TheTextNamesItsSteps) {
  EXPECT_EQ(to_string(PrologueKind{}), "none");
  EXPECT_EQ(to_string(kGroup), "scale_shift+silu");
  EXPECT_EQ(to_string(PrologueKind{.norm = PrologueNorm::rms}), "rms");
}

TEST(Prologue, OptionsThatMakeNoSenseAreRefused) {
  const Conv2dProblemShape problem{
      .in_height = 4, .in_width = 4, .in_channels = 8, .out_channels = 8};
  const auto refused = [&](PrologueKind kind, std::initializer_list<const char*> parts) {
    expect_error(Status::invalid_argument, parts,
                 [&] { plan(problem, {.prologue = kind, .device = Device::cpu}); });
  };
  refused({.norm = static_cast<PrologueNorm>(3)}, {"prologue.norm = 3", "rms"});
  refused({.norm = PrologueNorm::rms, .activation = Activation::tanh},
          {"prologue.activation = tanh", "gelu_tanh"});
  refused({.activation = Activation::silu}, {"without a norm", "scale_shift"});
}

#ifdef CONVOY_WITH_CPU

TEST(Prologue, ARunMustBringWhatThePlanReads) {
  alignas(16) float x[64] = {}, w[64] = {}, y[64] = {}, a[16] = {}, b[16] = {}, r[16] = {};
  const Conv2dProblemShape problem{
      .batch = 2, .in_height = 2, .in_width = 2, .in_channels = 8, .out_channels = 8};
  const auto plan_of = [&](PrologueKind kind) {
    return plan(problem, {.dtype = DType::fp32, .prologue = kind, .device = Device::cpu});
  };
  const auto refused = [&](PrologueKind kind, const Prologue& prologue,
                           std::initializer_list<const char*> parts) {
    expect_error(Status::invalid_argument, parts, [&] {
      plan_of(kind).run({.output = y, .activation = x, .filter = w, .prologue = prologue});
    });
  };
  Prologue group{.norm = PrologueNorm::scale_shift, .activation = Activation::silu, .scale = a};
  refused({}, group, {"prologue is scale_shift+silu", "the plan is for none"});
  refused(kRms, group, {"the plan is for rms+silu"});
  refused(kGroup, group, {"prologue.shift is null"});
  group.shift = b + 1;
  refused(kGroup, group, {"prologue.shift", "not aligned"});
  group.shift = y;
  refused(kGroup, group, {"output", "overlaps prologue.shift"});
  group.shift = b;
  group.inverse_rms = r;
  refused(kGroup, group, {"prologue.inverse_rms is given", "legal: null"});
  Prologue rms{.norm = PrologueNorm::rms, .activation = Activation::silu, .scale = a};
  refused(kRms, rms, {"prologue.inverse_rms is null"});
  refused({}, {.scale = a}, {"prologue.scale is given"});
  group.inverse_rms = nullptr;
  EXPECT_NO_THROW(
      plan_of(kGroup).run({.output = y, .activation = x, .filter = w, .prologue = group}));
}

/// A norm's coefficients are [2, N, C]: of 3 channels the shifts begin 12 bytes behind the scales.
TEST(Prologue, TakesTheCoefficientsOfAnyChannels) {
  alignas(16) float x[3] = {1, 2, 3}, w[3] = {1, 10, 100}, y[1] = {};
  alignas(16) const float coefficients[6] = {1, 2, 3, 0.5f, -1, 2};
  const Conv2dProblemShape problem{
      .in_height = 1, .in_width = 1, .in_channels = 3, .out_channels = 1};
  const PrologueKind kind{.norm = PrologueNorm::scale_shift};
  plan(problem, {.dtype = DType::fp32, .prologue = kind, .device = Device::cpu})
      .run({.output = y,
            .activation = x,
            .filter = w,
            .prologue = {.norm = PrologueNorm::scale_shift,
                         .scale = coefficients,
                         .shift = coefficients + 3}});
  EXPECT_EQ(y[0], 1.5f + 10 * 3.0f + 100 * 11.0f);
}

TEST(Prologue, IsCountedAmongTheBytes) {
  const Conv3dProblemShape problem{.batch = 2,
                                   .in_depth = 3,
                                   .in_height = 4,
                                   .in_width = 5,
                                   .in_channels = 8,
                                   .out_channels = 8};
  const auto bytes = [&](PrologueKind kind) {
    return plan(problem, {.prologue = kind, .device = Device::cpu}).info().min_bytes;
  };
  EXPECT_EQ(bytes(kGroup) - bytes({}), 2 * 2 * 8 * 4);
  EXPECT_EQ(bytes(kRms) - bytes({}), (2 * 3 * 4 * 5 + 8) * 4);
}

/// Every mode of padding, cached frames, batches, odd channels, types.
TEST(Prologue, EveryModeOnTheCpu) {
  std::uint64_t seed = 1;
  for (const PadMode mode : {PadMode::zero, PadMode::replicate, PadMode::reflect}) {
    for (const PrologueNorm norm : {PrologueNorm::scale_shift, PrologueNorm::rms}) {
      for (const Activation activation :
           {Activation::none, Activation::relu, Activation::silu, Activation::gelu}) {
        test::ConvCase c;
        c.seed = ++seed;
        c.exact = activation == Activation::none || activation == Activation::relu;
        c.options.prologue = {.norm = norm, .activation = activation};
        c.options.device = Device::cpu;
        c.options.dtype = static_cast<DType>(seed % 3);
        c.options.packed_filter = seed % 2 == 0;
        Conv3dProblemShape p{.batch = 2,
                             .in_depth = seed % 3 == 2 ? 1 : 3,  // The next cache has of this.
                             .in_height = 5,
                             .in_width = 6,
                             .in_channels = seed % 4 == 0 ? 5 : 8,
                             .out_channels = 6,
                             .filter = {3, 3, 3},
                             .pad_begin = {1, 1, 1},
                             .pad_end = {0, 1, 1},
                             .pad_mode = {mode, mode, mode},
                             .cached_frames = static_cast<std::int64_t>(seed % 3)};
        c.problem = p;
        c.filter_layout = FilterLayout::ktrsc;
        c.next_cache = true;
        EXPECT_EQ(test::wrong_with(c), "") << test::describe(c);
        c.problem = Conv2dProblemShape{.batch = 2,
                                       .in_height = 6,
                                       .in_width = 5,
                                       .in_channels = p.in_channels,
                                       .out_channels = 4,
                                       .filter_h = 3,
                                       .filter_w = 3,
                                       .pad_h = 1,
                                       .pad_w = 1,
                                       .pad_mode = mode,
                                       .upsample = seed % 2 == 0 ? 2 : 1};
        c.filter_layout = FilterLayout::krsc;
        c.next_cache = false;
        EXPECT_EQ(test::wrong_with(c), "") << test::describe(c);
      }
    }
  }
}

/// The channels of a pixel are normalised in pieces.
TEST(Prologue, ManyChannelsOnTheCpu) {
  for (const PrologueNorm norm : {PrologueNorm::scale_shift, PrologueNorm::rms}) {
    for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
      test::ConvCase c;
      c.seed = 7;
      c.options.prologue = {.norm = norm, .activation = Activation::silu};
      c.options.device = Device::cpu;
      c.options.dtype = dtype;
      c.problem = Conv2dProblemShape{
          .batch = 2, .in_height = 2, .in_width = 3, .in_channels = 2085, .out_channels = 2};
      EXPECT_EQ(test::wrong_with(c), "") << test::describe(c);
    }
  }
}

/// RMSNorm, SiLU and a causal convolution as one, against the norm and the convolution.
TEST(Prologue, HasTheBitsOfANormInFront) {
  constexpr std::int64_t kFrames = 3, kPixels = kFrames * 4 * 6, kChannels = 24;
  std::vector<std::uint16_t> storage(kPixels * kChannels * 3 + 3 * 27 * kChannels * 8 + 64);
  auto* x = reinterpret_cast<std::uint16_t*>(
      (reinterpret_cast<std::uintptr_t>(storage.data()) + 15) / 16 * 16);
  std::uint16_t* const normed = x + kPixels * kChannels;
  std::uint16_t* const filter = normed + kPixels * kChannels;
  for (int i = 0; i < kPixels * kChannels; ++i) x[i] = bf16_from_float(float(i % 37 - 18) * 0.11f);
  for (int i = 0; i < 8 * 27 * kChannels; ++i)
    filter[i] = bf16_from_float(float(i % 23 - 11) * 0.07f);
  alignas(16) float gamma[kChannels], inverse[kPixels];
  for (int i = 0; i < kChannels; ++i) gamma[i] = 0.5f + 0.1f * float(i);
  const RmsNormProblem norm{.pixels = kPixels, .channels = kChannels};
  const NormOptions options{.bias = false, .activation = Activation::silu, .device = Device::cpu};
  plan(norm, options).run({.output = normed, .input = x, .scale = gamma});
  plan(norm,
       {.scale = false, .bias = false, .device = Device::cpu, .result = NormResult::coefficients})
      .run({.output = inverse, .input = x});

  const Conv3dProblemShape problem{.in_depth = kFrames,
                                   .in_height = 4,
                                   .in_width = 6,
                                   .in_channels = kChannels,
                                   .out_channels = 8,
                                   .filter = {3, 3, 3},
                                   .pad_begin = {2, 1, 1},
                                   .pad_end = {0, 1, 1}};
  constexpr std::int64_t kOutput = kPixels * 8, kCache = 2 * 4 * 6 * kChannels;
  alignas(16) static std::uint16_t outputs[2][kOutput], caches[2][kCache];
  plan(problem, {.device = Device::cpu})
      .run({.output = outputs[0], .activation = normed, .filter = filter, .next_cache = caches[0]});
  plan(problem, {.prologue = kRms, .device = Device::cpu})
      .run({.output = outputs[1],
            .activation = x,
            .filter = filter,
            .prologue = {.norm = PrologueNorm::rms,
                         .activation = Activation::silu,
                         .scale = gamma,
                         .inverse_rms = inverse},
            .next_cache = caches[1]});
  EXPECT_EQ(std::memcmp(outputs[0], outputs[1], sizeof(outputs[0])), 0);
  EXPECT_EQ(std::memcmp(caches[0], caches[1], sizeof(caches[0])), 0);
}

#endif  // CONVOY_WITH_CPU

}  // namespace
}  // namespace convoy
