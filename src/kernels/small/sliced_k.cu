// SPDX-License-Identifier: Apache-2.0
#include "kernels/small/sliced_k.cuh"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/device_geometry.cuh"
#include "kernels/common/requirements.hpp"
#include "kernels/common/time_correction.hpp"
#include "kernels/small/candidates.hpp"
#include "kernels/small/unit_axes.hpp"

namespace convoy::small {
namespace {

// Tiles, and blocks of a cluster. Measured too: 32 × 64 (rarely the best, 0.1 % in the mean) and
// clusters of two (docs/lab/2026-11-27-sliced-k.md).
constexpr SlicedTile kTiles[] = {{1, 1, false}, {1, 2, false}, {2, 1, false}, {2, 2, false}};
constexpr int kClusters[] = {1, 4, 8};

/// A kernel as dispatch sees it.
struct SlicedForm {
  SlicedTile tile;
  int blocks;  ///< Of a cluster.
};

/// How a problem is cut.
struct SlicedTiling {
  SlicedTile tile;
  int blocks;
  std::int64_t pieces;            ///< Of the reduction.
  std::int64_t pieces_per_block;  ///< A multiple of a turn's.
  std::int64_t pixel_tiles, filter_tiles;

  std::int64_t grid_blocks() const { return pixel_tiles * filter_tiles * blocks; }
};

SlicedTiling tiling_of(const SlicedForm& form, const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  SlicedTiling tiling{.tile = form.tile, .blocks = form.blocks};
  tiling.tile.taps = !pointwise_shape_refusal(g).empty();
  tiling.pieces = g.gemm_k() * static_cast<std::int64_t>(size_of(request.dtype)) / kPieceBytes;
  tiling.pieces_per_block =
      ceil_div(ceil_div(tiling.pieces, std::int64_t{kTurnPieces}), form.blocks) * kTurnPieces;
  tiling.pixel_tiles = ceil_div(g.gemm_m(), std::int64_t{form.tile.pixels} * 16);
  tiling.filter_tiles = ceil_div(g.out_channels, std::int64_t{form.tile.filters} * 16);
  return tiling;
}

// Model time, fitted to 810 layers on an H200 and an H100, of which 810 others judge it: within
// 2.8 % in the median where the kernel is near its best (docs/lab/2026-11-27-sliced-k.md).
double estimate_us(const SlicedTiling& tiling, const PlanRequest& request) {
  constexpr double kLaunchUs = 5.45, kUnitUs = 0.07, kTapsUs = 0.4, kClusterUs = 0.37;
  constexpr double kRoundUs = 0.8;           // After the first: a way to memory.
  constexpr double kIntakeBytesUs = 11.6e6;  // Of all multiprocessors, from L2.
  constexpr double kTapTurnUs = 0.0021;      // Where a turn's pixels lie under its tap.
  constexpr double kOverlap = 2.33;
  constexpr double kMemoryBytesUs = 4.5e6;
  constexpr double kBlockUnitUs = 0.031;  // To sum and store, of a multiprocessor's blocks.
  constexpr double kWaveUs = 0.73, kWaveRoundUs = 0.43;  // Of blocks that wait for others.
  constexpr double kClustersResident = 0.68;             // Of the places that blocks have.
  constexpr double kActivationUs = 0.05, kResidualUs = 0.48, kAnyEpilogueUs = 0.89;
  // NOTE: the others' models were fitted to times with code that comes cold. Where it is in the
  // caches they gain half a microsecond more than this kernel, whose code is short.
  constexpr double kDoubt = 1.02, kShortCodeUs = 0.4;

  const SlicedTile& tile = tiling.tile;
  const int processors = std::max(1, request.device.multiprocessors);
  const double units = tile.pixels * tile.filters;
  const double turns = double(tiling.pieces_per_block) / kTurnPieces;
  const double rounds = std::ceil(turns / (kSlicedWarps * tile.turns()));
  const auto blocks = static_cast<double>(tiling.grid_blocks());
  const double of_one = std::max(1.0, blocks / processors);  // Of a multiprocessor.
  // By their registers.
  const int resident = units == 1 ? 7 : tile.taps ? 4 : 5;
  const double places = processors * resident * (tiling.blocks > 1 ? kClustersResident : 1.0);
  const double waiting = std::max(0.0, blocks / places - 1.0);

  const double bytes = turns * kTurnPieces * kPieceBytes * 16 * (tile.pixels + tile.filters);
  const double intake_us = blocks * bytes / (kIntakeBytesUs * processors / 132) +
                           (tile.taps ? kTapTurnUs * of_one * turns * tile.pixels : 0.0);
  const double rounds_us = (rounds - 1) * kRoundUs;
  const EpilogueKind& epilogue = request.epilogue;
  const bool is_short_one = is_short(epilogue, request.output_dtype) &&
                            request.output_dtype == request.dtype &&
                            request.geometry.out_channels % 4 == 0;
  return kShortCodeUs +
         kDoubt * (kLaunchUs + kUnitUs * units + (tile.taps ? kTapsUs : 0.0) +
                   (tiling.blocks > 1 ? kClusterUs : 0.0) +
                   std::pow(std::pow(intake_us, kOverlap) + std::pow(rounds_us, kOverlap),
                            1 / kOverlap) +
                   min_bytes(request) / (kMemoryBytesUs * memory_share(request.device)) +
                   kBlockUnitUs * units * std::ceil(of_one) +
                   (kWaveUs + kWaveRoundUs * rounds) * waiting +
                   (epilogue.activation == Activation::none ? 0.0 : kActivationUs) +
                   (epilogue.residual ? kResidualUs : 0.0) + (is_short_one ? 0.0 : kAnyEpilogueUs));
}

class SlicedPlan final : public CudaPlan {
 public:
  SlicedPlan(const PlanRequest& request, const SlicedForm& form)
      : CudaPlan(request), tiling_(tiling_of(form, request)), kernel_(choose_kernel()) {
    const ConvGeometry& g = request.geometry;
    arguments_.pixels = static_cast<int>(g.gemm_m());
    arguments_.filters = static_cast<int>(g.out_channels);
    arguments_.pieces = static_cast<int>(tiling_.pieces);
    arguments_.pieces_per_block = static_cast<int>(tiling_.pieces_per_block);
    arguments_.tap_pieces = FastDivide(tiling_.pieces / g.taps());
    arguments_.tap_rows = FastDivide(g.filter[1]);
    arguments_.tap_columns = FastDivide(g.filter[2]);
    for (int axis = 0; axis < 3; ++axis) {
      arguments_.out[axis] = FastDivide(g.out[axis]);
      arguments_.in[axis] = static_cast<int>(g.in[axis]);
      arguments_.stride[axis] = static_cast<int>(g.stride[axis]);
      arguments_.pad[axis] = static_cast<int>(g.pad_begin[axis]);
      arguments_.dilation[axis] = static_cast<int>(g.dilation[axis]);
    }
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const std::int64_t filters = request_.geometry.out_channels;
    SlicedArguments arguments = arguments_;
    arguments.activation = pointers.activation;
    arguments.filter = pointers.filter;
    arguments.output = conv_output(pointers, request_.output_dtype, filters, filters);
    arguments.is_short = request_.output_dtype == request_.dtype && filters % 4 == 0 &&
                         is_short(arguments.output.epilogue, request_.output_dtype);
    const auto blocks = static_cast<unsigned>(tiling_.blocks);
    launch_kernel(kernel_,
                  {.name = "sliced_k",
                   .grid = dim3(static_cast<unsigned>(tiling_.pixel_tiles),
                                static_cast<unsigned>(tiling_.filter_tiles), blocks),
                   .block = kSlicedThreads,
                   .stream = stream,
                   .overlapped = true,
                   .cluster = blocks > 1 ? dim3(1, 1, blocks) : dim3(0, 0, 0)},
                  arguments);
    store_next_cache(pointers, stream);
  }

