// SPDX-License-Identifier: Apache-2.0
#include "kernels/small/depthwise_rows.cuh"

#include <cmath>
#include <limits>

#include "kernels/common/cuda_plan.hpp"
#include "kernels/small/depthwise_host.hpp"
#include "kernels/small/unit_axes.hpp"

namespace convoy::small {
namespace {

// Whether depthwise_rows_kernel is built for a shape and elements of so many bytes.
constexpr bool has_rows_kernel(const DepthwiseShape& shape, std::size_t bytes) {
  return bytes == 4 || shape.strip > 1 || shape.rows <= kMostRowsTaps;
}

std::optional<RowsView> rows_view(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  if (g.upsample != 1 || !zero_padding_refusal(g).empty()) return std::nullopt;
  RowsView view;
  const bool flat = is_unit_axis(g, 0) && g.cached_frames == 0;
  if (flat && is_unit_axis(g, 1)) {  // Along the width.
    view = {.images = g.batch * g.in[0] * g.in[1],
            .in_rows = g.in[2],
            .out_rows = g.out[2],
            .row_axis = 2,
            .column_axis = -1};
  } else if (is_unit_axis(g, 1) && is_unit_axis(g, 2)) {  // Along the depth.
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

// Of the multiply-adds: each of a round's threads takes its rows; a multiprocessor's share the
// lanes.
std::optional<double> rows_us(const PlanRequest& request) {
  const std::optional<RowsView> view = usable_rows_view(request);
  if (!view) return std::nullopt;
  const RowsLaunch launch = rows_launch(*view, request);
  const DepthwiseShape& shape = view->shape;
  const double of_row =
      double(shape.frames * shape.rows * shape.columns * shape.strip * shape.channels) /
      shape.stride;
  const double threads =
      std::min(double(shape.blocks) * kDepthwiseRowsThreads,
               double(launch.items) / std::max(1, request.device.multiprocessors));
  return bytes_or_adds_us(
      request, launch.cost * of_row * threads / (kFmaLanes * kIssueShare * kCyclesPerUs));
}

class DepthwiseRowsPlan final : public CudaPlan {
 public:
  explicit DepthwiseRowsPlan(const PlanRequest& request)
      : CudaPlan(request),
        view_(*usable_rows_view(request)),
        launch_(rows_launch(view_, request)) {}

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    const int rows = view_.row_axis, columns = view_.column_axis;
    const DepthwiseRowsArguments arguments{
        .activation = pointers.activation,
        .cache = pointers.cache,
        .filter = pointers.filter,
        .output = conv_output(pointers, request_.output_dtype, g.out_channels, g.out_channels),
        .is_short = is_short(EpilogueParams(pointers.epilogue), request_.output_dtype),
        .in_rows = narrow(view_.in_rows),
        .in_columns = narrow(view_.in_columns),
        .out_rows = narrow(view_.out_rows),
        .out_columns = narrow(view_.out_columns),
        .pad_rows = narrow(g.pad_begin[rows]),
        .pad_columns = narrow(RowsView::of(g.pad_begin, columns, 0)),
        .dilation_rows = narrow(g.dilation[rows]),
        .dilation_columns = narrow(RowsView::of(g.dilation, columns, 1)),
        .column_stride = narrow(RowsView::of(g.stride, columns, 1)),
        .cached_rows = narrow(view_.cached_rows),
        .chunk_rows = narrow(launch_.chunk_rows),
        .in_frames = narrow(g.in[0]),
        .pad_frames = narrow(g.pad_begin[0]),
        .frame_stride = narrow(g.stride[0]),
        .frame_dilation = narrow(g.dilation[0]),
        .items = narrow(launch_.items),
        .lanes = FastDivide(launch_.lanes),
        .strips = FastDivide(launch_.strips),
        .slabs = FastDivide(launch_.slabs),
        .column_phases = FastDivide(launch_.column_phases),
        .row_phases = FastDivide(launch_.row_phases),
        .chunks = FastDivide(launch_.chunks),
        .out_frames = FastDivide(g.out[0]),
        .channels = g.groups};
    dispatch_element(request_.dtype, [&]<typename Element>() {
      launch_kernel(rows_kernel<Element>(view_.kernel),
                    {.name = "depthwise_rows",
                     .grid = static_cast<unsigned>(ceil_div(launch_.items, kDepthwiseRowsThreads)),
                     .block = kDepthwiseRowsThreads,
                     .stream = stream},
                    arguments);
    });
    store_next_cache(pointers, stream);
  }

 private:
  RowsView view_;
  RowsLaunch launch_;
};

}  // namespace

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

constinit const DepthwiseKernel kDepthwiseRowsKernel{.us = rows_us,
                                                     .make = make_plan<DepthwiseRowsPlan>};

}  // namespace convoy::small
