// SPDX-License-Identifier: Apache-2.0
//
// How long a Blackwell kernel takes, for dispatch to rank its configurations.
#pragma once

#include "convoy/epilogue.hpp"
#include "core/geometry.hpp"
#include "kernels/sm100/instances.hpp"

namespace convoy::sm100 {

/// What the model cannot derive from a problem. No time of a B200 that Convoy took stands behind
/// these values: each has its source, and its range where sources differ or there is none.
struct ModelConstants {
  /// Cycles a us: the clock at which 148 SMs reach the data sheet's 2.25 PFLOP/s of dense bf16;
  /// 1,700 (under load) to 1,965 (the highest clock).
  double cycles_per_us = 1850.0;
  /// Multiply-adds a cycle of an SM's tensor core, twice Hopper's (data sheet); published
  /// benchmarks come near it with 256-row MMAs of pairs.
  double macs_per_cycle = 4096.0;
  /// Bytes a cycle that an MMA reads of its operands: 32 banks of 4. Published benchmarks
  /// (Dissecting Nvidia Blackwell, SemiAnalysis, 2026) find MMAs of N < 128 bound by it.
  double shared_bytes_per_cycle = 128.0;
  /// Bytes a cycle that an SM takes in from L2, runs of pixels and otherwise: Hopper's, as fitted
  /// (sm90/model.hpp); 55 to 64.
  double run_bytes_per_cycle = 57.6;
  double other_bytes_per_cycle = 60.27;
  /// Cycles from a stage's release until it is full: 1,000 (published latencies of a TMA load and
  /// of the way between the dies) to 2,418 (Hopper's, as fitted, under load).
  double refill_cycles = 1800.0;
  /// Cycles of the load and of the MMA warp for one atom: instructions on their way (the lab), one
  /// every 2 cycles.
  double load_cycles = 120.0;
  double mma_issue_cycles = 110.0;
  /// Cycles of the epilogue for a step of 128 x 32 values, hidden under the MMAs of the next tile:
  /// instructions (the lab) of four warps on four schedulers, twice for waits; 100 to 250.
  double step_cycles = 170.0;
  /// The same with a residual.
  double residual_step_cycles = 330.0;
  /// Bytes a cycle that an SM sends to others of its cluster: measured on Hopper.
  double exchange_bytes_per_cycle = 16.0;
  /// Cycles between the tiles of a CTA: the MMA of the first atom waits for nothing else.
  double tile_cycles = 60.0;
  /// Cycles before the first MMA and after the last of a CTA: first loads, last epilogue.
  double ends_cycles = 1500.0;
  /// us of a launch: estimate.
  double launch_us = 2.2;
  /// SMs of `multiprocessors` that clusters of 4 and 8 find room on: measured on Hopper, 64 of 132.
  double split_share = 64.0 / 132.0;
  /// Bytes a us from and to device memory: nine tenths of the data sheet's 8 TB/s; 0.85 to 0.93.
  double memory_bytes_per_us = 0.9 * 8e6;
  /// Part of the shorter of computing and moving bytes that does not overlap: Hopper's was fitted
  /// as 0.39 with persistent kernels of the same form.
  double overlap_loss = 0.2;
};

/// Model time in microseconds of a problem that the instance can run, on `multiprocessors` SMs
/// (docs/kernels-sm100.md, "Model").
double estimate_us(const Instance& instance, const ConvGeometry& geometry, int multiprocessors,
                   bool residual = false, const ModelConstants& constants = {});

}  // namespace convoy::sm100
