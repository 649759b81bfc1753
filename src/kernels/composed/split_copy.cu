// SPDX-License-Identifier: Apache-2.0
#include "kernels/composed/split_copy.hpp"

#include <algorithm>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "core/workspace.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/launch.hpp"
#include "kernels/common/split_tf32.hpp"
#include "kernels/composed/threads.hpp"

namespace convoy::composed {
namespace {

// Over fewer products the error of tensor cores over a block of 32 shows
// (docs/lab/2026-11-22-split-operands.md).
constexpr std::int64_t kLeastReduction = 256;
// The activation's copy, three times as large as it is.
constexpr std::int64_t kMostCopyBytes = std::int64_t{6} << 30;

// What a part holds.
enum class Operand { activation, filter };

// hi and lo of x; `finite`: hi where x is finite, else 0. NOTE: an infinity or a NaN stands in the
// product hi · hi alone, and there with 0 where the other operand is 0: so sums are what IEEE 754
// says, but beside a subnormal below 2^-137, which TF32 has no part for.
__device__ __forceinline__ void parts_of(float x, float& lo, float& hi, float& finite) {
  const Tf32Parts parts = split_tf32(__float_as_uint(x));
  hi = __uint_as_float(parts.hi);
  lo = __uint_as_float(parts.lo);
  finite = hi;
  if (isfinite(hi) && isfinite(lo)) return;
  if (isfinite(x)) {  // It would round up to an infinity.
    hi = finite = __uint_as_float(__float_as_uint(x) & ~0x1fffu);
    lo = x - hi;
  } else {
    hi = x;
    lo = finite = 0.0f;
  }
}

// `rows` rows of `channels` floats to rows of three parts of 4 · `units` each, zeros behind a
// part's channels. A thread writes 16 bytes of each part.
template <Operand kOperand>
__global__ void __launch_bounds__(kThreads)
    split_rows_kernel(float4* split, const float* rows, std::int64_t channels, std::int64_t units,
                      std::int64_t total) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < total; i += step) {
    const std::int64_t row = i / units, unit = i - row * units;
    const float* const from = rows + row * channels + unit * 4;
    alignas(16) float x[4] = {};
    if (channels % 4 == 0) {
      *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(from);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (unit * 4 + e < channels) x[e] = from[e];
      }
    }
    alignas(16) float lo[4], hi[4], finite[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) parts_of(x[e], lo[e], hi[e], finite[e]);
    float4* const to = split + row * 3 * units + unit;
    constexpr bool kLowFirst = kOperand == Operand::activation;
    to[kLowFirst ? 0 : units] = *reinterpret_cast<const float4*>(lo);
    to[kLowFirst ? units : 0] = *reinterpret_cast<const float4*>(finite);
    to[2 * units] = *reinterpret_cast<const float4*>(hi);
  }
}

void split_rows(void* split, const void* from, Operand operand, std::int64_t rows,
                std::int64_t channels, std::int64_t part, cudaStream_t stream) {
  const std::int64_t units = part / 4, total = rows * units;
  if (total == 0) return;
  const auto launch = [&](auto* kernel) {
    launch_kernel(kernel,
                  {.name = "split_rows",
                   .grid = blocks_for(total, kThreads),
                   .block = kThreads,
                   .stream = stream},
                  static_cast<float4*>(split), static_cast<const float*>(from), channels, units,
                  total);
  };
  if (operand == Operand::activation) {
    launch(split_rows_kernel<Operand::activation>);
  } else {
    launch(split_rows_kernel<Operand::filter>);
  }
}

// The problem of the copies.
PlanRequest split_request(const PlanRequest& request) {
  PlanRequest split = request;
  split.geometry.in_channels = 3 * part_channels(request.geometry);
  split.packed_filter = false;
  split.operand_parts = true;
  return split;
}

class SplitCopyPlan final : public CudaPlan {
 public:
  SplitCopyPlan(const PlanRequest& request, const KernelCandidate& inner)
      : CudaPlan(request), split_(split_request(request)), inner_(inner.make(split_)) {}

  std::size_t workspace_bytes() const override {
    const ConvGeometry& g = split_.geometry;
    return bytes_of(g.activation_elements()) + bytes_of(g.cache_elements()) +
           (request_.packed_filter ? 0 : bytes_of(g.filter_elements())) + inner_->workspace_bytes();
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = split_.geometry;
    auto* next = static_cast<char*>(pointers.workspace);
    const auto copy = [&](const void* from, Operand operand, std::int64_t elements) {
      void* const to = next;
      next += bytes_of(elements);
      split(to, from, operand, elements / g.in_channels, stream);
      return static_cast<const void*>(to);
    };
    RunPointers inner = pointers;
    inner.activation = copy(pointers.activation, Operand::activation, g.activation_elements());
    if (g.cached_frames > 0) {
      inner.cache = copy(pointers.cache, Operand::activation, g.cache_elements());
    }
    if (!request_.packed_filter) {
      inner.filter = copy(pointers.filter, Operand::filter, g.filter_elements());
    }
    inner.workspace = next;
    inner.next_cache = nullptr;  // Of whole numbers, not of the copies' parts.
    inner_->run(inner, stream);
    store_next_cache(pointers, stream);
  }

