// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exec/decoder.hpp"

namespace vgpu::exec {

/// Arithmetic on f16, bf16 and their pairs: add, sub, mul, fma, min, max, abs, neg, ex2, tanh.
bool decode_half(Decoder& d);
/// Mixed precision (sm_100): add, sub, fma on f32 with f16 or bf16 operands.
bool decode_mixed(Decoder& d);

}  // namespace vgpu::exec
