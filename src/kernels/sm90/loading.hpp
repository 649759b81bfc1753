// SPDX-License-Identifier: Apache-2.0
//
// How the input of a tile gets into shared memory: what refusal.cpp judges and host.cpp lays out.
#pragma once

#include <cstdint>

#include "core/geometry.hpp"
#include "kernels/common/filter_packing.hpp"
#include "kernels/common/implicit_gemm.hpp"
#include "kernels/common/tensor_map.hpp"
#include "kernels/sm90/config.hpp"
#include "kernels/sm90/params.hpp"

namespace convoy::sm90 {

/// The patch of a tile.
struct PatchTiling {
  int columns = 0;                               ///< 8x8 sub-patches side by side; 0: none fits
  std::int64_t tile_width = 0, tile_height = 0;  ///< output pixels
  std::int64_t tiles_across = 0, tiles_down = 0;
  std::int64_t halo_width = 0, halo_height = 0;
  std::int64_t box_width = 0;  ///< of halo_width: what one copy loads
};

/// The patch shape with the fewest tiles, then the smallest halo.
PatchTiling choose_patch(const Config& config, const ConvGeometry& g,
                         const implicit_gemm::KernelView& view);

/// Channels a block of K: as few blocks as can be, of the same size.
std::int64_t block_channels(const Config& config, const ConvGeometry& g);

/// Blocks of K in a packed filter: each begins a line of 128 bytes.
// NOTE: a row that begins elsewhere, or reaches past the last channel, takes up to three times as
// long to load; filters of 16 to 32 channels, which all multiprocessors read at once, want more
// lines to be read from than they fill (docs/lab/2026-12-01-filter-lines.md).
FilterBlocks packed_blocks(const Config& config, const ConvGeometry& g);

/// Whether a packed filter has them: else it is the dense one, or a folded upsampling's.
bool packs_in_lines(const Config& config, const ConvGeometry& g, bool packed_filter);

/// Of the activation or the cache, `frames` of them an image. volumes: its frame numbers are TMA's.
Im2colTensorMap im2col_map(const Config& config, const ConvGeometry& g, const char* name,
                           std::int64_t frames, bool volumes = false);

Loader choose_loader(const Config& config, const ConvGeometry& g);

}  // namespace convoy::sm90
