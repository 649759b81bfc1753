// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "convoy/geometry.hpp"

namespace convoy {

/// Strides, in elements, of a dense filter of this problem on the axes K, T, R, S, C (C: channels
/// of one group). Throws Error{invalid_argument} where the layout is of the other rank.
std::array<std::int64_t, 5> filter_strides(const ConvGeometry& geometry, FilterLayout layout);

/// Repack a host filter of `layout` into dense KTRSC. Elements are moved, never converted.
void repack_filter(void* ktrsc, const void* filter, DType dtype, FilterLayout layout,
                   const ConvGeometry& geometry);

}  // namespace convoy
