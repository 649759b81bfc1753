// SPDX-License-Identifier: Apache-2.0
//
// Loads of words that may not exist, as predicated instructions.
#pragma once

#include <cstdint>

namespace convoy {

/// A word of global memory, or zeros where it does not exist: nothing is read there. Word: 16 or 32
/// bits, uint2 or uint4, aligned to its size.
// NOTE: by instructions that stay as they are. As conditional loads, the compiler puts each and
// what takes its word apart into a block of its own: each is waited for, and the code is three
// times as long.
template <typename Word>
__device__ __forceinline__ Word load_if(bool exists, const void* from) {
  const auto address = __cvta_generic_to_global(from);
  const int predicate = exists;
  Word v;
  if constexpr (sizeof(Word) == 2) {
    asm volatile(
        "{\n.reg .pred exists;\nsetp.ne.b32 exists, %2, 0;\nmov.b16 %0, 0;\n"
        "@exists ld.global.b16 %0, [%1];\n}"
        : "=&h"(v)
        : "l"(address), "r"(predicate));
  } else if constexpr (sizeof(Word) == 4) {
    asm volatile(
        "{\n.reg .pred exists;\nsetp.ne.b32 exists, %2, 0;\nmov.b32 %0, 0;\n"
        "@exists ld.global.b32 %0, [%1];\n}"
        : "=&r"(v)
        : "l"(address), "r"(predicate));
  } else if constexpr (sizeof(Word) == 8) {
    asm volatile(
        "{\n.reg .pred exists;\nsetp.ne.b32 exists, %3, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\n"
        "@exists ld.global.v2.b32 {%0, %1}, [%2];\n}"
        : "=&r"(v.x), "=&r"(v.y)
        : "l"(address), "r"(predicate));
  } else {
    static_assert(sizeof(Word) == 16);
    asm volatile(
        "{\n.reg .pred exists;\nsetp.ne.b32 exists, %5, 0;\n"
        "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
        "@exists ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
        : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
        : "l"(address), "r"(predicate));
  }
  return v;
}

}  // namespace convoy
