// SPDX-License-Identifier: Apache-2.0
#include "kernels/composed/padded_channels.hpp"

#include <algorithm>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "core/workspace.hpp"
#include "kernels/common/launch.hpp"
#include "kernels/composed/filter_copy.hpp"
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

// Rows of pixels of `words` words, at most 16 bytes, to rows of `columns` pixels of 16 bytes: pixel
// `left` of those is the first that exists, around them are zeros. A thread writes one.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    pad_pixels_kernel(uint4* padded, const Word* pixels, int words, std::int64_t width,
                      std::int64_t left, std::int64_t columns, std::int64_t units) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < units; i += step) {
    const std::int64_t row = i / columns, column = i - row * columns - left;
    alignas(16) Word unit[16 / sizeof(Word)] = {};
    if (column >= 0 && column < width) {
      const Word* const from = pixels + (row * width + column) * words;
#pragma unroll
      for (int e = 0; e < int{16 / sizeof(Word)}; ++e) {
        if (e < words) unit[e] = from[e];
      }
    }
    padded[i] = *reinterpret_cast<const uint4*>(unit);
  }
}

// The problem of copies whose pixels have whole 16-byte units.
PlanRequest padded_request(const PlanRequest& request) {
  PlanRequest padded = request;
  padded.geometry.in_channels = padded_channels(request);
  return padded;
}

// The same with the S taps of a row as channels of one: pixels overlap.
PlanRequest folded_request(const PlanRequest& request) {
  PlanRequest folded = padded_request(request);
  ConvGeometry& g = folded.geometry;
  const std::int64_t pixel = g.in_channels, taps = g.filter[2], stride = g.stride[2];
  g.in_channels = taps * pixel;
  g.input_pixel_pitch = stride * pixel;
  g.input_row_pitch = ((g.out[2] - 1) * stride + taps) * pixel;
  g.in[2] = g.out[2];
  g.filter[2] = g.stride[2] = 1;
  g.pad_begin[2] = g.pad_end[2] = 0;
  return folded;
}

bool is_folded(const PlanRequest& request, const PlanRequest& padded) {
  return padded.geometry.filter[2] != request.geometry.filter[2];
}

class PaddedPlan final : public FilterCopyPlan {
 public:
  // NOTE: dense, the filter is the same folded or not: S is the dimension in front of C. But not
  // as every kernel packs it.
  PaddedPlan(const PlanRequest& request, const PlanRequest& padded, const KernelCandidate& inner)
      : FilterCopyPlan(request, is_folded(request, padded) ? "folded_width" : "padded_channels",
                       padded.geometry.filter_elements(), inner.make(padded)),
        padded_(padded),
        pixel_bytes_(bytes_of(request_.geometry.in_channels)),
        padded_pixel_bytes_(bytes_of(padded_channels(request_))) {}

  std::size_t workspace_bytes() const override {
    const ConvGeometry& g = request_.geometry;
    return part(copied_elements(g.in[0])) + part(copied_elements(g.cached_frames)) +
           FilterCopyPlan::workspace_bytes();
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    auto* next = static_cast<char*>(pointers.workspace);
    const auto copy = [&](const void* from, std::int64_t frames) -> const void* {
      void* const to = next;
      next += part(copied_elements(frames));
      copy_frames(to, from, frames, stream);
      return to;
    };
    RunPointers copies = pointers;
    copies.activation = copy(pointers.activation, g.in[0]);
    if (g.cached_frames > 0) copies.cache = copy(pointers.cache, g.cached_frames);
    run_inner(copies, next, stream);
    store_next_cache(pointers, stream);
  }

 private:
  void make_filter(void* to, const void* dense, cudaStream_t stream) const override {
    pad_rows(to, dense, request_.geometry.out_channels * request_.geometry.taps(), pixel_bytes_,
             padded_pixel_bytes_, stream);
  }

  void copy_frames(void* to, const void* from, std::int64_t frames, cudaStream_t stream) const {
    const ConvGeometry& g = request_.geometry;
    const std::int64_t rows = g.batch * frames * g.in[1];
    // NOTE: a folded input is dense where taps do not overlap.
    if (!is_folded(request_, padded_)) {
      pad_rows(to, from, rows * g.in[2], pixel_bytes_, padded_pixel_bytes_, stream);
    } else {
      pad_pixels(to, from, rows, stream);
    }
  }

