// SPDX-License-Identifier: Apache-2.0
#include "kernels/composed/space_to_depth.hpp"

#include "core/space_to_depth.hpp"
#include "kernels/common/cuda_plan.hpp"

namespace convoy::composed {
namespace {

// A plan of the rewritten problem for one who knows the problem as asked.
class SpaceToDepthPlan final : public CudaPlan {
 public:
  SpaceToDepthPlan(const PlanRequest& request, std::unique_ptr<ExecutablePlan> rewritten)
      : CudaPlan(request), rewritten_(std::move(rewritten)) {}

  std::size_t workspace_bytes() const override { return rewritten_->workspace_bytes(); }
  bool multiplies_tf32() const override { return rewritten_->multiplies_tf32(); }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    RunPointers inner = pointers;
    inner.next_cache = nullptr;  // Its frames may be another axis there.
    rewritten_->run(inner, stream);
    store_next_cache(pointers, stream);
  }

  // NOTE: another name than the same kernel's without rewriting, whose own format is of other
  // extents.
  std::string filter_format() const override {
    return reads_dense() ? "ktrsc" : rewritten_->filter_format() + "_space_to_depth";
  }
  std::size_t packed_filter_bytes() const override { return rewritten_->packed_filter_bytes(); }
  void pack_filter(void* packed, const void* filter, FilterLayout layout,
                   cudaStream_t stream) const override {
    // Only as dense KTRSC is the filter the same in both forms.
    if (reads_dense()) return CudaPlan::pack_filter(packed, filter, layout, stream);
    pack_from_dense(filter, layout, stream, [&](const void* dense) {
      rewritten_->pack_filter(
          packed, dense, request_.geometry.rank == 2 ? FilterLayout::krsc : FilterLayout::ktrsc,
          stream);
    });
  }

 private:
  bool reads_dense() const { return rewritten_->filter_format() == "ktrsc"; }

  std::unique_ptr<ExecutablePlan> rewritten_;
};

class SpaceToDepthCandidate final : public KernelCandidate {
 public:
  explicit SpaceToDepthCandidate(std::unique_ptr<KernelCandidate> kernel)
      : kernel_(std::move(kernel)) {}

  std::string name() const override { return kernel_->name(); }
  Device device() const override { return kernel_->device(); }
  bool takes_prologues() const override { return kernel_->takes_prologues(); }
  bool takes_output_pitches() const override { return kernel_->takes_output_pitches(); }
  Judgement judge(const PlanRequest& request) const override { return choose(request).judgement; }
  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    const Form form = choose(request);
    std::unique_ptr<ExecutablePlan> plan = kernel_->make(form.request);
    if (!form.rewritten) return plan;
    return std::make_unique<SpaceToDepthPlan>(request, std::move(plan));
  }
  // NOTE: of the form that is chosen without statistics: that very one is made with them.
  std::string statistics_refusal(const PlanRequest& request) const override {
    PlanRequest plain = request;
    plain.statistics_groups = 0;
    const Form form = choose(plain);
    if (form.rewritten) return "statistics of a strided problem in another form; legal: none";
    return kernel_->statistics_refusal(request);
  }
  bool packs_as_dense(const PlanRequest& request) const override {
    return kernel_->packs_as_dense(choose(request).request);
  }

 private:
  struct Form {
    PlanRequest request;
    Judgement judgement;
    bool rewritten = false;
  };

  Form choose(const PlanRequest& request) const {
    Form best{request, kernel_->judge(request)};
    // NOTE: a norm and the pitches of an output know channels and pixels as they were.
    if (request.prologue.any() || !request.geometry.dense_output()) return best;
    if (request.statistics_groups > 0) return best;  // statistics_refusal
    for (const ConvGeometry& geometry : space_to_depth(request.geometry)) {
      Form form{request, 0.0, true};
      form.request.geometry = geometry;
      form.judgement = kernel_->judge(form.request);
      if (!form.judgement.refusal.empty()) continue;
      const bool first = !best.judgement.refusal.empty();
      if (first || form.judgement.estimated_us < best.judgement.estimated_us) {
        best = std::move(form);
      }
    }
    return best;
  }

  std::unique_ptr<KernelCandidate> kernel_;
};

}  // namespace

std::unique_ptr<KernelCandidate> with_space_to_depth(std::unique_ptr<KernelCandidate> kernel) {
  return std::make_unique<SpaceToDepthCandidate>(std::move(kernel));
}

void apply_space_to_depth(CandidateList& list) {
  for (std::unique_ptr<KernelCandidate>& kernel : list) {
    if (kernel->device() == Device::cuda) kernel = with_space_to_depth(std::move(kernel));
  }
}

}  // namespace convoy::composed
