// SPDX-License-Identifier: Apache-2.0
//
// What the host twins of the implicit-GEMM kernels do alike, whatever the architecture: what they
// all refuse, the convolution that they really run, the tensor maps of its operands.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>

#include "convoy/prologue.hpp"
#include "core/geometry.hpp"
#include "kernels/common/tensor_map.hpp"

namespace convoy::implicit_gemm {

/// The largest coordinate that a tile or a tensor map counts, in 32 bits with room for a tile.
inline constexpr std::int64_t kMaxCoordinate = std::numeric_limits<std::int32_t>::max() - 4096;

/// Offsets of a tap from the first one that an im2col copy can take: 8 bits an axis in 4-D copies,
/// 5 bits in 5-D ones (PTX ISA, im2col offsets).
inline constexpr std::int64_t kMaxOffset4d = 255;
inline constexpr std::int64_t kMaxOffset5d = 31;

/// The convolution that a kernel runs. A folded nearest-2× upsampling is four 2×2 convolutions
/// ("phases") of the input as it was before; phase (a, b) starts a rows and b columns later and
/// writes every second pixel of every second row. Folded exactly, its filters have two terms each:
/// taps along depth that read the same frame (dilation 0).
struct KernelView {
  std::int64_t phases = 1;                                             ///< 1 or 4
  std::array<std::int64_t, 3> filter{}, dilation{}, out{}, pad_end{};  ///< Of one phase.

  std::int64_t taps() const { return filter[0] * filter[1] * filter[2]; }
};
KernelView kernel_view(const ConvGeometry& geometry);

/// Whether a kernel can fold the problem's upsampling: it has the form for that, and the filter
/// comes packed.
bool folds_upsampling(const ConvGeometry& geometry, bool packed_filter);

/// Depths of the filter that meet frames of cache or input, on average over the first 1,024
/// output frames: so many are multiplied where those that meet only zeros are skipped.
double depths_met(const ConvGeometry& geometry);

/// No tap leaves its frame, so frames are images of a larger batch and tiles may straddle them.
bool is_planar(const ConvGeometry& geometry);

/// 1×1 within a frame, stride 1, no padding: pixels are read as they lie.
bool is_pointwise(const ConvGeometry& geometry);

/// What taps outside the input of a kernel's view read along an axis: zero where there is no
/// padding. A folded upsampling has one row and column of padding, which before the upsampling are
/// copies of the border whether they replicate or reflect.
PadMode view_pad_mode(const ConvGeometry& geometry, int axis);

/// Empty, or which axis from `first_axis` on is padded with anything but zeros.
std::string pad_mode_refusal(const ConvGeometry& geometry, int first_axis = 0);

/// How tiles whose taps slide over a patch lie along an axis: output elements of a tile, input
/// elements of its patch, tiles.
struct PatchedAxis {
  std::int64_t tile, patch, tiles;
};

/// Empty, or why padding along height or width cannot be copied from elements of the same patch
/// (border.cuh).
std::string border_refusal(const ConvGeometry& geometry, int axis, const PatchedAxis& patches);

/// Empty, or why a prologue cannot be applied to patches in shared memory (normalise.cuh).
std::string normaliser_refusal(const ConvGeometry& geometry, const PrologueKind& prologue);

/// Floats from a row of a patch's inverse RMS in shared memory to the next: from the multiple of 16
/// bytes in front of the patch, where TMA begins, to the one behind.
std::int64_t inverse_rms_pitch(std::int64_t patch_width);

/// The inverse RMS of the activation's pixels {W, H, N·frames}, a patch of them a copy.
TiledTensorMap inverse_rms_map(const ConvGeometry& geometry, std::int64_t patch_width,
                               std::int64_t patch_height);

/// Empty, or what every implicit-GEMM kernel declines: channels of a group that are no whole
/// 16-byte rows, wide strides, upsampling that does not fold. `packed_filter`: the filter comes in
/// the kernel's own format. `dtype`: of activation and filter. `takes_groups`: more than one.
std::string refusal(const ConvGeometry& geometry, bool packed_filter, DType dtype = DType::bf16,
                    bool takes_groups = false);

/// Empty, or which extent passes kMaxCoordinate, or which axis by its extent, padding and filter.
std::string coordinate_refusal(const ConvGeometry& geometry);

/// Empty, or which axis from `first_axis` on has a tap further than `limit` from the first one.
std::string offset_refusal(const ConvGeometry& geometry, int first_axis, std::int64_t limit);

/// The activation or cache of `frames` frames an image as {C, W, H, N·frames}; the caller sets box,
/// element strides and swizzle.
TiledTensorMap frames_map(const ConvGeometry& geometry, DType dtype, const char* name,
                          std::int64_t frames);

/// The same in im2col mode, `channels` × `pixels` a copy; `volumes`: as {C, W, H, frames, N}, with
/// taps and strides along depth.
Im2colTensorMap im2col_map(const ConvGeometry& geometry, DType dtype, const char* name,
                           std::int64_t frames, int channels, int pixels, bool volumes = false);

/// Empty, or why rows of the output cannot have pitches: those of a kernel that stores them by TMA
/// alone.
std::string output_pitch_refusal(const ConvGeometry& geometry, DType output_dtype);

/// Bytes from the output's first element to the first that phase 2a + b of a folded upsampling
/// writes; 0 for phase 0.
std::int64_t phase_offset_bytes(const ConvGeometry& geometry, DType output_dtype, int phase);

}  // namespace convoy::implicit_gemm
