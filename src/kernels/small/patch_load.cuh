// SPDX-License-Identifier: Apache-2.0
//
// The input patch under a tile of output pixels, halo included, copied to shared memory: any
// padding, upsampling, cached frames. For kernels whose blocks walk over tiles.
#pragma once

#include <cstdint>

#include "kernels/common/device_code.cuh"
#include "kernels/common/device_geometry.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/small/patch_extents.hpp"

namespace convoy::small {

/// A patch in shared memory: frames of `rows` rows each. Sizes in elements unless said otherwise.
struct PatchLayout {
  int rows = 0;     ///< Per frame.
  int columns = 0;  ///< Pixels of a row.
  int pixel_pitch = 0;
  int row_pitch = 0;
  int tile_rows = 8;      ///< Of output pixels.
  int tile_columns = 16;  ///< The same.
  int vector = 1;         ///< Elements copied at once: 8, 4, 2 or 1.
  /// Rows are runs of the input: zero padding, no upsampling, pixels dense.
  bool contiguous = false;
  std::uint32_t vectors_of_pixel = 1;
  /// 2^32 / vectors_of_pixel, rounded up: i / vectors_of_pixel is the upper half of i · this.
  std::uint32_t vectors_reciprocal = 0;
};

/// The patch under a tile of output pixels, of elements of which 16 bytes hold `unit`.
inline PatchLayout patch_layout(const ConvGeometry& g, std::int64_t tile_rows,
                                std::int64_t tile_columns, std::int64_t unit, int vector) {
  PatchLayout l;
  const std::int64_t c = g.in_channels;
  const auto reach = [&](std::int64_t outputs, int axis) {
    return static_cast<int>((outputs - 1) * g.stride[axis] +
                            (g.filter[axis] - 1) * g.dilation[axis] + 1);
  };
  l.tile_rows = static_cast<int>(tile_rows);
  l.tile_columns = static_cast<int>(tile_columns);
  l.rows = reach(tile_rows, 1);
  l.columns = reach(tile_columns, 2);
  // NOTE: with whole chunks of 8 in a pixel, 16 bytes of padding spread pixels over the banks.
  l.pixel_pitch = static_cast<int>(c % 8 == 0 ? c + unit : c);
  l.row_pitch = static_cast<int>(round_up(std::int64_t{l.columns} * l.pixel_pitch, unit));
  l.vector = vector;
  l.contiguous = l.pixel_pitch == c && g.upsample == 1 &&
                 (g.pad_mode[2] == PadMode::zero || (g.pad_begin[2] == 0 && g.pad_end[2] == 0));
  l.vectors_of_pixel = static_cast<std::uint32_t>(c / vector);
  l.vectors_reciprocal =
      static_cast<std::uint32_t>((std::uint64_t{1} << 32) / l.vectors_of_pixel + 1);
  return l;
}

#ifdef __CUDACC__

// Threads that copy a row together, and this one's place among them.
struct RowCopiers {
  int count, index;
};

// Copy `count` elements of a row from `first` on, zeros outside [0, end).
// NOTE: of single elements of 16 bits there is no asynchronous copy: four loads are under way at
// once.
template <int kVector, typename Element>
__device__ __forceinline__ void copy_run(Element* to, const Element* row, int first, int count,
                                         int end, const Element* anywhere, RowCopiers by) {
  constexpr int kBytes = kVector * static_cast<int>(sizeof(Element));
  if (row == nullptr) end = first;
  if constexpr (kBytes < 4) {
    constexpr int kAtOnce = 4;
    for (int e = by.index; e < count; e += by.count * kAtOnce) {
      Element v[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + e + i * by.count;
        v[i] = at >= 0 && at < end ? row[at] : from_float<Element>(0.0f);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (e + i * by.count < count) to[e + i * by.count] = v[i];
      }
    }
  } else {
    for (int e = by.index * kVector; e < count; e += by.count * kVector) {
      const bool valid = first + e >= 0 && first + e < end;
      copy_async<kBytes>(ptx::shared_address(to + e), valid ? row + first + e : anywhere, valid);
    }
  }
}

// Copy `columns` pixels of a row from column `first_w` on, each as the padding mode says.
template <int kVector, typename Element>
__device__ __forceinline__ void copy_pixels(const DeviceGeometry& g, const PatchLayout& l,
                                            Element* to, const Element* row, int first_w,
                                            const Element* anywhere, RowCopiers by) {
  constexpr int kBytes = kVector * static_cast<int>(sizeof(Element));
  const std::uint32_t count = l.columns * l.vectors_of_pixel;
  for (std::uint32_t e = by.index; e < count; e += by.count) {
    const std::uint32_t column = l.vectors_of_pixel == 1 ? e : __umulhi(e, l.vectors_reciprocal);
    const std::uint32_t channel = (e - column * l.vectors_of_pixel) * kVector;
    const Element* pixel = pixel_of_row(g, row, first_w + static_cast<int>(column));
    Element* at = to + column * l.pixel_pitch + channel;
    if constexpr (kBytes < 4) {
      *at = pixel != nullptr ? pixel[channel] : from_float<Element>(0.0f);
    } else {
      copy_async<kBytes>(ptx::shared_address(at), pixel != nullptr ? pixel + channel : anywhere,
                         pixel != nullptr);
    }
  }
}

// Copy the patch under a tile: a warp takes a row at a time, or, of a tile of one row, all do.
template <int kVector, typename Element, typename Arguments>
__device__ __forceinline__ void load_patch_rows(const Arguments& arguments, Element* patch, int n,
                                                int first_d, int first_h, int first_w,
                                                int threads) {
  const DeviceGeometry& g = arguments.geometry;
  const PatchLayout& l = arguments.layout;
  const auto* activation = static_cast<const Element*>(arguments.activation);
  const auto* cache = static_cast<const Element*>(arguments.cache);
  const bool together = l.tile_rows == 1;
  const int thread = static_cast<int>(threadIdx.x);
  const RowCopiers by = together ? RowCopiers{threads, thread} : RowCopiers{32, thread % 32};
  Element* to = patch;
  for (int t = 0; t < g.filter[0]; ++t, to += l.rows * l.row_pitch) {
    const int d = first_d + t * g.dilation[0];
    for (int i = together ? 0 : thread / 32; i < l.rows; i += together ? 1 : threads / 32) {
      const Element* row = input_row(g, activation, cache, n, d, first_h + i);
      if (l.contiguous) {
        copy_run<kVector>(to + i * l.row_pitch, row, first_w * g.channels, l.columns * g.channels,
                          g.seen[2] * g.channels, activation, by);
      } else {
        copy_pixels<kVector>(g, l, to + i * l.row_pitch, row, first_w, activation, by);
      }
    }
  }
}

#endif  // __CUDACC__

}  // namespace convoy::small
