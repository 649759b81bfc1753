// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/model.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/common/implicit_gemm.hpp"

namespace convoy::sm90 {
namespace {

// Bytes that every row of `channels` elements is aligned to, at most 128.
int alignment(std::int64_t channels, DType dtype) {
  const std::int64_t bytes = channels * static_cast<std::int64_t>(size_of(dtype));
  return static_cast<int>(std::gcd(bytes, std::int64_t{128}));
}

// A ping-pong tile of 64x64.
bool is_small_tile(const Config& config) {
  return config.is_pingpong() && config.block_m + config.block_n <= 128;
}

// Cycles that the epilogue adds to storing 64 x 32 values where nothing hides them (path_of says
// which code computes which).
double epilogue_cycles(const Config& config, const Params& p, const EpilogueKind& epilogue,
                       const ModelConstants& k) {
  double cycles = epilogue.residual ? k.residual_cycles : 0.0;
  bool is_long = p.direct_store;  // Code that needs many registers.
  switch (epilogue.activation) {
    case Activation::none:
      break;
    case Activation::relu:
      cycles += k.relu_cycles;
      break;
    case Activation::silu:
      cycles += k.silu_cycles;
      break;
    case Activation::clamp:
    case Activation::hardswish:
    case Activation::leaky_relu:
      cycles += k.clamp_cycles;
      is_long |= path_of(config, epilogue, p.direct_store) == EpiloguePath::general;
      break;
    default:
      cycles += k.curved_cycles;
      is_long |= path_of(config, epilogue, p.direct_store) == EpiloguePath::general;
  }
  if (epilogue.rounding == EpilogueRounding::each_step) cycles += k.general_cycles;
  if (p.direct_store) {
    // NOTE: a residual is read as the output is written.
    cycles += (is_small_tile(config) ? k.small_direct_cycles : k.direct_cycles) *
              (epilogue.residual ? 2.5 : 1.0);
  } else {
    const int aligned = alignment(p.filters, config.out);
    cycles += aligned == 16   ? k.store_16_cycles
              : aligned == 32 ? k.store_32_cycles
              : aligned == 64 ? k.store_64_cycles
                              : 0.0;
  }
  if (is_long && config.is_pingpong() && config.needs_many_registers()) cycles += k.spill_cycles;
  return cycles;
}

// Cycles to load a block of channels of a pixel or of a filter, each of which has `channels`, where
// `busy` of all multiprocessors load (bench/sm90/intake.cu).
double row_cycles(const Config& config, const Params& p, std::int64_t channels, double busy,
                  const ModelConstants& k) {
  const double cycles =
      p.block_bytes / std::min(k.alone_bytes_per_cycle, k.intake_bytes_per_cycle / busy);
  switch (alignment(channels, config.in)) {
    case 128:
      return cycles;
    case 64:
      return std::max(cycles, k.aligned_64_cycles);
    case 32:
      return std::max(cycles, k.aligned_32_cycles);
    default:
      return k.aligned_16_cycles;
  }
}

// What normalising a patch takes, of 20 layers on an H200 (docs/lab/2026-11-24-normaliser.md).
struct Normalising {
  double cycles = 0.0;  ///< From the patch's load on, of four warps.
  double beside = 0.0;  ///< What the MMAs beside it lose: shared memory's time, and power.
};

Normalising normalising(const Params& p) {
  if (p.norm == PrologueNorm::none) return {};
  constexpr double kPatchCycles = 500.0, kTurnCycles = 350.0, kSiluCycles = 350.0,
                   kRmsCycles = 300.0, kBesideCycles = 50.0;
  const int units = p.block_bytes / 16;
  const int pixels = units > 4 ? 4 : units > 2 ? 8 : units > 1 ? 16 : 32;  // of a warp, at a time
  const double turns = std::ceil(1.0 * p.halo_width * p.halo_height / (4 * pixels * 2));
  const double turn = kTurnCycles +
                      (p.prologue.activation == Activation::silu ? kSiluCycles : 0.0) +
                      (p.norm == PrologueNorm::rms ? kRmsCycles : 0.0);
  return {.cycles = kPatchCycles + turns * turn, .beside = turns * kBesideCycles};
}

// Cycles that a tap costs besides its MMAs.
double tap_cycles(const Config& config, const ModelConstants& k) {
  if (config.is_blockwise()) return k.tap_cycles + config.accumulators() * k.add_cycles;
  if (!config.is_pingpong()) return k.tap_cycles;
  if (config.has_halo()) return k.halo_tap_cycles;
  return config.is_resident() ? k.resident_tap_cycles : k.pingpong_tap_cycles;
}

// Bytes that device memory reads and writes.
double memory_bytes(const ConvGeometry& g, const Config& config, const EpilogueKind& epilogue,
                    const ModelConstants& k) {
  // Strides beyond the filter pass pixels by.
  double touched = 1;
  for (int i = 0; i < 3; ++i) {
    touched *= std::min(1.0, static_cast<double>(g.filter[i]) / static_cast<double>(g.stride[i]));
  }
  touched += k.passed_share * (1 - touched);
  return static_cast<double>(size_of(config.in)) *
             (touched * static_cast<double>(g.batch * (g.in[0] + g.cached_frames) * g.in[1] *
                                            g.input_row_elements()) +
              static_cast<double>(g.filter_elements())) +
         static_cast<double>(size_of(config.out)) * static_cast<double>(g.output_elements()) *
             (epilogue.residual ? 2.0 : 1.0);
}

}  // namespace

ModelConstants constants_of(const DeviceInfo& device) {
  ModelConstants k;
  k.memory_bytes_per_us *= memory_share(device);
  return k;
}

double depths_multiplied(const ConvGeometry& g, const Params& p) {
  return p.loader == Loader::im2col_5d ? static_cast<double>(p.filter[0])
                                       : implicit_gemm::depths_met(g);
}

ModelledTime model_time(const ConvGeometry& g, const Tiling& tiling, int multiprocessors,
                        const EpilogueKind& epilogue_kind, const ModelConstants& k) {
  const Config& config = tiling.config;
  const Params& p = tiling.params;

  // One channel block of one temporal tap: all spatial taps.
  const double taps = static_cast<double>(p.filter[1]) * p.filter[2];
  const double steps = 1.0 * p.block_steps * (p.channel_blocks - 1) + p.last_block_steps;  // of all
  // MMAs of few columns are bounded by the rows of operands that they read, 4 a cycle.
  const double narrow = k.narrow_mma_cycles - std::max(0, 64 - config.tile_columns()) / 4.0;
  const double mma = config.tile_rows() / 64.0 * std::max(config.tile_columns() / 2.0, narrow) *
                     steps * taps / p.channel_blocks;
  const double act_rows = config.has_halo()
                              ? 1.0 * p.halo_width * p.halo_height * p.planes[0] * p.planes[1]
                              : config.block_m * taps;
  // Rows of a filter tile, on average over those of a pixel: what passes the last filter takes the
  // loader longer. NOTE: what is multicast counts in every CTA: measured, it is an SM's intake that
  // bounds.
  const double n_tiles = std::ceil(static_cast<double>(p.filters) / config.block_n);
  const double filter_rows = config.is_resident() ? 0.0 : p.filters / n_tiles * taps;
  const double outside_rows = config.is_resident() ? 0.0 : config.block_n * taps - filter_rows;
  const double busy = std::min(1.0, tiling.num_tiles / double(multiprocessors));
  const double row = row_cycles(config, p, p.channels, busy, k);
  const double filter_row = row_cycles(config, p, tiling.filter.extents[0], busy, k);
  const double load = act_rows * (config.has_planes() ? std::max(row, k.strided_row_cycles) : row) +
                      filter_rows * filter_row + k.outside_row_cycles * outside_rows;
  // A ring of few stages, or of taps with few channels, is bounded by their refilling: one filter
  // stage a tap with a halo, one activation stage a block beside resident filters.
  double refill = 0.0;
  if (config.has_halo()) refill = k.refill_cycles * taps / config.filter_stages;
  if (config.is_resident()) refill = k.refill_cycles / config.act_ring_stages();
  const Normalising normalised = normalising(p);
  const double group = std::max(
      {mma + tap_cycles(config, k) * taps + normalised.beside, load, refill, normalised.cycles});
  // The blocks of the CTA that has most of them, where several share a tile: taps are not shared.
  double blocks = depths_multiplied(g, p) * p.channel_blocks;
  if (config.splits_k()) blocks = std::ceil(blocks / tiling.cluster_size);
  const double main = blocks * group + (config.cluster_size() > 1 ? k.cluster_tile_cycles : 0.0);

  const double pieces = config.block_m / 64.0 * config.block_n / 32.0;
  const double more = epilogue_cycles(config, p, epilogue_kind, k);
  double epilogue =
      pieces * (k.piece_cycles + more * (config.is_swapped() ? k.swapped_epilogue : 1.0));
  if (config.is_pingpong()) {
    epilogue *= 2;  // by one warpgroup
  } else {
    epilogue *= std::pow(2.0 / config.consumers, k.warpgroup_power);
  }
  if (config.splits_k()) {
    // Each CTA stores its part, from registers a piece after the other.
    epilogue =
        epilogue / tiling.cluster_size + k.split_tile_cycles +
        (p.direct_store ? k.direct_cycles : 0.0) +
        (tiling.cluster_size > 1 ? k.reduce_cta_cycles * tiling.cluster_size * pieces / 8.0 : 0.0);
  }

  // Waves.
  double slots = multiprocessors;
  if (config.is_resident()) slots = resident_ctas(tiling, multiprocessors);
  if (config.splits_k() && tiling.cluster_size > 2) slots *= k.cluster_slots;
  const double rounds = std::ceil(tiling.num_tiles / slots);
  double cycles = rounds * (main + epilogue);
  if (config.is_pingpong()) {
    const double turn = k.turn_cycles + (epilogue_kind.residual ? k.residual_turn_cycles : 0.0);
    cycles = std::max({rounds * main + epilogue, rounds * (main + epilogue) / 2, rounds * turn});
  }
  if (config.splits_k()) cycles += (rounds - 1) * k.cta_cycles;

  const double compute_us = cycles / k.cycles_per_us;
  const double memory_us = memory_bytes(g, config, epilogue_kind, k) / k.memory_bytes_per_us;
  const bool is_general = p.direct_store || epilogue_kind.rounding == EpilogueRounding::each_step;
  const double launch_us =
      k.launch_us + k.crowd_us * std::min(1.0, tiling.num_tiles / double(multiprocessors)) +
      (is_general ? k.general_us : 0.0) + (tiling.cluster_size > 2 ? k.large_cluster_us : 0.0);
  const double us = launch_us + std::pow(std::pow(compute_us, k.overlap_power) +
                                             std::pow(memory_us, k.overlap_power),
                                         1 / k.overlap_power);
  return {.us = us,
          .compute_us = compute_us,
          .memory_us = memory_us,
          .rounds = rounds,
          .filled = tiling.num_tiles / (rounds * slots),
          .busy = busy,
          .blocks = blocks,
          .main_cycles = main,
          .epilogue_cycles = epilogue,
          .mma_cycles = mma,
          .load_cycles = load,
          .l2_bytes = tiling.num_tiles * blocks * (act_rows + filter_rows) * p.block_bytes,
          .steps = 1.0 * p.block_steps,
          .block_m = 1.0 * config.block_m,
          .block_n = 1.0 * config.block_n,
          .stages = 1.0 * config.filter_stages,
          .consumers = 1.0 * config.consumers,
          .cluster_m = 1.0 * config.cluster_m,
          .cluster_n = 1.0 * config.cluster_n,
          .splits = config.splits_k() ? 1.0 * tiling.cluster_size : 1.0,
          .pingpong = config.is_pingpong(),
          .swapped = config.is_swapped(),
          .halo = config.has_halo(),
          .planes = config.has_planes(),
          .resident = config.is_resident(),
          .splits_k = config.splits_k(),
          .direct_store = p.direct_store};
}

double estimate_us(const ConvGeometry& geometry, const Tiling& tiling, int multiprocessors,
                   const EpilogueKind& epilogue, const ModelConstants& constants) {
  // NOTE: constants and correction are of times in which ReLU was among the fused steps. As a
  // plain one it takes 1 % of a layer.
  EpilogueKind timed = epilogue;
  if (epilogue.activation == Activation::relu &&
      path_of(tiling.config, epilogue, tiling.params.direct_store) == EpiloguePath::linear) {
    timed.activation = Activation::none;
  }
  const ModelledTime time = model_time(geometry, tiling, multiprocessors, timed, constants);
  // NOTE: trained on whole operands, outputs of the same type, without norms.
  const Config& config = tiling.config;
  const bool is_known = !config.is_blockwise() && config.out == config.in &&
                        tiling.params.norm == PrologueNorm::none &&
                        knows_problem(geometry, config.in);
  return is_known ? corrected_us(CorrectedKernel::fprop, time, geometry, timed, config.in)
                  : time.us;
}

SplitChoice best_split(const Instance& instance, const ConvGeometry& geometry,
                       LaunchOptions options, const EpilogueKind& epilogue,
                       const ModelConstants& k) {
  SplitChoice best;
  for (int splits = 1; splits <= kMostSplits; ++splits) {
    if (splits > 1 && !instance.config.splits_k()) break;
    options.splits = splits;
    const Tiling tiling = plan_tiling(instance, geometry, options);
    const double us = estimate_us(geometry, tiling, options.multiprocessors, epilogue, k);
    if (splits == 1 || us < best.us) best = {splits, us};
  }
  return best;
}

}  // namespace convoy::sm90
