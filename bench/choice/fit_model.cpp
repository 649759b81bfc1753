// SPDX-License-Identifier: Apache-2.0
//
// Fits the constants of a time model, of the Hopper kernels (src/kernels/sm90/model.hpp) or of the
// kernels of mma.sync (src/kernels/mma/model.hpp), to files of `convoy tune --csv` or
// `convoy_measure_kernels`, and says how good the models' choices are. No GPU is needed:
//
//   cmake --build --preset default --target sm90_fit_model
//   build/default/bin/sm90_fit_model bench/results/h200/tune.csv [MORE.csv ...]
//     --family sm90|mma   whose constants (sm90); the other kernels keep their estimates
//     --restarts N     searches from the best constants, disturbed (20); 0: only judge the choices
//     --folds N        also fit N times without an Nth of the problems and judge those: how the
//                      model does on layers that it was not fitted to (0: no)
//     --medians        one case a problem, with each kernel's median time over the files, instead
//                      of one a file
//     --alone          leaves out the kernels of other families, whose times are no part of the fit
//     --keep NAME      leaves this constant as it is; may be given again
//     --seed N         of the random steps (1)
//     --multiprocessors N   of the GPU that the times are of (132)
//
// Times are those of the models alone: their correction (train_correction.py) is trained anew after
// a fit. What it prints as constants replaces the defaults of ModelConstants. A problem of two
// files counts twice, with the times of each: choices should be good in every run.
//
// Minimised: the share of problems whose choice is beyond 5 % of the best measured kernel, the mean
// regret, and, as the main term, the error of the logarithms of times near the best one: misses are
// few, and constants can be bent to avoid them that then miss on other problems
// (docs/kernels-sm90.md). A choice counts as one that the model makes with an error of 1 %, so that
// none hangs by a hair. Kernels of other families (stem, small, composed) have the times that they
// estimate themselves.
//
// NOTE: the splits of a split-K kernel are those that the model would choose, though the measured
// time is of those chosen when it was measured.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <span>

#include "core/text.hpp"
#include "dispatch/backends.hpp"
#include "kernels/mma/model.hpp"
#include "kernels/sm90/model.hpp"
#include "measured_times.hpp"
#include "shape_file.hpp"
#include "shape_string.hpp"

namespace {

using namespace convoy;

// Of all families; that of mma.sync with the clock and the rate of the device.
struct ModelConstants : sm90::ModelConstants {
  mma::ModelConstants mma;
};

struct Constant {
  const char* name;
  double& (*of)(ModelConstants&);
  double most = 1e30;  // What the hardware can do.

