// SPDX-License-Identifier: Apache-2.0
#include "kernels/composed/im2col_matmul.hpp"

#include <algorithm>

#include "core/text.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/device_geometry.cuh"
#include "kernels/composed/candidates.hpp"
#include "kernels/composed/transforms.hpp"

namespace convoy::composed {
namespace {

// The matrix product of one chunk.
PlanRequest gemm_request(const PlanRequest& request, const Im2colMatmulDriver& driver,
                         std::int64_t rows) {
  return inner_request(request, driver.gemm_problem(rows), request.output_dtype, request.epilogue);
}

class Im2colMatmulPlan final : public CudaPlan {
 public:
  Im2colMatmulPlan(const InnerKernels& inner, const PlanRequest& request,
                   const Im2colMatmulDriver& driver)
      : CudaPlan(request), driver_(driver) {
    gemm_ = bind(inner, driver.chunks().rows);
    if (driver.last_rows() != driver.chunks().rows) last_gemm_ = bind(inner, driver.last_rows());
  }

  std::size_t workspace_bytes() const override {
    const std::size_t last = last_gemm_ ? last_gemm_->workspace_bytes() : 0;
    return driver_.workspace_bytes() + std::max(gemm_->workspace_bytes(), last);
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    driver_.run(pointers, stream, [&](std::int64_t, std::int64_t rows, const RunPointers& inner) {
      (rows == driver_.chunks().rows ? gemm_ : last_gemm_)->run(inner, stream);
    });
    store_next_cache(pointers, stream);
  }

  std::string filter_format() const override { return packs_rows() ? "gemm_rows" : "ktrsc"; }
  std::size_t packed_filter_bytes() const override {
    if (!packs_rows()) return dense_filter_bytes();
    return static_cast<std::size_t>(request_.geometry.out_channels * driver_.pitch()) *
           size_of(request_.dtype);
  }
  void pack_filter(void* packed, const void* filter, FilterLayout layout,
                   cudaStream_t stream) const override {
    if (!packs_rows()) return CudaPlan::pack_filter(packed, filter, layout, stream);
    pack_from_dense(filter, layout, stream, [&](const void* dense) {
      pad_filter_rows(packed, dense, request_.geometry, driver_.pitch(), stream);
    });
  }

 private:
  // Runs of a plan without a packed filter pad it themselves, wherever it comes from.
  bool packs_rows() const { return driver_.pads_filter() && request_.packed_filter; }

  std::unique_ptr<ExecutablePlan> bind(const InnerKernels& inner, std::int64_t rows) const {
    const PlanRequest request = gemm_request(request_, driver_, rows);
    const InnerKernel chosen = inner.choose(request);
    if (chosen.kernel == nullptr) throw Error(Status::unsupported, chosen.reason);
    return chosen.kernel->make(request);
  }

  Im2colMatmulDriver driver_;
  std::unique_ptr<ExecutablePlan> gemm_;
  std::unique_ptr<ExecutablePlan> last_gemm_;  ///< Null where the last chunk is as long.
};

class Im2colMatmulCandidate final : public KernelCandidate {
 public:
  Im2colMatmulCandidate(InnerKernels inner, int rank, std::size_t scratch_bytes)
      : inner_(std::move(inner)), rank_(rank), scratch_bytes_(scratch_bytes) {}

  std::string name() const override { return text("im2col_matmul_conv", rank_, "d"); }
  Device device() const override { return Device::cuda; }
  bool packs_as_dense(const PlanRequest& request) const override {
    return !driver(request).pads_filter();
  }

  Judgement judge(const PlanRequest& request) const override {
    const ConvGeometry& g = request.geometry;
    if (g.rank != rank_) return text("rank = ", g.rank, "; legal: ", rank_);
    std::string reason = im2col_matmul_refusal(request);
    if (!reason.empty()) return reason;
    const Im2colMatmulDriver parts = driver(request);
    const InnerKernel gemm = inner_.choose(gemm_request(request, parts, parts.chunks().rows));
    if (!gemm.reason.empty()) return gemm.reason;

    // What a launch more costs is fitted to 812 layers on an H200; each vector of the columns is
    // found, read and written (5 layers).
    constexpr double kLaunchUs = 3.3;
    constexpr double kVectorsPerUs = 1.1e5;
    const double vectors = double(g.gemm_m()) * double(parts.pitch()) / double(im2col_vector(g));
    return double(parts.chunks().count) * (gemm.estimated_us + kLaunchUs) + vectors / kVectorsPerUs;
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<Im2colMatmulPlan>(inner_, request, driver(request));
  }

 private:
  Im2colMatmulDriver driver(const PlanRequest& request) const {
    return {request.geometry, request.output_dtype, request.packed_filter, scratch_bytes_};
  }

  InnerKernels inner_;
  int rank_;
  std::size_t scratch_bytes_;
};

}  // namespace

std::string im2col_matmul_refusal(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  if (request.dtype == DType::fp32) return "dtype = fp32; legal: bf16 or fp16";
  if (g.groups != 1) return text("groups = ", g.groups, "; legal: 1");
  return device_geometry_refusal(g);
}

std::unique_ptr<KernelCandidate> make_im2col_matmul_candidate(InnerKernels inner, int rank,
                                                              std::size_t scratch_bytes) {
  return std::make_unique<Im2colMatmulCandidate>(std::move(inner), rank, scratch_bytes);
}

}  // namespace convoy::composed
