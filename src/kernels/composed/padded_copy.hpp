// SPDX-License-Identifier: Apache-2.0
//
// Convolution with replicate and reflect padding by kernels that know zeros alone: a copy of the
// activation with its padding (cache in front, upsampling done), then any kernel with less padding.
// And with a prologue by kernels that have none: the copy is normalised.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/candidate.hpp"
#include "kernels/composed/inner_kernels.hpp"

namespace convoy::composed {

/// Bytes of a copy. What is larger is copied and convolved in parts: images, or else output frames
/// of one image.
inline constexpr std::size_t kPaddedCopyBytes = std::size_t{512} << 20;

/// Which padding but of zeros is in a copy; what is left is the inner kernel's.
struct CopiedPadding {
  bool depth = false;
  /// Of rows and columns; upsampling is then done as well.
  bool plane = true;
};
// NOTE: a copy without any padding leaves the cache to the inner kernel, too.

/// What a copy holds: all, or a part of the images or output frames.
struct PaddedCopyForm {
  /// The problem of one part, the last one maybe less. Padded axes are longer by their padding and
  /// have none left; an axis whose mode is zero keeps it.
  ConvGeometry part;
  CopiedPadding padding;
  /// Parts along the batch, and along the output frames of an image (then of one image each).
  std::int64_t batch_parts = 1, frame_parts = 1;
};

/// How the problem is copied within `budget` bytes. Parts of frames always have their padding along
/// depth, and input frames for at least as many output frames as taps along depth reach over.
PaddedCopyForm padded_copy_form(const ConvGeometry& geometry, DType dtype, CopiedPadding padding,
                                std::size_t budget = kPaddedCopyBytes);

/// Write a part's copy: images from `image` on, padded frames from those of output frame `frame`
/// on; as many as `part` has, which is `form.part` or shorter. Device pointers, `cache` as in
/// RunPointers; one kernel on `stream`. Throws Error{launch_failure}.
void write_padded_copy(void* copy, const void* activation, const void* cache,
                       const ConvGeometry& asked, DType dtype, const PaddedCopyForm& form,
                       const ConvGeometry& part, std::int64_t image, std::int64_t frame,
                       cudaStream_t stream);

/// Empty, or why the problem has no such copy: padding of zeros alone, extents past 32 bits.
std::string padded_copy_refusal(const PlanRequest& request);

/// "padded_copy". Workspace: the copy of a part, and what the inner kernel needs. The filter's
/// format is the inner kernel's.
std::unique_ptr<KernelCandidate> make_padded_copy_candidate(InnerKernels inner,
                                                            std::size_t budget = kPaddedCopyBytes);

/// "normalised_copy": the same for problems with a prologue, whatever their padding.
std::unique_ptr<KernelCandidate> make_normalised_copy_candidate(
    InnerKernels inner, std::size_t budget = kPaddedCopyBytes);

}  // namespace convoy::composed
