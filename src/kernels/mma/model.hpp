// SPDX-License-Identifier: Apache-2.0
//
// How long a kernel of mma.sync takes, for dispatch to rank its configurations.
#pragma once

#include "core/candidate.hpp"
#include "kernels/mma/host.hpp"

namespace convoy::mma {

/// What the model cannot derive from a tiling. The values are fitted to measured times of an H200
/// (docs/kernels-mma.md); clock and rate of the tensor cores are the device's (mma_rate.hpp).
struct ModelConstants {
  double cycles_per_us = 0.0;              ///< Cycles a us: the clock.
  double macs_per_cycle = 0.0;             ///< Products of 16 bits a cycle, of a multiprocessor,
  double bare_macs_per_cycle = 0.0;        ///< and where nothing but MMAs takes time.
  double memory_bytes_per_us = 4.068e+06;  ///< Bytes a us from and to device memory.
  double overlap_power = 3.356;            ///< Of computing and moving: p of (a^p + b^p)^(1/p).
  double launch_us = 2.958;                ///< us: a launch and what no work hides.
  double block_cycles = 3930.0;            ///< Cycles that a block begins and ends with.
  double turn_cycles = 3692.0;             ///< In place of them, of a tile that follows another.
  double cold_us = 0.3886;                 ///< us that code of more than linear epilogues costs.
  double copy_cycles = 3.083;              ///< Cycles a warp's copy of a stage takes.
  double fragment_cycles = 0.08966;        ///< Cycles the warps read a row of a step.
  double step_cycles = 50.69;              ///< Cycles of a step that a block alone cannot hide,
  double alone_share = 0.9912;             ///< beside this share of its work.
  double latency_cycles = 703.3;     ///< Cycles that a copy takes to come: all stages but one.
  double persistent_share = 1.083;   ///< Of a step, what a persistent block takes of that.
  double taps_first_share = 0.9495;  ///< The same where the taps come first (Params::taps_first).
  double round_cycles = 6.0;         ///< Cycles a warp rounds a row of a step to TF32.
  double tap_cycles = 450.8;         ///< Cycles to list 128 pixels under a tap.
  double store_cycles = 1.752;       ///< Cycles to store 128 outputs,
  double residual_cycles = 16.93;    ///< more with a residual,
  double curved_cycles = 28.64;      ///< more with an activation that is not piecewise linear.
  double split_us = 2.759;           ///< us of the kernel that sums splits,
  double split_bytes_per_us = 6.034e+06;  ///< and bytes of sums that are written and read a us.
  /// Operands in parts (fp32 as three TF32 products): us more of a launch, and cycles more to store
  /// 128 outputs. By 297 times of an H200, of up to 64 channels.
  double parts_launch_us = 4.0, parts_store_cycles = 62.0;
};

/// The constants for a device.
ModelConstants constants_of(const DeviceInfo& device);

/// In how many parts a reduction may be split.
inline constexpr int kSplits[] = {1, 2, 3, 4, 6, 8, 12, 16};

/// Model time in microseconds: rounds of blocks that share the multiprocessors, and the floor of
/// device memory.
double estimate_us(const Tiling& tiling, const PlanRequest& request);
double estimate_us(const Tiling& tiling, const PlanRequest& request,
                   const ModelConstants& constants);

/// The tiling of the instance whose split of the reduction has the lowest estimate.
Tiling fastest_tiling(const Instance& instance, const PlanRequest& request);

}  // namespace convoy::mma
