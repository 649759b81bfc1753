// SPDX-License-Identifier: Apache-2.0
//
// A chain of pointwise steps in one pass: a thread has 16 bytes of channels of a pixel, loads them
// of every operand at once, and does the steps in registers. Memory bounds it, so the steps are
// data, not code: each is a branch that all threads take alike.
#include "kernels/elementwise/elementwise.hpp"

#include <algorithm>
#include <limits>

#include "core/text.hpp"
#include "kernels/common/channel_vector.cuh"
#include "kernels/common/epilogue.cuh"
#include "kernels/common/fast_divide.hpp"
#include "kernels/common/launch.hpp"
#include "kernels/common/ptx.cuh"

namespace convoy::elementwise {
namespace {

constexpr int kThreads = 256;
constexpr int kOperands = ElementwiseProblem::kOperands;

/// ElementwiseOperand as the kernel has it.
struct OperandParams {
  const void* data = nullptr;
  std::int64_t strides[4] = {};
  FastDivide ratio[3];
  int offset[3] = {};
  bool dense = false;     ///< Lies as the output does.
  bool repeated = false;  ///< One value for all channels of a pixel.
};

struct StepParams {
  ElementwiseOp op = ElementwiseOp::load;
  int operand = 0;
  float number = 0.0f;
  EpilogueParams activation;  ///< The activation and its values only.
};

struct ElementwiseParams {
  void* output = nullptr;
  const float* scale = nullptr;  ///< [N, C] of an affine step.
  const float* shift = nullptr;
  std::int64_t vectors = 0;
  FastDivide vectors_of_pixel, width, height, depth;
  int channels = 0;
  int operands = 0;
  int steps = 0;
  bool with_coordinates = false;  ///< Somebody wants to know where a vector is.
  OperandParams operand[kOperands];
  StepParams step[ElementwiseProblem::kSteps];
};

/// Where a vector is: n, d, h, w and its first channel.
struct Place {
  int at[4] = {};
  int channel = 0;
};

__device__ __forceinline__ Place place_of(const ElementwiseParams& p, int vector, int width) {
  Place place;
  int pixel = p.vectors_of_pixel.divide(vector);
  place.channel = p.vectors_of_pixel.remainder(vector, pixel) * width;
  int rest = p.width.divide(pixel);
  place.at[3] = p.width.remainder(pixel, rest);
  pixel = p.height.divide(rest);
  place.at[2] = p.height.remainder(rest, pixel);
  rest = p.depth.divide(pixel);
  place.at[1] = p.depth.remainder(pixel, rest);
  place.at[0] = rest;
  return place;
}

template <typename Element, int kVec>
__device__ __forceinline__ ChannelVector<Element, kVec> load_operand(const OperandParams& operand,
                                                                     const Place& place,
                                                                     std::int64_t vector) {
  ChannelVector<Element, kVec> values;
  const Element* data = static_cast<const Element*>(operand.data);
  if (operand.dense) {
    values.load(data + vector * kVec);
    return values;
  }
  std::int64_t element = place.at[0] * operand.strides[0];
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    element += operand.ratio[axis].divide(place.at[axis + 1] + operand.offset[axis]) *
               operand.strides[axis + 1];
  }
  if (operand.repeated) {
    const float one = to_float(data[element]);
    float all[kVec];
#pragma unroll
    for (float& v : all) v = one;
    values.narrow(all);
  } else {
    values.load(data + element + place.channel);
  }
  return values;
}

/// Of neighbouring channels.
template <int kVec>
__device__ __forceinline__ void load_factors(const float* from, float (&factors)[kVec]) {
  if constexpr (kVec == 1) {
    factors[0] = __ldg(from);
  } else {
#pragma unroll
    for (int i = 0; i < kVec; i += 4) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(from + i));
      factors[i] = four.x, factors[i + 1] = four.y;
      factors[i + 2] = four.z, factors[i + 3] = four.w;
    }
  }
}

