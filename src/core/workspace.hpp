// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/checked.hpp"

namespace convoy {

/// Bytes that a part of a workspace takes, so that the next part is aligned as cudaMalloc's memory
/// is: `bytes` up to a multiple of 256.
constexpr std::size_t workspace_part(std::int64_t bytes) {
  constexpr std::int64_t kAlignment = 256;
  return static_cast<std::size_t>(ceil_div(bytes, kAlignment) * kAlignment);
}

}  // namespace convoy
