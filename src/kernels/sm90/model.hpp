// SPDX-License-Identifier: Apache-2.0
//
// How long a Hopper kernel takes, for dispatch to rank its configurations.
#pragma once

#include "core/geometry.hpp"
#include "kernels/common/time_correction.hpp"
#include "kernels/sm90/host.hpp"

namespace convoy::sm90 {

/// What the model cannot derive from a plan. The values are fitted to measured times of an H200
/// (docs/kernels-sm90.md).
struct ModelConstants {
  double cycles_per_us = 1737.0;       ///< Cycles a us: the clock that a power-limited card holds.
  double memory_bytes_per_us = 4.6e6;  ///< Bytes a us from and to device memory.
  /// Of computing and moving bytes: p of (a^p + b^p)^(1/p), 1 where neither hides the other.
  double overlap_power = 1.318;
  double launch_us = 6.171;              ///< us: a launch and the first loads,
  double crowd_us = 0.7761;              ///< more where every multiprocessor begins at once,
  double large_cluster_us = 0.09161;     ///< more where clusters of 4 and 8 get ready,
  double general_us = 0.909;             ///< and until the general epilogue's code has come.
  double piece_cycles = 52.3;            ///< Cycles to store 64 x 32 values that nothing hides.
  double warpgroup_power = 0.8194;       ///< Stores take (2 / warpgroups)^this as long.
  double turn_cycles = 1000.0;           ///< Cycles from a ping-pong tile to the next at least.
  double residual_turn_cycles = 1200.0;  ///< more where a residual is waited for.
  double cluster_tile_cycles = 197.2;    ///< Cycles a tile where the CTAs of a cluster keep step.
  double narrow_mma_cycles = 34.42;  ///< Cycles of an MMA of 64 rows at least, however few columns.
  double refill_cycles = 2562.0;     ///< Cycles from a stage's release until it is full, loaded.
  double cta_cycles = 2064.0;  ///< Cycles until a CTA follows another: split K has one a tile.
  double split_tile_cycles = 3133.0;  ///< Cycles that a tile of split K is exchanged in,
  double reduce_cta_cycles = 842.4;   ///< more for each CTA that shares it.
  double cluster_slots = 0.9132;      ///< Share of the multiprocessors that clusters of 4, 8 find.
  double intake_bytes_per_cycle = 64.0;  ///< Bytes a cycle that an SM takes in where all do,
  double alone_bytes_per_cycle = 71.06;  ///< and where few others do.
  // Cycles to load a row of 128 bytes that does not begin at a multiple of 128:
  double aligned_64_cycles = 2.127;    ///< at one of 64,
  double aligned_32_cycles = 2.535;    ///< of 32,
  double aligned_16_cycles = 5.397;    ///< and of 16.
  double outside_row_cycles = 4.663;   ///< Cycles to load 128 bytes that lie outside the filter.
  double strided_row_cycles = 2.926;   ///< Cycles to load a row of a plane at least.
  double tap_cycles = 63.95;           ///< Cycles a tap costs besides its MMAs: cooperative,
  double pingpong_tap_cycles = 70.81;  ///< ping-pong,
  double halo_tap_cycles = 12.09;      ///< ping-pong with a halo,
  double resident_tap_cycles = 76.48;  ///< ping-pong with resident filters.
  // Cycles added to 64 x 32 values where nothing hides them, by
  double residual_cycles = 146.1;       ///< a residual,
  double relu_cycles = 135.0;           ///< ReLU,
  double silu_cycles = 298.7;           ///< SiLU,
  double clamp_cycles = 249.5;          ///< clamp and hardswish,
  double curved_cycles = 572.8;         ///< any other activation with code of its own,
  double general_cycles = 389.2;        ///< what only the general code computes,
  double direct_cycles = 734.6;         ///< stores from registers,
  double small_direct_cycles = 1001.0;  ///< the same of 64x64 tiles,
  double spill_cycles = 291.4;          ///< registers that do not suffice,
  double store_64_cycles = 27.58;       ///< rows of the output aligned to 64 bytes,
  double store_32_cycles = 18.34;       ///< to 32,
  double store_16_cycles = 33.93;       ///< to 16.
  double swapped_epilogue = 1.022;      ///< Share of these that tiles with filters as rows take.
  double passed_share = 0.4226;         ///< Of the bytes that strides pass by: those that are read.
  double add_cycles = 1.0;  ///< Cycles a tap costs for each sum of a block (not measured).
};

/// The constants for a device: with the rate of its memory.
ModelConstants constants_of(const DeviceInfo& device);

/// Depths of the filter that a tile multiplies, on average: tiles of volumes and replicated frames
/// take all, others those that meet frames.
double depths_multiplied(const ConvGeometry& geometry, const Params& params);

/// Model time of a tiling: waves of tiles, each the largest of its tensor-core, L2 and refill time,
/// the epilogue that nothing hides, and the floor of device memory.
ModelledTime model_time(const ConvGeometry& geometry, const Tiling& tiling, int multiprocessors,
                        const EpilogueKind& epilogue = {}, const ModelConstants& constants = {});

/// The same in microseconds, corrected where the correction was trained (time_correction.hpp).
double estimate_us(const ConvGeometry& geometry, const Tiling& tiling, int multiprocessors,
                   const EpilogueKind& epilogue = {}, const ModelConstants& constants = {});

/// A split of K and its model time.
struct SplitChoice {
  int splits = 1;
  double us = 0;
};

/// For a split instance the split of K (1 to kMostSplits CTAs a tile) with the lowest estimate, for
/// any other 1; `options.splits` is not read. Throws as `plan_tiling`.
SplitChoice best_split(const Instance& instance, const ConvGeometry& geometry,
                       LaunchOptions options, const EpilogueKind& epilogue = {},
                       const ModelConstants& constants = {});

}  // namespace convoy::sm90
