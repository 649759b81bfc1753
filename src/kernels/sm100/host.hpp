// SPDX-License-Identifier: Apache-2.0
//
// Host side of the Blackwell convolution: which problems a configuration can run, how its launch
// is described, and the launch itself. host.cu is the twin of kernel.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "core/candidate.hpp"
#include "core/geometry.hpp"
#include "kernels/sm100/config.hpp"
#include "kernels/sm100/instances.hpp"

namespace convoy::sm100 {

// params.hpp, which only nvcc can read.
struct ConvArguments;
enum class RowGroups : int;

/// The library's own instances (instances.txt), with the run-time epilogue and no hooks.
const std::vector<ConvKernel>& conv_kernels();

/// "sm100_fprop_256x256x128_2sm_c2x1" and, where they differ from the default, the swizzle and k
/// group: MMA tile and depth of a stage, CTA group, cluster.
std::string name_of(const ConvKernelConfig& config);

/// Empty if a kernel of this configuration can run the problem, else the reason: condition, value
/// got, what is legal.
std::string refusal(const ConvKernelConfig& config, const ConvGeometry& geometry);

/// Empty if 4-D im2col copies can read the frames of the problem, else which limit of descriptor or
/// offsets is broken: then the kernel loads patches.
std::string im2col_refusal(const ConvKernelConfig& config, const ConvGeometry& geometry);

/// How a configuration lays the rows of a problem it can run over the output.
RowGroups row_groups_of(const ConvKernelConfig& config, const ConvGeometry& geometry);

/// Describe a launch; `residual` of the epilogue is ignored where it is null or beta is 0. Throws
/// Error{unsupported} with refusal's text, Error{invalid_argument} for null or misaligned pointers.
ConvArguments describe(const ConvKernelConfig& config, const ConvGeometry& geometry,
                       const RunPointers& pointers);

/// Allow the kernel its shared memory on the current device. Throws Error{launch_failure}.
void prepare(const ConvKernel& kernel);

/// Enqueue: run_with_residual where the epilogue has a residual, else run. `compute_op` and
/// `store_op` are the addresses of the ops' values. Throws Error{launch_failure}.
void launch(const ConvKernel& kernel, const ConvArguments& arguments, const void* compute_op,
            const void* store_op, cudaStream_t stream);

/// Model time in microseconds of a problem on `multiprocessors` SMs (docs/kernels-sm100.md).
double estimate_us(const ConvKernelConfig& config, const ConvGeometry& geometry,
                   int multiprocessors);

}  // namespace convoy::sm100
