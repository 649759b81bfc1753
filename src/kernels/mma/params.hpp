// SPDX-License-Identifier: Apache-2.0
//
// What the host twin hands to the kernel: pointers and the tiling of one problem.
#pragma once

#include <cstdint>

#include "convoy/types.hpp"
#include "kernels/common/fast_divide.hpp"
#include "kernels/common/output.hpp"

namespace convoy::mma {

/// Kernel parameters. Axis order of arrays: depth, height, width. "Copies" are what one copy brings
/// (Config::copy_bytes), as a unit of length.
struct Params {
  const void* activation;
  const void* cache;
  const void* filter;

  // Tiling. Tiles are numbered filter tiles first, then groups, phases, pixel tiles; a block takes
  // every gridDim.x-th. The second axis of the grid are the splits.
  int tiles;
  FastDivide filter_tiles;  ///< Of one group.
  FastDivide groups;
  FastDivide phases;     ///< 1, or 4 for a folded nearest-2x upsampling.
  FastDivide run_tiles;  ///< Of pixels, in a run: no tile has pixels of two.
  int run_pixels;        ///< Of a frame, or all.
  int steps;             ///< Stages of the whole reduction.
  int steps_per_split;   ///< Of them, those of one block; the last split may have fewer.
  int taps;              ///< Of the filter, as far as they are read.
  bool within_frames;    ///< Runs are frames.
  /// A step is one tap of 128 bytes of channels, and all taps of these come before the next 128
  /// bytes; else the reduction goes on as a filter has it, all channels of a tap first.
  bool taps_first;
  FastDivide inner;  ///< What comes first: taps, or channels of one group in copies.
  int list_mask;     ///< Taps in the list of places, a power of two, less one.

  // Problem. With a folded upsampling: that of one phase.
  int pixels;                   ///< N·Z·P·Q
  FastDivide out[3];            ///< Z, P, Q
  FastDivide filter_extent[3];  ///< T, R, S
  int stride[3];
  int pad[3];  ///< Before the first element.
  FastDivide dilation[3];
  int tap_frames;  ///< From a tap along depth to the next; 0: terms of a folded upsampling.
  PadMode pad_mode[3];
  int seen[3];                 ///< What the filter slides over: cache + new, upsampled.
  int frames, cached_frames;   ///< Of one image.
  int height;                  ///< Rows of a frame as it lies in memory.
  int upsample_shift;          ///< Gathered upsampling: 1; else 0.
  std::uint32_t row_copies;    ///< From a row of the input to the next.
  std::uint32_t pixel_copies;  ///< From a pixel to the next.
  FastDivide tap_copies;       ///< Channels of one group.
  int reduction_copies;        ///< Taps · channels of a group.
  std::int64_t filter_pitch;   ///< Bytes from a filter to the next,
  std::int64_t filter_offset;  ///< of a filter in front of the first tap that is read,
  std::int64_t phase_pitch;    ///< and from a phase's filters to the next phase's.
  int filters;                 ///< K / groups
  FastDivide last_filters;     ///< Of them, those of the last tile.

  ConvOutput output;  ///< With several splits: fp32 sums without epilogue, the first split's.
  std::int64_t split_pitch;  ///< Bytes from a split's sums to the next split's.
};

/// Filters from which on rows that begin anywhere are stored by pairs (PairStore::store_ragged).
/// NOTE: of fewer most lanes would have none: 1 to 40 filters take 1 to 15 % longer by it, from 100
/// on they take a sixth to a third less (docs/lab/2026-11-29-choice.md).
inline constexpr int kLeastRagged = 40;

/// Whether the epilogue, of inputs of `dtype`, has a path of its own (PairStore, epilogue.cuh).
__host__ __device__ inline bool is_usual(const Params& p, DType dtype) {
  const EpilogueParams& e = p.output.epilogue;
  return dtype != DType::fp32 && p.output.dtype == dtype &&
         (p.output.vectors || p.filters >= kLeastRagged) && !e.round_each_step &&
         e.activation != Activation::tanh;
}

/// Whether an epilogue, else linear, stays so with the activation.
__host__ __device__ inline bool is_linear(Activation activation) {
  return activation == Activation::none || activation == Activation::relu;
}
/// Of the usual epilogues, whether it is linear.
__host__ __device__ inline bool is_linear(const Params& p) {
  const EpilogueParams& e = p.output.epilogue;
  return p.output.vectors && !e.has_residual && p.phases.divisor == 1 && is_linear(e.activation);
}

}  // namespace convoy::mma
