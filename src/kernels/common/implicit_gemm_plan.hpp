// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/implicit_gemm.hpp"

namespace convoy {

/// What the implicit-GEMM plans of every architecture share: a filter that is dense KTRSC, or the
/// four phase filters of a folded upsampling, in one or two terms.
class ImplicitGemmPlan : public CudaPlan {
 public:
  using CudaPlan::CudaPlan;

  std::string filter_format() const override {
    if (!folds()) return "ktrsc";
    return upsampled_filter_terms(request_.geometry) == 2 ? "upsampled_phases_exact"
                                                          : "upsampled_phases_fast";
  }
  std::size_t packed_filter_bytes() const override {
    return folds() ? upsampled_filter_bytes(request_.geometry, request_.dtype)
                   : dense_filter_bytes();
  }
  void pack_filter(void* packed, const void* filter, FilterLayout layout,
                   cudaStream_t stream) const override {
    if (folds()) {
      pack_upsampled_filter(packed, filter, layout, request_.geometry, request_.dtype, stream);
    } else {
      CudaPlan::pack_filter(packed, filter, layout, stream);
    }
  }

  // NOTE: tensor cores have no other product of fp32 tensors.
  bool multiplies_tf32() const override { return request_.dtype == DType::fp32; }

 private:
  bool folds() const {
    return implicit_gemm::folds_upsampling(request_.geometry, request_.packed_filter);
  }
};

}  // namespace convoy