  bool multiplies_tf32() const override { return request_.dtype == DType::fp32; }

 private:
  using Kernel = void(SlicedArguments);

  Kernel* choose_kernel() const {
    Kernel* chosen = nullptr;
    const SlicedTile& tile = tiling_.tile;
    dispatch_element(request_.dtype, [&]<typename Element>() {
      const auto choose = [&]<int kPixels, int kFilters>() {
        if (tile.pixels != kPixels || tile.filters != kFilters) return;
        chosen = tile.taps ? sliced_k_kernel<Element, kPixels, kFilters, true>
                           : sliced_k_kernel<Element, kPixels, kFilters, false>;
      };
      [&]<std::size_t... i>(std::index_sequence<i...>) {
        (choose.template operator()<kTiles[i].pixels, kTiles[i].filters>(), ...);
      }
      (std::make_index_sequence<std::size(kTiles)>());
    });
    return chosen;
  }

  SlicedTiling tiling_;
  Kernel* kernel_;
  SlicedArguments arguments_{};  ///< Without pointers.
};

class SlicedCandidate final : public KernelCandidate {
 public:
  explicit SlicedCandidate(const SlicedForm& form) : form_(form) {}

  std::string name() const override {
    const std::string tile =
        text("sliced_k_", form_.tile.pixels * 16, "x", form_.tile.filters * 16);
    return form_.blocks == 1 ? tile : text(tile, "_", form_.blocks, "cta");
  }
  Device device() const override { return Device::cuda; }
  bool packs_as_dense(const PlanRequest&) const override { return true; }

