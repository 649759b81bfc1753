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
#include "kernels/common/device_geometry.cuh"

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

/// Why a layer is none of at most `max_channels` input channels, or too large for staged patches;
/// empty if it is one. A row may have elements past 2^31 (`row_elements_refusal`).
inline std::string few_channels_refusal(const ConvGeometry& g, std::int64_t max_channels) {
  constexpr std::int64_t kMaxFilters = 1 << 20;
  if (g.groups != 1) return text("groups = ", g.groups, "; legal: 1");
  if (g.in_channels < 1 || g.in_channels > max_channels) {
    return text("in_channels = ", g.in_channels, "; legal: 1 to ", max_channels,
                "; nearest: ", max_channels);
  }
  std::string reason = device_geometry_refusal(g);
  if (reason.empty()) reason = patch_extent_refusal(g);
  if (!reason.empty()) return reason;
  if (g.out_channels > kMaxFilters) {
    return text("out_channels = ", g.out_channels, "; legal: at most ", kMaxFilters,
                "; nearest: ", kMaxFilters);
  }
  return {};
}

/// Why the input's rows are too long for a kernel that counts a row's elements in 32 bits; empty if
/// they are not.
inline std::string row_elements_refusal(const ConvGeometry& g) {
  constexpr std::int64_t kMaxRowElements = (1 << 30) - 1;
  const std::int64_t elements = g.seen()[2] * g.in_channels;
  if (elements <= kMaxRowElements) return {};
  return text("elements of an input row = ", elements, "; legal: at most ", kMaxRowElements);
}

}  // namespace convoy::small
