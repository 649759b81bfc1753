// SPDX-License-Identifier: Apache-2.0
//
// The Blackwell convolution as a template, for device functors of your own. Compile with
//   nvcc -std=c++20 --expt-relaxed-constexpr
//        -I <prefix>/include -I <prefix>/include/convoy/internal
//        -gencode arch=compute_100f,code=[sm_100f,compute_100f] -cudart shared ... -lconvoy
//
// ```cuda
// struct AddOneRelu {
//   static constexpr bool kEnabled = true;
//   static constexpr bool kOnRegisters = true;
//   template <int kWidth>
//   __device__ void operator()(std::int64_t m, int n, float (&values)[kWidth]) const {
//     for (float& value : values) value = fmaxf(value + 1.0f, 0.0f);
//   }
// };
// using Config = convoy::Conv2dConfig<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16>;
// convoy::sm100::conv2d_fprop<Config::default_bf16()>(d, a, w, problem, AddOneRelu{}, stream);
//
// // Fields of a configuration are set in a constant of your own.
// constexpr auto kConfig = [] {
//   Config config = Config::default_bf16_1sm();
//   config.num_output_stages = 3;
//   return config;
// }();
// convoy::sm100::conv2d_fprop<kConfig>(d, a, w, problem, stream);
// ```
#pragma once

#include <string>
#include <type_traits>

#include "convoy/error.hpp"
#include "convoy/problem.hpp"
#include "convoy/tensor.hpp"
#include "kernels/sm100/host.hpp"
#include "kernels/sm100/instance.cuh"

