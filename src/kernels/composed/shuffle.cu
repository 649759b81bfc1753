// SPDX-License-Identifier: Apache-2.0
#include "kernels/composed/shuffle.hpp"

#include <limits>
#include <optional>
#include <vector>

#include "core/text.hpp"
#include "core/workspace.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/launch.hpp"
#include "kernels/composed/threads.hpp"

namespace convoy::composed {
namespace {

// ---- Copies -------------------------------------------------------------------------------------

// Rows are counted in 64 bits, a block each; what lies in a row in `Index`.
template <typename Index>
struct ShuffleParams {
  ShuffledChannels<Index> at;
  std::int64_t rows;          // that are written, of all frames and images
  std::int64_t frames;        // of the output, of an image
  std::int64_t out[2];        // Z, P before the shuffle
  Index columns;              // Q before the shuffle
  Index factors[3], dropped;  // of OutputShuffle
};

// kWidth neighbouring channels, 16 bytes or one element.
template <typename Element, int kWidth>
struct alignas(sizeof(Element) * kWidth) Channels {
  Element values[kWidth];
};

// A row of the output: (image, frame, row) from row p of frame z and its phases (dt, dh, ·).
template <typename Element, int kWidth, typename Index>
__global__ void __launch_bounds__(kThreads)
    shuffle_to_output_kernel(Element* output, const Element* from,
                             const __grid_constant__ ShuffleParams<Index> p) {
  using Vector = Channels<Element, kWidth>;
  const std::int64_t rows_out = p.out[1] * p.factors[1];
  const Index pixel_vectors = p.at.channels / kWidth, width = p.columns * p.factors[2];
  for (std::int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const std::int64_t plane = row / rows_out, y = row - plane * rows_out;
    const std::int64_t image = plane / p.frames;
    const std::int64_t frame = plane - image * p.frames + p.dropped;
    const std::int64_t z = frame / p.factors[0], line = y / p.factors[1];
    const Index first_phase = (static_cast<Index>(frame % p.factors[0]) * p.factors[1] +
                               static_cast<Index>(y % p.factors[1])) *
                              p.factors[2];
    const Element* const source =
        from + ((image * p.out[0] + z) * p.out[1] + line) * p.columns * p.at.sources;
    Element* const to = output + row * width * p.at.channels;
    for (Index i = threadIdx.x; i < width * pixel_vectors; i += kThreads) {
      const Index x = i / pixel_vectors, c = (i - x * pixel_vectors) * kWidth;
      const Index q = x / p.factors[2], phase = first_phase + (x - q * p.factors[2]);
      const Element* const pixel = source + static_cast<std::int64_t>(q) * p.at.sources;
      Vector values;
      if (p.at.inner && p.at.sources == p.at.filters) {
        values = *reinterpret_cast<const Vector*>(pixel + p.at.filter(c, phase));
      } else {
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
          values.values[e] = pixel[p.at.source(p.at.filter(c + e, phase))];
        }
      }
      reinterpret_cast<Vector*>(to)[i] = values;
    }
  }
}

// A row before the shuffle: filters of (image, frame, row), from a residual of the output's shape
// or of the same pixels.
template <typename Element, int kWidth, typename Index>
__global__ void __launch_bounds__(kThreads)
    residual_of_filters_kernel(Element* to, const Element* residual, bool of_output,
                               const __grid_constant__ ShuffleParams<Index> p) {
  using Vector = Channels<Element, kWidth>;
  const Index pixel_vectors = p.at.filters / kWidth;
  const std::int64_t width = static_cast<std::int64_t>(p.columns) * p.factors[2];
  for (std::int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const std::int64_t plane = row / p.out[1], line = row - plane * p.out[1];
    const std::int64_t image = plane / p.out[0], z = plane - image * p.out[0];
    for (Index i = threadIdx.x; i < p.columns * pixel_vectors; i += kThreads) {
      const Index q = i / pixel_vectors, first = (i - q * pixel_vectors) * kWidth;
      Vector values;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        const Index filter = first + e;
        if (!of_output) {
          values.values[e] = residual[(row * p.columns + q) * p.at.sources + p.at.source(filter)];
          continue;
        }
        const Index phase = p.at.phase_of(filter);
        const Index dw = phase % p.factors[2], dh = phase / p.factors[2] % p.factors[1];
        const Index dt = phase / p.factors[2] / p.factors[1];
        const std::int64_t frame = z * p.factors[0] + dt - static_cast<std::int64_t>(p.dropped);
        const std::int64_t pixel =
            ((image * p.frames + frame) * p.out[1] * p.factors[1] + line * p.factors[1] + dh) *
                width +
            static_cast<std::int64_t>(q) * p.factors[2] + dw;
        values.values[e] =
            frame < 0 ? Element{} : residual[pixel * p.at.channels + p.at.channel_of(filter)];
      }
      reinterpret_cast<Vector*>(to + row * p.columns * p.at.filters)[i] = values;
    }
  }
}

