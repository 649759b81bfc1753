// SPDX-License-Identifier: Apache-2.0
#include "kernels/small/stream.cuh"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/device_geometry.cuh"
#include "kernels/common/time_correction.hpp"
#include "kernels/small/candidates.hpp"
#include "kernels/small/patch_extents.hpp"
#include "kernels/small/short_layers.hpp"
#include "kernels/small/unit_axes.hpp"

namespace convoy::small {
namespace {

/// pointwise_stream, or line_stream: with taps along the width.
enum class StreamKind : std::uint8_t { pixels, lines };

/// What a launch consists of, or why there is none.
struct StreamPlan {
  StreamLayout layout;
  StreamLines lines;
  int vector = 0;  ///< Channels that a lane reads at once,
  int mmas = 4;    ///< MMA columns of a group of filters.
  int warps = 0;   ///< Of a block.
  int blocks_per_sm = 0;
  std::int64_t chunks = 0;
  std::int64_t blocks = 0;
  std::string refusal;
};

std::string pixels_refusal(const ConvGeometry& g) {
  if (std::string reason = channels_refusal("in_channels", g.in_channels, 2); !reason.empty()) {
    return reason;
  }
  return pointwise_shape_refusal(g);
}

std::string lines_refusal(const ConvGeometry& g) {
  constexpr std::int64_t kMostPixels = 1 << 28;  // Of a line: its bytes are counted in 64 bits.
  // NOTE: lines begin at whole 16 bytes, as bulk copies do.
  for (const auto& [name, channels] :
       {std::pair{"in_channels", g.in_channels}, std::pair{"out_channels", g.out_channels}}) {
    if (std::string reason = channels_refusal(name, channels, 8); !reason.empty()) return reason;
  }
  if (g.filter[2] == 1) return "filter of width = 1; legal: 2 and more (pointwise_stream takes 1)";
  if (std::string reason = patch_extent_refusal(g); !reason.empty()) return reason;
  if (std::string reason = zero_padding_refusal(g); !reason.empty()) return reason;
  for (const std::int64_t pixels : {g.in[2], g.out[2], g.pad_begin[2]}) {
    if (pixels > kMostPixels) {
      return text("pixels of a line, or beside it = ", pixels, "; legal: at most ", kMostPixels);
    }
  }
  return unit_axes_refusal(g, 2);
}

StreamPlan plan_stream(const PlanRequest& request, StreamKind kind) {
  constexpr std::int64_t kMostChannels = 1024;
  // Of a chunk and what comes of it: copies of less do not keep memory busy.
  constexpr std::int64_t kChunkBytes = 3072;
  constexpr int kLeastStages = 2, kMostStages = 6;
  constexpr int kReserved = 1024;  // A block's, of the runtime.
  const bool lines = kind == StreamKind::lines;
  const std::int64_t most_chunks = std::int64_t{1} << (lines ? 30 : 40);

  const ConvGeometry& g = request.geometry;
  StreamPlan plan;
  plan.refusal = short_layer_refusal(request);
  if (plan.refusal.empty()) plan.refusal = lines ? lines_refusal(g) : pixels_refusal(g);
  if (!plan.refusal.empty()) return plan;
  if (g.in_channels > kMostChannels || g.out_channels > kMostChannels) {
    plan.refusal = text("in_channels, out_channels = ", g.in_channels, ", ", g.out_channels,
                        "; legal: at most ", kMostChannels);
    return plan;
  }
  StreamLayout& l = plan.layout;
  plan.vector = g.in_channels % 8 != 0 ? 2 : lines && g.in_channels <= 16 ? 4 : 8;
  plan.mmas = lines && g.out_channels <= 16 ? 2 : 4;
  const int group_filters = stream_group_filters(plan.mmas);
  l.groups = static_cast<int>(ceil_div(g.out_channels, group_filters));
  l.channels = static_cast<int>(g.in_channels);
  l.filters = static_cast<int>(g.out_channels);
  l.taps = lines ? static_cast<int>(g.filter[2]) : 1;
  const int unit = plan.vector == 8 ? 32 : 16;
  l.units = static_cast<int>(ceil_div(g.in_channels, unit));
  // NOTE: of eight channels at once two filters are read together, of four two and the two behind
  // the next lane's, of two all eight: from pitch to pitch other banks.
  const int filter_units = l.taps * l.units;
  l.filter_pitch = plan.vector == 8   ? 64 * (filter_units | 1)
                   : plan.vector == 4 ? 32 * (filter_units | 1)
                                      : 32 * filter_units + 20;
  l.filter_skew = plan.vector == 4 ? 64 : 0;
  const int rows = l.groups * group_filters;
  l.filter_bytes = static_cast<int>(
      round_up(std::int64_t{rows} * l.filter_pitch + rows / (2 * plan.mmas) * l.filter_skew, 128));
  l.bias_bytes = static_cast<int>(round_up(std::int64_t{rows} * 4, 128));
  l.buffers = request.epilogue.residual ? kStreamResidualBuffers : kStreamBuffers;

  constexpr int step = kStreamStepPixels;
  const std::int64_t halo = lines ? (g.filter[2] - 1) * g.dilation[2] : 0;
  const std::int64_t stride = lines ? g.stride[2] : 1;
  const std::int64_t step_bytes =
      std::int64_t{step} * (stride * g.in_channels + g.out_channels) * 2;
  // What a chunk brings of its neighbours should be less than what is its own.
  const std::int64_t steps = std::max<std::int64_t>(
      std::max<std::int64_t>(1, kChunkBytes / step_bytes), ceil_div(2 * halo, step * stride));
  const int multiprocessors = std::max(1, request.device.multiprocessors);
  // As few pixels a chunk as give every warp one.
  const std::int64_t all_steps = ceil_div(std::max<std::int64_t>(1, g.gemm_m()), step);
  const std::int64_t shared_steps =
      all_steps / (std::int64_t{multiprocessors} * 2 * kStreamMostWarps);
  l.chunk_pixels = static_cast<int>(step * std::clamp<std::int64_t>(shared_steps, 1, steps));
  l.stage_bytes =
      static_cast<int>(round_up(((l.chunk_pixels - 1) * stride + halo + 1) * l.channels * 2, 128));
  l.buffer_bytes = static_cast<int>(round_up(std::int64_t{l.chunk_pixels} * l.filters * 2, 128));
  plan.chunks = ceil_div(g.gemm_m(), l.chunk_pixels);
  if (lines) {
    const std::int64_t of_line = ceil_div(g.out[2], l.chunk_pixels);
    plan.lines = {.in = static_cast<int>(g.in[2]),
                  .out = static_cast<int>(g.out[2]),
                  .stride = static_cast<int>(stride),
                  .dilation = static_cast<int>(g.dilation[2]),
                  .pad = static_cast<int>(g.pad_begin[2]),
                  .chunks = FastDivide(of_line)};
    plan.chunks = g.batch * g.out[0] * g.out[1] * of_line;
  }
  if (plan.chunks > most_chunks) {
    plan.refusal =
        text("pixels = ", g.gemm_m(), "; legal: at most some ", most_chunks * l.chunk_pixels);
    return plan;
  }
  // As many warps on a multiprocessor as their rings leave room for; of those in one block or two
  // the one, which fetches the filters once.
  const auto device_bytes = static_cast<std::int64_t>(request.device.shared_memory);
  const auto stages_of = [&](int blocks, int warps) {
    for (l.stages = kMostStages; l.stages >= kLeastStages; --l.stages) {
      l.barrier_bytes = static_cast<int>(round_up((l.stages + l.buffers) * 8, 16));
      if (l.shared_bytes(warps) <= device_bytes / blocks - kReserved) break;
    }
    return l.stages;
  };
  for (const int blocks : {1, 2}) {
    for (int warps = kStreamMostWarps; warps > 0; --warps) {
      if (blocks * warps <= plan.blocks_per_sm * plan.warps) break;
      if (stages_of(blocks, warps) < kLeastStages) continue;
      plan.blocks_per_sm = blocks;
      plan.warps = warps;
      break;
    }
  }
  if (plan.warps == 0) {
    l.stages = kLeastStages;
    plan.refusal = text("filters and chunks of ", l.shared_bytes(1), " bytes; legal: at most ",
                        device_bytes - kReserved, " (shared memory)");
    return plan;
  }
  l.stages = stages_of(plan.blocks_per_sm, plan.warps);
  // NOTE: blocks that share a multiprocessor fetch the filters twice.
  const bool share = plan.chunks > std::int64_t{multiprocessors} * plan.warps;
  plan.blocks = std::min<std::int64_t>(
      plan.chunks, std::int64_t{multiprocessors} * (share ? plan.blocks_per_sm : 1));
  return plan;
}

// Of two things that overlap, the more the larger `power` is.
double joined_us(double a_us, double b_us, double power) {
  return std::pow(std::pow(a_us, power) + std::pow(b_us, power), 1.0 / power);
}

// Model time, fitted to 243 times on an H100 (docs/lab/2026-11-26-choice.md). A warp's step is the
// way through its instructions: how many warps share a multiprocessor decides.
double stream_us(const PlanRequest& request, const StreamPlan& plan) {
  constexpr double kLaunchUs = 5.0, kFilterBytesPerUs = 1.5e4, kTurnUs = 0.94, kUnitUs = 0.074;
  // Of 32 pixels, where 16 warps share a multiprocessor.
  constexpr double kStepCycles = 93.0, kTurnCycles = 34.0, kTurnUnitCycles = 13.3;
  constexpr double kGroupUnitCycles = 18.6, kGroupCycles = 5.8;
  constexpr double kResidualCycles = 44.0, kCurvedCycles = 83.0;  // More, of a group.
  constexpr double kWarps = 16.0, kCyclesPerUs = 1740.0;
  constexpr double kBytesPerUs = 3.9e6, kOverlap = 2.9;
  const StreamLayout& l = plan.layout;
  const double turns = std::ceil(l.groups / double(kStreamMostGroups));
  const double units = l.units * (plan.vector == 8 ? 1.0 : 0.5);
  const double cycles = kStepCycles + turns * (kTurnCycles + kTurnUnitCycles * units) +
                        l.groups * (kGroupCycles + kGroupUnitCycles * units +
                                    (request.epilogue.residual ? kResidualCycles : 0.0) +
                                    (is_curved(request.epilogue.activation) ? kCurvedCycles : 0.0));
  const double steps = static_cast<double>(ceil_div(request.geometry.gemm_m(), kStreamStepPixels)) /
                       std::max(1, request.device.multiprocessors);
  const double compute_us =
      steps * cycles / kCyclesPerUs * std::max(1.0, kWarps / (plan.blocks_per_sm * plan.warps));
  const double memory_us = min_bytes(request) / (kBytesPerUs * memory_share(request.device));
  return kLaunchUs + l.filter_bytes / kFilterBytesPerUs + turns * (kTurnUs + kUnitUs * units) +
         joined_us(compute_us, memory_us, kOverlap);
}

// The same with taps, fitted to 81 times on an H200 (median error 4 %, of one in ten above 9 %).
double line_us(const PlanRequest& request, const StreamPlan& plan) {
  constexpr double kLaunchUs = 7.4, kFilterBytesPerUs = 1.0e4;
  // Of 32 pixels, where 16 warps share a multiprocessor; of which fewer are not as much slower.
  constexpr double kStepCycles = 20.0, kTurnCycles = 39.0, kGroupCycles = 100.0;
  constexpr double kResidualCycles = 110.0, kCurvedCycles = 83.0;
  constexpr double kWarps = 16.0, kWarpsPower = 0.36, kCyclesPerUs = 1740.0;
  constexpr double kBytesPerUs = 5.0e6, kChunkBytesPerUs = 5.7e6, kOverlap = 6.0;
  // A unit of channels, by how many of them a lane reads at once.
  const double turn_unit_cycles = plan.vector == 8 ? 1.0 : 19.0;
  const double group_unit_cycles = plan.vector == 8 ? 50.0 : 12.0;
  const StreamLayout& l = plan.layout;
  const double groups = l.groups * plan.mmas / 4.0;
  const double turns = std::ceil(groups / kStreamMostGroups);
  const double units = l.taps * l.units;
  const double cycles = kStepCycles + turns * (kTurnCycles + turn_unit_cycles * units) +
                        groups * (kGroupCycles + group_unit_cycles * units +
                                  (request.epilogue.residual ? kResidualCycles : 0.0) +
                                  (is_curved(request.epilogue.activation) ? kCurvedCycles : 0.0));
  const double chunks = static_cast<double>(plan.chunks);
  const double steps =
      chunks * l.chunk_pixels / kStreamStepPixels / std::max(1, request.device.multiprocessors);
  const double warps = plan.blocks_per_sm * plan.warps;
  const double compute_us =
      steps * cycles / kCyclesPerUs * std::pow(std::max(1.0, kWarps / warps), kWarpsPower);
  const double memory_us = min_bytes(request) / (kBytesPerUs * memory_share(request.device)) +
                           chunks * l.stage_bytes / kChunkBytesPerUs;
  return kLaunchUs + l.filter_bytes / kFilterBytesPerUs +
         joined_us(compute_us, memory_us, kOverlap);
}

constexpr const char* stream_name(StreamKind kind) {
  return kind == StreamKind::lines ? "line_stream" : "pointwise_stream";
}

class PlanOfStream final : public CudaPlan {
 public:
  PlanOfStream(const PlanRequest& request, StreamKind kind)
      : CudaPlan(request), kind_(kind), plan_(plan_stream(request, kind)) {
    for (const bool residual : {false, true}) {
      raise_shared_memory_limit(choose_kernel(residual), plan_.layout.shared_bytes(plan_.warps),
                                stream_name(kind_));
    }
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    const StreamArguments arguments{
        .activation = pointers.activation,
        .filter = pointers.filter,
        .pixels = g.gemm_m(),
        .chunks = plan_.chunks,
        .layout = plan_.layout,
        .lines = plan_.lines,
        .output = conv_output(pointers, request_.output_dtype, g.out_channels, g.out_channels)};
    launch_kernel(choose_kernel(arguments.output.epilogue.has_residual),
                  {.name = stream_name(kind_),
                   .grid = static_cast<unsigned>(plan_.blocks),
                   .block = static_cast<unsigned>(plan_.warps * 32),
                   .shared_bytes = static_cast<std::size_t>(plan_.layout.shared_bytes(plan_.warps)),
                   .stream = stream,
                   .overlapped = true},
                  arguments);
    store_next_cache(pointers, stream);
  }

