// SPDX-License-Identifier: Apache-2.0
//
// The kernels of mma.sync (src/kernels/mma), each instance on shapes with a reason.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "convoy/info.hpp"
#include "kernel_case.hpp"
#include "support/guarded_buffer.hpp"
#include "support/mma_shapes.hpp"

namespace convoy::test {
namespace {

class Mma : public ::testing::Test {
 protected:
  void SetUp() override {
    if (compute_capability() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

/// Instances of a type whose name has `part`; those that the device has the memory for, since a
/// plan of another is refused.
std::vector<std::string> instances_of(const std::string& type, const std::string& part = "_s") {
  std::vector<std::string> names;
  for (const KernelInfo& kernel : kernels()) {
    const std::string& name = kernel.name;
    if (name.starts_with("mma_fprop_") && name.ends_with("_" + type) &&
        name.find(part) != std::string::npos) {
      names.push_back(name);
    }
  }
  EXPECT_FALSE(names.empty()) << type << " " << part;
  return names;
}

/// CONVOY_TEST_SHARE = "i/n": only every n-th case of an instance, from the i-th on. Runs on
/// several GPUs share the cases so.
bool in_share() {
  static const char* const text = std::getenv("CONVOY_TEST_SHARE");
  static unsigned number = 0;
  unsigned share = 0, of = 1;
  if (text != nullptr) {
    EXPECT_EQ(std::sscanf(text, "%u/%u", &share, &of), 2) << text;
  }
  return number++ % of == share;
}

bool takes(const ConvCase& test) {
  for (const Candidate& candidate : candidates_of(test)) {
    if (candidate.kernel == test.options.kernel) return candidate.reason.empty();
  }
  return false;
}

/// On every instance that takes it, and on `at_least` of them.
void expect_right_everywhere(ConvCase test, const std::string& type, int at_least = 1) {
  test.options.allow_tf32 = type == "fp32";
  int taken = 0;
  for (const std::string& name : instances_of(type)) {
    test.options.kernel = name;
    if (!takes(test)) continue;
    ++taken;
    if (in_share()) expect_right(test);
  }
  EXPECT_GE(taken, at_least) << describe(test);
}
void expect_right_everywhere(const ConvGeometry& g, DType dtype = DType::bf16, int at_least = 1) {
  expect_right_everywhere(with_kernel(g, "", dtype), to_string(dtype), at_least);
}
/// By the instances that split fp32 operands: integers, and reals, whose bound is that of fp32.
void expect_right_split(ConvCase test, int at_least = 4) {
  test.options.dtype = DType::fp32;
  for (const bool exact : {true, false}) {
    test.exact = exact;
    expect_right_everywhere(test, "tf32x3", at_least);
  }
}
void expect_right_split(const ConvGeometry& g) {
  expect_right_split(with_kernel(g, "", DType::fp32));
}

TEST_F(Mma, ExtentsThatFillNoTile) {
  expect_right_everywhere(shape_2d(1, 20, 23, 64, 72, 3, 1));     // Ragged pixels and filters.
  expect_right_everywhere(shape_2d(2, 9, 14, 8, 40, 3, 1));       // A step of eight taps, and one.
  expect_right_everywhere(shape_2d(1, 7, 9, 24, 33, 3, 1));       // Filters by the element.
  expect_right_everywhere(shape_2d(1, 17, 19, 200, 96, 1, 0));    // 1x1; the last step half full.
  expect_right_everywhere(shape_2d(1, 1, 1, 16, 8, 1, 0));        // One pixel, less than a step.
  expect_right_everywhere(shape_2d(1, 31, 33, 40, 64, 5, 2, 3));  // Stride; 25 taps.
  expect_right_everywhere(shape_2d(1, 20, 23, 64, 72, 3, 1), DType::fp16);
  expect_right_everywhere(shape_2d(1, 20, 23, 36, 72, 3, 1), DType::fp32);  // As TF32.
  expect_right_everywhere(shape_2d(1, 12, 12, 4, 20, 3, 1), DType::fp32);
}

/// More tiles than run at once, of few steps each, and ragged: blocks take one after the other.
TEST_F(Mma, TilesByTurns) {
  cudaDeviceProp device{};
  ASSERT_EQ(cudaGetDeviceProperties(&device, 0), cudaSuccess);
  const std::int64_t rows = device.multiProcessorCount * 8 + 1;  // Tiles of 256x32, 2 at once.
  int taken = 0;
  for (const ConvGeometry& g : {shape_2d(1, rows, 69, 24, 40, 1, 0),    // As a matrix,
                                shape_2d(1, rows, 69, 8, 40, 3, 1)}) {  // and walked.
    for (const char* tile : {"128x128_s3", "128x96_s3", "128x64_s3", "256x32_s3"}) {
      const ConvCase test = with_kernel(g, std::string("mma_fprop_") + tile + "_bf16");
      if (!takes(test)) continue;  // For want of shared memory.
      ++taken;
      expect_right(test);
    }
  }
  EXPECT_GE(taken, 6);
}

/// Wide tiles of whole 128 bytes of channels: their taps come before the next 128 bytes.
TEST_F(Mma, TapsFirst) {
  int taken = 0;
  for (const ConvGeometry& g :
       {shape_2d(2, 9, 18, 192, 136, 3, 1),    // Of more images and filters than one tile,
        shape_2d(1, 12, 11, 128, 264, 2, 0),   // of 4 taps,
        shape_2d(1, 3, 4, 1024, 24, 3, 1),     // of few tiles and a long reduction: in parts,
        shape_3d(1, 3, 1, 8, 16, 128, 40),     // with cached frames, tiles within frames,
        shape_2d(1, 10, 13, 96, 72, 3, 1)}) {  // and, not of whole 128 bytes, as they lie.
    for (const DType dtype : {DType::bf16, DType::fp16}) {
      const ConvCase test =
          with_kernel(g, std::string("mma_fprop_128x256_s3_") + to_string(dtype), dtype);
      if (!takes(test)) continue;  // For want of shared memory.
      ++taken;
      expect_right(test);
    }
  }
  cudaDeviceProp device{};
  ASSERT_EQ(cudaGetDeviceProperties(&device, 0), cudaSuccess);
  const bool spared =
      is_spared(with_kernel(shape_2d(1, 3, 4, 64, 8, 3, 1), "mma_fprop_128x256_s3_bf16"));
  EXPECT_EQ(taken > 0, device.sharedMemPerBlockOptin >= 150 * 1024 && !spared);
}

TEST_F(Mma, CachedFramesAndCausalPadding) {
  expect_right_everywhere(shape_3d(2, 3, 0, 10, 11, 32, 48));
  expect_right_everywhere(shape_3d(0, 2, 2, 10, 11, 32, 48));  // Taps without a frame left out.
  expect_right_everywhere(shape_3d(1, 3, 1, 9, 6, 64, 24), DType::fp16);
}

TEST_F(Mma, TilesWithinFrames) {
  Conv3dProblemShape shape = test::causal(8, 16);
  expect_right_everywhere(geometry_of(shape));
  shape = test::causal(15, 17);  // The last tile of each frame is ragged.
  expect_right_everywhere(geometry_of(shape));
  shape.cached_frames = 1;
  shape.pad_begin[0] = 1;
  shape.pad_mode[0] = PadMode::replicate;  // In front of the cache.
  expect_right_everywhere(geometry_of(shape));
  shape = test::causal(8, 16);  // More frames than a pixel has bits for.
  shape.in_depth = 5;
  shape.cached_frames = 0;
  shape.filter[0] = 6;
  shape.pad_begin[0] = 4;
  shape.stride[0] = 2;
  expect_right_everywhere(geometry_of(shape), DType::fp16);
}

TEST_F(Mma, LargeFilters) {
  Conv2dProblemShape shape{.batch = 2,
                           .in_height = 9,
                           .in_width = 14,
                           .in_channels = 8,
                           .out_channels = 40,
                           .filter_h = 13,
                           .filter_w = 3,
                           .pad_h = 6,
                           .pad_w = 2,
                           .dilation_w = 2};
  expect_right_everywhere(geometry_of(shape));
  shape.filter_h = 1;
  shape.pad_h = 0;
  for (const std::int64_t columns : {13, 14}) {  // As many as a pixel has bits for, and one more.
    shape.filter_w = columns;
    shape.pad_w = columns - 1;
    expect_right_everywhere(geometry_of(shape));
  }
}

TEST_F(Mma, PaddingModesDilationAndGroups) {
  Conv3dProblemShape shape{.batch = 2,
                           .in_depth = 3,
                           .in_height = 9,
                           .in_width = 11,
                           .in_channels = 48,
                           .out_channels = 72,
                           .filter = {2, 3, 3},
                           .pad_begin = {1, 2, 1},
                           .pad_end = {0, 1, 3},
                           .dilation = {1, 2, 1}};
  for (const PadMode mode : {PadMode::replicate, PadMode::reflect}) {
    shape.pad_mode = {PadMode::replicate, mode, mode};
    expect_right_everywhere(geometry_of(shape));
  }
  shape.groups = 3;
  expect_right_everywhere(geometry_of(shape));
  shape.groups = 6;  // 8 channels and 12 filters: no vectors in the output.
  shape.stride = {1, 2, 3};
  expect_right_everywhere(geometry_of(shape), DType::fp16);
}

TEST_F(Mma, UpsamplingFoldedAndGathered) {
  Conv2dProblemShape shape{.batch = 2,
                           .in_height = 7,
                           .in_width = 9,
                           .in_channels = 40,
                           .out_channels = 24,
                           .filter_h = 3,
                           .filter_w = 3,
                           .pad_h = 1,
                           .pad_w = 1,
                           .upsample = 2};
  for (const PadMode mode : {PadMode::zero, PadMode::replicate, PadMode::reflect}) {
    shape.pad_mode = mode;
    ConvCase test = with_kernel(geometry_of(shape), "");
    expect_right_everywhere(test, "bf16");
    test.options.packed_filter = true;
    for (const UpsampleFolding folding : {UpsampleFolding::exact, UpsampleFolding::fast}) {
      test.options.upsample_folding = folding;
      expect_right_everywhere(test, "bf16");
    }
    // What sums of taps are off by when rounded: nothing for integers.
    test.options.upsample_folding = UpsampleFolding::exact;
    test.exact = false;
    expect_right_everywhere(test, "bf16");
  }
  shape.filter_h = 5;  // Does not fold.
  shape.pad_h = 2;
  ConvCase test = with_kernel(geometry_of(shape), "");
  test.options.packed_filter = true;
  expect_right_everywhere(test, "bf16");
}

TEST_F(Mma, EpiloguesOfEveryTile) {
  for (const std::string& name : instances_of("bf16")) {
    const ConvCase test = with_kernel(shape_2d(1, 9, 13, 32, 88, 3, 1), name);
    if (takes(test) && in_share()) expect_right_with_every_epilogue(test);
  }
}

/// Filters that are no multiple of 8: rows of the output begin at any word, or at any element.
TEST_F(Mma, RowsThatBeginAnywhere) {
  ConvCase test = with_kernel(shape_2d(1, 9, 13, 32, 90, 3, 1), "");
  test.bias = test.residual = test.residual_in_place = true;
  test.epilogue.activation = Activation::silu;
  expect_right_everywhere(test, "bf16");
  test.problem = problem_of(shape_2d(1, 9, 13, 32, 87, 3, 1));
  test.epilogue.order = ResidualOrder::before_activation;
  expect_right_everywhere(test, "bf16");
  test.residual = test.residual_in_place = false;
  test.epilogue.activation = Activation::relu;
  expect_right_everywhere(test, "bf16");
  // Even rows, whose groups begin at odd elements.
  ConvGeometry groups = shape_2d(1, 9, 13, 32, 86, 3, 1);
  groups.groups = 2;
  test.problem = problem_of(groups);
  test.residual = true;
  test.options.dtype = DType::fp16;
  expect_right_everywhere(test, "fp16");
}

TEST_F(Mma, SplitsOfALongReduction) {
  // Few tiles of many steps: the model splits them. With an epilogue behind the sum.
  ConvCase test = with_kernel(shape_2d(1, 6, 7, 512, 40, 3, 1), "");
  test.bias = test.residual = true;
  test.epilogue.activation = Activation::silu;
  test.runs = 2;
  expect_right_everywhere(test, "bf16");
  test = with_kernel(shape_2d(1, 5, 5, 256, 19, 5, 2), "", DType::fp16);
  test.bias = true;
  expect_right_everywhere(test, "fp16");
}

TEST_F(Mma, ChannelsThatAreNoWholeCells) {
  const ConvGeometry by_8 = shape_2d(1, 11, 13, 12, 24, 3, 1);  // Copies of 8 bytes,
  const bool spared = is_spared(with_kernel(by_8, "mma_fprop_128x64_by8_s3_bf16"));
  expect_right_everywhere(by_8, DType::bf16, spared ? 3 : 4);
  expect_right_everywhere(shape_2d(2, 9, 17, 100, 144, 1, 0), DType::fp16, 2);
  expect_right_everywhere(shape_2d(1, 11, 13, 6, 24, 3, 1), DType::fp32, 2);
  expect_right_everywhere(shape_2d(1, 11, 13, 6, 24, 3, 1), DType::bf16, 2);  // of 4,
  expect_right_everywhere(shape_2d(1, 11, 13, 37, 24, 3, 1));                 // of 2.
  expect_right_everywhere(shape_2d(1, 5, 5, 1, 3, 5, 2));
  expect_right_everywhere(shape_2d(1, 5, 5, 1, 3, 5, 2), DType::fp16, 0);  // Not in every build.
  expect_right_everywhere(shape_2d(1, 11, 13, 7, 24, 3, 1), DType::fp32);
}

TEST_F(Mma, SplitOperands) {
  expect_right_split(shape_2d(1, 20, 23, 36, 72, 3, 1));
  expect_right_split(shape_2d(2, 7, 9, 20, 33, 3, 1, 2));
  expect_right_split(shape_3d(2, 3, 0, 6, 7, 16, 40));
  ConvCase test = with_kernel(shape_2d(1, 6, 7, 128, 24, 3, 1), "", DType::fp32);
  test.runs = 2;  // Few tiles of many steps: splits of the reduction.
  test.bias = test.residual = true;
  test.epilogue.activation = Activation::silu;
  expect_right_split(test);
  Conv3dProblemShape shape{.batch = 2,
                           .in_depth = 3,
                           .in_height = 6,
                           .in_width = 7,
                           .in_channels = 24,
                           .out_channels = 30,
                           .filter = {2, 3, 3},
                           .pad_begin = {1, 2, 1},
                           .pad_end = {0, 1, 3},
                           .dilation = {1, 2, 1},
                           .groups = 2};
  shape.pad_mode = {PadMode::replicate, PadMode::reflect, PadMode::replicate};
  expect_right_split(geometry_of(shape));
  test = with_kernel(shape_2d(1, 11, 13, 7, 24, 3, 1), "", DType::fp32);
  expect_right_split(test, 1);  // Copies of 4 bytes.
}

TEST_F(Mma, RefusesWithReasons) {
  const auto reason = [](const ConvCase& test) {
    for (const Candidate& candidate : candidates_of(test)) {
      if (candidate.kernel == test.options.kernel) return candidate.reason;
    }
    return std::string("not a kernel");
  };
  const std::string name = instances_of("bf16", "x64_s").front();
  EXPECT_NE(reason(with_kernel(shape_2d(1, 8, 8, 12, 8, 3, 1), name))
                .find("in_channels / groups = 12; legal: a multiple of 8 (copies of 16 bytes); "
                      "nearest: 16"),
            std::string::npos);
  EXPECT_NE(
      reason(with_kernel(shape_2d(1, 8, 8, 16, 8, 3, 1), name, DType::fp16)).find("legal: bf16"),
      std::string::npos);
  EXPECT_NE(reason(with_kernel(shape_2d(1, 8, 8, 12, 8, 1, 0), instances_of("tf32x3").front(),
                               DType::fp32))
                .find("taps = 12; legal with split operands: at least 16"),
            std::string::npos);
  const std::string tf32 = instances_of("fp32").front();
  EXPECT_NE(
      reason(with_kernel(shape_2d(1, 8, 8, 16, 8, 3, 1), tf32, DType::fp32)).find("allow_tf32"),
      std::string::npos);
  // 64x32 has no kernel that lists its taps.
  ConvGeometry padded = shape_2d(1, 8, 8, 16, 8, 3, 1);
  const std::string walked = instances_of("bf16", "64x32_s4").front();
  if (is_spared(with_kernel(padded, walked))) return;  // Nor any other.
  EXPECT_EQ(reason(with_kernel(padded, walked)), "");
  padded.pad_mode = {PadMode::zero, PadMode::replicate, PadMode::replicate};
  EXPECT_NE(reason(with_kernel(padded, walked)).find("legal: zeros around rows and columns"),
            std::string::npos);
}

}  // namespace
}  // namespace convoy::test
