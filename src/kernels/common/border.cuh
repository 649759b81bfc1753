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

/// Call `copy(to, from)` for each row (or column) of a patch that lies outside the input and that
/// some output reads. `first`: the patch's first one in the input, of `count`; `behind`: rows
/// behind the input that are read.
template <typename Copy>
__device__ __forceinline__ void for_each_outside(int first, int count, int extent, int behind,
                                                 PadMode mode, const Copy& copy) {
  for (int i = 0; i < -first; ++i) copy(i, inside(first + i, extent, mode) - first);
  const int end = min(count, extent + behind - first);
  for (int i = extent - first; i < end; ++i) copy(i, inside(first + i, extent, mode) - first);
}

/// Complete a patch in a stage, the first `bytes` of each pixel's 128; a whole warp. Columns first,
/// then rows with their corners: where one axis is padded with zeros, the corners are.
// NOTE: the 128-byte swizzle keeps a pixel's 16-byte units in its row of 128 bytes, unit u at place
// u ^ (row mod 8).
template <typename Params>
__device__ __forceinline__ void fill_border(const Params& p, const PatchOrigin& at, int bytes,
                                            std::uint8_t* stage, int lane) {
  const int unit = lane % 8;   // 8 lanes a pixel,
  const int first = lane / 8;  // 4 pixels at a time
  const bool is_loaded = unit * 16 < bytes;
  const auto copy_pixel = [&](int to, int from) {
    const auto place = [&](int pixel) {
      return reinterpret_cast<uint4*>(stage + pixel * 128 + (unit ^ (pixel & 7)) * 16);
    };
    if (is_loaded) *place(to) = *place(from);
  };
  if (p.pad_mode[2] != PadMode::zero) {
    for_each_outside(at.column, p.halo_width, p.in[1], p.pad_behind[1], p.pad_mode[2],
                     [&](int to, int from) {
                       for (int row = first; row < p.halo_height; row += 4) {
                         copy_pixel(row * p.halo_width + to, row * p.halo_width + from);
                       }
                     });
    __syncwarp();
  }
  if (p.pad_mode[1] != PadMode::zero) {
    for_each_outside(at.row, p.halo_height, p.in[0], p.pad_behind[0], p.pad_mode[1],
                     [&](int to, int from) {
                       for (int column = first; column < p.halo_width; column += 4) {
                         copy_pixel(to * p.halo_width + column, from * p.halo_width + column);
                       }
                     });
  }
}

}  // namespace convoy
