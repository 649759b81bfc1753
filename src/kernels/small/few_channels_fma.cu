// SPDX-License-Identifier: Apache-2.0
#include "kernels/small/few_channels_fma.cuh"

#include <algorithm>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "core/checked.hpp"
#include "kernels/common/mma_rate.hpp"
#include "kernels/small/candidates.hpp"
#include "kernels/small/patch_extents.hpp"
#include "kernels/small/patch_plan.hpp"

namespace convoy::small {
namespace {

constexpr std::int64_t kMaxFmaChannels = 64;
constexpr std::int64_t kMaxOutputRow = std::numeric_limits<int>::max();

// The layout of a launch and its model time, or why there is none.
struct FmaLayoutResult {
  FewChannelsFmaLayout layout;
  int threads = 0;
  double us = 0;
  std::string refusal;
};

// Filters of a strip: few that are none.
std::int64_t fma_strip(std::int64_t filters) {
  std::int64_t best = 32;
  const auto cost = [&](std::int64_t strip) { return ceil_div(filters, strip) * (strip + 4); };
  for (const std::int64_t strip : {16, 8}) {
    if (cost(strip) < cost(best)) best = strip;
  }
  return best;
}

// Model time of a layout, without the launch: the instructions of a thread for each of a block's
// tiles, and how they are issued. Fitted to 215 layers on an H200 (median error 5 %).
double fma_layout_us(const PlanRequest& request, const FewChannelsFmaLayout& l, int threads) {
  constexpr double kStripInstructions = 330;  // Of a strip, its store too,
  constexpr double kLongEpilogue = 774;       // more of a pixel,
  constexpr double kRunInstructions = 46, kElementInstructions = 12.5;  // and beside the FMAs.
  constexpr double kRowInstructions = 60, kCopyInstructions = 26;  // Of a patch row, and a copy.
  constexpr double kFilterInstructions = 35;                       // Of a filter's element.
  constexpr double kAlone = 2.2;    // Cycles of an instruction of a warp that is alone.
  constexpr double kIssued = 0.78;  // Of the cycles, with enough warps.

  const ConvGeometry& g = request.geometry;
  const double frames = static_cast<double>(depth_taps(g).count);
  const double runs = frames * static_cast<double>(g.filter[1]) * l.runs_of_row;
  const double warps = threads / 32.0;
  // Eight FMAs and a value of the patch for each pixel.
  const double run = kRunInstructions + l.thread_pixels +
                     l.run_elements * (l.thread_pixels * 9 + kElementInstructions);
  const bool is_short_epilogue = request.output_dtype == DType::fp32 && g.out_channels % 4 == 0 &&
                                 is_short(request.epilogue, DType::fp32);
  const double strip =
      runs * run + kStripInstructions + (is_short_epilogue ? 0.0 : l.thread_pixels * kLongEpilogue);
  const bool together = l.tile_rows == 1;  // All copy a row.
  const double copies =
      std::ceil(double(l.columns) * double(g.in_channels) / l.vector / (together ? threads : 32.0));
  const double rows = frames * l.rows / (together ? 1.0 : warps);
  const double tile = l.strips * strip + rows * (kRowInstructions + copies * kCopyInstructions);

  const double processors = std::max(1, request.device.multiprocessors);
  const double fitting = std::clamp(
      std::floor(double(request.device.shared_memory + 1024) / (l.shared_bytes() + 1024)), 1.0,
      std::min(24.0, std::floor((l.thread_pixels == 8 ? 384.0 : 768.0) / threads)));
  const double blocks = double(l.tiles) * l.filter_sets;
  const double sharing = std::min(fitting, std::ceil(blocks / processors));
  const double rounds = std::ceil(blocks / (fitting * processors));
  // NOTE: an A100 has half the FMA lanes.
  const double issue = request.device.compute_capability == 80 ? 2.0 : 4.0;
  const double cycles = std::max(kAlone, sharing * warps / (issue * kIssued));
  return (rounds * tile + l.filter_elements / double(threads) * kFilterInstructions) * cycles /
         mma_rate(request.device).cycles_per_us;
}

FmaLayoutResult fma_layout(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  const std::int64_t frames = depth_taps(g).count;
  const std::int64_t reduction = frames * g.filter[1] * g.filter[2] * g.in_channels;
  const std::int64_t strip = fma_strip(g.out_channels);
  const std::int64_t all_strips = ceil_div(g.out_channels, strip);
  const auto shared_memory = static_cast<std::int64_t>(request.device.shared_memory);
  const std::int64_t output_row = g.out[2] * g.out_channels;

  // The quickest of all whose patches and filters fit.
  FmaLayoutResult best;
  if (output_row > kMaxOutputRow) {
    best.refusal =
        text("elements of an output row = ", output_row, "; legal: at most ", kMaxOutputRow);
    return best;
  }
  std::int64_t least_bytes = std::numeric_limits<std::int64_t>::max();
  const auto try_layout = [&](std::int64_t threads, std::int64_t thread_pixels,
                              std::int64_t columns, std::int64_t sets) {
    const std::int64_t pixels = threads * thread_pixels * kFmaFilters / strip;
    FewChannelsFmaLayout l;
    static_cast<PatchLayout&>(l) =
        patch_layout(g, pixels / columns, columns, 4, g.in_channels % 4 == 0 ? 4 : 1);
    const std::int64_t strips = ceil_div(all_strips, sets);
    const std::int64_t filter_elements = reduction * strip * strips;
    const std::int64_t patch_elements = frames * l.rows * l.row_pitch;
    const std::int64_t bytes = (filter_elements + 2 * patch_elements) * 4;
    const std::int64_t rows = ceil_div(g.out[1], std::int64_t{l.tile_rows});
    const std::int64_t tiles = g.batch * g.out[0] * rows * ceil_div(g.out[2], columns);
    least_bytes = std::min(least_bytes, bytes);
    if (bytes > shared_memory || tiles > kMaxTiles) return;
    // Outputs are counted in 32 bits from the tile's first on.
    if (l.tile_rows * output_row > kMaxOutputRow) return;

    const bool by_tap = l.pixel_pitch != g.in_channels || g.dilation[2] != 1;
    l.thread_pixels = static_cast<int>(thread_pixels);
    l.strip = static_cast<int>(strip);
    l.strips = static_cast<int>(strips);
    l.filter_sets = static_cast<int>(ceil_div(all_strips, strips));
    l.columns_log2 = std::countr_zero(static_cast<std::uint64_t>(columns));
    l.runs_of_row = static_cast<int>(by_tap ? g.filter[2] : 1);
    l.run_elements = static_cast<int>(by_tap ? g.in_channels : g.filter[2] * g.in_channels);
    l.run_step = static_cast<int>(g.dilation[2] * l.pixel_pitch);
    l.filter_elements = static_cast<int>(filter_elements);
    l.patch_elements = static_cast<int>(patch_elements);
    l.walk = {FastDivide(ceil_div(g.out[2], columns)), FastDivide(rows), FastDivide(g.out[0])};
    l.tiles = static_cast<int>(tiles);
    const double us = fma_layout_us(request, l, static_cast<int>(threads));
    if (best.threads != 0 && us >= best.us) return;
    best.layout = l;
    best.threads = static_cast<int>(threads);
    best.us = us;
  };
  for (const std::int64_t thread_pixels : {8, 2}) {
    for (std::int64_t threads = kFmaMaxThreads; threads >= 32; threads /= 2) {
      const std::int64_t pixels = threads * thread_pixels * kFmaFilters / strip;
      for (std::int64_t columns = std::min<std::int64_t>(8, pixels); columns <= pixels;
           columns *= 2) {
        for (std::int64_t sets = 1;; sets *= 2) {
          try_layout(threads, thread_pixels, columns, std::min(sets, all_strips));
          if (sets >= all_strips) break;
        }
      }
    }
  }
  if (best.threads == 0) {
    best.refusal = text("input patches and filters of ", least_bytes, " bytes; legal: at most ",
                        shared_memory, " (shared memory), in at most ", kMaxTiles, " tiles");
  }
  return best;
}

class FewChannelsFmaPlan final : public PatchPlan<FewChannelsFmaArguments> {
 public:
  explicit FewChannelsFmaPlan(const PlanRequest& request)
      : FewChannelsFmaPlan(request, fma_layout(request)) {}

