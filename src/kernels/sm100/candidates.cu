// SPDX-License-Identifier: Apache-2.0
//
// The Blackwell kernels as dispatch sees them.
#include <cuda_runtime.h>

#include <cmath>

#include "core/candidate.hpp"
#include "core/text.hpp"
#include "kernels/common/implicit_gemm_plan.hpp"
#include "kernels/sm100/candidates.hpp"
#include "kernels/sm100/host.hpp"
#include "kernels/sm100/params.hpp"

namespace convoy::sm100 {
namespace {

class FpropPlan : public ImplicitGemmPlan {
 public:
  FpropPlan(const ConvKernel& kernel, const PlanRequest& request)
      : ImplicitGemmPlan(request), kernel_(kernel) {
    prepare(kernel_);
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvArguments arguments = describe(kernel_.config, request_.geometry, pointers);
    const NoComputeOp compute;
    const NoStoreOp store;
    launch(kernel_, arguments, &compute, &store, stream);
    store_next_cache(pointers, stream);
  }

 private:
  ConvKernel kernel_;
};

class FpropCandidate : public KernelCandidate {
 public:
  explicit FpropCandidate(const ConvKernel& kernel) : kernel_(kernel) {}

  std::string name() const override {
    return text(name_of(kernel_.config), "_", to_string(kernel_.config.act_dtype),
                kernel_.config.out_dtype == kernel_.config.act_dtype
                    ? ""
                    : text("_", to_string(kernel_.config.out_dtype)));
  }
  Device device() const override { return Device::cuda; }

  Judgement judge(const PlanRequest& request) const override {
    const int capability = request.device.compute_capability;
    if (capability / 10 != 10) {
      return {RefusalScope::device, text("compute capability ", capability / 10, ".",
                                         capability % 10, "; this kernel needs 10.x (tcgen05)")};
    }
    if (request.dtype != kernel_.config.act_dtype ||
        request.output_dtype != kernel_.config.out_dtype) {
      return {RefusalScope::types,
              text("types ", to_string(request.dtype), " -> ", to_string(request.output_dtype),
                   "; this kernel computes ", to_string(kernel_.config.act_dtype), " -> ",
                   to_string(kernel_.config.out_dtype))};
    }
    if (request.geometry.upsample == 2 && !request.packed_filter) {
      return "folded upsampling needs a packed filter; set PlanOptions::packed_filter";
    }
    const std::string reason = refusal(kernel_.config, request.geometry);
    if (!reason.empty()) return reason;
    return estimate_us(kernel_.config, request.geometry, request.device.multiprocessors);
  }
  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<FpropPlan>(kernel_, request);
  }

 private:
  ConvKernel kernel_;
};

}  // namespace

void register_kernels(CandidateList& list) {
  for (const ConvKernel& kernel : conv_kernels()) {
    list.push_back(std::make_unique<FpropCandidate>(kernel));
  }
}

}  // namespace convoy::sm100
