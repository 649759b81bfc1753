// SPDX-License-Identifier: Apache-2.0
//
// Prologues on a GPU, real or virtual: every kernel that takes them against exact integers, and the
// bits of a norm of its own in front.
#include <cuda_runtime_api.h>

#include "kernel_case.hpp"
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

#ifdef CONVOY_WITH_SM90

class PrologueOnHopper : public ::testing::Test {
 protected:
  void SetUp() override {
    if (compute_capability() != 90) GTEST_SKIP() << "no GPU of compute capability 9.0";
  }
};

std::string normalised(const std::string& tile, const std::string& type = "bf16") {
  return "sm90_fprop_" + tile + "_pingpong_normalised_" + type;
}

TEST_F(PrologueOnHopper, PatchesOfManyTiles) {
  // Tiles that hang over; two blocks of channels, the last one shorter; more than a round of tiles
  // a ring has stages.
  expect_right_with_every_norm(
      with_kernel(shape_2d(2, 19, 20, 72, 40, 3, 1), normalised("128x128")));
  // Fewer channels than a row of shared memory; lanes without a pixel.
  for (const std::int64_t channels : {8, 24, 48}) {
    expect_right_with_every_norm(
        with_kernel(shape_2d(1, 11, 12, channels, 16, 3, 1), normalised("128x128")));
  }
  expect_right_with_every_norm(
      with_kernel(shape_2d(1, 9, 8, 32, 16, 3, 1), normalised("128x128", "fp16"), DType::fp16));
}

TEST_F(PrologueOnHopper, PatchesThatAreCompleted) {
  for (const PadMode mode : {PadMode::replicate, PadMode::reflect}) {
    ConvGeometry g = shape_2d(2, 19, 20, 72, 24, 3, 1);
    g.pad_mode[1] = g.pad_mode[2] = mode;
    expect_right_with_every_norm(with_kernel(g, normalised("128x128")));
    g.pad_mode[1] = PadMode::zero;
    expect_right_with_every_norm(with_kernel(g, normalised("128x128")));
  }
}

TEST_F(PrologueOnHopper, FramesAndTheCache) {
  for (const PadMode mode : {PadMode::zero, PadMode::replicate}) {
    for (const std::int64_t cached : {0, 1, 2}) {
      ConvGeometry g = shape_3d(cached, 3, 2 - cached, 9, 12, 40, 16);
      g.batch = 2;
      g.pad_mode[0] = mode;
      ConvCase c = with_kernel(g, normalised("128x128"));
      c.next_cache = true;
      expect_right_with_every_norm(c);
    }
  }
}

TEST_F(PrologueOnHopper, Upsampling) {
  ConvGeometry g = shape_2d(2, 9, 12, 40, 16, 3, 1);
  g.upsample = 2;
  ConvCase c = with_kernel(g, normalised("128x128"));
  c.options.packed_filter = true;
  expect_right_with_every_norm(c);
}

TEST_F(PrologueOnHopper, RefusesWithAReason) {
  const auto refusal = [](const ConvGeometry& g, const std::string& kernel, PrologueNorm norm,
                          Activation activation) {
    const ConvCase c = with_prologue(with_kernel(g, kernel), norm, activation);
    for (const Candidate& line : candidates_of(c)) {
      if (line.kernel == kernel) return line.reason;
    }
    return std::string("no such kernel");
  };
  const ConvGeometry g = shape_2d(1, 11, 13, 64, 64, 3, 1);
  EXPECT_EQ(refusal(g, normalised("128x128"), PrologueNorm::scale_shift, Activation::silu), "");
  EXPECT_EQ(refusal(g, normalised("128x128"), PrologueNorm::scale_shift, Activation::gelu),
            "prologue.activation = gelu; legal: none, relu, silu (in shared memory)");
  EXPECT_EQ(refusal(g, normalised("128x128"), PrologueNorm::rms, Activation::silu),
            "in_width = 13 with a prologue of norm rms; legal: a multiple of 4 (TMA needs rows of "
            "16 bytes); nearest: 16");
}

#endif  // CONVOY_WITH_SM90

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
