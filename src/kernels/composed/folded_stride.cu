// SPDX-License-Identifier: Apache-2.0
#include "kernels/composed/folded_stride.hpp"

#include <algorithm>
#include <optional>

#include "core/checked.hpp"
#include "core/rewriting.hpp"
#include "core/text.hpp"
#include "kernels/common/launch.hpp"
#include "kernels/composed/filter_copy.hpp"
#include "kernels/composed/threads.hpp"

namespace convoy::composed {
namespace {

// Bytes of a pixel of whole units of 16: two make a row of 128, which TMA loads at its full rate.
// NOTE: measured: pixels of 96 and 128 bytes take 6 to 20 % longer so.
constexpr std::int64_t kMostBytes = 64, kUnitBytes = 16;

// Taps of zeros beside those of a row: `lead` in front, `taps` in all.
struct WiderRow {
  std::int64_t lead, taps;
};

WiderRow wider_row(const ConvGeometry& g) {
  const std::int64_t stride = g.stride[2];
  const std::int64_t lead = ceil_div(g.pad_begin[2], stride) * stride - g.pad_begin[2];
  return {lead, ceil_div(lead + g.filter[2], stride) * stride};
}

// The same outputs by a filter that begins and ends with whole strides.
ConvGeometry wider_geometry(ConvGeometry g) {
  const WiderRow row = wider_row(g);
  g.filter[2] = row.taps;
  g.pad_begin[2] += row.lead;
  const std::int64_t reach = (g.out[2] - 1) * g.stride[2] + row.taps - g.pad_begin[2];
  g.pad_end[2] = std::max<std::int64_t>(0, reach - g.in[2]);
  g.pad_mode[2] = PadMode::zero;
  return g;
}

// That with strides of columns as pixels, where there is such a form.
std::optional<PlanRequest> strides_as_pixels(const PlanRequest& request) {
  for (const Rewriting& form : rewritings(wider_geometry(request.geometry))) {
    if (form.keeps_pixels || form.geometry.stride[2] != 1) continue;
    PlanRequest folded = request;
    folded.geometry = form.geometry;
    return folded;
  }
  return std::nullopt;
}

// Rows of `words` words of a filter to rows of `wider` of them, of which the first `lead` and those
// behind are zero. A thread writes a word.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    widen_rows_kernel(Word* to, const Word* from, std::int64_t lead, std::int64_t words,
                      std::int64_t wider, std::int64_t total) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < total; i += step) {
    const std::int64_t row = i / wider, word = i - row * wider - lead;
    to[i] = word >= 0 && word < words ? from[row * words + word] : Word{};
  }
}

std::string packed_format(const ConvGeometry& g) {
  const WiderRow row = wider_row(g);
  return text("folded_stride_", row.lead, "_", row.taps);
}

class FoldedStridePlan final : public FilterCopyPlan {
 public:
  FoldedStridePlan(const PlanRequest& request, const PlanRequest& folded,
                   const KernelCandidate& inner)
      : FilterCopyPlan(request, packed_format(request.geometry), folded.geometry.filter_elements(),
                       inner.make(folded)) {}

 private:
  void make_filter(void* to, const void* dense, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    const WiderRow row = wider_row(g);
    const auto tap_bytes = g.in_channels * static_cast<std::int64_t>(size_of(request_.dtype));
    const auto launch = [&]<typename Word>(Word* words) {
      const std::int64_t tap = tap_bytes / static_cast<std::int64_t>(sizeof(Word));
      const std::int64_t total = g.out_channels * g.filter[0] * g.filter[1] * row.taps * tap;
      launch_kernel(widen_rows_kernel<Word>,
                    {.name = "widen_filter",
                     .grid = blocks_for(total, kThreads),
                     .block = kThreads,
                     .stream = stream},
                    words, static_cast<const Word*>(dense), row.lead * tap, g.filter[2] * tap,
                    row.taps * tap, total);
    };
    if (tap_bytes % 16 == 0) {
      launch(static_cast<uint4*>(to));
    } else if (tap_bytes % 4 == 0) {
      launch(static_cast<std::uint32_t*>(to));
    } else {
      launch(static_cast<std::uint16_t*>(to));
    }
  }
};

class FoldedStrideCandidate final : public KernelCandidate {
 public:
  explicit FoldedStrideCandidate(InnerKernels inner) : inner_(std::move(inner)) {}

  std::string name() const override { return "folded_stride"; }
  Device device() const override { return Device::cuda; }

  Judgement judge(const PlanRequest& request) const override {
    std::string reason = folded_stride_refusal(request);
    if (!reason.empty()) return reason;
    const PlanRequest folded = strides_as_pixels(request).value();
    const InnerKernel inner = inner_.choose(folded);
    if (inner.kernel == nullptr) return inner.reason;
    return inner.estimated_us + filter_copy_us(request, folded.geometry.filter_elements());
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    const PlanRequest folded = strides_as_pixels(request).value();
    const InnerKernel inner = inner_.choose(folded);
    if (inner.kernel == nullptr) throw Error(Status::unsupported, inner.reason);
    return std::make_unique<FoldedStridePlan>(request, folded, *inner.kernel);
  }

 private:
  const InnerKernels inner_;
};

}  // namespace

std::string folded_stride_refusal(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  if (g.stride[2] == 1) return "stride_w = 1; legal: more; nearest: 2";
  if (g.groups != 1) return text("groups = ", g.groups, "; legal: 1");
  if (g.upsample != 1) return text("upsample = ", g.upsample, "; legal: 1");
  const auto size = static_cast<std::int64_t>(size_of(request.dtype));
  if (g.in_channels * size > kMostBytes && g.in_channels * size % kUnitBytes == 0) {
    return text("in_channels = ", g.in_channels, "; legal: at most ", kMostBytes / size,
                ", or no multiple of ", kUnitBytes / size,
                " (others are loaded as fast as they lie); nearest: ", kMostBytes / size);
  }
  if (g.dilation[2] != 1) return text("dilation_w = ", g.dilation[2], "; legal: 1; nearest: 1");
  if (g.pad_mode[2] != PadMode::zero && (g.pad_begin[2] != 0 || g.pad_end[2] != 0)) {
    return "padding of the width by a mode; legal: zeros";
  }
  if (wider_row(g).taps == g.filter[2]) {
    return text("filter_w = ", g.filter[2], " and pad_left = ", g.pad_begin[2],
                "; legal: one that is no multiple of stride_w = ", g.stride[2],
                " (others need no taps of zeros)");
  }
  // NOTE: a single row may be longer than what is read of it.
  if (!strides_as_pixels(request)) {
    return text("in_w = ", g.in[2], "; legal: a multiple of stride_w = ", g.stride[2],
                "; nearest: ", ceil_div(g.in[2], g.stride[2]) * g.stride[2]);
  }
  return {};
}

std::unique_ptr<KernelCandidate> make_folded_stride_candidate(InnerKernels inner) {
  return std::make_unique<FoldedStrideCandidate>(std::move(inner));
}

}  // namespace convoy::composed
