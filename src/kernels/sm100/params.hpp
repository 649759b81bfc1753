// SPDX-License-Identifier: Apache-2.0
//
// What one launch of the Blackwell convolution is told, by value, in its parameter space.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "convoy/prologue.hpp"
#include "convoy/types.hpp"
#include "kernels/common/epilogue_params.hpp"
#include "kernels/common/fast_divide.hpp"

namespace convoy::sm100 {

/// How the rows of the GEMM are laid over the output. Rows are cut into groups, and no tile crosses
/// from one group into the next.
enum class RowGroups : int {
  /// One group, rows n·P·Q + p·Q + q; 4-D im2col loads walk through W, H and N.
  images = 0,
  /// One group, rows ((n·Z + z)·P + p)·Q + q; 5-D im2col loads walk through W, H, D and N.
  volumes = 1,
  /// A group for each output frame (n, z), rows p·Q + q; every filter depth reads one frame by a
  /// 4-D im2col load, from the cache or from the new frames, and depths that meet only padding are
  /// skipped.
  frames = 2,
  /// Folded nearest-2× upsampling: a group for each phase (a, b) of the output, rows over the
  /// input grid; row (n, p, q) is output pixel (n, 2p + a, 2q + b).
  phases = 3,
  /// A group for each output frame, like `frames`; a tile is a patch of 8 columns and block m / 8
  /// rows of it, loaded by one strided box a tap, or with its border by one box for all taps
  /// (Input::halo, which has phases of upsampling so as well). For what no im2col descriptor holds.
  patches = 4,
};

inline constexpr int kMaxPhases = 4;

/// Columns of a patch.
inline constexpr int kPatchColumns = 8;

/// Parameters of a launch. Extents and strides are in elements; axis order depth, height, width.
struct Params {
  CUtensorMap activation_map;
  CUtensorMap cache_map;               ///< frames with a cache; otherwise the activation's.
  CUtensorMap filter_map;              ///< {C, taps, K, phases}
  CUtensorMap output_map[kMaxPhases];  ///< One; four with phases.
  CUtensorMap source_map[kMaxPhases];  ///< The residual's, like the output's.

  RowGroups row_groups = RowGroups::images;
  /// Activations come by tiled copies of {C, x, y, frame} boxes, not by im2col: patches, and 1x1
  /// filters that read the pixels as they lie (x counts the rows of the group, y is 0).
  bool tiled_loads = false;
  bool is_fp16 = false;        ///< What Config calls bf16 is fp16.
  int groups = 1;              ///< Groups of rows.
  int groups_per_phase = 1;    ///< Those of one phase of an upsampling; else all.
  int phases = 1;              ///< 1, or 4 phases of an upsampling.
  int halo_width = 0;          ///< Input::halo: columns of a patch with its border,
  int halo_height = 0;         ///< its rows,
  int halo_bytes = 0;          ///< and the bytes of one load.
  int rows = 0;                ///< Rows of a group; with patches those of all its tiles.
  int patches_across = 1;      ///< Patches side by side in a frame.
  int filters = 0;             ///< K
  int m_clusters = 0;          ///< Cluster tiles along the rows of a group.
  int n_clusters = 0;          ///< Cluster tiles along the filters.
  int channel_atoms = 0;       ///< Swizzle spans that hold the C channels of a tap.
  int last_atom_channels = 0;  ///< Channels in the last of them, rounded up to 16.
  int filter_extent[3] = {1, 1, 1};
  int out_extent[3] = {1, 1, 1};  ///< Z, P, Q; with phases those of the input grid.
  int stride[3] = {1, 1, 1};
  int pad[3] = {0, 0, 0};  ///< At the beginning of each axis.
  int dilation[3] = {1, 1, 1};
  int frames = 1;         ///< New frames of the input.
  int cached_frames = 0;  ///< Frames of the cache, before the new ones.
  /// What taps outside the input read; zero where nothing is padded.
  PadMode pad_mode[3] = {PadMode::zero, PadMode::zero, PadMode::zero};
  bool fills_border = false;   ///< Patches that reach outside the input are completed.
  int in[2] = {1, 1};          ///< H, W
  int pad_behind[2] = {0, 0};  ///< Rows and columns behind the input that some output reads.
  /// The output is stored by TMA; false where K·sizeof(Out) is not a multiple of 16 bytes: then
  /// the epilogue's threads read the residual and write the output themselves.
  bool tma_store = true;
  void* output_pointer = nullptr;  ///< Used without tma_store.
  const void* source_pointer = nullptr;
  EpilogueParams epilogue;

  // Of Input::normalised.
  Prologue prologue;
  int channels = 0;             ///< C
  int block_bytes = 0;          ///< Of a pixel in a stage.
  int inverse_rms_pitch = 0;    ///< Floats from a row of a patch to the next,
  int inverse_rms_bytes = 0;    ///< and bytes of all.
  FastDivide patch_width;       ///< halo_width
  CUtensorMap inverse_rms_map;  ///< {W, H, frames}; unused but with PrologueNorm::rms.
};

#ifdef __CUDACC__

/// Groups of rows are output frames, whose filter depths read one input frame each.
__device__ __forceinline__ bool by_frames(const Params& params) {
  return params.row_groups == RowGroups::frames || params.row_groups == RowGroups::patches;
}

/// Output pixel of a row of a group, for tiles of `kTileRows` rows: (p, q) of plane n of the group.
struct RowPixel {
  int q, p, n;
  bool inside;  // of the output
};

template <int kTileRows>
__device__ __forceinline__ RowPixel pixel_of_row(const Params& params, int row) {
  if (params.row_groups == RowGroups::patches) {
    const int patch = row / kTileRows, down = patch / params.patches_across;
    row -= patch * kTileRows;
    const int q = (patch - down * params.patches_across) * kPatchColumns + row % kPatchColumns;
    const int p = down * (kTileRows / kPatchColumns) + row / kPatchColumns;
    return {q, p, 0, p < params.out_extent[1] && q < params.out_extent[2]};
  }
  const int plane = params.out_extent[1] * params.out_extent[2];
  const int n = row / plane;
  const int p = (row - n * plane) / params.out_extent[2];
  return {row - n * plane - p * params.out_extent[2], p, n, row < params.rows};
}

#endif  // __CUDACC__

}  // namespace convoy::sm100
