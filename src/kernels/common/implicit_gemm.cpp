// SPDX-License-Identifier: Apache-2.0
#include "kernels/common/implicit_gemm.hpp"

#include <algorithm>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "core/unit_axis.hpp"
#include "kernels/common/filter_packing.hpp"

namespace convoy::implicit_gemm {

KernelView kernel_view(const ConvGeometry& g) {
  KernelView view{.filter = g.filter, .dilation = g.dilation, .out = g.out, .pad_end = g.pad_end};
  if (g.upsample == 2) {
    view.phases = 4;
    view.filter[0] = upsampled_filter_terms(g);
    view.dilation[0] = 0;
    for (int axis = 1; axis < 3; ++axis) {
      view.filter[axis] = 2;
      view.out[axis] = g.in[axis];
      view.pad_end[axis] = 0;
    }
  }
  return view;
}

double depths_met(const ConvGeometry& g) {
  const KernelView view = kernel_view(g);
  if (view_pad_mode(g, 0) != PadMode::zero) return static_cast<double>(view.filter[0]);
  const std::int64_t frames = std::min<std::int64_t>(g.out[0], 1024);
  std::int64_t met = 0;
  for (std::int64_t z = 0; z < frames; ++z) {
    for (std::int64_t t = 0; t < view.filter[0]; ++t) {
      const std::int64_t d = z * g.stride[0] - g.pad_begin[0] + t * view.dilation[0];
      met += d >= 0 && d < g.seen()[0] ? 1 : 0;
    }
  }
  return static_cast<double>(met) / static_cast<double>(std::max<std::int64_t>(frames, 1));
}

bool folds_upsampling(const ConvGeometry& g, bool packed_filter) {
  return packed_filter && upsample_folding_refusal(g).empty();
}

bool is_planar(const ConvGeometry& g) {
  return is_unit_axis(g, 0) && g.cached_frames == 0;
}

bool is_pointwise(const ConvGeometry& g) {
  return is_unit_axis(g, 1) && is_unit_axis(g, 2) && g.upsample == 1;
}

PadMode view_pad_mode(const ConvGeometry& g, int axis) {
  if (g.pad_begin[axis] == 0 && g.pad_end[axis] == 0) return PadMode::zero;
  const PadMode mode = g.pad_mode[axis];
  return mode == PadMode::reflect && axis > 0 && g.upsample == 2 ? PadMode::replicate : mode;
}

std::string pad_mode_refusal(const ConvGeometry& g, int first_axis) {
  for (int axis = first_axis; axis < 3; ++axis) {
    if (view_pad_mode(g, axis) != PadMode::zero) {
      return text("padding mode of ", kAxisNames[axis], " = ", to_string(g.pad_mode[axis]),
                  "; legal: zero");
    }
  }
  return {};
}

std::string border_refusal(const ConvGeometry& g, int axis, const PatchedAxis& patches) {
  const PadMode mode = view_pad_mode(g, axis);
  if (mode == PadMode::zero) return {};
  const bool reflects = mode == PadMode::reflect;
  // The furthest that the first patch reads inside, and the first that the last patch does.
  const std::int64_t before = reflects ? 2 * g.pad_begin[axis] : g.pad_begin[axis];
  const std::int64_t last = g.in[axis] - 1 - (reflects ? g.pad_end[axis] : 0);
  if (before < patches.patch && (patches.tiles - 1) * patches.tile - g.pad_begin[axis] <= last) {
    return {};
  }
  return text("padding of ", kAxisNames[axis], " = ", g.pad_begin[axis], ", ", g.pad_end[axis],
              " by mode ", to_string(g.pad_mode[axis]), " under a filter of ", g.filter[axis],
              "; legal: what copies pixels of the same patch of ", patches.patch,
              ", as padding does that keeps the extent");
}

std::string normaliser_refusal(const ConvGeometry& g, const PrologueKind& prologue) {
  if (!prologue.any()) return "no prologue; legal: a norm in front (patches are normalised)";
  if (prologue.norm == PrologueNorm::rms && g.in[2] % 4 != 0) {
    return text("in_width = ", g.in[2],
                " with a prologue of norm rms; legal: a multiple of 4 (TMA ",
                "needs rows of 16 bytes); nearest: ", ceil_div(g.in[2], 4) * 4);
  }
  return {};
}

std::int64_t inverse_rms_pitch(std::int64_t patch_width) {
  return ceil_div(patch_width + 3, 4) * 4;
}

TiledTensorMap inverse_rms_map(const ConvGeometry& g, std::int64_t patch_width,
                               std::int64_t patch_height) {
  constexpr std::int64_t kFloat = sizeof(float);
  TiledTensorMap map;
  map.name = "prologue.inverse_rms";
  map.dtype = DType::fp32;
  map.rank = 3;
  map.swizzle = Swizzle::none;
  map.extents = {g.in[2], g.in[1], g.batch * g.in[0], 0, 0};
  map.strides_bytes = {0, g.in[2] * kFloat, g.in[1] * g.in[2] * kFloat, 0, 0};
  map.box = {static_cast<int>(inverse_rms_pitch(patch_width)), static_cast<int>(patch_height), 1, 0,
             0};
  return map;
}

std::string refusal(const ConvGeometry& g, bool packed_filter, DType dtype, bool takes_groups) {
  if (g.groups != 1 && !takes_groups) return text("groups = ", g.groups, "; legal: 1");
  const auto unit = static_cast<std::int64_t>(16 / size_of(dtype));
  const std::int64_t channels = g.group_channels();
  if (channels % unit != 0) {
    return text("in_channels", g.groups == 1 ? "" : " / groups", " = ", channels,
                "; legal: a multiple of ", unit,
                " (TMA needs rows of 16 bytes); nearest: ", ceil_div(channels, unit) * unit);
  }
  for (int axis = 0; axis < 3; ++axis) {
    if (axis > 0 && g.stride[axis] > 8) {
      return text("stride of ", kAxisNames[axis], " = ", g.stride[axis],
                  "; legal: 1 to 8 (tensor map element strides); nearest: 8");
    }
  }
  if (g.upsample == 2) {
    std::string reason = upsample_folding_refusal(g);
    if (!reason.empty()) return reason;
    if (!packed_filter) {
      return "a dense filter with upsample = 2; legal: a packed filter "
             "(PlanOptions::packed_filter), in which the upsampling is folded";
    }
  } else if (g.upsample != 1) {
    return text("upsample = ", g.upsample, "; legal: 1 or 2");
  }
  return {};
}

std::string coordinate_refusal(const ConvGeometry& g) {
  // NOTE: the output and the packed filter of a folded upsampling have four phases.
  for (const std::int64_t extent :
       {g.in_channels, 4 * g.out_channels, 4 * g.taps(), g.out[0], g.out[1], g.out[2], g.stride[0],
        g.batch * (g.in[0] + g.cached_frames), g.batch * g.out[0]}) {
    if (extent > kMaxCoordinate) {
      return text("an extent = ", extent, "; legal: at most ", kMaxCoordinate,
                  " (32-bit coordinates)");
    }
  }
  for (int axis = 0; axis < 3; ++axis) {
    const std::int64_t reach = g.in[axis] + (axis == 0 ? g.cached_frames : 0) + g.pad_begin[axis] +
                               g.pad_end[axis] + g.filter[axis] * g.dilation[axis];
    if (reach > kMaxCoordinate) {
      return text("input + padding + filter * dilation of ", kAxisNames[axis], " = ", reach,
                  "; legal: at most ", kMaxCoordinate, " (32-bit coordinates)");
    }
  }
  return {};
}

std::string offset_refusal(const ConvGeometry& g, int first_axis, std::int64_t limit) {
  for (int axis = first_axis; axis < 3; ++axis) {
    const std::int64_t reach = (g.filter[axis] - 1) * g.dilation[axis];
    if (reach > limit) {
      return text("(filter - 1) * dilation of ", kAxisNames[axis], " = ", reach,
                  "; legal: at most ", limit, " (im2col offsets)");
    }
  }
  return {};
}

namespace {

// What both kinds of map say of the tensor {C, W, H, N·frames}.
template <typename Map>
Map tensor_of(const ConvGeometry& g, DType dtype, const char* name, std::int64_t frames) {
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t pixel = g.input_pixel_elements() * element;
  const std::int64_t row = g.input_row_elements() * element;
  Map map;
  map.name = name;
  map.dtype = dtype;
  map.rank = 4;
  map.extents = {g.in_channels, g.in[2], g.in[1], g.batch * frames, 0};
  map.strides_bytes = {0, pixel, row, g.in[1] * row, 0};
  return map;
}

}  // namespace

TiledTensorMap frames_map(const ConvGeometry& g, DType dtype, const char* name,
                          std::int64_t frames) {
  return tensor_of<TiledTensorMap>(g, dtype, name, frames);
}

Im2colTensorMap im2col_map(const ConvGeometry& g, DType dtype, const char* name,
                           std::int64_t frames, int channels, int pixels, bool volumes) {
  const KernelView view = kernel_view(g);
  auto map = tensor_of<Im2colTensorMap>(g, dtype, name, frames);
  if (volumes) {
    map.rank = 5;
    map.extents[3] = frames;
    map.extents[4] = g.batch;
    map.strides_bytes[4] = frames * map.strides_bytes[3];
  }
  // Corners bound the positions of the filter's first tap: from -pad to where it last fits.
  for (int i = 0; i < map.rank - 2; ++i) {
    const int axis = 2 - i;
    map.lower_corner[i] = static_cast<int>(-g.pad_begin[axis]);
    map.upper_corner[i] =
        static_cast<int>(view.pad_end[axis] - (view.filter[axis] - 1) * g.dilation[axis]);
    map.element_strides[i + 1] = static_cast<int>(g.stride[axis]);
  }
  map.channels = channels;
  map.pixels = pixels;
  return map;
}

std::string output_pitch_refusal(const ConvGeometry& g, DType output_dtype) {
  if (g.dense_output()) return {};
  if (g.upsample != 1) return text("upsample = ", g.upsample, " with output pitches; legal: 1");
  const auto unit = static_cast<std::int64_t>(16 / size_of(output_dtype));
  if (g.out_channels % unit != 0) {
    return text("out_channels = ", g.out_channels, " with output pitches; legal: a multiple of ",
                unit, " (TMA needs rows of 16 bytes)");
  }
  return {};
}

std::int64_t phase_offset_bytes(const ConvGeometry& g, DType output_dtype, int phase) {
  const std::int64_t pixel = phase / 2 * g.out[2] + phase % 2;
  return pixel * g.out_channels * static_cast<std::int64_t>(size_of(output_dtype));
}

}  // namespace convoy::implicit_gemm
