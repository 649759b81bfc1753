// SPDX-License-Identifier: Apache-2.0
#include "kernels/composed/padded_channels.hpp"

#include <algorithm>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/launch.hpp"
#include "kernels/composed/threads.hpp"

namespace convoy::composed {
namespace {

// Rows of `words` words each to rows of whole 16-byte units, zeros behind. A thread writes a unit;
// neighbouring threads the next one of the row. `Word` is the widest that rows are aligned to.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    pad_rows_kernel(uint4* padded, const Word* rows, std::int64_t words, std::int64_t row_units,
                    std::int64_t units) {
  constexpr int kWidth = 16 / sizeof(Word);
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < units; i += step) {
    const std::int64_t row = i / row_units;
    const std::int64_t first = (i - row * row_units) * kWidth;
    alignas(16) Word unit[kWidth] = {};
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      if (first + e < words) unit[e] = rows[row * words + first + e];
    }
    padded[i] = *reinterpret_cast<const uint4*>(unit);
  }
}

// `rows` rows of `bytes` bytes each, to rows of `padded_bytes`.
void pad_rows(void* padded, const void* from, std::int64_t rows, std::int64_t bytes,
              std::int64_t padded_bytes, cudaStream_t stream) {
  const std::int64_t row_units = padded_bytes / 16;
  const std::int64_t units = rows * row_units;
  if (units == 0) return;
  const auto launch = [&]<typename Word>(Word*) {
    launch_kernel(pad_rows_kernel<Word>,
                  {.name = "pad_rows",
                   .grid = blocks_for(units, kThreads),
                   .block = kThreads,
                   .stream = stream},
                  static_cast<uint4*>(padded), static_cast<const Word*>(from),
                  bytes / static_cast<std::int64_t>(sizeof(Word)), row_units, units);
  };
  if (bytes % 8 == 0) {
    launch(static_cast<uint2*>(nullptr));
  } else if (bytes % 4 == 0) {
    launch(static_cast<std::uint32_t*>(nullptr));
  } else {
    launch(static_cast<std::uint16_t*>(nullptr));
  }
}

// The problem of the copies.
PlanRequest padded_request(const PlanRequest& request) {
  PlanRequest padded = request;
  padded.geometry.in_channels = padded_channels(request);
  padded.packed_filter = false;
  return padded;
}

class PaddedChannelsPlan final : public CudaPlan {
 public:
  PaddedChannelsPlan(const PlanRequest& request, const KernelCandidate& inner)
      : CudaPlan(request),
        padded_(padded_request(request)),
        inner_(inner.make(padded_)),
        pixel_bytes_(bytes_of(request_.geometry.in_channels)),
        padded_pixel_bytes_(bytes_of(padded_.geometry.in_channels)) {}

  std::size_t workspace_bytes() const override {
    return part(padded_.geometry.activation_elements()) + part(padded_.geometry.cache_elements()) +
           (request_.packed_filter ? 0 : part(padded_.geometry.filter_elements())) +
           inner_->workspace_bytes();
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    auto* next = static_cast<char*>(pointers.workspace);
    const auto copy = [&](const void* from, std::int64_t elements) -> const void* {
      void* const to = next;
      next += part(elements);
      pad_rows(to, from, elements / padded_.geometry.in_channels, pixel_bytes_, padded_pixel_bytes_,
               stream);
      return to;
    };
    RunPointers inner = pointers;
    inner.activation = copy(pointers.activation, padded_.geometry.activation_elements());
    if (padded_.geometry.cached_frames > 0) {
      inner.cache = copy(pointers.cache, padded_.geometry.cache_elements());
    }
    if (!request_.packed_filter) {
      inner.filter = copy(pointers.filter, padded_.geometry.filter_elements());
    }
    inner.workspace = next;
    inner.next_cache = nullptr;  // Its channels are the problem's, not the copy's.
    inner_->run(inner, stream);
    store_next_cache(pointers, stream);
  }

  bool multiplies_tf32() const override { return inner_->multiplies_tf32(); }

