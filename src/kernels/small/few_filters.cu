// SPDX-License-Identifier: Apache-2.0
#include "kernels/small/few_filters.cuh"

#include <algorithm>
#include <cmath>

#include "core/checked.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/device_geometry.cuh"
#include "kernels/common/tensor_map.hpp"
#include "kernels/small/candidates.hpp"

namespace convoy::small {
namespace {

// GEMM columns that kernels are built for.
constexpr int kBuiltColumns[] = {16, 32, 48, 64};
constexpr std::int64_t kMostColumns = 64;
constexpr std::int64_t kMostTaps = 9;  // Of the filter along height and width.
// What keeps every product of the layout inside 32 bits.
constexpr std::int64_t kMaxTiles = 1 << 30;
constexpr std::int64_t kMaxFilterRow = 1 << 20;  // R·C

int built_columns(const ConvGeometry& g) {
  const std::int64_t needed = depth_taps(g).count * g.filter[2] * g.out_channels;
  for (int columns : kBuiltColumns) {
    if (needed <= columns) return columns;
  }
  return 0;
}

FewFiltersLayout few_filters_layout(const ConvGeometry& g, int rows, int consumers,
                                    int multiprocessors) {
  FewFiltersLayout l{};
  l.consumers = consumers;
  for (int axis = 0; axis < 3; ++axis) {
    l.filter[axis] = static_cast<int>(g.filter[axis]);
    l.pad[axis] = static_cast<int>(g.pad_begin[axis]);
    l.out[axis] = static_cast<int>(g.out[axis]);
    const bool is_padded = g.pad_begin[axis] != 0 || g.pad_end[axis] != 0;
    l.pad_mode[axis] = is_padded ? g.pad_mode[axis] : PadMode::zero;
  }
  for (int i = 0; i < 2; ++i) {
    l.pad_behind[i] = static_cast<int>(g.pad_end[i + 1]);
    l.in[i] = static_cast<int>(g.in[i + 1]);
  }
  const DepthTaps taps = depth_taps(g);
  l.filter[0] = static_cast<int>(taps.count);
  l.first_tap = static_cast<int>(taps.first);
  l.filter_depth = static_cast<int>(g.filter[0]);
  l.pad[0] -= l.first_tap;
  l.frames = static_cast<int>(g.seen()[0]);
  l.cached_frames = static_cast<int>(g.cached_frames);
  l.channels = static_cast<int>(g.in_channels);
  l.filters = static_cast<int>(g.out_channels);
  l.steps = (l.channels + 15) / 16;
  // NOTE: an odd number of 16-byte units from row to row keeps ldmatrix free of bank conflicts.
  l.filter_pitch = l.filter[1] * l.steps * 16 + 8;
  l.strip_columns = kFewFiltersColumns - (l.filter[2] - 1);
  l.side_by_side = l.filter[1] == 1 && l.out[1] == 1;
  const int tile_rows = l.side_by_side ? 1 : consumers * rows;
  l.tile_columns = l.strip_columns * (l.side_by_side ? consumers * rows : 1);
  l.tiles_p = (l.out[1] + tile_rows - 1) / tile_rows;
  l.tiles_q = (l.out[2] + l.tile_columns - 1) / l.tile_columns;
  // Cut along depth where the image alone does not fill the device; each cut reads T − 1 frames
  // once more.
  const double columns = double(g.batch) * l.tiles_p * l.tiles_q;
  double best = 0;
  for (int cuts = 1; cuts <= l.out[0]; ++cuts) {
    const int chunk = (l.out[0] + cuts - 1) / cuts;
    const double rounds =
        std::ceil(columns * ((l.out[0] + chunk - 1) / chunk) / std::max(1, multiprocessors));
    const double cost = rounds * (chunk + l.filter[0] - 1);
    if (cuts == 1 || cost < best) {
      best = cost;
      l.depth_chunk = chunk;
    }
    if (cuts >= 64) break;
  }
  l.tiles_z = (l.out[0] + l.depth_chunk - 1) / l.depth_chunk;
  l.tiles = static_cast<int>(g.batch) * l.tiles_z * l.tiles_p * l.tiles_q;
  return l;
}

// Replicated and reflected pixels are copied from the same stage: empty, or why one cannot be.
std::string few_filters_border_refusal(const ConvGeometry& g, const FewFiltersLayout& l, int rows) {
  for (int axis = 1; axis < 3; ++axis) {
    const PadMode mode = l.pad_mode[axis];
    if (mode == PadMode::zero) continue;
    const bool reflects = mode == PadMode::reflect;
    const std::int64_t tile = axis == 2 ? l.strip_columns : l.side_by_side ? 1 : l.consumers * rows;
    const std::int64_t stage = tile + g.filter[axis] - 1;
    const std::int64_t last_tile = (g.out[axis] - 1) / tile * tile;
    // The furthest that the first stage reads inside, and the first that the last one does.
    const std::int64_t before = (reflects ? 2 : 1) * g.pad_begin[axis];
    const std::int64_t last = g.in[axis] - 1 - (reflects ? g.pad_end[axis] : 0);
    if (before >= stage || last_tile - g.pad_begin[axis] > last) {
      return text("padding of ", kAxisNames[axis], " = ", g.pad_begin[axis], ", ", g.pad_end[axis],
                  " by mode ", to_string(mode), " under a filter of ", g.filter[axis],
                  "; legal: what copies pixels of the same tile of ", stage,
                  ", as padding does that keeps the extent");
    }
  }
  return {};
}

// Time of a layout in units of one input row: rounds of work items times their rows, and what an
// item costs whatever its size. Warps of one row read the filters twice as often: 12 % (measured).
double few_filters_cost(const FewFiltersLayout& l, int rows, int multiprocessors) {
  const double rounds = std::ceil(double(l.tiles) / std::max(1, multiprocessors));
  return rounds * (l.depth_chunk + l.filter[0] - 1) * (l.stage_rows(rows) + 2) *
         (rows == 1 ? 1.12 : 1.0);
}

// Rows and number of consumer warps: tiles that share the image evenly among the multiprocessors,
// with little halo.
struct FewFiltersTiling {
  int rows = 0;
  FewFiltersLayout layout{};
};
FewFiltersTiling few_filters_tiling(const PlanRequest& request, int columns) {
  const int processors = request.device.multiprocessors;
  const auto shared_memory = static_cast<int>(request.device.shared_memory);
  FewFiltersTiling best;
  double best_cost = 0;
  for (int rows = columns <= 32 ? 2 : 1; rows >= 1; --rows) {
    for (int consumers = few_filters_most_consumers(rows); consumers >= 4; --consumers) {
      const FewFiltersLayout layout =
          few_filters_layout(request.geometry, rows, consumers, processors);
      if (layout.shared_bytes(rows, columns) > shared_memory) continue;
      const double cost = few_filters_cost(layout, rows, processors);
      if (best.rows == 0 || cost < 0.98 * best_cost) {
        best = {rows, layout};
        best_cost = cost;
      }
    }
  }
  return best;
}

class FewFiltersPlan final : public CudaPlan {
 public:
  explicit FewFiltersPlan(const PlanRequest& request) : CudaPlan(request) {
    columns_ = built_columns(request.geometry);
    const FewFiltersTiling tiling = few_filters_tiling(request, columns_);
    rows_ = tiling.rows;
    layout_ = tiling.layout;
    shared_bytes_ = layout_.shared_bytes(rows_, columns_);
    kernel_ =
        request.dtype == DType::bf16 ? choose_kernel<__nv_bfloat16>() : choose_kernel<__half>();
    raise_shared_memory_limit(kernel_, shared_bytes_, "few_filters");
    const ConvGeometry& g = request.geometry;
    activation_map_ = tensor_map("activation", g.in[0]);
    if (g.cached_frames > 0) cache_map_ = tensor_map("cache", g.cached_frames);
    blocks_ = static_cast<unsigned>(std::min(layout_.tiles, request.device.multiprocessors));
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    FewFiltersArguments arguments{
        .activation = at_address(activation_map_, "activation", pointers.activation),
        .cache = {},
        .filter = pointers.filter,
        .output = conv_output(pointers, request_.output_dtype, g.out_channels, g.out_channels),
        .layout = layout_};
    arguments.cache = g.cached_frames > 0 ? at_address(cache_map_, "cache", pointers.cache)
                                          : arguments.activation;
    const auto threads = static_cast<unsigned>((layout_.consumers + 1) * 32);
    launch_kernel(kernel_,
                  {.name = "few_filters",
                   .grid = blocks_,
                   .block = threads,
                   .shared_bytes = static_cast<std::size_t>(shared_bytes_),
                   .stream = stream},
                  arguments);
    store_next_cache(pointers, stream);
  }