  void pad_pixels(void* to, const void* from, std::int64_t rows, cudaStream_t stream) const {
    const ConvGeometry& g = request_.geometry;
    const std::int64_t columns = padded_.geometry.input_row_elements() / padded_channels(request_);
    const std::int64_t units = rows * columns;
    if (units == 0) return;
    const auto launch = [&]<typename Word>(Word*) {
      launch_kernel(pad_pixels_kernel<Word>,
                    {.name = "pad_pixels",
                     .grid = blocks_for(units, kThreads),
                     .block = kThreads,
                     .stream = stream},
                    static_cast<uint4*>(to), static_cast<const Word*>(from),
                    static_cast<int>(pixel_bytes_ / static_cast<std::int64_t>(sizeof(Word))),
                    g.in[2], g.pad_begin[2], columns, units);
    };
    if (pixel_bytes_ % 16 == 0) {
      launch(static_cast<uint4*>(nullptr));
    } else if (pixel_bytes_ % 4 == 0) {
      launch(static_cast<std::uint32_t*>(nullptr));
    } else {
      launch(static_cast<std::uint16_t*>(nullptr));
    }
  }

  std::int64_t copied_elements(std::int64_t frames) const {
    const ConvGeometry& g = padded_.geometry;
    return g.batch * frames * g.in[1] * g.input_row_elements();
  }
  std::int64_t bytes_of(std::int64_t elements) const {
    return elements * static_cast<std::int64_t>(size_of(request_.dtype));
  }
  std::size_t part(std::int64_t elements) const { return workspace_part(bytes_of(elements)); }

  const PlanRequest padded_;
  const std::int64_t pixel_bytes_, padded_pixel_bytes_;
};

// What rows that overlap, and begin at any 16 bytes, take the loader longer than its model knows,
// by 252 layers on an H200 (docs/lab/2026-12-01-narrow-outputs.md).
double overlap_us(const PlanRequest& padded) {
  constexpr double kCyclesPerUs = 1755.0, kRowCycles = 0.2, kShortRowCycles = 0.4;
  const ConvGeometry& g = padded.geometry;
  if (g.input_pixel_elements() >= g.in_channels) return 0.0;
  const bool is_short = g.in_channels * static_cast<std::int64_t>(size_of(padded.dtype)) < 64;
  const double rows =
      double(g.gemm_m() * g.filter[0] * g.filter[1]) / std::max(1, padded.device.multiprocessors);
  return rows * (is_short ? kShortRowCycles : kRowCycles) / kCyclesPerUs;
}

// What layers of copies take longer than their parts, by 637 layers on an H200.
double copying_us(double inner_us) {
  constexpr double kShare = 0.033;
  return kShare * inner_us;
}

// And folded ones, by 982; more where a filter has many rows.
double folding_us(const PlanRequest& folded, double inner_us) {
  constexpr double kShare = 0.08, kRowShare = 0.015, kMostUs = 50.0;
  constexpr std::int64_t kRows = 14;
  const auto more =
      static_cast<double>(std::max<std::int64_t>(0, folded.geometry.filter[1] - kRows));
  return (kShare + kRowShare * more) * std::min(inner_us, kMostUs);
}

class PaddedCandidate final : public KernelCandidate {
 public:
  /// `folds`: the taps of a row become channels.
  PaddedCandidate(InnerKernels inner, bool folds) : inner_(std::move(inner)), folds_(folds) {}

  std::string name() const override { return folds_ ? "folded_width" : "padded_channels"; }
  Device device() const override { return Device::cuda; }

