// SPDX-License-Identifier: Apache-2.0
//
// Depthwise convolution: one channel a group. Memory-bound, or bound by the multiply-adds where the
// filter is large. The usual filters, one a channel and channels in whole vectors, have kernels
// that keep them in registers; depthwise_any.cuh takes all others.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/device_geometry.cuh"
#include "kernels/common/output.cuh"
#include "kernels/small/candidates.hpp"
#include "kernels/small/depthwise_3x3.cuh"
#include "kernels/small/depthwise_any.cuh"
#include "kernels/small/depthwise_line.cuh"
#include "kernels/small/depthwise_row.cuh"
#include "kernels/small/depthwise_rows.cuh"

namespace convoy::small {
namespace {

constexpr int kVector = 8;  // Channels of 16 bytes.
constexpr int kMaxGridY = 65535;
// Of resident threads: where depthwise_row_kernel was measured to be the faster one.
constexpr double kMostRowRounds = 1.0;
// Of a filter along one axis and 16-bit elements, which depthwise_rows_kernel takes; others are
// depthwise_line_kernel's.
constexpr std::int64_t kMostRowsTaps = 4;
// NOTE: a thread counts up to a grid of strips past the last one, in 32 bits.
constexpr std::int64_t kMaxStrips = 1 << 30;

constexpr double kCyclesPerUs = 1740.0;  // Of an H200, by which all times are modelled.

// What was checked to fit.
int narrow(std::int64_t value) {
  return static_cast<int>(value);
}

// One filter a channel, and channels that come in whole vectors.
bool has_vectors(const ConvGeometry& g, std::int64_t vector = kVector) {
  return g.group_filters() == 1 && g.groups % vector == 0;
}

// ---- 3×3 ------------------------------------------------------------------------------------

// Whether depthwise_3x3_kernel computes the problem: measured to be faster there than the kernel
// for all filters that fit registers (53 and 60 us on 64x56x56x144, an H200).
bool is_plain_3x3(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  const bool plane = g.filter[0] == 1 && g.stride[0] == 1 && g.pad_begin[0] == 0 &&
                     g.pad_end[0] == 0 && g.cached_frames == 0 && g.upsample == 1;
  const auto axis = [&](int i) {
    const bool zeros = g.pad_mode[i] == PadMode::zero || (g.pad_begin[i] == 0 && g.pad_end[i] == 0);
    return g.filter[i] == 3 && g.dilation[i] == 1 && zeros;
  };
  return has_vectors(g, kDepthwiseChannels) && plane && axis(1) && axis(2) &&
         g.stride[1] == g.stride[2] && (g.stride[1] == 1 || g.stride[1] == 2);
}

// Threads of the 3×3 kernel by the rows that each computes, and the rows with the lowest cost:
// rounds of resident threads, each with its input rows and what it takes to begin.
std::int64_t threads_3x3(const ConvGeometry& g, std::int64_t chunk_rows) {
  return g.batch * g.out[0] * ceil_div(g.out[1], chunk_rows) *
         ceil_div(g.out[2], kDepthwiseColumns) * (g.groups / kDepthwiseChannels);
}
std::int64_t chunk_rows_3x3(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  const std::int64_t resident = std::int64_t{depthwise_blocks(size_of(request.dtype))} *
                                kDepthwiseThreads * std::max(1, request.device.multiprocessors);
  std::int64_t best = 1;
  double best_cost = 0;
  const std::int64_t most = std::min<std::int64_t>(g.out[1], 64);
  for (std::int64_t i = 1; i <= most + 1; ++i) {
    // A row each too, however many they are.
    const std::int64_t parts = i > most ? g.out[1] : i;
    const std::int64_t rows = ceil_div(g.out[1], parts);
    const std::int64_t threads = threads_3x3(g, rows);
    if (threads > kMaxStrips) continue;
    const double cost = double(ceil_div(threads, resident)) * double(rows * g.stride[1] + 6);
    if (best_cost == 0 || cost < best_cost) {
      best = rows;
      best_cost = cost;
    }
  }
  return best;
}

// How depthwise_3x3_ring_kernel shares a problem among its blocks.
struct RingLaunch {
  std::int64_t lanes = 1, slabs = 1, strips = 1, column_chunks = 1, chunk_rows = 1, blocks = 1;
  std::size_t shared_bytes = 0;
};

std::optional<RingLaunch> ring_launch(const PlanRequest& request) {
  // Measured: where a thread of depthwise_3x3_kernel would walk down several rows, and the blocks'
  // threads are used; of a large layer half of them will do.
  constexpr double kUsed = 0.75, kUsedOfLarge = 0.5;
  constexpr double kLargeRounds = 7.0;  // Of depthwise_3x3_kernel's threads, a row each.
  if (request.dtype == DType::fp32 || !is_plain_3x3(request) || !has_vectors(request.geometry) ||
      request.geometry.stride[1] != 1) {
    return std::nullopt;
  }
  if (chunk_rows_3x3(request) == 1) return std::nullopt;
  constexpr std::int64_t kUsualLanes = 16;  // 128 bytes of a column.
  constexpr std::int64_t kBlocks = 4;       // Of a multiprocessor.
  constexpr double kBeginRows = 4.0;
  const ConvGeometry& g = request.geometry;
  RingLaunch launch;
  const std::int64_t vectors = g.groups / kDepthwiseChannels;
  launch.slabs = std::max<std::int64_t>(1, (vectors + kUsualLanes / 2) / kUsualLanes);
  launch.lanes = ceil_div(ceil_div(vectors, launch.slabs), 2) * 2;
  const std::int64_t strips = ceil_div(g.out[2], kDepthwiseColumns);
  launch.column_chunks = ceil_div(strips, kDepthwiseThreads / launch.lanes);
  launch.strips = ceil_div(strips, launch.column_chunks);
  const double used = double(vectors * g.out[2]) / double(launch.slabs * launch.column_chunks *
                                                          kDepthwiseThreads * kDepthwiseColumns);
  const double rounds_of_rows =
      double(threads_3x3(g, 1)) /
      double(kBlocks * kDepthwiseThreads * std::max(1, request.device.multiprocessors));
  if (used < (rounds_of_rows < kLargeRounds ? kUsed : kUsedOfLarge)) return std::nullopt;
  launch.shared_bytes =
      static_cast<std::size_t>(kDepthwiseRing * launch.lanes) * sizeof(uint2) *
      static_cast<std::size_t>(depthwise_ring_columns(static_cast<int>(launch.strips)));
  const std::int64_t bands = g.batch * g.out[0] * launch.column_chunks;
  const double resident = double(kBlocks * std::max(1, request.device.multiprocessors));
  double best = 0;
  for (std::int64_t parts = 1; parts <= std::min<std::int64_t>(g.out[1], 64); ++parts) {
    const std::int64_t rows = ceil_div(g.out[1], parts);
    const std::int64_t blocks = bands * ceil_div(g.out[1], rows);
    const double rounds = std::ceil(double(blocks * launch.slabs) / resident);
    const double cost = rounds * (double(rows) + 2.0 + kBeginRows);
    if (best == 0 || cost < best) {
      best = cost;
      launch.chunk_rows = rows;
      launch.blocks = blocks;
    }
  }
  const bool fits = g.in[2] * g.groups <= std::numeric_limits<std::int32_t>::max() / 2 &&
                    launch.blocks <= kMaxStrips && launch.slabs <= kMaxGridY;
  if (!fits) return std::nullopt;
  return launch;
}

// ---- Filters in registers -------------------------------------------------------------------

// A problem as rows and columns of images (depthwise_rows.cuh). `kernel`: index of
// kDepthwiseShapes.
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

// Whether depthwise_rows_kernel is built for a shape and elements of so many bytes.
constexpr bool has_rows_kernel(const DepthwiseShape& shape, std::size_t bytes) {
  return bytes == 4 || shape.strip > 1 || shape.rows <= kMostRowsTaps;
}

std::optional<RowsView> rows_view(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  if (g.upsample != 1 || !zero_padding_refusal(g).empty()) return std::nullopt;
  const auto untouched = [&](int i) {
    return g.filter[i] == 1 && g.stride[i] == 1 && g.pad_begin[i] == 0 && g.pad_end[i] == 0;
  };
  RowsView view;
  const bool flat = untouched(0) && g.cached_frames == 0;
  if (flat && untouched(1)) {  // Along the width.
    view = {.images = g.batch * g.in[0] * g.in[1],
            .in_rows = g.in[2],
            .out_rows = g.out[2],
            .row_axis = 2,
            .column_axis = -1};
  } else if (untouched(1) && untouched(2)) {  // Along the depth.
    view = {.images = g.batch,
            .in_rows = g.seen()[0],
            .in_columns = g.in[1] * g.in[2],
            .out_rows = g.out[0],
            .out_columns = g.out[1] * g.out[2],
            .cached_rows = g.cached_frames,
            .row_axis = 0,
            .column_axis = -1};
  } else if (g.cached_frames == 0) {
    view = {.images = g.batch * g.out[0],
            .in_rows = g.in[1],
            .in_columns = g.in[2],
            .out_rows = g.out[1],
            .out_columns = g.out[2]};
    if (!flat && g.filter[0] == 1) return std::nullopt;
  } else {
    return std::nullopt;
  }
  const int rows = view.row_axis, columns = view.column_axis;
  const std::int64_t frames = rows == 1 ? g.filter[0] : 1;
  const std::int64_t filter_columns = RowsView::of(g.filter, columns, 1);
  const std::int64_t column_stride = RowsView::of(g.stride, columns, 1);
  const std::int64_t column_dilation = RowsView::of(g.dilation, columns, 1);
  for (view.kernel = 0; view.kernel < static_cast<int>(kDepthwiseShapes.size()); ++view.kernel) {
    const DepthwiseShape shape = kDepthwiseShapes[static_cast<std::size_t>(view.kernel)];
    if (shape.frames != frames || shape.rows != g.filter[rows] || shape.columns != filter_columns ||
        shape.stride != g.stride[rows]) {
      continue;
    }
    if (!has_rows_kernel(shape, size_of(request.dtype))) continue;
    if (shape.strip > 1 && column_stride != shape.stride) continue;
    if (shape.stride > 1 && (g.dilation[rows] != 1 || column_dilation != 1)) continue;
    if (shape.strip == 1 && column_stride > 1 && column_dilation > 1) continue;
    view.shape = request.dtype == DType::fp32 ? shape_for<float>(shape) : shape;
    if (!has_vectors(g, view.shape.channels)) return std::nullopt;
    return view;
  }
  return std::nullopt;
}

// How the threads of a launch share the work.
struct RowsLaunch {
  std::int64_t lanes = 1, slabs = 1, strips = 1, row_phases = 1, column_phases = 1, chunks = 1;
  std::int64_t chunk_rows = 1, items = 0;
  double cost = 0;  // Rounds of resident threads · rows that each takes.
};

RowsLaunch rows_launch(const RowsView& view, const PlanRequest& request) {
  // A row that a chunk shares with its neighbour is loaded, but not added, twice; what it takes to
  // begin is as much as some rows.
  constexpr double kSharedRow = 0.3;
  constexpr double kBeginRows = 4.0;
  constexpr std::int64_t kMostChunks = 256;
  const ConvGeometry& g = request.geometry;
  RowsLaunch best;
  const std::int64_t vectors = g.groups / view.shape.channels;
  // Neighbouring strips of the same channels in a block: they share input columns in L1.
  best.lanes = vectors % 32 == 0 ? 32 : vectors % 16 == 0 ? 16 : vectors;
  best.slabs = vectors / best.lanes;
  best.row_phases = g.dilation[view.row_axis];
  best.column_phases = RowsView::of(g.dilation, view.column_axis, 1);
  const std::int64_t rows = ceil_div(view.out_rows, best.row_phases);
  best.strips = ceil_div(ceil_div(view.out_columns, best.column_phases), view.shape.strip);
  const double resident = double(view.shape.blocks) * kDepthwiseRowsThreads *
                          std::max(1, request.device.multiprocessors);
  const std::int64_t whole =
      view.images * vectors * best.strips * best.row_phases * best.column_phases;
  for (std::int64_t parts = 1; parts <= std::min(rows, kMostChunks); ++parts) {
    const std::int64_t chunk_rows = ceil_div(rows, parts);
    const std::int64_t chunks = ceil_div(rows, chunk_rows);
    const double items = double(whole) * double(chunks);
    if (items > double(kMaxStrips) && best.cost > 0) break;
    const double cost =
        std::ceil(items / resident) * (double(chunk_rows * view.shape.stride) +
                                       kSharedRow * double(view.shape.rows - 1) + kBeginRows);
    if (best.cost == 0 || cost < best.cost) {
      best.cost = cost;
      best.chunks = chunks;
      best.chunk_rows = chunk_rows;
      best.items = whole * chunks;
    }
  }
  return best;
}

template <typename Element, std::size_t kIndex = 0>
void (*rows_kernel(int index))(DepthwiseRowsArguments) {
  if constexpr (kIndex < kDepthwiseShapes.size()) {
    if constexpr (has_rows_kernel(kDepthwiseShapes[kIndex], sizeof(Element))) {
      if (index == static_cast<int>(kIndex)) {
        return depthwise_rows_kernel<Element, static_cast<int>(kIndex)>;
      }
    }
    return rows_kernel<Element, kIndex + 1>(index);
  } else {
    return nullptr;
  }
}

std::optional<RowsView> usable_rows_view(const PlanRequest& request) {
  std::optional<RowsView> view = rows_view(request);
  const auto fits = [](std::int64_t value) {
    return value <= std::numeric_limits<std::int32_t>::max();
  };
  if (!view || !fits(view->in_columns) || !fits(view->out_columns) ||
      rows_launch(*view, request).items > kMaxStrips) {
    return std::nullopt;
  }
  return view;
}

// ---- A row a thread -------------------------------------------------------------------------

// Where depthwise_row_kernel takes a problem: index of kDepthwiseRowShapes, how the threads of its
// launch share the work, and its rounds of resident threads.
struct RowLaunch {
  int kernel = 0;
  std::int64_t lanes = 1, slabs = 1, strips = 1, items = 0;
  double rounds = 0;
};

std::optional<RowLaunch> row_launch(const RowsView& view, const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  if (!has_vectors(g) || view.shape.frames > 1 || view.row_axis != 1 || view.column_axis != 2 ||
      g.dilation[1] != 1 || g.dilation[2] != 1) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < kDepthwiseRowShapes.size(); ++i) {
    const DepthwiseRowShape& shape = kDepthwiseRowShapes[i];
    if (shape.taps != view.shape.rows || shape.taps != view.shape.columns ||
        shape.stride != view.shape.stride || !has_row_kernel(shape, size_of(request.dtype))) {
      continue;
    }
    RowLaunch launch;
    launch.kernel = static_cast<int>(i);
    const std::int64_t vectors = g.groups / kDepthwiseRowChannels;
    while (launch.lanes < 32 && vectors % (2 * launch.lanes) == 0) launch.lanes *= 2;
    launch.slabs = vectors / launch.lanes;
    launch.strips = ceil_div(view.out_columns, shape.strip);
    launch.items = view.images * view.out_rows * launch.strips;
    const double resident =
        double(shape.blocks) * kDepthwiseRowThreads * std::max(1, request.device.multiprocessors);
    launch.rounds = double(launch.items) * double(vectors) / resident;
    if (launch.rounds > kMostRowRounds || launch.slabs > kMaxGridY) return std::nullopt;
    return launch;
  }
  return std::nullopt;
}

using RowKernel = void(DepthwiseRowsArguments);

template <typename Element, int kShape>
constexpr RowKernel* row_kernel_of() {
  if constexpr (has_row_kernel(kDepthwiseRowShapes[kShape], sizeof(Element))) {
    return depthwise_row_kernel<Element, kShape>;
  }
  return nullptr;
}
template <typename Element>
RowKernel* row_kernel(int index) {
  constexpr auto kKernels = []<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    return std::array{row_kernel_of<Element, static_cast<int>(kIndex)>()...};
  }
  (std::make_index_sequence<kDepthwiseRowShapes.size()>{});
  return kKernels[static_cast<std::size_t>(index)];
}