 private:
  using Kernel = void(FewFiltersArguments);

  template <typename Element>
  Kernel* choose_kernel() const {
    const auto is = [&](int t, int s, int k) {
      return layout_.filter[0] == t && layout_.filter[2] == s && layout_.filters == k;
    };
    const bool two = rows_ == 2;
    // Decoders' last layers: to RGB in 2-D and 3-D, to four latent channels.
    if (is(1, 3, 3)) {
      return two ? few_filters_kernel<Element, 2, 2, 1, 3, 3>
                 : few_filters_kernel<Element, 2, 1, 1, 3, 3>;
    }
    if (is(1, 3, 4)) {
      return two ? few_filters_kernel<Element, 2, 2, 1, 3, 4>
                 : few_filters_kernel<Element, 2, 1, 1, 3, 4>;
    }
    if (is(3, 3, 3)) {
      return two ? few_filters_kernel<Element, 4, 2, 3, 3, 3>
                 : few_filters_kernel<Element, 4, 1, 3, 3, 3>;
    }
    switch (columns_) {
      case 16:
        return two ? few_filters_kernel<Element, 2, 2, 0, 0, 0>
                   : few_filters_kernel<Element, 2, 1, 0, 0, 0>;
      case 32:
        return two ? few_filters_kernel<Element, 4, 2, 0, 0, 0>
                   : few_filters_kernel<Element, 4, 1, 0, 0, 0>;
      case 48:
        return few_filters_kernel<Element, 6, 1, 0, 0, 0>;
      default:
        return few_filters_kernel<Element, 8, 1, 0, 0, 0>;
    }
  }

