// SPDX-License-Identifier: Apache-2.0
#include "kernels/small/few_channels.cuh"

#include <algorithm>
#include <cmath>

#include "core/checked.hpp"
#include "kernels/common/time_correction.hpp"
#include "kernels/small/candidates.hpp"
#include "kernels/small/patch_extents.hpp"
#include "kernels/small/patch_plan.hpp"

namespace convoy::small {
namespace {

constexpr std::int64_t kMaxChannels = 64;

FragmentRead fragment_read(const ConvGeometry& g, bool by_tap, std::int64_t chunks,
                           std::int64_t pixel_pitch) {
  const std::int64_t real_chunks =
      depth_taps(g).count * g.filter[1] * g.filter[2] * (g.in_channels / 8);
  if (g.in_channels % 8 == 0 && real_chunks == chunks) return FragmentRead::chunks;
  const bool even_pixels = g.stride[2] * pixel_pitch % 2 == 0;
  const bool even_taps = !by_tap || g.dilation[2] * pixel_pitch % 2 == 0;
  return even_pixels && even_taps ? FragmentRead::pairs : FragmentRead::elements;
}

// The layout of a launch with tiles of `fragments` fragments, or why there is none.
struct LayoutResult {
  FewChannelsLayout layout;
  std::string refusal;
};
LayoutResult few_channels_layout(const ConvGeometry& g, int fragments, std::int64_t shared_memory) {
  LayoutResult result;
  FewChannelsLayout& l = result.layout;
  const std::int64_t c = g.in_channels;
  l.by_tap = c % 8 == 0 || g.dilation[2] != 1;
  const std::int64_t run = l.by_tap ? c : g.filter[2] * c;
  const std::int64_t filter_t = depth_taps(g).count;
  const std::int64_t runs = filter_t * g.filter[1] * (l.by_tap ? g.filter[2] : 1);
  const std::int64_t chunks = round_up(runs * ((run + 7) / 8), 2);
  // NOTE: an odd number of 16-byte units from filter to filter keeps ldmatrix free of conflicts.
  const std::int64_t filter_pitch = chunks * 8 + 8;
  const bool side_by_side = g.out[1] == 1;
  const std::int64_t tile_rows = side_by_side ? 1 : fragments;
  const std::int64_t tile_columns = kFewChannelsTileColumns * (side_by_side ? fragments : 1);
  static_cast<PatchLayout&>(l) = patch_layout(g, tile_rows, tile_columns, 8,
                                              c % 8 == 0   ? 8
                                              : c % 4 == 0 ? 4
                                              : c % 2 == 0 ? 2
                                                           : 1);
  const std::int64_t elements = filter_t * l.rows * l.row_pitch + 8;
  const FragmentRead read = fragment_read(g, l.by_tap, chunks, l.pixel_pitch);
  const std::int64_t block_n = g.out_channels <= 16 && read == FragmentRead::chunks ? 16 : 64;
  const int staging_floats = block_n == 16 ? kStagingFloats<2> : kStagingFloats<8>;
  const std::int64_t bytes = chunks * 8 + block_n * filter_pitch * 2 + 2 * elements * 2 +
                             kFewChannelsWarps * staging_floats * 4;
  if (bytes > shared_memory) {
    result.refusal = text("input patches and filters of ", bytes, " bytes; legal: at most ",
                          shared_memory, " (shared memory)");
    return result;
  }
  l.read = read;
  l.block_n = static_cast<int>(block_n);
  l.chunks = static_cast<int>(chunks);
  l.filter_pitch = static_cast<int>(filter_pitch);
  l.elements = static_cast<int>(elements);
  l.fragment_elements =
      static_cast<int>(side_by_side ? kFewChannelsTileColumns * g.stride[2] * l.pixel_pitch
                                    : g.stride[1] * l.row_pitch);
  const std::int64_t tiles_p = ceil_div(g.out[1], tile_rows);
  const std::int64_t tiles_q = ceil_div(g.out[2], tile_columns);
  l.filter_tiles = static_cast<int>(ceil_div(g.out_channels, block_n));
  const std::int64_t tiles = g.batch * g.out[0] * tiles_p * tiles_q;
  if (tiles > kMaxTiles) {
    result.refusal = text("output tiles = ", tiles, "; legal: at most ", kMaxTiles);
    return result;
  }
  l.tiles = static_cast<int>(tiles);
  l.walk = {FastDivide(tiles_q), FastDivide(tiles_p), FastDivide(g.out[0])};
  return result;
}

// Fragments of a tile: 16 halve the shared-memory traffic of the filters, 8 fill the device sooner.
// NOTE: only where two blocks share a multiprocessor, so that one computes while the other waits
// for its patch.
int fragments_for(const PlanRequest& request) {
  const auto half = static_cast<std::int64_t>(request.device.shared_memory / 2) - 1024;
  const LayoutResult tall = few_channels_layout(request.geometry, 16, half);
  const std::int64_t blocks = std::int64_t{tall.layout.tiles} * tall.layout.filter_tiles;
  return tall.refusal.empty() && blocks >= 4 * request.device.multiprocessors ? 16 : 8;
}

LayoutResult few_channels_layout(const PlanRequest& request, int fragments) {
  return few_channels_layout(request.geometry, fragments,
                             static_cast<std::int64_t>(request.device.shared_memory));
}

class FewChannelsPlan final : public PatchPlan<FewChannelsArguments> {
 public:
  explicit FewChannelsPlan(const PlanRequest& request)
      : PatchPlan(request, "few_channels", kFewChannelsThreads) {
    const int fragments = fragments_for(request);
    LayoutResult result = few_channels_layout(request, fragments);
    if (!result.refusal.empty()) throw Error(Status::unsupported, result.refusal);
    layout_ = result.layout;
    prepare(request.dtype == DType::bf16 ? choose_kernel<__nv_bfloat16>(fragments)
                                         : choose_kernel<__half>(fragments),
            layout_.filter_tiles);
  }

