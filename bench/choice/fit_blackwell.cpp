// SPDX-License-Identifier: Apache-2.0
//
// Fits the constants of the Blackwell kernels' time model (src/kernels/sm100/model.hpp) to files of
// `convoy_measure_kernels` or of `convoy tune --csv`, and judges it on layers that the fit has not
// seen: those of a second file, or every third layer of the first. Needs no GPU:
//
//   cmake --build --preset default --target sm100_fit_model
//   build/default/bin/sm100_fit_model FIT.csv [JUDGE.csv] [--multiprocessors N] [--csv TIMES.csv]
//
// --csv: where the times that it is judged by go, each beside what the model says.
//
// Of a Blackwell GPU, what it prints replaces the defaults of ModelConstants. Times of Hopper's
// kernels try the form of the model, as what these kernels do for a tile, in its terms:
//
//   build/default/bin/sm100_fit_model bench/results/h200/wild_train.csv
//       bench/results/h200/wild_test.csv
//
// Kernels count that come within 30 % of a layer's best one; of Hopper's with no activation, ReLU
// or SiLU.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "convoy/error.hpp"
#include "core/text.hpp"
#include "kernels/sm100/host.hpp"
#include "kernels/sm100/model.hpp"
#include "kernels/sm90/host.hpp"
#include "kernels/sm90/instances.hpp"
#include "kernels/sm90/model.hpp"
#include "measured_times.hpp"
#include "shape_file.hpp"
#include "shape_string.hpp"

namespace {

using namespace convoy;
using sm100::EpilogueOverlap, sm100::ModelConstants, sm100::TileLoop;

constexpr int kHopperSms = 132, kBlackwellSms = 148;
constexpr double kNearBest = 1.3;

struct Constant {
  const char* name;
  double ModelConstants::*value;
  double hopper_most = INFINITY;  // What an H200 has: 64 bytes a cycle into an SM, memory, clock.
};
constexpr Constant kFitted[] = {
    {"run_bytes_per_us", &ModelConstants::run_bytes_per_us, 64 * 1980.0},
    {"other_bytes_per_us", &ModelConstants::other_bytes_per_us, 64 * 1980.0},
    {"shared_bytes_per_cycle", &ModelConstants::shared_bytes_per_cycle, 128.0},
    {"refill_cycles", &ModelConstants::refill_cycles},
    {"atom_cycles", &ModelConstants::atom_cycles},
    {"step_cycles", &ModelConstants::step_cycles},
    {"residual_step_cycles", &ModelConstants::residual_step_cycles},
    {"simple_activation_cycles", &ModelConstants::simple_activation_cycles},
    {"exponential_activation_cycles", &ModelConstants::exponential_activation_cycles},
    {"element_store_cycles", &ModelConstants::element_store_cycles},
    {"odd_store_cycles", &ModelConstants::odd_store_cycles},
    {"aligned_64_rows_per_us", &ModelConstants::aligned_64_rows_per_us},
    {"aligned_32_rows_per_us", &ModelConstants::aligned_32_rows_per_us},
    {"aligned_16_rows_per_us", &ModelConstants::aligned_16_rows_per_us},
    {"outside_row_share", &ModelConstants::outside_row_share},
    {"alone_intake", &ModelConstants::alone_intake},
    {"atom_power", &ModelConstants::atom_power},
    {"exchange_bytes_per_cycle", &ModelConstants::exchange_bytes_per_cycle},
    {"split_tile_cycles", &ModelConstants::split_tile_cycles},
    {"cluster_tile_cycles", &ModelConstants::cluster_tile_cycles},
    {"tile_cycles", &ModelConstants::tile_cycles},
    {"ends_cycles", &ModelConstants::ends_cycles},
    {"launch_us", &ModelConstants::launch_us},
    {"crowd_us", &ModelConstants::crowd_us},
    {"power_macs_per_us", &ModelConstants::power_macs_per_us},
    {"cycles_per_us", &ModelConstants::cycles_per_us, 1980.0},
    {"memory_bytes_per_us", &ModelConstants::memory_bytes_per_us, 4.8e6},
    {"overlap_power", &ModelConstants::overlap_power},
};

// Where the search begins for an H200: half the multiply-adds of a B200's SM (data sheet); the rest
// near what a descent by all constants at once found for the same times.
ModelConstants hopper_constants() {
  ModelConstants k;
  k.cycles_per_us = 1750.0;
  k.power_macs_per_us = 132 * 2048 * 1480.0;
  k.macs_per_cycle = 2048.0;
  k.memory_bytes_per_us = 0.95 * 4.8e6;
  k.load_cycles = k.mma_issue_cycles = 0.0;
  k.atom_cycles = 30.0;
  k.tile_cycles = 500.0;
  k.ends_cycles = 200.0;
  k.launch_us = 6.0;
  k.crowd_us = 1.3;
  k.step_cycles = 60.0;
  k.residual_step_cycles = 450.0;
  k.run_bytes_per_us = k.other_bytes_per_us = 64 * 1950.0;
  k.split_tile_cycles = 1800.0;
  k.cluster_tile_cycles = 200.0;
  k.outside_row_share = 1.7;
  k.alone_intake = 0.38;
  k.overlap_power = 1.7;
  return k;
}

// What a Hopper kernel does for a tile, in the Blackwell model's terms.
TileLoop tile_loop(const ConvGeometry& g, const sm90::Tiling& tiling, const EpilogueKind& epilogue,
                   double split_share, int multiprocessors) {
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
  loop.taken_in_rows = act_rows + (config.is_resident() ? 0 : config.block_n);
  loop.taken_in_bytes = loop.taken_in_rows * p.block_bytes;
  if (!config.is_resident()) {
    loop.outside_rows = config.block_n - p.filters / std::ceil(double(p.filters) / config.block_n);
  }
  loop.as_they_lie = p.loader == sm90::Loader::tiled;
  loop.buffered_atoms = config.is_resident() ? config.act_ring_stages() : config.filter_stages;
  loop.epilogue_steps = double(config.block_m) * config.block_n / 4096.0 / parts;
  // Stores of pieces by two or three warpgroups beside those of one, as fitted.
  if (!config.is_pingpong() && !config.is_swapped()) {
    loop.epilogue_steps *= 0.75 * 2.0 / std::max<int>(2, config.consumers);
  }
  loop.residual = epilogue.residual;
  loop.work = sm100::step_work(epilogue.activation);
  sm100::note_rows(g, size_of(config.in), size_of(config.out), loop);
  loop.overlap = config.is_pingpong() ? EpilogueOverlap::in_turns : EpilogueOverlap::none;
  loop.splits = config.splits_k();
  loop.exchange_bytes = (parts - 1) / parts * config.block_m * config.block_n * 4.0;
  loop.in_step = !loop.splits && tiling.cluster_size > 1;
  double slots = multiprocessors;
  if (config.is_resident()) slots = sm90::resident_ctas(tiling, multiprocessors);
  if (parts > 2) slots *= split_share;
  loop.waves = std::ceil(tiling.num_tiles / slots);
  loop.busy_share =
      std::min(1.0, tiling.num_tiles / (config.is_resident() ? slots : double(multiprocessors)));
  loop.chip_macs = double(tiling.num_tiles) * loop.atoms * loop.mma_macs;
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
  const cli::MeasuredTime* row = nullptr;
  double us = 0;
  std::vector<TileLoop> loops;  // One for each split of K that may have been measured.
};

using Row = cli::MeasuredTime;

// The loops that a row may have been measured with: of an unknown split each.
class Loops {
 public:
  explicit Loops(int multiprocessors) : multiprocessors_(multiprocessors) {
    for (const sm90::Instance& instance : sm90::instances()) hopper_[name_of(instance)] = &instance;
    for (const sm100::Instance& instance : sm100::instances()) {
      blackwell_[name_of(instance)] = &instance;
    }
  }

