// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "convoy/types.hpp"

namespace convoy {

/// The element of an axis that index `i` (which may lie outside [0, extent)) reads under `mode`,
/// or -1 where it reads zero. `reflect` mirrors about the edge element without repeating it and
/// needs -extent < i < 2·extent - 1, which geometry_of has checked.
constexpr std::int64_t padded_source(std::int64_t i, std::int64_t extent, PadMode mode) {
  if (i >= 0 && i < extent) return i;
  switch (mode) {
    case PadMode::zero:
      return -1;
    case PadMode::replicate:
      return i < 0 ? 0 : extent - 1;
    case PadMode::reflect:
      return i < 0 ? -i : 2 * (extent - 1) - i;
  }
  return -1;
}

}  // namespace convoy
