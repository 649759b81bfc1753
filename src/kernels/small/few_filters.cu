// SPDX-License-Identifier: Apache-2.0
#include "kernels/small/few_filters.cuh"

#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/requirements.hpp"
#include "kernels/common/tensor_map.hpp"
#include "kernels/common/time_correction.hpp"
#include "kernels/small/candidates.hpp"
#include "kernels/small/few_filters_host.hpp"

namespace convoy::small {
namespace {

// Replicated and reflected pixels are copied from the same stage: empty, or why one cannot be.
std::string few_filters_border_refusal(const ConvGeometry& g, const FewFiltersLayout& l, int rows) {
  for (int axis = 1; axis < 3; ++axis) {
    const PadMode mode = l.pad_mode[axis];
    if (mode == PadMode::zero) continue;
    const bool reflects = mode == PadMode::reflect;
    const std::int64_t tile = axis == 2 ? l.strip_columns : l.side_by_side ? 1 : l.consumers * rows;
    const std::int64_t stage = tile + g.filter[axis] - 1;
    const std::int64_t last_tile = (g.out[axis] - 1) / tile * tile;
    // The furthest that the first stage reads inside, and the first that the last one does.
    const std::int64_t before = (reflects ? 2 : 1) * g.pad_begin[axis];
    const std::int64_t last = g.in[axis] - 1 - (reflects ? g.pad_end[axis] : 0);
    if (before >= stage || last_tile - g.pad_begin[axis] > last) {
      return text("padding of ", kAxisNames[axis], " = ", g.pad_begin[axis], ", ", g.pad_end[axis],
                  " by mode ", to_string(mode), " under a filter of ", g.filter[axis],
                  "; legal: what copies pixels of the same tile of ", stage,
                  ", as padding does that keeps the extent");
    }
  }
  return {};
}

class FewFiltersPlan final : public CudaPlan {
 public:
  explicit FewFiltersPlan(const PlanRequest& request) : CudaPlan(request) {
    columns_ = built_columns(request.geometry);
    const FewFiltersTiling tiling = few_filters_tiling(request, columns_);
    rows_ = tiling.rows;
    layout_ = tiling.layout;
    shared_bytes_ = layout_.shared_bytes(rows_, columns_);
    kernel_ =
        request.dtype == DType::bf16 ? choose_kernel<__nv_bfloat16>() : choose_kernel<__half>();
    raise_shared_memory_limit(kernel_, shared_bytes_, "few_filters");
    const ConvGeometry& g = request.geometry;
    activation_map_ = tensor_map("activation", g.in[0]);
    if (g.cached_frames > 0) cache_map_ = tensor_map("cache", g.cached_frames);
    blocks_ = static_cast<unsigned>(std::min(layout_.tiles, request.device.multiprocessors));
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    FewFiltersArguments arguments{
        .activation = at_address(activation_map_, "activation", pointers.activation),
        .cache = {},
        .common = {
            .filter = pointers.filter,
            .output = conv_output(pointers, request_.output_dtype, g.out_channels, g.out_channels),
            .layout = layout_}};
    arguments.cache = g.cached_frames > 0 ? at_address(cache_map_, "cache", pointers.cache)
                                          : arguments.activation;
    const auto threads = static_cast<unsigned>((layout_.consumers + 1) * 32);
    launch_kernel(kernel_,
                  {.name = "few_filters",
                   .grid = blocks_,
                   .block = threads,
                   .shared_bytes = static_cast<std::size_t>(shared_bytes_),
                   .stream = stream},
                  arguments);
    store_next_cache(pointers, stream);
  }

 private:
  using Kernel = void(FewFiltersArguments);

  template <typename Element>
  Kernel* choose_kernel() const {
    const auto is = [&](int t, int s, int k) {
      return layout_.filter[0] == t && layout_.filter[2] == s && layout_.filters == k;
    };
    const bool two = rows_ == 2;
    // Decoders' last layers: to RGB in 2-D and 3-D, to four latent channels.
    if (is(1, 3, 3)) {
      return two ? few_filters_kernel<Element, 2, 2, 1, 3, 3>
                 : few_filters_kernel<Element, 2, 1, 1, 3, 3>;
    }
    if (is(1, 3, 4)) {
      return two ? few_filters_kernel<Element, 2, 2, 1, 3, 4>
                 : few_filters_kernel<Element, 2, 1, 1, 3, 4>;
    }
    if (is(3, 3, 3)) {
      return two ? few_filters_kernel<Element, 4, 2, 3, 3, 3>
                 : few_filters_kernel<Element, 4, 1, 3, 3, 3>;
    }
    switch (columns_) {
      case 16:
        return two ? few_filters_kernel<Element, 2, 2, 0, 0, 0>
                   : few_filters_kernel<Element, 2, 1, 0, 0, 0>;
      case 32:
        return two ? few_filters_kernel<Element, 4, 2, 0, 0, 0>
                   : few_filters_kernel<Element, 4, 1, 0, 0, 0>;
      case 48:
        return few_filters_kernel<Element, 6, 1, 0, 0, 0>;
      default:
        return few_filters_kernel<Element, 8, 1, 0, 0, 0>;
    }
  }

  CUtensorMap tensor_map(const char* name, std::int64_t frames) const {
    const ConvGeometry& g = request_.geometry;
    const std::int64_t pixel = g.in_channels * 2, row = g.in[2] * pixel, frame = g.in[1] * row;
    return encode_template(
        TiledTensorMap{.name = name,
                       .dtype = request_.dtype,
                       .rank = 5,
                       .extents = {g.in_channels, g.in[2], g.in[1], frames, g.batch},
                       .strides_bytes = {0, pixel, row, frame, frames * frame},
                       .box = {kFewFiltersChannels, kFewFiltersColumns,
                               layout_.side_by_side ? 1 : layout_.stage_rows(rows_), 1, 1},
                       .swizzle = Swizzle::b128});
  }

  FewFiltersLayout layout_;
  CUtensorMap activation_map_{}, cache_map_{};  ///< Without addresses.
  Kernel* kernel_ = nullptr;
  int columns_ = 0;
  int rows_ = 1;
  int shared_bytes_ = 0;
  unsigned blocks_ = 0;
};

class FewFiltersCandidate final : public KernelCandidate {
 public:
  std::string name() const override { return "few_filters"; }
  Device device() const override { return Device::cuda; }
  bool packs_as_dense(const PlanRequest&) const override { return true; }

  Judgement judge(const PlanRequest& request) const override {
    if (auto refused = require_capability_from(request.device, 90, "TMA")) return *refused;
    std::string reason = few_filters_refusal(request);
    if (!reason.empty()) return reason;
    if (request.geometry.in[0] == 0) return "new frames = 0; legal: at least 1; nearest: 1";
    const int columns = built_columns(request.geometry);
    const FewFiltersTiling tiling = few_filters_tiling(request, columns);
    reason = few_filters_border_refusal(request.geometry, tiling.layout, tiling.rows);
    if (!reason.empty()) return reason;
    return corrected_us(CorrectedKernel::few_filters,
                        {.us = few_filters_us(request, tiling, columns)}, request);
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<FewFiltersPlan>(request);
  }
};

}  // namespace

std::unique_ptr<KernelCandidate> make_few_filters_candidate() {
  return std::make_unique<FewFiltersCandidate>();
}

}  // namespace convoy::small