  CUtensorMap tensor_map(const char* name, std::int64_t frames) const {
    const ConvGeometry& g = request_.geometry;
    const std::int64_t pixel = g.in_channels * 2, row = g.in[2] * pixel, frame = g.in[1] * row;
    return encode_template(
        TiledTensorMap{.name = name,
                       .dtype = request_.dtype,
                       .rank = 5,
                       .extents = {g.in_channels, g.in[2], g.in[1], frames, g.batch},
                       .strides_bytes = {0, pixel, row, frame, frames * frame},
                       .box = {kFewFiltersChannels, kFewFiltersColumns,
                               layout_.side_by_side ? 1 : layout_.stage_rows(rows_), 1, 1},
                       .swizzle = Swizzle::b128});
  }

  FewFiltersLayout layout_;
  CUtensorMap activation_map_{}, cache_map_{};  ///< Without addresses.
  Kernel* kernel_ = nullptr;
  int columns_ = 0;
  int rows_ = 1;
  int shared_bytes_ = 0;
  unsigned blocks_ = 0;
};

class FewFiltersCandidate final : public KernelCandidate {
 public:
  std::string name() const override { return "few_filters"; }
  Device device() const override { return Device::cuda; }
  bool packs_as_dense(const PlanRequest&) const override { return true; }

