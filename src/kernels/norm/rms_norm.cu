// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm over the channels of each pixel, in one pass: a team of lanes holds a pixel in registers.
// Pixels are walked from the end to the start: the kernel before wrote the last ones last, so that
// they are read from the L2 cache, and the one after finds the first ones there.
#include <algorithm>

#include "core/checked.hpp"
#include "kernels/common/launch.hpp"
#include "kernels/norm/norm.cuh"
#include "kernels/norm/norm.hpp"

namespace convoy::norm {
namespace {

constexpr int kRmsThreads = 256;
constexpr int kBlocks = 4;       // Of a multiprocessor.
constexpr int kMostVectors = 4;  // Of a lane.

struct RmsNormArguments {
  const void* input = nullptr;
  void* output = nullptr;
  std::int64_t pixels = 0;
  int channels = 0;
  int lanes = 32;  ///< Of a team, a power of two.
  float epsilon = 0;
  bool norm_floor = false;
  bool streaming = false;
  NormParameters parameters;
};

/// What the pixel is multiplied by.
__device__ __forceinline__ float factor_of(const RmsNormArguments& arguments, float squares) {
  const auto channels = static_cast<float>(arguments.channels);
  if (!arguments.norm_floor) return 1.0f / sqrtf(squares / channels + arguments.epsilon);
  const float norm = sqrtf(squares);
  // NOTE: !(norm < epsilon), so that a NaN stays.
  return sqrtf(channels) / (norm < arguments.epsilon ? arguments.epsilon : norm);
}

/// Sum over the lanes of a team; every lane gets it.
__device__ __forceinline__ float sum_over(float value, int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, mask);
  }
  return value;
}

/// Scale and bias, [C] each, as fp32 in shared memory.
__device__ __forceinline__ void load_parameters(const RmsNormArguments& arguments, float* scale,
                                                float* bias) {
  const NormParameters& p = arguments.parameters;
  for (int i = static_cast<int>(threadIdx.x); i < arguments.channels; i += kRmsThreads) {
    scale[i] = load_parameter(p.scale, p.dtype, i, 1.0f);
    bias[i] = load_parameter(p.bias, p.dtype, i, 0.0f);
  }
  __syncthreads();
}

/// kVectors: of a lane. A team of `lanes` lanes covers the pixel: lanes · kVectors · kVec ≥ C.
template <typename Element, int kVec, int kVectors, NormActivation kActivation>
__global__ void __launch_bounds__(kRmsThreads, kBlocks)
    rms_norm_kernel(const __grid_constant__ RmsNormArguments arguments) {
  extern __shared__ float4 shared[];
  float* scale = reinterpret_cast<float*>(shared);
  float* bias = scale + arguments.channels;
  ptx::dependent_launch_wait();
  ptx::dependent_launch_trigger();
  load_parameters(arguments, scale, bias);

  const int lanes = arguments.lanes, lane = static_cast<int>(threadIdx.x) % lanes;
  const int teams = kRmsThreads / lanes, columns = arguments.channels / kVec;
  const int team = static_cast<int>(threadIdx.x) / lanes;
  const std::int64_t stride = std::int64_t{gridDim.x} * teams;
  const bool has_bias = arguments.parameters.bias != nullptr;
  using Vector = ChannelVector<Element, kVec>;
  const auto load = [&](Vector(&vectors)[kVectors], std::int64_t pixel) {
    const auto* input = static_cast<const Element*>(arguments.input) + pixel * arguments.channels;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int column = lane + i * lanes;
      if (pixel >= 0 && column < columns) vectors[i].load_last(input + column * kVec);
    }
  };
  // NOTE: all lanes of a warp take every turn, for the shuffles; a team past the start does
  // nothing.
  const std::int64_t turns = (arguments.pixels + stride - 1) / stride;
  std::int64_t pixel = arguments.pixels - 1 - (std::int64_t{blockIdx.x} * teams + team);
  Vector vectors[kVectors] = {}, following[kVectors] = {};
  load(vectors, pixel);
  for (std::int64_t turn = 0; turn < turns; ++turn, pixel -= stride) {
    load(following, pixel - stride);  // Under way while this one is worked on.
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float v[kVec];
      vectors[i].widen(v);
#pragma unroll
      for (int j = 0; j < kVec; ++j) squares = fmaf(v[j], v[j], squares);
    }
    const float factor = factor_of(arguments, sum_over(squares, lanes));
    auto* output = static_cast<Element*>(arguments.output) + pixel * arguments.channels;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int column = lane + i * lanes;
      if (pixel < 0 || column >= columns) continue;
      float v[kVec];
      vectors[i].widen(v);
