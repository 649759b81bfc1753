// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/epilogue.cuh"
#include "kernels/composed/candidates.hpp"

namespace convoy::composed {
namespace {

constexpr int kThreads = 256;

// Filter [K, T, taps·C] as T dense slices [T, K, taps·C].
__global__ void __launch_bounds__(kThreads)
    slice_filter_kernel(std::uint16_t* slices, const std::uint16_t* filter, std::int64_t filters,
                        std::int64_t depths, std::int64_t slice_elements, std::int64_t elements) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements;
       i += step) {
    const std::int64_t within = i % slice_elements;
    const std::int64_t k = i / slice_elements % filters;
    const std::int64_t t = i / slice_elements / filters;
    slices[i] = filter[(k * depths + t) * slice_elements + within];
  }
}

// Cast the accumulator to the output type behind the caller's epilogue. Element i is output pixel
// (n, z, p, q) = i / K in NZPQ order, filter i % K.
template <typename Out>
__global__ void __launch_bounds__(kThreads)
    finish_kernel(Out* output, const float* accumulator, const Out* source,
                  const __grid_constant__ EpilogueParams params, std::int64_t filters,
                  std::int64_t elements) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements;
       i += step) {
    float v[1] = {accumulator[i]};
    apply_epilogue<Out>(
        params, v, [&](int) { return load_bias(params, static_cast<int>(i % filters)); },
        [&](int) { return to_float(source[i]); });
    output[i] = from_float<Out>(v[0]);
  }
}

unsigned blocks_for(std::int64_t items) {
  return static_cast<unsigned>(
      std::clamp<std::int64_t>(ceil_div(items, kThreads), 1, std::int64_t{1} << 16));
}

// One filter depth over the Z output frames of one batch element, added to the accumulator.
PlanRequest slice_request(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  Conv2dProblemShape problem;
  problem.batch = g.out[0];
  problem.in_height = g.in[1];
  problem.in_width = g.in[2];
  problem.in_channels = g.in_channels;
  problem.out_channels = g.out_channels;
  problem.filter_h = g.filter[1];
  problem.filter_w = g.filter[2];
  problem.pad_h = g.pad_begin[1];
  problem.pad_w = g.pad_begin[2];
  problem.pad_h_end = g.pad_end[1];
  problem.pad_w_end = g.pad_end[2];
  return inner_request(request, problem, DType::fp32, EpilogueKind{.residual = true});
}

class QslicePlan : public ExecutablePlan {
 public:
  QslicePlan(const InnerKernels& inner_kernels, const PlanRequest& request) : request_(request) {
    const PlanRequest inner = slice_request(request);
    const InnerKernel chosen = inner_kernels.choose(inner);
    if (chosen.kernel == nullptr) throw Error(Status::unsupported, chosen.reason);
    slice_ = chosen.kernel->make(inner);
    accumulator_bytes_ =
        aligned_part(static_cast<std::size_t>(request.geometry.output_elements()) * sizeof(float));
    slices_bytes_ = request.packed_filter ? 0 : aligned_part(packed_filter_bytes());
  }

  std::size_t workspace_bytes() const override {
    return accumulator_bytes_ + slices_bytes_ + slice_->workspace_bytes();
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    char* accumulator = static_cast<char*>(pointers.workspace);
    char* own_slices = accumulator + accumulator_bytes_;
    const char* slices = static_cast<const char*>(pointers.filter);
    if (slices_bytes_ > 0) {
      slice_filter(own_slices, pointers.filter, stream);
      slices = own_slices;
    }
    const auto element = static_cast<std::int64_t>(size_of(request_.dtype));
    const std::int64_t frame_bytes = g.in[1] * g.in[2] * g.in_channels * element;
    const std::int64_t slice_bytes = g.filter_elements() / g.filter[0] * element;
    const std::int64_t part_bytes = g.output_elements() / g.batch * 4;
    for (std::int64_t n = 0; n < g.batch; ++n) {
      for (std::int64_t t = 0; t < g.filter[0]; ++t) {
        RunPointers inner;
        inner.activation =
            static_cast<const char*>(pointers.activation) + (n * g.in[0] + t) * frame_bytes;
        inner.filter = slices + t * slice_bytes;
        inner.output = accumulator + n * part_bytes;
        inner.workspace = own_slices + slices_bytes_;
        // The first depth does not read the accumulator.
        inner.epilogue.residual = inner.output;
        inner.epilogue.beta = t == 0 ? 0.0f : 1.0f;
        slice_->run(inner, stream);
      }
    }
    finish(pointers, accumulator, stream);
    if (pointers.next_cache != nullptr) {
      write_next_cache(pointers.next_cache, pointers.cache, pointers.activation, g, request_.dtype,
                       stream);
    }
  }