  Judgement judge(const PlanRequest& request) const override {
    std::string reason = folds_ ? folded_width_refusal(request) : padded_channels_refusal(request);
    if (!reason.empty()) return reason;
    const PlanRequest padded = request_of_copy(request);
    const InnerKernel inner = inner_.choose(padded);
    if (inner.kernel == nullptr) return inner.reason;
    // The copy is read as well as written, and most of what follows it begins meanwhile: by 954
    // layers on an H200 (docs/lab/2026-12-01-narrow-outputs.md).
    constexpr double kBytesPerUs = 4e6;
    constexpr double kLaunchUs = 1.6;
    const auto copied = [&](const ConvGeometry& g) {
      const std::int64_t rows = g.batch * (g.in[0] + g.cached_frames) * g.in[1];
      const std::int64_t filter = request.packed_filter ? 0 : g.filter_elements();
      return static_cast<double>(rows * g.input_row_elements() + filter) *
             static_cast<double>(size_of(request.dtype));
    };
    const int copies =
        1 + (request.geometry.cached_frames > 0 ? 1 : 0) + (request.packed_filter ? 0 : 1);
    const double more =
        folds_ ? folding_us(padded, inner.estimated_us) : copying_us(inner.estimated_us);
    return inner.estimated_us + more + overlap_us(padded) + copies * kLaunchUs +
           (copied(request.geometry) + copied(padded.geometry)) / kBytesPerUs;
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    const PlanRequest padded = request_of_copy(request);
    const InnerKernel inner = inner_.choose(padded);
    if (inner.kernel == nullptr) throw Error(Status::unsupported, inner.reason);
    return std::make_unique<PaddedPlan>(request, padded, *inner.kernel);
  }

 private:
  PlanRequest request_of_copy(const PlanRequest& request) const {
    return folds_ ? folded_request(request) : padded_request(request);
  }

  const InnerKernels inner_;
  const bool folds_;
};

// NOTE: a copy may have eight times the elements.
std::string size_refusal(const ConvGeometry& g, std::int64_t most) {
  for (const std::int64_t elements :
       {g.activation_elements(), g.cache_elements(), g.filter_elements()}) {
    if (elements > most) return text("a tensor of ", elements, " elements; legal: at most ", most);
  }
  return {};
}

}  // namespace

std::int64_t padded_channels(const PlanRequest& request) {
  const auto unit = static_cast<std::int64_t>(16 / size_of(request.dtype));
  return ceil_div(request.geometry.in_channels, unit) * unit;
}

std::string padded_channels_refusal(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  if (g.groups != 1) return text("groups = ", g.groups, "; legal: 1");
  std::string reason = size_refusal(g, std::int64_t{1} << 56);
  if (!reason.empty()) return reason;
  if (g.upsample != 1) return text("upsample = ", g.upsample, "; legal: 1");
  if (g.in_channels == padded_channels(request)) {
    return text("in_channels = ", g.in_channels, "; legal: no multiple of ",
                16 / size_of(request.dtype), " (those need no copy)");
  }
  return {};
}

std::string folded_width_refusal(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  const auto unit = static_cast<std::int64_t>(16 / size_of(request.dtype));
  if (g.groups != 1) return text("groups = ", g.groups, "; legal: 1");
  if (g.upsample != 1) return text("upsample = ", g.upsample, "; legal: 1");
  if (g.in_channels > unit) {
    return text("in_channels = ", g.in_channels, "; legal: at most ", unit,
                " (16 bytes); nearest: ", unit);
  }
  constexpr std::int64_t kMostTaps = 64;  // A row of them is a pixel of 1 KiB.
  if (g.filter[2] < 2 || g.filter[2] > kMostTaps) {
    return text("filter_w = ", g.filter[2], "; legal: 2 to ", kMostTaps,
                "; nearest: ", g.filter[2] < 2 ? 2 : kMostTaps);
  }
  if (g.dilation[2] != 1) return text("dilation_w = ", g.dilation[2], "; legal: 1; nearest: 1");
  if (g.pad_mode[2] != PadMode::zero && (g.pad_begin[2] != 0 || g.pad_end[2] != 0)) {
    return "padding of the width by a mode; legal: zeros";
  }
  return size_refusal(g, std::int64_t{1} << 48);
}

std::unique_ptr<KernelCandidate> make_padded_channels_candidate(InnerKernels inner) {
  return std::make_unique<PaddedCandidate>(std::move(inner), false);
}
std::unique_ptr<KernelCandidate> make_folded_width_candidate(InnerKernels inner) {
  return std::make_unique<PaddedCandidate>(std::move(inner), true);
}

}  // namespace convoy::composed
