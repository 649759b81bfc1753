// SPDX-License-Identifier: Apache-2.0
//
// Tries the form of the Blackwell kernels' time model (src/kernels/sm100/model.hpp) on measured
// times of a Hopper GPU: its constants are fitted to one file of `convoy_measure_kernels`, and the
// times of another, whose layers the fit has not seen, are predicted. Needs no GPU:
//
//   cmake --build --preset default --target sm100_model_on_hopper
//   build/default/bin/sm100_model_on_hopper bench/results/h200/wild_train.csv
//       bench/results/h200/wild_test.csv
//
// Of Hopper's kernels those count that come within 30 % of a layer's best one, with no activation,
// ReLU or SiLU: what another epilogue costs is no part of this model.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "convoy/error.hpp"
#include "core/text.hpp"
#include "kernels/sm100/model.hpp"
#include "kernels/sm90/host.hpp"
#include "kernels/sm90/instances.hpp"
#include "kernels/sm90/model.hpp"
#include "shape_file.hpp"
#include "shape_string.hpp"

namespace {

using namespace convoy;
using sm100::EpilogueOverlap, sm100::ModelConstants, sm100::TileLoop;

constexpr int kMultiprocessors = 132;
constexpr double kNearBest = 1.3;

struct Constant {
  const char* name;
  double ModelConstants::*value;
};
constexpr Constant kFitted[] = {
    {"run_bytes_per_cycle", &ModelConstants::run_bytes_per_cycle},
    {"other_bytes_per_cycle", &ModelConstants::other_bytes_per_cycle},
    {"shared_bytes_per_cycle", &ModelConstants::shared_bytes_per_cycle},
    {"refill_cycles", &ModelConstants::refill_cycles},
    {"atom_cycles", &ModelConstants::atom_cycles},
    {"step_cycles", &ModelConstants::step_cycles},
    {"residual_step_cycles", &ModelConstants::residual_step_cycles},
    {"exchange_bytes_per_cycle", &ModelConstants::exchange_bytes_per_cycle},
    {"tile_cycles", &ModelConstants::tile_cycles},
    {"ends_cycles", &ModelConstants::ends_cycles},
    {"launch_us", &ModelConstants::launch_us},
    {"cycles_per_us", &ModelConstants::cycles_per_us},
    {"memory_bytes_per_us", &ModelConstants::memory_bytes_per_us},
    {"overlap_power", &ModelConstants::overlap_power},
};

// What is known of an H200 before any fit: half the multiply-adds of a B200's SM, its clock and its
// memory (data sheet).
ModelConstants hopper_constants() {
  ModelConstants k;
  k.cycles_per_us = 1700.0;
  k.macs_per_cycle = 2048.0;
  k.memory_bytes_per_us = 0.9 * 4.8e6;
  k.load_cycles = k.mma_issue_cycles = 0.0;
  k.atom_cycles = 50.0;
  return k;
}

// What a Hopper kernel does for a tile, in the Blackwell model's terms.
TileLoop tile_loop(const ConvGeometry& g, const sm90::Tiling& tiling, const EpilogueKind& epilogue,
                   double split_share) {
  const sm90::Config& config = tiling.config;
  const sm90::Params& p = tiling.params;
  TileLoop loop;
  const double taps = double(p.filter[1]) * p.filter[2];
  const double parts = config.splits_k() ? tiling.cluster_size : 1;
  loop.atoms = sm90::depths_multiplied(g, p) * taps * p.channel_blocks / parts;
  const double steps =
      (1.0 * p.block_steps * (p.channel_blocks - 1) + p.last_block_steps) / p.channel_blocks;
  loop.mma_macs = steps * double(config.block_m) * config.block_n * 16.0;
  // An MMA has 64 rows: each block of them reads the other operand anew.
  loop.operand_bytes = steps * config.tile_rows() / 64.0 * (64.0 + config.tile_columns()) * 32.0;
  const double act_rows =
      config.has_halo() ? 1.0 * p.halo_width * p.halo_height * p.planes[0] * p.planes[1] / taps
                        : config.block_m;
  loop.taken_in_bytes = (act_rows + (config.is_resident() ? 0 : config.block_n)) * p.block_bytes;
  loop.as_they_lie = p.loader == sm90::Loader::tiled;
  loop.buffered_atoms = config.is_resident() ? config.act_ring_stages() : config.filter_stages;
  loop.epilogue_steps = double(config.block_m) * config.block_n / 4096.0;
  loop.residual = epilogue.residual;
  loop.overlap = config.is_pingpong() ? EpilogueOverlap::in_turns : EpilogueOverlap::none;
  loop.exchange_bytes = (parts - 1) / parts * config.block_m * config.block_n * 4.0;
  double slots = kMultiprocessors;
  if (config.is_resident()) slots = sm90::resident_ctas(tiling, kMultiprocessors);
  if (parts > 2) slots *= split_share;
  loop.waves = std::ceil(tiling.num_tiles / slots);
  double touched = 1;
  for (std::size_t i = 0; i < 3; ++i) {
    touched *= std::min(1.0, double(g.filter[i]) / double(g.stride[i]));
  }
  loop.memory_bytes =
      double(size_of(config.in)) * (touched * double(g.activation_elements() + g.cache_elements()) +
                                    double(g.filter_elements())) +
      double(size_of(config.out)) * double(g.output_elements()) * (epilogue.residual ? 2.0 : 1.0);
  return loop;
}

struct Time {
  double us = 0;
  std::vector<TileLoop> loops;  // One for each split of K that may have been measured.
};

std::vector<Time> read_times(const std::string& path) {
  std::map<std::string, const sm90::Instance*> instances;
  for (const sm90::Instance& instance : sm90::instances()) {
    instances[sm90::name_of(instance)] = &instance;
  }
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line) || line != "problem,dtype,epilogue,kernel,splits,us") {
    throw Error(Status::io_error, path + ": not a file of convoy_measure_kernels");
  }
  struct Row {
    std::string problem, dtype, epilogue, kernel;
    int splits;
    double us;
  };
  std::vector<Row> rows;
  std::map<std::string, double> best;
  while (std::getline(file, line)) {
    std::stringstream stream(line);
    Row row;
    std::string splits, us;
    std::getline(stream, row.problem, ',');
    std::getline(stream, row.dtype, ',');
    std::getline(stream, row.epilogue, ',');
    std::getline(stream, row.kernel, ',');
    std::getline(stream, splits, ',');
    std::getline(stream, us, ',');
    row.splits = std::stoi(splits);
    row.us = std::stod(us);
    const auto [found, is_new] = best.try_emplace(row.problem + row.dtype + row.epilogue, row.us);
    found->second = std::min(found->second, row.us);
    rows.push_back(std::move(row));
  }
  // NOTE: of clusters of 4 and 8, as fitted to these times (sm90/model.hpp).
  constexpr double kSplitShare = 0.91;
  std::vector<Time> times;
  for (const Row& row : rows) {
    const auto instance = instances.find(row.kernel);
    const EpilogueKind epilogue = cli::parse_epilogue(row.epilogue);
    const bool plain = epilogue.activation == Activation::none ||
                       epilogue.activation == Activation::relu ||
                       epilogue.activation == Activation::silu;
    if (instance == instances.end() || !plain ||
        row.us > kNearBest * best[row.problem + row.dtype + row.epilogue]) {
      continue;
    }
    const ConvGeometry g = geometry_of(cli::parse_shape(row.problem).problem);
    Time time{row.us, {}};
    for (const int splits : {1, 2, 4, 8}) {
      if (row.splits > 0 ? splits != row.splits : splits > 1) continue;
      try {
        sm90::LaunchOptions options;
        options.packed_filter = true;
        options.multiprocessors = kMultiprocessors;
        options.splits = splits;
        const sm90::Tiling tiling = sm90::plan_tiling(*instance->second, g, options);
        time.loops.push_back(tile_loop(g, tiling, epilogue, kSplitShare));
      } catch (const Error&) {
        continue;  // It ran the layer rewritten.
      }
    }
    if (!time.loops.empty()) times.push_back(std::move(time));
  }
  return times;
}

