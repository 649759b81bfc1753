// SPDX-License-Identifier: Apache-2.0
#include "kernels/composed/qslice.hpp"

#include "core/checked.hpp"
#include "core/text.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/epilogue.cuh"
#include "kernels/composed/candidates.hpp"
#include "kernels/composed/threads.hpp"
#include "kernels/composed/transforms.hpp"

namespace convoy::composed {
namespace {

// Cast the accumulator to the output type behind the caller's epilogue. Element i is output pixel
// (n, z, p, q) = i / K in NZPQ order, filter i % K.
template <typename Out>
__global__ void __launch_bounds__(kThreads)
    finish_slices_kernel(Out* output, const float* accumulator, const Out* source,
                         const __grid_constant__ EpilogueParams params, std::int64_t filters,
                         std::int64_t elements) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements;
       i += step) {
    float v[1] = {accumulator[i]};
    apply_epilogue(
        RoundTo<Out>{}, params, v,
        [&](int) { return load_bias(params, static_cast<int>(i % filters)); },
        [&](int) { return to_float(source[i]); });
    output[i] = from_float<Out>(v[0]);
  }
}

PlanRequest slice_request(const PlanRequest& request, const QsliceDriver& driver) {
  return inner_request(request, driver.slice_problem(), DType::fp32,
                       EpilogueKind{.residual = true});
}

class QslicePlan final : public CudaPlan {
 public:
  QslicePlan(const InnerKernels& inner_kernels, const PlanRequest& request)
      : CudaPlan(request), driver_(request.geometry, request.packed_filter) {
    const PlanRequest inner = slice_request(request, driver_);
    const InnerKernel chosen = inner_kernels.choose(inner);
    if (chosen.kernel == nullptr) throw Error(Status::unsupported, chosen.reason);
    slice_ = chosen.kernel->make(inner);
  }

  std::size_t workspace_bytes() const override {
    return driver_.workspace_bytes() + slice_->workspace_bytes();
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    driver_.run(
        pointers, stream, [&](const RunPointers& inner) { slice_->run(inner, stream); },
        [&](const float* accumulator) { finish(pointers, accumulator, stream); });
    store_next_cache(pointers, stream);
  }

  std::string filter_format() const override { return request_.packed_filter ? "qslice" : "ktrsc"; }
  void pack_filter(void* packed, const void* filter, FilterLayout layout,
                   cudaStream_t stream) const override {
    if (!request_.packed_filter) return CudaPlan::pack_filter(packed, filter, layout, stream);
    pack_from_dense(filter, layout, stream, [&](const void* dense) {
      slice_filter(packed, dense, request_.geometry, stream);
    });
  }

 private:
  void finish(const RunPointers& pointers, const float* accumulator, cudaStream_t stream) const {
    const std::int64_t elements = request_.geometry.output_elements();
    dispatch_element(request_.output_dtype, [&]<typename Out>() {
      launch_kernel(finish_slices_kernel<Out>,
                    {.name = "finish_slices",
                     .grid = blocks_for(elements, kThreads),
                     .block = kThreads,
                     .stream = stream},
                    static_cast<Out*>(pointers.output), accumulator,
                    static_cast<const Out*>(pointers.epilogue.residual),
                    EpilogueParams(pointers.epilogue), request_.geometry.out_channels, elements);
    });
  }

  QsliceDriver driver_;
  std::unique_ptr<ExecutablePlan> slice_;
};

class QsliceCandidate final : public KernelCandidate {
 public:
  explicit QsliceCandidate(InnerKernels inner) : inner_(std::move(inner)) {}

  std::string name() const override { return "qslice_conv3d"; }
  Device device() const override { return Device::cuda; }
  Judgement judge(const PlanRequest& request) const override {
    std::string reason = qslice_refusal(request);
    if (!reason.empty()) return reason;
    const InnerKernel slice =
        inner_.choose(slice_request(request, QsliceDriver(request.geometry, true)));
    if (!slice.reason.empty()) return slice.reason;

    // The accumulator is written by each depth, read by all but the first and by the last pass:
    // 3 TB/s on the devices of today.
    constexpr double kBytesPerUs = 3e6;
    const ConvGeometry& g = request.geometry;
    const double bytes = 4.0 * double(g.output_elements()) * 2.0 * double(g.filter[0]);
    return double(g.batch * g.filter[0]) * slice.estimated_us + bytes / kBytesPerUs;
  }
  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<QslicePlan>(inner_, request);
  }

 private:
  InnerKernels inner_;
};

}  // namespace

std::string qslice_refusal(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  if (g.rank != 3) return "rank = 2; legal: 3";
  if (request.dtype == DType::fp32) return "dtype = fp32; legal: bf16 or fp16";
  if (g.groups != 1) return text("groups = ", g.groups, "; legal: 1");
  if (g.in_channels % 8 != 0) {
    return text("in_channels = ", g.in_channels,
                "; legal: a multiple of 8; nearest: ", ceil_div(g.in_channels, 8) * 8);
  }
  for (int axis = 0; axis < 3; ++axis) {
    if (g.stride[axis] != 1)
      return text("stride of ", kAxisNames[axis], " = ", g.stride[axis], "; legal: 1");
    if (g.dilation[axis] != 1) {
      return text("dilation of ", kAxisNames[axis], " = ", g.dilation[axis], "; legal: 1");
    }
    const bool padded = g.pad_begin[axis] != 0 || g.pad_end[axis] != 0;
    if (padded && g.pad_mode[axis] != PadMode::zero) {
      return text("padding mode of ", kAxisNames[axis], " = ", to_string(g.pad_mode[axis]),
                  "; legal: zero");
    }
  }
  if (g.filter[0] == 1) return "filter depth T = 1; legal: at least 2; nearest: 2";
  if (g.filter[1] * g.filter[2] == 1) return "filter R·S = 1; legal: at least 2; nearest: 2";
  if (g.pad_begin[0] != 0 || g.pad_end[0] != 0) {
    return text("padding of depth = ", g.pad_begin[0], ", ", g.pad_end[0], "; legal: 0, 0");
  }
  if (g.cached_frames != 0) return text("cached_frames = ", g.cached_frames, "; legal: 0");
  if (g.upsample != 1) return text("upsample = ", g.upsample, "; legal: 1");
  return {};
}

std::unique_ptr<KernelCandidate> make_qslice_candidate(InnerKernels inner) {
  return std::make_unique<QsliceCandidate>(std::move(inner));
}

}  // namespace convoy::composed
