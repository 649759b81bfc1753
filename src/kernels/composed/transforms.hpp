// SPDX-License-Identifier: Apache-2.0
//
// How composed kernels rearrange tensors: the im2col matrix, filters by depth, padded filter rows.
// bf16 and fp16; device pointers; one kernel on `stream` each. Throws Error{launch_failure}.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/geometry.hpp"

namespace convoy::composed {

/// Elements that `write_im2col_rows` moves at once: 8, 4, 2 or 1, by the channels.
inline std::int64_t im2col_vector(const ConvGeometry& geometry) {
  for (const std::int64_t width : {8, 4, 2}) {
    if (geometry.in_channels % width == 0) return width;
  }
  return 1;
}

/// Write rows [row_begin, row_end) of the im2col matrix: row m holds the T·R·S·C inputs of output
/// pixel m, taps in filter order, channels fastest, then zeros up to `pitch` elements. `cache` as
/// in RunPointers.
void write_im2col_rows(void* columns, const void* activation, const void* cache,
                       const ConvGeometry& geometry, std::int64_t row_begin, std::int64_t row_end,
                       std::int64_t pitch, cudaStream_t stream);

/// Write the filter, [K, T, R, S, C], as T dense slices [T, K, R, S, C].
void slice_filter(void* slices, const void* filter, const ConvGeometry& geometry,
                  cudaStream_t stream);

/// Write the filter's K rows of T·R·S·C elements with zeros up to `pitch` elements.
void pad_filter_rows(void* padded, const void* filter, const ConvGeometry& geometry,
                     std::int64_t pitch, cudaStream_t stream);

}  // namespace convoy::composed