// Rows of filters (or of a bias) from the order (c, phase) to (phase, c).
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    permute_filters_kernel(Word* to, const Word* from, std::int64_t channels, std::int64_t phases,
                           std::int64_t row_words) {
  const std::int64_t words = channels * phases * row_words;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < words;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t row = i / row_words, phase = row / channels, c = row - phase * channels;
    to[i] = from[(c * phases + phase) * row_words + (i - row * row_words)];
  }
}

template <typename Index>
ShuffleParams<Index> shuffle_params(const ConvGeometry& g, const OutputShuffle& shuffle,
                                    bool of_residual) {
  const auto index = [](std::int64_t value) { return static_cast<Index>(value); };
  return {
      .at = ShuffledChannels<Index>(g, shuffle, of_residual),
      .rows = 0,
      .frames = shuffled_extents(g, shuffle)[0],
      .out = {g.out[0], g.out[1]},
      .columns = index(g.out[2]),
      .factors = {index(shuffle.factors[0]), index(shuffle.factors[1]), index(shuffle.factors[2])},
      .dropped = index(shuffle.dropped_frames)};
}

// body(Element{}, Index{}): how elements move, and what counts them in a row of so many.
template <typename Body>
void with_types(std::size_t element_bytes, std::int64_t row_elements, const Body& body) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() - kThreads;
  const auto with_index = [&]<typename Element>(Element element) {
    if (row_elements <= kMost) {
      body(element, std::uint32_t{});
    } else {
      body(element, std::uint64_t{});
    }
  };
  if (element_bytes == 2) {
    with_index(std::uint16_t{});
  } else {
    with_index(std::uint32_t{});
  }
}

LaunchConfig rows_launch(const char* name, std::int64_t rows, cudaStream_t stream) {
  return {.name = name, .grid = blocks_for(rows, 1), .block = kThreads, .stream = stream};
}

class CudaShuffleCopies final : public ShuffleCopies {
 public:
  void to_output(void* output, const void* from, const ConvGeometry& g,
                 const OutputShuffle& shuffle, bool of_residual, std::size_t element_bytes,
                 cudaStream_t stream) const override {
    with_types(element_bytes, g.out[2] * g.out_channels, [&]<typename E, typename I>(E, I) {
      auto p = shuffle_params<I>(g, shuffle, of_residual);
      p.rows = g.batch * p.frames * g.out[1] * shuffle.factors[1];
      const LaunchConfig launch = rows_launch("shuffle_to_output", p.rows, stream);
      constexpr int kWidth = 16 / sizeof(E);
      auto* const kernel = p.at.channels % kWidth == 0 ? shuffle_to_output_kernel<E, kWidth, I>
                                                       : shuffle_to_output_kernel<E, 1, I>;
      launch_kernel(kernel, launch, static_cast<E*>(output), static_cast<const E*>(from), p);
    });
  }