// ---- Filters along one axis -----------------------------------------------------------------

// Where depthwise_line_kernel takes a problem: the axis, and how its blocks share the lines.
struct LineLaunch {
  int axis = 2;
  int strip = 2;  // Of kDepthwiseLineStrips.
  std::int64_t inner = 1, lines = 1, lanes = 1, slabs = 1;
  std::int64_t strips = 1, lines_of_block = 1, positions = 1, chunks = 1, tap_pitch = 1;
  std::int64_t threads = 1, blocks = 1;

  std::size_t shared_bytes() const {
    return sizeof(std::uint32_t) * static_cast<std::size_t>(depthwise_line_words(
                                       lines_of_block * positions, lanes, tap_pitch));
  }
};

std::optional<LineLaunch> line_launch(const PlanRequest& request) {
  constexpr std::int64_t kUsualLanes = 32;    // 128 bytes of a position.
  constexpr std::int64_t kLanesOfVector = 4;  // 16 bytes of one.
  constexpr std::size_t kMaxShared = 96 * 1024;
  const ConvGeometry& g = request.geometry;
  if (request.dtype == DType::fp32 || !has_vectors(g) || g.upsample != 1 ||
      !zero_padding_refusal(g).empty()) {
    return std::nullopt;
  }
  const auto untouched = [&](std::size_t i) {
    return g.filter[i] == 1 && g.stride[i] == 1 && g.pad_begin[i] == 0 && g.pad_end[i] == 0;
  };
  LineLaunch launch;
  launch.axis = !untouched(0) || g.cached_frames > 0 ? 0 : !untouched(1) ? 1 : 2;
  const auto axis = static_cast<std::size_t>(launch.axis);
  for (std::size_t i = 0; i < 3; ++i) {
    if (i != axis && !untouched(i)) return std::nullopt;
  }
  if (g.stride[axis] != 1) return std::nullopt;

  std::int64_t images = g.batch;
  for (std::size_t i = 0; i < axis; ++i) images *= g.out[i];
  for (std::size_t i = axis + 1; i < 3; ++i) launch.inner *= g.out[i];
  const std::int64_t dilation = g.dilation[axis];
  launch.lines = images * launch.inner * dilation;
  const std::int64_t vectors = g.groups / kDepthwiseLineChannels;
  launch.slabs = std::max<std::int64_t>(1, (vectors + kUsualLanes / 2) / kUsualLanes);
  launch.lanes = ceil_div(ceil_div(vectors, launch.slabs), kLanesOfVector) * kLanesOfVector;
  launch.tap_pitch = g.filter[axis] | 1;
  const std::int64_t of_line = ceil_div(g.out[axis], dilation);

  // The longest strips with which each multiprocessor has half a block's threads: measured.
  const std::int64_t enough =
      kDepthwiseLineThreads / 2 * std::int64_t{std::max(1, request.device.multiprocessors)};
  launch.strip = kDepthwiseLineStrips[0];
  for (const int strip : kDepthwiseLineStrips) {
    if (launch.lines * ceil_div(of_line, strip) * vectors >= enough) launch.strip = strip;
  }
  // Measured: rows that slide through registers are the faster ones with few taps on a large layer.
  if (g.filter[axis] <= kMostRowsTaps && launch.strip == kDepthwiseLineStrips.back() &&
      usable_rows_view(request)) {
    return std::nullopt;
  }
  const std::int64_t places = std::max<std::int64_t>(1, kDepthwiseLineThreads / launch.lanes);
  const std::int64_t strips = ceil_div(of_line, launch.strip);
  launch.chunks = ceil_div(strips, places);
  launch.strips = ceil_div(strips, launch.chunks);
  launch.lines_of_block = std::min(launch.lines, places / launch.strips);
  launch.positions = launch.strips * launch.strip + g.filter[axis] - 1;
  launch.threads = ceil_div(launch.lanes * launch.strips * launch.lines_of_block, 32) * 32;
  launch.blocks = launch.chunks * ceil_div(launch.lines, launch.lines_of_block);
  const auto fits = [](std::int64_t value) {
    return value <= std::numeric_limits<std::int32_t>::max() / 2;
  };
  const bool narrow = fits(launch.lines + launch.lines_of_block) && fits(launch.blocks) &&
                      fits(g.seen()[axis] + g.filter[axis] * dilation) &&
                      fits(dilation * launch.inner * launch.strip) &&
                      fits((of_line + launch.positions) * dilation);
  if (!narrow || launch.slabs > kMaxGridY || launch.shared_bytes() > kMaxShared) {
    return std::nullopt;
  }
  return launch;
}

