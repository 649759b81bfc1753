// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "convoy/export.h"
#include "convoy/types.hpp"

namespace convoy {

/// A 2-D forward convolution. Activation [N, H, W, C], filter [K, R, S, C / groups],
/// output [N, P, Q, K], all dense and channels-last; every extent counts elements.
///
/// As an implicit GEMM: M = N·P·Q output pixels, N = K filters, K = (C / groups)·R·S.
struct CONVOY_API Conv2dProblemShape {
  std::int64_t batch = 1;         ///< N, images; 0 is legal: a run writes nothing.
  std::int64_t in_height = 0;     ///< H, rows of the input.
  std::int64_t in_width = 0;      ///< W, columns of the input.
  std::int64_t in_channels = 0;   ///< C, of all groups.
  std::int64_t out_channels = 0;  ///< K, filters; 0 is legal: a run writes nothing.
  std::int64_t filter_h = 1;      ///< R, rows of taps.
  std::int64_t filter_w = 1;      ///< S, columns of taps.
  std::int64_t pad_h = 0;  ///< Rows of padding above, and below unless `pad_h_end` says otherwise.
  /// Columns of padding left, and right unless `pad_w_end` says otherwise.
  std::int64_t pad_w = 0;
  std::int64_t stride_h = 1;    ///< Input rows from one output row to the next, at least 1.
  std::int64_t stride_w = 1;    ///< Input columns from one output column to the next.
  std::int64_t dilation_h = 1;  ///< Input rows from one tap to the next, at least 1.
  std::int64_t dilation_w = 1;  ///< Input columns from one tap to the next.
  std::int64_t groups = 1;      ///< Must divide C and K.
  std::optional<std::int64_t> pad_h_end{};  ///< Rows of padding below, where it differs from above.
  std::optional<std::int64_t> pad_w_end{};  ///< Columns right, where it differs from left.
  PadMode pad_mode = PadMode::zero;         ///< What taps outside the input read, on both axes.
  /// Nearest-neighbour upsampling of the input by this factor (1 or 2) before the convolution:
  /// the convolution then sees an input of upsample·H × upsample·W.
  std::int64_t upsample = 1;

  /// P = (upsample·H + pad_top + pad_bottom − dilation·(R − 1) − 1) / stride + 1.
  /// Throws Error{invalid_argument} where the shape is not valid (`validate`).
  std::int64_t out_height() const;
  /// Q, the same along the width.
  std::int64_t out_width() const;

  /// Rows of the GEMM: N·P·Q. Throws Error{invalid_argument} on overflow of 64 bits.
  std::int64_t gemm_m() const;
  /// Columns of the GEMM: K.
  std::int64_t gemm_n() const;
  /// Reduction of the GEMM: (C / groups)·R·S.
  std::int64_t gemm_k() const;

  /// Tiles along M, the last one partly filled: ceil(gemm_m / tile_m). `tile_m` ≥ 1.
  std::int64_t num_m_tiles(std::int64_t tile_m) const;
  /// Tiles along N: ceil(gemm_n / tile_n). `tile_n` ≥ 1.
  std::int64_t num_n_tiles(std::int64_t tile_n) const;
  /// K tiles are counted per filter tap, as the kernels step: R·S·ceil((C / groups) / tile).
  std::int64_t num_k_tiles(std::int64_t tile_k) const;

  /// Throws Error{invalid_argument} naming the first field that is not legal, its value, and what
  /// is.
  void validate() const;

  /// The shape string of `convoy bench`, e.g. "n1h256w256c512k512r3s3ph1pw1".
  std::string to_string() const;
};

/// A 3-D forward convolution. Activation [N, D, H, W, C], filter [K, T, R, S, C / groups],
/// output [N, Z, P, Q, K]. Axis order in every array: depth, height, width.
struct CONVOY_API Conv3dProblemShape {
  std::int64_t batch = 1;  ///< N; 0 is legal: a run writes nothing.
  /// D, new frames. The convolution sees cached_frames + in_depth frames.
  std::int64_t in_depth = 0;
  std::int64_t in_height = 0;                         ///< H, rows of a frame.
  std::int64_t in_width = 0;                          ///< W, columns of a frame.
  std::int64_t in_channels = 0;                       ///< C, of all groups.
  std::int64_t out_channels = 0;                      ///< K, filters; 0 is legal.
  std::array<std::int64_t, 3> filter = {1, 1, 1};     ///< T, R, S.
  std::array<std::int64_t, 3> pad_begin = {0, 0, 0};  ///< Front, top, left.
  std::array<std::int64_t, 3> pad_end = {0, 0, 0};    ///< Back, bottom, right.
  std::array<std::int64_t, 3> stride = {1, 1, 1};     ///< Of depth, height, width; at least 1.
  std::array<std::int64_t, 3> dilation = {1, 1, 1};   ///< Of depth, height, width; at least 1.
  std::int64_t groups = 1;                            ///< Must divide C and K.
  /// What taps outside the input read, for each axis.
  std::array<PadMode, 3> pad_mode = {PadMode::zero, PadMode::zero, PadMode::zero};
  /// Frames of the causal cache, [N, cached_frames, H, W, C], that precede the new ones and are
  /// given as a second pointer (`RunArguments::cache`).
  std::int64_t cached_frames = 0;

  /// Z = (cached_frames + D + pad_begin + pad_end − dilation·(T − 1) − 1) / stride + 1.
  /// Throws Error{invalid_argument} where the shape is not valid (`validate`).
  std::int64_t out_depth() const;
  std::int64_t out_height() const;  ///< P, the same along the height.
  std::int64_t out_width() const;   ///< Q, the same along the width.
  std::int64_t gemm_m() const;      ///< Rows of the GEMM: N·Z·P·Q.
  std::int64_t gemm_n() const;      ///< Columns of the GEMM: K.
  std::int64_t gemm_k() const;      ///< Reduction of the GEMM: (C / groups)·T·R·S.
  /// Tiles along M: ceil(gemm_m / tile_m). `tile_m` ≥ 1.
  std::int64_t num_m_tiles(std::int64_t tile_m) const;
  /// Tiles along N: ceil(gemm_n / tile_n). `tile_n` ≥ 1.
  std::int64_t num_n_tiles(std::int64_t tile_n) const;
  /// Tiles along K, counted per tap: T·R·S·ceil((C / groups) / tile_k). `tile_k` ≥ 1.
  std::int64_t num_k_tiles(std::int64_t tile_k) const;

  /// Throws Error{invalid_argument} naming the first field that is not legal, its value, and what
  /// is.
  void validate() const;

  /// The shape string of `convoy bench`, e.g. "n1d4h120w208c384k384t3r3s3ph1pw1cache2".
  std::string to_string() const;
};

/// A problem of either rank: what a shape string says, what a list of layers holds.
using ProblemShape = std::variant<Conv2dProblemShape, Conv3dProblemShape>;

/// The shape string of the problem that it holds.
CONVOY_API std::string to_string(const ProblemShape& problem);

}  // namespace convoy
