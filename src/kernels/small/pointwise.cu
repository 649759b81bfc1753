// SPDX-License-Identifier: Apache-2.0
//
// 1×1 convolutions between few channels (post_quant_conv: 16→16; the first layers of networks for
// phones): nothing but a stream. Lanes read their tensor-core fragments straight from memory and
// write the output straight from them. The order of a dot product's elements is free, and so is
// that of the filters among the columns of the MMA: both are dealt so that each lane moves four
// neighbouring channels at a time. A kernel for no more filters than channels has all of them in
// registers; one for more takes 16 after the other.
#include <algorithm>
#include <cmath>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/device_code.cuh"
#include "kernels/common/load_if.cuh"
#include "kernels/common/output.cuh"
#include "kernels/common/short_epilogue.cuh"
#include "kernels/common/time_correction.hpp"
#include "kernels/small/candidates.hpp"
#include "kernels/small/unit_axes.hpp"

namespace convoy::small {
namespace {

constexpr int kBlockThreads = 128;
constexpr int kWarpFragments = 2;  // Of 16 pixels, a warp.
constexpr int kWarpPixels = 16 * kWarpFragments;
constexpr int kBlockPixels = kBlockThreads / 32 * kWarpPixels;
constexpr int kMost = 32;          // Channels and filters that are all in registers.
constexpr int kMostChannels = 64;  // Where filters come 16 after the other,
constexpr int kMostFilters = 512;  // and how many of those.
// Blocks of 1, 2 and 4 MMA steps that a multiprocessor holds, by their registers.
constexpr int kResident[] = {0, 9, 8, 0, 5};

struct PointwiseArguments {
  const void* activation;
  const void* filter;
  std::int64_t pixels;
  int channels;
  int filters;
  int turns;  ///< Of 16 filters that a block takes, one after the other.
  ConvOutput output;
};

/// 16 pixels times 16 filters, which two MMAs share: rows of `a` are pixels eight apart, rows of
/// `b` and `d` the two MMAs.
template <typename Element, int kSteps>
__device__ __forceinline__ void multiply(float (&d)[2][4], const uint2 (&a)[2][kSteps],
                                         const uint2 (&b)[2][kSteps]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const std::uint32_t fragment[4] = {a[0][step].x, a[1][step].x, a[0][step].y, a[1][step].y};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      mma_16x8x16<Element>(d[half], fragment, b[half][step].x, b[half][step].y);
    }
  }
}

/// C = kChannels, K ≤ C; of 8 channels half an MMA step is zeros. kPlain: no epilogue but a bias,
/// output of the input's type, K a multiple of 4.
// NOTE: the plain kernel is one of its own because such a short one waits mostly for its own code.
template <typename Element, int kChannels, bool kPlain>
__global__ void __launch_bounds__(kBlockThreads)
    pointwise_kernel(const __grid_constant__ PointwiseArguments arguments) {
  constexpr int kSteps = (kChannels + 15) / 16;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4, quad = lane % 4 * 4;
  const std::int64_t pixel =
      std::int64_t{blockIdx.x} * kBlockPixels + threadIdx.x / 32 * kWarpPixels + row;
  const auto* from = static_cast<const Element*>(arguments.activation) + pixel * kChannels;

  const bool has_channels = kChannels % 16 == 0 || quad < kChannels;

  // All loads first, so that they are under way together.
  uint2 a[kWarpFragments][2][kSteps];
#pragma unroll
  for (int i = 0; i < kWarpFragments * 2; ++i) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      a[i / 2][i % 2][step] = make_uint2(0, 0);
      if (pixel + i * 8 < arguments.pixels && has_channels) {
        a[i / 2][i % 2][step] =
            *reinterpret_cast<const uint2*>(from + i * 8 * kChannels + step * 16 + quad);
      }
    }
  }
  // Columns of a pair of MMAs: 2j, 2j + 1 of the first are filters 4j, 4j + 1, of the second
  // 4j + 2, 4j + 3.
  uint2 b[kSteps][2][kSteps];
#pragma unroll
  for (int j = 0; j < kSteps * 2; ++j) {
    const int filter = j / 2 * 16 + row / 2 * 4 + j % 2 * 2 + row % 2;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      b[j / 2][j % 2][step] = make_uint2(0, 0);
      if (filter < arguments.filters && has_channels) {
        b[j / 2][j % 2][step] = *reinterpret_cast<const uint2*>(
            static_cast<const Element*>(arguments.filter) + filter * kChannels + step * 16 + quad);
      }
    }
  }

  float bias[kSteps][4] = {};
  if (kPlain && arguments.output.epilogue.bias != nullptr) {
#pragma unroll
    for (int i = 0; i < kSteps * 4; ++i) {
      const int filter = i / 4 * 16 + quad + i % 4;
      if (filter < arguments.filters) {
        bias[i / 4][i % 4] = load_bias(arguments.output.epilogue, filter);
      }
    }
  }