 private:
  using Kernel = void(StreamArguments);

  Kernel* choose_kernel(bool residual) const {
    return request_.dtype == DType::bf16 ? choose_kind<__nv_bfloat16>(residual)
                                         : choose_kind<__half>(residual);
  }
  template <typename Element>
  Kernel* choose_kind(bool residual) const {
    if (kind_ == StreamKind::pixels) {
      return plan_.vector == 8 ? choose_filters<Element, 8, false>(residual)
                               : choose_filters<Element, 2, false>(residual);
    }
    return plan_.vector == 8 ? choose_filters<Element, 8, true>(residual)
                             : choose_filters<Element, 4, true>(residual);
  }
  template <typename Element, int kVector, bool kLines>
  Kernel* choose_filters(bool residual) const {
    const auto choose = [&]<int kMmas, int kGroups>() -> Kernel* {
      return residual ? stream_kernel<Element, kVector, kMmas, kGroups, kLines, true>
                      : stream_kernel<Element, kVector, kMmas, kGroups, kLines, false>;
    };
    if constexpr (kLines) {
      if (plan_.mmas == 2) return choose.template operator()<2, 1>();
    }
    return plan_.layout.groups == 1 ? choose.template operator()<4, 1>()
                                    : choose.template operator()<4, 2>();
  }

