// SPDX-License-Identifier: Apache-2.0
#include "kernels/small/narrow_input.cuh"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "core/checked.hpp"
#include "kernels/common/requirements.hpp"
#include "kernels/common/time_correction.hpp"
#include "kernels/small/candidates.hpp"
#include "kernels/small/patch_extents.hpp"
#include "kernels/small/patch_plan.hpp"

namespace convoy::small {
namespace {

// Channels of a pixel in the patch.
constexpr std::int64_t cell_of(std::int64_t channels) {
  return channels == 1 ? 1 : channels <= 4 ? 4 : 8;
}

// The layout of a launch, or why there is none.
struct LayoutResult {
  NarrowInputLayout layout;
  std::string refusal;
};

LayoutResult narrow_input_layout(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  LayoutResult result;
  NarrowInputLayout& l = result.layout;
  const std::int64_t c = g.in_channels;
  const std::int64_t cell = cell_of(c);
  const std::int64_t filter_t = depth_taps(g).count;
  const std::int64_t row_chunks = ceil_div(g.filter[2] * cell, 8);
  const std::int64_t steps = ceil_div(filter_t * g.filter[1] * row_chunks, 2);
  const bool side_by_side = g.out[1] == 1;
  const std::int64_t tile_rows = side_by_side ? 1 : kNarrowInputWarps;
  const std::int64_t tile_columns = kNarrowInputWarpPixels * (side_by_side ? kNarrowInputWarps : 1);
  const std::int64_t rows = (tile_rows - 1) * g.stride[1] + (g.filter[1] - 1) * g.dilation[1] + 1;
  const std::int64_t columns = (tile_columns - 1) * g.stride[2] + g.filter[2];
  const std::int64_t row_pitch = round_up(
      std::max((tile_columns - 1) * g.stride[2] * cell + row_chunks * 8, columns * cell), 8);
  const std::int64_t shift = std::gcd(g.stride[2] * cell, std::int64_t{8});
  const std::int64_t copies = 8 / shift;
  // NOTE: eight pixels in a row read 8 / copies chunks side by side in each copy; so many units of
  // 16 bytes between copies, modulo 8, and they meet different banks.
  std::int64_t copy_units = filter_t * rows * row_pitch / 8;
  while (copies > 1 && copy_units % 8 != 8 / copies) ++copy_units;

  l.cell_log2 = std::countr_zero(static_cast<std::uint64_t>(cell));
  l.strip = g.out_channels <= 32 ? 32 : 64;
  l.tile_rows = static_cast<int>(tile_rows);
  l.tile_columns = static_cast<int>(tile_columns);
  const std::int64_t tiles =
      g.batch * g.out[0] * ceil_div(g.out[1], tile_rows) * ceil_div(g.out[2], tile_columns);
  if (tiles > kMaxTiles) {
    result.refusal = text("output tiles = ", tiles, "; legal: at most ", kMaxTiles);
    return result;
  }
  // As many strips a block as leave room for two blocks on a multiprocessor, and give each
  // multiprocessor two blocks; at least one.
  // NOTE: an odd number of 16-byte units from filter to filter keeps ldmatrix free of conflicts.
  const std::int64_t filter_pitch = steps * 16 + 8;
  const std::int64_t patch_bytes = copies * copy_units * 16;
  const std::int64_t all_strips = ceil_div(g.out_channels, l.strip);
  const std::int64_t staging = kNarrowInputWarps * l.staging_floats() * 4;
  const auto bytes = [&](std::int64_t strips) {
    return steps * static_cast<std::int64_t>(sizeof(NarrowInputStep)) +
           strips * l.strip * (4 + filter_pitch * 2) + 2 * patch_bytes + staging;
  };
  const auto device_bytes = static_cast<std::int64_t>(request.device.shared_memory);
  if (bytes(1) > device_bytes) {
    result.refusal = text("input patches and filters of ", bytes(1), " bytes; legal: at most ",
                          device_bytes, " (shared memory)");
    return result;
  }
  const std::int64_t wanted = 2 * std::int64_t{std::max(1, request.device.multiprocessors)};
  std::int64_t strips = all_strips;
  while (strips > 1 && (bytes(strips) > device_bytes / 2 - 1024 ||
                        tiles * ceil_div(all_strips, strips) < wanted)) {
    --strips;
  }
  l.filter_groups = static_cast<int>(ceil_div(all_strips, strips));
  l.strips = static_cast<int>(ceil_div(all_strips, l.filter_groups));
  l.steps = static_cast<int>(steps);
  l.row_chunks = static_cast<int>(row_chunks);
  l.filter_pitch = static_cast<int>(filter_pitch);
  l.rows = static_cast<int>(rows);
  l.row_pitch = static_cast<int>(row_pitch);
  l.copies = static_cast<int>(copies);
  l.shift = static_cast<int>(shift);
  l.copy_pitch = static_cast<int>(copy_units * 8);
  l.warp_elements = static_cast<int>(side_by_side ? kNarrowInputWarpPixels * g.stride[2] * cell
                                                  : g.stride[1] * row_pitch);
  l.pixels = static_cast<int>(filter_t * rows * columns);
  l.by_columns = FastDivide(columns);
  l.by_rows = FastDivide(rows);
  l.by_chunks = FastDivide(2 * steps);
  l.by_row_chunks = FastDivide(row_chunks);
  l.plain_input = zero_padding_refusal(g).empty() && g.upsample == 1 && g.cached_frames == 0;
  l.tiles = static_cast<int>(tiles);
  l.walk = {FastDivide(ceil_div(g.out[2], tile_columns)), FastDivide(ceil_div(g.out[1], tile_rows)),
            FastDivide(g.out[0])};
  return result;
}

class NarrowInputPlan final : public PatchPlan<NarrowInputArguments> {
 public:
  explicit NarrowInputPlan(const PlanRequest& request)
      : PatchPlan(request, "narrow_input", kNarrowInputThreads) {
    LayoutResult result = narrow_input_layout(request);
    if (!result.refusal.empty()) throw Error(Status::unsupported, result.refusal);
    layout_ = result.layout;
    prepare(request.dtype == DType::bf16 ? choose_kernel<__nv_bfloat16>() : choose_kernel<__half>(),
            layout_.filter_groups);
  }

