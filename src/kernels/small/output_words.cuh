// SPDX-License-Identifier: Apache-2.0
//
// A lane's outputs of a pixel as kernels hold them that have several filters a lane: neighbours of
// 16 bits, two a word.
#pragma once

#include <cstdint>

namespace convoy::small {

/// Between memory at `at` and a lane's words, `count` outputs of them; nothing where that is below
/// one. `whole`: the filters are a multiple of how many the words hold, and one access does it.
template <bool kLoad, int kWords>
__device__ __forceinline__ void move_outputs(std::uint8_t* at, std::uint32_t (&words)[kWords],
                                             int count, bool whole) {
  struct alignas(4 * kWords) Words {
    std::uint32_t values[kWords];
  };
  if (count <= 0) return;
  if (whole) {
    if constexpr (kLoad) {
      const Words v = *reinterpret_cast<const Words*>(at);
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = v.values[i];
    } else {
      Words v;
#pragma unroll
      for (int i = 0; i < kWords; ++i) v.values[i] = words[i];
      *reinterpret_cast<Words*>(at) = v;
    }
    return;
  }
  auto* const elements = reinterpret_cast<std::uint16_t*>(at);
#pragma unroll
  for (int i = 0; i < 2 * kWords; ++i) {
    if (i >= count) continue;
    if constexpr (kLoad) {
      words[i / 2] = __byte_perm(words[i / 2], elements[i], i % 2 == 0 ? 0x3254 : 0x5410);
    } else {
      elements[i] = static_cast<std::uint16_t>(words[i / 2] >> (i % 2 * 16));
    }
  }
}

}  // namespace convoy::small
