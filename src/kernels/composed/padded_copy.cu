// SPDX-License-Identifier: Apache-2.0
#include "kernels/composed/padded_copy.hpp"

#include <algorithm>
#include <limits>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "core/workspace.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/device_geometry.cuh"
#include "kernels/common/fast_divide.hpp"
#include "kernels/common/launch.hpp"
#include "kernels/common/normalised_box.hpp"
#include "kernels/common/ptx.cuh"
#include "kernels/composed/threads.hpp"

namespace convoy::composed {
namespace {

constexpr int kVectors = 4;  // Of a thread, all loaded before the first is stored.
constexpr int kBlockVectors = kThreads * kVectors;
constexpr std::int64_t kMostVectors = std::numeric_limits<std::int32_t>::max() - kBlockVectors;

// One copy. Vectors are counted in 32 bits; pitches of `g` count vectors.
struct PaddedCopy {
  DeviceGeometry g;  // as asked
  int origin[4];     // image, frame, row, column of the input that the copy begins with
  int vectors;
  FastDivide pixel_vectors, columns, rows, frames;
};

// Vectors in the order of the copy, neighbouring threads neighbouring ones.
template <typename Vector>
__global__ void __launch_bounds__(kThreads)
    padded_copy_kernel(Vector* copy, const Vector* activation, const Vector* cache,
                       const __grid_constant__ PaddedCopy p) {
  ptx::dependent_launch_trigger();
  ptx::dependent_launch_wait();
  const int first = static_cast<int>(blockIdx.x) * kBlockVectors + static_cast<int>(threadIdx.x);
  Vector values[kVectors] = {};
#pragma unroll
  for (int e = 0; e < kVectors; ++e) {
    const int vector = first + e * kThreads;
    if (vector >= p.vectors) continue;
    const int pixel = p.pixel_vectors.divide(vector);
    const int line = p.columns.divide(pixel), frame = p.rows.divide(line);
    const int image = p.frames.divide(frame);
    const Vector* const from = input_pixel(p.g, activation, cache, p.origin[0] + image,
                                           p.origin[1] + p.frames.remainder(frame, image),
                                           p.origin[2] + p.rows.remainder(line, frame),
                                           p.origin[3] + p.columns.remainder(pixel, line));
    if (from != nullptr) values[e] = __ldg(from + p.pixel_vectors.remainder(vector, pixel));
  }
#pragma unroll
  for (int e = 0; e < kVectors; ++e) {
    const int vector = first + e * kThreads;
    if (vector < p.vectors) copy[vector] = values[e];
  }
}

std::int64_t pixel_bytes(const ConvGeometry& g, DType dtype) {
  return g.in_channels * static_cast<std::int64_t>(size_of(dtype));
}

// Bytes that pixels are whole multiples of, at most 16.
std::int64_t vector_bytes(std::int64_t pixel_bytes) {
  for (const std::int64_t bytes : {16, 8, 4}) {
    if (pixel_bytes % bytes == 0) return bytes;
  }
  return 2;
}

bool has_other_padding(const ConvGeometry& g, int axis) {
  return g.pad_mode[axis] != PadMode::zero && (g.pad_begin[axis] != 0 || g.pad_end[axis] != 0);
}

// The copy holds the padding of this axis.
bool pads_axis(const ConvGeometry& g, CopiedPadding padding, int axis) {
  return axis == 0 ? padding.depth : padding.plane && has_other_padding(g, axis);
}

// The input of a part, from those of output frame `frame` on.
InputBox part_box(const ConvGeometry& asked, const PaddedCopyForm& form, const ConvGeometry& part,
                  std::int64_t image, std::int64_t frame) {
  // NOTE: frames count from the cache on, whether the copy has them or the inner kernel does.
  InputBox box{.origin = {image, frame * asked.stride[0] + form.part.cached_frames, 0, 0},
               .extent = {part.batch, part.in[0], part.in[1], part.in[2]}};
  for (int axis = 0; axis < 3; ++axis) {
    if (pads_axis(asked, form.padding, axis)) box.origin[1 + axis] -= asked.pad_begin[axis];
  }
  return box;
}

// Where a part lies: its first image and output frame, and which problem it is.
struct Part {
  std::int64_t image, frame;
  bool is_last;  // maybe shorter
};

template <typename Body>
void for_each_part(const ConvGeometry& asked, const PaddedCopyForm& form, const Body& body) {
  for (std::int64_t image = 0; image < asked.batch; image += form.part.batch) {
    for (std::int64_t frame = 0; frame < asked.out[0]; frame += form.part.out[0]) {
      body(Part{image, frame,
                image + form.part.batch > asked.batch || frame + form.part.out[0] > asked.out[0]});
    }
  }
}

// Input frames that `frames` output frames reach over.
std::int64_t frames_under(const ConvGeometry& g, std::int64_t frames) {
  return (frames - 1) * g.stride[0] + (g.filter[0] - 1) * g.dilation[0] + 1;
}

// The last part, where it is shorter than the others; else the same.
ConvGeometry last_part(const ConvGeometry& asked, const PaddedCopyForm& form) {
  ConvGeometry last = form.part;
  last.batch = asked.batch - (form.batch_parts - 1) * form.part.batch;
  if (form.frame_parts > 1) {
    last.out[0] = asked.out[0] - (form.frame_parts - 1) * form.part.out[0];
    last.in[0] = frames_under(asked, last.out[0]);
  }
  return last;
}

PlanRequest with_geometry(const PlanRequest& request, const ConvGeometry& geometry) {
  PlanRequest inner = request;
  inner.geometry = geometry;
  inner.prologue = {};  // Done by the copy.
  return inner;
}

class PaddedCopyPlan final : public CudaPlan {
 public:
  PaddedCopyPlan(const PlanRequest& request, const PaddedCopyForm& form,
                 const KernelCandidate& inner)
      : CudaPlan(request),
        form_(form),
        last_(last_part(request.geometry, form)),
        inner_(inner.make(with_geometry(request, form.part))),
        last_inner_(inner.make(with_geometry(request, last_))),
        copy_bytes_(workspace_part(form.part.activation_elements() *
                                   static_cast<std::int64_t>(size_of(request.dtype)))) {}

