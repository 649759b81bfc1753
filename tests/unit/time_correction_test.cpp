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
        for (const DType dtype : {DType::bf16, DType::fp32}) {
          const double corrected =
              corrected_us(CorrectedKernel::fprop, time, geometry(shape), EpilogueKind{}, dtype);
          EXPECT_GE(corrected, 0.6 * us) << shape;
          EXPECT_LE(corrected, 1.65 * us) << shape;
        }
      }
    }
  }
}

// Of the layers in a file of convoy_measure_kernels, the time of the tile that the model chooses
// over the fastest one's.
template <typename Estimate>
double mean_regret(const std::string& file, const Estimate& estimate, int* layers) {
  std::map<std::string, const sm90::Instance*> instances;
  for (const sm90::Instance& instance : sm90::instances()) {
    instances[sm90::name_of(instance)] = &instance;
  }
  std::map<std::string, std::vector<cli::MeasuredTime>> times;
  for (const cli::MeasuredTime& time :
       cli::read_measured_times(CONVOY_SOURCE_DIR "/bench/results/" + file)) {
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
      // A tile that holds fewer channels than when it was timed.
      if (!sm90::refusal(*found->second, g, true).empty()) continue;
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

// Judges the correction on times of a GPU with so much memory bandwidth.
void expect_better(const std::string& file, double memory_gbs) {
  DeviceInfo device;
  device.compute_capability = 90;
  device.memory_gbs = memory_gbs;
  const sm90::ModelConstants constants = sm90::constants_of(device);
  int layers = 0;
  const double alone = mean_regret(
      file,
      [&](const ConvGeometry& g, const sm90::Tiling& tiling, const EpilogueKind& epilogue) {
        return sm90::model_time(g, tiling, 132, epilogue, constants).us;
      },
      &layers);
  const double corrected = mean_regret(
      file,
      [&](const ConvGeometry& g, const sm90::Tiling& tiling, const EpilogueKind& epilogue) {
        return sm90::estimate_us(g, tiling, 132, epilogue, constants);
      },
      &layers);
  EXPECT_GT(layers, 100);
  EXPECT_LT(corrected, 1.02);
  EXPECT_LT(corrected - 1, 0.6 * (alone - 1)) << "the model alone: " << alone;
}

TEST(TimeCorrection, LayersKeptAside) {
  expect_better("h100/choice_kept.csv", 3352);
}

TEST(TimeCorrection, Tf32OfLayersThatNothingHasSeen) {
  expect_better("h200/choice_tf32_38500.csv", 4814);
  expect_better("h100/choice_tf32_38500.csv", 3352);
}

}  // namespace
}  // namespace convoy