#pragma unroll
  for (int i = 0; i < kWarpFragments; ++i) {
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      float d[2][4] = {};
      multiply<Element>(d, a[i], b[j]);
      const int count = min(4, arguments.filters - (j * 16 + quad));
      if (count <= 0) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::int64_t at = pixel + i * 16 + half * 8;
        float v[4] = {d[0][half * 2], d[0][half * 2 + 1], d[1][half * 2], d[1][half * 2 + 1]};
        if (at >= arguments.pixels) continue;
        if constexpr (kPlain) {
          *reinterpret_cast<uint2*>(static_cast<Element*>(arguments.output.data) +
                                    at * arguments.filters + j * 16 + quad) =
              make_uint2(pack2<Element>(v[0] + bias[j][0], v[1] + bias[j][1]),
                         pack2<Element>(v[2] + bias[j][2], v[3] + bias[j][3]));
        } else {
          store_channels(arguments.output, v, at, j * 16 + quad, count);
        }
      }
    }
  }
}

/// This lane's channels of all MMA steps, of a pixel or filter, from `from` on: 4 of one step, 8
/// neighbours of two. Zeros where that does not exist, and past the last channel.
template <int kSteps, typename Element>
__device__ __forceinline__ void load_steps_if(bool exists, const Element* from, int channel,
                                              int channels, uint2 (&v)[kSteps]) {
  if constexpr (kSteps == 1) {
    v[0] = load_if<uint2>(exists && channel < channels, from);
  } else {
#pragma unroll
    for (int i = 0; i < kSteps; i += 2) {
      const uint4 both = load_if<uint4>(exists && channel + i * 16 < channels, from + i * 16);
      v[i] = make_uint2(both.x, both.y);
      v[i + 1] = make_uint2(both.z, both.w);
    }
  }
}

/// C ≤ 16·kSteps, a multiple of 8; any K, of which a block computes `turns` times 16. kShort: a
/// short epilogue, output of the input's type, K a multiple of 4.
// NOTE: 16 bytes a lane where they can be: a warp's load is then 64 bytes of each pixel, half as
// many requests to L2 as 32 bytes are.
template <typename Element, int kSteps, bool kShort>
__global__ void __launch_bounds__(kBlockThreads, kShort ? kResident[kSteps] : 1)
    pointwise_wide_kernel(const __grid_constant__ PointwiseArguments arguments) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4, quad = lane % 4 * 4;
  const int channels = arguments.channels, filters = arguments.filters;
  const std::int64_t pixel =
      std::int64_t{blockIdx.x} * kBlockPixels + threadIdx.x / 32 * kWarpPixels + row;
  const int channel = kSteps == 1 ? quad : 2 * quad;  // This lane's first.
  const auto* from = static_cast<const Element*>(arguments.activation) + pixel * channels + channel;

  const int left = static_cast<int>(min(std::int64_t{kWarpPixels}, arguments.pixels - pixel));

  uint2 a[kWarpFragments][2][kSteps];
#pragma unroll
  for (int i = 0; i < kWarpFragments * 2; ++i) {
    load_steps_if(i * 8 < left, from + i * 8 * channels, channel, channels, a[i / 2][i % 2]);
  }
  struct Filters {
    uint2 b[2][kSteps];
    float bias[4];
  };
  const auto load = [&](int first) {
    Filters loaded;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int filter = first + row / 2 * 4 + half * 2 + row % 2;
      load_steps_if(filter < filters,
                    static_cast<const Element*>(arguments.filter) + filter * channels + channel,
                    channel, channels, loaded.b[half]);
    }
    load_biases(arguments.output.epilogue, loaded.bias, first + quad,
                max(0, min(4, filters - first - quad)));
    return loaded;
  };

  const int begin = static_cast<int>(blockIdx.y) * arguments.turns * 16;
  const int end = min(filters, begin + arguments.turns * 16);
  Filters next = load(begin);
#pragma unroll 1
  for (int first = begin; first < end; first += 16) {
    const Filters now = next;
    if (first + 16 < end) next = load(first + 16);
    const int count = min(4, filters - first - quad);
#pragma unroll
    for (int i = 0; i < kWarpFragments; ++i) {
      float d[2][4] = {};
      multiply<Element>(d, a[i], now.b);
      if (count <= 0) continue;
      if constexpr (kShort) {
        float v[2][4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          v[half][0] = d[0][half * 2], v[half][1] = d[0][half * 2 + 1];
          v[half][2] = d[1][half * 2], v[half][3] = d[1][half * 2 + 1];
        }
        apply_short_epilogue<Element>(arguments.output, v, now.bias, NoResidual{});
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const std::int64_t at = pixel + i * 16 + half * 8;
          if (i * 16 + half * 8 >= left) continue;
          *reinterpret_cast<uint2*>(static_cast<Element*>(arguments.output.data) + at * filters +
                                    first + quad) =
              make_uint2(pack2<Element>(v[half][0], v[half][1]),
                         pack2<Element>(v[half][2], v[half][3]));
        }
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const std::int64_t at = pixel + i * 16 + half * 8;
          float v[4] = {d[0][half * 2], d[0][half * 2 + 1], d[1][half * 2], d[1][half * 2 + 1]};
          if (at >= arguments.pixels) continue;
          store_channels(arguments.output, v, now.bias, at, first + quad, count);
        }
      }
    }
  }
}

