// SPDX-License-Identifier: Apache-2.0
//
// 1×1 convolutions between few channels (post_quant_conv: 16→16): nothing but a stream. Lanes read
// their tensor-core fragments straight from memory and write the output straight from them. The
// order of a dot product's elements is free, and so is that of the filters among the columns of the
// MMA: both are dealt so that each lane moves four neighbouring channels at a time.
#include <algorithm>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/device_code.cuh"
#include "kernels/common/output.cuh"
#include "kernels/small/candidates.hpp"

namespace convoy::small {
namespace {

constexpr int kBlockThreads = 128;
constexpr int kWarpFragments = 2;  // Of 16 pixels, a warp.
constexpr int kWarpPixels = 16 * kWarpFragments;
constexpr int kBlockPixels = kBlockThreads / 32 * kWarpPixels;
constexpr int kMost = 32;  // Channels and filters.

struct PointwiseArguments {
  const void* activation;
  const void* filter;
  std::int64_t pixels;
  int filters;
  ConvOutput output;
};

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
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const std::uint32_t fragment[4] = {a[i][0][step].x, a[i][1][step].x, a[i][0][step].y,
                                           a[i][1][step].y};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          mma_16x8x16<Element>(d[half], fragment, b[j][half][step].x, b[j][half][step].y);
        }
      }
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

class PointwisePlan final : public CudaPlan {
 public:
  using CudaPlan::CudaPlan;

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    const PointwiseArguments arguments{
        .activation = pointers.activation,
        .filter = pointers.filter,
        .pixels = g.gemm_m(),
        .filters = static_cast<int>(g.out_channels),
        .output = conv_output(pointers, request_.output_dtype, g.out_channels, g.out_channels)};
    const auto blocks = static_cast<unsigned>(ceil_div(g.gemm_m(), kBlockPixels));
    const bool plain = at_most_a_bias(arguments.output.epilogue) &&
                       request_.output_dtype == request_.dtype && g.out_channels % 4 == 0;
    Kernel* const kernel = request_.dtype == DType::bf16 ? choose_kernel<__nv_bfloat16>(plain)
                                                         : choose_kernel<__half>(plain);
    launch_kernel(kernel,
                  {.name = "pointwise", .grid = blocks, .block = kBlockThreads, .stream = stream},
                  arguments);
    store_next_cache(pointers, stream);
  }

 private:
  using Kernel = void(PointwiseArguments);

  template <typename Element>
  Kernel* choose_kernel(bool plain) const {
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
};

class PointwiseCandidate final : public KernelCandidate {
 public:
  std::string name() const override { return "pointwise"; }
  Device device() const override { return Device::cuda; }
  bool packs_as_dense(const PlanRequest&) const override { return true; }

  Judgement judge(const PlanRequest& request) const override {
    const ConvGeometry& g = request.geometry;
    if (request.dtype == DType::fp32) return "dtype = fp32; legal: bf16 or fp16";
    if (g.groups != 1) return text("groups = ", g.groups, "; legal: 1");
    if (g.in_channels != 8 && g.in_channels != 16 && g.in_channels != kMost) {
      return text("in_channels = ", g.in_channels, "; legal: 8, 16 or 32");
    }
    if (g.out_channels > g.in_channels) {
      return text("out_channels = ", g.out_channels,
                  "; legal: at most in_channels = ", g.in_channels, "; nearest: ", g.in_channels);
    }
    if (g.upsample != 1) return text("upsample = ", g.upsample, "; legal: 1");
    if (g.cached_frames != 0) return text("cached_frames = ", g.cached_frames, "; legal: 0");
    for (int axis = 0; axis < 3; ++axis) {
      if (g.filter[axis] != 1 || g.stride[axis] != 1 || g.pad_begin[axis] != 0 ||
          g.pad_end[axis] != 0) {
        return text("filter, stride, padding of ", kAxisNames[axis], " = ", g.filter[axis], ", ",
                    g.stride[axis], ", ", g.pad_begin[axis], " and ", g.pad_end[axis],
                    "; legal: 1, 1, 0 and 0");
      }
    }
    constexpr std::int64_t kMaxPixels =
        std::int64_t{std::numeric_limits<std::int32_t>::max()} * kBlockPixels;
    if (g.gemm_m() > kMaxPixels) {
      return text("pixels = ", g.gemm_m(), "; legal: at most ", kMaxPixels, " (blocks of a grid)");
    }
    // Measured on an H200: the code of any other epilogue than a bias comes cold.
    const EpilogueKind& epilogue = request.epilogue;
    const bool short_one = !epilogue.residual && epilogue.activation == Activation::none;
    return (short_one ? 5.0 : (epilogue.residual ? 14.0 : 27.0)) +
           min_bytes(request) / (3.2e6 * memory_share(request.device));
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