template <typename Element>
void (*line_kernel(int strip))(DepthwiseLineArguments) {
  switch (strip) {
    case 2:
      return depthwise_line_kernel<Element, 2>;
    case 4:
      return depthwise_line_kernel<Element, 4>;
    default:
      return depthwise_line_kernel<Element, 8>;
  }
}

// ---- Any filter -----------------------------------------------------------------------------

std::int64_t any_strips_of_row(const ConvGeometry& g) {
  return ceil_div(g.out[2], kDepthwiseAnyStrip);
}
std::int64_t any_strips(const ConvGeometry& g) {
  return g.batch * g.out[0] * g.out[1] * any_strips_of_row(g);
}

// How depthwise_any_kernel shares a problem among threads, and what that takes.
struct AnyLaunch {
  int vector = 1, columns = 0, stride = 1;  // The kernel's template arguments.
  std::int64_t lanes = 1, slabs = 1, parts = 1, strips_of_block = 1, blocks = 1;
  std::int64_t chunk_rows = 1, chunk_columns = 1;
  double us = 0;  // Of its multiply-adds, by the model.

  std::size_t shared_bytes() const {
    const std::int64_t filters = chunk_rows * chunk_columns * depthwise_any_pitch(vector);
    const std::int64_t sums = kDepthwiseAnyThreads * kDepthwiseAnyStrip * vector;
    return static_cast<std::size_t>(parts > 1 ? std::max(filters, sums) : filters) * sizeof(float);
  }
};

