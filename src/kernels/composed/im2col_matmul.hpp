// SPDX-License-Identifier: Apache-2.0
//
// Convolution as an explicit im2col transform and a matrix product, for what the direct kernels
// decline: any stride, dilation, padding mode, upsampling and channel count of one group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/candidate.hpp"

namespace convoy::composed {

/// Bytes of columns that are written at a time.
inline constexpr std::size_t kIm2colScratchBytes = std::size_t{256} << 20;
/// Rows that are written at a time, at least.
inline constexpr std::int64_t kIm2colLeastRows = 1024;

/// M rows cut into `count` chunks of `rows` rows, the last one shorter.
struct Im2colChunks {
  std::int64_t rows = 0;
  std::int64_t count = 0;
};

/// Chunks of nearly equal size that fit `budget` bytes at `row_bytes` a row, of at least
/// kIm2colLeastRows rows; whole multiples of 8 rows, so that every chunk of the output is aligned.
Im2colChunks im2col_chunks(std::int64_t gemm_m, std::int64_t row_bytes, std::size_t budget);

/// Write rows [row_begin, row_end) of the im2col matrix: row m holds the T·R·S·C inputs of output
/// pixel m, taps in filter order, channels fastest, then zeros up to `pitch` elements. Device
/// pointers; `cache` as in RunPointers. One kernel on `stream`. Throws Error{launch_failure}.
void im2col_device(void* columns, const void* activation, const void* cache,
                   const ConvGeometry& geometry, DType dtype, std::int64_t row_begin,
                   std::int64_t row_end, std::int64_t pitch, cudaStream_t stream);

}  // namespace convoy::composed
