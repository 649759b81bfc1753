// SPDX-License-Identifier: Apache-2.0
#include "dispatch/shuffled.hpp"

#include "core/shuffle.hpp"
#include "core/workspace.hpp"

#ifdef CONVOY_WITH_CUDA
#include "kernels/composed/shuffle.hpp"
#endif

namespace convoy {
namespace {

PlanRequest unshuffled(const PlanRequest& request) {
  PlanRequest plain = request;
  plain.shuffle = {};
  return plain;
}

const ShuffleCopies& copies_of(Device device) {
#ifdef CONVOY_WITH_CUDA
  if (device == Device::cuda) return composed::cuda_shuffle_copies();
#endif
  (void)device;
  return host_shuffle_copies();
}

// The results in the workspace, then a copy. The residual, which the kernel wants where its results
// go, is copied there before.
class ShuffledCopyPlan final : public ExecutablePlan {
 public:
  ShuffledCopyPlan(const PlanRequest& request, const KernelCandidate& kernel)
      : request_(request),
        inner_(kernel.make(unshuffled(request))),
        copies_(copies_of(kernel.device())),
        element_bytes_(size_of(request.output_dtype)),
        results_bytes_(workspace_part(request.geometry.output_elements() *
                                      static_cast<std::int64_t>(element_bytes_))) {}

  std::size_t workspace_bytes() const override {
    return results_bytes_ + inner_->workspace_bytes();
  }
  bool multiplies_tf32() const override { return inner_->multiplies_tf32(); }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    // NOTE: a run on the CPU may come without a workspace.
    std::shared_ptr<void> own;
    void* results = pointers.workspace;
    RunPointers inner = pointers;
    if (results == nullptr) {
      own = inner_->allocate(results_bytes_);
      results = own.get();
    } else {
      inner.workspace = static_cast<char*>(results) + results_bytes_;
    }
    const ConvGeometry& g = request_.geometry;
    inner.output = results;
    inner.epilogue.residual = nullptr;
    inner.epilogue.residual_shape.reset();
    if (pointers.epilogue.residual != nullptr && pointers.epilogue.beta != 0.0f) {
      copies_.residual_of_filters(results, pointers.epilogue.residual, g, request_.shuffle,
                                  element_bytes_, stream);
      inner.epilogue.residual = results;
    }
    inner_->run(inner, stream);
    copies_.to_output(pointers.output, results, g, request_.shuffle, false, element_bytes_, stream);
  }

  std::string filter_format() const override { return inner_->filter_format(); }
  std::size_t packed_filter_bytes() const override { return inner_->packed_filter_bytes(); }
  void pack_filter(void* packed, const void* filter, FilterLayout layout,
                   cudaStream_t stream) const override {
    inner_->pack_filter(packed, filter, layout, stream);
  }
  std::shared_ptr<void> allocate(std::size_t bytes) const override {
    return inner_->allocate(bytes);
  }

 private:
  const PlanRequest request_;
  const std::unique_ptr<ExecutablePlan> inner_;
  const ShuffleCopies& copies_;
  const std::size_t element_bytes_, results_bytes_;
};

class ShuffledCandidate final : public KernelCandidate {
 public:
  explicit ShuffledCandidate(std::unique_ptr<KernelCandidate> kernel)
      : kernel_(std::move(kernel)) {}

  std::string name() const override { return kernel_->name(); }
  Device device() const override { return kernel_->device(); }
  bool takes_prologues() const override { return kernel_->takes_prologues(); }
  bool takes_output_pitches() const override { return kernel_->takes_output_pitches(); }

  Judgement judge(const PlanRequest& request) const override {
    if (!request.shuffle.any()) return kernel_->judge(request);
    const Judgement phases = judge_phases(request);
    return phases.refusal.empty() ? phases : judge_copy(request);
  }
  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    if (!request.shuffle.any()) return kernel_->make(request);
#ifdef CONVOY_WITH_CUDA
    if (judge_phases(request).refusal.empty()) {
      return composed::make_shuffled_phases(*kernel_, request);
    }
#endif
    return std::make_unique<ShuffledCopyPlan>(request, *kernel_);
  }
  // NOTE: groups of the output are not groups of filters then.
  std::string statistics_refusal(const PlanRequest& request) const override {
    if (!request.shuffle.any()) return kernel_->statistics_refusal(request);
    return text("statistics with shuffle = ", to_string(request.shuffle), "; legal: none");
  }
  // NOTE: a filter of phases is packed in another order.
  bool packs_as_dense(const PlanRequest& request) const override {
    return !request.shuffle.any() && kernel_->packs_as_dense(request);
  }

 private:
  // NOTE: wherever the kernel can, whatever the model says of both: where launches are what takes
  // the time, kernels that leave it to the copy have the shorter estimates.
  Judgement judge_phases(const PlanRequest& request) const {
#ifdef CONVOY_WITH_CUDA
    if (kernel_->takes_output_pitches()) {
      return composed::judge_shuffled_phases(*kernel_, request);
    }
#endif
    return text("shuffle = ", to_string(request.shuffle), "; legal: none (no output pitches)");
  }

  Judgement judge_copy(const PlanRequest& request) const {
    Judgement inner = kernel_->judge(unshuffled(request));
    if (!inner.refusal.empty()) return inner;
    const ConvGeometry& g = request.geometry;
    const bool on_gpu = kernel_->device() == Device::cuda;
    const double bytes_per_us = on_gpu ? 3e6 * memory_share(request.device) : 2e4;
    const double launch_us = on_gpu ? 2.0 : 0.0;
    std::int64_t moved = g.output_elements() + shuffled_elements(g, request.shuffle);
    int copies = 1;
    if (request.epilogue.residual) {
      moved += g.output_elements() + residual_elements(g, request.shuffle);
      ++copies;
    }
    return inner.estimated_us + copies * launch_us +
           double(moved) * double(size_of(request.output_dtype)) / bytes_per_us;
  }

  const std::unique_ptr<KernelCandidate> kernel_;
};

}  // namespace

void apply_shuffle(CandidateList& list) {
  for (std::unique_ptr<KernelCandidate>& kernel : list) {
    kernel = std::make_unique<ShuffledCandidate>(std::move(kernel));
  }
}

}  // namespace convoy