/// The Blackwell kernels as templates.
namespace convoy::sm100 {

/// Element type of a configuration's activation.
template <auto kConfig>
using ActOf = typename std::remove_cvref_t<decltype(kConfig)>::ActType;
/// Element type of its filter.
template <auto kConfig>
using FilterOf = typename std::remove_cvref_t<decltype(kConfig)>::FilterType;
/// Element type of its output.
template <auto kConfig>
using OutOf = typename std::remove_cvref_t<decltype(kConfig)>::OutType;

/// The configuration of calls that name none.
inline constexpr auto kDefaultConfig =
    Conv2dConfig<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16>::default_bf16();

namespace detail {

/// "[n, h, w, c]" of a tensor.
inline std::string shape_text(const TensorShape& shape) {
  std::string text = std::string(to_string(shape.dtype)) + " [";
  for (int i = 0; i < shape.rank(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape.extents[static_cast<std::size_t>(i)]);
  }
  return text + "]";
}

inline void check_source(const ConstTensorView& source, const TensorShape& output) {
  if (!source.shape) {
    throw Error(Status::invalid_argument,
                "source has no shape; legal: the output's, " + shape_text(output));
  }
  if (!(*source.shape == output)) {
    throw Error(Status::invalid_argument, "source is " + shape_text(*source.shape) +
                                              ", but the output is " + shape_text(output));
  }
  if (source.data == nullptr) throw Error(Status::invalid_argument, "source is null");
}

inline TensorShape output_shape(const Conv2dProblemShape& p, DType dtype) {
  return {dtype, Layout::nhwc, {p.batch, p.out_height(), p.out_width(), p.out_channels, 0}};
}
inline TensorShape output_shape(const Conv3dProblemShape& p, DType dtype) {
  return {dtype,
          Layout::ndhwc,
          {p.batch, p.out_depth(), p.out_height(), p.out_width(), p.out_channels}};
}

template <auto kConfig, typename ComputeOp, typename StoreOp>
void run(const ConvGeometry& geometry, const RunPointers& pointers, const ComputeOp& compute,
         const StoreOp& store, cudaStream_t stream) {
  // Nothing to write: no descriptor, no launch.
  if (geometry.empty()) return;
  static const Instance instance = make_instance<kConfig, ComputeOp, StoreOp>();
  prepare(instance);
  launch(plan_launch(instance, geometry, /*packed_filter=*/false), pointers, &compute, &store,
         stream);
}

}  // namespace detail

/// D = compute(Conv(A, B)), enqueued on `stream`. `output` [N, P, Q, K], `activation`
/// [N, H, W, C], `filter` [K, R, S, C]: device memory of the configuration's types, 16-byte
/// aligned. `compute` maps accumulator values before the store, `store` sees what was written (or
/// takes the store's place): see kernels/common/epilogue_params.hpp. With
/// kConfig.register_based_epilogue they work on registers, 8 filters at a time, else on the tile
/// in shared memory, 16 bytes at a time. A zero-sized GEMM returns at once.
/// Throws Error{invalid_argument}, Error{unsupported} with the violated condition,
/// Error{launch_failure}.
template <auto kConfig, typename ComputeOp = NoComputeOp, typename StoreOp = NoStoreOp>
void conv2d_fprop(OutOf<kConfig>* output, const ActOf<kConfig>* activation,
                  const FilterOf<kConfig>* filter, const Conv2dProblemShape& problem,
                  const ComputeOp& compute, const StoreOp& store, cudaStream_t stream) {
  RunPointers pointers;
  pointers.output = output;
  pointers.activation = activation;
  pointers.filter = filter;
  detail::run<kConfig>(geometry_of(problem), pointers, compute, store, stream);
}

/// The same without a store op.
template <auto kConfig, typename ComputeOp = NoComputeOp>
void conv2d_fprop(OutOf<kConfig>* output, const ActOf<kConfig>* activation,
                  const FilterOf<kConfig>* filter, const Conv2dProblemShape& problem,
                  const ComputeOp& compute, cudaStream_t stream) {
  conv2d_fprop<kConfig>(output, activation, filter, problem, compute, NoStoreOp{}, stream);
}

/// The same without ops.
template <auto kConfig>
void conv2d_fprop(OutOf<kConfig>* output, const ActOf<kConfig>* activation,
                  const FilterOf<kConfig>* filter, const Conv2dProblemShape& problem,
                  cudaStream_t stream) {
  conv2d_fprop<kConfig>(output, activation, filter, problem, NoComputeOp{}, NoStoreOp{}, stream);
}

/// D = compute(Conv(A, B)) + beta·C. `source` (C) comes with its shape, which must be the output's.
/// With beta == 0 or kHasResidual = false it is neither looked at nor read, and the call is
/// conv2d_fprop.
template <auto kConfig = kDefaultConfig, bool kHasResidual = false,
          typename ComputeOp = NoComputeOp, typename StoreOp = NoStoreOp>
void conv2d_fprop_with_residual(OutOf<kConfig>* output, const ActOf<kConfig>* activation,
                                const FilterOf<kConfig>* filter, const ConstTensorView& source,
                                float beta, const Conv2dProblemShape& problem,
                                const ComputeOp& compute = {}, const StoreOp& store = {},
                                cudaStream_t stream = nullptr) {
  RunPointers pointers;
  pointers.output = output;
  pointers.activation = activation;
  pointers.filter = filter;
  const ConvGeometry geometry = geometry_of(problem);
  if (kHasResidual && beta != 0.0f && !geometry.empty()) {
    detail::check_source(source, detail::output_shape(problem, kConfig.out_dtype));
    pointers.epilogue.residual = source.data;
    pointers.epilogue.beta = beta;
  }
  detail::run<kConfig>(geometry, pointers, compute, store, stream);
}

/// The same for volumes: `output` [N, Z, P, Q, K], `activation` [N, D, H, W, C], `filter`
/// [K, T, R, S, C]; `cache` [N, cached_frames, H, W, C], null where cached_frames is 0. Hooks get
/// m = ((n·Z + z)·P + p)·Q + q.
template <auto kConfig, typename ComputeOp = NoComputeOp, typename StoreOp = NoStoreOp>
void conv3d_fprop(OutOf<kConfig>* output, const ActOf<kConfig>* activation,
                  const ActOf<kConfig>* cache, const FilterOf<kConfig>* filter,
                  const Conv3dProblemShape& problem, const ComputeOp& compute = {},
                  const StoreOp& store = {}, cudaStream_t stream = nullptr) {
  RunPointers pointers;
  pointers.output = output;
  pointers.activation = activation;
  pointers.cache = cache;
  pointers.filter = filter;
  detail::run<kConfig>(geometry_of(problem), pointers, compute, store, stream);
}

/// The same + beta·C, as conv2d_fprop_with_residual.
template <auto kConfig = kDefaultConfig, bool kHasResidual = false,
          typename ComputeOp = NoComputeOp, typename StoreOp = NoStoreOp>
void conv3d_fprop_with_residual(OutOf<kConfig>* output, const ActOf<kConfig>* activation,
                                const ActOf<kConfig>* cache, const FilterOf<kConfig>* filter,
                                const ConstTensorView& source, float beta,
                                const Conv3dProblemShape& problem, const ComputeOp& compute = {},
                                const StoreOp& store = {}, cudaStream_t stream = nullptr) {
  RunPointers pointers;
  pointers.output = output;
  pointers.activation = activation;
  pointers.cache = cache;
  pointers.filter = filter;
  const ConvGeometry geometry = geometry_of(problem);
  if (kHasResidual && beta != 0.0f && !geometry.empty()) {
    detail::check_source(source, detail::output_shape(problem, kConfig.out_dtype));
    pointers.epilogue.residual = source.data;
    pointers.epilogue.beta = beta;
  }
  detail::run<kConfig>(geometry, pointers, compute, store, stream);
}

}  // namespace convoy::sm100
