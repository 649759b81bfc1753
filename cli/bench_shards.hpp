// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "convoy/shard.hpp"
#include "layer.hpp"

namespace convoy::cli {

struct ShardBenchOptions {
  int ranks = 2;
  ShardAxis axis = ShardAxis::height;
  double seconds = 0.5;  ///< Rounds are added until one rank's runs took this long, ...
  int runs = 0;          ///< ... or exactly so many.
};

/// One layer on one device and cut over several, in turns. Times are the slowest rank's.
struct ShardBenchRow {
  std::string problem, kernel, backend, transport;
  int runs = 0;
  double one_us = 0;
  double us = 0;           ///< The exchange, then one launch.
  double interior_us = 0;  ///< The interior beside the exchange, then the borders; 0: cannot be.
  double silent_us = 0;    ///< One launch, its halos there already.
  std::size_t sent_bytes = 0;                 ///< In one exchange, by the rank that sends most.
  std::size_t rank_bytes = 0, one_bytes = 0;  ///< Tensors, filter and workspace.
  bool same_bits = false;                     ///< The output put together is one device's.

  double best_us() const { return interior_us > 0 && interior_us < us ? interior_us : us; }
  double speed_up() const { return one_us / best_us(); }
};

/// "height", "width", "frames", "batch". Throws Error{invalid_argument} that lists them.
ShardAxis parse_shard_axis(const std::string& word);

/// Ranks are threads: with a device each by NCCL, or on the CPU's backend over host memory. Throws
/// what any rank throws; Error{invalid_argument} for more ranks than CUDA devices. Settles where
/// the layer runs.
ShardBenchRow bench_shards(Layer& layer, const ShardBenchOptions& options);

void print_shard_header(bool csv);
void print_shard_row(const ShardBenchRow& row, const ShardBenchOptions& options, bool csv);

}  // namespace convoy::cli
