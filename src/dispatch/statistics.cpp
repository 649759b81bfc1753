// SPDX-License-Identifier: Apache-2.0
#include "dispatch/statistics.hpp"

#include <algorithm>

#include "core/checked.hpp"
#include "core/divisors.hpp"
#include "core/norm.hpp"
#include "core/shuffle.hpp"
#include "core/text.hpp"
#include "dispatch/backends.hpp"

namespace convoy {
namespace {

/// The GroupNorm whose statistics are taken.
NormRequest norm_request(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  NormRequest norm;
  norm.batch = g.batch;
  norm.channels = shuffled_channels(g, request.shuffle);
  norm.pixels = shuffled_elements(g, request.shuffle) / (norm.batch * norm.channels);
  norm.groups = request.statistics_groups;
  norm.options.dtype = request.output_dtype;
  norm.device = request.device;
  return norm;
}

const NormBackend* norm_backend(const NormRequest& request, std::string* refusal) {
  *refusal = "statistics; legal: none (no norm was built for this device)";
  for (const auto& backend : norm_registry()) {
    if (backend->device() != request.device.kind) continue;
    *refusal = backend->refusal(request);
    if (refusal->empty()) return backend.get();
  }
  return nullptr;
}

// The kernel, then the statistics of what it has written.
class StatisticsPassPlan final : public ExecutablePlan {
 public:
  StatisticsPassPlan(const PlanRequest& request, std::unique_ptr<ExecutablePlan> kernel,
                     std::unique_ptr<NormKernel> norm)
      : kernel_(std::move(kernel)),
        norm_(std::move(norm)),
        kernel_bytes_((kernel_->workspace_bytes() + 255) / 256 * 256),
        image_pitch_(norm_request(request).elements() / request.geometry.batch) {}

  std::size_t workspace_bytes() const override { return kernel_bytes_ + norm_->workspace_bytes(); }
  bool multiplies_tf32() const override { return kernel_->multiplies_tf32(); }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    kernel_->run(pointers, stream);
    // NOTE: a run on the CPU may come without a workspace.
    auto* const workspace = static_cast<char*>(pointers.workspace);
    norm_->statistics({.output = pointers.statistics,
                       .input = pointers.output,
                       .image_pitch = image_pitch_,
                       .workspace = workspace == nullptr ? nullptr : workspace + kernel_bytes_},
                      stream);
  }

  std::string filter_format() const override { return kernel_->filter_format(); }
  std::size_t packed_filter_bytes() const override { return kernel_->packed_filter_bytes(); }
  void pack_filter(void* packed, const void* filter, FilterLayout layout,
                   cudaStream_t stream) const override {
    kernel_->pack_filter(packed, filter, layout, stream);
  }
  std::shared_ptr<void> allocate(std::size_t bytes) const override {
    return kernel_->allocate(bytes);
  }

 private:
  const std::unique_ptr<ExecutablePlan> kernel_;
  const std::unique_ptr<NormKernel> norm_;
  const std::size_t kernel_bytes_;
  const std::int64_t image_pitch_;
};

class StatisticsCandidate final : public KernelCandidate {
 public:
  explicit StatisticsCandidate(std::unique_ptr<KernelCandidate> kernel)
      : kernel_(std::move(kernel)) {}

  std::string name() const override { return kernel_->name(); }
  Device device() const override { return kernel_->device(); }
  bool takes_prologues() const override { return kernel_->takes_prologues(); }
  bool takes_output_pitches() const override { return kernel_->takes_output_pitches(); }
  std::string statistics_refusal(const PlanRequest& request) const override {
    return kernel_->statistics_refusal(request);
  }

  Judgement judge(const PlanRequest& request) const override {
    if (request.statistics_groups == 0) return kernel_->judge(request);
    Judgement plain = kernel_->judge(without_statistics(request));
    if (!plain.refusal.empty()) return plain;
    if (statistics_refusal(request).empty()) return kernel_->judge(request);
    std::string refusal;
    const NormRequest norm = norm_request(request);
    if (norm_backend(norm, &refusal) == nullptr) return refusal;
    const bool on_gpu = device() == Device::cuda;
    // Measured on an H200: launches and merge, then bytes.
    const double bytes_per_us = on_gpu ? 3.8e6 * memory_share(request.device) : 2e4;
    constexpr double kLaunchesUs = 12.0;
    return plain.estimated_us + (on_gpu ? kLaunchesUs : 0.0) +
           double(norm.elements()) * double(size_of(request.output_dtype)) / bytes_per_us;
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    if (request.statistics_groups == 0 || statistics_refusal(request).empty()) {
      return kernel_->make(request);
    }
    std::string refusal;
    const NormRequest norm = norm_request(request);
    const NormBackend* const backend = norm_backend(norm, &refusal);
    if (backend == nullptr) throw Error(Status::unsupported, text(name(), ": ", refusal));
    return std::make_unique<StatisticsPassPlan>(request, kernel_->make(without_statistics(request)),
                                                backend->make(norm));
  }
  bool packs_as_dense(const PlanRequest& request) const override {
    return kernel_->packs_as_dense(without_statistics(request));
  }

 private:
  const std::unique_ptr<KernelCandidate> kernel_;
};

}  // namespace

void apply_statistics(CandidateList& list) {
  for (std::unique_ptr<KernelCandidate>& kernel : list) {
    kernel = std::make_unique<StatisticsCandidate>(std::move(kernel));
  }
}

std::string statistics_source(const KernelCandidate& kernel, const PlanRequest& request) {
  if (request.statistics_groups == 0) return {};
  const std::string refusal = kernel.statistics_refusal(request);
  return refusal.empty() ? "epilogue" : "pass: " + refusal;
}

void check_statistics(const ConvGeometry& g, const OutputShuffle& shuffle, std::int64_t groups) {
  const std::int64_t channels = shuffled_channels(g, shuffle);
  if (groups > 0 && g.batch > 0 && shuffled_elements(g, shuffle) == 0) {
    throw_invalid("statistics_groups = ", groups, " of an output of ", channels,
                  " channels without elements; legal: 0 (none)");
  }
  if (groups == 0 || (groups > 0 && channels % groups == 0)) return;
  throw_invalid("statistics_groups = ", groups, " with ", channels,
                " channels of the output; legal: 0 (none) or a divisor; nearest: ",
                groups < 0 ? 0 : largest_divisor(channels, groups));
}

}  // namespace convoy
