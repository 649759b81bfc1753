// SPDX-License-Identifier: Apache-2.0
#include "convoy/problem.hpp"

#include "convoy/geometry.hpp"
#include "core/checked.hpp"

namespace convoy {
namespace {

std::int64_t tiles(std::int64_t extent, std::int64_t tile, const char* name) {
  if (tile < 1) throw_invalid(name, " = ", tile, " is not legal; legal: at least 1; nearest: 1");
  return ceil_div(extent, tile);
}

std::int64_t k_tiles(const ConvGeometry& g, std::int64_t tile) {
  return g.taps() * tiles(g.group_channels(), tile, "tile_k");
}

/// Append `key value` unless the value is the default, which shape strings leave out.
void append(std::string& out, const char* key, std::int64_t value, std::int64_t absent) {
  if (value != absent) out += key + std::to_string(value);
}

/// The fields of one axis in a shape string, "ph1phe2sh2dh1mh1": padding, end padding where it
/// differs, stride, dilation, pad mode (the number of the enum).
void append_axis(std::string& out, const ConvGeometry& g, int axis) {
  const std::string letter(1, "dhw"[axis]);
  append(out, ("p" + letter).c_str(), g.pad_begin[axis], 0);
  append(out, ("p" + letter + "e").c_str(), g.pad_end[axis], g.pad_begin[axis]);
  append(out, ("s" + letter).c_str(), g.stride[axis], 1);
  append(out, ("d" + letter).c_str(), g.dilation[axis], 1);
  append(out, ("m" + letter).c_str(), static_cast<int>(g.pad_mode[axis]), 0);
}

}  // namespace

std::int64_t Conv2dProblemShape::out_height() const {
  return geometry_of(*this).out[1];
}
std::int64_t Conv2dProblemShape::out_width() const {
  return geometry_of(*this).out[2];
}
std::int64_t Conv2dProblemShape::gemm_m() const {
  return geometry_of(*this).gemm_m();
}
std::int64_t Conv2dProblemShape::gemm_n() const {
  return geometry_of(*this).gemm_n();
}
std::int64_t Conv2dProblemShape::gemm_k() const {
  return geometry_of(*this).gemm_k();
}
std::int64_t Conv2dProblemShape::num_m_tiles(std::int64_t tile_m) const {
  return tiles(gemm_m(), tile_m, "tile_m");
}
std::int64_t Conv2dProblemShape::num_n_tiles(std::int64_t tile_n) const {
  return tiles(gemm_n(), tile_n, "tile_n");
}
std::int64_t Conv2dProblemShape::num_k_tiles(std::int64_t tile_k) const {
  return k_tiles(geometry_of(*this), tile_k);
}
void Conv2dProblemShape::validate() const {
  geometry_of(*this);
}

std::string Conv2dProblemShape::to_string() const {
  std::string out = text("n", batch, "h", in_height, "w", in_width, "c", in_channels, "k",
                         out_channels, "r", filter_h, "s", filter_w);
  // Built from the fields alone: the string of an illegal shape is wanted in its error too.
  ConvGeometry g;
  g.pad_begin = {0, pad_h, pad_w};
  g.pad_end = {0, pad_h_end.value_or(pad_h), pad_w_end.value_or(pad_w)};
  g.stride = {1, stride_h, stride_w};
  g.dilation = {1, dilation_h, dilation_w};
  g.pad_mode = {PadMode::zero, pad_mode, pad_mode};
  append_axis(out, g, 1);
  append_axis(out, g, 2);
  append(out, "g", groups, 1);
  append(out, "up", upsample, 1);
  return out;
}

std::int64_t Conv3dProblemShape::out_depth() const {
  return geometry_of(*this).out[0];
}
std::int64_t Conv3dProblemShape::out_height() const {
  return geometry_of(*this).out[1];
}
std::int64_t Conv3dProblemShape::out_width() const {
  return geometry_of(*this).out[2];
}
std::int64_t Conv3dProblemShape::gemm_m() const {
  return geometry_of(*this).gemm_m();
}
std::int64_t Conv3dProblemShape::gemm_n() const {
  return geometry_of(*this).gemm_n();
}
std::int64_t Conv3dProblemShape::gemm_k() const {
  return geometry_of(*this).gemm_k();
}
std::int64_t Conv3dProblemShape::num_m_tiles(std::int64_t tile_m) const {
  return tiles(gemm_m(), tile_m, "tile_m");
}
std::int64_t Conv3dProblemShape::num_n_tiles(std::int64_t tile_n) const {
  return tiles(gemm_n(), tile_n, "tile_n");
}
std::int64_t Conv3dProblemShape::num_k_tiles(std::int64_t tile_k) const {
  return k_tiles(geometry_of(*this), tile_k);
}
void Conv3dProblemShape::validate() const {
  geometry_of(*this);
}

std::string Conv3dProblemShape::to_string() const {
  std::string out = text("n", batch, "d", in_depth, "h", in_height, "w", in_width, "c", in_channels,
                         "k", out_channels, "t", filter[0], "r", filter[1], "s", filter[2]);
  ConvGeometry g;
  g.pad_begin = pad_begin;
  g.pad_end = pad_end;
  g.stride = stride;
  g.dilation = dilation;
  g.pad_mode = pad_mode;
  for (int axis = 0; axis < 3; ++axis) append_axis(out, g, axis);
  append(out, "g", groups, 1);
  append(out, "cache", cached_frames, 0);
  return out;
}

std::string to_string(const ProblemShape& problem) {
  return std::visit([](const auto& shape) { return shape.to_string(); }, problem);
}

}  // namespace convoy
