// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "convoy/geometry.hpp"

namespace convoy::bench {

/// Version of the loaded cuDNN, "9.19.0".
std::string cudnn_version();

/// One cuDNN execution plan of a forward convolution, ready to run: an engine with its knobs.
class CudnnPlan {
 public:
  struct Impl;
  explicit CudnnPlan(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  std::size_t workspace_bytes() const;
  /// "engine 57, knobs 2=1 3=4 ...": cuDNN's own tag of engine and knobs.
  const std::string& name() const;
  /// Throws Error{launch_failure}.
  void run(const void* activation, const void* filter, void* output, void* workspace,
           cudaStream_t stream) const;

 private:
  std::shared_ptr<Impl> impl_;
};

/// Every plan that cuDNN's graph API offers for this convolution: all engine configurations of the
/// heuristics (modes B, A and fallback) and every engine of the operation graph with its default
/// knobs, as far as cuDNN can build them within `workspace_limit` bytes. Activation N(D)HWC with
/// cached frames and new ones in one tensor, filter K(T)RSC, all of `dtype`; sums in fp32. Of fp32
/// tensors those that multiply on tensor cores (TF32) are left out without `allow_tf32`.
/// Empty with `reason` where there is none. Throws Error{unsupported} for what cuDNN cannot
/// describe (padding modes other than zero, upsampling).
std::vector<CudnnPlan> cudnn_plans(const ConvGeometry& geometry, DType dtype, bool allow_tf32,
                                   std::size_t workspace_limit, std::string* reason);

}  // namespace convoy::bench
