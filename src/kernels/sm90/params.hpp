// SPDX-License-Identifier: Apache-2.0
//
// What the host twin hands to conv_fprop_kernel: tensor maps by value, the tiling of one problem.
#pragma once

#include <cuda.h>
#include <vector_types.h>

#include <cstdint>

#include "convoy/prologue.hpp"
#include "convoy/types.hpp"
#include "kernels/common/epilogue_params.hpp"
#include "kernels/common/fast_divide.hpp"

namespace convoy::sm90 {

/// How activation tiles come into shared memory.
enum class Loader : int {
  /// 1×1 filter, stride 1, no padding: the activation is a [pixels, C] matrix.
  tiled = 0,
  /// im2col copies of the 4-D tensor [frames, H, W, C]; temporal taps select the frame.
  im2col = 1,
  /// im2col copies of the 5-D tensor [N, D, H, W, C]: tiles may straddle output frames.
  im2col_5d = 2,
  /// One strided box of 8×8 pixels per tap and 64 rows of the tile: no limit on offsets.
  patch = 3,
  /// The tile's input patch with its halo once per block of channels; the taps slide over it. With
  /// strides in planes.
  halo = 4,
  /// As halo, of images of one row: the tile is a run of pixels, its patch the run with its halo.
  line = 5,
};

__host__ __device__ constexpr bool is_patched(Loader loader) {
  return loader == Loader::patch || loader == Loader::halo;
}

inline constexpr int kMaxPhases = 4;

/// How much of the run-time epilogue a launch needs: one kernel each, so that the usual ones stay
/// short (what is not executed still costs instruction fetches, and kernels start cold).
enum class EpiloguePath {
  linear,      ///< scale·conv + bias, ReLU, of matrices (Config::is_matrix): the shortest
  plain,       ///< scale·conv + bias, ReLU, SiLU, leaky ReLU, clamp, hardswish
  fused,       ///< scale·conv + bias, ReLU, SiLU or leaky ReLU, a residual
  curved,      ///< scale·conv + bias, GELU, sigmoid, tanh; of split tiles all, with a residual too
  general,     ///< everything: rounding after each step, stores without TMA, ops
  statistics,  ///< scale·conv + bias, ReLU or SiLU, a residual, the statistics of what is stored
};
inline constexpr int kEpiloguePaths = 6;

/// EpiloguePath::statistics: where warps leave those of their tiles (statistics.cuh). An image's
/// tiles have neighbouring numbers; its last `slots` tiles have a record each.
struct StatisticsParams {
  float2* partials;  ///< Mean and squares [image][slot][warp][slice of kSliceFilters]
  float* pixels;     ///< How many each is of: [image][slot][warp]
  int image_tiles;
  int slots;
};
/// Neighbouring filters whose statistics are one.
inline constexpr int kSliceFilters = 4;

/// An activation but ReLU and SiLU as all paths but EpiloguePath::general compute it: formulas
/// whose coefficients serve all.
struct CurvedActivation {
  enum class Form : int {
    gate,     ///< x·logistic(x·P(x²)), P of a GatePolynomial
    sigmoid,  ///< scale·logistic(c0·x) + offset
    clamp,    ///< m·min(max(c0·x + c1, c2), c3), m = x or 1
    leaky,    ///< x, where it is negative c0·x
  };
  Form form = Form::gate;
  bool times_x = false;  ///< Form::clamp: m = x.
  float c[7] = {};
  float scale = 1.0f;
  float offset = 0.0f;
  float linear_to = 0.0f;  ///< Where |x| is less: x - x³/3, tanh without cancellation.
};

/// Groups of M tiles (of clusters, through all frames) that are walked before the next filters are.
struct TileOrder {
  int group = 1;               ///< M tiles of a group; 1: filters first.
  int m_tiles = 0;             ///< m_clusters · output frames
  FastDivide group_size;       ///< group
  FastDivide last_group_size;  ///< m_tiles mod group, or group
};

/// Kernel parameters. Axis order of arrays: depth, height, width.
/// NOTE: what every tile reads comes first, together: a fresh kernel misses the constant cache once
/// for each 64 bytes that it touches.
struct Params {
  // Tiling.
  Loader loader;
  int num_cluster_tiles;          ///< m_clusters · output frames · phase_filter_tiles
  int phases;                     ///< 4 for a folded nearest-2x upsampling; else groups.
  int output_frames;              ///< N·Z; 1 where tiles straddle frames and batches.
  bool skip_taps;                 ///< Some temporal taps of some frames meet only padding.
  bool is_grouped;                ///< Several groups of channels: phases in place of upsampling.
  FastDivide phase_filter_tiles;  ///< Filter tiles of all phases; pairs where a cluster has two.
  TileOrder order;
  int channel_blocks;    ///< Of at most 128 bytes of a pixel.
  int block_channels;    ///< Of each, the last may have fewer; a multiple of what an MMA takes.
  int filter_block;      ///< From one to the next in the filter: more where it is packed with gaps.
  int block_bytes;       ///< Of a pixel or filter in a stage, whose rows lie 128 bytes apart.
  int block_steps;       ///< MMA steps of 32 bytes in a block, 1..4,
  int last_block_steps;  ///< and in the last.
  bool read_once;        ///< The activation need not stay in L2.
  int preloaded;         ///< Stages of a CTA's first tile that are loaded during set-up.
  FastDivide filter_tiles;     ///< Of one phase.
  FastDivide tiles_per_batch;  ///< m_clusters · frames_per_batch
  FastDivide tiles_per_band;   ///< band · frames_per_batch
  FastDivide full_band;        ///< band
  FastDivide last_band;        ///< m_clusters mod band, or band
  FastDivide patches_across;   ///< Patched tiles side by side in a frame.
  int m_clusters;              ///< Clusters of M tiles in one output frame.
  int band;                    ///< Clusters of M tiles walked through all frames before the next.
  int frames_per_batch;        ///< Output frames Z; 1 where tiles straddle frames and batches.
  int tile_rows;               ///< Output rows and columns of a patched tile.
  int tile_columns;
  int patch_columns;  ///< 8×8 sub-patches side by side in a patched tile.
  int halo_height;    ///< Input rows and columns of a halo tile, or of each of its planes.
  int halo_width;
  int box_width;      ///< Columns of it that one copy loads.
  int planes[2];      ///< Input::planes: of rows and of columns; else 1, 1.
  bool fills_border;  ///< Patches that reach outside the input are completed in shared memory.
  PrologueNorm norm;  ///< Patches are normalised in shared memory.

