// SPDX-License-Identifier: Apache-2.0
//
// What every run checks of the memory that its caller names.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/text.hpp"

namespace convoy {

/// Of every tensor, parameter and workspace that a kernel reads or writes, in bytes.
inline constexpr std::uintptr_t kPointerAlignment = 16;

/// Throws InvalidArgument where `pointer` is null or not aligned to so many bytes.
inline void check_pointer(const void* pointer, const char* name,
                          std::uintptr_t alignment = kPointerAlignment) {
  if (pointer == nullptr) throw_invalid(name, " is null");
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (address % alignment != 0) {
    throw_invalid(
        name, " = ", pointer, " is not aligned; legal: a multiple of ", alignment,
        " bytes; nearest below: ",
        static_cast<const void*>(static_cast<const char*>(pointer) - address % alignment));
  }
}

/// A range of memory and what the caller calls it.
struct Span {
  const char* name;
  const void* data;
  std::size_t bytes;
};

/// Throws InvalidArgument where both are there and share a byte.
inline void require_disjoint(const Span& written, const Span& other) {
  if (written.data == nullptr || other.data == nullptr) return;
  const auto a = reinterpret_cast<std::uintptr_t>(written.data);
  const auto b = reinterpret_cast<std::uintptr_t>(other.data);
  if (a < b + other.bytes && b < a + written.bytes) {
    throw_invalid(written.name, " [", written.data, ", +", written.bytes, " bytes) overlaps ",
                  other.name, " [", other.data, ", +", other.bytes, " bytes)");
  }
}

}  // namespace convoy