template <typename Element, int kVec>
__global__ void __launch_bounds__(kThreads, 4)
    elementwise_kernel(const __grid_constant__ ElementwiseParams p) {
  ptx::dependent_launch_wait();
  ptx::dependent_launch_trigger();
  const auto round = [](float(&v)[kVec]) {
#pragma unroll
    for (float& x : v) x = rounded<Element>(x);
  };
  for (std::int64_t vector = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; vector < p.vectors;
       vector += std::int64_t{gridDim.x} * kThreads) {
    const Place place = p.with_coordinates ? place_of(p, static_cast<int>(vector), kVec) : Place{};
    ChannelVector<Element, kVec> raw[kOperands];
#pragma unroll
    for (int i = 0; i < kOperands; ++i) {
      if (i < p.operands) raw[i] = load_operand<Element, kVec>(p.operand[i], place, vector);
    }
    float v[kVec], kept[kVec] = {};
    raw[0].widen(v);
#pragma unroll 1
    for (int s = 0; s < p.steps; ++s) {
      const StepParams& step = p.step[s];
      if (step.op == ElementwiseOp::activation) {
        // NOTE: the commonest one apart, since a function over all of them is long.
        if (step.activation.activation == Activation::silu) {
#pragma unroll
          for (float& x : v) x = __fdividef(x, 1.0f + __expf(-x));
        } else {
          activate(step.activation, v);
        }
        round(v);
        continue;
      }
      if (step.op == ElementwiseOp::affine) {
        const int first = place.at[0] * p.channels + place.channel;
        float scale[kVec], shift[kVec];
        load_factors(p.scale + first, scale);
        load_factors(p.shift + first, shift);
#pragma unroll
        for (int i = 0; i < kVec; ++i) v[i] = fmaf(v[i], scale[i], shift[i]);
        round(v);
        continue;
      }
      float x[kVec];
      switch (step.operand) {
        case 0:
          raw[0].widen(x);
          break;
        case 1:
          raw[1].widen(x);
          break;
        case 2:
          raw[2].widen(x);
          break;
        case 3:
          raw[3].widen(x);
          break;
        case ElementwiseStep::kKept:
#pragma unroll
          for (int i = 0; i < kVec; ++i) x[i] = kept[i];
          break;
        default:
#pragma unroll
          for (int i = 0; i < kVec; ++i) x[i] = step.number;
          break;
      }
      switch (step.op) {
        case ElementwiseOp::load:
#pragma unroll
          for (int i = 0; i < kVec; ++i) kept[i] = v[i], v[i] = x[i];
          break;
          // NOTE: the _rn functions, which the compiler does not contract: fp32 is to be rounded
          // after every step too.
        case ElementwiseOp::add:
#pragma unroll
          for (int i = 0; i < kVec; ++i) v[i] = __fadd_rn(v[i], x[i]);
          break;
        case ElementwiseOp::subtract:
#pragma unroll
          for (int i = 0; i < kVec; ++i) v[i] = __fsub_rn(v[i], x[i]);
          break;
        case ElementwiseOp::subtract_from:
#pragma unroll
          for (int i = 0; i < kVec; ++i) v[i] = __fsub_rn(x[i], v[i]);
          break;
        default:
#pragma unroll
          for (int i = 0; i < kVec; ++i) v[i] = __fmul_rn(v[i], x[i]);
          break;
      }
      round(v);
    }
    ChannelVector<Element, kVec> result;
    result.narrow(v);
    result.store(static_cast<Element*>(p.output) + vector * kVec, false);
  }
}

class Chain final : public ElementwiseKernel {
 public:
  explicit Chain(const ElementwiseRequest& request) : request_(request) {
    const ElementwiseProblem& problem = request.problem;
    params_.channels = static_cast<int>(problem.channels);
    params_.operands = static_cast<int>(problem.operands.size());
    params_.steps = static_cast<int>(problem.steps.size());
    params_.width = FastDivide(problem.width);
    params_.height = FastDivide(problem.height);
    params_.depth = FastDivide(problem.depth);
    for (int i = 0; i < params_.operands; ++i) set_operand(i);
    for (int i = 0; i < params_.steps; ++i) set_step(i);
    vector_ = 16 / static_cast<int>(size_of(request.options.dtype));
    if (!is_wide()) vector_ = 1;
    params_.vectors = request.elements() / vector_;
    params_.vectors_of_pixel = FastDivide(std::max<std::int64_t>(problem.channels / vector_, 1));
  }

