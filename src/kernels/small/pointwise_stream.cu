// SPDX-License-Identifier: Apache-2.0
#include "kernels/small/pointwise_stream.cuh"

#include <algorithm>
#include <cmath>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/time_correction.hpp"
#include "kernels/small/candidates.hpp"
#include "kernels/small/patch_extents.hpp"
#include "kernels/small/pointwise_shape.hpp"

namespace convoy::small {
namespace {

/// What a launch consists of, or why there is none.
struct StreamPlan {
  StreamLayout layout;
  int vector = 0;
  int warps = 0;  ///< Of a block.
  int blocks_per_sm = 0;
  std::int64_t chunks = 0;
  std::int64_t blocks = 0;
  std::string refusal;
};

std::string shape_refusal(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  if (request.dtype == DType::fp32) return "dtype = fp32; legal: bf16 or fp16";
  if (request.output_dtype != request.dtype) {
    return text("output_dtype = ", to_string(request.output_dtype), "; legal: dtype, ",
                to_string(request.dtype));
  }
  if (!is_short(request.epilogue, request.output_dtype)) {
    return text("epilogue = ", to_string(request.epilogue),
                "; legal: none, relu, leaky_relu, silu, clamp, hardswish, gelu, gelu_tanh, rounded "
                "once");
  }
  if (g.groups != 1) return text("groups = ", g.groups, "; legal: 1");
  if (g.in_channels % 2 != 0) {
    return text("in_channels = ", g.in_channels,
                "; legal: a multiple of 2; nearest: ", g.in_channels + 1);
  }
  return pointwise_shape_refusal(g);
}

StreamPlan plan_stream(const PlanRequest& request) {
  constexpr std::int64_t kMostChannels = 1024;
  // Of a chunk and what comes of it: copies of less do not keep memory busy.
  constexpr std::int64_t kChunkBytes = 3072;
  constexpr int kLeastStages = 2, kMostStages = 6;
  constexpr int kReserved = 1024;  // A block's, of the runtime.
  constexpr std::int64_t kMostChunks = std::int64_t{1} << 40;

  const ConvGeometry& g = request.geometry;
  StreamPlan plan;
  plan.refusal = shape_refusal(request);
  if (!plan.refusal.empty()) return plan;
  if (g.in_channels > kMostChannels || g.out_channels > kMostChannels) {
    plan.refusal = text("in_channels, out_channels = ", g.in_channels, ", ", g.out_channels,
                        "; legal: at most ", kMostChannels);
    return plan;
  }
  StreamLayout& l = plan.layout;
  l.groups = static_cast<int>(ceil_div(g.out_channels, kStreamGroupFilters));
  plan.vector = g.in_channels % 8 == 0 ? 8 : 2;
  l.channels = static_cast<int>(g.in_channels);
  l.filters = static_cast<int>(g.out_channels);
  const int unit = plan.vector == 8 ? 32 : 16;
  l.units = static_cast<int>(ceil_div(g.in_channels, unit));
  // NOTE: of eight channels at once two filters are read together, of two all eight: from pitch to
  // pitch other banks.
  l.filter_pitch = plan.vector == 8 ? 64 * (l.units | 1) : 32 * l.units + 20;
  const int rows = l.groups * kStreamGroupFilters;
  l.filter_bytes = static_cast<int>(round_up(std::int64_t{rows} * l.filter_pitch, 128));
  l.bias_bytes = static_cast<int>(round_up(std::int64_t{rows} * 4, 128));
  l.buffers = request.epilogue.residual ? kStreamResidualBuffers : kStreamBuffers;

  constexpr int step = kStreamStepPixels;
  const std::int64_t step_bytes = std::int64_t{step} * (g.in_channels + g.out_channels) * 2;
  const std::int64_t steps = std::max<std::int64_t>(1, kChunkBytes / step_bytes);
  const int multiprocessors = std::max(1, request.device.multiprocessors);
  // As few pixels a chunk as give every warp one.
  const std::int64_t all_steps = ceil_div(std::max<std::int64_t>(1, g.gemm_m()), step);
  const std::int64_t shared_steps =
      all_steps / (std::int64_t{multiprocessors} * 2 * kStreamMostWarps);
  l.chunk_pixels = static_cast<int>(step * std::clamp<std::int64_t>(shared_steps, 1, steps));
  l.stage_bytes = static_cast<int>(round_up(std::int64_t{l.chunk_pixels} * l.channels * 2, 128));
  l.buffer_bytes = static_cast<int>(round_up(std::int64_t{l.chunk_pixels} * l.filters * 2, 128));
  plan.chunks = ceil_div(g.gemm_m(), l.chunk_pixels);
  if (plan.chunks > kMostChunks) {
    plan.refusal = text("pixels = ", g.gemm_m(), "; legal: at most ", kMostChunks * l.chunk_pixels);
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
  const Activation activation = request.epilogue.activation;
  const bool curved = activation == Activation::silu || activation == Activation::gelu ||
                      activation == Activation::gelu_tanh;
  const double turns = std::ceil(l.groups / double(kStreamMostGroups));
  const double units = l.units * (plan.vector == 8 ? 1.0 : 0.5);
  const double cycles = kStepCycles + turns * (kTurnCycles + kTurnUnitCycles * units) +
                        l.groups * (kGroupCycles + kGroupUnitCycles * units +
                                    (request.epilogue.residual ? kResidualCycles : 0.0) +
                                    (curved ? kCurvedCycles : 0.0));
  const double steps = static_cast<double>(ceil_div(request.geometry.gemm_m(), kStreamStepPixels)) /
                       std::max(1, request.device.multiprocessors);
  const double compute_us =
      steps * cycles / kCyclesPerUs * std::max(1.0, kWarps / (plan.blocks_per_sm * plan.warps));
  const double memory_us = min_bytes(request) / (kBytesPerUs * memory_share(request.device));
  return kLaunchUs + l.filter_bytes / kFilterBytesPerUs + turns * (kTurnUs + kUnitUs * units) +
         std::pow(std::pow(compute_us, kOverlap) + std::pow(memory_us, kOverlap), 1.0 / kOverlap);
}

class PointwiseStreamPlan final : public CudaPlan {
 public:
  explicit PointwiseStreamPlan(const PlanRequest& request)
      : CudaPlan(request), plan_(plan_stream(request)) {
    for (const bool residual : {false, true}) {
      raise_shared_memory_limit(choose_kernel(residual), plan_.layout.shared_bytes(plan_.warps),
                                "pointwise_stream");
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
        .output = conv_output(pointers, request_.output_dtype, g.out_channels, g.out_channels)};
    launch_kernel(choose_kernel(arguments.output.epilogue.has_residual),
                  {.name = "pointwise_stream",
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
    return request_.dtype == DType::bf16 ? choose_vector<__nv_bfloat16>(residual)
                                         : choose_vector<__half>(residual);
  }
  template <typename Element>
  Kernel* choose_vector(bool residual) const {
    return plan_.vector == 8 ? choose_groups<Element, 8>(residual)
                             : choose_groups<Element, 2>(residual);
  }
  template <typename Element, int kVector>
  Kernel* choose_groups(bool residual) const {
    const auto choose = [&]<int kGroups>() -> Kernel* {
      return residual ? pointwise_stream_kernel<Element, kVector, kGroups, true>
                      : pointwise_stream_kernel<Element, kVector, kGroups, false>;
    };
    return plan_.layout.groups == 1 ? choose.template operator()<1>()
                                    : choose.template operator()<2>();
  }

  const StreamPlan plan_;
};

class PointwiseStreamCandidate final : public KernelCandidate {
 public:
  std::string name() const override { return "pointwise_stream"; }
  Device device() const override { return Device::cuda; }
  bool packs_as_dense(const PlanRequest&) const override { return true; }

  Judgement judge(const PlanRequest& request) const override {
    if (request.device.compute_capability < 90) {
      return text("compute capability ", request.device.compute_capability / 10, ".",
                  request.device.compute_capability % 10, "; legal: 9.0 and later (bulk copies)");
    }
    const StreamPlan plan = plan_stream(request);
    if (!plan.refusal.empty()) return plan.refusal;
    return corrected_us(CorrectedKernel::pointwise_stream, {.us = stream_us(request, plan)},
                        request);
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<PointwiseStreamPlan>(request);
  }
};

}  // namespace

std::unique_ptr<KernelCandidate> make_pointwise_stream_candidate() {
  return std::make_unique<PointwiseStreamCandidate>();
}

}  // namespace convoy::small
