// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "core/geometry.hpp"
#include "core/text.hpp"

namespace convoy {

/// ConvGeometry as the small kernels carry it: extents as 32-bit integers (no single extent
/// passes 2^31; `device_geometry_refusal`), products taken in 64 bits. Axis order depth, height,
/// width.
struct DeviceGeometry {
  int batch;
  int in[3];          ///< New frames, rows, columns, before upsampling.
  int cached_frames;  ///< Frames of the cache, in front of the new ones.
  int seen[3];        ///< What the filter slides over: cache + new frames, upsampled rows, columns.
  int channels;       ///< C / groups
  int filters;        ///< K / groups
  int groups;
  int filter[3];
  int pad[3];  ///< Before; negative where taps along depth were left out.
  int stride[3];
  int dilation[3];
  PadMode pad_mode[3];
  int upsample_shift;  ///< 0 or 1: log2 of the nearest-neighbour factor on rows and columns.
  int out[3];
  std::int64_t pixels;         ///< M = N·Z·P·Q
  std::int64_t reduction;      ///< T·R·S·C / groups, of the taps that are left.
  std::int64_t filter_pitch;   ///< Elements from a filter to the next.
  std::int64_t filter_offset;  ///< Elements of a filter in front of the first tap that is left.
  std::int64_t pixel_pitch;    ///< Elements from a column to the next.
  std::int64_t row_pitch;      ///< Elements from a row to the next.
};

/// Empty, or which extent does not fit the kernels' 32-bit coordinates.
inline std::string device_geometry_refusal(const ConvGeometry& g) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  const auto refuse = [&](const auto& name, std::int64_t value) {
    return text(name, " = ", value, "; legal: at most ", kMax,
                " (32-bit coordinates); nearest: ", kMax);
  };
  if (g.batch > kMax) return refuse("batch", g.batch);
  if (g.in_channels > kMax) return refuse("in_channels", g.in_channels);
  if (g.out_channels > kMax) return refuse("out_channels", g.out_channels);
  for (int axis = 0; axis < 3; ++axis) {
    // The furthest coordinate a tap can have, in front of and behind the input.
    const std::int64_t reach = g.seen()[axis] + g.pad_begin[axis] + g.pad_end[axis];
    const std::string name = kAxisNames[axis];
    if (reach > kMax) return refuse("padded " + name, reach);
    if (g.filter[axis] > kMax) return refuse("filter of " + name, g.filter[axis]);
    if (g.stride[axis] > kMax) return refuse("stride of " + name, g.stride[axis]);
    if (g.dilation[axis] > kMax) return refuse("dilation of " + name, g.dilation[axis]);
  }
  return {};
}

/// Taps along depth that meet an input frame for some output frame: [first, first + count). The
/// others read zero padding only (a causal convolution's first frames) and are left out.
struct DepthTaps {
  std::int64_t first, count;
};
inline DepthTaps depth_taps(const ConvGeometry& g) {
  if (g.pad_mode[0] != PadMode::zero) return {0, g.filter[0]};
  const auto meets_a_frame = [&](std::int64_t t) {
    // The first output frame whose tap is not in front of the input.
    const std::int64_t before = g.pad_begin[0] - t * g.dilation[0];
    const std::int64_t z = before <= 0 ? 0 : (before + g.stride[0] - 1) / g.stride[0];
    return z < g.out[0] && z * g.stride[0] - before < g.seen()[0];
  };
  std::int64_t first = 0, last = g.filter[0] - 1;
  while (first < last && !meets_a_frame(first)) ++first;
  while (last > first && !meets_a_frame(last)) --last;
  return {first, last - first + 1};
}

/// Empty, or which padded axis has another mode than zero.
inline std::string zero_padding_refusal(const ConvGeometry& g) {
  for (int axis = 0; axis < 3; ++axis) {
    if (g.pad_mode[axis] != PadMode::zero && (g.pad_begin[axis] != 0 || g.pad_end[axis] != 0)) {
      return text("padding mode of ", kAxisNames[axis], " = ", to_string(g.pad_mode[axis]),
                  "; legal: zero");
    }
  }
  return {};
}

