// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "convoy/types.hpp"
#include "core/geometry.hpp"

namespace convoy {

/// Write the last `geometry.next_cache_frames()` frames of cache + activation to `next_cache`,
/// [N, frames, H, W, C], for the next call. Where there are fewer frames than that, the first of
/// `next_cache` are zero: what a causal convolution meets before the first frame.
/// One kernel on `stream`. `next_cache` overlaps neither `cache` nor `activation`.
void write_next_cache(void* next_cache, const void* cache, const void* activation,
                      const ConvGeometry& geometry, DType dtype, cudaStream_t stream);

}  // namespace convoy
