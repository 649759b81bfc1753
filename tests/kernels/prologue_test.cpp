// SPDX-License-Identifier: Apache-2.0
//
// Prologues on a GPU, real or virtual: every kernel that takes them against exact integers, and the
// bits of a norm of its own in front.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <random>

#include "core/text.hpp"
#include "kernel_case.hpp"
#include "support/elements.hpp"
#include "support/guarded_buffer.hpp"

namespace convoy::test {
namespace {

class PrologueOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (compute_capability() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

const std::string kCopy = "normalised_copy";

ConvCase with_prologue(ConvCase c, PrologueNorm norm, Activation activation = Activation::relu) {
  c.options.prologue = {.norm = norm, .activation = activation};
  c.exact = activation == Activation::none || activation == Activation::relu;
  return c;
}

void expect_right_with_either_norm(const ConvCase& c) {
  expect_right(with_prologue(c, PrologueNorm::scale_shift));
  expect_right(with_prologue(c, PrologueNorm::rms));
}

/// Both norms, exact and by exponentials.
void expect_right_with_every_norm(const ConvCase& c) {
  for (const PrologueNorm norm : {PrologueNorm::scale_shift, PrologueNorm::rms}) {
    for (const Activation activation : {Activation::none, Activation::relu, Activation::silu}) {
      expect_right(with_prologue(c, norm, activation));
    }
  }
}

TEST_F(PrologueOnGpu, CopyOfEveryKindOfInput) {
  // Odd channels and types; batches; strides and groups; upsampling.
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    expect_right_with_every_norm(with_kernel(shape_2d(2, 7, 9, 24, 8, 3, 1), kCopy, dtype));
    expect_right_with_every_norm(with_kernel(shape_2d(3, 5, 6, 5, 3, 3, 1, 2), kCopy, dtype));
  }
  ConvGeometry g = shape_2d(2, 6, 5, 16, 16, 3, 1);
  g.groups = 2;
  expect_right_with_every_norm(with_kernel(g, kCopy));
  g.groups = 1;
  g.upsample = 2;
  expect_right_with_every_norm(with_kernel(g, kCopy));
  g.pad_mode[1] = g.pad_mode[2] = PadMode::reflect;
  expect_right_with_every_norm(with_kernel(g, kCopy));
  // A pixel of more vectors than a block has threads.
  expect_right_with_every_norm(with_kernel(shape_2d(2, 2, 3, 2072, 4, 1, 0), kCopy));
}

TEST_F(PrologueOnGpu, CopyOfFramesWithACache) {
  for (const PadMode mode : {PadMode::zero, PadMode::replicate, PadMode::reflect}) {
    for (const std::int64_t cached : {0, 2}) {
      // With one new frame the next cache has one of this cache.
      ConvGeometry g = shape_3d(cached, cached > 0 ? 1 : 3, cached > 0 ? 0 : 2, 5, 6, 16, 8);
      g.batch = 2;
      g.pad_mode = {mode, mode, PadMode::zero};
      ConvCase c = with_kernel(g, kCopy);
      c.next_cache = true;
      expect_right_with_every_norm(c);
    }
  }
}

TEST_F(PrologueOnGpu, CopyWithGelu) {
  for (const Activation activation : {Activation::gelu, Activation::gelu_tanh}) {
    expect_right(with_prologue(with_kernel(shape_2d(1, 6, 7, 32, 8, 3, 1), kCopy),
                               PrologueNorm::scale_shift, activation));
  }
}

// Tiles that normalise patches in shared memory: Hopper's, or Blackwell's of pairs and of one SM.
class PrologueInPlace : public ::testing::Test {
 protected:
  void SetUp() override {
    const int capability = compute_capability();
#ifdef CONVOY_WITH_SM90
    if (capability == 90) tiles_ = {"sm90_fprop_128x128_pingpong_normalised_"};
#endif
#ifdef CONVOY_WITH_SM100
    if (capability / 10 == 10) {
      has_gelu_ = true;
      tiles_ = {"sm100_fprop_256x128x64_2sm_c2x1_normalised_",
                "sm100_fprop_128x128x64_1sm_c1x1_normalised_",
                "sm100_fprop_256x192x64_2sm_c2x1_normalised_",
                "sm100_fprop_256x256x64_2sm_c2x1_normalised_"};
    }
#endif
    if (tiles_.empty()) GTEST_SKIP() << "compute capability " << capability << " has no such tile";
  }
  /// One tile after the other.
  std::string normalised() {
    return tiles_[turn_++ % tiles_.size()] + "bf16";
  }
  std::vector<std::string> every_tile() const {
    std::vector<std::string> names{tiles_.front() + "fp16"};
    for (const std::string& tile : tiles_) names.push_back(tile + "bf16");
    return names;
  }
  bool has_gelu() const {
    return has_gelu_;
  }

