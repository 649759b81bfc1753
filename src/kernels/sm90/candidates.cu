// SPDX-License-Identifier: Apache-2.0
//
// The Hopper kernels as dispatch sees them.
#include <cuda_runtime.h>

#include "convoy/error.hpp"
#include "core/candidate.hpp"
#include "core/text.hpp"
#include "kernels/common/implicit_gemm_plan.hpp"
#include "kernels/sm90/candidates.hpp"
#include "kernels/sm90/host.hpp"
#include "kernels/sm90/model.hpp"
#include "kernels/sm90/stem.hpp"

namespace convoy::sm90 {
namespace {

class Sm90Plan : public ImplicitGemmPlan {
 public:
  Sm90Plan(const FpropInstance& instance, const PlanRequest& request)
      : ImplicitGemmPlan(request),
        plan_(best_plan(request.geometry, instance, request.packed_filter,
                        request.device.multiprocessors, request.epilogue)
                  .plan) {
    prepare_fprop(instance);
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    launch_fprop(plan_, pointers, request_.device.multiprocessors, stream);
    store_next_cache(pointers, stream);
  }

 private:
  FpropPlan plan_;
};

class Sm90Candidate : public KernelCandidate {
 public:
  explicit Sm90Candidate(const FpropInstance& instance) : instance_(instance) {}

  std::string name() const override {
    return text("sm90_fprop_", instance_.name(), "_", to_string(instance_.in),
                instance_.in == instance_.out ? "" : text("_", to_string(instance_.out)));
  }
  Device device() const override { return Device::cuda; }
  bool packs_as_dense(const PlanRequest& request) const override {
    return request.geometry.upsample == 1;
  }

  Judgement judge(const PlanRequest& request) const override {
    const int capability = request.device.compute_capability;
    if (capability != 90) {
      return {RefusalScope::device, text("compute capability ", capability / 10, ".",
                                         capability % 10, "; this kernel needs 9.0 (wgmma)")};
    }
    if (request.dtype != instance_.in || request.output_dtype != instance_.out) {
      return {RefusalScope::types, text("types ", to_string(request.dtype), " -> ",
                                        to_string(request.output_dtype), "; this kernel computes ",
                                        to_string(instance_.in), " -> ", to_string(instance_.out))};
    }
    if (request.device.shared_memory < static_cast<std::size_t>(instance_.shared_bytes)) {
      return text("shared memory of a block: ", request.device.shared_memory,
                  " bytes; this kernel needs ", instance_.shared_bytes);
    }
    const std::string reason = fprop_refusal(request.geometry, instance_, request.packed_filter);
    if (!reason.empty()) return reason;
    // What only shows once the tiling is known: limits of tensor maps.
    try {
      return best_plan(request.geometry, instance_, request.packed_filter,
                       request.device.multiprocessors, request.epilogue)
          .us;
    } catch (const Error& error) {
      return error.what();
    }
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<Sm90Plan>(instance_, request);
  }

 private:
  FpropInstance instance_;
};

}  // namespace

void register_kernels(CandidateList& list) {
  for (const FpropInstance& instance : fprop_instances()) {
    list.push_back(std::make_unique<Sm90Candidate>(instance));
  }
  list.push_back(make_stem_candidate());
}

}  // namespace convoy::sm90