  Judgement judge(const PlanRequest& request) const override {
    const ConvGeometry& g = request.geometry;
    if (auto refused = require_capability_from(request.device, 90, "clusters")) return *refused;
    if (auto refused = require_tf32(request)) return *refused;
    if (auto refused = require_whole_operands(request)) return *refused;
    if (g.groups != 1) return text("groups = ", g.groups, "; legal: 1");
    const auto piece = static_cast<std::int64_t>(kPieceBytes / size_of(request.dtype));
    if (g.in_channels % piece != 0) {
      return text("in_channels = ", g.in_channels, "; legal: a multiple of ", piece,
                  "; nearest: ", ceil_div(g.in_channels, piece) * piece);
    }
    if (g.upsample != 1) return text("upsample = ", g.upsample, "; legal: 1");
    if (g.cached_frames != 0) return text("cached_frames = ", g.cached_frames, "; legal: 0");
    std::string reason = zero_padding_refusal(g);
    if (reason.empty()) reason = device_geometry_refusal(g);
    if (!reason.empty()) return reason;
    const SlicedTiling tiling = tiling_of(form_, request);
    reason = size_refusal(tiling, g);
    if (!reason.empty()) return reason;
    return corrected_us(CorrectedKernel::sliced_k,
                        {.us = estimate_us(tiling, request),
                         .block_m = 16.0 * form_.tile.pixels,
                         .block_n = 16.0 * form_.tile.filters,
                         .splits = 1.0 * form_.blocks},
                        request);
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<SlicedPlan>(request, form_);
  }

 private:
  // What the kernel counts in 32 bits, and a grid in 16.
  static std::string size_refusal(const SlicedTiling& tiling, const ConvGeometry& g) {
    constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
    constexpr std::int64_t kMostTiles = 65535;
    std::string reason;
    const auto limit = [&](const char* name, std::int64_t value, std::int64_t most) {
      if (value > most && reason.empty()) {
        reason = text(name, " = ", value, "; legal: at most ", most, "; nearest: ", most);
      }
    };
    // Past the last pixel and piece of a tile coordinates are made, and not used.
    limit("output pixels", g.gemm_m(), kMax - tiling.tile.pixels * 16);
    limit("input pixels", g.activation_elements() / g.in_channels, kMax);
    limit("elements of a filter", g.gemm_k(), kMax / 2);
    limit("out_channels", g.out_channels, kMostTiles * tiling.tile.filters * 16);
    return reason;
  }

  SlicedForm form_;
};

}  // namespace

void add_sliced_k_candidates(CandidateList& list) {
  for (const SlicedTile& tile : kTiles) {
    for (const int blocks : kClusters) {
      list.push_back(std::make_unique<SlicedCandidate>(SlicedForm{tile, blocks}));
    }
  }
}

}  // namespace convoy::small
