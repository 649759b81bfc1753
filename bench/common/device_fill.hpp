// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "convoy/types.hpp"

namespace convoy::bench {

/// Fill device memory with uniform values in [-scale, scale) that depend on the seed alone.
void fill_random(void* data, std::int64_t elements, DType dtype, std::uint64_t seed, float scale,
                 cudaStream_t stream);

/// ‖a − b‖ / ‖b‖ of two device tensors, in fp64. Synchronises.
double relative_difference(const void* a, const void* b, std::int64_t elements, DType dtype);

}  // namespace convoy::bench