  std::size_t workspace_bytes() const override {
    return copy_bytes_ + std::max(inner_->workspace_bytes(), last_inner_->workspace_bytes());
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    RunPointers inner = pointers;
    inner.prologue = {};
    inner.activation = pointers.workspace;
    inner.cache = inner.next_cache = nullptr;
    inner.workspace = static_cast<char*>(pointers.workspace) + copy_bytes_;
    for_each_part(g, form_, [&](const Part& part) {
      copy_part(pointers, part.is_last ? last_ : form_.part, part.image, part.frame, stream);
      const std::int64_t offset = (part.image * g.out[0] + part.frame) * g.out[1] * g.out[2] *
                                  g.out_channels *
                                  static_cast<std::int64_t>(size_of(request_.output_dtype));
      inner.output = static_cast<char*>(pointers.output) + offset;
      if (form_.part.cached_frames > 0) {  // Else its frames are in the copy.
        inner.cache = static_cast<const char*>(pointers.cache) + part.image * g.cached_frames *
                                                                     g.in[1] * g.in[2] *
                                                                     pixel_bytes(g, request_.dtype);
      }
      if (pointers.epilogue.residual != nullptr) {
        inner.epilogue.residual = static_cast<const char*>(pointers.epilogue.residual) + offset;
      }
      (part.is_last ? last_inner_ : inner_)->run(inner, stream);
    });
    store_next_cache(pointers, stream);
  }

  std::string filter_format() const override { return inner_->filter_format(); }
  bool multiplies_tf32() const override { return inner_->multiplies_tf32(); }
  std::size_t packed_filter_bytes() const override { return inner_->packed_filter_bytes(); }
  void pack_filter(void* packed, const void* filter, FilterLayout layout,
                   cudaStream_t stream) const override {
    inner_->pack_filter(packed, filter, layout, stream);
  }

 private:
  void copy_part(const RunPointers& pointers, const ConvGeometry& part, std::int64_t image,
                 std::int64_t frame, cudaStream_t stream) const {
    if (!request_.prologue.any()) {
      return write_padded_copy(pointers.workspace, pointers.activation, pointers.cache,
                               request_.geometry, request_.dtype, form_, part, image, frame,
                               stream);
    }
    ConvGeometry copied = request_.geometry;
    copied.upsample /= form_.part.upsample;  // Left to the inner kernel, or done here.
    write_normalised_box(pointers.workspace, pointers, copied, request_.dtype,
                         part_box(request_.geometry, form_, part, image, frame), stream);
  }

  const PaddedCopyForm form_;
  const ConvGeometry last_;
  const std::unique_ptr<ExecutablePlan> inner_, last_inner_;
  const std::size_t copy_bytes_;
};

// The best way to copy a problem, or why there is none.
struct PaddedCopyChoice {
  PaddedCopyForm form;
  InnerKernel inner;  // of one part
  double estimated_us = 0.0;
};

class PaddedCopyCandidate final : public KernelCandidate {
 public:
  PaddedCopyCandidate(InnerKernels inner, std::size_t budget, bool normalises)
      : inner_(std::move(inner)), budget_(budget), normalises_(normalises) {}

  std::string name() const override { return normalises_ ? "normalised_copy" : "padded_copy"; }
  Device device() const override { return Device::cuda; }
  bool takes_prologues() const override { return normalises_; }
  bool packs_as_dense(const PlanRequest& request) const override {
    const PaddedCopyChoice best = choose(request);
    return best.inner.kernel->packs_as_dense(with_geometry(request, best.form.part));
  }

