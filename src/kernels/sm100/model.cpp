// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm100/model.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/checked.hpp"
#include "kernels/common/implicit_gemm.hpp"
#include "kernels/sm100/host.hpp"

namespace convoy::sm100 {

StepWork step_work(Activation activation) {
  switch (activation) {
    case Activation::none:
      return StepWork::plain;
    case Activation::relu:
    case Activation::leaky_relu:
    case Activation::hardswish:
    case Activation::clamp:
      return StepWork::simple_activation;
    case Activation::gelu:
    case Activation::gelu_tanh:
    case Activation::silu:
    case Activation::sigmoid:
    case Activation::tanh:
      break;
  }
  return StepWork::exponential_activation;
}

void note_rows(const ConvGeometry& g, std::size_t in_bytes, std::size_t out_bytes, TileLoop& loop) {
  const std::size_t in_row = static_cast<std::size_t>(g.in_channels) * in_bytes;
  const std::size_t out_row = static_cast<std::size_t>(g.out_channels) * out_bytes;
  loop.input_alignment = static_cast<int>(std::gcd(in_row, std::size_t{128}));
  loop.odd_output_rows = out_row % 32 == 16;
  loop.element_stores = out_row % 16 != 0;
}

namespace {

// The share of tiles with a patch at a border that is filled: of pairs, either CTA's.
double border_share(const Config& config, const implicit_gemm::KernelView& view,
                    const ConvGeometry& g) {
  double inside = 1;
  for (int axis = 1; axis < 3; ++axis) {
    if (implicit_gemm::view_pad_mode(g, axis) == PadMode::zero) continue;
    const int tile = axis == 2 ? kPatchColumns : config.block_tile_shape.m / kPatchColumns;
    const auto tiles =
        static_cast<double>(ceil_div(view.out[static_cast<std::size_t>(axis)], std::int64_t{tile}));
    inside *= std::max(0.0, 1.0 - 2.0 / tiles);
  }
  return std::min(1.0, (1.0 - inside) * config.cta_group);
}

double normalise_cycles(const PrologueKind& prologue, const ModelConstants& k) {
  if (!prologue.any()) return 0.0;
  switch (step_work(prologue.activation)) {
    case StepWork::plain:
    case StepWork::simple_activation:
      return k.plain_normalise_cycles;
    case StepWork::exponential_activation:
      break;
  }
  return prologue.activation == Activation::silu ? k.normalise_cycles : k.gelu_normalise_cycles;
}

}  // namespace

TileLoop tile_loop(const Instance& instance, const ConvGeometry& g, int multiprocessors,
                   const EpilogueKind& epilogue, const PrologueKind& prologue,
                   const ModelConstants& k) {
  const Config& config = instance.config;
  const bool residual = epilogue.residual;
  const RowLayout layout = row_layout(config, g);
  const GemmShape block = config.block_tile_shape;
  const implicit_gemm::KernelView view = implicit_gemm::kernel_view(g);
  const double parts = config.cluster_shape.k;
  TileLoop loop;

  // An atom: one tap, a span of channels. What the CTA multiplies, reads and takes in.
  const double taps = double(view.filter[1]) * double(view.filter[2]);
  const double spans = double(ceil_div(g.in_channels, config.atom_k()));
  // Tiles of volumes multiply the depths that others skip.
  const double depths = layout.row_groups == RowGroups::volumes ? double(view.filter[0])
                                                                : implicit_gemm::depths_met(g);
  loop.atoms = depths * taps * spans / parts;
  const double steps = double(ceil_div(g.in_channels, 16)) / spans;
  loop.mma_macs = steps * double(block.m) * config.mma_shape.n * 16.0;
  loop.operand_bytes = steps * (block.m + block.n) * 32.0;
  double act_bytes = block.m * double(config.a_swizzle);
  double filter_bytes = block.n * double(config.b_swizzle);
  loop.buffered_atoms = double(config.pipeline_stages(residual)) * config.atoms_per_tile();
  if (config.has_halo()) {
    const double width = 8.0 + double(view.filter[2] - 1) * double(g.dilation[2]);
    const double height = 16.0 + double(view.filter[1] - 1) * double(g.dilation[1]);
    act_bytes = width * height * config.a_swizzle / taps;
    loop.patch_atoms = taps;
    loop.patch_stages = config.num_act_stages;
    loop.border_share = border_share(config, view, g);
    if (config.normalises()) {
      loop.normalise_cycles = normalise_cycles(prologue, k);
      loop.operand_bytes += 2 * act_bytes;  // Read and written back.
    }
  }
  if (config.input == Input::resident) {
    filter_bytes = 0;
    loop.buffered_atoms = config.num_act_stages;
  }
  loop.taken_in_bytes = act_bytes + filter_bytes;
  loop.taken_in_rows = loop.taken_in_bytes / config.a_swizzle;
  if (filter_bytes > 0) {
    const double n_tiles = double(ceil_div(g.out_channels, config.mma_shape.n));
    loop.outside_rows = block.n * (1.0 - double(g.out_channels) / (n_tiles * config.mma_shape.n));
  }
  loop.as_they_lie = config.input == Input::runs && layout.row_groups == RowGroups::images &&
                     implicit_gemm::is_pointwise(g);

  loop.residual = residual;
  loop.work = step_work(epilogue.activation);
  note_rows(g, size_of(config.act_dtype), static_cast<std::size_t>(config.out_bytes()), loop);
  loop.epilogue_steps = config.epilogue_steps() * config.tiles_per_step() *
                        (config.output_tile_shape.m * config.output_tile_shape.n / 4096.0);
  loop.splits = parts > 1;
  loop.exchange_bytes = config.exchange_bytes() * (parts - 1) / parts;
  loop.in_step = !loop.splits && config.cluster_size() > config.cta_group;

  // Waves of cluster tiles.
  const double tiles =
      double(layout.groups) * double(ceil_div(layout.rows, block.m * config.cluster_shape.m)) *
      double(ceil_div(g.out_channels, config.mma_shape.n * config.cluster_shape.n));
  loop.chip_macs = tiles * config.cluster_size() * loop.atoms * loop.mma_macs;
  const double slots = multiprocessors * (config.cluster_size() >= 4 ? k.split_share : 1.0);
  loop.waves = std::ceil(tiles / std::max(1.0, std::floor(slots / config.cluster_size())));
  loop.busy_share = std::min(1.0, tiles * config.cluster_size() / multiprocessors);

  // Strides beyond the filter pass pixels by.
  double touched = 1;
  for (std::size_t i = 0; i < 3; ++i) {
    touched *= std::min(1.0, double(g.filter[i]) / double(g.stride[i]));
  }
  loop.memory_bytes = (touched * double(g.activation_elements() + g.cache_elements()) +
                       double(g.filter_elements())) *
                          double(size_of(config.act_dtype)) +
                      double(g.output_elements()) * config.out_bytes() * (residual ? 2.0 : 1.0);
  return loop;
}

namespace {

// us in which an SM takes in an atom's operands.
double intake_us(const TileLoop& loop, const ModelConstants& k) {
  const double rows = loop.taken_in_rows + (k.outside_row_share - 1.0) * loop.outside_rows;
  const double bytes =
      loop.outside_rows > 0 ? loop.taken_in_bytes * rows / loop.taken_in_rows : loop.taken_in_bytes;
  double us = bytes / (loop.as_they_lie ? k.run_bytes_per_us : k.other_bytes_per_us);
  switch (loop.input_alignment) {
    case 128:
      break;
    case 64:
      us = std::max(us, rows / k.aligned_64_rows_per_us);
      break;
    case 32:
      us = std::max(us, rows / k.aligned_32_rows_per_us);
      break;
    default:
      us = std::max(us, rows / k.aligned_16_rows_per_us);
  }
  return us * (1.0 - k.alone_intake * (1.0 - loop.busy_share));
}

// (a^p + b^p)^(1/p), by the longer of both: powers of p overflow.
double overlapped(double a, double b, double p) {
  const double longer = std::max(a, b);
  return longer == 0 ? 0.0 : longer * std::pow(1.0 + std::pow(std::min(a, b) / longer, p), 1.0 / p);
}

}  // namespace

double loop_us(const TileLoop& loop, const ModelConstants& k) {
  const double multiply =
      std::max(loop.mma_macs / k.macs_per_cycle, loop.operand_bytes / k.shared_bytes_per_cycle);
  const double intake = intake_us(loop, k) * k.cycles_per_us;
  double atom =
      std::max({overlapped(multiply + k.atom_cycles, intake, k.atom_power),
                k.refill_cycles / loop.buffered_atoms, k.load_cycles, k.mma_issue_cycles});
  if (loop.normalise_cycles > 0) {
    // One patch after the other, each between its refilling and its MMAs.
    const double patch = loop.patch_atoms * atom;
    const double stage = patch + k.refill_cycles + loop.normalise_cycles;
    atom = std::max({patch, loop.normalise_cycles, stage / loop.patch_stages}) / loop.patch_atoms;
  }
  // A patch is refilled, and completed, while the others of the ring are multiplied.
  const double others = (loop.patch_stages - 1) * loop.patch_atoms * atom;
  const double border = std::max(0.0, k.refill_cycles + k.border_cycles - others) -
                        std::max(0.0, k.refill_cycles - others);
  const double main = loop.atoms * (atom + loop.border_share * border / loop.patch_atoms) +
                      k.tile_cycles + (loop.in_step ? k.cluster_tile_cycles : 0.0);
  double step = loop.residual ? k.residual_step_cycles : k.step_cycles;
  if (loop.work == StepWork::simple_activation) step += k.simple_activation_cycles;
  if (loop.work == StepWork::exponential_activation) step += k.exponential_activation_cycles;
  if (loop.element_stores) step += k.element_store_cycles;
  if (loop.odd_output_rows) step += k.odd_store_cycles;
  const double epilogue = loop.epilogue_steps * step;
  // The exchange of a split is hidden in part.
  const double exchange =
      loop.exchange_bytes / k.exchange_bytes_per_cycle + (loop.splits ? k.split_tile_cycles : 0.0);
  double cycles = k.ends_cycles;
  switch (loop.overlap) {
    case EpilogueOverlap::none:
      cycles += loop.waves * (main + epilogue + exchange);
      break;
    case EpilogueOverlap::in_turns:
      cycles += std::max(loop.waves * main + epilogue, loop.waves * (main + epilogue) / 2);
      break;
    case EpilogueOverlap::behind: {
      const double tile = std::max(main, epilogue + exchange);
      cycles += loop.waves * tile + std::min(epilogue, tile) + exchange;
      break;
    }
  }
  const double compute_us = cycles / k.cycles_per_us;
  const double memory_us = loop.memory_bytes / k.memory_bytes_per_us;
  const double us = k.launch_us + k.crowd_us * loop.busy_share +
                    overlapped(compute_us, memory_us, k.overlap_power);
  // Power is regulated over milliseconds, longer than a launch: it binds the mean.
  return k.power_macs_per_us > 0 ? std::max(us, loop.chip_macs / k.power_macs_per_us) : us;
}

double estimate_us(const Instance& instance, const ConvGeometry& geometry, int multiprocessors,
                   const EpilogueKind& epilogue, const PrologueKind& prologue,
                   const ModelConstants& constants) {
  return loop_us(tile_loop(instance, geometry, multiprocessors, epilogue, prologue, constants),
                 constants);
}

}  // namespace convoy::sm100