  std::string filter_format() const override {
    return request_.packed_filter ? "padded_channels" : "ktrsc";
  }
  std::size_t packed_filter_bytes() const override {
    return request_.packed_filter
               ? static_cast<std::size_t>(bytes_of(padded_.geometry.filter_elements()))
               : dense_filter_bytes();
  }
  void pack_filter(void* packed, const void* filter, FilterLayout layout,
                   cudaStream_t stream) const override {
    if (!request_.packed_filter) return CudaPlan::pack_filter(packed, filter, layout, stream);
    pack_from_dense(filter, layout, stream, [&](const void* dense) {
      pad_rows(packed, dense, request_.geometry.out_channels * request_.geometry.taps(),
               pixel_bytes_, padded_pixel_bytes_, stream);
    });
  }

 private:
  std::int64_t bytes_of(std::int64_t elements) const {
    return elements * static_cast<std::int64_t>(size_of(request_.dtype));
  }
  // Bytes of a part of the workspace, so that the next is aligned as cudaMalloc's memory is.
  std::size_t part(std::int64_t elements) const {
    return static_cast<std::size_t>(ceil_div(bytes_of(elements), std::int64_t{256}) * 256);
  }

  const PlanRequest padded_;
  const std::unique_ptr<ExecutablePlan> inner_;
  const std::int64_t pixel_bytes_, padded_pixel_bytes_;
};

class PaddedChannelsCandidate final : public KernelCandidate {
 public:
  explicit PaddedChannelsCandidate(InnerKernels inner) : inner_(std::move(inner)) {}

  std::string name() const override { return "padded_channels"; }
  Device device() const override { return Device::cuda; }

  Judgement judge(const PlanRequest& request) const override {
    std::string reason = padded_channels_refusal(request);
    if (!reason.empty()) return reason;
    const PlanRequest padded = padded_request(request);
    const InnerKernel inner = inner_.choose(padded);
    if (inner.kernel == nullptr) return inner.reason;
    // The copy is read as well as written: 3 TB/s on the devices of today.
    constexpr double kBytesPerUs = 3e6;
    constexpr double kLaunchUs = 3.0;
    const auto copied = [&](const PlanRequest& of) {
      const ConvGeometry& g = of.geometry;
      const std::int64_t filter = request.packed_filter ? 0 : g.filter_elements();
      return static_cast<double>(g.activation_elements() + g.cache_elements() + filter) *
             static_cast<double>(size_of(of.dtype));
    };
    const int copies =
        1 + (request.geometry.cached_frames > 0 ? 1 : 0) + (request.packed_filter ? 0 : 1);
    return inner.estimated_us + copies * kLaunchUs +
           (copied(request) + copied(padded)) / kBytesPerUs;
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    const InnerKernel inner = inner_.choose(padded_request(request));
    if (inner.kernel == nullptr) throw Error(Status::unsupported, inner.reason);
    return std::make_unique<PaddedChannelsPlan>(request, *inner.kernel);
  }

 private:
  const InnerKernels inner_;
};

}  // namespace

std::int64_t padded_channels(const PlanRequest& request) {
  const auto unit = static_cast<std::int64_t>(16 / size_of(request.dtype));
  return ceil_div(request.geometry.in_channels, unit) * unit;
}

std::string padded_channels_refusal(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  if (g.groups != 1) return text("groups = ", g.groups, "; legal: 1");
  // NOTE: the copies may have eight times the elements.
  constexpr std::int64_t kMostElements = std::int64_t{1} << 56;
  for (const std::int64_t elements :
       {g.activation_elements(), g.cache_elements(), g.filter_elements()}) {
    if (elements > kMostElements) {
      return text("a tensor of ", elements, " elements; legal: at most ", kMostElements);
    }
  }
  if (g.upsample != 1) return text("upsample = ", g.upsample, "; legal: 1");
  const std::int64_t padded = padded_channels(request);
  if (g.in_channels == padded) {
    return text("in_channels = ", g.in_channels, "; legal: no multiple of ",
                16 / size_of(request.dtype), " (those need no copy)");
  }
  return {};
}

std::unique_ptr<KernelCandidate> make_padded_channels_candidate(InnerKernels inner) {
  return std::make_unique<PaddedChannelsCandidate>(std::move(inner));
}

}  // namespace convoy::composed
