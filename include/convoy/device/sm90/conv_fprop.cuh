// SPDX-License-Identifier: Apache-2.0
//
// The Hopper convolution as a template, for device functors of your own. Compile with
//   nvcc -std=c++20 --expt-relaxed-constexpr
//        -I <prefix>/include -I <prefix>/include/convoy/internal
//        -gencode arch=compute_90a,code=[sm_90a,compute_90a] -cudart shared ... -lconvoy
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
// namespace sm90 = convoy::sm90;
// sm90::conv_fprop<sm90::Default<__nv_bfloat16>>(d, a, w, problem, {}, AddOneRelu{});
//
// // Fields of a configuration (kernels/sm90/config.hpp) are set in a constant of your own.
// constexpr sm90::Config kConfig{
//     .block_m = 192, .block_n = 96, .consumers = 3, .filter_stages = 5, .staging_pieces = 3};
// sm90::conv_fprop<kConfig>(d, a, w, problem);
// ```
#pragma once

#include <cuda_runtime_api.h>

#include "convoy/error.hpp"
#include "convoy/problem.hpp"
#include "kernels/sm90/host.hpp"
#include "kernels/sm90/instance.cuh"

/// The Hopper kernels as templates.
namespace convoy::sm90 {

/// Tiles of 128 pixels x 128 filters by im2col, two warpgroups in turns, filters shared by 2 CTAs:
/// runs every problem that sm90 kernels run.
template <typename In, typename Out = In>
inline constexpr Config Default = {.in = dtype_of<In>(),
                                   .out = dtype_of<Out>(),
                                   .cluster_m = 2,
                                   .filter_stages = 4,
                                   .schedule = Schedule::pingpong};

/// The same tile with the halo loader, for stride 1 and filters up to 3x3: faster there.
template <typename In, typename Out = In>
inline constexpr Config DefaultHalo = {.in = dtype_of<In>(),
                                       .out = dtype_of<Out>(),
                                       .filter_stages = 5,
                                       .act_stages = 2,
                                       .halo_pixels = 180,
                                       .input = Input::halo,
                                       .schedule = Schedule::pingpong};

// NOTE: nvcc 13.0 takes a variable template as a template argument only where it was instantiated
// before ("no instance of function template matches").
static_assert(Default<__nv_bfloat16>.in == DType::bf16 && Default<__half>.in == DType::fp16);
static_assert(Default<__nv_bfloat16, float>.out == DType::fp32);
static_assert(Default<__half, float>.out == DType::fp32);
static_assert(DefaultHalo<__nv_bfloat16>.has_halo() && DefaultHalo<__half>.has_halo());

/// Pointers of the optional inputs of `conv_fprop`.
struct FpropExtras {
  const void* cache = nullptr;  ///< 3-D with cached frames.
  Epilogue epilogue{};          ///< Applied before the compute op.
};

/// D = compute(epilogue(Conv(A, B))), enqueued on `stream`; `Problem` is Conv2dProblemShape or
/// Conv3dProblemShape, tensors as there, in device memory, 16-byte aligned. `compute` maps values
/// before the store and `store` sees what is written, or takes the store's place: see
/// kernels/common/epilogue_params.hpp; m counts output pixels in n, z, p, q order, n filters. Tiles
/// whose block_n is no multiple of 32, and those of MmaRows::filters, take no ops, round once and
/// want output rows of a multiple of 16 bytes.
/// Each call encodes the tensor maps of its pointers: a plan (convoy/plan.hpp) does so once.
/// Throws Error{invalid_argument}, Error{unsupported} with the violated condition,
/// Error{launch_failure}. A zero-sized output returns at once.
template <Config kConfig, typename ComputeOp = NoComputeOp, typename StoreOp = NoStoreOp,
          typename Problem>
void conv_fprop(Element<kConfig.out>* output, const Element<kConfig.in>* activation,
                const Element<kConfig.in>* filter, const Problem& problem,
                const FpropExtras& extras = {}, const ComputeOp& compute = {},
                const StoreOp& store = {}, cudaStream_t stream = nullptr) {
  const ConvGeometry geometry = geometry_of(problem);
  if (geometry.empty()) return;
  int device = 0;
  LaunchOptions options;
  require_runtime("cudaGetDevice", [&] { return cudaGetDevice(&device); });
  require_runtime("cudaDeviceGetAttribute", [&] {
    return cudaDeviceGetAttribute(&options.multiprocessors, cudaDevAttrMultiProcessorCount, device);
  });
  constexpr Entries kEntries = kConfig.takes_general_path() ? Entries::all : Entries::curved;
  const Instance instance = make_instance<kConfig, ComputeOp, StoreOp, kEntries>();
  RunPointers pointers;
  pointers.output = output;
  pointers.activation = activation;
  pointers.filter = filter;
  pointers.cache = extras.cache;
  pointers.epilogue = extras.epilogue;
  prepare(instance);
  launch(plan_launch(instance, geometry, options), pointers, &compute, &store, stream);
}

}  // namespace convoy::sm90
