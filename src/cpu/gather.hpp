// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "convoy/geometry.hpp"

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
/// Elements are copied, or widened to fp32 where `widen_to_fp32`. All cores.
void gather_input(void* out, const InputBox& box, const ConvGeometry& geometry, DType dtype,
                  bool widen_to_fp32, const void* activation, const void* cache);

/// The last next_cache_frames() frames of cache + activation; zeros in front where there are fewer.
void write_next_cache(void* next_cache, const ConvGeometry& geometry, DType dtype,
                      const void* activation, const void* cache);

}  // namespace convoy::cpu