  std::vector<TileLoop> of(const Row& row) const {
    const std::string& kernel = row.kernel;
    const EpilogueKind epilogue = cli::parse_epilogue(row.epilogue);
    if (const auto found = blackwell_.find(kernel); found != blackwell_.end()) {
      const ConvGeometry g = geometry_of(cli::parse_shape(row.problem).problem);
      if (!sm100::refusal(*found->second, g, g.upsample == 2).empty()) return {};
      return {sm100::tile_loop(*found->second, g, multiprocessors_, epilogue)};
    }
    const auto found = hopper_.find(kernel);
    const bool plain = epilogue.activation == Activation::none ||
                       epilogue.activation == Activation::relu ||
                       epilogue.activation == Activation::silu;
    if (found == hopper_.end() || !plain) return {};
    // NOTE: of clusters of 4 and 8, as fitted to these times (sm90/model.hpp).
    constexpr double kSplitShare = 0.91;
    const ConvGeometry g = geometry_of(cli::parse_shape(row.problem).problem);
    const int measured = row.splits;
    std::vector<TileLoop> loops;
    for (const int splits : {1, 2, 4, 8}) {
      if (measured > 0 ? splits != measured : splits > 1) continue;
      try {
        sm90::LaunchOptions options;
        options.packed_filter = true;
        options.multiprocessors = multiprocessors_;
        options.splits = splits;
        const sm90::Tiling tiling = sm90::plan_tiling(*found->second, g, options);
        loops.push_back(tile_loop(g, tiling, epilogue, kSplitShare, multiprocessors_));
      } catch (const Error&) {
        continue;  // It ran the layer rewritten.
      }
    }
    return loops;
  }
  bool is_hopper(const Row& row) const { return hopper_.contains(row.kernel); }