#pragma unroll
      for (int j = 0; j < kVec; ++j) v[j] = v[j] * factor * scale[column * kVec + j];
      if (has_bias) {
#pragma unroll
        for (int j = 0; j < kVec; ++j) v[j] += bias[column * kVec + j];
      }
      activate_norm<kActivation>(arguments.parameters.epilogue, v);
      vectors[i].narrow(v);
      vectors[i].store(output + column * kVec, arguments.streaming);
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) vectors[i] = following[i];
  }
}

/// Any number of channels, and any activation: a warp reads its pixel twice, the second time from
/// the cache.
template <typename Element, int kVec, NormActivation kActivation>
__global__ void __launch_bounds__(kRmsThreads)
    rms_norm_wide_kernel(const __grid_constant__ RmsNormArguments arguments) {
  const int lane = static_cast<int>(threadIdx.x) % 32, columns = arguments.channels / kVec;
  constexpr int kWarps = kRmsThreads / 32;
  const NormParameters& p = arguments.parameters;
  ptx::dependent_launch_wait();
  ptx::dependent_launch_trigger();
  const std::int64_t stride = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t pixel =
           arguments.pixels - 1 - (std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32);
       pixel >= 0; pixel -= stride) {
    const auto* input = static_cast<const Element*>(arguments.input) + pixel * arguments.channels;
    auto* output = static_cast<Element*>(arguments.output) + pixel * arguments.channels;
    float squares = 0;
    for (int column = lane; column < columns; column += 32) {
      ChannelVector<Element, kVec> vector;
      float v[kVec];
      vector.load(input + column * kVec);
      vector.widen(v);
#pragma unroll
      for (int j = 0; j < kVec; ++j) squares = fmaf(v[j], v[j], squares);
    }
    const float factor = factor_of(arguments, sum_over(squares, 32));
    for (int column = lane; column < columns; column += 32) {
      ChannelVector<Element, kVec> vector;
      float v[kVec];
      vector.load_last(input + column * kVec);
      vector.widen(v);
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        const int channel = column * kVec + j;
        v[j] = fmaf(v[j] * factor, load_parameter(p.scale, p.dtype, channel, 1.0f),
                    load_parameter(p.bias, p.dtype, channel, 0.0f));
      }
      activate_norm<kActivation>(p.epilogue, v);
      vector.narrow(v);
      vector.store(output + column * kVec, arguments.streaming);
    }
  }
}

/// 1 / rms of every pixel, fp32: a team of `lanes` lanes has a pixel, summed in the order of
/// rms_norm_kernel, whose factors have the same bits.
template <typename Element, int kVec>
__global__ void __launch_bounds__(kRmsThreads)
    rms_inverse_kernel(const __grid_constant__ RmsNormArguments arguments) {
  constexpr int kPixels = 4;  // Of a team, under way at the same time.
  const int lanes = arguments.lanes, lane = static_cast<int>(threadIdx.x) % lanes;
  const int teams = kRmsThreads / lanes, columns = arguments.channels / kVec;
  const std::int64_t team = std::int64_t{blockIdx.x} * teams + threadIdx.x / lanes;
  const std::int64_t stride = std::int64_t{gridDim.x} * teams;
  auto* const output = static_cast<float*>(arguments.output);
  ptx::dependent_launch_wait();
  ptx::dependent_launch_trigger();
  // NOTE: all lanes of a warp take every turn, for the shuffles.
  const std::int64_t turns = (arguments.pixels + stride * kPixels - 1) / (stride * kPixels);
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    const std::int64_t first = arguments.pixels - 1 - turn * stride * kPixels - team;
    float squares[kPixels] = {};
    for (int column = lane; column < columns; column += lanes) {
      ChannelVector<Element, kVec> vectors[kPixels] = {};
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
        const std::int64_t pixel = first - i * stride;
        if (pixel < 0) continue;
        vectors[i].load(static_cast<const Element*>(arguments.input) + pixel * arguments.channels +
                        column * kVec);
      }
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
        float v[kVec];
        vectors[i].widen(v);
#pragma unroll
        for (int j = 0; j < kVec; ++j) squares[i] = fmaf(v[j], v[j], squares[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      const float factor = factor_of(arguments, sum_over(squares[i], lanes));
      const std::int64_t pixel = first - i * stride;
      if (lane == 0 && pixel >= 0) output[pixel] = factor;
    }
  }
}