// The taps of a filter row that a problem's kernel takes at a time: of those it is built for, the
// most that the row has.
int any_columns(const ConvGeometry& g, int vector, DType dtype) {
  if (g.dilation[2] != 1 || (vector == 1 && dtype == DType::fp32)) return 0;
  const std::int64_t columns = g.filter[2];
  if (vector == kVector && dtype != DType::fp32) {
    if (g.stride[2] == 2) return columns >= 3 ? 3 : 0;
    if (g.stride[2] == 1 && columns >= 5) return columns >= 7 ? 7 : 5;
  }
  return columns >= 3 && g.stride[2] == 1 ? 3 : 0;
}

// Times of depthwise_any_kernel, fitted to 28 layers on an H200; 13 others within 18 %
// (docs/lab/2026-11-23-depthwise-any.md). Issue slots of a warp: a multiply-add, a loaded element,
// a window of columns, a filter row. What a warp alone waits for: a window or tap, a row. Then for
// a chunk of filters, a block's next strips, and to begin and end.
constexpr double kAnyAddSlots = 1.9, kAnyLoadSlots = 2.3, kAnyWindowSlots = 56.0;
constexpr double kAnyRowSlots = 356.0, kAnyWaitUs = 0.4, kAnyRowWaitUs = 0.15;
constexpr double kAnyChunkUs = 2.0, kAnyRoundUs = 0.65, kAnyBeginUs = 2.0;
constexpr double kSchedulers = 4.0;  // Of a multiprocessor.

