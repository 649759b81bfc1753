// SPDX-License-Identifier: Apache-2.0
//
// A loop whose index is a constant in every turn.
#pragma once

#include <type_traits>
#include <utility>

namespace convoy {

/// Calls `body` with 0, 1, ... kCount - 1 as constants.
// NOTE: for long bodies: beyond some 16,000 instructions the compiler leaves a loop under
// `#pragma unroll` rolled, and what it indexes in memory.
template <int kCount, typename Body>
__device__ __forceinline__ void for_each_number(const Body& body) {
  [&]<int... kNumbers>(std::integer_sequence<int, kNumbers...>) {
    (body(std::integral_constant<int, kNumbers>{}), ...);
  }
  (std::make_integer_sequence<int, kCount>{});
}

}  // namespace convoy
