// SPDX-License-Identifier: Apache-2.0
#include "kernels/small/few_filters_async.cuh"

#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/requirements.hpp"
#include "kernels/small/candidates.hpp"
#include "kernels/small/few_filters_host.hpp"

namespace convoy::small {
namespace {

// Columns of the GEMM and most rows of a warp: kernels with straight-line sums have two. Decoders'
// last layers, to RGB in 2-D and in 3-D.
struct AsyncForm {
  int columns, most_rows;
  bool straight;
};
AsyncForm async_form(const ConvGeometry& g) {
  const int columns = built_columns(g);
  const std::int64_t frames = depth_taps(g).count;
  const bool straight = g.filter[2] == 3 && g.out_channels == 3 && (frames == 1 || frames == 3);
  return {straight ? columns : columns == 48 ? 64 : columns, straight ? 2 : 1, straight};
}

class FewFiltersAsyncPlan final : public CudaPlan {
 public:
  explicit FewFiltersAsyncPlan(const PlanRequest& request)
      : CudaPlan(request), form_(async_form(request.geometry)) {
    const FewFiltersTiling tiling = few_filters_tiling(request, form_.columns, form_.most_rows);
    layout_ = tiling.layout;
    rows_ = tiling.rows;
    shared_bytes_ = layout_.shared_bytes(rows_, form_.columns);
    kernel_ =
        request.dtype == DType::bf16 ? choose_kernel<__nv_bfloat16>() : choose_kernel<__half>();
    raise_shared_memory_limit(kernel_, shared_bytes_, "few_filters_async");
    blocks_ = static_cast<unsigned>(std::min(layout_.tiles, request.device.multiprocessors));
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const std::int64_t filters = request_.geometry.out_channels;
    const FewFiltersAsyncArguments arguments{
        .common = {.filter = pointers.filter,
                   .output = conv_output(pointers, request_.output_dtype, filters, filters),
                   .layout = layout_},
        .activation = pointers.activation,
        .cache = pointers.cache};
    launch_kernel(kernel_,
                  {.name = "few_filters_async",
                   .grid = blocks_,
                   .block = static_cast<unsigned>(layout_.consumers * 32),
                   .shared_bytes = static_cast<std::size_t>(shared_bytes_),
                   .stream = stream},
                  arguments);
    store_next_cache(pointers, stream);
  }

 private:
  using Kernel = void(FewFiltersAsyncArguments);

  template <typename Element>
  Kernel* choose_kernel() const {
    const bool two = rows_ == 2;
    if (form_.straight) {
      if (layout_.filter[0] == 1) {
        return two ? few_filters_async_kernel<Element, 2, 2, 1, 3, 3>
                   : few_filters_async_kernel<Element, 2, 1, 1, 3, 3>;
      }
      return two ? few_filters_async_kernel<Element, 4, 2, 3, 3, 3>
                 : few_filters_async_kernel<Element, 4, 1, 3, 3, 3>;
    }
    switch (form_.columns) {
      case 16:
        return few_filters_async_kernel<Element, 2, 1, 0, 0, 0>;
      case 32:
        return few_filters_async_kernel<Element, 4, 1, 0, 0, 0>;
      default:
        return few_filters_async_kernel<Element, 8, 1, 0, 0, 0>;
    }
  }

  AsyncForm form_;
  FewFiltersLayout layout_;
  Kernel* kernel_ = nullptr;
  int rows_ = 1;
  int shared_bytes_ = 0;
  unsigned blocks_ = 0;
};

class FewFiltersAsyncCandidate final : public KernelCandidate {
 public:
  std::string name() const override { return "few_filters_async"; }
  Device device() const override { return Device::cuda; }
  bool packs_as_dense(const PlanRequest&) const override { return true; }

  Judgement judge(const PlanRequest& request) const override {
    if (auto refused = require_other_gpu(request.device)) return *refused;
    const std::string reason = few_filters_refusal(request);
    if (!reason.empty()) return reason;
    const AsyncForm form = async_form(request.geometry);
    const FewFiltersTiling tiling = few_filters_tiling(request, form.columns, form.most_rows);
    if (tiling.rows == 0) {
      return text("input tile and filters in ", form.columns, " columns; legal: at most ",
                  request.device.shared_memory, " bytes (shared memory)");
    }
    // NOTE: counted, not measured: 256 copies a row, each some 14 instructions of a warp, shared by
    // four schedulers of which half the slots are free.
    constexpr double kCopyCycles = 56.0;
    // NOTE: where TMA loads for a kernel that was measured, this one has to be better by far.
    const double doubt = request.device.compute_capability >= 90 ? 1.3 : 1.0;
    return doubt * few_filters_us(request, tiling, form.columns, kCopyCycles);
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<FewFiltersAsyncPlan>(request);
  }
};

}  // namespace

std::unique_ptr<KernelCandidate> make_few_filters_async_candidate() {
  return std::make_unique<FewFiltersAsyncCandidate>();
}

}  // namespace convoy::small