// Share of an axis' outputs and taps that meet each other inside the input; others are passed over.
double share_inside(const ConvGeometry& g, int axis) {
  constexpr std::int64_t kMostTaps = 1024;  // That are counted.
  if (g.pad_mode[axis] != PadMode::zero || g.filter[axis] > kMostTaps) return 1.0;
  std::int64_t inside = 0;
  for (std::int64_t tap = 0; tap < g.filter[axis]; ++tap) {
    // Outputs [first, last) of this tap are not in front of the input, and not behind it.
    const std::int64_t at = tap * g.dilation[axis] - g.pad_begin[axis];
    const auto from = [&](std::int64_t x) {
      return std::clamp<std::int64_t>(ceil_div(std::max<std::int64_t>(x - at, 0), g.stride[axis]),
                                      0, g.out[axis]);
    };
    inside += std::max<std::int64_t>(0, from(g.seen()[axis]) - from(0));
  }
  return double(inside) / double(g.filter[axis] * g.out[axis]);
}

AnyLaunch any_launch(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  AnyLaunch launch;
  const bool is_single = request.dtype == DType::fp32;
  launch.vector = has_vectors(g)                                              ? kVector
                  : g.group_filters() == 1 && g.groups % 2 == 0 && !is_single ? 2
                                                                              : 1;
  launch.columns = any_columns(g, launch.vector, request.dtype);
  launch.stride = launch.columns > 0 ? static_cast<int>(g.stride[2]) : 1;
  const std::int64_t vectors = g.out_channels / launch.vector;
  launch.slabs = ceil_div(vectors, depthwise_any_slab(launch.vector) / launch.vector);
  launch.lanes = ceil_div(vectors, launch.slabs);
  // The whole filter, or rows of it, or where a row is too long a part of one.
  const std::int64_t frames = depth_taps(g).count;
  const std::int64_t rows = frames * g.filter[1], columns = g.filter[2];
  launch.chunk_columns = std::min<std::int64_t>(columns, kDepthwiseAnyTaps);
  launch.chunk_rows =
      columns > kDepthwiseAnyTaps ? 1 : std::min<std::int64_t>(rows, kDepthwiseAnyTaps / columns);
  const double chunks =
      double(ceil_div(rows, launch.chunk_rows)) * double(ceil_div(columns, launch.chunk_columns));

  const std::int64_t processors = std::max(1, request.device.multiprocessors);
  const std::int64_t at_once = kDepthwiseAnyBlocks * processors;
  const double windows = launch.columns > 0 ? double(columns / launch.columns) : 0.0;
  const double taps = double(columns) - windows * launch.columns;  // Of a row, one by one.
  const double loads = windows * double((kDepthwiseAnyStrip - 1) * g.stride[2] + launch.columns) +
                       taps * kDepthwiseAnyStrip;
  const double slots_of_row = launch.vector * (double(columns) * kDepthwiseAnyStrip * kAnyAddSlots +
                                               loads * kAnyLoadSlots) +
                              windows * kAnyWindowSlots + kAnyRowSlots;
  const double alone_us = (windows + taps) * kAnyWaitUs + kAnyRowWaitUs;
  const double inside =
      share_inside(g, 0) * double(g.filter[0]) / double(frames) * share_inside(g, 1);
  for (std::int64_t parts = 1; parts <= launch.chunk_rows; parts *= 2) {
    const std::int64_t strips_of_block = kDepthwiseAnyThreads / parts / launch.lanes;
    if (strips_of_block == 0) break;
    const std::int64_t blocks = ceil_div(any_strips(g), strips_of_block);
    // NOTE: few enough blocks to run at once, so that filters are read once a block and not once
    // every 32 strips (590 us against 135 us of cuDNN's on 64x112x112x96 before).
    const std::int64_t most = std::max<std::int64_t>(1, at_once / launch.slabs);
    const std::int64_t grid = std::min(blocks, most);
    const double rounds = double(ceil_div(blocks, grid)) *
                          std::max(1.0, double(ceil_div(grid * launch.slabs, at_once)));
    const double warps =
        kDepthwiseAnyThreads / 32 / kSchedulers *
        std::min(double(kDepthwiseAnyBlocks), double(ceil_div(grid * launch.slabs, processors)));
    const double rows_of_thread =
        double(ceil_div(rows, launch.chunk_rows)) * double(ceil_div(launch.chunk_rows, parts));
    const double row_us = std::max(warps * slots_of_row / kCyclesPerUs, alone_us);
    const double filters_us = parts == 1 && chunks == 1 ? 0.0 : chunks * kAnyChunkUs;
    const double us =
        rounds * (rows_of_thread * inside * row_us + filters_us + kAnyRoundUs) + kAnyBeginUs;
    if (launch.us == 0 || us < launch.us) {
      launch.us = us;
      launch.parts = parts;
      launch.strips_of_block = strips_of_block;
      launch.blocks = grid;
    }
  }
  return launch;
}

// ---- Model, of an H200 ----------------------------------------------------------------------

constexpr double kLaunchUs = 4.0;
constexpr double kBytesPerUs = 2.6e6;  // From and to device memory.
constexpr double kRate3x3 = 5e7;       // Multiply-adds a us of the 3×3 kernel: bytes bound it.
// Lanes of a multiprocessor that multiply and add in each cycle; the share of them that loads,
// conversions, stores and waiting leave.
constexpr double kFmaLanes = 128.0;
constexpr double kIssueShare = 0.33;
constexpr double kRowUs = 2.6;  // Of depthwise_row_kernel: to device memory and back, its code.

// Of depthwise_line_kernel: to begin, which is to device memory and back; bytes a us; issue share.
constexpr double kLineUs = 2.2;
constexpr double kLineBytesPerUs = 2.1e6;
constexpr double kLineIssueShare = 0.33;
constexpr double kRingBytesPerUs = 3.1e6;  // Of depthwise_3x3_ring_kernel.