  Judgement judge(const PlanRequest& request) const override {
    const ConvGeometry& g = request.geometry;
    if (request.dtype == DType::fp32) return "dtype = fp32; legal: bf16 or fp16";
    if (request.device.compute_capability < 90) {
      const int capability = request.device.compute_capability;
      return {RefusalScope::device, text("compute capability = ", capability / 10, ".",
                                         capability % 10, "; legal: 9.0 and later (TMA)")};
    }
    if (g.groups != 1) return text("groups = ", g.groups, "; legal: 1");
    if (g.upsample != 1) return text("upsample = ", g.upsample, "; legal: 1");
    if (g.in_channels % 8 != 0) {
      return text("in_channels = ", g.in_channels,
                  "; legal: a multiple of 8 (TMA needs rows of 16 bytes); nearest: ",
                  ceil_div(g.in_channels, 8) * 8);
    }
    if (g.in[0] == 0) return "new frames = 0; legal: at least 1; nearest: 1";
    for (int axis = 0; axis < 3; ++axis) {
      if (g.stride[axis] != 1) {
        return text("stride of ", kAxisNames[axis], " = ", g.stride[axis], "; legal: 1");
      }
      if (g.dilation[axis] != 1 && g.filter[axis] != 1) {
        return text("dilation of ", kAxisNames[axis], " = ", g.dilation[axis], "; legal: 1");
      }
    }
    for (int axis = 1; axis < 3; ++axis) {
      if (g.filter[axis] > kMostTaps) {
        return text("filter of ", kAxisNames[axis], " = ", g.filter[axis], "; legal: 1 to ",
                    kMostTaps, "; nearest: ", kMostTaps);
      }
    }
    if (g.filter[0] > kMostColumns || g.out_channels > kMostColumns || built_columns(g) == 0) {
      return text("T·S·K = ", g.filter[0], "·", g.filter[2], "·", g.out_channels,
                  "; legal: at most ", kMostColumns, " (columns of the GEMM)");
    }
    std::string reason = device_geometry_refusal(g);
    if (!reason.empty()) return reason;
    // Of the smallest tiles: 4 rows of 24 columns (a filter of 9).
    const std::int64_t most_tiles = g.batch * g.out[0] * ceil_div(g.out[1], 4) *
                                    ceil_div(g.out[2], kFewFiltersColumns - (kMostTaps - 1));
    if (most_tiles > kMaxTiles) {
      return text("output tiles = ", most_tiles, "; legal: at most ", kMaxTiles);
    }
    if (g.filter[1] * g.in_channels > kMaxFilterRow) {
      return text("R·C = ", g.filter[1] * g.in_channels, "; legal: at most ", kMaxFilterRow);
    }
    const int columns = built_columns(g);
    const FewFiltersTiling tiling = few_filters_tiling(request, columns);
    if (tiling.rows == 0) {
      const int bytes =
          few_filters_layout(g, 1, 4, request.device.multiprocessors).shared_bytes(1, columns);
      return text("input tile and filters of ", bytes, " bytes; legal: at most ",
                  request.device.shared_memory, " (shared memory)");
    }

    reason = few_filters_border_refusal(g, tiling.layout, tiling.rows);
    if (!reason.empty()) return reason;

    const int processors = std::max(1, request.device.multiprocessors);
    const int rows = tiling.rows;
    const FewFiltersLayout& l = tiling.layout;
    // A frame of a work item: tensor-core steps at about 600 multiply-adds a cycle and 1.7 GHz, or
    // the sums and stores of its outputs (measured on an H200).
    const double rounds = std::ceil(double(l.tiles) / processors);
    const double macs =
        double(l.consumers) * rows * kFewFiltersColumns * columns * l.filter[1] * l.steps * 16;
    const double frame_us = std::max(macs / 600.0 / 1700.0, 1.0 + 0.3 * l.filters * rows);
    const double frames = l.depth_chunk + l.filter[0] - 1;
    const double moving_us = min_bytes(request) / (2.7e6 * memory_share(request.device));
    const double computing_us = 1.18 * rounds * frames * frame_us;
    // With as many sums as that the two hide each other but in part (1x1 to 17 and 19 filters).
    constexpr double kPower = 1.3;
    if (l.filters > 16) {
      return 7.0 +
             std::pow(std::pow(moving_us, kPower) + std::pow(computing_us, kPower), 1 / kPower);
    }
    return 7.0 + std::max(moving_us, computing_us);
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<FewFiltersPlan>(request);
  }
};

}  // namespace

std::unique_ptr<KernelCandidate> make_few_filters_candidate() {
  return std::make_unique<FewFiltersCandidate>();
}

}  // namespace convoy::small
