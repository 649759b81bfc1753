// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "convoy/types.hpp"

namespace convoy::cpu {

/// `count` elements of `dtype` to fp32. Exact.
void widen(float* out, const void* in, DType dtype, std::int64_t count);

/// `count` fp32 values rounded once to `dtype`, to nearest, ties to even.
void narrow(void* out, const float* in, DType dtype, std::int64_t count);

/// Round `count` values to `dtype` in place.
void round_in_place(float* values, DType dtype, std::int64_t count);

}  // namespace convoy::cpu
