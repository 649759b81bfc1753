// SPDX-License-Identifier: Apache-2.0
//
// Problems that tests of the kernels of mma.sync share, with a GPU and without one.
#pragma once

#include <cstdint>

#include "convoy/problem.hpp"

namespace convoy::test {

/// A causal 3-D layer of two images, 3 frames of a filter, 2 of them cached: its tiles stay within
/// frames where those are whole tiles, or nearly.
inline Conv3dProblemShape causal(std::int64_t height, std::int64_t width) {
  return {.batch = 2,
          .in_depth = 2,
          .in_height = height,
          .in_width = width,
          .in_channels = 16,
          .out_channels = 24,
          .filter = {3, 3, 3},
          .pad_begin = {0, 1, 1},
          .pad_end = {0, 1, 1},
          .cached_frames = 2};
}

}  // namespace convoy::test