  double value(const ModelConstants& k) const { return of(const_cast<ModelConstants&>(k)); }
};
constexpr Constant kMmaConstants[] = {
#define CONSTANT(name, ...)                                                                    \
  {                                                                                            \
#name, [](ModelConstants & k) -> double& { return k.mma.name; } __VA_OPT__(, ) __VA_ARGS__ \
  }
    CONSTANT(memory_bytes_per_us), CONSTANT(overlap_power),    CONSTANT(launch_us),
    CONSTANT(block_cycles),        CONSTANT(turn_cycles),      CONSTANT(cold_us),
    CONSTANT(copy_cycles),         CONSTANT(fragment_cycles),  CONSTANT(step_cycles),
    CONSTANT(latency_cycles),      CONSTANT(round_cycles),     CONSTANT(alone_share),
    CONSTANT(tap_cycles),          CONSTANT(store_cycles),     CONSTANT(residual_cycles),
    CONSTANT(curved_cycles),       CONSTANT(split_us),         CONSTANT(split_bytes_per_us),
    CONSTANT(persistent_share),    CONSTANT(taps_first_share), CONSTANT(parts_launch_us),
    CONSTANT(parts_store_cycles),
#undef CONSTANT
};
static_assert(sizeof(mma::ModelConstants) == (std::size(kMmaConstants) + 3) * sizeof(double),
              "every constant but clock and rates is listed");
constexpr Constant kSm90Constants[] = {
#define CONSTANT(name, ...)                                                                \
  {                                                                                        \
#name, [](ModelConstants & k) -> double& { return k.name; } __VA_OPT__(, ) __VA_ARGS__ \
  }
    CONSTANT(cycles_per_us, 1980),
    CONSTANT(memory_bytes_per_us, 4.6e6),
    CONSTANT(overlap_power),
    CONSTANT(launch_us),
    CONSTANT(crowd_us),
    CONSTANT(large_cluster_us),
    CONSTANT(general_us),
    CONSTANT(piece_cycles),
    CONSTANT(warpgroup_power),
    CONSTANT(turn_cycles),
    CONSTANT(residual_turn_cycles),
    CONSTANT(cluster_tile_cycles),
    CONSTANT(narrow_mma_cycles),
    CONSTANT(refill_cycles),
    CONSTANT(cta_cycles),
    CONSTANT(split_tile_cycles),
    CONSTANT(reduce_cta_cycles),
    CONSTANT(cluster_slots, 1),
    CONSTANT(intake_bytes_per_cycle, 64),
    CONSTANT(alone_bytes_per_cycle, 92),
    CONSTANT(aligned_64_cycles),
    CONSTANT(aligned_32_cycles),
    CONSTANT(aligned_16_cycles),
    CONSTANT(outside_row_cycles),
    CONSTANT(strided_row_cycles),
    CONSTANT(tap_cycles),
    CONSTANT(pingpong_tap_cycles),
    CONSTANT(halo_tap_cycles),
    CONSTANT(resident_tap_cycles),
    CONSTANT(residual_cycles),
    CONSTANT(relu_cycles),
    CONSTANT(silu_cycles),
    CONSTANT(clamp_cycles),
    CONSTANT(curved_cycles),
    CONSTANT(general_cycles),
    CONSTANT(direct_cycles),
    CONSTANT(small_direct_cycles),
    CONSTANT(spill_cycles),
    CONSTANT(store_64_cycles),
    CONSTANT(store_32_cycles),
    CONSTANT(store_16_cycles),
    CONSTANT(swapped_epilogue),
    CONSTANT(passed_share, 1),
#undef CONSTANT
};
static_assert(sizeof(sm90::ModelConstants) == (std::size(kSm90Constants) + 1) * sizeof(double),
              "every constant but add_cycles, which no measured kernel has, is listed");

// One measured kernel.
struct Row {
  std::string kernel;
  double us = 0;
  std::vector<sm90::Tiling> tilings;  // One for each split of K; none: another family,
  std::optional<mma::Tiling> mma;     // that of mma.sync,
  double modelled_us = 0;             // or whose own estimate this is.
  int splits = 0;                     // That were measured; 0: those that the model would choose.
};

// The kernels of one problem in one run.
struct Case {
  std::string problem, words;  // "n1h256w256...", "bias_fp32+silu+residual"
  ConvGeometry geometry;
  DType dtype = DType::bf16;
  EpilogueKind epilogue;
  std::vector<Row> rows;
};

PlanRequest request_of(const Case& of, const DeviceInfo& device) {
  PlanRequest request;
  request.geometry = of.geometry;
  request.dtype = request.output_dtype = of.dtype;
  request.epilogue = of.epilogue;
  request.packed_filter = true;
  request.device = device;
  return request;
}

// The H200, with as many multiprocessors.
DeviceInfo device_of(int multiprocessors) {
  return {.kind = Device::cuda,
          .index = 0,
          .name = "NVIDIA H200",
          .compute_capability = 90,
          .multiprocessors = multiprocessors,
          .shared_memory = 227 << 10,
          .l2_bytes = 50 << 20};
}

class Reader {
 public:
  explicit Reader(const DeviceInfo& device) : device_(device) {
    for (const sm90::Instance& instance : sm90::instances()) {
      instances_[sm90::name_of(instance)] = &instance;
    }
    for (const mma::Instance& instance : mma::instances()) {
      mma_instances_[mma::name_of(instance)] = &instance;
    }
    for (const auto& kernel : registry()) kernels_[kernel->name()] = kernel.get();
  }

