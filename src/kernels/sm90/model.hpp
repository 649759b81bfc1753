// SPDX-License-Identifier: Apache-2.0
//
// How long a Hopper kernel takes, for dispatch to rank its configurations.
#pragma once

#include "core/geometry.hpp"
#include "kernels/sm90/host.hpp"

namespace convoy::sm90 {

/// What the model cannot derive from a plan. The values are fitted to measured times of an H200
/// (docs/kernels-sm90.md).
struct ModelConstants {
  double cycles_per_us = 1740.0;       ///< Cycles a us: the clock that a power-limited card holds.
  double memory_bytes_per_us = 4.4e6;  ///< Bytes a us from and to device memory.
  double overlap_loss = 0.3934;        ///< Share of the shorter of computing and moving bytes.
  double launch_us = 5.56;             ///< us: a launch and the first loads.
  double cluster_us = 0.2584;          ///< us that a cluster takes to get ready.
  double piece_cycles = 81.54;         ///< Cycles to store 64 x 32 values that nothing hides.
  double cluster_tile_cycles = 188.9;  ///< Cycles a tile where the CTAs of a cluster keep step.
  double narrow_mma_cycles = 33.68;  ///< Cycles of an MMA of 64 rows at least, however few columns.
  double turn_cycles = 286.1;        ///< Cycles a tile where warpgroups take turns.
  double refill_cycles = 2418.0;     ///< Cycles from a stage's release until it is full, loaded.
  double reduce_cycles = 5386.0;     ///< Cycles: the reduction of split K,
  double reduce_cta_cycles = 445.0;  ///< and for each CTA of a tile.
  double run_bytes_per_cycle = 57.6;     ///< Bytes a cycle that an SM takes in, runs of pixels,
  double other_bytes_per_cycle = 60.27;  ///< and by any other loader.
  double outside_row_cycles = 6.355;     ///< Cycles to load 128 bytes that lie outside the filter.
  double tap_cycles = 78.6;              ///< Cycles a tap costs besides its MMAs: cooperative,
  double pingpong_tap_cycles = 66.21;    ///< ping-pong,
  double halo_tap_cycles = 24.63;        ///< ping-pong with a halo,
  double resident_tap_cycles = 0.2482;   ///< ping-pong with resident filters.
  double residual_cycles = 117.0;        ///< Cycles that a residual adds to 64 x 32 values,
  double clamp_cycles = 48.32;           ///< an activation without special functions,
  double silu_cycles = 239.3;            ///< SiLU,
  double curved_cycles = 430.3;          ///< and any other, where nothing hides them.
};

/// Model time of a tiling in microseconds: waves of tiles, each the largest of its tensor-core, L2
/// and refill time, the epilogue that nothing hides, and the floor of device memory.
double estimate_us(const ConvGeometry& geometry, const Tiling& tiling, int multiprocessors,
                   const EpilogueKind& epilogue = {}, const ModelConstants& constants = {});

/// A split of K and its model time.
struct SplitChoice {
  int splits = 1;
  double us = 0;
};

/// For a split instance the split of K (1, 2, 4 or 8 CTAs a tile) with the lowest estimate, for any
/// other 1; `options.splits` is not read. Throws as `plan_tiling`.
SplitChoice best_split(const Instance& instance, const ConvGeometry& geometry,
                       LaunchOptions options, const EpilogueKind& epilogue = {});

}  // namespace convoy::sm90
