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
  /// Bytes a us that an SM takes in from L2, runs of pixels and otherwise: Hopper's, as fitted with
  /// this form. By time, not by cycles: L2 and the crossbar have a clock of their own.
  double run_bytes_per_us = 62.5 * 1700.0;
  double other_bytes_per_us = 64.0 * 1700.0;
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
  /// fitted, with what its general path costs: 231, 540.
  double simple_activation_cycles = 64.0;
  double exponential_activation_cycles = 512.0;
  /// The same where no TMA store holds the rows, which threads write by elements; and with output
  /// rows of odd multiples of 16 bytes, whose sectors are shared: Hopper's, as fitted.
  double element_store_cycles = 2090.0;
  double odd_store_cycles = 88.0;
  /// What input rows of odd multiples of 16 bytes add to the intake, as a share: half sectors.
  /// Hopper's, as fitted.
  double odd_intake = 0.82;
  /// Bytes a cycle that an SM sends to others of its cluster: measured on Hopper.
  double exchange_bytes_per_cycle = 16.0;
  /// Cycles between the tiles of a CTA: the MMA of the first atom waits for nothing else.
  double tile_cycles = 60.0;
  /// Cycles before the first MMA and after the last of a CTA: first loads, last epilogue.
  double ends_cycles = 1500.0;
  /// us of a launch: products of 48 x 80 x 64 take a B200 1.7 to 2.5 us in all (flashinfer #4370),
  /// the ends above among them; 0.9 to 2.2.
  double launch_us = 1.5;
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
  double taken_in_bytes = 0;    ///< Bytes that an SM takes in for an atom.
  bool as_they_lie = false;     ///< As runs of pixels without filter taps.
  double buffered_atoms = 1;    ///< Atoms that the stages hold.
  double patch_atoms = 1;       ///< Input::halo: atoms of a patch,
  double patch_stages = 1;      ///< patches that the ring holds,
  double border_share = 0;      ///< and the share of tiles whose patches are completed.
  double normalise_cycles = 0;  ///< From a patch's arrival until all of it is normalised.
  double epilogue_steps = 0;    ///< Of 128 x 32 values, of a tile.
  bool residual = false;
  StepWork work = StepWork::plain;
  bool element_stores = false;  ///< No TMA store holds the output's rows.
  bool odd_input_rows = false;  ///< Of odd multiples of 16 bytes.
  bool odd_output_rows = false;
  EpilogueOverlap overlap = EpilogueOverlap::behind;
  double exchange_bytes = 0;  ///< Bytes that a CTA of a split tile sends.
  double waves = 1;           ///< Tiles of the busiest CTA.
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