  void read(const std::string& path, std::vector<Case>& cases) {
    std::map<std::string, std::size_t> of_layer;
    for (const cli::MeasuredTime& time : cli::read_measured_times(path)) {
      const auto [found, is_new] = of_layer.try_emplace(time.layer(), cases.size());
      if (is_new) {
        cases.push_back({time.problem,
                         time.epilogue,
                         geometry_of(cli::parse_shape(time.problem).problem),
                         time.dtype == "fp16" ? DType::fp16 : DType::bf16,
                         cli::parse_epilogue(time.epilogue),
                         {}});
      }
      Row row;
      row.kernel = time.kernel;
      row.us = time.us;
      row.splits = time.splits;
      if (bind(cases[found->second], row)) cases[found->second].rows.push_back(std::move(row));
    }
  }

  void report_left_out() const {
    for (const auto& [name, count] : left_out_) {
      std::printf("left out, not a kernel of this build: %s, %d times\n", name.c_str(), count);
    }
  }

 private:
  bool bind(const Case& of, Row& row) {
    if (const auto found = instances_.find(row.kernel); found != instances_.end()) {
      const sm90::Instance& instance = *found->second;
      try {
        for (int splits = 1; splits <= sm90::kMostSplits; ++splits) {
          if (splits > 1 && !instance.config.splits_k()) break;
          if (row.splits > 0 && splits != row.splits) continue;
          row.tilings.push_back(sm90::plan_tiling(instance, of.geometry,
                                                  {.packed_filter = true,
                                                   .multiprocessors = device_.multiprocessors,
                                                   .splits = splits}));
        }
        return true;
      } catch (const Error&) {
        row.tilings.clear();  // It ran the layer rewritten: as its candidate estimates.
      }
    }
    const PlanRequest request = request_of(of, device_);
    if (const auto found = mma_instances_.find(row.kernel);
        found != mma_instances_.end() && row.splits > 0) {
      const mma::Tiling tiling =
          mma::plan_tiling(*found->second, of.geometry, request.packed_filter, row.splits);
      if (tiling.splits == row.splits) row.mma = tiling;
      return row.mma.has_value();
    }
    const auto found = kernels_.find(row.kernel);
    if (found == kernels_.end()) {
      ++left_out_[row.kernel];
      return false;
    }
    row.modelled_us = found->second->judge(request).estimated_us;
    return true;
  }