  void residual_of_filters(void* to, const void* residual, const ConvGeometry& g,
                           const OutputShuffle& shuffle, std::size_t element_bytes,
                           cudaStream_t stream) const override {
    const bool of_output = shuffle.residual == ShuffleResidual::output;
    with_types(element_bytes, g.out[2] * g.out_channels, [&]<typename E, typename I>(E, I) {
      auto p = shuffle_params<I>(g, shuffle, true);
      p.rows = g.batch * g.out[0] * g.out[1];
      const LaunchConfig launch = rows_launch("residual_of_filters", p.rows, stream);
      constexpr int kWidth = 16 / sizeof(E);
      auto* const kernel = p.at.filters % kWidth == 0 ? residual_of_filters_kernel<E, kWidth, I>
                                                      : residual_of_filters_kernel<E, 1, I>;
      launch_kernel(kernel, launch, static_cast<E*>(to), static_cast<const E*>(residual), of_output,
                    p);
    });
  }
};

// ---- Phases -------------------------------------------------------------------------------------

// What the phases of a shuffle have in common: the convolution of fw·C' filters that each is.
struct PhaseForm {
  std::int64_t filters = 0;  // of a phase
  bool by_image = false;     // images lie no whole number of frame pitches apart
  PlanRequest all;           // of every frame
  /// Without the first frame, which is dropped: for the phases (dt < dropped_frames) that it is
  /// dropped of. Empty where there are none, or no other frame.
  std::optional<PlanRequest> later;
  std::int64_t cache_frames_passed = 0, frames_passed = 0;  // of `later`, at the front
};

// Filters come as (c, phase) and are wanted as (phase, c).
bool permutes(const PlanRequest& request) {
  return request.shuffle.order == ShuffleOrder::channels_outer &&
         shuffled_channels(request.geometry, request.shuffle) > 1;
}

// The form, or why there is none.
std::string phase_form(const PlanRequest& request, PhaseForm* form) {
  const ConvGeometry& g = request.geometry;
  const OutputShuffle& shuffle = request.shuffle;
  if (g.groups != 1) return text("groups = ", g.groups, " with a shuffle; legal: 1");
  if (shuffle.dropped_frames > 0 && request.prologue.any()) {
    return text("prologue = ", to_string(request.prologue),
                " with dropped frames; legal: none (frames of an image are left out)");
  }
  const auto& f = shuffle.factors;
  form->filters = g.out_channels / (f[0] * f[1]);
  form->by_image = shuffle.dropped_frames > 0 && g.batch > 1;
  PlanRequest& all = form->all = request;
  all.shuffle = {};
  all.packed_filter = false;
  all.geometry.out_channels = form->filters;
  all.geometry.output_row_pitch = f[1] * g.out[2] * form->filters;
  all.geometry.output_frame_pitch = f[0] * g.out[1] * all.geometry.output_row_pitch;
  if (form->by_image) all.geometry.batch = 1;
  if (shuffle.dropped_frames == 0 || g.out[0] == 1) return {};
  // Leave out the first output frame: as much padding, cached frames and frames at the front.
  PlanRequest later = all;
  ConvGeometry& rest = later.geometry;
  std::int64_t left = g.stride[0];
  const auto take = [&](std::int64_t& from) {
    const std::int64_t taken = std::min(left, from);
    from -= taken;
    left -= taken;
    return taken;
  };
  take(rest.pad_begin[0]);
  form->cache_frames_passed = take(rest.cached_frames);
  form->frames_passed = take(rest.in[0]);
  rest.out[0] -= 1;
  const bool reflects = rest.pad_mode[0] == PadMode::reflect;
  if (left > 0 || rest.in[0] == 0 || (reflects && rest.pad_end[0] >= rest.seen()[0])) {
    return text("in_depth = ", g.in[0], " with dropped frames; legal: frames that later output ",
                "frames read");
  }
  form->later = std::move(later);
  return {};
}

class ShuffledPhasesPlan final : public CudaPlan {
 public:
  ShuffledPhasesPlan(const KernelCandidate& kernel, const PlanRequest& request)
      : CudaPlan(request) {
    const std::string reason = phase_form(request, &form_);
    if (!reason.empty()) throw Error(Status::unsupported, reason);
    all_ = kernel.make(form_.all);
    if (form_.later) later_ = kernel.make(*form_.later);
  }