  const StreamKind kind_;
  const StreamPlan plan_;
};

class StreamCandidate final : public KernelCandidate {
 public:
  explicit StreamCandidate(StreamKind kind) : kind_(kind) {}
  std::string name() const override { return stream_name(kind_); }
  Device device() const override { return Device::cuda; }
  bool packs_as_dense(const PlanRequest&) const override { return true; }

  Judgement judge(const PlanRequest& request) const override {
    if (request.device.compute_capability < 90) {
      return text("compute capability ", request.device.compute_capability / 10, ".",
                  request.device.compute_capability % 10, "; legal: 9.0 and later (bulk copies)");
    }
    const StreamPlan plan = plan_stream(request, kind_);
    if (!plan.refusal.empty()) return plan.refusal;
    if (kind_ == StreamKind::lines) return line_us(request, plan);
    return corrected_us(CorrectedKernel::pointwise_stream, {.us = stream_us(request, plan)},
                        request);
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<PlanOfStream>(request, kind_);
  }

 private:
  const StreamKind kind_;
};

}  // namespace

std::unique_ptr<KernelCandidate> make_pointwise_stream_candidate() {
  return std::make_unique<StreamCandidate>(StreamKind::pixels);
}

std::unique_ptr<KernelCandidate> make_line_stream_candidate() {
  return std::make_unique<StreamCandidate>(StreamKind::lines);
}

}  // namespace convoy::small
