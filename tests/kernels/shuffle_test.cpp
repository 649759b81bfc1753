// SPDX-License-Identifier: Apache-2.0
//
// Shuffled outputs on a GPU, real or virtual: every factor, order, dropped frame and residual, by
// the kernels that store them and by the copy behind the others.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernel_case.hpp"
#include "support/guarded_buffer.hpp"

namespace convoy::test {
namespace {

struct KernelUnderTest {
  std::string name;
  bool stores = false;  ///< Writes the shuffled output itself.
};

/// Of this GPU: one for each way to walk the output that the kernel has, and one that has none.
std::vector<KernelUnderTest> kernels() {
  switch (compute_capability()) {
    case 90:
      return {{"sm90_fprop_128x128_pingpong_halo_bf16", true},
              {"sm90_fprop_128x128_pingpong_bf16", true},
              {"sm90_fprop_96x128_swapped_bf16", false}};
    case 100:
    case 103:
      return {{"sm100_fprop_256x128x64_2sm_c2x1_halo_bf16", true},
              {"sm100_fprop_128x128x64_1sm_c1x1_bf16", true},
              {"general", false}};
    default:
      return {{"general", false}, {"", false}};
  }
}

class ShuffleOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (compute_capability() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

OutputShuffle shuffle_of(std::array<std::int64_t, 3> factors, ShuffleOrder order,
                         std::int64_t dropped = 0) {
  return {.factors = factors, .order = order, .dropped_frames = dropped};
}

constexpr auto kOuter = ShuffleOrder::channels_outer;
constexpr auto kInner = ShuffleOrder::channels_inner;

/// On each kernel that takes it; how many do.
int expect_right_on_all(ConvCase c) {
  int taken = 0;
  for (const KernelUnderTest& kernel : kernels()) {
    c.options.kernel = kernel.name;
    const std::vector<Candidate> all = candidates_of(c);
    const bool takes =
        std::any_of(all.begin(), all.end(), [](const Candidate& line) { return line.chosen; });
    if (!takes) continue;
    ++taken;
    expect_right(c);
  }
  return taken;
}

TEST_F(ShuffleOnGpu, PixelsOfTwoDimensions) {
  for (const ShuffleOrder order : {kOuter, kInner}) {
    for (const bool packed : {false, true}) {
      ConvCase c = with_kernel(shape_2d(2, 9, 11, 24, 96, 3, 1), "");
      c.options.shuffle = shuffle_of({1, 2, 2}, order);
      c.options.packed_filter = packed;
      c.bias = true;
      c.residual = packed;
      EXPECT_GE(expect_right_on_all(c), 2);
    }
  }
  // Factors that differ; many tiles; the residual in place and inside the activation.
  ConvCase c = with_kernel(shape_2d(1, 19, 37, 16, 8 * 6, 3, 1), "");
  c.options.shuffle = shuffle_of({1, 3, 2}, kOuter);
  c.residual = c.residual_in_place = true;
  c.epilogue.activation = Activation::relu;
  c.epilogue.order = ResidualOrder::before_activation;
  EXPECT_GE(expect_right_on_all(c), 2);
  // Rows that stay together; 1x1 filters.
  c = with_kernel(shape_2d(2, 5, 7, 32, 64, 1, 0), "");
  c.options.shuffle = shuffle_of({1, 1, 2}, kOuter);
  EXPECT_GE(expect_right_on_all(c), 2);
  c.options.shuffle = shuffle_of({1, 2, 1}, kInner);
  EXPECT_GE(expect_right_on_all(c), 2);
}

TEST_F(ShuffleOnGpu, FramesAndPixels) {
  for (const auto& factors : {std::array<std::int64_t, 3>{2, 1, 1}, {2, 2, 2}, {1, 2, 2}}) {
    for (std::int64_t dropped = 0; dropped < factors[0]; ++dropped) {
      for (const ShuffleOrder order : {kOuter, kInner}) {
        const std::int64_t cached = order == kOuter ? 0 : 2;
        ConvGeometry g = shape_3d(cached, 2, 2 - cached, 3, 9, 16, 64);
        g.batch = dropped == 0 ? 1 : 2;
        if (order == kOuter) g.pad_mode[0] = PadMode::replicate;
        ConvCase c = with_kernel(g, "");
        c.options.shuffle = shuffle_of(factors, order, dropped);
        c.bias = true;
        c.next_cache = cached == 2;
        EXPECT_GE(expect_right_on_all(c), 1) << describe(c);
      }
    }
  }
}

TEST_F(ShuffleOnGpu, TheFirstFrameIsDroppedHoweverItIsPadded) {
  // Fewer frames of padding and of cache than the first frame's stride; one frame alone; no frames
  // of padding.
  for (const std::int64_t frames : {1, 4}) {
    for (const std::int64_t front : {0, 1, 2}) {
      for (const std::int64_t stride : {1, 2}) {
        if (1 + frames + front < 3) continue;
        ConvGeometry g = shape_3d(1, frames, front, 4, 8, 16, 32);
        g.stride[0] = stride;
        ConvCase c = with_kernel(g, "");
        c.options.shuffle = shuffle_of({2, 1, 1}, kInner, 1);
        EXPECT_GE(expect_right_on_all(c), 1) << describe(c);
      }
    }
  }
}

TEST_F(ShuffleOnGpu, ResidualsOfRepeatedChannels) {
  for (const ShuffleResidual residual : {ShuffleResidual::interleaved, ShuffleResidual::tiled}) {
    for (const std::int64_t channels : {16, 32}) {
      for (const ShuffleOrder order : {kOuter, kInner}) {
        ConvGeometry g = shape_3d(0, 2, 2, 2, 9, channels, 64);
        ConvCase c = with_kernel(g, "");
        c.options.shuffle = shuffle_of({2, 2, 2}, order, order == kOuter ? 1 : 0);
        c.options.shuffle.residual = residual;
        c.options.shuffle.residual_channels = channels;
        c.bias = c.residual = true;
        c.epilogue.beta = channels == 16 ? 2.0f : order == kInner ? 1.0f : 0.0f;
        EXPECT_GE(expect_right_on_all(c), 2);
      }
    }
  }
}

TEST_F(ShuffleOnGpu, AnyChannelsAndTypes) {
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    for (const ShuffleOrder order : {kOuter, kInner}) {
      ConvCase c = with_kernel(shape_2d(2, 5, 6, 5, 4 * 3, 3, 1), "general", dtype);
      c.options.shuffle = shuffle_of({1, 2, 2}, order);
      c.bias = c.residual = true;
      expect_right(c);
      // One channel, whose filters are in order already.
      c = with_kernel(shape_2d(1, 5, 6, 8, 4, 3, 1), "general", dtype);
      c.options.shuffle = shuffle_of({1, 2, 2}, order);
      expect_right(c);
    }
  }
  // A pixel of sixteen channels a thread; groups.
  ConvGeometry g = shape_2d(2, 5, 6, 16, 128, 3, 1);
  g.groups = 4;
  ConvCase c = with_kernel(g, "general");
  c.options.shuffle = shuffle_of({1, 2, 2}, kOuter);
  c.residual = true;
  expect_right(c);
}

TEST_F(ShuffleOnGpu, KernelsThatStoreItNeedNoWorkspace) {
  ConvCase c = with_kernel(shape_2d(1, 16, 16, 64, 256, 3, 1), "");
  c.options.shuffle = shuffle_of({1, 2, 2}, kInner);
  for (const KernelUnderTest& kernel : kernels()) {
    c.options.kernel = kernel.name;
    const std::size_t results = 16 * 16 * 256 * 2;
    if (kernel.stores) {
      EXPECT_EQ(plan_case(c).workspace_bytes(), 0) << kernel.name;
    } else {
      EXPECT_GE(plan_case(c).workspace_bytes(), results) << kernel.name;
    }
  }
}

}  // namespace
}  // namespace convoy::test
