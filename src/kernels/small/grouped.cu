// SPDX-License-Identifier: Apache-2.0
//
// Grouped convolution with as many filters as channels a group, 2, 4, 8 or 16 (ResNeXt, RegNet). A
// warp takes 16 neighbouring channels, which make up whole groups, as one dense convolution of 16
// channels and 16 filters whose filters are zero outside their group: a tensor-core step a tap.
// Input fragments are read straight from memory (the taps share L1), filters lie in shared memory
// in fragment order, and channels are dealt to lanes as in the pointwise kernel: four neighbours
// each. Of a 3×3 filter all nine taps are loaded before the first is multiplied: waiting for one
// after the other is what took the time.
#include <algorithm>
#include <array>
#include <cmath>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/device_code.cuh"
#include "kernels/common/device_geometry.cuh"
#include "kernels/common/fast_divide.hpp"
#include "kernels/common/output.cuh"
#include "kernels/common/short_epilogue.cuh"
#include "kernels/small/candidates.hpp"

namespace convoy::small {
namespace {

constexpr int kWarps = 4;  // Of a block: 64 channels, one line of a pixel.
constexpr int kThreads = 32 * kWarps;
constexpr int kChannels = 16;  // Of a warp.
constexpr int kFragments = 2;  // Of 16 output pixels, at once.
constexpr int kMaxTaps = 49;   // 98 KiB of filters.
constexpr int kVector = 4;     // Channels of a lane.
constexpr int kMaxGridY = 65535;
constexpr int kNineBlocks = 4;  // That a multiprocessor holds, of nine taps.

struct GroupedArguments {
  const void* activation;
  const void* cache;
  const void* filter;
  DeviceGeometry geometry;
  ConvOutput output;
  bool is_short;                     ///< The epilogue.
  FastDivide columns, rows, frames;  ///< Q, P, Z
  int tiles;                         ///< Of 32 output pixels.
};

// The filters of a warp in the order of its fragments: element (tap, lane) holds, for two columns
// of the MMA (filters), four channels each.
template <typename Element>
__device__ __forceinline__ void load_grouped_filters(const GroupedArguments& arguments,
                                                     uint4* filters, int first_channel) {
  const DeviceGeometry& g = arguments.geometry;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int taps = static_cast<int>(g.reduction) / g.channels;
  const std::uint32_t* from[4];
  bool same_group[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int filter = lane / 8 * 4 + i / 2 * 2 + lane / 4 % 2, channel = lane % 4 * 4 + i % 2 * 2;
    same_group[i] = filter / g.channels == channel / g.channels &&
                    first_channel + filter < g.groups * g.channels;
    from[i] = reinterpret_cast<const std::uint32_t*>(static_cast<const Element*>(arguments.filter) +
                                                     (first_channel + filter) * g.filter_pitch +
                                                     g.filter_offset + channel % g.channels);
  }
#pragma unroll 9
  for (int tap = 0; tap < taps; ++tap) {
    std::uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = same_group[i] ? from[i][tap * g.channels / 2] : 0;
    }
    filters[tap * 32 + lane] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

/// kNine: a filter of 1×3×3.
template <typename Element, bool kNine>
__global__ void __launch_bounds__(kThreads, kNine ? kNineBlocks : 1)
    grouped_kernel(const __grid_constant__ GroupedArguments arguments) {
  extern __shared__ __align__(16) uint4 all_filters[];  // [warp][tap][lane]
  const DeviceGeometry& g = arguments.geometry;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_channel = (static_cast<int>(blockIdx.y) * kWarps + warp) * kChannels;
  if (first_channel >= g.groups * g.channels) return;
  uint4* const filters = all_filters + warp * static_cast<int>(g.reduction) / g.channels * 32;
  load_grouped_filters<Element>(arguments, filters, first_channel);
  __syncwarp();

  const int channel = first_channel + lane % 4 * kVector;
  const bool channel_exists = channel < g.groups * g.channels;  // Of the last 16 maybe not.
  const auto* activation = static_cast<const Element*>(arguments.activation) + channel;
  const auto* cache = static_cast<const Element*>(arguments.cache) + channel;
  const std::int64_t column_step = g.dilation[2] * g.pixel_pitch;
  const std::int64_t row_step = g.dilation[1] * g.row_pitch;
  for (int tile = static_cast<int>(blockIdx.x); tile < arguments.tiles;
       tile += static_cast<int>(gridDim.x)) {
    __syncwarp();  // All lanes multiply.
    // First taps of this lane's four pixels: rows lane / 4 and + 8 of each fragment.
    const std::int64_t first_pixel = std::int64_t{tile} * (16 * kFragments) + lane / 4;
    int n[4], d[4], h[4], w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto m = static_cast<int>(min(first_pixel + i * 8, g.pixels - 1));
      const int row = arguments.columns.divide(m), frame = arguments.rows.divide(row);
      n[i] = arguments.frames.divide(frame);
      d[i] = arguments.frames.remainder(frame, n[i]) * g.stride[0] - g.pad[0];
      h[i] = arguments.rows.remainder(row, frame) * g.stride[1] - g.pad[1];
      w[i] = arguments.columns.remainder(m, row) * g.stride[2] - g.pad[2];
    }
    // Pixel i under the first tap of temporal tap t, and whether that frame is there.
    const auto pixel_of = [&](int i, int t, bool& exists) {
      const int frame = d[i] + t * g.dilation[0];
      const bool cached = frame < g.cached_frames;
      const std::int64_t index = cached ? std::int64_t{n[i]} * g.cached_frames + frame
                                        : std::int64_t{n[i]} * g.in[0] + frame - g.cached_frames;
      exists = channel_exists && static_cast<unsigned>(frame) < static_cast<unsigned>(g.seen[0]);
      return (cached ? cache : activation) + (index * g.in[1] + h[i]) * g.row_pitch +
             w[i] * g.pixel_pitch;
    };
    const auto row_exists = [&](int i, int r) {
      return static_cast<unsigned>(h[i] + r * g.dilation[1]) < static_cast<unsigned>(g.in[1]);
    };
    const auto column_exists = [&](int i, int s) {
      return static_cast<unsigned>(w[i] + s * g.dilation[2]) < static_cast<unsigned>(g.in[2]);
    };
    float sums[kFragments][2][4] = {};
    const auto multiply = [&](const uint2(&a)[4], const uint4& b) {
#pragma unroll
      for (int i = 0; i < kFragments; ++i) {
        const std::uint32_t fragment[4] = {a[2 * i].x, a[2 * i + 1].x, a[2 * i].y, a[2 * i + 1].y};
        mma_16x8x16<Element>(sums[i][0], fragment, b.x, b.y);
        mma_16x8x16<Element>(sums[i][1], fragment, b.z, b.w);
      }
    };
    const uint4* filter = filters + lane;
    if constexpr (kNine) {
      uint2 a[9][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        bool exists;
        const Element* const pixel = pixel_of(i, 0, exists);
#pragma unroll
        for (int tap = 0; tap < 9; ++tap) {
          const int r = tap / 3, s = tap % 3;
          a[tap][i] = make_uint2(0, 0);
          if (exists && row_exists(i, r) && column_exists(i, s)) {
            a[tap][i] = *reinterpret_cast<const uint2*>(pixel + r * row_step + s * column_step);
          }
        }
      }
#pragma unroll
      for (int tap = 0; tap < 9; ++tap) multiply(a[tap], filter[tap * 32]);
    } else {
      for (int t = 0; t < g.filter[0]; ++t) {
        const Element* pixels[4];
        bool exist[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) pixels[i] = pixel_of(i, t, exist[i]);
        for (int r = 0; r < g.filter[1]; ++r) {
          bool rows_exist[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) rows_exist[i] = exist[i] && row_exists(i, r);
          std::int64_t offset = r * row_step;
          for (int s = 0; s < g.filter[2]; ++s, filter += 32, offset += column_step) {
            uint2 a[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              a[i] = make_uint2(0, 0);
              if (rows_exist[i] && column_exists(i, s)) {
                a[i] = *reinterpret_cast<const uint2*>(pixels[i] + offset);
              }
            }
            multiply(a, *filter);
          }
        }
      }
    }
    // By pixel: what a lane holds is four neighbouring channels of each.
    float v[4][kVector];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&d0)[4] = sums[i / 2][0];
      const float(&d1)[4] = sums[i / 2][1];
      const int half = i % 2 * 2;
      v[i][0] = d0[half], v[i][1] = d0[half + 1], v[i][2] = d1[half], v[i][3] = d1[half + 1];
    }
    if (arguments.is_short && arguments.output.dtype == dtype_of<Element>) {
      if (!channel_exists) continue;
      const auto& out = arguments.output;
      const int count = static_cast<int>(
          min(std::int64_t{4}, (g.pixels - first_pixel + 7) / 8));  // Eight pixels apart.
      const std::int64_t first = first_pixel * out.channels + channel, step = 8 * out.channels;
      if (out.epilogue.has_residual) {
        store_short_with_residual<Element>(out, v, first, step, count, channel);
        continue;
      }
      if (!out.plain) apply_short_epilogue<Element>(out, v, channel, NoResidual{});
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i >= count) continue;
        *reinterpret_cast<uint2*>(static_cast<Element*>(out.data) + first + i * step) =
            make_uint2(pack2<Element>(v[i][0], v[i][1]), pack2<Element>(v[i][2], v[i][3]));
      }
      continue;
    }
    // One copy of the epilogue's code: registers are picked by constant indices.
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      float picked[kVector] = {};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int c = 0; c < kVector; ++c) picked[c] = i == j ? v[j][c] : picked[c];
      }
      const std::int64_t pixel = first_pixel + i * 8;
      if (pixel < g.pixels && channel_exists) {
        store_channels(arguments.output, picked, pixel, channel, kVector);
      }
    }
  }
}