  const DeviceInfo device_;
  std::map<std::string, const sm90::Instance*> instances_;
  std::map<std::string, const mma::Instance*> mma_instances_;
  std::map<std::string, const KernelCandidate*> kernels_;
  std::map<std::string, int> left_out_;
};

double model_us(const Case& of, const Row& row, const DeviceInfo& device, const ModelConstants& k) {
  if (row.mma) return mma::estimate_us(*row.mma, request_of(of, device), k.mma);
  if (row.tilings.empty()) return row.modelled_us;
  const int multiprocessors = device.multiprocessors;
  double us = INFINITY;
  for (const sm90::Tiling& tiling : row.tilings) {
    us = std::min(us, sm90::model_time(of.geometry, tiling, multiprocessors, of.epilogue, k).us);
  }
  return us;
}

bool fits_mma = false;  // --family

bool is_fitted(const Row& row) {
  return fits_mma ? row.mma.has_value() : !row.tilings.empty();
}

// What the model makes of one case.
struct Choice {
  std::size_t chosen = 0, best = 0;
  double ratio = 1;      // Of the chosen kernel's time to the best one's.
  double soft_miss = 0;  // Both by a model with an error: what is minimised.
  double soft_regret = 0;
  double square_error = 0;  // Of the logarithms of times, mostly of those near the best one.
};

constexpr double kMiss = 1.05;
constexpr double kModelError = 0.01;
constexpr double kNear = 0.15;
constexpr double kZeroScale = 20;  // Of constants that are zero.

Choice judge(const Case& of, const DeviceInfo& device, const ModelConstants& k) {
  Choice choice;
  std::vector<double> model(of.rows.size());
  for (std::size_t i = 0; i < of.rows.size(); ++i) {
    model[i] = model_us(of, of.rows[i], device, k);
    if (model[i] < model[choice.chosen]) choice.chosen = i;
    if (of.rows[i].us < of.rows[choice.best].us) choice.best = i;
  }
  const double best_us = of.rows[choice.best].us;
  choice.ratio = of.rows[choice.chosen].us / best_us;
  double likely = 0, near = 0, mean = 0, square = 0;
  for (std::size_t i = 0; i < of.rows.size(); ++i) {
    const Row& row = of.rows[i];
    const double ratio = row.us / best_us;
    const double likelihood = std::exp((1 - model[i] / model[choice.chosen]) / kModelError);
    likely += likelihood;
    choice.soft_regret += likelihood * (ratio - 1);
    // From 0 to 1 around the limit.
    choice.soft_miss += likelihood * std::clamp((ratio - 0.98 * kMiss) / (0.04 * kMiss), 0.0, 1.0);
    if (!is_fitted(row)) continue;
    const double weight = std::exp((1 - ratio) / kNear), error = std::log(model[i] / row.us);
    near += weight;
    mean += weight * error;
    square += weight * error * error;
  }
  choice.soft_miss /= likely;
  choice.soft_regret /= likely;
  if (near > 0) {
    // An error of all kernels of a problem misleads nobody, hence a tenth of it.
    mean /= near;
    choice.square_error = square / near - 0.9 * mean * mean;
  }
  return choice;
}

using Cases = std::vector<const Case*>;

double cost(const Cases& cases, const std::vector<Constant>& free, const DeviceInfo& device,
            const ModelConstants& k) {
  double misses = 0, regret = 0, square_error = 0;
  for (const Case* of : cases) {
    const Choice choice = judge(*of, device, k);
    misses += choice.soft_miss;
    regret += choice.soft_regret;
    square_error += choice.square_error;
  }
  // What the times leave open stays where it is.
  double moved = 0;
  for (const Constant& constant : free) {
    const double old = constant.value(ModelConstants{}), now = constant.value(k);
    const double by = old > 0 ? std::log(std::max(now / old, 1e-3)) : now / kZeroScale;
    moved += by * by;
  }
  const auto count = static_cast<double>(cases.size());
  return misses / count + 5 * regret / count + 10 * std::sqrt(square_error / count) + 0.001 * moved;
}

// Each of `free` times a factor within exp(-width) .. exp(width).
ModelConstants disturbed(ModelConstants k, const std::vector<Constant>& free, double width,
                         std::mt19937& random) {
  for (const Constant& constant : free) {
    // NOTE: not std::uniform_real_distribution, whose numbers differ between libraries.
    double& value = constant.of(k);
    value *= std::exp(width * (random() / 2147483648.0 - 1.0));
    value = std::min(value, constant.most);
  }
  return k;
}

// Coordinate descent with steps that shrink, from the best constants so far, disturbed.
ModelConstants fit(const Cases& cases, const std::vector<Constant>& free, ModelConstants best,
                   const DeviceInfo& device, int restarts, std::mt19937& random) {
  double best_cost = cost(cases, free, device, best);
  for (int restart = 0; restart <= restarts; ++restart) {
    ModelConstants at = restart == 0 ? best : disturbed(best, free, 0.3, random);
    double at_cost = cost(cases, free, device, at);
    for (double step = 0.2; step > 0.004;) {
      std::vector<std::size_t> order(free.size());
      std::iota(order.begin(), order.end(), 0);
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
      bool moved = false;
      for (const std::size_t i : order) {
        for (const double sign : {1.0, -1.0}) {
          ModelConstants next = at;
          double& value = free[i].of(next);
          value += sign * step * (value > 0 ? value : kZeroScale);
          value = std::clamp(value, 0.0, free[i].most);
          const double next_cost = cost(cases, free, device, next);
          if (next_cost >= at_cost - 1e-9) continue;
          at = next;
          at_cost = next_cost;
          moved = true;
          break;
        }
      }
      if (!moved) step /= 2;
    }
    if (at_cost < best_cost) {
      best = at;
      best_cost = at_cost;
    }
  }
  return best;
}

void print_row(const char* name, const std::vector<Choice>& choices) {
  double regret = 0, worst = 1, square_error = 0;
  int within = 0;
  for (const Choice& choice : choices) {
    within += choice.ratio <= kMiss;
    regret += choice.ratio - 1;
    worst = std::max(worst, choice.ratio);
    square_error += choice.square_error;
  }
  const auto count = static_cast<double>(choices.size());
  std::printf("%-22s %4d of %-4zu %10.2f %% %9.1f %% %9.1f %%\n", name, within, choices.size(),
              100 * regret / count, 100 * (worst - 1), 100 * std::sqrt(square_error / count));
}

std::vector<Choice> judge_all(const Cases& cases, const DeviceInfo& device,
                              const ModelConstants& k) {
  std::vector<Choice> choices;
  for (const Case* of : cases) choices.push_back(judge(*of, device, k));
  return choices;
}

void print_worst(const Cases& cases, const std::vector<Choice>& choices) {
  std::vector<std::size_t> order(cases.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return choices[a].ratio > choices[b].ratio;
  });
  std::printf("\nthe worst choices: time over the best, problem, epilogue, chosen, best\n");
  for (std::size_t i = 0; i < std::min<std::size_t>(10, order.size()); ++i) {
    const Case& of = *cases[order[i]];
    const Choice& choice = choices[order[i]];
    std::printf("  %.3f  %s %s  %s  %s\n", choice.ratio, of.problem.c_str(), of.words.c_str(),
                of.rows[choice.chosen].kernel.c_str(), of.rows[choice.best].kernel.c_str());
  }
}

