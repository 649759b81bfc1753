// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "convoy/epilogue.hpp"

namespace convoy::cpu {

/// Values one call of the inner loops works on: they stay in the first-level cache.
constexpr std::int64_t kEpiloguePiece = 2048;

/// Floats of the table that `tile_bias` fills, for K channels.
constexpr std::int64_t bias_table_floats(std::int64_t channels) {
  return channels + kEpiloguePiece;
}

/// Fill `table` with the bias in fp32, repeated, so that any piece of the output finds its channels
/// in a row whatever channel it starts with.
void tile_bias(float* table, const void* bias, DType dtype, std::int64_t channels);

/// Apply the epilogue to `count` accumulators, consecutive in the output from element `first`, and
/// store them as `dtype` there: D = activation(scale·conv + bias) + beta·C, or with the sum inside.
/// `bias_table` is null for none. The accumulators are overwritten.
void apply_epilogue(float* accumulators, void* output, DType dtype, std::int64_t first,
                    std::int64_t count, std::int64_t channels, const Epilogue& epilogue,
                    const float* bias_table);

/// One activation in place, as `apply_epilogue` uses it.
void activate(float* values, std::int64_t count, Activation activation, float a, float b);

}  // namespace convoy::cpu