  std::string filter_format() const override {
    return request_.packed_filter ? "split_tf32x3" : "ktrsc";
  }
  std::size_t packed_filter_bytes() const override {
    return request_.packed_filter ? bytes_of(split_.geometry.filter_elements())
                                  : dense_filter_bytes();
  }
  void pack_filter(void* packed, const void* filter, FilterLayout layout,
                   cudaStream_t stream) const override {
    if (!request_.packed_filter) return CudaPlan::pack_filter(packed, filter, layout, stream);
    pack_from_dense(filter, layout, stream, [&](const void* dense) {
      split(packed, dense, Operand::filter,
            request_.geometry.out_channels * request_.geometry.taps(), stream);
    });
  }

 private:
  // Of a part of the workspace, so that the next is aligned as cudaMalloc's memory is.
  static std::size_t bytes_of(std::int64_t elements) {
    return workspace_part(elements * std::int64_t{4});
  }
  void split(void* to, const void* from, Operand operand, std::int64_t rows,
             cudaStream_t stream) const {
    split_rows(to, from, operand, rows, request_.geometry.in_channels,
               part_channels(request_.geometry), stream);
  }

  const PlanRequest split_;
  const std::unique_ptr<ExecutablePlan> inner_;
};

class SplitCopyCandidate final : public KernelCandidate {
 public:
  explicit SplitCopyCandidate(InnerKernels inner) : inner_(std::move(inner)) {}

  std::string name() const override { return "split_copy_tf32x3"; }
  Device device() const override { return Device::cuda; }

  Judgement judge(const PlanRequest& request) const override {
    if (request.dtype != DType::fp32) {
      return {RefusalScope::types,
              text("dtype = ", to_string(request.dtype), "; legal: fp32 (operands are split)")};
    }
    std::string reason = split_copy_refusal(request);
    if (!reason.empty()) return reason;
    const PlanRequest split = split_request(request);
    const InnerKernel inner = inner_.choose(split);
    if (inner.kernel == nullptr) return inner.reason;
    // The copies: read once, three times as much written.
    constexpr double kBytesPerUs = 3e6;
    constexpr double kLaunchUs = 3.0;
    const ConvGeometry& g = request.geometry;
    const std::int64_t filter = request.packed_filter ? 0 : g.filter_elements();
    const int copies = 1 + (g.cached_frames > 0 ? 1 : 0) + (request.packed_filter ? 0 : 1);
    const double bytes =
        16.0 * static_cast<double>(g.activation_elements() + g.cache_elements() + filter);
    return inner.estimated_us + copies * kLaunchUs +
           bytes / (kBytesPerUs * memory_share(request.device));
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    const InnerKernel inner = inner_.choose(split_request(request));
    if (inner.kernel == nullptr) throw Error(Status::unsupported, inner.reason);
    return std::make_unique<SplitCopyPlan>(request, *inner.kernel);
  }

 private:
  const InnerKernels inner_;
};

}  // namespace

std::int64_t part_channels(const ConvGeometry& geometry) {
  return ceil_div(geometry.in_channels, std::int64_t{4}) * 4;
}

std::string split_copy_refusal(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  if (g.groups != 1) return text("groups = ", g.groups, "; legal: 1");
  if (g.upsample != 1) return text("upsample = ", g.upsample, "; legal: 1");
  const std::int64_t reduction = g.taps() * g.in_channels;
  if (reduction < kLeastReduction) {
    return text("channels * taps = ", reduction, "; legal with split operands: at least ",
                kLeastReduction,
                " (else the errors of tensor cores show); nearest: ", kLeastReduction);
  }
  for (const std::int64_t elements :
       {g.activation_elements(), g.cache_elements(), g.filter_elements()}) {
    const std::int64_t most = kMostCopyBytes / 12 / part_channels(g) * g.in_channels;
    if (elements > most) {
      return text("a tensor of ", elements, " elements; legal: at most ", most, " (a copy of ",
                  kMostCopyBytes >> 30, " GiB); nearest: ", most);
    }
  }
  return {};
}

std::unique_ptr<KernelCandidate> make_split_copy_candidate(InnerKernels inner) {
  return std::make_unique<SplitCopyCandidate>(std::move(inner));
}

}  // namespace convoy::composed
