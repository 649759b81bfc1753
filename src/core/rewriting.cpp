// SPDX-License-Identifier: Apache-2.0
#include "core/rewriting.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/unit_axis.hpp"

namespace convoy {
namespace {

constexpr std::int64_t kMaxExtent = std::numeric_limits<std::int32_t>::max() / 2;

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
  const bool planar = is_unit_axis(g, 0);
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

// Columns and rows into channels and batch.
void add_space_to_depth(const ConvGeometry& geometry, std::vector<Rewriting>& all) {
  ConvGeometry g = geometry;
  bool changed = false;
  for (bool again = true; again; changed = changed || again) {
    again = fold_columns(g);
    again = drop_width(g) || again;
  }
  if (changed) {
    join_pixels(g);
    all.push_back({g});
  }
  if (split_rows(g)) all.push_back({g});
}

void add_frames_as_rows(const ConvGeometry& geometry, std::vector<Rewriting>& all) {
  ConvGeometry g = geometry;
  const std::int64_t pixels = g.in[1] * g.in[2];
  // NOTE: frames are replicated by their numbers, rows by copies.
  const bool zeros = is_unpadded(g, 0) || g.pad_mode[0] == PadMode::zero;
  if (g.filter[0] == 1 || g.cached_frames != 0 || !zeros || pixels == 1 || pixels > kMaxExtent ||
      !is_unit_axis(g, 1) || !is_unit_axis(g, 2)) {
    return;
  }
  g.in[1] = g.in[0];
  g.out[1] = g.out[0];
  g.in[2] = g.out[2] = pixels;
  for (auto* const extents : {&g.filter, &g.pad_begin, &g.pad_end, &g.stride, &g.dilation}) {
    std::swap((*extents)[0], (*extents)[1]);
  }
  g.pad_mode[0] = g.pad_mode[1] = PadMode::zero;
  g.in[0] = g.out[0] = 1;
  all.push_back({g, true});
}

}  // namespace

std::vector<Rewriting> rewritings(const ConvGeometry& geometry) {
  std::vector<Rewriting> all;
  if (geometry.upsample != 1 || geometry.empty() || !geometry.dense_input() ||
      !geometry.dense_output()) {
    return all;
  }
  ConvGeometry g = geometry;
  // NOTE: the pitches of dense tensors are those of their extents, which change.
  g.input_pixel_pitch = g.input_row_pitch = 0;
  g.output_row_pitch = g.output_frame_pitch = 0;
  if (g.groups == 1) add_space_to_depth(g, all);
  add_frames_as_rows(g, all);
  return all;
}

}  // namespace convoy