bool has_nine_taps(const ConvGeometry& g) {
  return g.filter == std::array<std::int64_t, 3>{1, 3, 3};
}

std::int64_t tiles_of(const ConvGeometry& g) {
  return ceil_div(g.gemm_m(), 16 * kFragments);
}

// Blocks side by side that it takes for all channels.
std::int64_t spans_of(const ConvGeometry& g) {
  return ceil_div(g.in_channels, kWarps * kChannels);
}

// Tiles that blocks with nine taps take as long as: a round of them that is not full takes most of
// the time of a full one.
double tiles_in_rounds(const ConvGeometry& g, int multiprocessors) {
  constexpr double kOfFullRounds = 0.75;
  const double tiles = double(tiles_of(g));
  const double blocks =
      double(std::max<std::int64_t>(1, std::max(1, multiprocessors) * kNineBlocks / spans_of(g)));
  if (tiles <= blocks) return tiles;
  return kOfFullRounds * std::ceil(tiles / blocks) * blocks + (1 - kOfFullRounds) * tiles;
}

// Model time. Filters of 3×3: fitted to 57 layers on an H100, within 5 % on average and 15 % each;
// others to layers on an H200.
double grouped_us(const PlanRequest& request) {
  constexpr double kLaunchUs = 6.2;
  constexpr double kEpilogueUs = 1.3;  // Anything but a plain store.
  constexpr double kBytesPerUs = 2.5e6;
  // 16 channels of an output pixel and tap: any filter, 3×3, and 3×3 whose pixels lie apart.
  constexpr double kSteps = 1.1e5, kNineSteps = 1.6e5, kStridedSteps = 1.4e5;
  // A tap's loads wait for those of the tap before: 74 layers of 5×5 on an H200.
  constexpr double kTapUs = 0.38, kStridedTapUs = 0.5;
  const ConvGeometry& g = request.geometry;
  const bool nine = has_nine_taps(g);
  const bool dense = g.stride[1] == 1 && g.stride[2] == 1;
  const double rate = !nine ? kSteps : dense ? kNineSteps : kStridedSteps;
  const double waits = nine ? 0.0 : double(g.taps() - 1) * (dense ? kTapUs : kStridedTapUs);
  const double pixels = nine ? tiles_in_rounds(g, request.device.multiprocessors) * 16 * kFragments
                             : double(g.gemm_m());
  // NOTE: warps without channels of their own leave room to the others, but to none of more tiles.
  const double warps = nine ? double(spans_of(g) * kWarps)
                            : double(ceil_div(g.in_channels, std::int64_t{kChannels}));
  const EpilogueKind& epilogue = request.epilogue;
  const bool plain =
      !epilogue.bias && !epilogue.residual && epilogue.activation == Activation::none;
  return kLaunchUs + waits + (plain ? 0.0 : kEpilogueUs) +
         std::max(min_bytes(request) / (kBytesPerUs * memory_share(request.device)),
                  pixels * warps * double(g.taps()) / rate);
}