/// Few enough of both for `pointwise_kernel`.
bool are_few(const ConvGeometry& g) {
  const std::int64_t c = g.in_channels;
  return (c == 8 || c == 16 || c == kMost) && g.out_channels <= c;
}

/// How the filters of a layer that `pointwise_wide_kernel` takes are dealt out.
struct FilterSplit {
  int turns = 1;   ///< Of a block,
  int blocks = 1;  ///< and blocks of the same pixels.
};
// MMA steps of a kernel, of 16 channels: one, or whole pairs.
int steps_of(const ConvGeometry& g) {
  return g.in_channels <= 16 ? 1 : g.in_channels <= 32 ? 2 : 4;
}
FilterSplit split_filters(const ConvGeometry& g, int multiprocessors) {
  // As many blocks as are resident at once: a turn more is a way to memory more.
  const std::int64_t resident = std::int64_t{multiprocessors} * kResident[steps_of(g)];
  const std::int64_t turns = ceil_div(g.out_channels, 16);
  const std::int64_t wanted = ceil_div(ceil_div(g.gemm_m(), kBlockPixels) * turns, resident);
  FilterSplit split;
  split.turns = static_cast<int>(std::max<std::int64_t>(1, std::min(wanted, turns)));
  split.blocks = static_cast<int>(ceil_div(turns, split.turns));
  return split;
}

class PointwisePlan final : public CudaPlan {
 public:
  explicit PointwisePlan(const PlanRequest& request) : CudaPlan(request) {
    if (!are_few(request.geometry)) {
      split_ = split_filters(request.geometry, std::max(1, request.device.multiprocessors));
    }
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    const PointwiseArguments arguments{
        .activation = pointers.activation,
        .filter = pointers.filter,
        .pixels = g.gemm_m(),
        .channels = static_cast<int>(g.in_channels),
        .filters = static_cast<int>(g.out_channels),
        .turns = split_.turns,
        .output = conv_output(pointers, request_.output_dtype, g.out_channels, g.out_channels)};
    const auto blocks = static_cast<unsigned>(ceil_div(g.gemm_m(), kBlockPixels));
    const EpilogueParams& epilogue = arguments.output.epilogue;
    const bool is_short_enough =
        are_few(g) ? at_most_a_bias(epilogue)
                   : is_short(epilogue, request_.output_dtype) && !epilogue.has_residual;
    const bool plain =
        is_short_enough && request_.output_dtype == request_.dtype && g.out_channels % 4 == 0;
    Kernel* const kernel = request_.dtype == DType::bf16 ? choose_kernel<__nv_bfloat16>(plain)
                                                         : choose_kernel<__half>(plain);
    launch_kernel(kernel,
                  {.name = "pointwise",
                   .grid = dim3(blocks, static_cast<unsigned>(split_.blocks)),
                   .block = kBlockThreads,
                   .stream = stream},
                  arguments);
    store_next_cache(pointers, stream);
  }

 private:
  using Kernel = void(PointwiseArguments);

  template <typename Element>
  Kernel* choose_kernel(bool plain) const {
    if (!are_few(request_.geometry)) return choose_wide_kernel<Element>(plain);
    const auto choose = [&]<int kChannels>() -> Kernel* {
      return plain ? pointwise_kernel<Element, kChannels, true>
                   : pointwise_kernel<Element, kChannels, false>;
    };
    switch (request_.geometry.in_channels) {
      case 8:
        return choose.template operator()<8>();
      case 16:
        return choose.template operator()<16>();
      default:
        return choose.template operator()<kMost>();
    }
  }
  template <typename Element>
  Kernel* choose_wide_kernel(bool is_short) const {
    const auto choose = [&]<int kSteps>() -> Kernel* {
      return is_short ? pointwise_wide_kernel<Element, kSteps, true>
                      : pointwise_wide_kernel<Element, kSteps, false>;
    };
    switch (steps_of(request_.geometry)) {
      case 1:
        return choose.template operator()<1>();
      case 2:
        return choose.template operator()<2>();
      default:
        return choose.template operator()<4>();
    }
  }

