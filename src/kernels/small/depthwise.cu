// SPDX-License-Identifier: Apache-2.0
//
// Depthwise convolution: one channel a group. Memory-bound, or bound by the multiply-adds where the
// filter is large. The usual filters, one a channel and channels in whole vectors, have kernels
// that keep them in registers; depthwise_any.cuh takes all others.
#include "core/text.hpp"
#include "kernels/common/device_geometry.cuh"
#include "kernels/small/candidates.hpp"
#include "kernels/small/depthwise_host.hpp"

namespace convoy::small {
namespace {

// In the order in which they are asked: the first that takes a problem computes it.
// NOTE: measured: the 3×3 kernel takes 53 us and kDepthwiseRowsKernel 60 us on 64x56x56x144 (H200).
constexpr const DepthwiseKernel* kUsual[] = {&kDepthwiseRowKernel,  &kDepthwiseTileKernel,
                                             &kDepthwiseRingKernel, &kDepthwise3x3Kernel,
                                             &kDepthwiseLineKernel, &kDepthwiseRowsKernel};

struct Choice {
  const DepthwiseKernel& kernel;
  double us;
};
Choice choose(const PlanRequest& request) {
  for (const DepthwiseKernel* kernel : kUsual) {
    if (const std::optional<double> us = kernel->us(request)) return {*kernel, *us};
  }
  return {kDepthwiseAnyKernel, kDepthwiseAnyKernel.us(request).value()};
}

class DepthwiseCandidate final : public KernelCandidate {
 public:
  std::string name() const override { return "depthwise"; }
  Device device() const override { return Device::cuda; }
  bool packs_as_dense(const PlanRequest&) const override { return true; }

  Judgement judge(const PlanRequest& request) const override {
    constexpr double kLaunchUs = 4.0;
    const ConvGeometry& g = request.geometry;
    if (g.group_channels() != 1) {
      return text("C / groups = ", g.group_channels(), "; legal: 1");
    }
    std::string reason = depthwise_any_refusal(g);
    if (reason.empty()) reason = device_geometry_refusal(g);
    if (!reason.empty()) return reason;
    return kLaunchUs + choose(request).us;
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return choose(request).kernel.make(request);
  }
};

}  // namespace

std::unique_ptr<KernelCandidate> make_depthwise_candidate() {
  return std::make_unique<DepthwiseCandidate>();
}

}  // namespace convoy::small
