// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/candidate.hpp"
#include "kernels/common/cuda_plan.hpp"

namespace convoy {

/// What the implicit-GEMM plans of every architecture share: the filter formats (dense KTRSC, or
/// the four phase filters of a folded upsampling) and the next cache. A kernel adds `run`.
class ImplicitGemmPlan : public ExecutablePlan {
 public:
  explicit ImplicitGemmPlan(const PlanRequest& request) : request_(request) {}

  std::string filter_format() const override { return folds() ? "upsampled_phases" : "ktrsc"; }
  std::size_t packed_filter_bytes() const override {
    return folds() ? upsampled_filter_bytes(request_.geometry, request_.dtype)
                   : static_cast<std::size_t>(request_.geometry.filter_elements()) *
                         size_of(request_.dtype);
  }
  void pack_filter(void* packed, const void* filter, FilterLayout layout,
                   cudaStream_t stream) const override {
    if (folds()) {
      pack_upsampled_filter(packed, filter, layout, request_.geometry, request_.dtype, stream);
    } else {
      repack_filter(packed, filter, layout, request_.geometry, request_.dtype, stream);
    }
  }
  std::shared_ptr<void> allocate(std::size_t bytes) const override {
    return allocate_device_memory(bytes);
  }

 protected:
  void store_next_cache(const RunPointers& pointers, cudaStream_t stream) const {
    if (pointers.next_cache == nullptr) return;
    write_next_cache(pointers.next_cache, pointers.cache, pointers.activation, request_.geometry,
                     request_.dtype, stream);
  }

  const PlanRequest request_;

 private:
  bool folds() const { return request_.geometry.upsample == 2; }
};

}  // namespace convoy
