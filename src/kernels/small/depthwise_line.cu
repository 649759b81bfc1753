// SPDX-License-Identifier: Apache-2.0
#include "kernels/small/depthwise_line.cuh"

#include <limits>

#include "kernels/common/cuda_plan.hpp"
#include "kernels/small/depthwise_host.hpp"
#include "kernels/small/unit_axes.hpp"

namespace convoy::small {
namespace {

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
  LineLaunch launch;
  launch.axis = !is_unit_axis(g, 0) || g.cached_frames > 0 ? 0 : !is_unit_axis(g, 1) ? 1 : 2;
  const auto axis = static_cast<std::size_t>(launch.axis);
  for (int i = 0; i < 3; ++i) {
    if (i != launch.axis && !is_unit_axis(g, i)) return std::nullopt;
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

std::optional<double> line_us(const PlanRequest& request) {
  constexpr double kBeginUs = 2.2;  // To device memory and back.
  constexpr double kLineBytesPerUs = 2.1e6;
  if (!line_launch(request)) return std::nullopt;
  const double add_us =
      request.geometry.flops() / 2.0 /
      (kFmaLanes * kIssueShare * kCyclesPerUs * std::max(1, request.device.multiprocessors));
  return bytes_or_adds_us(request, kBeginUs + bytes_or_adds_us(request, add_us, kLineBytesPerUs));
}

class DepthwiseLinePlan final : public CudaPlan {
 public:
  explicit DepthwiseLinePlan(const PlanRequest& request)
      : CudaPlan(request), launch_(*line_launch(request)) {}

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    const auto axis = static_cast<std::size_t>(launch_.axis);
    const DepthwiseLineArguments arguments{
        .activation = pointers.activation,
        .cache = pointers.cache,
        .filter = pointers.filter,
        .output = conv_output(pointers, request_.output_dtype, g.out_channels, g.out_channels),
        .is_short = is_short(EpilogueParams(pointers.epilogue), request_.output_dtype),
        .in_rows = narrow(g.seen()[axis]),
        .cached_rows = narrow(g.cached_frames),
        .out_rows = narrow(g.out[axis]),
        .pad = narrow(g.pad_begin[axis]),
        .dilation = narrow(g.dilation[axis]),
        .taps = narrow(g.filter[axis]),
        .tap_pitch = narrow(launch_.tap_pitch),
        .lines = narrow(launch_.lines),
        .lines_of_block = narrow(launch_.lines_of_block),
        .out_pitch = narrow(g.dilation[axis] * launch_.inner),
        .lanes = FastDivide(launch_.lanes),
        .vectors = FastDivide(launch_.lanes / 4),
        .strips = FastDivide(launch_.strips),
        .positions = FastDivide(launch_.positions),
        .chunks = FastDivide(launch_.chunks),
        .phases = FastDivide(g.dilation[axis]),
        .inner = FastDivide(launch_.inner),
        .filter_taps = FastDivide(g.filter[axis]),
        .channels = g.groups};
    const auto kernel = request_.dtype == DType::bf16 ? line_kernel<__nv_bfloat16>(launch_.strip)
                                                      : line_kernel<__half>(launch_.strip);
    raise_shared_memory_limit(kernel, static_cast<int>(launch_.shared_bytes()), "depthwise_line");
    launch_kernel(
        kernel,
        {.name = "depthwise_line",
         .grid = dim3(static_cast<unsigned>(launch_.blocks), static_cast<unsigned>(launch_.slabs)),
         .block = static_cast<unsigned>(launch_.threads),
         .shared_bytes = launch_.shared_bytes(),
         .stream = stream},
        arguments);
    store_next_cache(pointers, stream);
  }

 private:
  LineLaunch launch_;
};

}  // namespace

constinit const DepthwiseKernel kDepthwiseLineKernel{.us = line_us,
                                                     .make = make_plan<DepthwiseLinePlan>};

}  // namespace convoy::small
