// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "core/candidate.hpp"

namespace convoy {

/// A box of the input as taps see it: cache in front, padded, upsampled. Images, frames, rows,
/// columns; what lies outside the input is padding.
struct InputBox {
  std::array<std::int64_t, 4> origin = {0, 0, 0, 0};
  std::array<std::int64_t, 4> extent = {0, 0, 0, 0};
};

/// Write a box as it is convolved, dense and channels-last: the activation normalised by
/// `pointers.prologue`, which is not none, frames of the cache as they are. Extents fit 32 bits
/// (device_geometry_refusal). One kernel on `stream`, or several where the box has more than 2^31
/// vectors. Throws Error{launch_failure}.
void write_normalised_box(void* to, const RunPointers& pointers, const ConvGeometry& geometry,
                          DType dtype, const InputBox& box, cudaStream_t stream);

/// `write_next_cache` for a run with a prologue: frames of the activation are normalised.
void write_normalised_cache(const RunPointers& pointers, const ConvGeometry& geometry, DType dtype,
                            cudaStream_t stream);

}  // namespace convoy