 private:
  FewChannelsFmaPlan(const PlanRequest& request, const FmaLayoutResult& result)
      : PatchPlan(request, "few_channels_fma", static_cast<unsigned>(result.threads)) {
    if (!result.refusal.empty()) throw Error(Status::unsupported, result.refusal);
    layout_ = result.layout;
    prepare(layout_.thread_pixels == 8 ? choose_kernel<8>() : choose_kernel<2>(),
            layout_.filter_sets);
  }

  template <int kPixels>
  Kernel* choose_kernel() const {
    switch (layout_.strip) {
      case 8:
        return few_channels_fma_kernel<1, kPixels>;
      case 16:
        return few_channels_fma_kernel<2, kPixels>;
      default:
        return few_channels_fma_kernel<4, kPixels>;
    }
  }
};

double few_channels_fma_us(const PlanRequest& request, const FmaLayoutResult& result) {
  constexpr double kLaunchUs = 5.83;
  constexpr double kBytesPerUs = 2.58e6;
  return kLaunchUs +
         std::max(result.us, min_bytes(request) / (kBytesPerUs * memory_share(request.device)));
}

class FewChannelsFmaCandidate final : public KernelCandidate {
 public:
  std::string name() const override { return "few_channels_fma"; }
  Device device() const override { return Device::cuda; }
  bool packs_as_dense(const PlanRequest&) const override { return true; }

  Judgement judge(const PlanRequest& request) const override {
    if (request.dtype != DType::fp32) {
      return text("dtype = ", to_string(request.dtype), "; legal: fp32");
    }
    std::string reason = few_channels_refusal(request.geometry, kMaxFmaChannels);
    if (reason.empty()) reason = row_elements_refusal(request.geometry);
    if (!reason.empty()) return reason;
    const FmaLayoutResult result = fma_layout(request);
    if (!result.refusal.empty()) return result.refusal;
    return few_channels_fma_us(request, result);
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<FewChannelsFmaPlan>(request);
  }
};

}  // namespace

std::unique_ptr<KernelCandidate> make_few_channels_fma_candidate() {
  return std::make_unique<FewChannelsFmaCandidate>();
}

}  // namespace convoy::small
