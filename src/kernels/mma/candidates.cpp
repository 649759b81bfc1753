// SPDX-License-Identifier: Apache-2.0
//
// The kernels of mma.sync as dispatch sees them.
#include <algorithm>

#include "core/candidate.hpp"
#include "core/text.hpp"
#include "kernels/common/implicit_gemm_plan.hpp"
#include "kernels/common/requirements.hpp"
#include "kernels/common/time_correction.hpp"
#include "kernels/mma/candidates.hpp"
#include "kernels/mma/host.hpp"
#include "kernels/mma/model.hpp"

namespace convoy::mma {
namespace {

class FpropPlan : public ImplicitGemmPlan {
 public:
  FpropPlan(const Instance& instance, const PlanRequest& request)
      : ImplicitGemmPlan(request), tiling_(fastest_tiling(instance, request)) {
    prepare(tiling_, std::max(1, request.device.multiprocessors));
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    launch(tiling_, pointers, request_.output_dtype, stream);
    store_next_cache(pointers, stream);
  }

  std::size_t workspace_bytes() const override { return tiling_.workspace_bytes(); }
  bool multiplies_tf32() const override {
    return ImplicitGemmPlan::multiplies_tf32() && !tiling_.instance.config.split;
  }

 private:
  Tiling tiling_;
};

class FpropCandidate : public KernelCandidate {
 public:
  explicit FpropCandidate(const Instance& instance) : instance_(instance) {}

  std::string name() const override { return name_of(instance_); }
  Device device() const override { return Device::cuda; }

  Judgement judge(const PlanRequest& request) const override {
    const Config& config = instance_.config;
    if (auto refused = require_capability_from(request.device, 80, "cp.async")) return *refused;
    if (instance_.gpus == Gpus::others) {
      if (auto refused = require_other_gpu(request.device)) return *refused;
    }
    if (request.dtype != config.in) {
      return {RefusalScope::types,
              text("dtype = ", to_string(request.dtype), "; legal: ", to_string(config.in))};
    }
    if (auto refused = require_whole_operands(request)) return *refused;
    if (!config.split) {
      if (auto refused = require_tf32(request)) return *refused;
    }
    std::string reason = refusal(instance_, request.geometry, request.packed_filter);
    if (!reason.empty()) return reason;
    const Tiling tiling = fastest_tiling(instance_, request);
    const auto shared_bytes = static_cast<std::size_t>(tiling.shared_bytes);
    if (auto refused = require_shared_memory(request.device, shared_bytes)) return *refused;
    const double us = estimate_us(tiling, request);
    if (config.split) return us;
    return corrected_us(CorrectedKernel::mma_fprop,
                        {.us = us,
                         .block_m = 1.0 * config.block_m,
                         .block_n = 1.0 * config.block_n,
                         .splits = 1.0 * tiling.splits},
                        request);
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

}  // namespace convoy::mma
