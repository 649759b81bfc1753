// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/common/fast_divide.hpp"

namespace convoy {

/// A tile of the output: image, frame, tile row, tile column.
struct TilePosition {
  int n, z, p, q;
};

/// Order of a launch's tiles: column fastest, then row, frame, image.
struct TileWalk {
  FastDivide columns, rows, frames;

  __host__ __device__ TilePosition position(int tile) const {
    const int row = columns.divide(tile), frame = rows.divide(row), n = frames.divide(frame);
    return {n, frames.remainder(frame, n), rows.remainder(row, frame),
            columns.remainder(tile, row)};
  }

  /// `at` plus `by`, where `by` is the position of the step: carries in place of divisions.
  __device__ __forceinline__ TilePosition advance(TilePosition at, const TilePosition& by) const {
    at.q += by.q;
    at.p += by.p;
    at.z += by.z;
    at.n += by.n;
    if (at.q >= static_cast<int>(columns.divisor)) at.q -= columns.divisor, ++at.p;
    if (at.p >= static_cast<int>(rows.divisor)) at.p -= rows.divisor, ++at.z;
    if (at.z >= static_cast<int>(frames.divisor)) at.z -= frames.divisor, ++at.n;
    return at;
  }
};

}  // namespace convoy
