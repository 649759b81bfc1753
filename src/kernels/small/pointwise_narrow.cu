// SPDX-License-Identifier: Apache-2.0
#include "kernels/small/pointwise_narrow.cuh"

#include <algorithm>
#include <cmath>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/time_correction.hpp"
#include "kernels/small/candidates.hpp"
#include "kernels/small/short_layers.hpp"
#include "kernels/small/unit_axes.hpp"

namespace convoy::small {
namespace {

/// What a launch consists of, or why there is none.
struct NarrowPlan {
  NarrowLayout layout;
  int mmas = 0;   ///< MMA columns of 8 filters.
  int warps = 0;  ///< Of a block; one block a multiprocessor.
  std::int64_t tiles = 0;
  std::int64_t blocks = 0;
  std::string refusal;
};

NarrowPlan plan_narrow(const PlanRequest& request) {
  constexpr int kReserved = 1024;  // A block's, of the runtime.
  constexpr std::int64_t kMostChannels = 4096, kMostFilters = 32, kLeastWarps = 4;
  const ConvGeometry& g = request.geometry;
  NarrowPlan plan;
  plan.refusal = short_layer_refusal(request);
  if (plan.refusal.empty()) plan.refusal = channels_refusal("in_channels", g.in_channels, 2);
  if (plan.refusal.empty()) plan.refusal = pointwise_shape_refusal(g);
  if (!plan.refusal.empty()) return plan;
  if (g.out_channels > kMostFilters) {
    plan.refusal = text("out_channels = ", g.out_channels, "; legal: at most ", kMostFilters,
                        "; nearest: ", kMostFilters);
    return plan;
  }
  if (g.in_channels > kMostChannels) {
    plan.refusal = text("in_channels = ", g.in_channels, "; legal: at most ", kMostChannels,
                        "; nearest: ", kMostChannels);
    return plan;
  }
  NarrowLayout& l = plan.layout;
  plan.mmas = 1;
  while (8 * plan.mmas < g.out_channels) plan.mmas *= 2;
  l.channels = static_cast<int>(g.in_channels);
  l.filters = static_cast<int>(g.out_channels);
  l.chunks = g.in_channels % 8 == 0 && g.in_channels > 32 ? kNarrowChunks : kNarrowFewChunks;
  l.units = static_cast<int>(ceil_div(g.in_channels, std::int64_t{l.chunks} * 8));
  l.filter_bytes = l.units * plan.mmas * l.chunks * 128;
  l.bias_bytes = static_cast<int>(round_up(std::int64_t{plan.mmas} * 32, std::int64_t{128}));
  l.buffer_bytes =
      static_cast<int>(round_up(g.out_channels * kNarrowPixels * 2, std::int64_t{128}));
  plan.tiles = ceil_div(g.gemm_m(), std::int64_t{kNarrowPixels});
  const std::int64_t processors = std::max(1, request.device.multiprocessors);
  const std::int64_t wanted =
      std::clamp<std::int64_t>(ceil_div(plan.tiles, processors), kLeastWarps, kNarrowMostWarps);
  const std::int64_t room = static_cast<std::int64_t>(request.device.shared_memory) - kReserved -
                            l.filter_bytes - l.bias_bytes;
  plan.warps = static_cast<int>(std::min(wanted, room / l.ring_bytes()));
  if (plan.warps < 1) {
    plan.refusal = text("filters and a ring of ", l.shared_bytes(1), " bytes; legal: at most ",
                        static_cast<std::int64_t>(request.device.shared_memory) - kReserved,
                        " (shared memory)");
    return plan;
  }
  plan.blocks = std::min(processors, ceil_div(plan.tiles, std::int64_t{plan.warps}));
  return plan;
}

// Model time, fitted to 810 times on an H200; 102 of other layers within 14 %, nine of ten
// (docs/lab/2026-12-01-narrow-outputs.md). A warp takes a tile after the other, of those a unit.
double narrow_us(const PlanRequest& request, const NarrowPlan& plan) {
  constexpr double kLaunchUs = 4.65, kCrowdUs = 2.53;  // And more where all warps begin at once.
  constexpr double kFilterBytesPerUs = 9000.0, kBytesPerUs = 3.78e6;
  constexpr double kUnitUs = 0.137, kFewUnitUs = 0.025, kOddUnitUs = 0.45;
  constexpr double kCurvedUs = 0.086, kResidualUs = 0.23;  // More, of a tile's end.
  const ConvGeometry& g = request.geometry;
  const NarrowLayout& l = plan.layout;
  const double unit_us = g.in_channels % 8 != 0      ? kOddUnitUs
                         : l.chunks == kNarrowChunks ? kUnitUs
                                                     : kFewUnitUs;
  const double end_us = (is_curved(request.epilogue.activation) ? kCurvedUs * plan.mmas : 0.0) +
                        (request.epilogue.residual ? kResidualUs : 0.0);
  const auto rounds = static_cast<double>(ceil_div(plan.tiles, plan.blocks * plan.warps));
  const double of_all_warps = static_cast<double>(plan.tiles) /
                              (std::max(1, request.device.multiprocessors) * kNarrowMostWarps);
  return kLaunchUs + kCrowdUs * std::min(1.0, of_all_warps) + l.filter_bytes / kFilterBytesPerUs +
         rounds * (l.units * unit_us + end_us) +
         min_bytes(request) / (kBytesPerUs * memory_share(request.device));
}

class PointwiseNarrowPlan final : public CudaPlan {
 public:
  explicit PointwiseNarrowPlan(const PlanRequest& request)
      : CudaPlan(request), plan_(plan_narrow(request)) {
    raise_shared_memory_limit(choose_kernel(), plan_.layout.shared_bytes(plan_.warps),
                              "pointwise_narrow");
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    const NarrowArguments arguments{
        .activation = pointers.activation,
        .filter = pointers.filter,
        .pixels = g.gemm_m(),
        .tiles = plan_.tiles,
        .layout = plan_.layout,
        .output = conv_output(pointers, request_.output_dtype, g.out_channels, g.out_channels)};
    launch_kernel(choose_kernel(),
                  {.name = "pointwise_narrow",
                   .grid = static_cast<unsigned>(plan_.blocks),
                   .block = static_cast<unsigned>(plan_.warps * 32),
                   .shared_bytes = static_cast<std::size_t>(plan_.layout.shared_bytes(plan_.warps)),
                   .stream = stream},
                  arguments);
    store_next_cache(pointers, stream);
  }

