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
// using Config = convoy::sm90::Default<__nv_bfloat16>;
// convoy::sm90::conv_fprop<Config>(d, a, w, problem, {}, AddOneRelu{}, convoy::NoStoreOp{},
//                                  stream);
// ```
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "convoy/error.hpp"
#include "convoy/problem.hpp"
#include "kernels/sm90/host.hpp"
#include "kernels/sm90/instance.cuh"

namespace convoy::sm90 {

/// Tiles of 128 pixels x 128 filters by im2col, two warpgroups in turns, filters shared by 2 CTAs:
/// runs every problem that sm90 kernels run.
template <typename In, typename Out = In>
using Default = FpropConfig<In, Out, 128, 128, 2, 2, false, Schedule::pingpong, 4>;

/// The same tile with the halo loader, for stride 1 and filters up to 3x3: faster there.
template <typename In, typename Out = In>
using DefaultHalo = FpropConfig<In, Out, 128, 128, 2, 1, true, Schedule::pingpong, 5, 2, 180>;

/// Pointers of the optional inputs of `conv_fprop`.
struct FpropExtras {
  const void* cache = nullptr;  ///< 3-D with cached frames.
  Epilogue epilogue{};          ///< Applied before the compute op.
};

/// D = compute(epilogue(Conv(A, B))), enqueued on `stream`; `Problem` is Conv2dProblemShape or
/// Conv3dProblemShape, tensors as there, in device memory, 16-byte aligned. `compute` maps values
/// before the store and `store` sees what is written, or takes the store's place: see
/// kernels/common/epilogue.cuh; m counts output pixels in n, z, p, q order, n filters.
/// Throws Error{invalid_argument}, Error{unsupported} with the violated condition,
/// Error{launch_failure}. A zero-sized output returns at once.
template <typename Config, typename ComputeOp = NoComputeOp, typename StoreOp = NoStoreOp,
          typename Problem>
void conv_fprop(typename Config::Out* output, const typename Config::In* activation,
                const typename Config::In* filter, const Problem& problem,
                const FpropExtras& extras = {}, const ComputeOp& compute = {},
                const StoreOp& store = {}, cudaStream_t stream = nullptr) {
  const ConvGeometry geometry = geometry_of(problem);
  if (geometry.empty()) return;
  int device = 0;
  int multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error != cudaSuccess) {
    throw Error(Status::launch_failure,
                std::string("cannot ask the CUDA device: ") + cudaGetErrorString(error));
  }
  const FpropInstance instance = describe_instance<Config, ComputeOp, StoreOp>();
  RunPointers pointers;
  pointers.output = output;
  pointers.activation = activation;
  pointers.filter = filter;
  pointers.cache = extras.cache;
  pointers.epilogue = extras.epilogue;
  prepare_fprop(instance);
  launch_fprop(plan_fprop(geometry, instance, false, multiprocessors, 1), pointers, multiprocessors,
               &compute, &store, stream);
}

}  // namespace convoy::sm90