  std::string name() const override { return "elementwise"; }

  /// Vectors that the kernel numbers in 32 bits where it wants to know where they are.
  bool fits() const {
    return !params_.with_coordinates || params_.vectors <= std::numeric_limits<std::int32_t>::max();
  }

  void run(const ElementwiseArguments& arguments, cudaStream_t stream) const override {
    ElementwiseParams params = params_;
    params.output = arguments.output;
    for (int i = 0; i < params.operands; ++i) params.operand[i].data = arguments.operands[i];
    params.scale = arguments.coefficients;
    if (arguments.coefficients != nullptr) {
      params.shift = arguments.coefficients + request_.problem.batch * request_.problem.channels;
    }
    switch (request_.options.dtype) {
      case DType::bf16:
        return launch<__nv_bfloat16>(params, stream);
      case DType::fp16:
        return launch<__half>(params, stream);
      default:
        return launch<float>(params, stream);
    }
  }

 private:
  void set_operand(int i) {
    const ElementwiseProblem& problem = request_.problem;
    const ElementwiseOperand& given = problem.operands[i];
    OperandParams& operand = params_.operand[i];
    operand.dense = is_dense(problem, given);
    operand.repeated = given.strides[4] == 0 && problem.channels > 1;
    params_.with_coordinates = params_.with_coordinates || !operand.dense;
    std::copy_n(given.strides, 4, operand.strides);
    for (int axis = 0; axis < 3; ++axis) {
      operand.ratio[axis] = FastDivide(given.ratio[axis]);
      operand.offset[axis] = static_cast<int>(given.offset[axis]);
    }
  }

  void set_step(int i) {
    const ElementwiseStep& given = request_.problem.steps[i];
    StepParams& step = params_.step[i];
    step.op = given.op;
    step.operand = given.operand;
    step.number = given.number;
    step.activation.activation = given.activation;
    step.activation.parameter_a = parameter_a_of(given.activation, given.parameter_a);
    step.activation.parameter_b = parameter_b_of(given.parameter_b);
    params_.with_coordinates = params_.with_coordinates || given.op == ElementwiseOp::affine;
  }

  /// Every vector of every operand begins at a multiple of 16 bytes.
  bool is_wide() const {
    const ElementwiseProblem& problem = request_.problem;
    if (!params_.with_coordinates) return request_.elements() % vector_ == 0;
    if (problem.channels % vector_ != 0) return false;
    return std::all_of(problem.operands.begin(), problem.operands.end(), [&](const auto& operand) {
      return operand.strides[4] == 0 ||
             std::all_of(operand.strides, operand.strides + 4,
                         [&](std::int64_t stride) { return stride % vector_ == 0; });
    });
  }

  template <typename Element>
  void launch(const ElementwiseParams& params, cudaStream_t stream) const {
    const LaunchConfig config{.name = "elementwise",
                              .grid = blocks_for(params.vectors, kThreads),
                              .block = kThreads,
                              .stream = stream,
                              .overlapped = true};
    if (vector_ == 1) {
      launch_kernel(elementwise_kernel<Element, 1>, config, params);
    } else {
      launch_kernel(elementwise_kernel<Element, kChannelVector<Element>>, config, params);
    }
  }

  ElementwiseRequest request_;
  ElementwiseParams params_;
  int vector_ = 1;
};

class CudaChains final : public ElementwiseBackend {
 public:
  std::string refusal(const ElementwiseRequest& request) const override {
    if (Chain(request).fits()) return {};
    return text("elements = ", request.elements(),
                "; legal: at most 2^31 - 1 accesses of 16 bytes, or of one element where the "
                "channels are no multiple of that, unless every operand is dense");
  }
  std::unique_ptr<ElementwiseKernel> make(const ElementwiseRequest& request) const override {
    return std::make_unique<Chain>(request);
  }
};

}  // namespace

std::unique_ptr<ElementwiseBackend> make_backend() {
  return std::make_unique<CudaChains>();
}

}  // namespace convoy::elementwise
