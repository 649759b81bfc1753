// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/loading.hpp"

#include <limits>

#include "core/checked.hpp"

namespace convoy::sm90 {
namespace {

using implicit_gemm::KernelView;
using implicit_gemm::kMaxCoordinate;

constexpr std::int64_t kMaxBox = 256;  // pixels a side

// Images of one row: tiles are runs of pixels, which waste none on the rows of a patch.
bool is_line(const Config& config, const ConvGeometry& g) {
  return config.takes_lines() && g.upsample == 1 && g.in[1] == 1 && g.out[1] == 1 &&
         g.filter[1] == 1 && g.stride[2] == 1;
}

// A run of block_m pixels with its halo; where it exceeds a box, two of them side by side.
PatchTiling choose_line(const Config& config, const ConvGeometry& g) {
  PatchTiling tiling;
  tiling.tile_width = config.block_m;
  tiling.tile_height = 1;
  tiling.tiles_across = ceil_div(g.out[2], config.block_m);
  tiling.tiles_down = 1;
  tiling.halo_height = 1;
  tiling.halo_width = config.block_m + (g.filter[2] - 1) * g.dilation[2];
  tiling.box_width = tiling.halo_width;
  if (tiling.halo_width > kMaxBox) {
    // NOTE: 8 pixels: the second box begins where the swizzle does.
    tiling.box_width = ceil_div(tiling.halo_width, 16) * 8;
    tiling.halo_width = 2 * tiling.box_width;
  }
  if (tiling.halo_width <= config.halo_pixels && tiling.box_width <= kMaxBox) tiling.columns = 1;
  return tiling;
}

}  // namespace

PatchTiling choose_patch(const Config& config, const ConvGeometry& g, const KernelView& view) {
  if (is_line(config, g)) return choose_line(config, g);
  PatchTiling best;
  std::int64_t best_cost = std::numeric_limits<std::int64_t>::max();
  const int blocks = config.block_m / 64;
  for (int columns = 1; columns <= blocks; ++columns) {
    if (blocks % columns != 0) continue;
    const int rows = blocks / columns;
    PatchTiling tiling;
    tiling.columns = columns;
    tiling.tile_width = 8 * columns;
    tiling.tile_height = 8 * rows;
    tiling.tiles_across = ceil_div(view.out[2], tiling.tile_width);
    tiling.tiles_down = ceil_div(view.out[1], tiling.tile_height);
    // Of a plane, where there are strides (whose dilation is 1: halo_refusal).
    tiling.halo_width = tiling.tile_width + (view.filter[2] - 1) * g.dilation[2] / g.stride[2];
    tiling.box_width = tiling.halo_width;
    tiling.halo_height = tiling.tile_height + (view.filter[1] - 1) * g.dilation[1] / g.stride[1];
    const std::int64_t pixels = tiling.halo_width * tiling.halo_height;
    if (config.has_halo() &&
        (pixels > config.halo_pixels || (tiling.halo_width - 1) * g.stride[2] >= kMaxBox ||
         (tiling.halo_height - 1) * g.stride[1] >= kMaxBox)) {
      continue;
    }
    const std::int64_t cost =
        ceil_div(tiling.tiles_across * tiling.tiles_down, config.cluster_m) * 1000000 + pixels;
    if (cost < best_cost) {
      best_cost = cost;
      best = tiling;
    }
  }
  return best;
}

std::int64_t block_channels(const Config& config, const ConvGeometry& g) {
  const std::int64_t channels = g.group_channels();
  const std::int64_t blocks = ceil_div(channels, config.block_k());
  return ceil_div(channels, blocks * config.step_k()) * config.step_k();
}

FilterBlocks packed_blocks(const Config& config, const ConvGeometry& g) {
  const std::int64_t channels = block_channels(config, g);
  return {.count = ceil_div(g.group_channels(), channels),
          .channels = channels,
          .pitch = config.block_k()};
}

bool packs_in_lines(const Config& config, const ConvGeometry& g, bool packed_filter) {
  return packed_filter && g.upsample == 1 && packed_blocks(config, g).row() != g.group_channels();
}

Im2colTensorMap im2col_map(const Config& config, const ConvGeometry& g, const char* name,
                           std::int64_t frames, bool volumes) {
  Im2colTensorMap map = implicit_gemm::im2col_map(g, config.in, name, frames,
                                                  static_cast<int>(block_channels(config, g)),
                                                  config.block_m, volumes);
  map.as_tf32 = config.in == DType::fp32;
  return map;
}

Loader choose_loader(const Config& config, const ConvGeometry& g) {
  if (config.has_halo()) return is_line(config, g) ? Loader::line : Loader::halo;
  if (g.upsample == 2) return Loader::patch;
  if (!g.dense_output_rows()) return Loader::patch;  // A run of pixels is none in the output.
  const std::int64_t plane = g.out[1] * g.out[2];
  if (plane > kMaxCoordinate) return Loader::patch;
  if (implicit_gemm::is_pointwise(g) && g.dense_input()) return Loader::tiled;
  // Small frames fill tiles only if tiles may straddle them, which needs the 5-D copy.
  // Its frame numbers are TMA's own: outside are zeros.
  if (!implicit_gemm::is_planar(g) && g.groups == 1 && g.cached_frames == 0 && g.dense_output() &&
      implicit_gemm::view_pad_mode(g, 0) == PadMode::zero && g.gemm_m() <= kMaxCoordinate &&
      ceil_div(plane, config.block_m) * config.block_m * 10 > plane * 11 &&
      implicit_gemm::offset_refusal(g, 0, implicit_gemm::kMaxOffset5d).empty() &&
      tensor_map_refusal(im2col_map(config, g, "activation", g.in[0], true)).empty()) {
    return Loader::im2col_5d;
  }
  if (implicit_gemm::offset_refusal(g, 1, implicit_gemm::kMaxOffset4d).empty() &&
      tensor_map_refusal(im2col_map(config, g, "activation", g.in[0])).empty()) {
    return Loader::im2col;
  }
  return Loader::patch;
}

}  // namespace convoy::sm90
