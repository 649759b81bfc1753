// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "convoy/types.hpp"

namespace convoy::cli {

/// One thing to time: a way to enqueue the work once.
struct Variant {
  std::string name;
  std::function<void(cudaStream_t)> enqueue;
};

struct MeasureOptions {
  Device device = Device::cpu;
  double seconds = 0.5;  ///< Runs are added until a variant has been timed this long ...
  int min_runs = 5;      ///< ... but at least this many, ...
  int max_runs = 10000;  ///< ... and at most this many.
  bool flush_l2 = true;  ///< CUDA: overwrite the L2 cache before every run.
};

struct Measurement {
  int runs = 0;
  double median_us = 0;
  double min_us = 0;
  /// Half the distance between the quartiles, relative to the median.
  double noise = 0;
};

/// Median, minimum and noise of times in microseconds.
Measurement summarise(std::vector<double> times_us);

/// Times a single run, without warm-up.
Measurement measure_once(const Variant& variant, Device device);

/// Times the variants interleaved (one run of each in turn, so that clocks and temperature are the
/// same for all), after a warm-up run each. CUDA events on the GPU, the steady clock on the CPU.
std::vector<Measurement> measure(std::span<const Variant> variants, const MeasureOptions& options);

}  // namespace convoy::cli
