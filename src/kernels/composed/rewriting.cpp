// SPDX-License-Identifier: Apache-2.0
#include "kernels/composed/rewriting.hpp"

#include "core/rewriting.hpp"
#include "core/text.hpp"
#include "kernels/common/cuda_plan.hpp"

namespace convoy::composed {
namespace {

// A plan of the rewritten problem for one who knows the problem as asked.
class RewrittenPlan final : public CudaPlan {
 public:
  RewrittenPlan(const PlanRequest& request, const ConvGeometry& form,
                std::unique_ptr<ExecutablePlan> rewritten)
      : CudaPlan(request), form_(form), rewritten_(std::move(rewritten)) {}

  std::size_t workspace_bytes() const override { return rewritten_->workspace_bytes(); }
  bool multiplies_tf32() const override { return rewritten_->multiplies_tf32(); }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    RunPointers inner = pointers;
    inner.next_cache = nullptr;  // Its frames may be another axis there.
    rewritten_->run(inner, stream);
    store_next_cache(pointers, stream);
  }

  // NOTE: another name than the same kernel's without rewriting, or with another one, whose format
  // is of other extents.
  std::string filter_format() const override {
    if (reads_dense()) return "ktrsc";
    return text(rewritten_->filter_format(), "_rewritten_", form_.filter[0], "x", form_.filter[1],
                "x", form_.filter[2]);
  }
  std::size_t packed_filter_bytes() const override { return rewritten_->packed_filter_bytes(); }
  void pack_filter(void* packed, const void* filter, FilterLayout layout,
                   cudaStream_t stream) const override {
    // Only as dense KTRSC is the filter the same in both forms.
    if (reads_dense()) return CudaPlan::pack_filter(packed, filter, layout, stream);
    pack_from_dense(filter, layout, stream, [&](const void* dense) {
      rewritten_->pack_filter(packed, dense, dense_layout(request_.geometry), stream);
    });
  }

 private:
  bool reads_dense() const { return rewritten_->filter_format() == "ktrsc"; }

  const ConvGeometry form_;
  const std::unique_ptr<ExecutablePlan> rewritten_;
};

class RewritingCandidate final : public KernelCandidate {
 public:
  explicit RewritingCandidate(std::unique_ptr<KernelCandidate> kernel)
      : kernel_(std::move(kernel)) {}

  std::string name() const override { return kernel_->name(); }
  Device device() const override { return kernel_->device(); }
  bool takes_prologues() const override { return kernel_->takes_prologues(); }
  bool takes_input_pitches() const override { return kernel_->takes_input_pitches(); }
  bool takes_output_pitches() const override { return kernel_->takes_output_pitches(); }
  Judgement judge(const PlanRequest& request) const override { return choose(request).judgement; }
  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    const Form form = choose(request);
    std::unique_ptr<ExecutablePlan> plan = kernel_->make(form.request);
    if (!form.rewritten) return plan;
    return std::make_unique<RewrittenPlan>(request, form.request.geometry, std::move(plan));
  }
  // NOTE: of the form that is chosen without statistics: that very one is made with them.
  std::string statistics_refusal(const PlanRequest& request) const override {
    const Form form = choose(without_statistics(request));
    if (form.rewritten && !form.keeps_pixels) {
      return "statistics of a strided problem in another form; legal: none";
    }
    return kernel_->statistics_refusal(with_statistics(form, request).request);
  }
  bool packs_as_dense(const PlanRequest& request) const override {
    return kernel_->packs_as_dense(choose(request).request);
  }

 private:
  struct Form {
    PlanRequest request;
    Judgement judgement;
    bool rewritten = false;
    bool keeps_pixels = true;
  };

  static Form with_statistics(Form form, const PlanRequest& request) {
    form.request.statistics_groups = request.statistics_groups;
    return form;
  }

  Form choose(const PlanRequest& request) const {
    if (request.statistics_groups > 0) {
      Form form = with_statistics(choose(without_statistics(request)), request);
      form.judgement = kernel_->judge(form.request);
      return form;
    }
    Form best{request, kernel_->judge(request)};
    for (const Rewriting& rewriting : rewritings(request.geometry)) {
      // NOTE: a norm knows channels and pixels as they were.
      if (request.prologue.any() && !rewriting.keeps_pixels) continue;
      Form form{request, 0.0, true, rewriting.keeps_pixels};
      form.request.geometry = rewriting.geometry;
      form.judgement = kernel_->judge(form.request);
      if (!form.judgement.refusal.empty()) continue;
      form.judgement.estimated_us *= rewriting_doubt(rewriting);
      const bool first = !best.judgement.refusal.empty();
      // NOTE: measured: frames as rows are loaded by im2col where frames are plain boxes, up to 1.6
      // times as long where the model sees no difference.
      const double worth = rewriting.keeps_pixels ? 0.9 : 1.0;
      if (first || form.judgement.estimated_us < worth * best.judgement.estimated_us) {
        best = std::move(form);
      }
    }
    return best;
  }

  std::unique_ptr<KernelCandidate> kernel_;
};

}  // namespace

std::unique_ptr<KernelCandidate> with_rewritings(std::unique_ptr<KernelCandidate> kernel) {
  return std::make_unique<RewritingCandidate>(std::move(kernel));
}

void apply_rewritings(CandidateList& list, std::size_t first) {
  for (std::size_t i = first; i < list.size(); ++i) {
    if (list[i]->device() == Device::cuda) list[i] = with_rewritings(std::move(list[i]));
  }
}

}  // namespace convoy::composed
