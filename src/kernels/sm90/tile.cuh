// SPDX-License-Identifier: Apache-2.0
//
// How a tile number becomes a place in the output, and which part of the reduction a CTA sums.
#pragma once

#include "kernels/common/border.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/sm90/config.hpp"
#include "kernels/sm90/params.hpp"

namespace convoy::sm90 {

/// One output tile of a CTA. `phase`: of an upsampling, or the group.
struct Tile {
  int frame;        // output frame n·Z + z; 0 where tiles straddle frames
  int batch, z;     // its parts
  int pixel;        // linear tiles: first pixel of the tile in its frame
  int row, column;  // patched tiles: first output pixel
  int filter;       // first filter, within its phase
  int phase, phase_row, phase_column;
  int t_begin, t_end;  // temporal taps that meet real frames
};

/// The convolution is one in groups, and the tile one that takes them.
template <Config kConfig>
__device__ __forceinline__ bool in_groups(const Params& p) {
  return kConfig.takes_groups() && p.is_grouped;
}

/// The tile is a patch of rows and columns, not a run of pixels.
template <Config kConfig>
__device__ __forceinline__ bool is_patched(const Params& p) {
  if constexpr (kConfig.is_matrix()) return false;
  if constexpr (kConfig.has_halo() && !kConfig.takes_lines()) return true;
  return is_patched(p.loader);
}

/// Tiles are numbered filters first, then along M inside a band, then through the frames, then
/// bands, then batches, so that CTAs that run together read the same rows and frames from L2. Where
/// filters are many, M tiles of a group come before them.
template <Config kConfig>
__device__ __forceinline__ Tile decode_tile(const Params& p, int index, int cta_rank) {
  // NOTE: a division costs some 60 cycles and a cooperative tile does not hide them, so the usual
  // cases (one frame, one phase, no temporal taps) go without.
  Tile tile;
  int m = p.phase_filter_tiles.divide(index);
  int n = p.phase_filter_tiles.remainder(index, m);
  if (p.order.group > 1) {
    // The first M tile of the group, and the place in its tiles.
    const int group = p.order.group_size.divide(m) * p.order.group;
    const int place = index - group * static_cast<int>(p.phase_filter_tiles.divisor);
    const bool last = group + p.order.group > p.order.m_tiles;
    const FastDivide& size = last ? p.order.last_group_size : p.order.group_size;
    n = size.divide(place);
    m = group + size.remainder(place, n);
  }
  tile.phase = tile.phase_row = tile.phase_column = 0;
  if (!kConfig.is_matrix() && p.phases > 1) {
    tile.phase = p.filter_tiles.divide(n);
    n = p.filter_tiles.remainder(n, tile.phase);
    if (!in_groups<kConfig>(p)) {
      tile.phase_row = tile.phase >> 1;
      tile.phase_column = tile.phase & 1;
    }
  }
  if constexpr (kConfig.cluster_n > 1) n = n * kConfig.cluster_n + cta_rank;
  tile.filter = n * kConfig.block_n;

  tile.frame = tile.batch = tile.z = 0;
  if (!kConfig.is_matrix() && p.output_frames > 1) {
    tile.batch = p.tiles_per_batch.divide(m);
    m = p.tiles_per_batch.remainder(m, tile.batch);
    const int band = p.tiles_per_band.divide(m);
    m = p.tiles_per_band.remainder(m, band);
    const bool last = (band + 1) * p.band >= p.m_clusters;
    const FastDivide& band_size = last ? p.last_band : p.full_band;
    tile.z = band_size.divide(m);
    m = band * p.band + band_size.remainder(m, tile.z);
    tile.frame = tile.batch * p.frames_per_batch + tile.z;
  }
  const int m_tile = m * kConfig.cluster_m + (kConfig.cluster_m > 1 ? cta_rank : 0);
  tile.pixel = m_tile * kConfig.block_m;
  tile.row = tile.column = 0;
  // NOTE: of a line too: tile_columns are its pixels.
  if (kConfig.has_halo() || is_patched<kConfig>(p)) {
    const int patch_row = p.patches_across.divide(m_tile);
    tile.row = patch_row * p.tile_rows;
    tile.column = p.patches_across.remainder(m_tile, patch_row) * p.tile_columns;
  }

  tile.t_begin = 0;
  tile.t_end = kConfig.is_matrix() ? 1 : p.filter[0];
  if (!kConfig.is_matrix() && p.skip_taps) {
    const int first = tile.z * p.stride[0] - p.pad[0];
    const int frames_in = p.cached_frames + p.new_frames;
    while (tile.t_begin < tile.t_end && first + tile.t_begin * p.dilation[0] < 0) ++tile.t_begin;
    while (tile.t_end > tile.t_begin && first + (tile.t_end - 1) * p.dilation[0] >= frames_in) {
      --tile.t_end;
    }
  }
  return tile;
}

/// Where a patched tile's patch begins in the input.
__device__ __forceinline__ PatchOrigin patch_origin(const Params& p, const Tile& tile) {
  return {tile.row - p.pad[1] + tile.phase_row, tile.column - p.pad[2] + tile.phase_column};
}

/// First filter of a tile's group.
template <Config kConfig>
__device__ __forceinline__ int first_filter_of_group(const Params& p, const Tile& tile) {
  return in_groups<kConfig>(p) ? tile.phase * p.filters : 0;
}

/// First channel of a tile's group.
template <Config kConfig>
__device__ __forceinline__ int first_channel_of_group(const Params& p, const Tile& tile) {
  return in_groups<kConfig>(p) ? tile.phase * p.channels : 0;
}

/// Which row of 8x8 sub-patches 64-row block `block` (0..3) of a patched tile is in.
__device__ __forceinline__ int patch_row(const Params& p, int block) {
  return p.patch_columns == 1 ? block : (block >= p.patch_columns ? 1 : 0);
}

/// A block of the reduction: 64 channels of one temporal tap, for all its spatial taps.
struct KBlock {
  int t, channels;  // temporal tap, block of channels

  __device__ __forceinline__ void advance(const Params& p) {
    if (++channels == p.channel_blocks) {
      channels = 0;
      ++t;
    }
  }
};

/// Blocks of a tile's reduction that this CTA sums: all, or its share of a split.
struct KRange {
  int begin, end;
};

template <Config kConfig>
__device__ __forceinline__ KRange k_range(const Params& p, const Tile& tile, int cta_rank,
                                          int cluster_size) {
  const int blocks = (tile.t_end - tile.t_begin) * p.channel_blocks;
  if constexpr (!kConfig.splits_k()) return {0, blocks};
  return {blocks * cta_rank / cluster_size, blocks * (cta_rank + 1) / cluster_size};
}

template <Config kConfig>
__device__ __forceinline__ KBlock first_k_block(const Params& p, const Tile& tile,
                                                const KRange& range) {
  if constexpr (!kConfig.splits_k()) return {tile.t_begin, 0};
  if constexpr (kConfig.is_matrix()) return {0, range.begin};
  const int t = p.blocks.divide(range.begin);
  return {tile.t_begin + t, p.blocks.remainder(range.begin, t)};
}

}  // namespace convoy::sm90
