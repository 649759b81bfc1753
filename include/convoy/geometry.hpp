// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "convoy/export.h"
#include "convoy/problem.hpp"

namespace convoy {

/// The one form in which every kernel sees a problem: validated, 3-D (2-D is D = T = 1), axis order
/// depth, height, width. All products that follow from it are known to fit 64 bits.
struct ConvGeometry {
  int rank = 2;            ///< 2 or 3: which tensors the user holds (NHWC or NDHWC).
  std::int64_t batch = 1;  ///< N
  /// D, H, W of the new input, without cache, before upsampling.
  std::array<std::int64_t, 3> in = {1, 1, 1};
  std::int64_t cached_frames = 0;  ///< Frames of the cache, in front of the new ones.
  std::int64_t in_channels = 0;    ///< C, of all groups.
  std::int64_t out_channels = 0;   ///< K
  std::array<std::int64_t, 3> filter = {1, 1, 1};     ///< T, R, S
  std::array<std::int64_t, 3> pad_begin = {0, 0, 0};  ///< Front, top, left.
  std::array<std::int64_t, 3> pad_end = {0, 0, 0};    ///< Back, bottom, right.
  std::array<std::int64_t, 3> stride = {1, 1, 1};  ///< Input elements from one output to the next.
  std::array<std::int64_t, 3> dilation = {1, 1, 1};  ///< Input elements from one tap to the next.
  /// What taps outside the input read, for each axis.
  std::array<PadMode, 3> pad_mode = {PadMode::zero, PadMode::zero, PadMode::zero};
  std::int64_t groups = 1;    ///< Divides C and K.
  std::int64_t upsample = 1;  ///< Nearest-neighbour factor on H and W, 1 or 2.
  /// How kernels may fold the upsampling (`PlanOptions::upsample_folding`).
  UpsampleFolding upsample_folding = UpsampleFolding::exact;
  std::array<std::int64_t, 3> out = {1, 1, 1};  ///< Z, P, Q
  /// Elements from one pixel of the input (and of the cache) to the next in its row, where pixels
  /// overlap; 0: they lie densely.
  std::int64_t input_pixel_pitch = 0;
  /// The same of rows.
  std::int64_t input_row_pitch = 0;
  /// Elements from one row of the output (and of the residual) to the next, where a kernel writes a
  /// part of a larger tensor; 0: they lie densely.
  std::int64_t output_row_pitch = 0;
  /// The same of frames, of all images alike.
  std::int64_t output_frame_pitch = 0;

  /// D, H, W that the filter slides over: cache + new frames, upsampled rows and columns.
  std::array<std::int64_t, 3> seen() const {
    return {cached_frames + in[0], upsample * in[1], upsample * in[2]};
  }
  /// C / groups.
  std::int64_t group_channels() const { return in_channels / groups; }
  /// K / groups.
  std::int64_t group_filters() const { return out_channels / groups; }
  /// T·R·S.
  std::int64_t taps() const { return filter[0] * filter[1] * filter[2]; }
  /// Rows of the GEMM: N·Z·P·Q.
  std::int64_t gemm_m() const { return batch * out[0] * out[1] * out[2]; }
  /// Columns of the GEMM: K.
  std::int64_t gemm_n() const { return out_channels; }
  /// Reduction of the GEMM: (C / groups)·T·R·S.
  std::int64_t gemm_k() const { return group_channels() * taps(); }

  /// Elements of [N, D, H, W, C].
  std::int64_t activation_elements() const { return batch * in[0] * in[1] * in[2] * in_channels; }
  /// Elements of [N, cached_frames, H, W, C].
  std::int64_t cache_elements() const {
    return batch * cached_frames * in[1] * in[2] * in_channels;
  }
  /// Frames of the next causal cache: the last of cache + activation that the taps of later frames
  /// reach back to, (T − 1)·dilation.
  std::int64_t next_cache_frames() const { return (filter[0] - 1) * dilation[0]; }
  /// Elements of [K, T, R, S, C / groups].
  std::int64_t filter_elements() const { return out_channels * gemm_k(); }
  /// Elements of [N, Z, P, Q, K].
  std::int64_t output_elements() const { return gemm_m() * out_channels; }
  /// 2·M·N·K of the GEMM.
  double flops() const { return 2.0 * double(gemm_m()) * double(gemm_n()) * double(gemm_k()); }
  /// Elements from an input pixel to the next.
  std::int64_t input_pixel_elements() const {
    return input_pixel_pitch != 0 ? input_pixel_pitch : in_channels;
  }
  /// Elements from an input row to the next.
  std::int64_t input_row_elements() const {
    return input_row_pitch != 0 ? input_row_pitch : in[2] * input_pixel_elements();
  }
  /// All of the input is without gaps, and no pixels overlap.
  bool dense_input() const {
    return input_pixel_elements() == in_channels && input_row_elements() == in[2] * in_channels;
  }
  /// Elements from an output row to the next.
  std::int64_t output_row_elements() const {
    return output_row_pitch != 0 ? output_row_pitch : out[2] * out_channels;
  }
  /// Elements from an output frame to the next.
  std::int64_t output_frame_elements() const {
    return output_frame_pitch != 0 ? output_frame_pitch : out[1] * output_row_elements();
  }
  /// Rows of the output follow each other without a gap.
  bool dense_output_rows() const { return output_row_elements() == out[2] * out_channels; }
  /// All of the output is without gaps.
  bool dense_output() const {
    return dense_output_rows() && output_frame_elements() == out[1] * out[2] * out_channels;
  }
  /// There is no output: a run writes nothing.
  bool empty() const { return gemm_m() == 0 || out_channels == 0; }
};

/// Validate and normalise. Throw Error{invalid_argument} naming field, value and what is legal.
CONVOY_API ConvGeometry geometry_of(const Conv2dProblemShape& problem);
/// The same in 3-D.
CONVOY_API ConvGeometry geometry_of(const Conv3dProblemShape& problem);
/// The same for a problem of either rank.
CONVOY_API ConvGeometry geometry_of(const ProblemShape& problem);

}  // namespace convoy
