// SPDX-License-Identifier: Apache-2.0
#include "kernels/small/grouped_patch.cuh"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/implicit_gemm.hpp"
#include "kernels/small/candidates.hpp"
#include "kernels/small/patch_extents.hpp"

namespace convoy::small {
namespace {

// NOTE: a 1×1 problem is one row of pixels: tiles then have no ragged edge but the last.
ConvGeometry as_rows(const ConvGeometry& g) {
  const bool joins = implicit_gemm::is_pointwise(g) && implicit_gemm::is_planar(g) &&
                     g.gemm_m() <= std::numeric_limits<std::int32_t>::max();
  if (!joins) return g;
  ConvGeometry row = g;
  row.batch = 1;
  row.in = row.out = {1, 1, g.gemm_m()};
  return row;
}

// Neighbouring filter tiles of 8 that are of one group whatever the strip.
int shared_tiles(const GroupedPatchLayout& l) {
  return std::min(1 << (l.slot_bits - 3), kGroupedFilterTiles);
}

// ---- Model, of an H200 ----------------------------------------------------------------------

constexpr double kLaunchUs = 8.0;
constexpr double kBytesPerUs = 3.0e6;      // From and to device memory.
constexpr double kCyclesPerUs = 1740.0;    // Of a multiprocessor.
constexpr double kMatrixLoadCycles = 4.0;  // 512 bytes of shared memory.
constexpr double kMmaCycles = 1.7;         // 16×8×16, of a multiprocessor.
constexpr double kCellCycles = 0.2;        // To copy 16 bytes into a patch: instructions.
constexpr double kRowStoreCycles = 12.0;   // 8 pixels × 32 filters of a warp.
constexpr double kTileCycles = 300.0;      // Of a tile and frame: barriers, a wait.
// Measured: loads, multiplications and stores of the two blocks overlap but in part.
constexpr double kStall = 1.9;
// Anything but a plain store, and a million outputs of it on a whole device.
constexpr double kEpilogueUs = 2.0;
constexpr double kEpilogueOutputUs = 3.0;

// How often a bank is wanted by the eight pixels of a matrix.
int bank_conflict(const ConvGeometry& g, const GroupedPatchLayout& l) {
  std::array<int, 8> wanted{};
  for (int m = 0; m < 8; ++m) {
    const std::int64_t column = m & ((1 << l.column_bits) - 1), row = m >> l.column_bits;
    const std::int64_t of_image = row & ((1 << l.row_bits) - 1), image = row >> l.row_bits;
    const std::int64_t pixel =
        (image * l.rows + of_image * g.stride[1]) * l.columns + column * g.stride[2];
    ++wanted[static_cast<std::size_t>(pixel * l.pixel_pitch % 8)];
  }
  return *std::max_element(wanted.begin(), wanted.end());
}

// Cycles of a tile of one block, where nothing hides them.
double tile_cycles(const ConvGeometry& g, const GroupedPatchLayout& l) {
  const int share = shared_tiles(l);
  const double parts = double(kGroupedFilterTiles / share);
  const double steps = double(l.taps) * std::ceil(l.chunks / 2.0) * parts;
  const double loads = kGroupedFragments * bank_conflict(g, l) + (share + 1) / 2;
  const double of_warp =
      steps * std::max(loads * kMatrixLoadCycles, kGroupedFragments * share * kMmaCycles) +
      2 * kGroupedFragments * kRowStoreCycles;
  const double frames = double(depth_taps(g).count);
  return kGroupedPatchWarps * of_warp +
         frames * (kCellCycles * double(l.patch_pixels()) * l.patch_chunks + kTileCycles);
}

double grouped_patch_us(const ConvGeometry& g, const GroupedPatchLayout& l,
                        const PlanRequest& request) {
  const double multiprocessors = std::max(1, request.device.multiprocessors);
  const double rounds = std::ceil(double(l.tiles) * l.filter_tiles / multiprocessors);
  const EpilogueKind& epilogue = request.epilogue;
  const bool plain =
      !epilogue.bias && !epilogue.residual && epilogue.activation == Activation::none;
  const double epilogue_us = plain ? 0.0
                                   : kEpilogueUs + kEpilogueOutputUs * double(g.output_elements()) *
                                                       1e-6 * 132.0 / multiprocessors;
  return kLaunchUs + epilogue_us +
         std::max(min_bytes(request) / kBytesPerUs,
                  kStall * rounds * tile_cycles(g, l) / kCyclesPerUs);
}

// The tile of `pixels` that covers the output in the least time, or with patches too large for
// shared memory none (tiles = 0).
void choose_tile(const ConvGeometry& g, std::int64_t pixels, std::int64_t shared_bytes,
                 GroupedPatchLayout& l) {
  double least = 0;
  l.tiles = 0;
  for (int column_bits = 0; (1 << column_bits) <= pixels; ++column_bits) {
    for (int row_bits = 0; (1 << (column_bits + row_bits)) <= pixels; ++row_bits) {
      const std::int64_t columns = 1 << column_bits, rows = 1 << row_bits;
      const std::int64_t images = pixels / columns / rows;
      if (images > 1 && (columns < g.out[2] || rows < g.out[1])) continue;
      GroupedPatchLayout tried = l;
      const auto reach = [&](std::int64_t outputs, int axis) {
        return static_cast<int>((outputs - 1) * g.stride[axis] +
                                (g.filter[axis] - 1) * g.dilation[axis] + 1);
      };
      tried.tile_images = static_cast<int>(images);
      tried.row_bits = row_bits;
      tried.column_bits = column_bits;
      tried.rows = reach(rows, 1);
      tried.columns = reach(columns, 2);
      if (tried.shared_bytes() > shared_bytes) continue;
      const std::int64_t down = ceil_div(g.out[1], rows), across = ceil_div(g.out[2], columns);
      const std::int64_t tiles = ceil_div(g.batch, images) * g.out[0] * down * across;
      const double cost = double(tiles) * tile_cycles(g, tried);
      if (tiles > kMaxTiles || (l.tiles > 0 && cost >= least)) continue;
      least = cost;
      tried.tiles = static_cast<int>(tiles);
      tried.rows_divide = FastDivide(down);
      tried.columns_divide = FastDivide(across);
      l = tried;
    }
  }
}

// The layout of blocks of up to `most_filters` filters (32 or 64); tiles = 0 where it does not fit.
GroupedPatchLayout layout_with(const ConvGeometry& g, int most_filters, int buffers,
                               std::int64_t shared_bytes) {
  const auto channels = static_cast<int>(g.group_channels());
  const auto filters = static_cast<int>(g.group_filters());
  GroupedPatchLayout l;
  l.buffers = buffers;
  while ((1 << l.slot_bits) < std::min(filters, most_filters)) ++l.slot_bits;
  l.groups_of_block = std::clamp(std::min(64 / channels, most_filters >> l.slot_bits), 1,
                                 static_cast<int>(g.groups));
  if (l.groups_of_block == 1) l.slot_bits = 6;  // All places of the block.
  l.filters_of_group = std::min(filters, most_filters);
  l.blocks_of_group = static_cast<int>(ceil_div(filters, most_filters));
  const int places = l.groups_of_block == 1 ? l.filters_of_group : l.groups_of_block << l.slot_bits;
  l.strips = places > kGroupedStrip ? 2 : 1;
  l.gathers = g.upsample != 1 || !zero_padding_refusal(g).empty();
  l.chunks = channels / 8;
  l.patch_chunks = l.groups_of_block * l.chunks;
  l.pixel_pitch = l.patch_chunks | 1;
  l.taps = static_cast<int>(depth_taps(g).count * g.filter[1] * g.filter[2]);
  l.filter_tiles = static_cast<int>(ceil_div(g.groups, l.groups_of_block)) * l.blocks_of_group;
  l.frames_divide = FastDivide(g.out[0]);
  l.patch_chunks_divide = FastDivide(l.patch_chunks);
  l.filter_cells_divide = FastDivide(l.taps * l.chunks);
  const std::int64_t pixels = std::int64_t{kGroupedPatchWarps} / l.strips * 16 * kGroupedFragments;
  choose_tile(g, pixels, shared_bytes, l);
  return l;
}

// Two blocks a multiprocessor if that can be, each with its next patch under way.
GroupedPatchLayout grouped_patch_layout(const ConvGeometry& g, std::int64_t shared_bytes) {
  const std::int64_t half = shared_bytes / 2 - 1024;
  GroupedPatchLayout l;
  for (const std::int64_t budget : {half, shared_bytes}) {
    for (const int buffers : {2, 1}) {
      for (const int filters : {64, 32}) {
        l = layout_with(g, filters, buffers, budget);
        if (l.tiles > 0) return l;
      }
    }
  }
  return l;
}

class GroupedPatchPlan final : public CudaPlan {
 public:
  explicit GroupedPatchPlan(const PlanRequest& request) : CudaPlan(request) {
    const ConvGeometry g = as_rows(request.geometry);
    geometry_ = trimmed_device_geometry(g);
    layout_ = grouped_patch_layout(g, static_cast<std::int64_t>(request.device.shared_memory));
    kernel_ = request.dtype == DType::bf16 ? choose_kernel<__nv_bfloat16>(shared_tiles(layout_))
                                           : choose_kernel<__half>(shared_tiles(layout_));
    const auto shared_bytes = static_cast<int>(layout_.shared_bytes());
    raise_shared_memory_limit(kernel_, shared_bytes, "grouped_patch");
    // Whole sets of filter tiles, as many as run at once.
    const std::int64_t resident =
        std::int64_t{request.device.multiprocessors} *
        resident_blocks(kernel_, kGroupedPatchThreads, shared_bytes, "grouped_patch");
    const std::int64_t sets =
        std::clamp<std::int64_t>(resident / layout_.filter_tiles, 1, layout_.tiles);
    blocks_ = static_cast<unsigned>(sets * layout_.filter_tiles);
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    const GroupedPatchArguments arguments{
        .activation = pointers.activation,
        .cache = pointers.cache,
        .filter = pointers.filter,
        .geometry = geometry_,
        .output = conv_output(pointers, request_.output_dtype, g.out_channels, g.group_filters()),
        .layout = layout_};
    launch_kernel(kernel_,
                  {.name = "grouped_patch",
                   .grid = blocks_,
                   .block = kGroupedPatchThreads,
                   .shared_bytes = static_cast<std::size_t>(layout_.shared_bytes()),
                   .stream = stream},
                  arguments);
    store_next_cache(pointers, stream);
  }

