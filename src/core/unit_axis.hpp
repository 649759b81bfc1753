// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "convoy/geometry.hpp"

namespace convoy {

/// Along the axis each output is that of the input at its place: the filter leaves it alone.
inline bool is_unit_axis(const ConvGeometry& g, int axis) {
  return g.filter[axis] == 1 && g.stride[axis] == 1 && g.pad_begin[axis] == 0 &&
         g.pad_end[axis] == 0;
}

}  // namespace convoy