  FilterSplit split_;
};

// What follows a turn of `pointwise_wide_kernel`: stores of vectors behind a short epilogue, of
// single elements, or behind any epilogue.
enum class TurnEnd { brief, elements, any };

// Model time of that kernel, fitted to 105 times on an H200; 49 of other layers within 12 %
// (docs/lab/2026-11-23-depthwise-any.md). A turn is a way to memory, which blocks of a
// multiprocessor take together.
double wide_us(const PlanRequest& request, TurnEnd end) {
  constexpr double kLaunchUs = 4.66, kStepUs = 0.35;  // And the code, a step of channels.
  constexpr double kBlockTurnUs = 0.086, kLongBlockTurnUs = 0.17;
  constexpr double kElementsUs = 1.2, kAnyEndUs = 3.0;
  constexpr double kActivationUs = 0.08, kBytesPerUs = 3.8e6;
  // Rows of no whole sectors: what many turns store begins and ends with half a sector.
  constexpr double kHalfSectors = 4.8;
  constexpr int kManyTurns = 3;
  const ConvGeometry& g = request.geometry;
  const int processors = std::max(1, request.device.multiprocessors), steps = steps_of(g);
  const FilterSplit split = split_filters(g, processors);
  const double blocks =
      double(ceil_div(g.gemm_m(), kBlockPixels)) * split.blocks / processors;  // Of one.
  const double resident = kResident[steps], at_once = std::min(blocks, resident);
  double turn_us = end == TurnEnd::brief      ? kBlockTurnUs * at_once
                   : end == TurnEnd::elements ? kElementsUs + kLongBlockTurnUs * at_once
                                              : kAnyEndUs + kLongBlockTurnUs * at_once;
  if (g.out_channels % 16 != 0 && split.turns >= kManyTurns) turn_us *= kHalfSectors;
  return kLaunchUs + kStepUs * steps +
         (request.epilogue.activation == Activation::none ? 0.0 : kActivationUs) +
         split.turns * turn_us * std::max(1.0, blocks / resident) +
         min_bytes(request) / (kBytesPerUs * memory_share(request.device));
}

class PointwiseCandidate final : public KernelCandidate {
 public:
  std::string name() const override { return "pointwise"; }
  Device device() const override { return Device::cuda; }
  bool packs_as_dense(const PlanRequest&) const override { return true; }

  Judgement judge(const PlanRequest& request) const override {
    const ConvGeometry& g = request.geometry;
    if (request.dtype == DType::fp32) return "dtype = fp32; legal: bf16 or fp16";
    if (g.groups != 1) return text("groups = ", g.groups, "; legal: 1");
    if (g.in_channels % 8 != 0 || g.in_channels > kMostChannels) {
      return text(
          "in_channels = ", g.in_channels, "; legal: a multiple of 8, at most ", kMostChannels,
          "; nearest: ", std::clamp<std::int64_t>((g.in_channels + 4) / 8 * 8, 8, kMostChannels));
    }
    if (g.out_channels > kMostFilters) {
      return text("out_channels = ", g.out_channels, "; legal: at most ", kMostFilters,
                  "; nearest: ", kMostFilters);
    }
    if (std::string reason = pointwise_shape_refusal(g); !reason.empty()) return reason;
    constexpr std::int64_t kMaxPixels =
        std::int64_t{std::numeric_limits<std::int32_t>::max()} * kBlockPixels;
    if (g.gemm_m() > kMaxPixels) {
      return text("pixels = ", g.gemm_m(), "; legal: at most ", kMaxPixels, " (blocks of a grid)");
    }
    // Measured on an H200: the code of any other epilogue than a short one comes cold.
    const EpilogueKind& epilogue = request.epilogue;
    const Activation activation = epilogue.activation;
    const bool cheap =
        activation == Activation::none || (!are_few(g) && is_short(epilogue, request.output_dtype));
    const bool vectors = request.output_dtype == request.dtype && g.out_channels % 4 == 0;
    const bool short_one = !epilogue.residual && cheap && (are_few(g) || vectors);
    const double more_us = short_one ? 0.0 : (epilogue.residual ? 9.0 : 22.0);
    const double us =
        are_few(g) ? more_us + 5.0 + min_bytes(request) / (3.2e6 * memory_share(request.device))
                   : wide_us(request, short_one                     ? TurnEnd::brief
                                      : epilogue.residual || !cheap ? TurnEnd::any
                                                                    : TurnEnd::elements);
    return corrected_us(CorrectedKernel::pointwise, {.us = us}, request);
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<PointwisePlan>(request);
  }
};

}  // namespace

std::unique_ptr<KernelCandidate> make_pointwise_candidate() {
  return std::make_unique<PointwiseCandidate>();
}

}  // namespace convoy::small
