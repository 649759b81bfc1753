// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <vector>

#include "convoy/geometry.hpp"

namespace convoy::bench {

/// Version of the CUTLASS that this program was compiled with, "4.2.0"; empty without it.
std::string cutlass_version();

/// One of CUTLASS's implicit-GEMM convolutions for compute capability 8.0, set up for a layer.
struct CutlassConvolution {
  std::string name;  ///< "128x256x32_s3 k4": tile, stages, slices of K.
  /// Activation N(D)HWC, filter K(T)RSC, output N(D)HWC. Throws Error{launch_failure}.
  std::function<void(const void* activation, const void* filter, void* output, cudaStream_t)> run;
};

/// Those that take the layer: its tiles for 16-bit types (`GenerateSM80_TensorOp_16816` of its
/// generator), with optimized iterators, alone and with K in 2, 4 and 8 serial slices where tiles
/// are few. bf16 alone, channels and filters that are multiples of 8, zero padding, no groups.
std::vector<CutlassConvolution> cutlass_convolutions(const ConvGeometry& geometry, DType dtype);

}  // namespace convoy::bench