 private:
  template <typename Element>
  Kernel* choose_kernel(int fragments) const {
    const bool tall = fragments == 16;
    if (layout_.block_n == 16) {
      return tall ? few_channels_kernel<Element, 2, 2, FragmentRead::chunks>
                  : few_channels_kernel<Element, 2, 1, FragmentRead::chunks>;
    }
    switch (layout_.read) {
      case FragmentRead::chunks:
        return tall ? few_channels_kernel<Element, 8, 2, FragmentRead::chunks>
                    : few_channels_kernel<Element, 8, 1, FragmentRead::chunks>;
      case FragmentRead::pairs:
        return tall ? few_channels_kernel<Element, 8, 2, FragmentRead::pairs>
                    : few_channels_kernel<Element, 8, 1, FragmentRead::pairs>;
      default:
        return tall ? few_channels_kernel<Element, 8, 2, FragmentRead::elements>
                    : few_channels_kernel<Element, 8, 1, FragmentRead::elements>;
    }
  }
};

// Model time, fitted to 153 layers on an H200 (median error 8 %, also on 104 others): blocks that
// share a multiprocessor hold each other up, and each waits for its own loads and stores.
double few_channels_us(const PlanRequest& request) {
  constexpr double kLaunchUs = 6.28;
  constexpr double kWaitUs = 2.82;    // A tile, whatever it holds.
  constexpr double kAlone = 4.18;     // What a block alone waits, as so many others would cost.
  constexpr double kStoreUs = 0.249;  // A tile of 128 pixels x 64 filters,
  constexpr double kSingly = 1.64;    // more, times what is used, where rows are not of 16 bytes,
  constexpr double kEpilogueUs = 0.299;             // more with an activation or a residual.
  constexpr double kChunkUs = 0.0103;               // Of 8 elements of the reduction,
  constexpr double kPairs = 2.9, kElements = 4.12;  // times this where they are not whole.
  constexpr double kTall = 1.61;                    // Tiles of 256 pixels.
  constexpr double kNarrow = 0.605;                 // 16 filters.
  constexpr double kLoadUs = 6.72e-5;               // A vector of the patch,
  constexpr double kElementLoad = 1.23;             // times this where it is one element.
  constexpr double kFilterUs = 8.85e-4;             // A filter's chunk, once a block.
  constexpr double kBytesPerUs = 3.42e6;

  const ConvGeometry& g = request.geometry;
  const int fragments = fragments_for(request);
  const FewChannelsLayout l = few_channels_layout(request, fragments).layout;
  const bool tall = fragments == 16;
  const double processors = std::max(1, request.device.multiprocessors);
  // Blocks, and how many of them share a multiprocessor.
  const double fitting = std::clamp(
      std::floor(double(request.device.shared_memory + 1024) / (l.shared_bytes() + 1024)), 1.0,
      tall ? 2.0 : 3.0);
  const double sets =
      std::clamp(std::floor(fitting * processors / l.filter_tiles), 1.0, double(l.tiles));
  const double blocks = sets * l.filter_tiles;
  const double sharing = std::min(fitting, std::ceil(blocks / processors));
  const double rounds = std::ceil(blocks / (fitting * processors));
  const double tiles = std::ceil(l.tiles / sets);  // Of a block.

  const double size = (tall ? 2.0 : 1.0) * (l.block_n == 16 ? 0.25 : 1.0);
  const double used = double(g.output_elements()) /
                      (double(l.tiles) * l.tile_rows * l.tile_columns * l.filter_tiles * l.block_n);
  const double singly = g.out_channels % 8 == 0 ? 0.0 : kSingly * used;
  const bool plain = !request.epilogue.residual && request.epilogue.activation == Activation::none;
  const double chunk_us = kChunkUs *
                          (l.read == FragmentRead::chunks  ? 1.0
                           : l.read == FragmentRead::pairs ? kPairs
                                                           : kElements) *
                          (tall ? kTall : 1.0) * (l.block_n == 16 ? kNarrow : 1.0);
  const double vectors = double(depth_taps(g).count) * l.rows * l.columns * double(g.in_channels) /
                         l.vector * (l.vector == 1 ? kElementLoad : 1.0);
  const double tile_us = l.chunks * chunk_us + vectors * kLoadUs +
                         size * (kStoreUs * (1.0 + singly) + (plain ? 0.0 : kEpilogueUs * used));
  const double block_us =
      tiles * (tile_us * (sharing + kAlone) + kWaitUs) + kFilterUs * l.chunks * l.block_n;
  return kLaunchUs + std::max(rounds * block_us,
                              min_bytes(request) / (kBytesPerUs * memory_share(request.device)));
}

class FewChannelsCandidate final : public KernelCandidate {
 public:
  std::string name() const override { return "few_channels"; }
  Device device() const override { return Device::cuda; }
  bool packs_as_dense(const PlanRequest&) const override { return true; }

  Judgement judge(const PlanRequest& request) const override {
    const ConvGeometry& g = request.geometry;
    if (request.dtype == DType::fp32) return "dtype = fp32; legal: bf16 or fp16";
    std::string reason = few_channels_refusal(g, kMaxChannels);
    if (reason.empty()) reason = row_elements_refusal(g);
    if (!reason.empty()) return reason;
    const auto choice = few_channels_layout(request, 8);
    if (!choice.refusal.empty()) return choice.refusal;
    return corrected_us(CorrectedKernel::few_channels, {.us = few_channels_us(request)}, request);
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<FewChannelsPlan>(request);
  }
};

}  // namespace

std::unique_ptr<KernelCandidate> make_few_channels_candidate() {
  return std::make_unique<FewChannelsCandidate>();
}

}  // namespace convoy::small