class RmsNorm final : public NormKernel {
 public:
  explicit RmsNorm(const NormRequest& request) : request_(request) {
    const auto channels = static_cast<int>(request.channels);
    const int wide = 16 / static_cast<int>(size_of(request.options.dtype));
    vector_ = channels % wide == 0 ? wide : 1;
    const int columns = channels / vector_;
    // The fewest idle lanes; then the most vectors a lane, as long as a team reads 64 bytes in a
    // row.
    int idle = columns + 1;
    const bool has_teams = norm_activation(request.options.activation) != NormActivation::any;
    for (int vectors = 1; has_teams && vector_ > 1 && vectors <= kMostVectors; ++vectors) {
      int lanes = 1;
      while (lanes * vectors < columns) lanes *= 2;
      const int left = lanes * vectors - columns;
      if (lanes > 32 || left > idle) continue;
      if (left == idle && lanes * vector_ * static_cast<int>(size_of(request.options.dtype)) < 64) {
        continue;
      }
      idle = left;
      lanes_ = lanes;
      vectors_ = vectors;
    }
    const std::int64_t teams = kRmsThreads / (vectors_ == 0 ? 32 : lanes_);
    grid_ = static_cast<unsigned>(std::min<std::int64_t>(
        ceil_div(request.pixels, teams), std::int64_t{request.device.multiprocessors} * kBlocks));
    const std::size_t bytes =
        static_cast<std::size_t>(request.elements()) * size_of(request.options.dtype);
    streaming_ = bytes > 2 * request.device.l2_bytes;
  }

  std::string name() const override {
    return writes_coefficients() ? "rms_norm_coefficients" : "rms_norm";
  }

  void run(const NormArguments& given, cudaStream_t stream) const override {
    const RmsNormArguments arguments{.input = given.input,
                                     .output = given.output,
                                     .pixels = request_.pixels,
                                     .channels = static_cast<int>(request_.channels),
                                     .lanes = lanes_,
                                     .epsilon = request_.epsilon,
                                     .norm_floor = request_.rule == RmsEpsilon::norm_floor,
                                     .streaming = streaming_,
                                     .parameters = NormParameters(given, request_.options)};
    dispatch_element(request_.options.dtype, [&]<typename Element>() {
      if (writes_coefficients()) {
        const auto kernel = vector_ == 1 ? rms_inverse_kernel<Element, 1>
                                         : rms_inverse_kernel<Element, kChannelVector<Element>>;
        return launch_kernel(kernel,
                             {.name = "rms_norm_coefficients",
                              .grid = grid_,
                              .block = kRmsThreads,
                              .stream = stream,
                              .overlapped = true},
                             arguments);
      }
      dispatch_activation(request_.options.activation, [&]<NormActivation kActivation>() {
        launch<Element, kActivation>(arguments, stream);
      });
    });
  }

 private:
  template <typename Element, NormActivation kActivation>
  void launch(const RmsNormArguments& arguments, cudaStream_t stream) const {
    constexpr int kVec = kChannelVector<Element>;
    const std::size_t shared = static_cast<std::size_t>(arguments.channels) * 2 * sizeof(float);
    const auto start = [&](auto kernel, std::size_t bytes) {
      launch_kernel(kernel,
                    {.name = "rms_norm",
                     .grid = grid_,
                     .block = kRmsThreads,
                     .shared_bytes = bytes,
                     .stream = stream,
                     .overlapped = true},
                    arguments);
    };
    if (vector_ == 1) {
      return start(rms_norm_wide_kernel<Element, 1, NormActivation::any>, 0);
    }
    if constexpr (kActivation != NormActivation::any) {
      switch (vectors_) {
        case 1:
          return start(rms_norm_kernel<Element, kVec, 1, kActivation>, shared);
        case 2:
          return start(rms_norm_kernel<Element, kVec, 2, kActivation>, shared);
        case 3:
          return start(rms_norm_kernel<Element, kVec, 3, kActivation>, shared);
        case 4:
          return start(rms_norm_kernel<Element, kVec, 4, kActivation>, shared);
      }
    }
    start(rms_norm_wide_kernel<Element, kVec, kActivation>, 0);
  }

  bool writes_coefficients() const { return request_.options.result == NormResult::coefficients; }

  NormRequest request_;
  int vector_ = 1;
  int lanes_ = 32;
  int vectors_ = 0;  ///< 0: the kernel for many channels or any activation.
  unsigned grid_ = 1;
  bool streaming_ = false;
};

}  // namespace

std::unique_ptr<NormKernel> make_rms_norm(const NormRequest& request) {
  return std::make_unique<RmsNorm>(request);
}

}  // namespace convoy::norm
