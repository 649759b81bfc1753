// SPDX-License-Identifier: Apache-2.0
//
// How long a Blackwell kernel takes, for dispatch to rank its configurations.
#pragma once

#include "core/geometry.hpp"
#include "kernels/sm100/instances.hpp"

namespace convoy::sm100 {

/// What the model cannot derive from a problem. No time of a B200 stands behind these values: they
/// come from NVIDIA's data sheet of the B200, from Hopper, or are estimates.
struct ModelConstants {
  /// Cycles a us: the clock at which 148 SMs reach the data sheet's 2.25 PFLOP/s of dense bf16.
  double cycles_per_us = 1850.0;
  /// Multiply-adds a cycle of an SM's tensor core: twice Hopper's.
  double macs_per_cycle = 4096.0;
  /// Bytes a cycle that an SM reads from shared memory: 32 banks of 4 (CUDA C++ Programming Guide).
  double shared_bytes_per_cycle = 128.0;
  /// Bytes a cycle that an SM sends to others of its cluster: measured on Hopper.
  double exchange_bytes_per_cycle = 16.0;
  /// Cycles of a tile's first loads and last epilogue step: estimate.
  double tile_cycles = 900.0;
  /// us of a launch and the first loads: estimate.
  double launch_us = 3.0;
  /// Bytes a us from and to device memory: nine tenths (estimate) of the data sheet's 8 TB/s.
  double memory_bytes_per_us = 0.9 * 8e6;
};

/// Model time in microseconds of a problem that the instance can run, on `multiprocessors` SMs:
/// waves of tiles, each the larger of its tensor-core and shared-memory time, and the floor of
/// device memory (docs/kernels-sm100.md).
double estimate_us(const Instance& instance, const ConvGeometry& geometry, int multiprocessors,
                   const ModelConstants& constants = {});

}  // namespace convoy::sm100
