// SPDX-License-Identifier: Apache-2.0
//
// What the Blackwell kernels' time model predicts for shape files, layer by layer and in all: the
// fastest kernel, the fastest without halo and resident filters, and the chip's floor (the larger
// of FLOP at 2.25 PFLOP/s and bytes at 8 TB/s). Asks no device.
//
//   sm100_predict [--layers] FILE...
//
// Or for matrix products, layers of 1x1 filters, beside the times that others published of cuBLAS:
//
//   sm100_predict --gemms bench/sm100/published_gemms.csv
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "convoy/error.hpp"
#include "kernels/common/implicit_gemm.hpp"
#include "kernels/sm100/host.hpp"
#include "kernels/sm100/model.hpp"
#include "shape_file.hpp"

namespace convoy {
namespace {

constexpr int kMultiprocessors = 148;
// Beside the tensor cores, as in ModelConstants::power_macs_per_us.
constexpr double kOtherWatts = 200.0;
constexpr double kFlopPerUs = 2.25e9, kBytesPerUs = 8e6;

struct Prediction {
  std::string name = "-";
  double us = 0.0, low = 0.0, high = 0.0;
};

// At both ends of the constants' ranges.
sm100::ModelConstants constants(bool fast, double power) {
  sm100::ModelConstants k;
  k.cycles_per_us = fast ? 1965.0 : 1580.0;
  k.power_macs_per_us = power * (fast ? 1763e6 / 2 : 1420e6 / 2);
  k.run_bytes_per_us = k.other_bytes_per_us = fast ? 81.0 * 1965.0 : 55.0 * 1700.0;
  k.launch_us = fast ? 0.9 : 2.2;
  k.crowd_us = fast ? 0.0 : 1.35;
  k.split_tile_cycles = fast ? 0.0 : 1782.0;
  k.cluster_tile_cycles = fast ? 0.0 : 324.0;
  k.atom_power = fast ? 20.0 : 4.4;
  k.refill_cycles = fast ? 1000.0 : 2418.0;
  k.step_cycles = fast ? 100.0 : 250.0;
  k.memory_bytes_per_us = (fast ? 0.93 : 0.85) * 7.67e6;
  k.overlap_power = fast ? 20.0 : 1.3;
  return k;
}

// `power`: multiply-adds that the card's power permits, as a share of those at 1,000 W.
Prediction predict(const ConvGeometry& g, DType dtype, bool runs_only, double power = 1.0) {
  Prediction best;
  sm100::ModelConstants typical;
  typical.power_macs_per_us *= power;
  for (const sm100::Instance& instance : sm100::instances()) {
    const sm100::Config& config = instance.config;
    if (config.act_dtype != dtype || config.out_dtype != dtype) continue;
    if (config.normalises()) continue;
    if (runs_only && config.input != sm100::Input::runs) continue;
    if (!sm100::refusal(instance, g, g.upsample == 2).empty()) continue;
    const double us = sm100::estimate_us(instance, g, kMultiprocessors, {}, {}, typical);
    if (best.us > 0.0 && us >= best.us) continue;
    best.us = us;
    best.name = name_of(instance);
    best.low = sm100::estimate_us(instance, g, kMultiprocessors, {}, {}, constants(true, power));
    best.high = sm100::estimate_us(instance, g, kMultiprocessors, {}, {}, constants(false, power));
  }
  return best;
}

double floor_us(const ConvGeometry& g) {
  // A folded upsampling multiplies 4 of 9 taps; depths that meet only padding are skipped.
  const double folded =
      g.upsample == 2 ? 4.0 / 9.0 : implicit_gemm::depths_met(g) / double(g.filter[0]);
  const double flop =
      2.0 * double(g.gemm_m()) * double(g.out_channels) * double(g.taps() * g.in_channels) * folded;
  const double bytes =
      2.0 * double(g.activation_elements() + g.filter_elements() + g.output_elements());
  return std::max(flop / kFlopPerUs, bytes / kBytesPerUs);
}

void print_file(const std::string& path, bool layers) {
  double sum = 0, low = 0, high = 0, runs = 0, floor = 0;
  int left_out = 0;
  for (const cli::ShapeCase& shape : cli::read_shape_file(path)) {
    const ConvGeometry g = geometry_of(shape.problem);
    const Prediction best = predict(g, DType::bf16, false), before = predict(g, DType::bf16, true);
    if (best.us == 0.0) {
      ++left_out;
      continue;
    }
    const double count = double(shape.count), least = floor_us(g);
    if (layers) {
      std::printf("| `%s` | %.1f | %.1f | %.1f | %.1f – %.1f | `%s` |\n",
                  to_string(shape.problem).c_str(), least, before.us, best.us, best.low, best.high,
                  best.name.c_str());
    }
    sum += count * best.us;
    low += count * best.low;
    high += count * best.high;
    runs += count * before.us;
    floor += count * least;
  }
  std::printf("| %s | %.2f | %.2f | %.2f | %.2f – %.2f | %d shapes left out |\n", path.c_str(),
              floor / 1e3, runs / 1e3, sum / 1e3, low / 1e3, high / 1e3, left_out);
}

// M x N x K as a layer of M pixels, K channels, N filters.
void print_gemms(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line) || line != "m,n,k,us,watts,source") {
    throw Error(Status::io_error, path + ": not a file of columns m,n,k,us,watts,source");
  }
  std::printf("| M, N, K | W | published, us | predicted | range | by | kernel | source |\n");
  while (std::getline(file, line)) {
    long long m = 0, n = 0, k = 0;
    double us = 0, watts = 0;
    int end = 0;
    if (std::sscanf(line.c_str(), "%lld,%lld,%lld,%lf,%lf,%n", &m, &n, &k, &us, &watts, &end) !=
        5) {
      throw Error(Status::io_error, path + ": not m,n,k,us,watts,source: " + line);
    }
    const Conv2dProblemShape shape{
        .in_height = m / 64, .in_width = 64, .in_channels = k, .out_channels = n};
    const Prediction best = predict(geometry_of(shape), DType::bf16, false,
                                    (watts - kOtherWatts) / (1000.0 - kOtherWatts));
    std::printf("| %lld, %lld, %lld | %.0f | %.1f | %.1f | %.1f - %.1f | %+.0f %% | `%s` | %s |\n",
                m, n, k, watts, us, best.us, best.low, best.high, 100 * (best.us / us - 1),
                best.name.c_str(), line.c_str() + end);
  }
}

}  // namespace
}  // namespace convoy

int main(int argc, char** argv) {
  bool layers = false;
  try {
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], "--layers") == 0) {
        layers = true;
      } else if (std::strcmp(argv[i], "--gemms") == 0 && i + 1 < argc) {
        convoy::print_gemms(argv[++i]);
      } else {
        convoy::print_file(argv[i], layers);
      }
    }
  } catch (const convoy::Error& error) {
    std::fprintf(stderr, "sm100_predict: %s\n", error.what());
    return 2;
  }
  return 0;
}
