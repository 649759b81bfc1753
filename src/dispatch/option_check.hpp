// SPDX-License-Identifier: Apache-2.0
//
// What planning checks of a caller's enumerations, which come as numbers through the C API.
#pragma once

#include "convoy/types.hpp"
#include "core/text.hpp"

namespace convoy {

/// Throws InvalidArgument where `dtype` is none of bf16, fp16, fp32.
inline void require_dtype(DType dtype, const char* name) {
  if (dtype == DType::bf16 || dtype == DType::fp16 || dtype == DType::fp32) return;
  throw_invalid(name, " = ", static_cast<int>(dtype),
                " is not legal; legal: bf16 (0), fp16 (1), fp32 (2)");
}

/// Throws InvalidArgument where `value` is not one of the enumerators 0 to `last`.
template <typename Enum>
void require_enum(Enum value, Enum last, const char* name) {
  if (static_cast<int>(value) >= 0 && value <= last) return;
  throw_invalid(name, " = ", static_cast<int>(value), " is not legal; legal: 0 (",
                to_string(Enum{}), ") to ", static_cast<int>(last), " (", to_string(last), ")");
}

}  // namespace convoy
