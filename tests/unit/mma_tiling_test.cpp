// SPDX-License-Identifier: Apache-2.0
//
// How kernels of mma.sync are bound to a problem (src/kernels/mma/host.hpp). No GPU takes part.
#include <gtest/gtest.h>

#include <string>

#include "convoy/problem.hpp"
#include "core/geometry.hpp"
#include "kernels/mma/host.hpp"
#include "support/mma_shapes.hpp"

namespace convoy {
namespace {

/// What `geometry` is to the instance that `name` begins.
mma::Tiling tiling_of(const std::string& name, const ConvGeometry& geometry, bool packed = false) {
  for (const mma::Instance& instance : mma::instances()) {
    if (mma::name_of(instance).starts_with("mma_fprop_" + name)) {
      return mma::plan_tiling(instance, geometry, packed, 1);
    }
  }
  ADD_FAILURE() << name;
  return {};
}

TEST(MmaTiling, WalksWhatItCan) {
  const auto walks = [](const ConvGeometry& g, bool packed = false) {
    return tiling_of("128x128_s3_bf16", g, packed).walks;
  };
  const auto within_frames = [](const Conv3dProblemShape& shape) {
    return tiling_of("128x128_s3_bf16", geometry_of(shape)).params.within_frames;
  };
  Conv2dProblemShape plain{.batch = 2,
                           .in_height = 24,
                           .in_width = 32,
                           .in_channels = 24,
                           .out_channels = 40,
                           .filter_h = 3,
                           .filter_w = 3,
                           .pad_h = 1,
                           .pad_w = 1};
  EXPECT_TRUE(walks(geometry_of(plain)));
  EXPECT_FALSE(tiling_of("64x64_by4_s3_bf16", geometry_of(plain)).walks);
  Conv2dProblemShape shape = plain;
  shape.pad_mode = PadMode::replicate;
  EXPECT_FALSE(walks(geometry_of(shape)));
  shape = plain;
  shape.filter_w = 13;
  EXPECT_TRUE(walks(geometry_of(shape)));
  shape.filter_w = 14;
  EXPECT_FALSE(walks(geometry_of(shape)));
  shape = plain;
  shape.upsample = 2;
  EXPECT_FALSE(walks(geometry_of(shape)));       // Gathered,
  EXPECT_TRUE(walks(geometry_of(shape), true));  // folded.

  const auto is_matrix = [](const Conv2dProblemShape& of) {
    return tiling_of("128x128_s3_bf16", geometry_of(of)).has_rows;
  };
  EXPECT_FALSE(is_matrix(plain));
  shape = plain;
  shape.filter_h = shape.filter_w = 1;
  EXPECT_FALSE(is_matrix(shape));  // Padded.
  shape.pad_h = shape.pad_w = 0;
  EXPECT_TRUE(is_matrix(shape));
  shape.stride_w = 2;
  EXPECT_FALSE(is_matrix(shape));

  const auto taps_first = [](const char* kernel, const Conv2dProblemShape& of) {
    return tiling_of(kernel, geometry_of(of)).params.taps_first;
  };
  shape = plain;
  EXPECT_FALSE(taps_first("128x256_s3_bf16", shape));
  shape.in_channels = 192;  // Whole 128 bytes.
  EXPECT_TRUE(taps_first("128x256_s3_bf16", shape));
  EXPECT_FALSE(taps_first("128x128_s3_bf16", shape));
  shape.pad_mode = PadMode::replicate;  // Not walked.
  EXPECT_FALSE(taps_first("128x256_s3_bf16", shape));
  shape.pad_mode = PadMode::zero;
  shape.filter_h = shape.filter_w = 1;
  EXPECT_FALSE(taps_first("128x256_s3_bf16", shape));

  EXPECT_TRUE(within_frames(test::causal(8, 16)));
  EXPECT_TRUE(within_frames(test::causal(15, 17)));
  EXPECT_FALSE(walks(geometry_of(test::causal(10, 11))));  // 110 of 128 pixels.
  Conv3dProblemShape volume = test::causal(10, 11);
  volume.cached_frames = 0;
  volume.pad_begin[0] = 2;
  EXPECT_TRUE(walks(geometry_of(volume)));
  EXPECT_FALSE(within_frames(volume));
  volume = test::causal(8, 16);
  volume.cached_frames = 0;
  volume.pad_begin[0] = 2;
  volume.pad_mode[0] = PadMode::replicate;
  EXPECT_TRUE(within_frames(volume));
  volume.pad_mode[1] = PadMode::reflect;
  EXPECT_FALSE(walks(geometry_of(volume)));
}

}  // namespace
}  // namespace convoy