// Microseconds that depthwise_rows_kernel's multiply-adds take: each of a round's threads takes its
// rows; a multiprocessor's share the lanes.
double rows_us(const RowsView& view, const PlanRequest& request) {
  const RowsLaunch launch = rows_launch(view, request);
  const DepthwiseShape& shape = view.shape;
  const double of_row =
      double(shape.frames * shape.rows * shape.columns * shape.strip * shape.channels) /
      shape.stride;
  const double threads =
      std::min(double(shape.blocks) * kDepthwiseRowsThreads,
               double(launch.items) / std::max(1, request.device.multiprocessors));
  return launch.cost * of_row * threads / (kFmaLanes * kIssueShare * kCyclesPerUs);
}

// Microseconds that the multiply-adds take.
double add_us(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  const std::optional<RowsView> view = usable_rows_view(request);
  if (view && row_launch(*view, request)) {
    return kRowUs + g.flops() / 2.0 /
                        (kFmaLanes * kIssueShare * kCyclesPerUs *
                         std::max(1, request.device.multiprocessors));
  }
  if (is_plain_3x3(request)) return g.flops() / 2.0 / kRate3x3;
  if (line_launch(request)) {
    return kLineUs + std::max(min_bytes(request) / kLineBytesPerUs,
                              g.flops() / 2.0 /
                                  (kFmaLanes * kLineIssueShare * kCyclesPerUs *
                                   std::max(1, request.device.multiprocessors)));
  }
  if (!view) return any_launch(request).us;
  return rows_us(*view, request);
}

class DepthwisePlan final : public CudaPlan {
 public:
  explicit DepthwisePlan(const PlanRequest& request)
      : CudaPlan(request),
        geometry_(trimmed_device_geometry(request.geometry)),
        chunk_rows_(chunk_rows_3x3(request)),
        ring_launch_(ring_launch(request)),
        line_launch_(line_launch(request)),
        rows_(usable_rows_view(request)),
        any_launch_(any_launch(request)) {
    if (rows_) {
      rows_launch_ = rows_launch(*rows_, request);
      row_launch_ = row_launch(*rows_, request);
    }
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    if (row_launch_) {
      launch_row(pointers, stream);
    } else if (ring_launch_) {
      launch_ring(pointers, stream);
    } else if (is_plain_3x3(request_)) {
      launch_3x3(pointers, stream);
    } else if (line_launch_) {
      launch_line(pointers, stream);
    } else if (rows_) {
      launch_rows(pointers, stream);
    } else {
      launch_any(pointers, stream);
    }
    store_next_cache(pointers, stream);
  }

 private:
  void launch_any(const RunPointers& pointers, cudaStream_t stream) const {
    const ConvGeometry& g = request_.geometry;
    const AnyLaunch& launch = any_launch_;
    DepthwiseAnyArguments arguments{
        .activation = pointers.activation,
        .cache = pointers.cache,
        .filter = pointers.filter,
        .geometry = geometry_,
        .output = conv_output(pointers, request_.output_dtype, g.out_channels, g.out_channels),
        .filter_rows = FastDivide(g.filter[1]),
        .lanes = FastDivide(launch.lanes),
        .parts = narrow(launch.parts),
        .strips_of_block = narrow(launch.strips_of_block),
        .chunk_rows = narrow(launch.chunk_rows),
        .chunk_columns = narrow(launch.chunk_columns),
        .strips_of_row = static_cast<std::uint32_t>(any_strips_of_row(g)),
        .strips = static_cast<std::uint32_t>(any_strips(g))};
    arguments.output.vectors = true;  // Each thread has whole ones.
    dispatch_element(request_.dtype, [&]<typename Element>() {
      launch_kernel(
          choose_any_kernel<Element>(launch),
          {.name = "depthwise",
           .grid = dim3(static_cast<unsigned>(launch.blocks), static_cast<unsigned>(launch.slabs)),
           .block = kDepthwiseAnyThreads,
           .shared_bytes = launch.shared_bytes(),
           .stream = stream},
          arguments);
    });
  }

  void launch_3x3(const RunPointers& pointers, cudaStream_t stream) const {
    const ConvGeometry& g = request_.geometry;
    const std::int64_t rows = chunk_rows_;
    const std::int64_t items = threads_3x3(g, rows);
    const Depthwise3x3Arguments arguments{
        .activation = pointers.activation,
        .filter = pointers.filter,
        .output = conv_output(pointers, request_.output_dtype, g.out_channels, g.out_channels),
        .is_short = is_short(EpilogueParams(pointers.epilogue)),
        .in_height = static_cast<int>(g.in[1]),
        .in_width = static_cast<int>(g.in[2]),
        .out_height = static_cast<int>(g.out[1]),
        .out_width = static_cast<int>(g.out[2]),
        .pad_height = static_cast<int>(g.pad_begin[1]),
        .pad_width = static_cast<int>(g.pad_begin[2]),
        .chunk_rows = static_cast<int>(rows),
        .items = static_cast<int>(items),
        .channels_divide = FastDivide(g.groups / kDepthwiseChannels),
        .strips_divide = FastDivide(ceil_div(g.out[2], kDepthwiseColumns)),
        .chunks_divide = FastDivide(ceil_div(g.out[1], rows)),
        .channels = g.groups};
    const auto blocks = static_cast<unsigned>(ceil_div(items, kDepthwiseThreads));
    dispatch_element(request_.dtype, [&]<typename Element>() {
      const bool is_short = arguments.is_short && !arguments.output.plain &&
                            arguments.output.dtype == dtype_of<Element>;
      const auto kernel = g.stride[1] == 1 ? choose_3x3<Element, 1>(rows, is_short)
                                           : choose_3x3<Element, 2>(rows, is_short);
      launch_kernel(
          kernel,
          {.name = "depthwise_3x3", .grid = blocks, .block = kDepthwiseThreads, .stream = stream},
          arguments);
    });
  }

