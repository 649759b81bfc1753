// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm100/model.hpp"

#include <algorithm>
#include <cmath>

#include "core/checked.hpp"
#include "kernels/common/implicit_gemm.hpp"
#include "kernels/sm100/host.hpp"

namespace convoy::sm100 {
namespace {

// Depths of the filter that meet frames, on average over the output frames, where the kernel skips
// the others.
double depths_met(const RowLayout& layout, const ConvGeometry& g) {
  if (g.upsample == 2) return static_cast<double>(implicit_gemm::kernel_view(g).filter[0]);
  if (layout.row_groups == RowGroups::volumes || g.filter[0] == 1) return double(g.filter[0]);
  const std::int64_t frames = std::min<std::int64_t>(g.out[0], 1024);
  double met = 0;
  for (std::int64_t z = 0; z < frames; ++z) {
    for (std::int64_t t = 0; t < g.filter[0]; ++t) {
      const std::int64_t d = z * g.stride[0] - g.pad_begin[0] + t * g.dilation[0];
      if (d >= 0 && d < g.seen()[0]) met += 1;
    }
  }
  return met / static_cast<double>(std::max<std::int64_t>(frames, 1));
}

}  // namespace

double estimate_us(const Instance& instance, const ConvGeometry& g, int multiprocessors,
                   bool residual, const ModelConstants& k) {
  const Config& config = instance.config;
  const RowLayout layout = row_layout(config, g);
  const GemmShape block = config.block_tile_shape;
  const implicit_gemm::KernelView view = implicit_gemm::kernel_view(g);
  const double parts = config.cluster_shape.k;

  // An atom: one tap, a span of channels. What the CTA multiplies, reads, takes in, and issues.
  const double taps = double(view.filter[1]) * double(view.filter[2]);
  const double spans = double(ceil_div(g.in_channels, config.atom_k()));
  const double atoms = depths_met(layout, g) * taps * spans / parts;
  const double steps = double(ceil_div(g.in_channels, 16)) / spans;
  const double mma = double(block.m) * config.mma_shape.n * 16.0 / k.macs_per_cycle;
  const double shared = (block.m + block.n) * 32.0 / k.shared_bytes_per_cycle;
  double act_bytes = block.m * double(config.a_swizzle);
  double filter_bytes = block.n * double(config.b_swizzle);
  double buffered = double(config.pipeline_stages(residual)) * config.atoms_per_tile();
  if (config.input == Input::halo) {
    const double width = 8.0 + double(view.filter[2] - 1) * double(g.dilation[2]);
    const double height = 16.0 + double(view.filter[1] - 1) * double(g.dilation[1]);
    act_bytes = width * height * config.a_swizzle / taps;
  }
  if (config.input == Input::resident) {
    filter_bytes = 0;
    buffered = config.num_act_stages;
  }
  const bool as_they_lie = config.input == Input::runs && layout.row_groups == RowGroups::images &&
                           implicit_gemm::is_pointwise(g);
  const double intake =
      (act_bytes + filter_bytes) / (as_they_lie ? k.run_bytes_per_cycle : k.other_bytes_per_cycle);
  const double atom = std::max({steps * std::max(mma, shared), intake, k.refill_cycles / buffered,
                                k.load_cycles, k.mma_issue_cycles});

  // A tile: the epilogue of the one before runs beside it, the exchange of a split in part.
  const double epilogue = config.epilogue_steps() * config.tiles_per_step() *
                          (config.output_tile_shape.m * config.output_tile_shape.n / 4096.0) *
                          (residual ? k.residual_step_cycles : k.step_cycles);
  const double exchange =
      config.exchange_bytes() * (parts - 1) / parts / k.exchange_bytes_per_cycle;
  const double tile = std::max(atoms * atom + k.tile_cycles, epilogue + exchange);

  // Waves of cluster tiles.
  const double tiles =
      double(layout.groups) * double(ceil_div(layout.rows, block.m * config.cluster_shape.m)) *
      double(ceil_div(g.out_channels, config.mma_shape.n * config.cluster_shape.n));
  const double slots = multiprocessors * (config.cluster_size() >= 4 ? k.split_share : 1.0);
  const double clusters = std::max(1.0, std::floor(slots / config.cluster_size()));
  const double waves = std::ceil(tiles / clusters);
  const double compute_us =
      (waves * tile + std::min(epilogue, tile) + exchange + k.ends_cycles) / k.cycles_per_us;

  // Strides beyond the filter pass pixels by.
  double touched = 1;
  for (std::size_t i = 0; i < 3; ++i) {
    touched *= std::min(1.0, double(g.filter[i]) / double(g.stride[i]));
  }
  const double bytes = (touched * double(g.activation_elements() + g.cache_elements()) +
                        double(g.filter_elements())) *
                           double(size_of(config.act_dtype)) +
                       double(g.output_elements()) * config.out_bytes() * (residual ? 2.0 : 1.0);
  const double memory_us = bytes / k.memory_bytes_per_us;
  return k.launch_us + std::max(compute_us, memory_us) +
         k.overlap_loss * std::min(compute_us, memory_us);
}

}  // namespace convoy::sm100
