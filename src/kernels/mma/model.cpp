// SPDX-License-Identifier: Apache-2.0
#include "kernels/mma/model.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/common/mma_rate.hpp"

namespace convoy::mma {
namespace {

// Blocks that share a multiprocessor.
int resident_blocks(const Tiling& tiling, const DeviceInfo& device) {
  const Config& config = tiling.instance.config;
  constexpr std::int64_t kReserved = 1024;  // Of each block, by the system.
  const auto shared = static_cast<std::int64_t>(device.shared_memory) + kReserved;
  const std::int64_t fit = shared / (tiling.shared_bytes + kReserved);
  const int threads = device.compute_capability == 80 || device.compute_capability == 90 ||
                              device.compute_capability / 10 == 10
                          ? 2048
                          : 1536;
  return static_cast<int>(
      std::clamp<std::int64_t>(fit, 1, std::min(config.ctas_per_sm(), threads / config.threads())));
}

// Whether the device has implicit GEMMs of its own for the problem. NOTE: their model, corrected by
// measured times, errs by less than this one; with less of a handicap dispatch takes this kernel
// for small layers, of which 62 measured on an H200 had 2 where it was the fastest.
constexpr double kBehindRivals = 1.65;
bool has_rival(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  const int capability = request.device.compute_capability;
  if (g.groups == 1) return capability == 90 || capability / 10 == 10;
  const std::int64_t channels = g.group_channels();
  return capability == 90 && channels >= 24 && channels % 8 == 0 && g.group_filters() % 8 == 0;
}

// Whether the instance has a kernel for the epilogue alone.
bool is_linear(const Tiling& tiling, const PlanRequest& request) {
  return tiling.kernel(Epilogues::linear) != nullptr && !request.epilogue.residual &&
         request.output_dtype == request.dtype && tiling.params.phases.divisor == 1 &&
         request.geometry.group_filters() % 8 == 0 && mma::is_linear(request.epilogue.activation);
}

// What groups of few channels take longer: a copy brings 16 to 48 bytes of the 128 that a cache
// line has, and the same line comes again with the next group. By 1,370 times of an H200
// (docs/lab/2026-11-29-choice.md).
double narrow_groups(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  const std::int64_t bytes = g.group_channels() * static_cast<std::int64_t>(size_of(request.dtype));
  if (g.groups == 1 || bytes > 48) return 1.0;
  return bytes <= 32 ? 1.5 : 1.2;
}

bool is_curved(Activation activation) {
  return activation != Activation::none && activation != Activation::relu &&
         activation != Activation::leaky_relu;
}

}  // namespace

ModelConstants constants_of(const DeviceInfo& device) {
  ModelConstants k;
  k.memory_bytes_per_us *= memory_share(device);
  k.split_bytes_per_us *= memory_share(device);
  const MmaRate rate = mma_rate(device);
  k.macs_per_cycle = rate.macs_per_cycle;
  k.cycles_per_us = rate.cycles_per_us;
  k.bare_macs_per_cycle = rate.bare_macs_per_cycle;
  return k;
}

double estimate_us(const Tiling& tiling, const PlanRequest& request) {
  return estimate_us(tiling, request, constants_of(request.device));
}

double estimate_us(const Tiling& tiling, const PlanRequest& request, const ModelConstants& k) {
  const Config& config = tiling.instance.config;
  const Params& p = tiling.params;
  const ConvGeometry& g = request.geometry;

  // A step of one block. NOTE: TF32 has half the rate, and half the elements in a step.
  const double products = config.block_m * config.block_n * 64.0;
  const double mma =
      config.split ? 3 * products / k.bare_macs_per_cycle : products / k.macs_per_cycle;
  const double copies = (config.block_m + config.block_n) * config.row_copies() / 32.0;
  // Each warp reads its rows; fragments of fp32 are rounded as they are read.
  const double rows = (config.warp_m() + config.warp_n()) * config.threads() / 128.0;
  const double rounding = config.in == DType::fp32 && !config.split ? k.round_cycles * rows : 0.0;
  const double taps = double(config.row_copies()) / p.tap_copies.divisor;
  const double listing =
      tiling.walks ? 0.0 : k.tap_cycles * std::min(taps, 64.0) * config.block_m / 128.0;
  const double work = mma + rounding + k.fragment_cycles * rows + k.copy_cycles * copies + listing;
  // The last step may have fewer MMAs.
  constexpr double kMmas = 1.0 * kRowBytes / kStepBytes;  // Of a whole step.
  const double mma_steps = std::ceil(kMmas * p.reduction_copies / config.row_copies()) / kMmas;
  const double steps = tiling.splits == 1 ? mma_steps : p.steps_per_split;
  const double outputs = config.block_m * config.block_n / 128.0;
  const double store = outputs * (k.store_cycles + (config.split ? k.parts_store_cycles : 0.0) +
                                  (request.epilogue.residual ? k.residual_cycles : 0.0) +
                                  (is_curved(request.epilogue.activation) ? k.curved_cycles : 0.0));
  const int multiprocessors = std::max(1, request.device.multiprocessors);
  const int resident = resident_blocks(tiling, request.device);
  const Epilogues epilogues = is_linear(tiling, request) ? Epilogues::linear : Epilogues::others;
  const bool turns =
      !config.is_alone() && takes_turns(tiling, epilogues, resident * multiprocessors);
  // Blocks that run side by side on one multiprocessor.
  const auto together = [&](double blocks) {
    double step = std::max({blocks * work, k.step_cycles + k.alone_share * work,
                            k.latency_cycles / (config.stages - 1)});
    if (config.is_alone() && !config.split) {
      step *= p.taps_first ? k.taps_first_share : k.persistent_share;
    }
    return (turns ? k.turn_cycles : k.block_cycles) + steps * step + blocks * store;
  };

  const double blocks = double(p.tiles) * tiling.splits / multiprocessors;
  const double full = std::floor(blocks / resident);
  const double rest = std::ceil(blocks - full * resident);
  double cycles = full * together(resident) + (rest > 0 ? together(rest) : 0.0);
  if (full >= 3 && !turns) {  // Blocks follow each other, round or not.
    cycles = std::max(blocks / resident * together(resident), 0.9 * cycles);
  }
  if (turns) cycles += k.block_cycles - k.turn_cycles;

  const double compute_us = cycles / k.cycles_per_us;
  const double memory_us = min_bytes(request) / k.memory_bytes_per_us;
  const double split_us =
      tiling.splits == 1
          ? 0.0
          : k.split_us + 8.0 * tiling.splits * double(g.output_elements()) / k.split_bytes_per_us;
  const double us =
      k.launch_us + (config.split ? k.parts_launch_us : 0.0) + split_us +
      (epilogues == Epilogues::linear ? 0.0 : k.cold_us) +
      std::pow(std::pow(compute_us, k.overlap_power) + std::pow(memory_us, k.overlap_power),
               1 / k.overlap_power);
  // Operands in parts have none but where TF32 would do.
  const bool rivalled = has_rival(request) && (!config.split || request.allow_tf32);
  return us * narrow_groups(request) * (rivalled ? kBehindRivals : 1.0);
}

Tiling fastest_tiling(const Instance& instance, const PlanRequest& request) {
  Tiling best;
  double best_us = 0;
  for (const int splits : kSplits) {
    Tiling tiling = plan_tiling(instance, request.geometry, request.packed_filter, splits);
    if (tiling.splits != splits) continue;
    const double us = estimate_us(tiling, request);
    if (splits == 1 || us < best_us) {
      best = tiling;
      best_us = us;
    }
  }
  return best;
}

}  // namespace convoy::mma