  std::size_t workspace_bytes() const override {
    return permuted_filter_bytes() + permuted_bias_bytes() +
           std::max(all_->workspace_bytes(), later_ ? later_->workspace_bytes() : 0);
  }
  bool multiplies_tf32() const override { return all_->multiplies_tf32(); }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    const OutputShuffle& shuffle = request_.shuffle;
    RunPointers inner = pointers;
    inner.next_cache = nullptr;
    auto* workspace = static_cast<char*>(pointers.workspace);
    if (permuted_filter_bytes() > 0) {
      permute(workspace, pointers.filter, filter_row_bytes(), stream);
      inner.filter = workspace;
      workspace += permuted_filter_bytes();
    }
    if (permuted_bias_bytes() > 0) {
      permute(workspace, pointers.epilogue.bias, bias_bytes(1), stream);
      inner.epilogue.bias = workspace;
      workspace += permuted_bias_bytes();
    }
    inner.workspace = workspace;
    const bool has_residual =
        pointers.epilogue.residual != nullptr && pointers.epilogue.beta != 0.0f;
    const auto out_bytes = static_cast<std::int64_t>(size_of(request_.output_dtype));
    // NOTE: what is read once for each channel that repeats it is written where the epilogue reads
    // it, and replaces it, as a residual in place.
    if (has_residual && shuffle.residual != ShuffleResidual::output) {
      cuda_shuffle_copies().to_output(pointers.output, pointers.epilogue.residual, g, shuffle, true,
                                      size_of(request_.output_dtype), stream);
      inner.epilogue.residual = pointers.output;
    }

    const auto& f = shuffle.factors;
    const std::int64_t row = g.out[2] * form_.filters, frame = f[1] * g.out[1] * row;
    const std::int64_t image = shuffled_extents(g, shuffle)[0] * frame;
    const auto in_bytes = static_cast<std::int64_t>(size_of(request_.dtype));
    const std::int64_t in_frame = g.in[1] * g.in[2] * g.in_channels * in_bytes;
    for (std::int64_t n = 0; n < (form_.by_image ? g.batch : 1); ++n) {
      for (std::int64_t dt = 0; dt < f[0]; ++dt) {
        const bool is_later = dt < shuffle.dropped_frames;
        if (is_later && later_ == nullptr) continue;
        const std::int64_t first = dt - shuffle.dropped_frames + (is_later ? f[0] : 0);
        for (std::int64_t dh = 0; dh < f[1]; ++dh) {
          const std::int64_t number = dt * f[1] + dh;
          const std::int64_t offset = (n * image + first * frame + dh * row) * out_bytes;
          RunPointers phase = inner;
          phase.output = static_cast<char*>(pointers.output) + offset;
          if (has_residual) {
            phase.epilogue.residual = static_cast<const char*>(inner.epilogue.residual) + offset;
          }
          if (inner.epilogue.bias != nullptr) {
            phase.epilogue.bias =
                static_cast<const char*>(inner.epilogue.bias) + bias_bytes(number * form_.filters);
          }
          phase.filter =
              static_cast<const char*>(inner.filter) + number * form_.filters * filter_row_bytes();
          phase.activation = static_cast<const char*>(pointers.activation) +
                             (n * g.in[0] + (is_later ? form_.frames_passed : 0)) * in_frame;
          if (g.cached_frames > 0) {
            phase.cache =
                static_cast<const char*>(pointers.cache) +
                (n * g.cached_frames + (is_later ? form_.cache_frames_passed : 0)) * in_frame;
          }
          (is_later ? later_ : all_)->run(phase, stream);
        }
      }
    }
    store_next_cache(pointers, stream);
  }

  std::string filter_format() const override {
    return request_.packed_filter && permutes(request_) ? "ktrsc_by_phase" : "ktrsc";
  }
  void pack_filter(void* packed, const void* filter, FilterLayout layout,
                   cudaStream_t stream) const override {
    if (filter_format() == "ktrsc") return CudaPlan::pack_filter(packed, filter, layout, stream);
    pack_from_dense(filter, layout, stream,
                    [&](const void* dense) { permute(packed, dense, filter_row_bytes(), stream); });
  }

 private:
  std::int64_t filter_row_bytes() const {
    return request_.geometry.gemm_k() * static_cast<std::int64_t>(size_of(request_.dtype));
  }
  std::int64_t bias_bytes(std::int64_t filters) const {
    return filters * static_cast<std::int64_t>(size_of(request_.epilogue.bias_dtype));
  }
  std::size_t permuted_filter_bytes() const {
    if (request_.packed_filter || !permutes(request_)) return 0;
    return workspace_part(request_.geometry.out_channels * filter_row_bytes());
  }
  std::size_t permuted_bias_bytes() const {
    if (!request_.epilogue.bias || !permutes(request_)) return 0;
    return workspace_part(bias_bytes(request_.geometry.out_channels));
  }
  void permute(void* to, const void* from, std::int64_t row_bytes, cudaStream_t stream) const {
    const std::int64_t phases = request_.shuffle.phases();
    const std::int64_t channels = request_.geometry.out_channels / phases;
    const auto launch = [&]<typename Word>(Word*) {
      const std::int64_t words = row_bytes / static_cast<std::int64_t>(sizeof(Word));
      launch_kernel(permute_filters_kernel<Word>,
                    {.name = "permute_filters",
                     .grid = blocks_for(channels * phases * words, kThreads),
                     .block = kThreads,
                     .stream = stream},
                    static_cast<Word*>(to), static_cast<const Word*>(from), channels, phases,
                    words);
    };
    if (row_bytes % 16 == 0) {
      launch(static_cast<uint4*>(nullptr));
    } else if (row_bytes % 4 == 0) {
      launch(static_cast<std::uint32_t*>(nullptr));
    } else {
      launch(static_cast<std::uint16_t*>(nullptr));
    }
  }

  PhaseForm form_;
  std::unique_ptr<ExecutablePlan> all_, later_;
};

}  // namespace

