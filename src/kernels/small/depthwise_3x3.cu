// SPDX-License-Identifier: Apache-2.0
#include "kernels/small/depthwise_3x3.cuh"

#include <cmath>
#include <limits>

#include "kernels/common/cuda_plan.hpp"
#include "kernels/small/depthwise_host.hpp"
#include "kernels/small/unit_axes.hpp"

namespace convoy::small {
namespace {

constexpr double kAddsPerUs = 5e7;  // Of both kernels: bytes bound them.

// Whether depthwise_3x3_kernel computes the problem.
bool is_plain_3x3(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  const bool plane = is_unit_axis(g, 0) && g.cached_frames == 0 && g.upsample == 1;
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

std::optional<double> us_3x3(const PlanRequest& request) {
  if (!is_plain_3x3(request)) return std::nullopt;
  return bytes_or_adds_us(request, request.geometry.flops() / 2.0 / kAddsPerUs);
}

// What both plans tell their kernels of an image that is taken `chunk_rows` output rows at a time.
Depthwise3x3Arguments image_arguments(const PlanRequest& request, const RunPointers& pointers,
                                      std::int64_t chunk_rows) {
  const ConvGeometry& g = request.geometry;
  return {.activation = pointers.activation,
          .filter = pointers.filter,
          .output = conv_output(pointers, request.output_dtype, g.out_channels, g.out_channels),
          .is_short = is_short(EpilogueParams(pointers.epilogue), request.output_dtype),
          .in_height = static_cast<int>(g.in[1]),
          .in_width = static_cast<int>(g.in[2]),
          .out_height = static_cast<int>(g.out[1]),
          .out_width = static_cast<int>(g.out[2]),
          .pad_height = static_cast<int>(g.pad_begin[1]),
          .pad_width = static_cast<int>(g.pad_begin[2]),
          .chunk_rows = static_cast<int>(chunk_rows),
          .items = 0,
          .channels_divide = FastDivide(1),
          .strips_divide = FastDivide(1),
          .chunks_divide = FastDivide(ceil_div(g.out[1], chunk_rows)),
          .channels = g.groups};
}

class Depthwise3x3Plan final : public CudaPlan {
 public:
  explicit Depthwise3x3Plan(const PlanRequest& request)
      : CudaPlan(request), chunk_rows_(chunk_rows_3x3(request)) {}

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    const std::int64_t rows = chunk_rows_;
    const std::int64_t items = threads_3x3(g, rows);
    Depthwise3x3Arguments arguments = image_arguments(request_, pointers, rows);
    arguments.items = static_cast<int>(items);
    arguments.channels_divide = FastDivide(g.groups / kDepthwiseChannels);
    arguments.strips_divide = FastDivide(ceil_div(g.out[2], kDepthwiseColumns));
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
    store_next_cache(pointers, stream);
  }

 private:
  template <typename Element, int kStride>
  static void (*choose_3x3(std::int64_t rows, bool is_short))(Depthwise3x3Arguments) {
    return rows == 1  ? depthwise_3x3_kernel<Element, kStride, true, DepthwiseEnd::any>
           : is_short ? depthwise_3x3_kernel<Element, kStride, false, DepthwiseEnd::only_short>
                      : depthwise_3x3_kernel<Element, kStride, false, DepthwiseEnd::plain_or_long>;
  }

  std::int64_t chunk_rows_;
};

// ---- Input rows in shared memory ------------------------------------------------------------

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

std::optional<double> ring_us(const PlanRequest& request) {
  constexpr double kRingBytesPerUs = 3.1e6;
  if (!ring_launch(request)) return std::nullopt;
  return bytes_or_adds_us(request, request.geometry.flops() / 2.0 / kAddsPerUs, kRingBytesPerUs);
}

class DepthwiseRingPlan final : public CudaPlan {
 public:
  explicit DepthwiseRingPlan(const PlanRequest& request)
      : CudaPlan(request), launch_(*ring_launch(request)) {}

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    Depthwise3x3Arguments image = image_arguments(request_, pointers, launch_.chunk_rows);
    image.strips_divide = FastDivide(launch_.strips);
    const DepthwiseRingArguments arguments{.of = image,
                                           .lanes = FastDivide(launch_.lanes),
                                           .vectors = FastDivide(launch_.lanes / 2),
                                           .column_chunks = FastDivide(launch_.column_chunks)};
    const bool is_short = arguments.of.is_short && !arguments.of.output.plain &&
                          arguments.of.output.dtype == request_.dtype;
    const auto kernel = request_.dtype == DType::bf16 ? choose_ring<__nv_bfloat16>(is_short)
                                                      : choose_ring<__half>(is_short);
    raise_shared_memory_limit(kernel, static_cast<int>(launch_.shared_bytes), "depthwise_3x3_ring");
    launch_kernel(
        kernel,
        {.name = "depthwise_3x3_ring",
         .grid = dim3(static_cast<unsigned>(launch_.blocks), static_cast<unsigned>(launch_.slabs)),
         .block = kDepthwiseThreads,
         .shared_bytes = launch_.shared_bytes,
         .stream = stream},
        arguments);
    store_next_cache(pointers, stream);
  }

 private:
  template <typename Element>
  static void (*choose_ring(bool is_short))(DepthwiseRingArguments) {
    return is_short ? depthwise_3x3_ring_kernel<Element, DepthwiseEnd::only_short>
                    : depthwise_3x3_ring_kernel<Element, DepthwiseEnd::plain_or_long>;
  }

  RingLaunch launch_;
};

}  // namespace

constinit const DepthwiseKernel kDepthwise3x3Kernel{.us = us_3x3,
                                                    .make = make_plan<Depthwise3x3Plan>};
constinit const DepthwiseKernel kDepthwiseRingKernel{.us = ring_us,
                                                     .make = make_plan<DepthwiseRingPlan>};

}  // namespace convoy::small
