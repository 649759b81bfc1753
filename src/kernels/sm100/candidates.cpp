// SPDX-License-Identifier: Apache-2.0
//
// The Blackwell kernels as dispatch sees them.
#include "kernels/sm100/candidates.hpp"

#include <cuda_runtime.h>

#include "core/text.hpp"
#include "kernels/common/implicit_gemm_plan.hpp"
#include "kernels/sm100/host.hpp"
#include "kernels/sm100/model.hpp"

namespace convoy::sm100 {
namespace {

class FpropPlan : public ImplicitGemmPlan {
 public:
  FpropPlan(const Instance& instance, const PlanRequest& request)
      : ImplicitGemmPlan(request),
        launch_(plan_launch(instance, request.geometry, request.packed_filter, request.prologue)) {
    prepare(instance);
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const NoComputeOp compute;
    const NoStoreOp store;
    launch(launch_, pointers, &compute, &store, stream);
    store_next_cache(pointers, stream);
  }

 private:
  const Launch launch_;
};

class FpropCandidate : public KernelCandidate {
 public:
  explicit FpropCandidate(const Instance& instance) : instance_(instance) {}

  std::string name() const override { return name_of(instance_); }
  Device device() const override { return Device::cuda; }
  bool takes_prologues() const override { return instance_.config.normalises(); }
  bool takes_output_pitches() const override { return true; }
  bool packs_as_dense(const PlanRequest& request) const override {
    return request.geometry.upsample == 1;
  }

  Judgement judge(const PlanRequest& request) const override {
    const Config& config = instance_.config;
    const int capability = request.device.compute_capability;
    if (capability != 100 && capability != 103) {
      return {RefusalScope::device,
              text("compute capability = ", capability / 10, ".", capability % 10,
                   "; legal: 10.0, 10.3 (tcgen05; built for the family sm_100f)")};
    }
    if (request.dtype != config.act_dtype || request.output_dtype != config.out_dtype) {
      return {RefusalScope::types,
              text("types = ", to_string(request.dtype), " -> ", to_string(request.output_dtype),
                   "; legal: ", to_string(config.act_dtype), " -> ", to_string(config.out_dtype))};
    }
    std::string reason = refusal(instance_, request.geometry, request.packed_filter);
    if (reason.empty()) {
      reason = prologue_refusal(instance_, request.geometry, request.prologue);
    }
    if (!reason.empty()) return reason;
    return estimate_us(instance_, request.geometry, request.device.multiprocessors,
                       request.epilogue, request.prologue);
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<FpropPlan>(instance_, request);
  }

 private:
  const Instance instance_;
};

}  // namespace

void register_kernels(CandidateList& list) {
  for (const Instance& instance : instances()) {
    list.push_back(std::make_unique<FpropCandidate>(instance));
  }
}

}  // namespace convoy::sm100
