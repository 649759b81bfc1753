// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/model.hpp"

#include <algorithm>
#include <cmath>

namespace convoy::sm90 {
namespace {

// Cycles that an activation and a residual add to a piece of 64 x 32 values where nothing hides
// them: 16 values a lane, two special functions of 8 cycles each and what surrounds them.
double epilogue_piece_cycles(const EpilogueKind& epilogue, const ModelConstants& k) {
  const double cycles = epilogue.residual ? k.residual_cycles : 0.0;
  switch (epilogue.activation) {
    case Activation::none:
      return cycles;
    case Activation::relu:
    case Activation::leaky_relu:
    case Activation::clamp:
    case Activation::hardswish:
      return cycles + k.clamp_cycles;
    case Activation::silu:
      return cycles + k.silu_cycles;
    default:
      return cycles + k.curved_cycles;
  }
}

// Cycles that a tap costs besides its MMAs.
double tap_cycles(const Config& config, const ModelConstants& k) {
  if (!config.is_pingpong()) return k.tap_cycles;
  if (config.has_halo()) return k.halo_tap_cycles;
  return config.is_resident() ? k.resident_tap_cycles : k.pingpong_tap_cycles;
}

}  // namespace

double estimate_us(const ConvGeometry& g, const Tiling& tiling, int multiprocessors,
                   const EpilogueKind& epilogue_kind, const ModelConstants& k) {
  const Config& config = tiling.config;
  const Params& p = tiling.params;
  const double element = static_cast<double>(size_of(config.in));

  // One channel block of one temporal tap: all spatial taps.
  const double taps = static_cast<double>(p.filter[1]) * p.filter[2];
  const double steps = 4.0 * (p.channel_blocks - 1) + p.last_block_steps;  // of all blocks
  const int mma_rows = config.tile_rows();
  const int mma_columns = config.tile_columns();
  const double mma = mma_rows / 64.0 * std::max(mma_columns / 2.0, k.narrow_mma_cycles) * steps *
                     taps / p.channel_blocks;
  const double act_bytes =
      config.has_halo() ? p.halo_width * p.halo_height * 128.0 : config.block_m * 128.0 * taps;
  // Rows of 128 bytes of a filter tile, on average over those of a pixel: what passes the last
  // filter takes the loader longer. NOTE: what is multicast counts in every CTA: measured, it is an
  // SM's intake that bounds.
  const double n_tiles = std::ceil(static_cast<double>(p.filters) / config.block_n);
  const double filter_rows = config.is_resident() ? 0.0 : p.filters / n_tiles * taps;
  const double outside_rows = config.is_resident() ? 0.0 : config.block_n * taps - filter_rows;
  const double l2_bytes_per_cycle =
      p.loader == Loader::tiled ? k.run_bytes_per_cycle : k.other_bytes_per_cycle;
  // A ring of few stages, or of taps with few channels, is bounded by their refilling: one filter
  // stage a tap with a halo, one activation stage a block beside resident filters.
  double refill = 0.0;
  if (config.has_halo()) refill = k.refill_cycles * taps / config.filter_stages;
  if (config.is_resident()) refill = k.refill_cycles / config.act_ring_stages();
  const double load =
      (act_bytes + 128.0 * filter_rows) / l2_bytes_per_cycle + k.outside_row_cycles * outside_rows;
  const double group = std::max({mma + tap_cycles(config, k) * taps, load, refill});

  // Temporal taps that meet real frames, on average over (the first) frames.
  const std::int64_t frames = std::min<std::int64_t>(g.out[0], 1024);
  double met = 0;
  for (std::int64_t z = 0; z < frames; ++z) {
    for (std::int64_t t = 0; t < p.filter[0]; ++t) {
      const std::int64_t d = z * g.stride[0] - g.pad_begin[0] + t * p.dilation[0];
      if (p.loader == Loader::im2col_5d || (d >= 0 && d < g.seen()[0])) met += 1;
    }
  }
  met /= static_cast<double>(frames);
  const double groups = met * p.channel_blocks;
  const double main = groups * group / (config.splits_k() ? tiling.cluster_size : 1) +
                      (config.is_pingpong() ? k.turn_cycles : 0.0) +
                      (config.cluster_size() > 1 ? k.cluster_tile_cycles : 0.0);
  const double pieces = config.block_m / 64.0 * config.block_n / 32.0;
  double epilogue = pieces * epilogue_piece_cycles(epilogue_kind, k);
  if (config.splits_k()) {
    epilogue += k.reduce_cycles +
                k.reduce_cta_cycles * tiling.cluster_size * pieces / 8.0 / config.consumers;
  } else if (config.is_pingpong()) {
    epilogue = 2 * (epilogue + pieces * k.piece_cycles);  // by one warpgroup
  } else {
    epilogue += pieces * k.piece_cycles;
  }

  // Waves.
  // NOTE: measured, clusters of 4 and 8 find room for some 64 CTAs at a time.
  double slots = multiprocessors / (config.splits_k() && tiling.cluster_size >= 4 ? 2.0 : 1.0);
  if (config.is_resident()) slots = resident_ctas(tiling, multiprocessors);
  const double rounds = std::ceil(tiling.num_tiles / slots);
  double cycles = rounds * (main + epilogue);
  if (config.is_pingpong()) {
    cycles = std::max(rounds * main + epilogue, rounds * (main + epilogue) / 2);
  }
  const double out_bytes = static_cast<double>(size_of(config.out)) * g.output_elements();
  // Strides beyond the filter pass pixels by.
  double touched = 1;
  for (int i = 0; i < 3; ++i) {
    touched *= std::min(1.0, static_cast<double>(g.filter[i]) / static_cast<double>(g.stride[i]));
  }
  const double bytes =
      element * (touched * static_cast<double>(g.activation_elements() + g.cache_elements()) +
                 static_cast<double>(g.filter_elements())) +
      out_bytes * (epilogue_kind.residual ? 2.0 : 1.0);
  const double compute_us = cycles / k.cycles_per_us;
  const double memory_us = bytes / k.memory_bytes_per_us;
  const double launch_us = k.launch_us + (config.cluster_size() > 1 ? k.cluster_us : 0.0);
  return launch_us + std::max(compute_us, memory_us) +
         k.overlap_loss * std::min(compute_us, memory_us);
}

SplitChoice best_split(const Instance& instance, const ConvGeometry& geometry,
                       LaunchOptions options, const EpilogueKind& epilogue) {
  SplitChoice best;
  for (const int splits : {1, 2, 4, 8}) {
    if (splits > 1 && !instance.config.splits_k()) break;
    options.splits = splits;
    const Tiling tiling = plan_tiling(instance, geometry, options);
    const double us = estimate_us(geometry, tiling, options.multiprocessors, epilogue);
    if (splits == 1 || us < best.us) best = {splits, us};
  }
  return best;
}

}  // namespace convoy::sm90
