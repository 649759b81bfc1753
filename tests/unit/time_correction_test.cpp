// SPDX-License-Identifier: Apache-2.0
//
// The correction of model times: within its bounds for any input, and better than none on layers
// that it was not trained on.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "core/geometry.hpp"
#include "kernels/common/time_correction.hpp"
#include "kernels/sm90/model.hpp"
#include "measured_times.hpp"
#include "shape_file.hpp"
#include "shape_string.hpp"

namespace convoy {
namespace {

ConvGeometry geometry(const char* shape) {
  return geometry_of(cli::parse_shape(shape).problem);
}

TEST(TimeCorrection, Bounds) {
  for (const char* shape : {"n1h1w1c1k1", "n64h512w512c4096k4096r7s7ph3pw3", "n1h8w8c8k8r1s1"}) {
    for (const double us : {1e-3, 7.0, 1e9}) {
      for (const double cycles : {0.0, 1.0, 1e12}) {
        const ModelledTime time{.us = us,
                                .compute_us = us / 2,
                                .memory_us = cycles,
                                .main_cycles = cycles,
                                .l2_bytes = cycles};
        const double corrected =
            corrected_us(CorrectedKernel::fprop, time, geometry(shape), EpilogueKind{});
        EXPECT_GE(corrected, 0.6 * us) << shape;
        EXPECT_LE(corrected, 1.65 * us) << shape;
      }
    }
  }
}

// Of the layers in a file of convoy_measure_kernels, the time of the kernel that the model chooses
// over the fastest one's.
template <typename Estimate>
double mean_regret(const Estimate& estimate, int* layers) {
  std::map<std::string, const sm90::Instance*> instances;
  for (const sm90::Instance& instance : sm90::instances()) {
    instances[sm90::name_of(instance)] = &instance;
  }
  std::map<std::string, std::vector<cli::MeasuredTime>> times;
  for (const cli::MeasuredTime& time :
       cli::read_measured_times(CONVOY_SOURCE_DIR "/bench/results/h100/choice_kept.csv")) {
    times[time.layer()].push_back(time);
  }
  double sum = 0;
  *layers = 0;
  for (const auto& [layer, all] : times) {
    const ConvGeometry g = geometry(all.front().problem.c_str());
    const EpilogueKind epilogue = cli::parse_epilogue(all.front().epilogue);
    double best = std::numeric_limits<double>::max(), least = best, chosen = 0;
    for (const cli::MeasuredTime& time : all) {
      const auto found = instances.find(time.kernel);
      if (found == instances.end()) continue;  // A build of fewer types.
      const sm90::Tiling tiling = sm90::plan_tiling(*found->second, g,
                                                    {.packed_filter = true,
                                                     .multiprocessors = 132,
                                                     .splits = std::max(time.splits, 1),
                                                     .prologue = {},
                                                     .statistics_groups = 0});
      const double us = estimate(g, tiling, epilogue);
      best = std::min(best, time.us);
      if (us < least) {
        least = us;
        chosen = time.us;
      }
    }
    if (chosen == 0) continue;
    sum += chosen / best;
    ++*layers;
  }
  return sum / *layers;
}

TEST(TimeCorrection, LayersKeptAside) {
  DeviceInfo h100;
  h100.compute_capability = 90;
  h100.memory_gbs = 3352;
  const sm90::ModelConstants constants = sm90::constants_of(h100);
  int layers = 0;
  const double alone = mean_regret(
      [&](const ConvGeometry& g, const sm90::Tiling& tiling, const EpilogueKind& epilogue) {
        return sm90::model_time(g, tiling, 132, epilogue, constants).us;
      },
      &layers);
  const double corrected = mean_regret(
      [&](const ConvGeometry& g, const sm90::Tiling& tiling, const EpilogueKind& epilogue) {
        return sm90::estimate_us(g, tiling, 132, epilogue, constants);
      },
      &layers);
  EXPECT_GT(layers, 100);
  EXPECT_LT(corrected, 1.02);
  EXPECT_LT(corrected - 1, 0.6 * (alone - 1)) << "the model alone: " << alone;
}

}  // namespace
}  // namespace convoy