 private:
  using Kernel = void(GroupedPatchArguments);

  template <typename Element>
  static Kernel* choose_kernel(int shared_tiles) {
    return shared_tiles == 4   ? grouped_patch_kernel<Element, 4>
           : shared_tiles == 2 ? grouped_patch_kernel<Element, 2>
                               : grouped_patch_kernel<Element, 1>;
  }

  DeviceGeometry geometry_{};
  GroupedPatchLayout layout_;
  Kernel* kernel_ = nullptr;
  unsigned blocks_ = 0;
};

class GroupedPatchCandidate final : public KernelCandidate {
 public:
  std::string name() const override { return "grouped_patch"; }
  Device device() const override { return Device::cuda; }
  bool packs_as_dense(const PlanRequest&) const override { return true; }

  Judgement judge(const PlanRequest& request) const override {
    const ConvGeometry& g = request.geometry;
    if (request.dtype == DType::fp32) return "dtype = fp32; legal: bf16 or fp16";
    if (g.groups < 2 && !is_line(g)) {
      return text("groups = ", g.groups, "; legal: at least 2, or 1 along one row of pixels with ",
                  kMinLineTaps, " taps or more and ", kMinOfLine, " to ", kMaxOfLine,
                  " channels and filters; nearest: 2");
    }
    for (const auto& [name, value] : {std::pair{"C / groups", g.group_channels()},
                                      std::pair{"K / groups", g.group_filters()}}) {
      if (value % 8 != 0 || value > kMaxOfGroup) {
        const std::int64_t nearest =
            std::min(kMaxOfGroup, ceil_div(value, std::int64_t{8}) * std::int64_t{8});
        return text(name, " = ", value, "; legal: a multiple of 8, at most ", kMaxOfGroup,
                    "; nearest: ", nearest);
      }
    }
    std::string reason = device_geometry_refusal(g);
    if (reason.empty()) reason = patch_extent_refusal(g);
    if (!reason.empty()) return reason;
    const ConvGeometry rows = as_rows(g);
    const auto shared = static_cast<std::int64_t>(request.device.shared_memory);
    const GroupedPatchLayout l = grouped_patch_layout(rows, shared);
    if (l.tiles == 0) {
      return text("filters of ", l.filter_bytes(), " bytes, beside an input patch; legal: at most ",
                  shared, " (shared memory), and at most ", kMaxTiles, " output tiles");
    }
    return grouped_patch_us(rows, l, request);
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<GroupedPatchPlan>(request);
  }

 private:
  static constexpr std::int64_t kMaxOfGroup = 1024;
  // Without groups, measured to be the faster one where im2col would read each pixel once a tap and
  // fills but a part of a tile: long 1-D layers of vocoders.
  static constexpr std::int64_t kMinLineTaps = 5, kMinOfLine = 24, kMaxOfLine = 40;
  static bool is_line(const ConvGeometry& g) {
    const auto few = [](std::int64_t n) { return n >= kMinOfLine && n <= kMaxOfLine; };
    return g.in[0] * g.in[1] * g.filter[0] * g.filter[1] == 1 && g.filter[2] >= kMinLineTaps &&
           g.cached_frames == 0 && few(g.in_channels) && few(g.out_channels);
  }
};

}  // namespace

std::unique_ptr<KernelCandidate> make_grouped_patch_candidate() {
  return std::make_unique<GroupedPatchCandidate>();
}

}  // namespace convoy::small
