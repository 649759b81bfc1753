// SPDX-License-Identifier: Apache-2.0
#include "kernels/small/general.cuh"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/checked.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/mma_rate.hpp"
#include "kernels/small/candidates.hpp"

namespace convoy::small {
namespace {

// Without padding and dilation along the width, the S taps of a row are one run of S·C elements:
// the convolution is one of S·C channels and S = 1 whose pixels overlap or, as in a patch
// embedding (stride = S), abut.
void fold_width_into_channels(const ConvGeometry& g, DeviceGeometry& d) {
  const bool foldable = g.filter[2] > 1 && g.pad_begin[2] == 0 && g.pad_end[2] == 0 &&
                        g.dilation[2] == 1 && g.upsample == 1 && g.groups == 1 &&
                        g.filter[2] * g.in_channels <= std::numeric_limits<int>::max();
  if (!foldable) return;
  d.channels = static_cast<int>(g.filter[2] * g.in_channels);
  d.pixel_pitch = g.stride[2] * g.in_channels;
  d.filter[2] = 1;
  d.stride[2] = 1;
  d.seen[2] = d.in[2] = d.out[2];
}

int gather_width(const DeviceGeometry& d, std::initializer_list<int> widths) {
  for (int width : widths) {
    if (d.channels % width == 0 && d.pixel_pitch % width == 0 && d.row_pitch % width == 0) {
      return width;
    }
  }
  return 1;
}

class GeneralPlan final : public CudaPlan {
 public:
  explicit GeneralPlan(const PlanRequest& request) : CudaPlan(request) {
    const ConvGeometry& g = request.geometry;
    geometry_ = trimmed_device_geometry(g);
    fold_width_into_channels(g, geometry_);
    fma_ = request.dtype == DType::fp32;
    vector_ = fma_ ? gather_width(geometry_, {4}) : gather_width(geometry_, {8, 2});
    const std::int64_t block_m = fma_ ? GeneralFmaTile::BLOCK_M : GeneralMmaTile::BLOCK_M;
    filter_tiles_ = ceil_div(g.group_filters(), kGeneralFilters);
    tiles_ = ceil_div(g.gemm_m(), block_m) * g.groups * filter_tiles_;
    kernel_ = choose_kernel(request.dtype);
    shared_bytes_ = fma_ ? 0 : GeneralMmaTile::kSharedBytes;
    raise_shared_memory_limit(kernel_, shared_bytes_, "general");
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    const GeneralArguments arguments{
        .activation = pointers.activation,
        .cache = pointers.cache,
        .filter = pointers.filter,
        .geometry = geometry_,
        .output = conv_output(pointers, request_.output_dtype, g.out_channels, g.group_filters()),
        .filter_tiles = filter_tiles_,
        .tiles = tiles_};
    const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(tiles_, 1 << 20));
    launch_kernel(kernel_,
                  {.name = "general",
                   .grid = blocks,
                   .block = kGeneralThreads,
                   .shared_bytes = static_cast<std::size_t>(shared_bytes_),
                   .stream = stream},
                  arguments);
    store_next_cache(pointers, stream);
  }

 private:
  using Kernel = void(GeneralArguments);

  Kernel* choose_kernel(DType dtype) const {
    if (dtype == DType::fp32) return vector_ == 4 ? general_fma_kernel<4> : general_fma_kernel<1>;
    return dtype == DType::bf16 ? choose_mma_kernel<__nv_bfloat16>() : choose_mma_kernel<__half>();
  }
  template <typename Element>
  Kernel* choose_mma_kernel() const {
    if (vector_ == 8) return general_mma_kernel<Element, 8>;
    if (vector_ == 2) return general_mma_kernel<Element, 2>;
    return general_mma_kernel<Element, 1>;
  }