class GroupedPlan final : public CudaPlan {
 public:
  explicit GroupedPlan(const PlanRequest& request)
      : CudaPlan(request), geometry_(trimmed_device_geometry(request.geometry)) {
    const auto taps = static_cast<int>(geometry_.reduction) / geometry_.channels;
    shared_bytes_ = kWarps * taps * 32 * static_cast<int>(sizeof(uint4));
    const ConvGeometry& g = request.geometry;
    const bool nine = has_nine_taps(g);
    kernel_ = request.dtype == DType::bf16 ? nine ? grouped_kernel<__nv_bfloat16, true>
                                                  : grouped_kernel<__nv_bfloat16, false>
              : nine ? grouped_kernel<__half, true>
                                           : grouped_kernel<__half, false>;
    raise_shared_memory_limit(kernel_, shared_bytes_, "grouped");
    // As many blocks as run at once, so that filters are read once a block.
    const std::int64_t spans = spans_of(g);
    const std::int64_t resident = std::int64_t{std::max(1, request.device.multiprocessors)} *
                                  resident_blocks(kernel_, kThreads, shared_bytes_, "grouped");
    grid_ = dim3(static_cast<unsigned>(std::clamp<std::int64_t>(resident / spans, 1, tiles_of(g))),
                 static_cast<unsigned>(spans));
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    const GroupedArguments arguments{
        .activation = pointers.activation,
        .cache = pointers.cache,
        .filter = pointers.filter,
        .geometry = geometry_,
        .output = conv_output(pointers, request_.output_dtype, g.out_channels, g.out_channels),
        .is_short = is_short(EpilogueParams(pointers.epilogue), request_.output_dtype),
        .columns = FastDivide(g.out[2]),
        .rows = FastDivide(g.out[1]),
        .frames = FastDivide(g.out[0]),
        .tiles = static_cast<int>(tiles_of(g))};
    launch_kernel(kernel_,
                  {.name = "grouped",
                   .grid = grid_,
                   .block = kThreads,
                   .shared_bytes = static_cast<std::size_t>(shared_bytes_),
                   .stream = stream},
                  arguments);
    store_next_cache(pointers, stream);
  }

