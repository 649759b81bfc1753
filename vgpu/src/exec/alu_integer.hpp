// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exec/decoder.hpp"

/// Integer forms of the opcodes that integers and floats share; alu_float.cpp dispatches.
namespace vgpu::exec {

bool decode_integer_add(Decoder& d);      // add, sub
bool decode_integer_mul(Decoder& d);      // mul
bool decode_integer_mad(Decoder& d);      // mad, madc
bool decode_integer_min_max(Decoder& d);  // min, max
bool decode_integer_div(Decoder& d);      // div, rem
bool decode_integer_unary(Decoder& d);    // abs, neg

}  // namespace vgpu::exec