  Judgement judge(const PlanRequest& request) const override {
    if (normalises_ && !request.prologue.any()) {
      return "no prologue; legal: a norm in front (else nothing is to be copied)";
    }
    std::string reason = padded_copy_refusal(request);
    if (!reason.empty()) return reason;
    PaddedCopyChoice best = choose(request);
    if (best.inner.kernel == nullptr) return std::move(best.inner.reason);
    return best.estimated_us;
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    const PaddedCopyChoice best = choose(request);
    if (best.inner.kernel == nullptr) throw Error(Status::unsupported, best.inner.reason);
    return std::make_unique<PaddedCopyPlan>(request, best.form, *best.inner.kernel);
  }

 private:
  // NOTE: padding along depth costs the copy some frames, and the inner kernel nothing where it
  // clamps frame numbers itself.
  PaddedCopyChoice choose(const PlanRequest& request) const {
    const ConvGeometry& g = request.geometry;
    PaddedCopyChoice best;
    const bool other_plane = has_other_padding(g, 1) || has_other_padding(g, 2);
    const bool other_depth = has_other_padding(g, 0);
    for (const CopiedPadding padding : {CopiedPadding{.depth = false, .plane = false},
                                        CopiedPadding{.depth = false, .plane = true},
                                        CopiedPadding{.depth = true, .plane = false},
                                        CopiedPadding{.depth = true, .plane = true}}) {
      if ((padding.plane && !other_plane) || (padding.depth && !other_depth)) continue;
      // Without a prologue rows and columns are padded where they can be; what is left is less.
      const bool pads_any = (padding.plane || !other_plane) && (padding.plane || padding.depth);
      if (!normalises_ && !pads_any) continue;
      PaddedCopyChoice choice = judge_form(request, padding);
      if (best.inner.kernel == nullptr ||
          (choice.inner.kernel != nullptr && choice.estimated_us < best.estimated_us)) {
        best = std::move(choice);
      }
    }
    return best;
  }

  PaddedCopyChoice judge_form(const PlanRequest& request, CopiedPadding padding) const {
    const ConvGeometry& g = request.geometry;
    PaddedCopyChoice choice;
    choice.form = padded_copy_form(g, request.dtype, padding, budget_);
    const ConvGeometry& part = choice.form.part;
    const auto refuse = [&](std::string reason) {
      choice.inner = {.kernel = nullptr, .reason = std::move(reason)};
      return choice;
    };
    const std::int64_t element = static_cast<std::int64_t>(size_of(request.dtype));
    const std::int64_t bytes = part.activation_elements() * element;
    const std::int64_t most = kMostVectors * vector_bytes(pixel_bytes(g, request.dtype));
    if (bytes > most) {
      return refuse(
          text("a padded copy of ", bytes, " bytes; legal: at most ", most, " (32-bit counters)"));
    }
    choice.inner = inner_.choose(with_geometry(request, part));
    if (choice.inner.kernel == nullptr) return choice;

    // The copy is read as well as written.
    constexpr double kLaunchUs = 2.0;
    const double bytes_per_us = 3.5e6 * memory_share(request.device);
    const auto part_us = [&](const ConvGeometry& of, double inner_us) {
      const std::int64_t read =
          of.batch * std::min(of.in[0], g.seen()[0]) * g.in[1] * g.in[2] * g.in_channels;
      return kLaunchUs + inner_us +
             double((of.activation_elements() + read) * element) / bytes_per_us;
    };
    const ConvGeometry last = last_part(g, choice.form);
    const Judgement last_judgement = choice.inner.kernel->judge(with_geometry(request, last));
    if (!last_judgement.refusal.empty()) {
      return refuse(
          text("the last part (", choice.inner.kernel->name(), ": ", last_judgement.refusal, ")"));
    }
    const double parts = double(choice.form.batch_parts) * double(choice.form.frame_parts);
    const double last_parts = choice.form.frame_parts > 1 ? double(choice.form.batch_parts) : 1.0;
    choice.estimated_us = (parts - last_parts) * part_us(part, choice.inner.estimated_us) +
                          last_parts * part_us(last, last_judgement.estimated_us);
    return choice;
  }