  // Problem.
  int filter[3];  ///< T, R, S of one phase
  int stride[3];
  int pad[3];  ///< Before the first element.
  int dilation[3];
  PadMode pad_mode[3];        ///< What taps outside the input read; zero where nothing is padded.
  int in[2];                  ///< H, W
  int pad_behind[2];          ///< Rows and columns behind the input that some output reads.
  int new_frames;             ///< D of `activation`
  int cached_frames;          ///< D of `cache`
  int filters;                ///< K, of one group
  int out[3];                 ///< Z, P, Q of one phase
  int channels;               ///< C, of one group
  FastDivide blocks;          ///< channel_blocks
  FastDivide plane;           ///< P·Q
  FastDivide width;           ///< Q
  FastDivide depth;           ///< Z
  std::int64_t frame_pixels;  ///< P·Q; N·Z·P·Q where tiles straddle frames.

  EpilogueParams epilogue;
  CurvedActivation activation;
  Prologue prologue;           ///< Of `norm`.
  int inverse_rms_pitch;       ///< Floats from a row of a patch to the next,
  int inverse_rms_bytes;       ///< and bytes of all.
  FastDivide patch_width;      ///< halo_width
  void* output_pointer;        ///< For stores that TMA cannot do.
  const void* source_pointer;  ///< Likewise.
  bool direct_store;    ///< Rows of the output are not multiples of 16 bytes: store without TMA.
  bool steps_in_place;  ///< There is a scale, a bias, or in EpiloguePath::plain an activation.
#ifdef CONVOY_SM90_TRACE
  long long* trace = nullptr;  ///< kTraceSlots stamps a CTA, for bench/sm90/cta_trace.py.
#endif

  // NOTE: where is_grouped, outputs have a dimension of groups behind the first, so that stores end
  // where a group does.
  CUtensorMap activation_map;          ///< New frames.
  CUtensorMap cache_map;               ///< Cached frames; unused without a cache.
  CUtensorMap inverse_rms_map;         ///< {W, H, frames}; unused but with PrologueNorm::rms.
  CUtensorMap filter_map;              ///< {C, filters of all phases, taps}
  CUtensorMap output_map[kMaxPhases];  ///< {K, W, H, frames}: one map a phase.
  CUtensorMap source_map[kMaxPhases];  ///< The residual, like `output`.

  // NOTE: last: the others' places are in every kernel.
  StatisticsParams statistics;  ///< Of EpiloguePath::statistics.
};

#ifdef CONVOY_SM90_TRACE
inline constexpr int kTraceSlots = 32;
#endif

}  // namespace convoy::sm90
