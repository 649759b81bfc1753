// SPDX-License-Identifier: Apache-2.0
//
// How long a Blackwell kernel takes, for dispatch to rank its configurations.
#pragma once

#include "convoy/epilogue.hpp"
#include "convoy/prologue.hpp"
#include "core/geometry.hpp"
#include "kernels/sm100/instances.hpp"

namespace convoy::sm100 {

/// What the model cannot derive from a problem. No time of a B200 that Convoy took stands behind
/// these values: each has its source, and its range where sources differ or there is none. The form
/// of the model is tried on Hopper's measured times (`sm100_fit_model`) and on what others
/// published of matrix products (`sm100_predict --gemms`).
struct ModelConstants {
  /// Cycles a us where power does not bind: a B200's highest clock, which the published benchmarks
  /// lock (facebookexperimental/triton #854, #3648); 1,580 to 1,965.
  double cycles_per_us = 1965.0;
  /// Multiply-adds a us of the whole chip that its power permits, however they are spread: with
  /// cuBLAS at 1,099 TFLOP/s on a B200 of 750 W (triton #854, 4096 and 8192 cubed) and 200 W beside
  /// the tensor cores, 1,599 TFLOP/s at 1,000 W; 1,420 to 1,763 published. 0: not bound.
  double power_macs_per_us = 1099e6 / 2.0 * (1000.0 - 200.0) / (750.0 - 200.0);
  /// Multiply-adds a cycle of an SM's tensor core, twice Hopper's (data sheet); published
  /// benchmarks come near it with 256-row MMAs of pairs.
  double macs_per_cycle = 4096.0;
  /// Bytes a cycle that an MMA reads of its operands: 32 banks of 4. Published benchmarks
  /// (Dissecting Nvidia Blackwell, SemiAnalysis, 2026) find MMAs of N < 128 bound by it.
  double shared_bytes_per_cycle = 128.0;
  /// Bytes a us that an SM takes in from L2, runs of pixels and otherwise: 64 a cycle of a port, to
  /// which Hopper's is fitted with this form (126.7e3, 126.0e3); 93.5e3 to 159e3, which a published
  /// product needs (docs/lab/2026-11-23-blackwell-power.md). By time, not by cycles: L2 and the
  /// crossbar have a clock of their own.
  double run_bytes_per_us = 64.0 * 1965.0;
  double other_bytes_per_us = 64.0 * 1965.0;
  /// Cycles from a stage's release until it is full: 1,000 (published latencies of a TMA load and
  /// of the way between the dies) to 2,418 (Hopper's, as fitted, under load).
  double refill_cycles = 1800.0;
  /// Cycles of the load and of the MMA warp for one atom: instructions on their way (the lab), one
  /// every 2 cycles.
  double load_cycles = 120.0;
  double mma_issue_cycles = 110.0;
  /// Cycles from a patch's arrival until the MMAs hear that its border is filled: of a corner's 8
  /// copies through registers, one after the other, two waits, the fence and the arrival at the
  /// pair's leader; 400 to 900.
  double border_cycles = 600.0;
  /// Cycles in which eight warps normalise a patch: SiLU's special functions take 1,440, as many
  /// turns as on Hopper, of 475 cycles there, 2,670. By instructions (the lab) less without SiLU,
  /// more with either GELU.
  double normalise_cycles = 2000.0;
  double plain_normalise_cycles = 1200.0;
  double gelu_normalise_cycles = 3500.0;
  /// Cycles that an atom takes beside its MMAs: Hopper's warpgroups wait and commit (some 50,
  /// fitted); the MMA warp of a B200 issues ahead.
  double atom_cycles = 0.0;
  /// Cycles of the epilogue for a step of 128 x 32 values, hidden under the MMAs of the next tile:
  /// instructions (the lab) of four warps on four schedulers, twice for waits; 100 to 250.
  double step_cycles = 170.0;
  /// The same with a residual.
  double residual_step_cycles = 330.0;
  /// What such a step takes more with an activation: a few instructions a value; an exponential
  /// and a reciprocal a value, of 16 a cycle of an SM (CUDA C++ Programming Guide). Hopper's, as
  /// fitted, with what its general path costs: 320, 827.
  double simple_activation_cycles = 64.0;
  double exponential_activation_cycles = 512.0;
  /// The same where no TMA store holds the rows, which threads write by elements; and with output
  /// rows of odd multiples of 16 bytes, whose sectors are shared: Hopper's, as fitted.
  double element_store_cycles = 4340.0;
  double odd_store_cycles = 174.0;
  /// Rows a us that an SM takes in at most where they begin at multiples of 64, 32 or 16 bytes
  /// only: Hopper's, as fitted.
  double aligned_64_rows_per_us = 764.0;
  double aligned_32_rows_per_us = 799.0;
  double aligned_16_rows_per_us = 463.0;
  /// What a row behind the last filter takes, of what one of a filter does: Hopper's, as fitted.
  double outside_row_share = 1.63;
  /// Share of the intake's time that an SM alone saves: Hopper's, as fitted.
  double alone_intake = 0.41;
  /// Of an atom's MMAs and intake, which share the shared memory: p of (a^p + b^p)^(1/p). Hopper's,
  /// as fitted.
  double atom_power = 4.4;
  /// Bytes a cycle that an SM sends to others of its cluster: measured on Hopper.
  double exchange_bytes_per_cycle = 16.0;
  /// Cycles more of a split tile: 0 (all of it hidden) to 1,782 (Hopper's, as fitted, whose CTAs of
  /// a split do not last beyond one tile).
  double split_tile_cycles = 0.0;
  /// Cycles that CTAs of a cluster wait for each other between tiles: 0 where MMAs are issued ahead
  /// to 324 (Hopper's, as fitted).
  double cluster_tile_cycles = 0.0;
  /// Cycles between the tiles of a CTA: the MMA of the first atom waits for nothing else.
  double tile_cycles = 60.0;
  /// Cycles before the first MMA and after the last of a CTA: first loads, last epilogue.
  double ends_cycles = 1500.0;
  /// us of a launch: products of 48 x 80 x 64 take a B200 1.7 to 2.5 us in all (flashinfer #4370),
  /// the ends above among them; 0.9 to 2.2.
  double launch_us = 1.5;
  /// us more where every SM begins at once, with nothing in L2: 1.35 on Hopper, as fitted to times
  /// behind a flush of L2. The published times are of runs in a row: 0 to 1.35.
  double crowd_us = 0.0;
  /// SMs of `multiprocessors` that clusters of 4 and 8 find room on: Hopper's, as fitted.
  double split_share = 0.9132;
  /// Bytes a us from and to device memory: nine tenths of the 7.67 TB/s of 7,680 pins at 3,996 MHz
  /// (torchao #4002); 0.85 to 0.93 of that.
  double memory_bytes_per_us = 0.9 * 7.67e6;
  /// Of computing and moving bytes: p of (a^p + b^p)^(1/p), which one hides of the other. Hopper's
  /// was fitted as 1.3 to 1.5; infinite where the shorter is hidden whole.
  double overlap_power = 1.5;
};

/// Who writes a tile while the next is multiplied.
enum class EpilogueOverlap {
  none,      ///< Nobody: the accumulators are needed (Hopper's cooperative schedule).
  in_turns,  ///< One of two groups that multiply and write in turns (Hopper's ping-pong).
  behind,    ///< Warps of its own, from a second accumulator (Blackwell).
};

/// What the epilogue makes of a value.
enum class StepWork { plain, simple_activation, exponential_activation };

/// What a CTA does for a tile and how many there are, whichever the architecture. An atom is one
/// tap and a span of channels: a stage of each operand.
struct TileLoop {
  double atoms = 0;             ///< Of a tile of a CTA.
  double mma_macs = 0;          ///< Multiply-adds of an atom, of one SM.
  double chip_macs = 0;         ///< Multiply-adds of the launch, of all SMs; 0: unknown.
  double operand_bytes = 0;     ///< Bytes that an atom's MMAs read from shared memory.
  double taken_in_bytes = 0;    ///< Bytes that an SM takes in for an atom,
  double taken_in_rows = 0;     ///< in so many rows of pixels and filters,
  double outside_rows = 0;      ///< and of these how many lie behind the last filter.
  bool as_they_lie = false;     ///< As runs of pixels without filter taps.
  double buffered_atoms = 1;    ///< Atoms that the stages hold.
  double patch_atoms = 1;       ///< Input::halo: atoms of a patch,
  double patch_stages = 1;      ///< patches that the ring holds,
  double border_share = 0;      ///< and the share of tiles whose patches are completed.
  double normalise_cycles = 0;  ///< From a patch's arrival until all of it is normalised.
  double epilogue_steps = 0;    ///< Of 128 x 32 values, of a tile.
  bool residual = false;
  StepWork work = StepWork::plain;
  bool element_stores = false;   ///< No TMA store holds the output's rows.
  int input_alignment = 128;     ///< Bytes that every input row begins at a multiple of.
  bool odd_output_rows = false;  ///< Of odd multiples of 16 bytes.
  EpilogueOverlap overlap = EpilogueOverlap::behind;
  bool splits = false;        ///< CTAs share a tile,
  double exchange_bytes = 0;  ///< of which each sends so many bytes.
  bool in_step = false;       ///< CTAs of a cluster share operands.
  double waves = 1;           ///< Tiles of the busiest CTA.
  double busy_share = 1;      ///< Of the SMs: that have a tile.
  double memory_bytes = 0;    ///< Bytes from and to device memory.
};

/// What an activation makes a step of the epilogue do.
StepWork step_work(Activation activation);

/// Sets what depends on how rows of the problem's tensors lie.
void note_rows(const ConvGeometry& geometry, std::size_t in_bytes, std::size_t out_bytes,
               TileLoop& loop);

/// What the instance does for a problem that it can run, on `multiprocessors` SMs.
TileLoop tile_loop(const Instance& instance, const ConvGeometry& geometry, int multiprocessors,
                   const EpilogueKind& epilogue, const PrologueKind& prologue = {},
                   const ModelConstants& constants = {});

/// Model time of a loop in microseconds (docs/kernels-sm100.md, "Model").
double loop_us(const TileLoop& loop, const ModelConstants& constants = {});

/// Model time in microseconds of a problem that the instance can run: of its loop.
double estimate_us(const Instance& instance, const ConvGeometry& geometry, int multiprocessors,
                   const EpilogueKind& epilogue = {}, const PrologueKind& prologue = {},
                   const ModelConstants& constants = {});

}  // namespace convoy::sm100
