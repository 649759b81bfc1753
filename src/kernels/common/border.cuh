// SPDX-License-Identifier: Apache-2.0
//
// Padding by replication and reflection. TMA fills what lies outside the input with zeros; here the
// border of a patch is copied over them, from pixels of the same patch, in shared memory.
//
// `Params`, the launch parameters of either architecture, say of height and width:
//   fills_border  some of them is padded with something else than zeros
//   in, pad_behind  extent of the input, and how far behind it some output reads
//   halo_height, halo_width  of a patch
// and of depth, height and width pad_mode, zero where nothing is padded.
#pragma once

#include <cstdint>

#include "convoy/types.hpp"

namespace convoy {

/// The element of an axis that coordinate `x` reads: itself, or by the mode, which is not zero.
/// Reflection: not beyond one extent outside (validation has seen to that).
__device__ __forceinline__ int inside(int x, int extent, PadMode mode) {
  if (mode == PadMode::replicate) return min(max(x, 0), extent - 1);
  if (x < 0) x = -x;
  return x < extent ? x : 2 * (extent - 1) - x;
}

/// Where a tile's patch begins in the input.
struct PatchOrigin {
  int row, column;
};

/// Some of the patch lies outside, where taps read something else than zeros.
template <typename Params>
__device__ __forceinline__ bool needs_border(const Params& p, const PatchOrigin& at) {
  if (!p.fills_border) return false;
  const bool rows = at.row < 0 || at.row + p.halo_height > p.in[0];
  const bool columns = at.column < 0 || at.column + p.halo_width > p.in[1];
  return (rows && p.pad_mode[1] != PadMode::zero) || (columns && p.pad_mode[2] != PadMode::zero);
}

/// Complete a patch in a stage, the first `bytes` of each pixel's 128; a whole warp. Columns first,
/// then rows with their corners: where one axis is padded with zeros, the corners are.
// NOTE: the 128-byte swizzle keeps a pixel's 16-byte units in its row of 128 bytes, unit u at place
// u ^ (row mod 8).
// NOTE: loops, none unrolled: all kernels of patches have this code, and few layers run it.
template <typename Params>
__device__ __forceinline__ void fill_border(const Params& p, const PatchOrigin& at, int bytes,
                                            std::uint8_t* stage, int lane) {
  const int unit = lane % 8;  // 8 lanes a pixel, 4 pixels at a time
  const bool is_loaded = unit * 16 < bytes;
  const auto place = [&](int pixel) {
    return reinterpret_cast<uint4*>(stage + pixel * 128 + (unit ^ (pixel & 7)) * 16);
  };
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {
    const bool columns = turn == 0;
    const PadMode mode = columns ? p.pad_mode[2] : p.pad_mode[1];
    if (mode == PadMode::zero) continue;
    // Lines of the patch, of which some lie outside the input, and pixels of a line.
    const int first = columns ? at.column : at.row;
    const int extent = columns ? p.in[1] : p.in[0];
    const int lines = columns ? p.halo_width : p.halo_height;
    const int line_step = columns ? 1 : p.halo_width;
    const int pixels = columns ? p.halo_height : p.halo_width;
    const int pixel_step = columns ? p.halo_width : 1;
    const int end = min(lines, extent + (columns ? p.pad_behind[1] : p.pad_behind[0]) - first);
    // Those in front of the input, then those behind it that some output reads.
#pragma unroll 1
    for (int i = first < 0 ? 0 : extent - first; is_loaded && i < end; ++i) {
      if (i == -first) i += extent;
      if (i >= end) break;
      const int inwards = (inside(first + i, extent, mode) - first - i) * line_step;
      int to = i * line_step + lane / 8 * pixel_step;
#pragma unroll 1
      for (int pixel = lane / 8; pixel < pixels; pixel += 4, to += 4 * pixel_step) {
        *place(to) = *place(to + inwards);
      }
    }
    __syncwarp();
  }
}

}  // namespace convoy
