// SPDX-License-Identifier: Apache-2.0
#include "kernels/small/depthwise_tile.cuh"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/tensor_map.hpp"
#include "kernels/small/depthwise_host.hpp"
#include "kernels/small/patch_extents.hpp"
#include "kernels/small/unit_axes.hpp"

namespace convoy::small {
namespace {

// Columns of a unit that kernels are built for. NOTE: a volume's filter makes long code, of which
// each further strip is a tenth of this file's.
constexpr int kStrips[] = {4, 7, 8};
constexpr bool has_strip(int strip, int frames, int stride) {
  return frames == 1 || (stride == 1 ? strip != 7 : strip == 4);
}

struct TileLaunch {
  DepthwiseTileLayout layout{};
  int pixel_channels = kTileChannels;  // In a stage.
  int strip = 0;
  std::int64_t slabs = 1, blocks = 1;  // Of a slab.
  std::size_t shared_bytes = 0;
  double us = 0;
};

// What a warp issues for one unit: of each row its inputs, loaded and converted, and weights.
double unit_slots(int frames, int taps, int stride, int strip) {
  constexpr double kRow = 10.0, kWord = 3.0, kBegin = 50.0, kStore = 5.0;
  const double columns = (strip - 1) * stride + taps;
  return kBegin + frames * taps * (kRow + kWord * columns + taps * (strip * 2.0 + 1.0)) +
         kStore * strip;
}

// Of all ways to cut a problem up the one that the model likes best.
TileLaunch tile_launch(const PlanRequest& request) {
  constexpr std::int64_t kMostBox = 256;  // Along any axis (CUtensorMap).
  constexpr int kReserved = 1024;         // A block's, of the runtime.
  // Warp instructions a cycle of a multiprocessor, and of a block's warps; bytes that it takes in.
  constexpr double kMostIssue = 3.4, kBlockIssue = 1.8, kIntake = 20.0, kBeginUs = 0.2;
  constexpr double kTileSlots = 120.0;  // Of each warp.

  const ConvGeometry& g = request.geometry;
  const int taps = narrow(g.filter[2]), stride = narrow(g.stride[2]);
  const int frame_taps = narrow(g.filter[0]);
  const bool is_volume = frame_taps > 1;
  const std::int64_t least_stages = frame_taps + 1;
  const std::int64_t images = is_volume ? g.batch : g.batch * g.in[0];
  const std::int64_t processors = std::max(1, request.device.multiprocessors);
  TileLaunch best;
  if (is_volume && g.groups <= kNarrowTileChannels) best.pixel_channels = kNarrowTileChannels;
  best.slabs = ceil_div(g.groups, best.pixel_channels);
  const std::int64_t channels = round_up(ceil_div(g.groups, best.slabs), 8);
  const std::int64_t groups = kTileConsumers * 32 / (channels / 2);
  best.slabs = ceil_div(g.groups, channels);
  const auto consider = [&](std::int64_t resident, int strip, std::int64_t of_tile,
                            std::int64_t frames, std::int64_t rows, std::int64_t strips) {
    const std::int64_t room = static_cast<std::int64_t>(request.device.shared_memory) / resident -
                              kReserved - depthwise_tile_stages_at(narrow(g.taps()));
    const std::int64_t box_columns = (strips * strip - 1) * stride + taps;
    const std::int64_t box_rows = (rows - 1) * stride + taps;
    const std::int64_t stage_bytes =
        round_up(of_tile * box_rows * box_columns * best.pixel_channels * 2, 128);
    if (box_columns > kMostBox || box_rows > kMostBox || least_stages * stage_bytes > room) {
      return false;
    }
    const std::int64_t across = ceil_div(g.out[2], strips * strip), down = ceil_div(g.out[1], rows);
    const std::int64_t deep = is_volume ? ceil_div(g.out[0], frames) : 1;
    const std::int64_t tiles = ceil_div(images, of_tile) * deep * across * down;
    const std::int64_t loads = (frames - 1) * g.stride[0] + frame_taps;  // Of a tile.
    if (tiles > kMaxStrips) return true;
    const std::int64_t at_once = std::max<std::int64_t>(1, resident * processors / best.slabs);
    const std::int64_t blocks = std::min(tiles, at_once);
    const std::int64_t rounds = ceil_div(tiles, blocks);
    const double waves = double(ceil_div(best.slabs * blocks, resident * processors));
    const double share = double(ceil_div(std::min(best.slabs * blocks, resident * processors),
                                         processors));  // Blocks of a multiprocessor.
    // Groups of a block go on with the next tile, and end together.
    const double units =
        double(ceil_div(rounds * frames * of_tile * rows * strips, groups)) * kTileConsumers;
    const double issue = std::min(kMostIssue, share * kBlockIssue);
    const double issue_us = waves * share *
                            (units * unit_slots(frame_taps, taps, stride, strip) +
                             double(rounds * frames) * kTileConsumers * kTileSlots) /
                            issue / kCyclesPerUs;
    const double load_us = share * double(stage_bytes) / kIntake / kCyclesPerUs;
    const double us = kBeginUs + frame_taps * load_us +
                      std::max(issue_us, waves * double(rounds * loads - frame_taps) * load_us);
    if (best.strip != 0 && us >= best.us) return true;
    best.us = us;
    best.strip = strip;
    best.blocks = blocks;
    DepthwiseTileLayout& l = best.layout;
    l.channels = narrow(channels);
    l.groups = narrow(groups);
    l.images = narrow(of_tile);
    l.frames = narrow(frames);
    l.rows = narrow(rows);
    l.strips = narrow(strips);
    l.box_rows = narrow(box_rows);
    l.box_columns = narrow(box_columns);
    l.tiles = narrow(tiles);
    l.stage_bytes = narrow(stage_bytes);
    l.stages =
        narrow(std::min<std::int64_t>({kTileMostStages, room / stage_bytes, rounds * loads}));
    l.by_lanes = FastDivide(channels / 2);
    l.by_rows = FastDivide(rows);
    l.by_strips = FastDivide(strips);
    l.tiles_deep = FastDivide(deep);
    l.tiles_down = FastDivide(down);
    l.tiles_across = FastDivide(across);
    best.shared_bytes = static_cast<std::size_t>(depthwise_tile_stages_at(narrow(g.taps())) +
                                                 l.stages * stage_bytes);
    return true;
  };
  // Chunks of the depth.
  std::vector<std::int64_t> depths = {1};
  for (std::int64_t parts = 1; is_volume && parts <= 8; parts *= 2) {
    const std::int64_t frames = ceil_div(g.out[0], parts);
    if (frames != depths.back()) depths.push_back(frames);
  }
  for (std::int64_t resident = depthwise_tile_blocks(stride); resident > 0; --resident) {
    for (const int strip : kStrips) {
      if (!has_strip(strip, frame_taps, stride)) continue;
      const std::int64_t all_strips = ceil_div(g.out[2], strip);
      for (std::int64_t strips = 1; strips <= all_strips; ++strips) {
        const auto fits = [&](std::int64_t of_tile, std::int64_t rows) {
          bool any = false;
          for (const std::int64_t frames : depths) {
            any = consider(resident, strip, of_tile, frames, rows, strips) || any;
          }
          return any;
        };
        std::int64_t rows = 1;
        while (rows <= g.out[1] && fits(1, rows)) ++rows;
        if (rows == 1) break;
        if (is_volume || strips < all_strips || rows <= g.out[1]) continue;
        for (std::int64_t of_tile = 2; of_tile <= std::min<std::int64_t>(8, images); ++of_tile) {
          if (!fits(of_tile, g.out[1])) break;
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
  // NOTE: measured, an H100: of 3×3 layers these take 0.73 to 0.97 of their time by the kernels
  // that slide down rows, those of more bytes up to 1.27.
  const double megabytes = min_bytes(request) / 1e6;
  const bool suits_3x3 = megabytes > 4.0 && megabytes < (stride == 1 ? 18.0 : 200.0);
  const bool is_image =
      unit_axes_refusal(g, 1).empty() && ((taps == 3 && suits_3x3) || taps == 5 || taps == 7);
  const bool is_volume = unit_axes_refusal(g, 0).empty() && g.filter[0] == taps &&
                         (taps == 3 || taps == 5) && g.dilation[0] == 1 && g.stride[0] <= taps;
  return request.device.compute_capability >= 90 && size_of(request.dtype) == 2 && has_vectors(g) &&
         (is_image || is_volume) && zero_padding_refusal(g).empty() && g.filter[1] == taps &&
         g.stride[1] == stride && (stride == 1 || stride == 2) && g.dilation[1] == 1 &&
         g.dilation[2] == 1 && g.gemm_m() > 0 && fits(g.batch * g.in[0]) && fits(g.in[1]) &&
         fits(g.in[2]) && fits(g.pad_begin[0]) && fits(g.pad_begin[1]) && fits(g.pad_begin[2]) &&
         fits(g.out[0]) && fits(g.out[1]) && fits(g.out[2]) &&
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
    const std::int64_t pixel = g.groups * 2, row = g.in[2] * pixel, frame = g.in[1] * row;
    TiledTensorMap map{.name = "activation",
                       .dtype = request.dtype,
                       .rank = 4,
                       .extents = {g.groups, g.in[2], g.in[1], g.batch * g.in[0]},
                       .strides_bytes = {0, pixel, row, frame},
                       .box = {launch_.pixel_channels, launch_.layout.box_columns,
                               launch_.layout.box_rows, launch_.layout.images},
                       .swizzle = Swizzle::none};
    if (is_volume()) {
      map.rank = 5;
      map.extents[3] = g.in[0];
      map.extents[4] = g.batch;
      map.strides_bytes[4] = g.in[0] * frame;
      map.box[4] = 1;
    }
    activation_map_ = encode_template(map);
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
        .images = narrow(is_volume() ? g.batch : g.batch * g.in[0]),
        .in_frames = narrow(g.in[0]),
        .out_frames = narrow(g.out[0]),
        .in_rows = narrow(g.in[1]),
        .out_rows = narrow(g.out[1]),
        .out_columns = narrow(g.out[2]),
        .pad_frames = narrow(g.pad_begin[0]),
        .pad_rows = narrow(g.pad_begin[1]),
        .pad_columns = narrow(g.pad_begin[2]),
        .stride_frames = narrow(g.stride[0]),
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

  bool is_volume() const { return request_.geometry.filter[0] > 1; }

  template <typename Element>
  Kernel* choose_taps() const {
    switch (request_.geometry.filter[2]) {
      case 3:
        return is_volume() ? choose_stride<Element, 3, 3>() : choose_stride<Element, 1, 3>();
      case 5:
        return is_volume() ? choose_stride<Element, 5, 5>() : choose_stride<Element, 1, 5>();
      default:
        return choose_stride<Element, 1, 7>();
    }
  }
  template <typename Element, int kFrames, int kTaps>
  Kernel* choose_stride() const {
    return request_.geometry.stride[2] == 1 ? choose_channels<Element, kFrames, kTaps, 1>()
                                            : choose_channels<Element, kFrames, kTaps, 2>();
  }
  template <typename Element, int kFrames, int kTaps, int kStride>
  Kernel* choose_channels() const {
    if constexpr (kFrames > 1) {
      if (launch_.pixel_channels == kNarrowTileChannels) {
        return choose_strip<Element, kFrames, kTaps, kStride, kNarrowTileChannels>();
      }
    }
    return choose_strip<Element, kFrames, kTaps, kStride, kTileChannels>();
  }
  template <typename Element, int kFrames, int kTaps, int kStride, int kChannels>
  Kernel* choose_strip() const {
    const auto of = []<int kStrip>() -> Kernel* {
      if constexpr (has_strip(kStrip, kFrames, kStride)) {
        return depthwise_tile_kernel<Element, kFrames, kTaps, kStride, kChannels, kStrip>;
      }
      return nullptr;
    };
    switch (launch_.strip) {
      case 4:
        return of.template operator()<4>();
      case 7:
        return of.template operator()<7>();
      default:
        return of.template operator()<8>();
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