 private:
  using Kernel = void(NarrowArguments);

  Kernel* choose_kernel() const {
    return request_.dtype == DType::bf16 ? choose_copies<__nv_bfloat16>() : choose_copies<__half>();
  }
  template <typename Element>
  Kernel* choose_copies() const {
    if (request_.geometry.in_channels % 8 != 0) {
      return choose_filters<Element, 4, kNarrowFewChunks>();
    }
    return plan_.layout.chunks == kNarrowChunks ? choose_filters<Element, 16, kNarrowChunks>()
                                                : choose_filters<Element, 16, kNarrowFewChunks>();
  }
  template <typename Element, int kBytes, int kChunks>
  Kernel* choose_filters() const {
    switch (plan_.mmas) {
      case 1:
        return pointwise_narrow_kernel<Element, kBytes, kChunks, 1>;
      case 2:
        return pointwise_narrow_kernel<Element, kBytes, kChunks, 2>;
      default:
        return pointwise_narrow_kernel<Element, kBytes, kChunks, 4>;
    }
  }

  const NarrowPlan plan_;
};

class PointwiseNarrowCandidate final : public KernelCandidate {
 public:
  std::string name() const override { return "pointwise_narrow"; }
  Device device() const override { return Device::cuda; }
  bool packs_as_dense(const PlanRequest&) const override { return true; }

  Judgement judge(const PlanRequest& request) const override {
    const NarrowPlan plan = plan_narrow(request);
    if (!plan.refusal.empty()) return plan.refusal;
    return corrected_us(CorrectedKernel::pointwise_narrow, {.us = narrow_us(request, plan)},
                        request);
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<PointwiseNarrowPlan>(request);
  }
};

}  // namespace

std::unique_ptr<KernelCandidate> make_pointwise_narrow_candidate() {
  return std::make_unique<PointwiseNarrowCandidate>();
}

}  // namespace convoy::small
