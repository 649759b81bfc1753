// SPDX-License-Identifier: Apache-2.0
//
// Tiles: which outputs a block computes, and which steps of the reduction.
#pragma once

#include "kernels/mma/config.hpp"
#include "kernels/mma/params.hpp"

namespace convoy::mma {

/// Where a CTA's tile lies.
struct Tile {
  int pixel;      ///< The first, of its phase.
  int pixel_end;  ///< Behind the last pixel that the tile may have.
  int phase;
  int group;
  int filter;  ///< The first, of its group.
};

template <Config kConfig>
__device__ __forceinline__ Tile tile_of(const Params& p, int number) {
  const int groups = p.filter_tiles.divide(number);
  const int phases = p.groups.divide(groups);
  const int pixels = p.phases.divide(phases);
  const int run = p.run_tiles.divide(pixels);
  return {.pixel = run * p.run_pixels + p.run_tiles.remainder(pixels, run) * kConfig.block_m,
          .pixel_end = (run + 1) * p.run_pixels,
          .phase = p.phases.remainder(phases, pixels),
          .group = p.groups.remainder(groups, phases),
          .filter = p.filter_tiles.remainder(number, groups) * kConfig.block_n};
}

/// Steps [begin, end) of the reduction are this block's.
struct Steps {
  int begin, end;
};
__device__ __forceinline__ Steps steps_of_block(const Params& p) {
  const int begin = static_cast<int>(blockIdx.y) * p.steps_per_split;
  return {begin, min(begin + p.steps_per_split, p.steps)};
}

/// An output pixel of a phase as (image, frame, row, column).
__device__ __forceinline__ int4 output_position(const Params& p, int pixel) {
  const int row = p.out[2].divide(pixel);
  const int frame = p.out[1].divide(row);
  const int image = p.out[0].divide(frame);
  return make_int4(image, p.out[0].remainder(frame, image), p.out[1].remainder(row, frame),
                   p.out[2].remainder(pixel, row));
}

/// The number of a phase's pixel in the whole output.
__device__ __forceinline__ std::int64_t output_number(const Params& p, int pixel, int phase) {
  if (p.phases.divisor == 1) return pixel;
  const int row = p.out[2].divide(pixel);  // Of all frames.
  const int column = p.out[2].remainder(pixel, row);
  return (std::int64_t{2} * row + phase / 2) * (2 * p.out[2].divisor) + 2 * column + phase % 2;
}

}  // namespace convoy::mma
