// SPDX-License-Identifier: Apache-2.0
#include "kernels/small/depthwise_tile.cuh"

#include <algorithm>
#include <limits>

#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/tensor_map.hpp"
#include "kernels/small/depthwise_host.hpp"
#include "kernels/small/patch_extents.hpp"
#include "kernels/small/unit_axes.hpp"

namespace convoy::small {
namespace {

constexpr int kStrips[] = {4, 7, 8};  // Columns of a unit that kernels are built for.

struct TileLaunch {
  DepthwiseTileLayout layout{};
  int strip = 0;
  std::int64_t slabs = 1, blocks = 1;  // Of a slab.
  std::size_t shared_bytes = 0;
  double us = 0;
};

// What a warp issues for one unit: of each row its inputs, loaded and converted, and weights.
double unit_slots(int taps, int stride, int strip) {
  constexpr double kRow = 10.0, kWord = 3.0, kBegin = 50.0, kStore = 5.0;
  const double columns = (strip - 1) * stride + taps;
  return kBegin + taps * (kRow + kWord * columns + taps * (strip * 2.0 + 1.0)) + kStore * strip;
}

// Of all ways to cut a problem up the one that the model likes best.
TileLaunch tile_launch(const PlanRequest& request) {
  constexpr std::int64_t kMostBox = 256;  // Along any axis (CUtensorMap).
  constexpr int kReserved = 1024;         // A block's, of the runtime.
  constexpr int kLeastStages = 2;
  // Warp instructions a cycle of a multiprocessor, and of a block's warps; bytes that it takes in.
  constexpr double kMostIssue = 3.4, kBlockIssue = 1.8, kIntake = 20.0, kBeginUs = 0.2;
  constexpr double kTileSlots = 120.0;  // Of each warp.

  const ConvGeometry& g = request.geometry;
  const int taps = narrow(g.filter[2]), stride = narrow(g.stride[2]);
  const std::int64_t images = g.batch * g.in[0];
  const std::int64_t processors = std::max(1, request.device.multiprocessors);
  TileLaunch best;
  best.slabs = ceil_div(g.groups, kTileChannels);
  const std::int64_t channels = round_up(ceil_div(g.groups, best.slabs), 8);
  const std::int64_t groups = kTileConsumers * 32 / (channels / 2);
  best.slabs = ceil_div(g.groups, channels);
  const auto consider = [&](std::int64_t resident, int strip, std::int64_t of_tile,
                            std::int64_t rows, std::int64_t strips) {
    const std::int64_t room = static_cast<std::int64_t>(request.device.shared_memory) / resident -
                              kReserved - depthwise_tile_stages_at(taps);
    const std::int64_t box_columns = (strips * strip - 1) * stride + taps;
    const std::int64_t box_rows = (rows - 1) * stride + taps;
    const std::int64_t stage_bytes =
        round_up(of_tile * box_rows * box_columns * kTileChannels * 2, 128);
    if (box_columns > kMostBox || box_rows > kMostBox || kLeastStages * stage_bytes > room) {
      return false;
    }
    const std::int64_t across = ceil_div(g.out[2], strips * strip), down = ceil_div(g.out[1], rows);
    const std::int64_t tiles = ceil_div(images, of_tile) * across * down;
    if (tiles > kMaxStrips) return true;
    const std::int64_t at_once = std::max<std::int64_t>(1, resident * processors / best.slabs);
    const std::int64_t blocks = std::min(tiles, at_once);
    const std::int64_t rounds = ceil_div(tiles, blocks);
    const double waves = double(ceil_div(best.slabs * blocks, resident * processors));
    const double share = double(ceil_div(std::min(best.slabs * blocks, resident * processors),
                                         processors));  // Blocks of a multiprocessor.
    // Groups of a block go on with the next tile, and end together.
    const double units =
        double(ceil_div(rounds * of_tile * rows * strips, groups)) * kTileConsumers;
    const double issue = std::min(kMostIssue, share * kBlockIssue);
    const double issue_us =
        waves * share *
        (units * unit_slots(taps, stride, strip) + double(rounds) * kTileConsumers * kTileSlots) /
        issue / kCyclesPerUs;
    const double load_us = share * double(stage_bytes) / kIntake / kCyclesPerUs;  // A round's.
    const double us = kBeginUs + load_us + std::max(issue_us, waves * double(rounds - 1) * load_us);
    if (best.strip != 0 && us >= best.us) return true;
    best.us = us;
    best.strip = strip;
    best.blocks = blocks;
    DepthwiseTileLayout& l = best.layout;
    l.channels = narrow(channels);
    l.groups = narrow(groups);
    l.images = narrow(of_tile);
    l.rows = narrow(rows);
    l.strips = narrow(strips);
    l.box_rows = narrow(box_rows);
    l.box_columns = narrow(box_columns);
    l.tiles = narrow(tiles);
    l.stage_bytes = narrow(stage_bytes);
    l.stages = narrow(std::min<std::int64_t>({kTileMostStages, room / stage_bytes, rounds}));
    l.by_lanes = FastDivide(channels / 2);
    l.by_rows = FastDivide(rows);
    l.by_strips = FastDivide(strips);
    l.tiles_down = FastDivide(down);
    l.tiles_across = FastDivide(across);
    best.shared_bytes =
        static_cast<std::size_t>(depthwise_tile_stages_at(taps) + l.stages * stage_bytes);
    return true;
  };
  for (std::int64_t resident = depthwise_tile_blocks(stride); resident > 0; --resident) {
    for (const int strip : kStrips) {
      const std::int64_t all_strips = ceil_div(g.out[2], strip);
      for (std::int64_t strips = 1; strips <= all_strips; ++strips) {
        std::int64_t rows = 1;
        while (rows <= g.out[1] && consider(resident, strip, 1, rows, strips)) ++rows;
        if (rows == 1) break;
        if (strips < all_strips || rows <= g.out[1]) continue;
        for (std::int64_t of_tile = 2; of_tile <= std::min<std::int64_t>(8, images); ++of_tile) {
          if (!consider(resident, strip, of_tile, g.out[1], strips)) break;
        }
      }
    }
  }
  return best;
}

bool takes(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  const auto fits = [](std::int64_t value) {
    return value <= std::numeric_limits<std::int32_t>::max() / 4;
  };
  const std::int64_t taps = g.filter[2], stride = g.stride[2];
  return request.device.compute_capability >= 90 && size_of(request.dtype) == 2 && has_vectors(g) &&
         unit_axes_refusal(g, 1).empty() && zero_padding_refusal(g).empty() &&
         g.filter[1] == taps && (taps == 5 || taps == 7) && g.stride[1] == stride &&
         (stride == 1 || stride == 2) && g.dilation[1] == 1 && g.dilation[2] == 1 &&
         g.gemm_m() > 0 && fits(g.batch * g.in[0]) && fits(g.in[1]) && fits(g.in[2]) &&
         fits(g.pad_begin[1]) && fits(g.pad_begin[2]) && fits(g.out[1]) && fits(g.out[2]) &&
         ceil_div(g.groups, kTileChannels) <= kMaxGridY;
}

std::optional<double> tile_us(const PlanRequest& request) {
  if (!takes(request)) return std::nullopt;
  const TileLaunch launch = tile_launch(request);
  if (launch.strip == 0) return std::nullopt;
  return bytes_or_adds_us(request, launch.us);
}

class DepthwiseTilePlan final : public CudaPlan {
 public:
  explicit DepthwiseTilePlan(const PlanRequest& request)
      : CudaPlan(request),
        launch_(tile_launch(request)),
        kernel_(request.dtype == DType::bf16 ? choose_taps<__nv_bfloat16>()
                                             : choose_taps<__half>()) {
    const ConvGeometry& g = request.geometry;
    const std::int64_t pixel = g.groups * 2, row = g.in[2] * pixel, image = g.in[1] * row;
    activation_map_ =
        encode_template(TiledTensorMap{.name = "activation",
                                       .dtype = request.dtype,
                                       .rank = 4,
                                       .extents = {g.groups, g.in[2], g.in[1], g.batch * g.in[0]},
                                       .strides_bytes = {0, pixel, row, image},
                                       .box = {kTileChannels, launch_.layout.box_columns,
                                               launch_.layout.box_rows, launch_.layout.images},
                                       .swizzle = Swizzle::none});
    raise_shared_memory_limit(kernel_, static_cast<int>(launch_.shared_bytes), "depthwise_tile");
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    const DepthwiseTileArguments arguments{
        .activation = at_address(activation_map_, "activation", pointers.activation),
        .filter = pointers.filter,
        .output = conv_output(pointers, request_.output_dtype, g.out_channels, g.out_channels),
        .is_short = is_short(EpilogueParams(pointers.epilogue), request_.output_dtype),
        .channels = g.groups,
        .images = narrow(g.batch * g.in[0]),
        .in_rows = narrow(g.in[1]),
        .out_rows = narrow(g.out[1]),
        .out_columns = narrow(g.out[2]),
        .pad_rows = narrow(g.pad_begin[1]),
        .pad_columns = narrow(g.pad_begin[2]),
        .layout = launch_.layout};
    launch_kernel(
        kernel_,
        {.name = "depthwise_tile",
         .grid = dim3(static_cast<unsigned>(launch_.blocks), static_cast<unsigned>(launch_.slabs)),
         .block = kTileThreads,
         .shared_bytes = launch_.shared_bytes,
         .stream = stream,
         .overlapped = true},
        arguments);
    store_next_cache(pointers, stream);
  }

 private:
  using Kernel = void(DepthwiseTileArguments);

  template <typename Element>
  Kernel* choose_taps() const {
    return request_.geometry.filter[2] == 5 ? choose_stride<Element, 5>()
                                            : choose_stride<Element, 7>();
  }
  template <typename Element, int kTaps>
  Kernel* choose_stride() const {
    return request_.geometry.stride[2] == 1 ? choose_strip<Element, kTaps, 1>()
                                            : choose_strip<Element, kTaps, 2>();
  }
  template <typename Element, int kTaps, int kStride>
  Kernel* choose_strip() const {
    switch (launch_.strip) {
      case 4:
        return depthwise_tile_kernel<Element, kTaps, kStride, 4>;
      case 7:
        return depthwise_tile_kernel<Element, kTaps, kStride, 7>;
      default:
        return depthwise_tile_kernel<Element, kTaps, kStride, 8>;
    }
  }

  const TileLaunch launch_;
  Kernel* const kernel_;
  CUtensorMap activation_map_{};  ///< Without its address.
};

}  // namespace

constinit const DepthwiseKernel kDepthwiseTileKernel{.us = tile_us,
                                                     .make = make_plan<DepthwiseTilePlan>};

}  // namespace convoy::small
