// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm100/model.hpp"

#include <algorithm>
#include <cmath>

#include "core/checked.hpp"
#include "kernels/common/implicit_gemm.hpp"
#include "kernels/sm100/host.hpp"

namespace convoy::sm100 {

double estimate_us(const Instance& instance, const ConvGeometry& g, int multiprocessors,
                   const ModelConstants& k) {
  const Config& config = instance.config;
  const RowLayout layout = row_layout(config, g);
  const GemmShape block = config.block_tile_shape;

  // Waves.
  const double tiles =
      double(layout.groups) * double(ceil_div(layout.rows, block.m * config.cluster_shape.m)) *
      double(ceil_div(g.out_channels, config.mma_shape.n * config.cluster_shape.n));
  const double clusters =
      std::max(1.0, std::floor(double(multiprocessors) / config.cluster_size()));
  const double waves = std::ceil(tiles / clusters);

  // A 16-deep step: the tensor core's own rate, or reading both operands from shared memory.
  const double steps =
      double(implicit_gemm::kernel_view(g).taps()) * double(ceil_div(g.in_channels, 16));
  const double mma = double(block.m) * config.mma_shape.n * 16.0 / k.macs_per_cycle;
  const double shared = (block.m + block.n) * 32.0 / k.shared_bytes_per_cycle;
  const double parts = config.cluster_shape.k;
  const double exchange =
      config.exchange_bytes() * (parts - 1) / parts / k.exchange_bytes_per_cycle;
  const double cycles = waves * (steps / parts * std::max(mma, shared) + exchange + k.tile_cycles);

  const double bytes =
      double(g.activation_elements() + g.filter_elements()) * double(size_of(config.act_dtype)) +
      double(g.output_elements()) * config.out_bytes();
  return k.launch_us + std::max(cycles / k.cycles_per_us, bytes / k.memory_bytes_per_us);
}

}  // namespace convoy::sm100
