// SPDX-License-Identifier: Apache-2.0
#include "convoy/im2col.hpp"

#include <cstring>

#include "convoy/geometry.hpp"
#include "core/padding.hpp"
#include "core/text.hpp"

namespace convoy {
namespace {

/// Address of the C channels of one input pixel, or null where the tap reads zero. `d` counts
/// frames from the start of the cache, h and w rows and columns of the upsampled input.
const char* pixel(const ConvGeometry& g, const char* activation, const char* cache,
                  std::size_t element, std::int64_t n, std::array<std::int64_t, 3> at) {
  const auto seen = g.seen();
  for (int axis = 0; axis < 3; ++axis) {
    at[axis] = padded_source(at[axis], seen[axis], g.pad_mode[axis]);
    if (at[axis] < 0) return nullptr;
  }
  const std::int64_t h = at[1] / g.upsample;
  const std::int64_t w = at[2] / g.upsample;
  const bool cached = at[0] < g.cached_frames;
  const std::int64_t frame =
      cached ? n * g.cached_frames + at[0] : n * g.in[0] + at[0] - g.cached_frames;
  const std::int64_t offset = ((frame * g.in[1] + h) * g.in[2] + w) * g.in_channels;
  return (cached ? cache : activation) + offset * static_cast<std::int64_t>(element);
}

void im2col_rows(void* columns, const void* activation, const void* cache, DType dtype,
                 const ConvGeometry& g, std::int64_t row_begin, std::int64_t row_end) {
  if (g.groups != 1) {
    throw_invalid("im2col: groups = ", g.groups, " is not legal; legal: 1; nearest: 1");
  }
  if (row_begin < 0 || row_begin > row_end || row_end > g.gemm_m()) {
    throw_invalid("im2col: rows [", row_begin, ", ", row_end, ") are not legal; legal: within [0, ",
                  g.gemm_m(), ")");
  }
  if (row_begin == row_end) return;
  if (columns == nullptr || activation == nullptr) throw_invalid("im2col: a pointer is null");
  if (g.cached_frames > 0 && cache == nullptr) {
    throw_invalid("im2col: cache is null, but cached_frames = ", g.cached_frames);
  }

  const std::size_t element = size_of(dtype);
  const std::size_t tap_bytes = static_cast<std::size_t>(g.in_channels) * element;
  char* out = static_cast<char*>(columns);
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const std::int64_t q = row % g.out[2];
    const std::int64_t p = row / g.out[2] % g.out[1];
    const std::int64_t z = row / (g.out[2] * g.out[1]) % g.out[0];
    const std::int64_t n = row / (g.out[2] * g.out[1] * g.out[0]);
    const std::array<std::int64_t, 3> origin = {z * g.stride[0] - g.pad_begin[0],
                                                p * g.stride[1] - g.pad_begin[1],
                                                q * g.stride[2] - g.pad_begin[2]};
    for (std::int64_t t = 0; t < g.filter[0]; ++t) {
      for (std::int64_t r = 0; r < g.filter[1]; ++r) {
        for (std::int64_t s = 0; s < g.filter[2]; ++s, out += tap_bytes) {
          const char* in = pixel(g, static_cast<const char*>(activation),
                                 static_cast<const char*>(cache), element, n,
                                 {origin[0] + t * g.dilation[0], origin[1] + r * g.dilation[1],
                                  origin[2] + s * g.dilation[2]});
          if (in != nullptr) {
            std::memcpy(out, in, tap_bytes);
          } else {
            std::memset(out, 0, tap_bytes);
          }
        }
      }
    }
  }
}

}  // namespace

void im2col(void* columns, const void* activation, DType dtype, const Conv2dProblemShape& problem,
            std::int64_t row_begin, std::int64_t row_end) {
  im2col_rows(columns, activation, nullptr, dtype, geometry_of(problem), row_begin, row_end);
}

void im2col(void* columns, const void* activation, DType dtype, const Conv3dProblemShape& problem,
            std::int64_t row_begin, std::int64_t row_end, const void* cache) {
  im2col_rows(columns, activation, cache, dtype, geometry_of(problem), row_begin, row_end);
}

}  // namespace convoy