// One case a problem and epilogue, whose kernels have the medians of their times.
std::vector<Case> medians_of(const std::vector<Case>& runs) {
  std::vector<Case> merged;
  for (const Case& run : runs) {
    const auto same = [&](const Case& of) {
      return of.problem == run.problem && of.words == run.words;
    };
    if (std::any_of(merged.begin(), merged.end(), same)) continue;
    std::map<std::string, std::vector<double>> times;
    Case& of = merged.emplace_back(run);
    of.rows.clear();
    for (const Case& other : runs) {
      if (!same(other)) continue;
      for (const Row& row : other.rows) {
        std::vector<double>& known = times[row.kernel];
        if (known.empty()) of.rows.push_back(row);
        known.push_back(row.us);
      }
    }
    for (Row& row : of.rows) {
      std::vector<double>& t = times[row.kernel];
      std::sort(t.begin(), t.end());
      row.us = (t[(t.size() - 1) / 2] + t[t.size() / 2]) / 2;
    }
  }
  return merged;
}

int run(int argc, char** argv) {
  std::map<std::string, int> options = {
      {"--restarts", 20}, {"--folds", 0}, {"--seed", 1}, {"--multiprocessors", 132}};
  bool medians = false, alone = false;
  std::vector<std::string> paths, kept;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--alone") {
      alone = true;
    } else if (std::string(argv[i]) == "--family" && i + 1 < argc &&
               (std::string(argv[i + 1]) == "sm90" || std::string(argv[i + 1]) == "mma")) {
      fits_mma = std::string(argv[++i]) == "mma";
    } else if (std::string(argv[i]) == "--medians") {
      medians = true;
    } else if (std::string(argv[i]) == "--keep" && i + 1 < argc) {
      kept.emplace_back(argv[++i]);
    } else if (const auto option = options.find(argv[i]); option != options.end() && i + 1 < argc) {
      option->second = std::stoi(argv[++i]);
    } else if (argv[i][0] != '-') {
      paths.emplace_back(argv[i]);
    } else {
      paths.clear();
      break;
    }
  }
  if (paths.empty()) {
    std::fprintf(stderr,
                 "usage: sm90_fit_model [--family sm90|mma] [--restarts N] [--folds N] [--medians] "
                 "[--alone] [--keep "
                 "NAME] [--seed N] "
                 "[--multiprocessors N] TUNE.csv ...\n");
    return 2;
  }
  std::vector<Constant> free;
  const std::span<const Constant> all = fits_mma ? std::span<const Constant>(kMmaConstants)
                                                 : std::span<const Constant>(kSm90Constants);
  for (const Constant& constant : all) {
    if (std::erase(kept, constant.name) == 0) free.push_back(constant);
  }
  if (!kept.empty()) {
    std::fprintf(stderr, "sm90_fit_model: --keep %s: not a constant of the model\n",
                 kept.front().c_str());
    return 2;
  }
  const DeviceInfo device = device_of(options["--multiprocessors"]);
  Reader reader(device);
  std::vector<Case> storage;
  for (const std::string& path : paths) reader.read(path, storage);
  reader.report_left_out();
  if (medians) storage = medians_of(storage);
  for (Case& of : storage) {
    if (alone) std::erase_if(of.rows, [](const Row& row) { return !is_fitted(row); });
  }
  Cases cases;
  for (const Case& of : storage) {
    if (!of.rows.empty()) cases.push_back(&of);
  }
  const auto seed = static_cast<std::uint32_t>(options["--seed"]);

  std::printf("%-22s %12s %12s %11s %11s\n", "", "within 5 %", "mean regret", "worst",
              "error of us");
  ModelConstants start;
  start.mma = mma::constants_of(device);
  std::vector<Choice> choices = judge_all(cases, device, start);
  print_row("before", choices);
  ModelConstants fitted = start;
  if (options["--restarts"] > 0) {
    std::mt19937 random(seed);
    fitted = fit(cases, free, start, device, options["--restarts"], random);
    choices = judge_all(cases, device, fitted);
    print_row("fitted", choices);
  }
  if (const int folds = options["--folds"]; folds > 1) {
    // A problem is left out with all its epilogues, of every file.
    std::map<std::string, std::size_t> number;
    for (const Case* of : cases) number.try_emplace(of->problem, number.size());
    std::mt19937 random(seed);
    std::vector<std::size_t> fold(number.size());
    for (std::size_t i = 0; i < fold.size(); ++i) fold[i] = i % static_cast<std::size_t>(folds);
    for (std::size_t i = fold.size(); i > 1; --i) std::swap(fold[i - 1], fold[random() % i]);
    std::vector<Choice> held_out;
    for (std::size_t f = 0; f < static_cast<std::size_t>(folds); ++f) {
      Cases known, unknown;
      for (const Case* of : cases) (fold[number[of->problem]] == f ? unknown : known).push_back(of);
      // Not from constants that know these problems.
      const ModelConstants disturbed_start = disturbed(start, free, 0.7, random);
      const ModelConstants k =
          fit(known, free, disturbed_start, device, options["--restarts"], random);
      for (const Choice& choice : judge_all(unknown, device, k)) held_out.push_back(choice);
    }
    print_row("left out of the fit", held_out);
  }
  print_worst(cases, choices);
  if (options["--restarts"] > 0) {
    std::printf("\n");
    for (const Constant& constant : all) {
      const double old = constant.value(start), now = constant.value(fitted);
      std::printf("double %s = %.4g;%s\n", constant.name, now,
                  now == old ? "" : text("  // was ", old).c_str());
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sm90_fit_model: %s\n", error.what());
    return 1;
  }
}