 private:
  int multiprocessors_;
  std::map<std::string, const sm90::Instance*> hopper_;
  std::map<std::string, const sm100::Instance*> blackwell_;
};

std::vector<Time> times_of(const std::vector<Row>& rows, const Loops& loops) {
  std::map<std::string, double> best;
  for (const Row& row : rows) {
    const double us = row.us;
    const auto [found, is_new] = best.try_emplace(row.layer(), us);
    found->second = std::min(found->second, us);
  }
  std::vector<Time> times;
  for (const Row& row : rows) {
    const double us = row.us;
    if (us > kNearBest * best[row.layer()]) continue;
    Time time{&row, us, loops.of(row)};
    if (!time.loops.empty()) times.push_back(std::move(time));
  }
  return times;
}

double modelled_us(const Time& time, const ModelConstants& k) {
  double us = INFINITY;
  for (const TileLoop& loop : time.loops) us = std::min(us, sm100::loop_us(loop, k));
  return us;
}

double error_of(const Time& time, const ModelConstants& k) {
  return std::fabs(std::log(modelled_us(time, k) / time.us));
}

// Mean error, of each at most 30 %.
double cost(const std::vector<Time>& times, const ModelConstants& k) {
  double sum = 0;
  for (const Time& time : times) sum += std::min(0.3, error_of(time, k));
  return sum / double(times.size());
}

ModelConstants fit(const std::vector<Time>& times, ModelConstants k, bool hopper) {
  double best = cost(times, k);
  for (const double step : {0.25, 0.16, 0.1, 0.06, 0.04, 0.025, 0.015, 0.01}) {
    for (double before = INFINITY; before - best > 1e-6;) {
      before = best;
      for (const Constant& constant : kFitted) {
        for (const double factor : {1 + step, 1 / (1 + step)}) {
          ModelConstants next = k;
          next.*constant.value *= factor;
          if (hopper && next.*constant.value > constant.hopper_most) continue;
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

void write_csv(const std::string& path, const std::vector<Time>& times, const ModelConstants& k) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) throw Error(Status::io_error, "cannot write " + path);
  std::fprintf(file, "problem,dtype,epilogue,kernel,splits,us,modelled_us\n");
  for (const Time& time : times) {
    const Row& row = *time.row;
    std::fprintf(file, "%s,%s,%s,%s,%d,%.2f,%.2f\n", row.problem.c_str(), row.dtype.c_str(),
                 row.epilogue.c_str(), row.kernel.c_str(), row.splits, time.us,
                 modelled_us(time, k));
  }
  if (std::fclose(file) != 0) throw Error(Status::io_error, "cannot write " + path);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<std::string> files;
    std::string csv;
    int multiprocessors = 0;
    for (int i = 1; i < argc; ++i) {
      if (std::string(argv[i]) == "--multiprocessors" && i + 1 < argc) {
        multiprocessors = std::stoi(argv[++i]);
      } else if (std::string(argv[i]) == "--csv" && i + 1 < argc) {
        csv = argv[++i];
      } else {
        files.emplace_back(argv[i]);
      }
    }
    if (files.empty() || files.size() > 2) {
      std::fprintf(stderr,
                   "usage: sm100_fit_model FIT.csv [JUDGE.csv] [--multiprocessors N] "
                   "[--csv TIMES.csv]\n");
      return 2;
    }
    std::vector<Row> fitted = cli::read_measured_times(files[0]), judged;
    if (files.size() == 2) {
      judged = cli::read_measured_times(files[1]);
    } else {
      // Every third layer, in the order of the file.
      std::map<std::string, std::size_t> numbers;
      for (const Row& row : fitted) numbers.try_emplace(row.problem, numbers.size());
      const auto out = [&](const Row& row) { return numbers[row.problem] % 3 == 2; };
      std::copy_if(fitted.begin(), fitted.end(), std::back_inserter(judged), out);
      std::erase_if(fitted, out);
    }
    const bool hopper =
        std::any_of(fitted.begin(), fitted.end(),
                    [known = Loops(kHopperSms)](const Row& row) { return known.is_hopper(row); });
    if (multiprocessors == 0) multiprocessors = hopper ? kHopperSms : kBlackwellSms;
    const Loops loops(multiprocessors);
    const std::vector<Time> known = times_of(fitted, loops), unseen = times_of(judged, loops);
    if (known.empty() || unseen.empty()) {
      throw Error(Status::io_error,
                  "no times of this build's Hopper or Blackwell kernels to fit or "
                  "to judge by");
    }
    const ModelConstants before = hopper ? hopper_constants() : ModelConstants{};
    const ModelConstants k = fit(known, before, hopper);
    if (!hopper) report("before", unseen, before);
    report("fitted", known, k);
    report("unseen", unseen, k);
    if (!csv.empty()) write_csv(csv, unseen, k);
    for (const Constant& constant : kFitted) {
      std::printf("  %-26s %.4g\n", constant.name, k.*constant.value);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sm100_fit_model: %s\n", error.what());
    return 1;
  }
  return 0;
}
