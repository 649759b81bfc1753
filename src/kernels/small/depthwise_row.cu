// SPDX-License-Identifier: Apache-2.0
#include "kernels/small/depthwise_row.cuh"

#include "kernels/common/cuda_plan.hpp"
#include "kernels/small/depthwise_host.hpp"

namespace convoy::small {
namespace {

// Of resident threads: where the kernel was measured to be the faster one.
constexpr double kMostRowRounds = 1.0;

// Where depthwise_row_kernel takes a problem: index of kDepthwiseRowShapes, how the threads of its
// launch share the work, and its rounds of resident threads.
struct RowLaunch {
  int kernel = 0;
  std::int64_t lanes = 1, slabs = 1, strips = 1, items = 0;
  double rounds = 0;
};

std::optional<RowLaunch> row_launch(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  const std::optional<RowsView> found = usable_rows_view(request);
  if (!found) return std::nullopt;
  const RowsView& view = *found;
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

std::optional<double> row_us(const PlanRequest& request) {
  constexpr double kBeginUs = 2.6;  // To device memory and back, its code.
  if (!row_launch(request)) return std::nullopt;
  const double add_us =
      request.geometry.flops() / 2.0 /
      (kFmaLanes * kIssueShare * kCyclesPerUs * std::max(1, request.device.multiprocessors));
  return bytes_or_adds_us(request, kBeginUs + add_us);
}

class DepthwiseRowPlan final : public CudaPlan {
 public:
  explicit DepthwiseRowPlan(const PlanRequest& request)
      : CudaPlan(request), view_(*usable_rows_view(request)), launch_(*row_launch(request)) {}

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    const DepthwiseRowsArguments arguments{
        .activation = pointers.activation,
        .cache = nullptr,
        .filter = pointers.filter,
        .output = conv_output(pointers, request_.output_dtype, g.out_channels, g.out_channels),
        .is_short = is_short(EpilogueParams(pointers.epilogue), request_.output_dtype),
        .in_rows = narrow(view_.in_rows),
        .in_columns = narrow(view_.in_columns),
        .out_rows = narrow(view_.out_rows),
        .out_columns = narrow(view_.out_columns),
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
        .items = narrow(launch_.items),
        .lanes = FastDivide(launch_.lanes),
        .strips = FastDivide(launch_.strips),
        .slabs = FastDivide(launch_.slabs),
        .column_phases = FastDivide(1),
        .row_phases = FastDivide(1),
        .chunks = FastDivide(view_.out_rows),
        .out_frames = FastDivide(1),
        .channels = g.groups};
    const int taps = kDepthwiseRowShapes[static_cast<std::size_t>(launch_.kernel)].taps;
    const dim3 grid(
        static_cast<unsigned>(ceil_div(launch_.items, kDepthwiseRowThreads / launch_.lanes)),
        static_cast<unsigned>(launch_.slabs));
    dispatch_element(request_.dtype, [&]<typename Element>() {
      launch_kernel(
          row_kernel<Element>(launch_.kernel),
          {.name = "depthwise_row",
           .grid = grid,
           .block = kDepthwiseRowThreads,
           .shared_bytes = sizeof(Element) * static_cast<std::size_t>(depthwise_row_filter(
                                                 taps, static_cast<int>(launch_.lanes))),
           .stream = stream},
          arguments);
    });
    store_next_cache(pointers, stream);
  }

 private:
  RowsView view_;
  RowLaunch launch_;
};

}  // namespace

constinit const DepthwiseKernel kDepthwiseRowKernel{.us = row_us,
                                                    .make = make_plan<DepthwiseRowPlan>};

}  // namespace convoy::small