  void launch_ring(const RunPointers& pointers, cudaStream_t stream) const {
    const ConvGeometry& g = request_.geometry;
    const RingLaunch& launch = *ring_launch_;
    const DepthwiseRingArguments arguments{
        .of = {.activation = pointers.activation,
               .filter = pointers.filter,
               .output =
                   conv_output(pointers, request_.output_dtype, g.out_channels, g.out_channels),
               .is_short = is_short(EpilogueParams(pointers.epilogue)),
               .in_height = static_cast<int>(g.in[1]),
               .in_width = static_cast<int>(g.in[2]),
               .out_height = static_cast<int>(g.out[1]),
               .out_width = static_cast<int>(g.out[2]),
               .pad_height = static_cast<int>(g.pad_begin[1]),
               .pad_width = static_cast<int>(g.pad_begin[2]),
               .chunk_rows = static_cast<int>(launch.chunk_rows),
               .items = 0,
               .channels_divide = FastDivide(1),
               .strips_divide = FastDivide(launch.strips),
               .chunks_divide = FastDivide(ceil_div(g.out[1], launch.chunk_rows)),
               .channels = g.groups},
        .lanes = FastDivide(launch.lanes),
        .vectors = FastDivide(launch.lanes / 2),
        .column_chunks = FastDivide(launch.column_chunks)};
    const auto run = [&]<typename Element>() {
      const bool is_short = arguments.of.is_short && !arguments.of.output.plain &&
                            arguments.of.output.dtype == dtype_of<Element>;
      const auto kernel = is_short
                              ? depthwise_3x3_ring_kernel<Element, DepthwiseEnd::only_short>
                              : depthwise_3x3_ring_kernel<Element, DepthwiseEnd::plain_or_long>;
      raise_shared_memory_limit(kernel, static_cast<int>(launch.shared_bytes),
                                "depthwise_3x3_ring");
      launch_kernel(
          kernel,
          {.name = "depthwise_3x3_ring",
           .grid = dim3(static_cast<unsigned>(launch.blocks), static_cast<unsigned>(launch.slabs)),
           .block = kDepthwiseThreads,
           .shared_bytes = launch.shared_bytes,
           .stream = stream},
          arguments);
    };
    if (request_.dtype == DType::bf16) {
      run.template operator()<__nv_bfloat16>();
    } else {
      run.template operator()<__half>();
    }
  }

  template <typename Element, int kStride>
  static void (*choose_3x3(std::int64_t rows, bool is_short))(Depthwise3x3Arguments) {
    return rows == 1  ? depthwise_3x3_kernel<Element, kStride, true, DepthwiseEnd::any>
           : is_short ? depthwise_3x3_kernel<Element, kStride, false, DepthwiseEnd::only_short>
                      : depthwise_3x3_kernel<Element, kStride, false, DepthwiseEnd::plain_or_long>;
  }

  void launch_rows(const RunPointers& pointers, cudaStream_t stream) const {
    const ConvGeometry& g = request_.geometry;
    const RowsView& view = *rows_;
    const RowsLaunch& launch = rows_launch_;
    const int rows = view.row_axis, columns = view.column_axis;
    const DepthwiseRowsArguments arguments{
        .activation = pointers.activation,
        .cache = pointers.cache,
        .filter = pointers.filter,
        .output = conv_output(pointers, request_.output_dtype, g.out_channels, g.out_channels),
        .is_short = is_short(EpilogueParams(pointers.epilogue)),
        .in_rows = narrow(view.in_rows),
        .in_columns = narrow(view.in_columns),
        .out_rows = narrow(view.out_rows),
        .out_columns = narrow(view.out_columns),
        .pad_rows = narrow(g.pad_begin[rows]),
        .pad_columns = narrow(RowsView::of(g.pad_begin, columns, 0)),
        .dilation_rows = narrow(g.dilation[rows]),
        .dilation_columns = narrow(RowsView::of(g.dilation, columns, 1)),
        .column_stride = narrow(RowsView::of(g.stride, columns, 1)),
        .cached_rows = narrow(view.cached_rows),
        .chunk_rows = narrow(launch.chunk_rows),
        .in_frames = narrow(g.in[0]),
        .pad_frames = narrow(g.pad_begin[0]),
        .frame_stride = narrow(g.stride[0]),
        .frame_dilation = narrow(g.dilation[0]),
        .items = narrow(launch.items),
        .lanes = FastDivide(launch.lanes),
        .strips = FastDivide(launch.strips),
        .slabs = FastDivide(launch.slabs),
        .column_phases = FastDivide(launch.column_phases),
        .row_phases = FastDivide(launch.row_phases),
        .chunks = FastDivide(launch.chunks),
        .out_frames = FastDivide(g.out[0]),
        .channels = g.groups};
    dispatch_element(request_.dtype, [&]<typename Element>() {
      launch_kernel(rows_kernel<Element>(view.kernel),
                    {.name = "depthwise_rows",
                     .grid = static_cast<unsigned>(ceil_div(launch.items, kDepthwiseRowsThreads)),
                     .block = kDepthwiseRowsThreads,
                     .stream = stream},
                    arguments);
    });
  }

  void launch_row(const RunPointers& pointers, cudaStream_t stream) const {
    const ConvGeometry& g = request_.geometry;
    const RowsView& view = *rows_;
    const RowLaunch& launch = *row_launch_;
    const DepthwiseRowsArguments arguments{
        .activation = pointers.activation,
        .cache = nullptr,
        .filter = pointers.filter,
        .output = conv_output(pointers, request_.output_dtype, g.out_channels, g.out_channels),
        .is_short = is_short(EpilogueParams(pointers.epilogue)),
        .in_rows = narrow(view.in_rows),
        .in_columns = narrow(view.in_columns),
        .out_rows = narrow(view.out_rows),
        .out_columns = narrow(view.out_columns),
        .pad_rows = narrow(g.pad_begin[1]),
        .pad_columns = narrow(g.pad_begin[2]),
        .dilation_rows = 1,
        .dilation_columns = 1,
        .column_stride = narrow(g.stride[2]),
        .cached_rows = 0,
        .chunk_rows = 1,
        .in_frames = 1,
        .pad_frames = 0,
        .frame_stride = 1,
        .frame_dilation = 1,
        .items = narrow(launch.items),
        .lanes = FastDivide(launch.lanes),
        .strips = FastDivide(launch.strips),
        .slabs = FastDivide(launch.slabs),
        .column_phases = FastDivide(1),
        .row_phases = FastDivide(1),
        .chunks = FastDivide(view.out_rows),
        .out_frames = FastDivide(1),
        .channels = g.groups};
    const int taps = kDepthwiseRowShapes[static_cast<std::size_t>(launch.kernel)].taps;
    const dim3 grid(
        static_cast<unsigned>(ceil_div(launch.items, kDepthwiseRowThreads / launch.lanes)),
        static_cast<unsigned>(launch.slabs));
    dispatch_element(request_.dtype, [&]<typename Element>() {
      launch_kernel(
          row_kernel<Element>(launch.kernel),
          {.name = "depthwise_row",
           .grid = grid,
           .block = kDepthwiseRowThreads,
           .shared_bytes = sizeof(Element) * static_cast<std::size_t>(depthwise_row_filter(
                                                 taps, static_cast<int>(launch.lanes))),
           .stream = stream},
          arguments);
    });
  }

