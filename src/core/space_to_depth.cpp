// SPDX-License-Identifier: Apache-2.0
#include "core/space_to_depth.hpp"

#include <algorithm>
#include <limits>

namespace convoy {
namespace {

bool is_unpadded(const ConvGeometry& g, int axis) {
  return g.pad_begin[axis] == 0 && g.pad_end[axis] == 0;
}

bool has_dense_taps(const ConvGeometry& g, int axis) {
  return g.dilation[axis] == 1 || g.filter[axis] == 1;
}

// Patches that lie side by side and leave nothing between them, or one that covers the axis.
bool is_tiled(const ConvGeometry& g, int axis) {
  return is_unpadded(g, axis) && has_dense_taps(g, axis) &&
         g.out[axis] * g.filter[axis] == g.in[axis] &&
         (g.stride[axis] == g.filter[axis] || g.out[axis] == 1);
}

// Make axis `axis` one element without a filter over it.
void clear_axis(ConvGeometry& g, int axis) {
  g.in[axis] = g.filter[axis] = g.stride[axis] = g.dilation[axis] = g.out[axis] = 1;
  g.pad_begin[axis] = g.pad_end[axis] = 0;
  g.pad_mode[axis] = PadMode::zero;
}

// Columns into channels, by the stride. True where that was possible.
bool fold_columns(ConvGeometry& g) {
  const std::int64_t stride = g.stride[2];
  const bool divides = g.filter[2] % stride == 0 && g.pad_begin[2] % stride == 0;
  const bool zeros = is_unpadded(g, 2) || g.pad_mode[2] == PadMode::zero;
  if (stride == 1 || !divides || !zeros || !has_dense_taps(g, 2)) return false;
  const std::int64_t filter = g.filter[2] / stride, pad = g.pad_begin[2] / stride;
  std::int64_t columns = g.in[2] / stride;
  // What the filter reaches, from the first column of the input.
  const std::int64_t reach = g.out[2] - 1 + filter - pad;
  if (g.in[2] % stride != 0) {
    // Whole columns are left over at the end. A single row may end before them, if nothing reads
    // them; of several the pitch would not be right.
    const bool single_row = g.batch * g.seen()[0] * g.in[1] == 1;
    if (!single_row || reach < 1 || reach > columns) return false;
    columns = reach;
  }
  g.in[2] = columns;
  g.in_channels *= stride;
  g.filter[2] = filter;
  g.stride[2] = 1;
  g.dilation[2] = 1;
  g.pad_begin[2] = pad;
  g.pad_end[2] = std::max<std::int64_t>(0, reach - columns);
  return true;
}

// A row that one output column takes in is a pixel; the other axes move up.
bool drop_width(ConvGeometry& g) {
  const bool covered = g.out[2] == 1 && is_tiled(g, 2);
  const bool last = g.in[0] == 1 && g.in[1] == 1;
  if (!covered || g.cached_frames != 0 || (last && g.in[2] == 1)) return false;
  g.in_channels *= g.in[2];
  for (int axis = 2; axis > 0; --axis) {
    g.in[axis] = g.in[axis - 1];
    g.filter[axis] = g.filter[axis - 1];
    g.pad_begin[axis] = g.pad_begin[axis - 1];
    g.pad_end[axis] = g.pad_end[axis - 1];
    g.stride[axis] = g.stride[axis - 1];
    g.dilation[axis] = g.dilation[axis - 1];
    g.pad_mode[axis] = g.pad_mode[axis - 1];
    g.out[axis] = g.out[axis - 1];
  }
  clear_axis(g, 0);
  return true;
}

// Pixels of a 1×1 problem as one row.
void join_pixels(ConvGeometry& g) {
  constexpr std::int64_t kMaxExtent = std::numeric_limits<std::int32_t>::max() / 2;
  const bool plain = is_unpadded(g, 0) && is_unpadded(g, 1) && is_unpadded(g, 2);
  const std::int64_t pixels = g.gemm_m();
  if (g.taps() != 1 || !plain || g.in != g.out || g.cached_frames != 0 || pixels > kMaxExtent) {
    return;
  }
  for (int axis = 0; axis < 3; ++axis) clear_axis(g, axis);
  g.batch = 1;
  g.in[2] = g.out[2] = pixels;
}

// Rows of patches into the batch, or beside the frames of a patch.
bool split_rows(ConvGeometry& g) {
  if (!is_tiled(g, 1) || g.filter[1] == 1 || g.out[1] == 1 || g.cached_frames != 0) return false;
  const bool planar = g.filter[0] == 1 && g.stride[0] == 1 && is_unpadded(g, 0);
  if (!planar && !is_tiled(g, 0)) return false;
  const std::int64_t patch_rows = g.out[1], frames = g.filter[0], images = g.out[0];
  clear_axis(g, 0);
  if (planar) {
    g.batch *= images * patch_rows;
  } else {
    g.batch *= images;
    g.in[0] = frames * patch_rows;
    g.filter[0] = frames;
    g.dilation[0] = patch_rows;
    g.out[0] = patch_rows;
  }
  g.in[1] = g.filter[1];
  g.stride[1] = 1;
  g.out[1] = 1;
  return true;
}

}  // namespace

std::vector<ConvGeometry> space_to_depth(const ConvGeometry& geometry) {
  std::vector<ConvGeometry> rewritten;
  if (geometry.groups != 1 || geometry.upsample != 1 || geometry.empty() ||
      !geometry.dense_output()) {
    return rewritten;
  }
  ConvGeometry g = geometry;
  // NOTE: the pitches of a dense output are those of its extents, which change.
  g.output_row_pitch = g.output_frame_pitch = 0;
  bool changed = false;
  for (bool again = true; again; changed = changed || again) {
    again = fold_columns(g);
    again = drop_width(g) || again;
  }
  if (changed) {
    join_pixels(g);
    rewritten.push_back(g);
  }
  if (split_rows(g)) rewritten.push_back(g);
  return rewritten;
}

}  // namespace convoy