inline DeviceGeometry device_geometry(const ConvGeometry& g) {
  DeviceGeometry d{};
  d.batch = static_cast<int>(g.batch);
  d.cached_frames = static_cast<int>(g.cached_frames);
  d.channels = static_cast<int>(g.group_channels());
  d.filters = static_cast<int>(g.group_filters());
  d.groups = static_cast<int>(g.groups);
  for (int axis = 0; axis < 3; ++axis) {
    d.in[axis] = static_cast<int>(g.in[axis]);
    d.seen[axis] = static_cast<int>(g.seen()[axis]);
    d.filter[axis] = static_cast<int>(g.filter[axis]);
    d.pad[axis] = static_cast<int>(g.pad_begin[axis]);
    d.stride[axis] = static_cast<int>(g.stride[axis]);
    d.dilation[axis] = static_cast<int>(g.dilation[axis]);
    d.pad_mode[axis] = g.pad_mode[axis];
    d.out[axis] = static_cast<int>(g.out[axis]);
  }
  d.upsample_shift = g.upsample == 2 ? 1 : 0;
  d.pixels = g.gemm_m();
  d.reduction = g.gemm_k();
  d.filter_pitch = g.gemm_k();
  d.pixel_pitch = g.in_channels;
  d.row_pitch = g.in[2] * g.in_channels;
  return d;
}

/// The same without the taps along depth that `depth_taps` leaves out.
inline DeviceGeometry trimmed_device_geometry(const ConvGeometry& g) {
  DeviceGeometry d = device_geometry(g);
  const DepthTaps taps = depth_taps(g);
  const std::int64_t tap_elements = g.filter[1] * g.filter[2] * g.group_channels();
  d.filter[0] = static_cast<int>(taps.count);
  d.pad[0] = static_cast<int>(g.pad_begin[0] - taps.first * g.dilation[0]);
  d.reduction = taps.count * tap_elements;
  d.filter_offset = taps.first * tap_elements;
  return d;
}

#ifdef __CUDACC__

/// Coordinate `x` of an axis of `extent` as the padding mode reads it; false where the tap reads
/// a zero.
// NOTE: a tile that reaches past the output asks for coordinates past the padding too; one
// reflection does not bring those back into the input.
__device__ __forceinline__ bool map_coordinate(int& x, int extent, PadMode mode) {
  if (static_cast<unsigned>(x) < static_cast<unsigned>(extent)) return true;
  if (mode == PadMode::zero) return false;
  if (mode == PadMode::replicate) {
    x = x < 0 ? 0 : extent - 1;
    return true;
  }
  x = x < 0 ? -x : 2 * (extent - 1) - x;
  return static_cast<unsigned>(x) < static_cast<unsigned>(extent);
}

/// First element of input row (n, d, h), coordinates in the seen (upsampled, cache in front) input,
/// or null where the taps on it read zeros.
template <typename Element>
__device__ __forceinline__ const Element* input_row(const DeviceGeometry& g,
                                                    const Element* activation, const Element* cache,
                                                    int n, int d, int h) {
  if (!map_coordinate(d, g.seen[0], g.pad_mode[0]) ||
      !map_coordinate(h, g.seen[1], g.pad_mode[1])) {
    return nullptr;
  }
  const bool cached = d < g.cached_frames;
  const Element* base = cached ? cache : activation;
  const std::int64_t frame = cached ? std::int64_t{n} * g.cached_frames + d
                                    : std::int64_t{n} * g.in[0] + (d - g.cached_frames);
  return base + (frame * g.in[1] + (h >> g.upsample_shift)) * g.row_pitch;
}

/// First channel of the pixel in column `w` of a row that `input_row` gave, or null for zeros.
template <typename Element>
__device__ __forceinline__ const Element* pixel_of_row(const DeviceGeometry& g, const Element* row,
                                                       int w) {
  if (row == nullptr || !map_coordinate(w, g.seen[2], g.pad_mode[2])) return nullptr;
  return row + (w >> g.upsample_shift) * g.pixel_pitch;
}

/// First channel of input pixel (n, d, h, w): the two in one.
template <typename Element>
__device__ __forceinline__ const Element* input_pixel(const DeviceGeometry& g,
                                                      const Element* activation,
                                                      const Element* cache, int n, int d, int h,
                                                      int w) {
  return pixel_of_row(g, input_row(g, activation, cache, n, d, h), w);
}

/// Output pixel m = ((n·Z + z)·P + p)·Q + q.
struct OutputPixel {
  int n, z, p, q;
};
__device__ __forceinline__ OutputPixel output_pixel(const DeviceGeometry& g, std::int64_t m) {
  OutputPixel pixel;
  pixel.q = static_cast<int>(m % g.out[2]);
  m /= g.out[2];
  pixel.p = static_cast<int>(m % g.out[1]);
  m /= g.out[1];
  pixel.z = static_cast<int>(m % g.out[0]);
  pixel.n = static_cast<int>(m / g.out[0]);
  return pixel;
}

#endif  // __CUDACC__

}  // namespace convoy
