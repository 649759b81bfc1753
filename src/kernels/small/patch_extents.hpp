// SPDX-License-Identifier: Apache-2.0
//
// What the kernels that stage patches of the input in shared memory take of an axis.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "core/checked.hpp"
#include "core/geometry.hpp"
#include "core/text.hpp"

namespace convoy::small {

/// Tiles of an output, so that a block may count up to a set of tiles past the last one.
inline constexpr std::int64_t kMaxTiles = (1 << 30) - 1;

/// The least multiple of `to` that is not below `x`.
constexpr std::int64_t round_up(std::int64_t x, std::int64_t to) {
  return ceil_div(x, to) * to;
}

/// Why a filter, stride or dilation is too long for a staged patch; empty if none is. The limit
/// keeps every product of a patch's layout far inside 32 bits.
inline std::string patch_extent_refusal(const ConvGeometry& g) {
  constexpr std::int64_t kMaxExtent = 64;
  for (int axis = 0; axis < 3; ++axis) {
    const std::pair<const char*, std::int64_t> extents[] = {
        {"filter", g.filter[axis]}, {"stride", g.stride[axis]}, {"dilation", g.dilation[axis]}};
    for (const auto& [name, extent] : extents) {
      if (extent > kMaxExtent) {
        return text(name, " of ", kAxisNames[axis], " = ", extent, "; legal: at most ", kMaxExtent,
                    "; nearest: ", kMaxExtent);
      }
    }
  }
  return "";
}

}  // namespace convoy::small