double error_of(const Time& time, const ModelConstants& k) {
  double us = INFINITY;
  for (const TileLoop& loop : time.loops) us = std::min(us, sm100::loop_us(loop, k));
  return std::fabs(std::log(us / time.us));
}

// Mean error, of each at most 30 %.
double cost(const std::vector<Time>& times, const ModelConstants& k) {
  double sum = 0;
  for (const Time& time : times) sum += std::min(0.3, error_of(time, k));
  return sum / double(times.size());
}

ModelConstants fit(const std::vector<Time>& times, ModelConstants k) {
  double best = cost(times, k);
  for (const double step : {0.25, 0.16, 0.1, 0.06, 0.04, 0.025, 0.015, 0.01}) {
    for (int round = 0; round < 3; ++round) {
      for (const Constant& constant : kFitted) {
        for (const double factor : {1 + step, 1 / (1 + step)}) {
          ModelConstants next = k;
          next.*constant.value *= factor;
          const double now = cost(times, next);
          if (now < best) {
            best = now;
            k = next;
          }
        }
      }
    }
  }
  return k;
}

void report(const char* name, const std::vector<Time>& times, const ModelConstants& k) {
  std::vector<double> errors;
  for (const Time& time : times) errors.push_back(error_of(time, k));
  std::sort(errors.begin(), errors.end());
  const auto within = [&](double ratio) {
    return 100.0 *
           double(std::lower_bound(errors.begin(), errors.end(), std::log(ratio)) -
                  errors.begin()) /
           double(errors.size());
  };
  std::printf(
      "%-8s %5zu times: median error %4.1f %%, within 10 %% %4.1f %%, within 20 %% %4.1f %%\n",
      name, errors.size(), 100 * errors[errors.size() / 2], within(1.1), within(1.2));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: sm100_model_on_hopper FIT.csv JUDGE.csv\n");
    return 2;
  }
  try {
    const std::vector<Time> known = read_times(argv[1]), unseen = read_times(argv[2]);
    if (known.empty() || unseen.empty()) {
      throw Error(Status::io_error, "no times of this build's Hopper kernels in one of the files");
    }
    const ModelConstants k = fit(known, hopper_constants());
    report("fitted", known, k);
    report("unseen", unseen, k);
    for (const Constant& constant : kFitted) {
      std::printf("  %-26s %.4g\n", constant.name, k.*constant.value);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sm100_model_on_hopper: %s\n", error.what());
    return 1;
  }
  return 0;
}
