// SPDX-License-Identifier: Apache-2.0
//
// Cases for one kernel, in a line each.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "support/conv_case.hpp"

namespace convoy::test {

/// Whether the case's kernel has no machine code for the GPU, whose own kernels take its place
/// (`require_other_gpu`).
inline bool is_spared(const ConvCase& test) {
  for (const Candidate& candidate : candidates_of(test)) {
    if (candidate.kernel == test.options.kernel) {
      return candidate.reason.find("CONVOY_OTHER_GPUS") != std::string::npos;
    }
  }
  return false;
}

inline ConvGeometry shape_2d(std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c,
                             std::int64_t k, std::int64_t filter, std::int64_t pad,
                             std::int64_t stride = 1) {
  Conv2dProblemShape shape{.batch = n,
                           .in_height = h,
                           .in_width = w,
                           .in_channels = c,
                           .out_channels = k,
                           .filter_h = filter,
                           .filter_w = filter,
                           .pad_h = pad,
                           .pad_w = pad,
                           .stride_h = stride,
                           .stride_w = stride};
  return geometry_of(shape);
}

inline ConvGeometry shape_3d(std::int64_t cached, std::int64_t frames, std::int64_t front,
                             std::int64_t h, std::int64_t w, std::int64_t c, std::int64_t k) {
  Conv3dProblemShape shape{.batch = 1,
                           .in_depth = frames,
                           .in_height = h,
                           .in_width = w,
                           .in_channels = c,
                           .out_channels = k,
                           .filter = {3, 3, 3},
                           .pad_begin = {front, 1, 1},
                           .pad_end = {0, 1, 1},
                           .cached_frames = cached};
  return geometry_of(shape);
}

/// A filter of `taps` frames and one pixel, with `front` frames of padding before the first.
inline ConvGeometry temporal(std::int64_t frames, std::int64_t taps, std::int64_t front,
                             std::int64_t h, std::int64_t w, std::int64_t c, std::int64_t k,
                             std::int64_t stride = 1) {
  return geometry_of(Conv3dProblemShape{.batch = 2,
                                        .in_depth = frames,
                                        .in_height = h,
                                        .in_width = w,
                                        .in_channels = c,
                                        .out_channels = k,
                                        .filter = {taps, 1, 1},
                                        .pad_begin = {front, 0, 0},
                                        .pad_end = {taps - 1 - front, 0, 0},
                                        .stride = {stride, 1, 1}});
}

inline ConvCase with_kernel(const ConvGeometry& geometry, const std::string& kernel,
                            DType dtype = DType::bf16) {
  ConvCase test;
  test.problem = problem_of(geometry);
  test.options.kernel = kernel;
  test.options.dtype = dtype;
  test.options.device = Device::cuda;
  test.filter_layout = geometry.rank == 2 ? FilterLayout::krsc : FilterLayout::ktrsc;
  test.exact = true;
  test.runs = 1;
  return test;
}

inline void expect_right(const ConvCase& test) {
  EXPECT_EQ(wrong_with(test), "") << describe(test);
}

/// With every type of output and every activation, orders and roundings in turns.
inline void expect_right_with_every_epilogue(const ConvCase& of) {
  for (const DType out : {DType::bf16, DType::fp16, DType::fp32}) {
    for (int activation = 0; activation <= static_cast<int>(Activation::clamp); ++activation) {
      ConvCase test = of;
      test.options.output_dtype = out;
      test.bias = true;
      test.residual = activation % 2 == 0;
      test.residual_in_place = activation % 4 == 0;
      test.epilogue.bias_dtype = static_cast<DType>(activation % 3);
      test.epilogue.activation = static_cast<Activation>(activation);
      test.epilogue.scale = 0.5f;
      test.epilogue.beta = 2.0f;
      test.epilogue.order =
          activation % 3 == 0 ? ResidualOrder::before_activation : ResidualOrder::after_activation;
      test.epilogue.rounding =
          activation % 5 == 0 ? EpilogueRounding::each_step : EpilogueRounding::once;
      expect_right(test);
    }
  }
}

}  // namespace convoy::test