  const InnerKernels inner_;
  const std::size_t budget_;
  const bool normalises_;
};

}  // namespace

PaddedCopyForm padded_copy_form(const ConvGeometry& g, DType dtype, CopiedPadding padding,
                                std::size_t budget) {
  PaddedCopyForm form{.part = g, .padding = padding};
  ConvGeometry& part = form.part;
  if (padding.plane) {
    part.upsample = 1;
    part.in = g.seen();
  }
  const auto copy_cache = [&] {
    part.cached_frames = 0;
    part.in[0] = g.seen()[0];
  };
  if (padding.plane || padding.depth) copy_cache();
  const auto pad = [&](int axis) {
    part.in[axis] = g.pad_begin[axis] + g.seen()[axis] + g.pad_end[axis];
    part.pad_begin[axis] = part.pad_end[axis] = 0;
    part.pad_mode[axis] = PadMode::zero;
  };
  for (int axis = 0; axis < 3; ++axis) {
    if (pads_axis(g, padding, axis)) pad(axis);
  }

  const auto most = static_cast<std::int64_t>(budget);
  const std::int64_t frame_bytes =
      part.in[1] * part.in[2] * g.in_channels * static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t image_frames = most / frame_bytes;  // that fit
  if (part.in[0] <= image_frames) {
    part.batch = std::min(g.batch, image_frames / part.in[0]);
  } else {
    part.batch = 1;
    const std::int64_t reach = frames_under(g, 1);
    const std::int64_t fitting =
        image_frames < reach ? 0 : (image_frames - reach) / g.stride[0] + 1;
    const std::int64_t frames = std::min(g.out[0], std::max(fitting, reach));
    if (frames < g.out[0]) {
      form.padding.depth = true;
      copy_cache();
      pad(0);
      part.out[0] = frames;
      part.in[0] = frames_under(g, frames);
    }
  }
  form.batch_parts = ceil_div(g.batch, part.batch);
  form.frame_parts = ceil_div(g.out[0], part.out[0]);
  return form;
}

void write_padded_copy(void* copy, const void* activation, const void* cache,
                       const ConvGeometry& asked, DType dtype, const PaddedCopyForm& form,
                       const ConvGeometry& part, std::int64_t image, std::int64_t frame,
                       cudaStream_t stream) {
  const std::int64_t width = vector_bytes(pixel_bytes(asked, dtype));
  const std::int64_t pixel_vectors = pixel_bytes(asked, dtype) / width;
  PaddedCopy p{.g = device_geometry(asked)};
  p.g.pixel_pitch = pixel_vectors;
  p.g.row_pitch = asked.in[2] * pixel_vectors;
  const InputBox box = part_box(asked, form, part, image, frame);
  for (int i = 0; i < 4; ++i) p.origin[i] = static_cast<int>(box.origin[i]);
  const std::int64_t vectors = part.batch * part.in[0] * part.in[1] * part.in[2] * pixel_vectors;
  p.vectors = static_cast<int>(vectors);
  p.pixel_vectors = FastDivide(pixel_vectors);
  p.columns = FastDivide(part.in[2]);
  p.rows = FastDivide(part.in[1]);
  p.frames = FastDivide(part.in[0]);
  const auto launch = [&]<typename Vector>(Vector* to) {
    launch_kernel(padded_copy_kernel<Vector>,
                  {.name = "padded_copy",
                   .grid = static_cast<unsigned>(ceil_div(vectors, std::int64_t{kBlockVectors})),
                   .block = kThreads,
                   .stream = stream,
                   .overlapped = true},
                  to, static_cast<const Vector*>(activation), static_cast<const Vector*>(cache), p);
  };
  switch (width) {
    case 16:
      return launch(static_cast<uint4*>(copy));
    case 8:
      return launch(static_cast<uint2*>(copy));
    case 4:
      return launch(static_cast<std::uint32_t*>(copy));
    default:
      return launch(static_cast<std::uint16_t*>(copy));
  }
}

std::string padded_copy_refusal(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  bool any = request.prologue.any();
  for (int axis = 0; axis < 3; ++axis) any = any || has_other_padding(g, axis);
  if (!any) {
    return "no padding but of zeros; legal: replicate or reflect padding of some axis (zeros need "
           "no copy)";
  }
  std::string reason = device_geometry_refusal(g);
  if (!reason.empty()) return reason;
  // NOTE: padding may make more of a tensor than 64 bits count.
  double bytes = double(g.batch) * double(pixel_bytes(g, request.dtype));
  for (int axis = 0; axis < 3; ++axis) {
    bytes *= double(g.pad_begin[axis] + g.seen()[axis] + g.pad_end[axis]);
  }
  constexpr double kMostBytes = double(std::int64_t{1} << 60);
  if (bytes > kMostBytes) {
    return text("a padded input of ", bytes, " bytes; legal: at most ", kMostBytes);
  }
  return {};
}

std::unique_ptr<KernelCandidate> make_padded_copy_candidate(InnerKernels inner,
                                                            std::size_t budget) {
  return std::make_unique<PaddedCopyCandidate>(std::move(inner), budget, false);
}

std::unique_ptr<KernelCandidate> make_normalised_copy_candidate(InnerKernels inner,
                                                                std::size_t budget) {
  return std::make_unique<PaddedCopyCandidate>(std::move(inner), budget, true);
}

}  // namespace convoy::composed