  DeviceGeometry geometry_;
  Kernel* kernel_ = nullptr;
  int vector_ = 1;
  int shared_bytes_ = 0;
  bool fma_ = false;
  std::int64_t filter_tiles_ = 0;
  std::int64_t tiles_ = 0;
};

// Model time of the tensor-core version, fitted to 892 layers on an H200 (docs/kernels-small.md):
// rounds of tiles, two of which share a multiprocessor, each with its steps of 32 along the
// reduction and what it begins and ends with.
double mma_estimate_us(const PlanRequest& request) {
  constexpr double kLaunchUs = 5.2;
  constexpr double kAloneStepUs = 0.454;   // Of a tile that has its multiprocessor to itself,
  constexpr double kSharedStepUs = 0.688;  // and of two that share one.
  constexpr double kNewTap = 1.24;         // Added to a step that begins at another tap.
  constexpr double kPairs = 2.6, kElements = 14.8;   // Times a step, gathered by 2 and by 1.
  constexpr double kTileUs = 5.7, kFiltersUs = 5.5;  // Per round; the latter with all filters.
  constexpr double kBytesPerUs = 2e6;

  const ConvGeometry& g = request.geometry;
  DeviceGeometry d = trimmed_device_geometry(g);
  fold_width_into_channels(g, d);
  const int width = gather_width(d, {8, 2});
  const double processors = std::max(1, request.device.multiprocessors);
  const auto tiles = static_cast<double>(ceil_div(g.gemm_m(), GeneralMmaTile::BLOCK_M) * g.groups *
                                         ceil_div(g.group_filters(), kGeneralFilters));
  const auto steps = static_cast<double>(ceil_div(d.reduction, GeneralMmaTile::BLOCK_K));

  const double full = std::floor(tiles / (2 * processors));
  const double rest = tiles - full * 2 * processors;
  double rounds = full + (rest > 0 ? 1 : 0);
  double step_us = full * kSharedStepUs + (rest == 0            ? 0
                                           : rest <= processors ? kAloneStepUs
                                                                : kSharedStepUs);
  if (full > 2) {  // Blocks follow each other, round or not.
    rounds = tiles / (2 * processors);
    step_us = rounds * kSharedStepUs;
  }
  step_us *= width == 8 ? 1.0 : width == 2 ? kPairs : kElements;
  step_us /= mma_share(request.device);
  step_us *= 1 + kNewTap * std::min(1.0, double(GeneralMmaTile::BLOCK_K) / d.channels);
  const double filters = std::min(1.0, double(g.group_filters()) / kGeneralFilters);
  return kLaunchUs + std::max(step_us * steps + rounds * (kTileUs + filters * kFiltersUs),
                              min_bytes(request) / (kBytesPerUs * memory_share(request.device)));
}

// Model time of the FMA version, fitted to 160 layers on an H200: what bounds it is waiting, so a
// step takes longer the more tiles share a multiprocessor, but less than as many times as long.
double fma_estimate_us(const PlanRequest& request) {
  constexpr double kLaunchUs = 5.5;
  constexpr double kStepUs = 1.5, kSharedStepUs = 0.35;  // Of a round, and for each tile of it.
  constexpr double kElements = 2.2;                      // Times a step, gathered one by one.
  constexpr double kTileUs = 1.2;
  constexpr double kBytesPerUs = 2e6;
  constexpr double kTilesAtOnce = 3;  // Of a multiprocessor.

  const ConvGeometry& g = request.geometry;
  DeviceGeometry d = trimmed_device_geometry(g);
  fold_width_into_channels(g, d);
  const double processors = std::max(1, request.device.multiprocessors);
  const auto tiles = static_cast<double>(ceil_div(g.gemm_m(), GeneralFmaTile::BLOCK_M) * g.groups *
                                         ceil_div(g.group_filters(), kGeneralFilters));
  const double steps = static_cast<double>(ceil_div(d.reduction, GeneralFmaTile::BLOCK_K)) *
                       (gather_width(d, {4}) == 4 ? 1.0 : kElements);
  // A round in which each multiprocessor has so many tiles.
  const auto round_us = [&](double shared) {
    return shared == 0 ? 0.0 : (kStepUs + kSharedStepUs * shared) * steps + kTileUs * shared;
  };
  const double full = tiles / (kTilesAtOnce * processors);
  const double rest = std::ceil((full - std::floor(full)) * kTilesAtOnce);
  // Blocks follow each other, round or not, where there are many.
  const double us = full > 2 ? full * round_us(kTilesAtOnce)
                             : std::floor(full) * round_us(kTilesAtOnce) + round_us(rest);
  return kLaunchUs +
         std::max(us, min_bytes(request) / (kBytesPerUs * memory_share(request.device)));
}

class GeneralCandidate final : public KernelCandidate {
 public:
  std::string name() const override { return "general"; }
  Device device() const override { return Device::cuda; }
  bool packs_as_dense(const PlanRequest&) const override { return true; }

  Judgement judge(const PlanRequest& request) const override {
    const ConvGeometry& g = request.geometry;
    const std::string reason = device_geometry_refusal(g);
    if (!reason.empty()) return reason;

    return request.dtype == DType::fp32 ? fma_estimate_us(request) : mma_estimate_us(request);
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<GeneralPlan>(request);
  }
};

}  // namespace

std::unique_ptr<KernelCandidate> make_general_candidate() {
  return std::make_unique<GeneralCandidate>();
}

}  // namespace convoy::small