  std::string filter_format() const override { return request_.packed_filter ? "qslice" : "ktrsc"; }
  std::size_t packed_filter_bytes() const override {
    return static_cast<std::size_t>(request_.geometry.filter_elements()) * size_of(request_.dtype);
  }
  void pack_filter(void* packed, const void* filter, FilterLayout layout,
                   cudaStream_t stream) const override {
    if (!request_.packed_filter) {
      repack_filter(packed, filter, layout, request_.geometry, request_.dtype, stream);
      return;
    }
    // NOTE: packing is not `run`: it may take memory and wait.
    const auto dense = allocate_device_memory(packed_filter_bytes());
    repack_filter(dense.get(), filter, layout, request_.geometry, request_.dtype, stream);
    slice_filter(packed, dense.get(), stream);
    const cudaError_t error = cudaStreamSynchronize(stream);
    if (error != cudaSuccess) {
      throw Error(Status::launch_failure, text("packing a filter: ", cudaGetErrorString(error)));
    }
  }
  std::shared_ptr<void> allocate(std::size_t bytes) const override {
    return allocate_device_memory(bytes);
  }

 private:
  void slice_filter(void* slices, const void* filter, cudaStream_t stream) const {
    const ConvGeometry& g = request_.geometry;
    const std::int64_t elements = g.filter_elements();
    launch_kernel(
        slice_filter_kernel,
        {.name = "slice_filter", .grid = blocks_for(elements), .block = kThreads, .stream = stream},
        static_cast<std::uint16_t*>(slices), static_cast<const std::uint16_t*>(filter),
        g.out_channels, g.filter[0], elements / g.out_channels / g.filter[0], elements);
  }

  void finish(const RunPointers& pointers, const void* accumulator, cudaStream_t stream) const {
    const std::int64_t elements = request_.geometry.output_elements();
    const EpilogueParams params(pointers.epilogue);
    dispatch_element(request_.output_dtype, [&]<typename Out>() {
      launch_kernel(finish_kernel<Out>,
                    {.name = "finish_slices",
                     .grid = blocks_for(elements),
                     .block = kThreads,
                     .stream = stream},
                    static_cast<Out*>(pointers.output), static_cast<const float*>(accumulator),
                    static_cast<const Out*>(pointers.epilogue.residual), params,
                    request_.geometry.out_channels, elements);
    });
  }

  PlanRequest request_;
  std::unique_ptr<ExecutablePlan> slice_;
  std::size_t accumulator_bytes_ = 0, slices_bytes_ = 0;
};

class QsliceCandidate : public KernelCandidate {
 public:
  explicit QsliceCandidate(InnerKernels inner) : inner_(std::move(inner)) {}

  std::string name() const override { return "qslice_conv3d"; }
  Device device() const override { return Device::cuda; }
  Judgement judge(const PlanRequest& request) const override {
    std::string reason = qslice_refusal(request);
    if (!reason.empty()) return reason;
    const InnerKernel slice = inner_.choose(slice_request(request));
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
  constexpr const char* kAxes[3] = {"depth", "height", "width"};
  if (g.rank != 3) return "a 2-D problem; Q-slicing computes 3-D ones";
  if (request.dtype == DType::fp32) return "type fp32; legal: bf16, fp16";
  if (g.groups != 1) return text("groups = ", g.groups, "; legal: 1");
  if (g.in_channels % 8 != 0) {
    return text("in_channels = ", g.in_channels,
                "; legal: a multiple of 8, nearest: ", ceil_div(g.in_channels, 8) * 8);
  }
  for (int axis = 0; axis < 3; ++axis) {
    if (g.stride[axis] != 1)
      return text("stride of ", kAxes[axis], " = ", g.stride[axis], "; legal: 1");
    if (g.dilation[axis] != 1) {
      return text("dilation of ", kAxes[axis], " = ", g.dilation[axis], "; legal: 1");
    }
  }
  if (g.filter[0] == 1) return "filter depth T = 1; legal: above 1 (one slice is the 2-D kernel)";
  if (g.filter[1] * g.filter[2] == 1) return "filter R·S = 1; legal: above 1";
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
