// SPDX-License-Identifier: Apache-2.0
//
// What composed kernels share that run another one on the same tensors by a filter of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/text.hpp"
#include "core/workspace.hpp"
#include "kernels/common/cuda_plan.hpp"

namespace convoy::composed {

/// us by which such a kernel takes longer than the inner one, whose filter has `elements`.
inline double filter_copy_us(const PlanRequest& request, std::int64_t elements) {
  constexpr double kLaunchUs = 3.0, kElementsPerUs = 3e5;
  return request.packed_filter ? 0.0 : kLaunchUs + static_cast<double>(elements) / kElementsPerUs;
}

/// `inner` by a filter made of the problem's dense KTRSC: packed beforehand, as `inner` packs its
/// own, or in the workspace by each run. `format`: how it is made; `elements`: of it, dense.
/// The request of `inner` says `packed_filter` where `request` does.
class FilterCopyPlan : public CudaPlan {
 public:
  FilterCopyPlan(const PlanRequest& request, std::string format, std::int64_t elements,
                 std::unique_ptr<ExecutablePlan> inner)
      : CudaPlan(request),
        format_(std::move(format)),
        bytes_(static_cast<std::size_t>(elements) * size_of(request.dtype)),
        inner_(std::move(inner)) {}

  std::size_t workspace_bytes() const override {
    return (request_.packed_filter ? 0 : part()) + inner_->workspace_bytes();
  }
  bool multiplies_tf32() const override { return inner_->multiplies_tf32(); }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    run_inner(pointers, pointers.workspace, stream);
    store_next_cache(pointers, stream);
  }

  std::string filter_format() const override {
    if (!request_.packed_filter) return "ktrsc";
    return inner_reads_dense() ? format_ : text(format_, "_", inner_->filter_format());
  }
  std::size_t packed_filter_bytes() const override {
    return request_.packed_filter ? inner_->packed_filter_bytes() : dense_filter_bytes();
  }
  void pack_filter(void* packed, const void* filter, FilterLayout layout,
                   cudaStream_t stream) const override {
    if (!request_.packed_filter) return CudaPlan::pack_filter(packed, filter, layout, stream);
    const auto made = inner_reads_dense() ? nullptr : allocate_device_memory(bytes_);
    pack_from_dense(filter, layout, stream, [&](const void* dense) {
      if (inner_reads_dense()) return make_filter(packed, dense, stream);
      make_filter(made.get(), dense, stream);
      inner_->pack_filter(packed, made.get(), dense_layout(request_.geometry), stream);
    });
  }

 protected:
  /// Enqueue it, from dense KTRSC.
  virtual void make_filter(void* to, const void* dense, cudaStream_t stream) const = 0;

  /// Enqueue `inner` with the tensors of `pointers`, and its filter, which is made first where it
  /// was not packed. `workspace`: workspace_bytes() of this class.
  void run_inner(const RunPointers& pointers, void* workspace, cudaStream_t stream) const {
    RunPointers inner = pointers;
    inner.next_cache = nullptr;  // Its extents may be others there.
    inner.workspace = workspace;
    if (!request_.packed_filter) {
      make_filter(workspace, pointers.filter, stream);
      inner.filter = workspace;
      inner.workspace = static_cast<char*>(workspace) + part();
    }
    inner_->run(inner, stream);
  }

 private:
  std::size_t part() const { return workspace_part(static_cast<std::int64_t>(bytes_)); }
  bool inner_reads_dense() const { return inner_->filter_format() == "ktrsc"; }

  const std::string format_;
  const std::size_t bytes_;
  const std::unique_ptr<ExecutablePlan> inner_;
};

}  // namespace convoy::composed