 private:
  std::vector<std::string> tiles_;  ///< Without the type; the first of both.
  std::size_t turn_ = 0;
  bool has_gelu_ = false;
};

TEST_F(PrologueInPlace, PatchesOfManyTiles) {
  // Tiles that hang over; two blocks of channels, the last one shorter; more than a round of tiles
  // a ring has stages.
  const ConvGeometry many = shape_2d(2, 19, 20, 72, 40, 3, 1);
  for (const std::string& tile : every_tile()) {
    const DType dtype = tile.ends_with("fp16") ? DType::fp16 : DType::bf16;
    expect_right_with_either_norm(with_kernel(many, tile, dtype));
  }
  expect_right_with_every_norm(with_kernel(many, normalised()));
  // Fewer channels than a row of shared memory; lanes without a pixel.
  for (const std::int64_t channels : {8, 24, 48}) {
    expect_right_with_every_norm(
        with_kernel(shape_2d(1, 11, 12, channels, 16, 3, 1), normalised()));
  }
}

TEST_F(PrologueInPlace, PatchesThatAreCompleted) {
  for (const PadMode mode : {PadMode::replicate, PadMode::reflect}) {
    ConvGeometry g = shape_2d(2, 19, 20, 72, 24, 3, 1);
    g.pad_mode[1] = g.pad_mode[2] = mode;
    expect_right_with_every_norm(with_kernel(g, normalised()));
    g.pad_mode[1] = PadMode::zero;
    expect_right_with_either_norm(with_kernel(g, normalised()));
  }
}

TEST_F(PrologueInPlace, FramesAndTheCache) {
  for (const PadMode mode : {PadMode::zero, PadMode::replicate}) {
    for (const std::int64_t cached : {0, 1, 2}) {
      ConvGeometry g = shape_3d(cached, 3, 2 - cached, 9, 12, 40, 16);
      g.batch = 2;
      g.pad_mode[0] = mode;
      ConvCase c = with_kernel(g, normalised());
      c.next_cache = true;
      expect_right_with_either_norm(c);
    }
  }
}

TEST_F(PrologueInPlace, FramesAsRows) {
  ConvCase c = with_kernel(temporal(7, 3, 2, 4, 11, 72, 40), normalised());
  c.next_cache = true;
  expect_right_with_every_norm(c);
}

TEST_F(PrologueInPlace, Upsampling) {
  ConvGeometry g = shape_2d(2, 9, 12, 40, 16, 3, 1);
  g.upsample = 2;
  ConvCase c = with_kernel(g, normalised());
  c.options.packed_filter = true;
  expect_right_with_every_norm(c);
}

/// Outputs where each filter takes one channel of the pixel above to the right: what the prologue
/// left there, in the type of the activation.
std::vector<unsigned char> normalised_pixels(const ConvGeometry& g, const PrologueKind& prologue,
                                             const std::string& kernel) {
  const auto channels = static_cast<std::size_t>(g.in_channels);
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  const auto values = [&](std::int64_t count, float mean) {
    std::vector<float> drawn(static_cast<std::size_t>(count));
    for (float& value : drawn) value = mean + normal(random);
    return drawn;
  };
  const auto on_device = [](const auto& host) {
    GuardedBuffer buffer(host.size() * sizeof host[0]);
    buffer.upload(host.data());
    return buffer;
  };
  std::vector<float> one_tap(channels * channels * 9);
  for (std::size_t k = 0; k < channels; ++k) one_tap[(k * 9 + 2) * channels + k] = 1.0f;
  const GuardedBuffer activation =
      on_device(encode(values(g.activation_elements(), 0.0f), DType::bf16));
  const GuardedBuffer filter = on_device(encode(one_tap, DType::bf16));
  // What lies behind the last channel is nobody's.
  const auto before_nans = [&](std::vector<float> factors) {
    factors.resize(factors.size() + 64, std::numeric_limits<float>::quiet_NaN());
    return on_device(factors);
  };
  const GuardedBuffer scale = before_nans(values(g.batch * g.in_channels, 1.0f));
  const GuardedBuffer shift = before_nans(values(g.batch * g.in_channels, 0.5f));
  const GuardedBuffer inverse_rms =
      on_device(values(g.activation_elements() / g.in_channels, 2.0f));
  const Plan plan = convoy::plan(std::get<Conv2dProblemShape>(problem_of(g)),
                                 {.prologue = prologue, .device = Device::cuda, .kernel = kernel});
  GuardedBuffer output(static_cast<std::size_t>(g.output_elements()) * 2);
  GuardedBuffer workspace(plan.workspace_bytes());
  const bool rms = prologue.norm == PrologueNorm::rms;
  plan.run(
      {.output = output.data(),
       .activation = ConstTensorView(activation.data()),
       .filter = FilterRef(filter.data()),
       .prologue = {.norm = prologue.norm,
                    .activation = prologue.activation,
                    .scale = static_cast<const float*>(scale.data()),
                    .shift = rms ? nullptr : static_cast<const float*>(shift.data()),
                    .inverse_rms = rms ? static_cast<const float*>(inverse_rms.data()) : nullptr},
       .workspace = plan.workspace_bytes() > 0 ? workspace.data() : nullptr});
  return output.download();
}

// Rounded once, as a norm of its own would store it; zeros around the image behind the norm.
TEST_F(PrologueInPlace, HasTheBitsOfANormInFront) {
  std::vector<Activation> activations{Activation::none, Activation::relu, Activation::silu};
  if (has_gelu()) {
    activations.insert(activations.end(), {Activation::gelu, Activation::gelu_tanh});
  }
  ConvGeometry g = shape_2d(2, 11, 12, 24, 24, 3, 1);
  for (const PadMode mode : {PadMode::zero, PadMode::replicate}) {
    g.pad_mode[1] = g.pad_mode[2] = mode;
    for (const PrologueNorm norm : {PrologueNorm::scale_shift, PrologueNorm::rms}) {
      for (const Activation activation : activations) {
        const PrologueKind prologue{.norm = norm, .activation = activation};
        const std::string tile = normalised();
        SCOPED_TRACE(text(tile, " ", to_string(prologue), ", padding ", to_string(mode)));
        const std::vector<unsigned char> bits = normalised_pixels(g, prologue, tile);
        EXPECT_EQ(bits, normalised_pixels(g, prologue, kCopy));
        const std::vector<float> pixels = decode(bits, DType::bf16);
        const auto in_first_row = static_cast<std::ptrdiff_t>(g.out[2] * g.out_channels);
        const auto zeros = std::count(pixels.begin(), pixels.begin() + in_first_row, 0.0f);
        if (mode == PadMode::zero) {
          EXPECT_EQ(zeros, in_first_row);
        } else {
          EXPECT_LT(zeros, in_first_row * 3 / 4);
        }
      }
    }
  }
}

TEST_F(PrologueInPlace, RefusesWithAReason) {
  const auto refusal = [](const ConvGeometry& g, const std::string& kernel, PrologueNorm norm,
                          Activation activation) {
    const ConvCase c = with_prologue(with_kernel(g, kernel), norm, activation);
    for (const Candidate& line : candidates_of(c)) {
      if (line.kernel == kernel) return line.reason;
    }
    return std::string("no such kernel");
  };
  const ConvGeometry g = shape_2d(1, 11, 13, 64, 64, 3, 1);
  EXPECT_EQ(refusal(g, normalised(), PrologueNorm::scale_shift, Activation::silu), "");
  EXPECT_EQ(
      refusal(g, normalised(), PrologueNorm::scale_shift, Activation::gelu),
      has_gelu() ? "" : "prologue.activation = gelu; legal: none, relu, silu (in shared memory)");
  EXPECT_EQ(refusal(g, normalised(), PrologueNorm::none, Activation::none),
            "no prologue; legal: a norm in front (patches are normalised)");
  EXPECT_EQ(refusal(g, normalised(), PrologueNorm::rms, Activation::silu),
            "in_width = 13 with a prologue of norm rms; legal: a multiple of 4 (TMA needs rows of "
            "16 bytes); nearest: 16");
}

TEST_F(PrologueOnGpu, OthersRefuse) {
  ConvCase c = with_prologue(with_kernel(shape_2d(1, 6, 7, 32, 8, 3, 1), ""), PrologueNorm::rms);
  for (const Candidate& line : candidates_of(c)) {
    if (line.kernel == "general") {
      EXPECT_EQ(line.reason, "prologue = rms+relu; legal: none");
    }
  }
  c.options.prologue = {};
  for (const Candidate& line : candidates_of(c)) {
    if (line.kernel == kCopy) {
      EXPECT_NE(line.reason.find("no prologue"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace convoy::test
