// SPDX-License-Identifier: Apache-2.0
#include "kernels/small/depthwise_any.cuh"

#include <algorithm>

#include "core/text.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/small/depthwise_host.hpp"

namespace convoy::small {
namespace {

constexpr int kVector = 8;  // Channels of 16 bytes.

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
    // every 32 strips.
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

std::optional<double> any_us(const PlanRequest& request) {
  return bytes_or_adds_us(request, any_launch(request).us);
}

class DepthwiseAnyPlan final : public CudaPlan {
 public:
  explicit DepthwiseAnyPlan(const PlanRequest& request)
      : CudaPlan(request),
        geometry_(trimmed_device_geometry(request.geometry)),
        launch_(any_launch(request)) {}

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    DepthwiseAnyArguments arguments{
        .activation = pointers.activation,
        .cache = pointers.cache,
        .filter = pointers.filter,
        .geometry = geometry_,
        .output = conv_output(pointers, request_.output_dtype, g.out_channels, g.out_channels),
        .filter_rows = FastDivide(g.filter[1]),
        .lanes = FastDivide(launch_.lanes),
        .parts = narrow(launch_.parts),
        .strips_of_block = narrow(launch_.strips_of_block),
        .chunk_rows = narrow(launch_.chunk_rows),
        .chunk_columns = narrow(launch_.chunk_columns),
        .strips_of_row = static_cast<std::uint32_t>(any_strips_of_row(g)),
        .strips = static_cast<std::uint32_t>(any_strips(g))};
    arguments.output.vectors = true;  // Each thread has whole ones.
    dispatch_element(request_.dtype, [&]<typename Element>() {
      launch_kernel(choose_any_kernel<Element>(launch_),
                    {.name = "depthwise",
                     .grid = dim3(static_cast<unsigned>(launch_.blocks),
                                  static_cast<unsigned>(launch_.slabs)),
                     .block = kDepthwiseAnyThreads,
                     .shared_bytes = launch_.shared_bytes(),
                     .stream = stream},
                    arguments);
    });
    store_next_cache(pointers, stream);
  }

 private:
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
  AnyLaunch launch_;
};

}  // namespace

std::string depthwise_any_refusal(const ConvGeometry& g) {
  constexpr std::int64_t kMaxFilters = std::int64_t{kMaxGridY} * depthwise_any_slab(1);
  if (g.out_channels > kMaxFilters) {
    return text("out_channels = ", g.out_channels, "; legal: at most ", kMaxFilters,
                " (blocks of a grid); nearest: ", kMaxFilters);
  }
  if (any_strips(g) > kMaxStrips) {
    return text("output strips = ", any_strips(g), "; legal: at most ", kMaxStrips);
  }
  return {};
}

constinit const DepthwiseKernel kDepthwiseAnyKernel{.us = any_us,
                                                    .make = make_plan<DepthwiseAnyPlan>};

}  // namespace convoy::small
