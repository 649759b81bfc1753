// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "convoy/geometry.hpp"
#include "core/candidate.hpp"

namespace convoy::cpu {

/// A box of the padded, upsampled input with its cache in front: images [image, image + images),
/// and per axis `extent` elements from `begin`, which is negative inside the front padding.
struct InputBox {
  std::int64_t image = 0;
  std::int64_t images = 0;
  std::array<std::int64_t, 3> begin = {0, 0, 0};
  std::array<std::int64_t, 3> extent = {0, 0, 0};

  std::int64_t elements(std::int64_t channels) const {
    return images * extent[0] * extent[1] * extent[2] * channels;
  }
};

/// Write the box, dense and channels-last, with padding, upsampling and cached frames resolved.
/// Elements are normalised where the run has a prologue, and widened to fp32 where `widen_to_fp32`.
/// Of `pointers` the activation, the cache and the prologue are read. All cores.
void gather_input(void* out, const InputBox& box, const ConvGeometry& geometry, DType dtype,
                  bool widen_to_fp32, const RunPointers& pointers);

/// The last next_cache_frames() frames of cache + activation, normalised where the run has a
/// prologue; zeros in front where there are fewer.
void write_next_cache(const ConvGeometry& geometry, DType dtype, const RunPointers& pointers);

}  // namespace convoy::cpu