 private:
  using Kernel = void(GroupedArguments);

  DeviceGeometry geometry_;
  Kernel* kernel_ = nullptr;
  int shared_bytes_ = 0;
  dim3 grid_;
};

class GroupedCandidate final : public KernelCandidate {
 public:
  std::string name() const override { return "grouped"; }
  Device device() const override { return Device::cuda; }
  bool packs_as_dense(const PlanRequest&) const override { return true; }

  Judgement judge(const PlanRequest& request) const override {
    const ConvGeometry& g = request.geometry;
    if (request.dtype == DType::fp32) return "dtype = fp32; legal: bf16 or fp16";
    const std::int64_t width = g.group_channels();
    if (width != g.group_filters() || (width != 2 && width != 4 && width != 8 && width != 16)) {
      return text("C / groups = ", width, ", K / groups = ", g.group_filters(),
                  "; legal: equal, and 2, 4, 8 or 16");
    }
    if (g.groups == 1 || g.in_channels % kVector != 0) {
      return text("groups = ", g.groups, ", channels = ", g.in_channels,
                  "; legal: several groups and a multiple of 4 channels");
    }
    if (g.upsample != 1) return text("upsample = ", g.upsample, "; legal: 1");
    std::string reason = zero_padding_refusal(g);
    if (!reason.empty()) return reason;
    if (g.taps() > kMaxTaps) {
      return text("taps = ", g.taps(), "; legal: at most ", kMaxTaps, " (shared memory)");
    }
    constexpr std::int64_t kMaxChannels = std::int64_t{kMaxGridY} * kWarps * kChannels;
    if (g.in_channels > kMaxChannels) {
      return text("in_channels = ", g.in_channels, "; legal: at most ", kMaxChannels,
                  " (blocks of a grid); nearest: ", kMaxChannels);
    }
    constexpr std::int64_t kMaxPixels = std::numeric_limits<std::int32_t>::max();
    if (g.gemm_m() > kMaxPixels) {
      return text("output pixels = ", g.gemm_m(), "; legal: at most ", kMaxPixels);
    }
    reason = device_geometry_refusal(g);
    if (!reason.empty()) return reason;

    return grouped_us(request);
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<GroupedPlan>(request);
  }
};

}  // namespace

std::unique_ptr<KernelCandidate> make_grouped_candidate() {
  return std::make_unique<GroupedCandidate>();
}

}  // namespace convoy::small