 private:
  template <typename Element, int kTiles>
  Kernel* choose_kernel() const {
    switch (layout_.cell()) {
      case 1:
        return narrow_input_kernel<Element, kTiles, 1>;
      case 4:
        return narrow_input_kernel<Element, kTiles, 4>;
      default:
        return narrow_input_kernel<Element, kTiles, 8>;
    }
  }
  template <typename Element>
  Kernel* choose_kernel() const {
    return layout_.strip == 32 ? choose_kernel<Element, 4>() : choose_kernel<Element, 8>();
  }
};

// Model time, fitted to 37 layers on an H200 (median error 5 %; 7 % on 22 others): blocks load,
// multiply and store in turns, and share what a multiprocessor can issue. What several frames, rows
// that are not of eight bytes and activations cost: 279 layers on an H100.
double estimate_us(const PlanRequest& request) {
  constexpr double kLaunchUs = 6.25;
  constexpr double kTileUs = 1.6;        // A tile's barrier and the wait for its patch.
  constexpr double kPixelUs = 1.1e-3;    // To load a pixel of the patch,
  constexpr double kCopyUs = 4.08e-5;    // for each of its copies.
  constexpr double kStepUs = 0.175;      // A K step of 256 pixels and 64 filters.
  constexpr double kStoreUs = 0.53;      // 256 pixels of 64 filters,
  constexpr double kStagedUs = 4.0;      // as floats through staging memory;
  constexpr double kActivated = 1.5;     // times this with more than a ReLU or a clamp.
  constexpr double kFrames = 0.17;       // More of a patch's time for a tap of depth more.
  constexpr double kFilterUs = 7.45e-3;  // A filter's K step, once a block.
  constexpr double kBytesPerUs = 2.18e6;
  constexpr double kFoursBytesPerUs = 1.15e6;  // Of the output, in rows of eight bytes.

  const ConvGeometry& g = request.geometry;
  const NarrowInputLayout l = narrow_input_layout(request).layout;
  const bool direct = is_stored_short(request);
  const double processors = std::max(1, request.device.multiprocessors);
  const double fitting = std::clamp(
      std::floor(double(request.device.shared_memory + 1024) / (l.shared_bytes() + 1024)), 1.0,
      2.0);
  const double sets =
      std::clamp(std::floor(fitting * processors / l.filter_groups), 1.0, double(l.tiles));
  const double rounds = std::ceil(sets * l.filter_groups / (fitting * processors));
  const double sharing = std::min(fitting, std::ceil(sets * l.filter_groups / processors));
  const double tiles = std::ceil(l.tiles / sets);  // Of a block.
  const double strips = l.strips * l.strip / 64.0;
  const Activation activation = request.epilogue.activation;
  const bool is_cheap = activation == Activation::none || activation == Activation::relu ||
                        activation == Activation::clamp;
  const double store_us = (direct ? kStoreUs : kStagedUs) * (is_cheap ? 1.0 : kActivated);
  const double patch_us = l.pixels * (kPixelUs + l.copies * kCopyUs) + strips * l.steps * kStepUs;
  // Filters that there are, of those that a block multiplies.
  const double stored = std::min(strips, double(g.out_channels) / l.filter_groups / 64.0);
  const double tile_us = patch_us * (1.0 + kFrames * double(g.filter[0] - 1)) + stored * store_us;
  const double block_us = tiles * (tile_us * sharing + kTileUs) +
                          kFilterUs * l.steps * l.strips * l.strip / kNarrowInputWarps;
  const double output_bytes = double(g.output_elements()) * double(size_of(request.output_dtype));
  const double fours_us = g.out_channels % 8 == 0 ? 0.0 : output_bytes / kFoursBytesPerUs;
  return kLaunchUs +
         std::max(rounds * block_us, std::max(min_bytes(request) / kBytesPerUs, fours_us) /
                                         memory_share(request.device));
}

class NarrowInputCandidate final : public KernelCandidate {
 public:
  std::string name() const override { return "narrow_input"; }
  Device device() const override { return Device::cuda; }
  bool packs_as_dense(const PlanRequest&) const override { return true; }

  Judgement judge(const PlanRequest& request) const override {
    const ConvGeometry& g = request.geometry;
    if (auto refused = require_capability_from(request.device, 90, "stmatrix")) return *refused;
    if (request.dtype == DType::fp32) return "dtype = fp32; legal: bf16 or fp16";
    if (g.filter[2] > 1 && g.dilation[2] != 1) {
      return text("dilation of width = ", g.dilation[2], "; legal: 1");
    }
    std::string reason = few_channels_refusal(g, kNarrowInputMaxChannels);
    if (!reason.empty()) return reason;
    reason = narrow_input_layout(request).refusal;
    if (!reason.empty()) return reason;
    return corrected_us(CorrectedKernel::narrow_input, {.us = estimate_us(request)}, request);
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<NarrowInputPlan>(request);
  }
};

}  // namespace

std::unique_ptr<KernelCandidate> make_narrow_input_candidate() {
  return std::make_unique<NarrowInputCandidate>();
}

}  // namespace convoy::small
