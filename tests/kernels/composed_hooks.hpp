// SPDX-License-Identifier: Apache-2.0
//
// Q-slicing and im2col + matmul with a functor on 5-D coordinates, for whichever architecture the
// including file binds: it defines `Arch` with the two calls on its templates, and CONVOY_SUITE,
// the name of the test suite.
#pragma once

#include <gtest/gtest.h>

#include "convoy/device/composed.cuh"
#include "support/integer_tensors.hpp"

namespace convoy {
namespace {

using test::GuardedBuffer;
using test::IntegerTensors;
using bf16 = __nv_bfloat16;

// 2·conv + a value that names each coordinate.
constexpr int coordinate_term(std::int64_t n, std::int64_t z, std::int64_t p, std::int64_t q,
                              std::int64_t k) {
  return static_cast<int>((n * 101 + z * 37 + p * 11 + q * 5 + k * 3) % 64);
}
struct CoordinateOp5d {
  template <int kWidth>
  __device__ void operator()(const OutputIndex& at, int k, float (&values)[kWidth]) const {
    for (int i = 0; i < kWidth; ++i) {
      values[i] =
          2.0f * values[i] +
          static_cast<float>((at.n * 101 + at.z * 37 + at.p * 11 + at.q * 5 + (k + i) * 3) % 64);
    }
  }
};

// Device copies of a problem, the output poisoned.
struct OnDevice {
  explicit OnDevice(const IntegerTensors& problem, std::size_t workspace_bytes)
      : activation(problem.activation.size() * 2),
        cache(problem.cache.size() * 2),
        filter(problem.filter.size() * 2),
        output(problem.source.size() * 2),
        workspace(workspace_bytes) {
    activation.upload(test::encode(problem.activation, DType::bf16).data());
    cache.upload(test::encode(problem.cache, DType::bf16).data());
    filter.upload(test::encode(problem.filter, DType::bf16).data());
    output.fill_with_nan();
    workspace.fill_with_nan();
  }
  static const bf16* read(const GuardedBuffer& buffer) {
    return static_cast<const bf16*>(buffer.data());
  }
  // The filter [K, T, R, S, C], or as [T, R, S, C, K].
  void put_filter(const IntegerTensors& problem, FilterLayout layout) {
    auto values = problem.filter;
    const auto k = static_cast<std::size_t>(problem.geometry.out_channels);
    const std::size_t inner = values.size() / k;
    for (std::size_t i = 0; i < values.size() && layout == FilterLayout::trscf; ++i) {
      values[i % inner * k + i / inner] = problem.filter[i];
    }
    filter.upload(test::encode(values, DType::bf16).data());
  }
  bf16* out() { return static_cast<bf16*>(output.data()); }
  GuardedBuffer activation, cache, filter, output, workspace;
};

void expect_coordinates(const IntegerTensors& problem, OnDevice& device) {
  CONVOY_ASSERT_CUDA(cudaDeviceSynchronize());
  const ConvGeometry& g = problem.geometry;
  std::vector<double> expected = problem.convolution();
  std::size_t i = 0;
  for (std::int64_t n = 0; n < g.batch; ++n)
    for (std::int64_t z = 0; z < g.out[0]; ++z)
      for (std::int64_t p = 0; p < g.out[1]; ++p)
        for (std::int64_t q = 0; q < g.out[2]; ++q)
          for (std::int64_t k = 0; k < g.out_channels; ++k, ++i)
            expected[i] = round_to(DType::bf16, static_cast<float>(2.0 * expected[i] +
                                                                   coordinate_term(n, z, p, q, k)));
  EXPECT_TRUE(device.output.guards_intact()) << "around output";
  EXPECT_TRUE(device.workspace.guards_intact()) << "around workspace";
  EXPECT_EQ(test::difference(device.output.download(), expected, DType::bf16, g.out_channels), "");
}

Conv3dProblemShape volume(std::int64_t n, std::array<std::int64_t, 3> in, std::int64_t c,
                          std::int64_t k, std::array<std::int64_t, 3> filter,
                          std::array<std::int64_t, 3> pad) {
  Conv3dProblemShape p;
  p.batch = n;
  p.in_depth = in[0];
  p.in_height = in[1];
  p.in_width = in[2];
  p.in_channels = c;
  p.out_channels = k;
  p.filter = filter;
  p.pad_begin = p.pad_end = pad;
  return p;
}

class CONVOY_SUITE : public testing::Test {
 protected:
  void SetUp() override {
    if (test::compute_capability() / 10 != Arch::kMajor) {
      GTEST_SKIP() << "needs compute capability " << Arch::kMajor << ".x, real or virtual";
    }
  }
};

TEST_F(CONVOY_SUITE, QsliceEpilogueSeesFiveCoordinates) {
  for (const Conv3dProblemShape& shape : {volume(2, {4, 7, 6}, 16, 24, {3, 3, 3}, {0, 1, 1}),
                                          volume(1, {3, 5, 5}, 8, 3, {2, 1, 3}, {0, 0, 2})}) {
    for (const FilterLayout layout : {FilterLayout::ktrsc, FilterLayout::trscf}) {
      const IntegerTensors problem(geometry_of(shape));
      OnDevice device(problem, qslice_workspace_bytes(shape, DType::bf16, layout));
      device.put_filter(problem, layout);
      const QsliceDecision decision = Arch::qslice(device, shape, CoordinateOp5d{}, layout);
      EXPECT_TRUE(decision.sliced) << decision.reason;
      expect_coordinates(problem, device);
    }
  }
}

TEST_F(CONVOY_SUITE, QslicesRefuseOtherFilterLayouts) {
  const Conv3dProblemShape shape = volume(1, {3, 5, 5}, 8, 8, {2, 1, 3}, {0, 0, 1});
  const IntegerTensors problem(geometry_of(shape));
  OnDevice device(problem, qslice_workspace_bytes(shape, DType::bf16));
  try {
    Arch::qslice(device, shape, CoordinateOp5d{}, FilterLayout::kctrs);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument);
    EXPECT_STREQ(error.what(), "filter layout = KCTRS; legal: KTRSC, TRSCF (Q-slices)");
  }
}

TEST_F(CONVOY_SUITE, WhatQslicingDeclinesFallsThroughWithItsReason) {
  Conv3dProblemShape shape = volume(2, {3, 6, 5}, 12, 24, {3, 3, 3}, {1, 1, 1});
  shape.stride = {1, 2, 1};
  shape.cached_frames = 1;
  const IntegerTensors problem(geometry_of(shape));
  for (const FilterLayout layout : {FilterLayout::ktrsc, FilterLayout::trscf}) {
    OnDevice device(problem, qslice_workspace_bytes(shape, DType::bf16, layout));
    device.put_filter(problem, layout);
    const QsliceDecision decision = Arch::qslice(device, shape, CoordinateOp5d{}, layout);
    EXPECT_FALSE(decision.sliced);
    EXPECT_EQ(decision.reason, "in_channels = 12; legal: a multiple of 8; nearest: 16");
    EXPECT_EQ(qslice_decision(shape, DType::bf16).reason, decision.reason);
    expect_coordinates(problem, device);
  }
}

TEST_F(CONVOY_SUITE, Im2colMatmulEpilogueSeesFiveCoordinatesInEveryChunk) {
  // 3 chunks of 1,024 rows and less; T·R·S·C = 45 is padded to 48.
  Conv2dProblemShape shape{.batch = 2,
                           .in_height = 33,
                           .in_width = 39,
                           .in_channels = 5,
                           .out_channels = 16,
                           .filter_h = 3,
                           .filter_w = 3,
                           .pad_h = 1,
                           .pad_w = 1};
  shape.pad_mode = PadMode::reflect;
  const IntegerTensors problem(geometry_of(shape));
  ASSERT_GT(problem.geometry.gemm_m(), 2 * composed::kIm2colLeastRows);
  OnDevice device(problem, im2col_matmul_workspace_bytes(shape, 1));
  Arch::im2col_matmul(device, shape, CoordinateOp5d{}, 1);
  expect_coordinates(problem, device);
}

}  // namespace
}  // namespace convoy
