// SPDX-License-Identifier: Apache-2.0
//
// Axes that a filter leaves alone: what the kernels for 1×1 layers, for lines and for images
// without taps along depth ask alike.
#pragma once

#include <string>

#include "core/geometry.hpp"
#include "core/text.hpp"
#include "core/unit_axis.hpp"

namespace convoy::small {

/// Why the first `axes` axes are not as in the input, each filter at its place; empty if they are.
inline std::string unit_axes_refusal(const ConvGeometry& g, int axes) {
  if (g.upsample != 1) return text("upsample = ", g.upsample, "; legal: 1");
  if (g.cached_frames != 0) return text("cached_frames = ", g.cached_frames, "; legal: 0");
  for (int axis = 0; axis < axes; ++axis) {
    if (!is_unit_axis(g, axis)) {
      return text("filter, stride, padding of ", kAxisNames[axis], " = ", g.filter[axis], ", ",
                  g.stride[axis], ", ", g.pad_begin[axis], " and ", g.pad_end[axis],
                  "; legal: 1, 1, 0 and 0");
    }
  }
  return {};
}

/// Why a layer is no product of its pixels with its filters, all at their places; empty if it is.
inline std::string pointwise_shape_refusal(const ConvGeometry& g) {
  return unit_axes_refusal(g, 3);
}

}  // namespace convoy::small
