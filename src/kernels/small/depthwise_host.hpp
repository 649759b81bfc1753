// SPDX-License-Identifier: Apache-2.0
//
// What the host parts of the depthwise kernels share. Each depthwise_<kernel>.cu says which
// problems its kernel takes, how long it needs, and makes its plans; depthwise.cu asks them in
// turn.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/candidate.hpp"
#include "core/checked.hpp"
#include "kernels/small/depthwise_rows.cuh"

namespace convoy::small {

/// One of the kernels behind "depthwise".
struct DepthwiseKernel {
  /// Microseconds of a problem, but for its launch; nothing where another kernel is to take it.
  std::optional<double> (*us)(const PlanRequest& request);
  /// A plan of a problem that it takes.
  std::unique_ptr<ExecutablePlan> (*make)(const PlanRequest& request);
};
extern const DepthwiseKernel kDepthwiseRowKernel;
extern const DepthwiseKernel kDepthwiseTileKernel;
extern const DepthwiseKernel kDepthwiseRingKernel;  ///< Beside the next one.
extern const DepthwiseKernel kDepthwise3x3Kernel;
extern const DepthwiseKernel kDepthwiseLineKernel;
extern const DepthwiseKernel kDepthwiseRowsKernel;
extern const DepthwiseKernel kDepthwiseAnyKernel;  ///< Takes every problem.

/// Empty, or what is too large for kDepthwiseAnyKernel too.
std::string depthwise_any_refusal(const ConvGeometry& g);

/// Of DepthwiseKernel::make.
template <typename Plan>
std::unique_ptr<ExecutablePlan> make_plan(const PlanRequest& request) {
  return std::make_unique<Plan>(request);
}

inline constexpr int kMaxGridY = 65535;
/// NOTE: a thread counts up to a grid of strips past the last one, in 32 bits.
inline constexpr std::int64_t kMaxStrips = 1 << 30;
/// Of a filter along one axis and 16-bit elements, which depthwise_rows_kernel takes; others are
/// depthwise_line_kernel's.
inline constexpr std::int64_t kMostRowsTaps = 4;

// ---- Model, of an H200 ----------------------------------------------------------------------

inline constexpr double kCyclesPerUs = 1740.0;
inline constexpr double kBytesPerUs = 2.6e6;  // From and to device memory.
/// Lanes of a multiprocessor that multiply and add in each cycle; the share of them that loads,
/// conversions, stores and waiting leave.
inline constexpr double kFmaLanes = 128.0;
inline constexpr double kIssueShare = 0.33;

/// Microseconds of the bytes, or of the multiply-adds (`add_us`) where those take longer.
inline double bytes_or_adds_us(const PlanRequest& request, double add_us,
                               double bytes_per_us = kBytesPerUs) {
  return std::max(min_bytes(request) / bytes_per_us, add_us);
}

// ---- Problems -------------------------------------------------------------------------------

/// What was checked to fit.
inline int narrow(std::int64_t value) {
  return static_cast<int>(value);
}

/// One filter a channel, and channels that come in whole vectors: 16 bytes, where not said.
inline bool has_vectors(const ConvGeometry& g, std::int64_t vector = 8) {
  return g.group_filters() == 1 && g.groups % vector == 0;
}

/// A problem as rows and columns of images (depthwise_rows.cuh). `kernel`: index of
/// kDepthwiseShapes.
struct RowsView {
  int kernel = 0;
  DepthwiseShape shape{};  // For the element type.
  std::int64_t images = 1, in_rows = 1, in_columns = 1, out_rows = 1, out_columns = 1;
  std::int64_t cached_rows = 0;
  int row_axis = 1, column_axis = 2;  // Of the problem; -1: columns that no tap leaves.

  // An axis' value of an array of the problem.
  static std::int64_t of(const std::array<std::int64_t, 3>& values, int axis, std::int64_t none) {
    return axis < 0 ? none : values[static_cast<std::size_t>(axis)];
  }
};

/// The view of a problem that depthwise_rows_kernel can take; of others nothing. In
/// depthwise_rows.cu.
std::optional<RowsView> usable_rows_view(const PlanRequest& request);

}  // namespace convoy::small
