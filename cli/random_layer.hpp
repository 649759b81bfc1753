// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "layer.hpp"

namespace convoy::cli {

struct RandomLayerOptions {
  DType dtype = DType::bf16;
  bool bias = false;
  bool residual = false;
  std::uint64_t seed = 1;
};

/// A layer of this problem with tensors that depend on the seed alone: activation, cache and
/// residual uniform in [-1, 1), the filter scaled so that outputs are of the order of 1. Throws
/// Error{invalid_argument} for an illegal shape.
Layer make_random_layer(const ProblemShape& problem, const RandomLayerOptions& options);

}  // namespace convoy::cli