const ShuffleCopies& cuda_shuffle_copies() {
  static const CudaShuffleCopies copies;
  return copies;
}

Judgement judge_shuffled_phases(const KernelCandidate& kernel, const PlanRequest& request) {
  PhaseForm form;
  std::string reason = phase_form(request, &form);
  if (!reason.empty()) return reason;
  Judgement all = kernel.judge(form.all);
  if (!all.refusal.empty()) return all;
  const OutputShuffle& shuffle = request.shuffle;
  double us = 0.0;
  const std::int64_t images = form.by_image ? request.geometry.batch : 1;
  const auto runs = [&](std::int64_t frames) {
    return double(images) * double(frames) * double(shuffle.factors[1]);
  };
  us += runs(shuffle.factors[0] - shuffle.dropped_frames) * all.estimated_us;
  if (form.later) {
    Judgement later = kernel.judge(*form.later);
    if (!later.refusal.empty()) return later;
    us += runs(shuffle.dropped_frames) * later.estimated_us;
  }
  // What is moved besides.
  constexpr double kLaunchUs = 2.0;
  const double bytes_per_us = 3.5e6 * memory_share(request.device);
  if (permutes(request) && request.epilogue.bias) us += kLaunchUs;
  if (permutes(request) && !request.packed_filter) {
    us += kLaunchUs + 2.0 * double(request.geometry.filter_elements()) *
                          double(size_of(request.dtype)) / bytes_per_us;
  }
  if (request.epilogue.residual && shuffle.residual != ShuffleResidual::output) {
    us += kLaunchUs + double(shuffled_elements(request.geometry, shuffle) +
                             residual_elements(request.geometry, shuffle)) *
                          double(size_of(request.output_dtype)) / bytes_per_us;
  }
  return us;
}

std::unique_ptr<ExecutablePlan> make_shuffled_phases(const KernelCandidate& kernel,
                                                     const PlanRequest& request) {
  return std::make_unique<ShuffledPhasesPlan>(kernel, request);
}

}  // namespace convoy::composed
