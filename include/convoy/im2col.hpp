// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "convoy/export.h"
#include "convoy/problem.hpp"

namespace convoy {

/// The explicit im2col transform on the host, for tests and for reading: row m = (n·P + p)·Q + q of
/// `columns` holds the R·S·C inputs of output pixel (n, p, q), taps in filter order, channels
/// fastest (so that columns · filterᵀ with the filter as [K, R·S·C] is the convolution). Padding
/// follows `pad_mode`. `columns` has rows [row_begin, row_end) of the matrix, gemm_k() elements
/// each. groups must be 1. Throws Error{invalid_argument} otherwise or for a row range outside [0,
/// gemm_m()].
CONVOY_API void im2col(void* columns, const void* activation, DType dtype,
                       const Conv2dProblemShape& problem, std::int64_t row_begin,
                       std::int64_t row_end);
/// The same in 3-D: row m = ((n·Z + z)·P + p)·Q + q, T·R·S·C columns. `cache` holds
/// [N, cached_frames, H, W, C], null where cached_frames is 0.
CONVOY_API void im2col(void* columns, const void* activation, DType dtype,
                       const Conv3dProblemShape& problem, std::int64_t row_begin,
                       std::int64_t row_end, const void* cache = nullptr);

}  // namespace convoy