  void launch_line(const RunPointers& pointers, cudaStream_t stream) const {
    const ConvGeometry& g = request_.geometry;
    const LineLaunch& launch = *line_launch_;
    const auto axis = static_cast<std::size_t>(launch.axis);
    const DepthwiseLineArguments arguments{
        .activation = pointers.activation,
        .cache = pointers.cache,
        .filter = pointers.filter,
        .output = conv_output(pointers, request_.output_dtype, g.out_channels, g.out_channels),
        .is_short = is_short(EpilogueParams(pointers.epilogue)),
        .in_rows = narrow(g.seen()[axis]),
        .cached_rows = narrow(g.cached_frames),
        .out_rows = narrow(g.out[axis]),
        .pad = narrow(g.pad_begin[axis]),
        .dilation = narrow(g.dilation[axis]),
        .taps = narrow(g.filter[axis]),
        .tap_pitch = narrow(launch.tap_pitch),
        .lines = narrow(launch.lines),
        .lines_of_block = narrow(launch.lines_of_block),
        .out_pitch = narrow(g.dilation[axis] * launch.inner),
        .lanes = FastDivide(launch.lanes),
        .vectors = FastDivide(launch.lanes / 4),
        .strips = FastDivide(launch.strips),
        .positions = FastDivide(launch.positions),
        .chunks = FastDivide(launch.chunks),
        .phases = FastDivide(g.dilation[axis]),
        .inner = FastDivide(launch.inner),
        .filter_taps = FastDivide(g.filter[axis]),
        .channels = g.groups};
    const auto run = [&]<typename Element>() {
      const auto kernel = line_kernel<Element>(launch.strip);
      raise_shared_memory_limit(kernel, static_cast<int>(launch.shared_bytes()), "depthwise_line");
      launch_kernel(
          kernel,
          {.name = "depthwise_line",
           .grid = dim3(static_cast<unsigned>(launch.blocks), static_cast<unsigned>(launch.slabs)),
           .block = static_cast<unsigned>(launch.threads),
           .shared_bytes = launch.shared_bytes(),
           .stream = stream},
          arguments);
    };
    if (request_.dtype == DType::bf16) {
      run.template operator()<__nv_bfloat16>();
    } else {
      run.template operator()<__half>();
    }
  }

  template <typename Element>
  static void (*choose_any_kernel(const AnyLaunch& launch))(DepthwiseAnyArguments) {
    if constexpr (sizeof(Element) == 2) {
      if (launch.vector == 1 && launch.columns == 3) return depthwise_any_kernel<Element, 1, 3, 1>;
      if (launch.vector == 2) {
        return launch.columns == 3 ? depthwise_any_kernel<Element, 2, 3, 1>
                                   : depthwise_any_kernel<Element, 2, 0, 1>;
      }
      if (launch.columns == 7) return depthwise_any_kernel<Element, kVector, 7, 1>;
      if (launch.columns == 5) return depthwise_any_kernel<Element, kVector, 5, 1>;
      if (launch.stride == 2) return depthwise_any_kernel<Element, kVector, 3, 2>;
    }
    if (launch.vector == 1) return depthwise_any_kernel<Element, 1, 0, 1>;
    return launch.columns == 3 ? depthwise_any_kernel<Element, kVector, 3, 1>
                               : depthwise_any_kernel<Element, kVector, 0, 1>;
  }

  DeviceGeometry geometry_;
  std::int64_t chunk_rows_;  // Of the 3×3 kernel.
  std::optional<RingLaunch> ring_launch_;
  std::optional<LineLaunch> line_launch_;
  std::optional<RowsView> rows_;
  AnyLaunch any_launch_;
  RowsLaunch rows_launch_;
  std::optional<RowLaunch> row_launch_;
};

class DepthwiseCandidate final : public KernelCandidate {
 public:
  std::string name() const override { return "depthwise"; }
  Device device() const override { return Device::cuda; }
  bool packs_as_dense(const PlanRequest&) const override { return true; }

  Judgement judge(const PlanRequest& request) const override {
    const ConvGeometry& g = request.geometry;
    if (g.group_channels() != 1) {
      return text("C / groups = ", g.group_channels(), "; legal: 1");
    }
    constexpr std::int64_t kMaxFilters = std::int64_t{kMaxGridY} * depthwise_any_slab(1);
    if (g.out_channels > kMaxFilters) {
      return text("out_channels = ", g.out_channels, "; legal: at most ", kMaxFilters,
                  " (blocks of a grid); nearest: ", kMaxFilters);
    }
    if (any_strips(g) > kMaxStrips) {
      return text("output strips = ", any_strips(g), "; legal: at most ", kMaxStrips);
    }
    const std::string reason = device_geometry_refusal(g);
    if (!reason.empty()) return reason;

    const double bytes_per_us = ring_launch(request) ? kRingBytesPerUs : kBytesPerUs;
    return kLaunchUs + std::max(min_bytes(request) / bytes_per_us, add_us(request));
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<DepthwisePlan>(request);
  }
};

}  // namespace

std::unique_ptr<KernelCandidate> make_depthwise_candidate() {
  return std::make_unique<DepthwiseCandidate>();
}

}  // namespace convoy::small
