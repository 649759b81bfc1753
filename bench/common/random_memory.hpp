// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "convoy/dtype.hpp"
#include "device_fill.hpp"
#include "device_memory.hpp"

namespace convoy::bench {

/// Device memory with uniform values in [-scale, scale) that depend on the seed alone.
inline cli::DeviceMemory random_memory(std::int64_t elements, DType dtype, std::uint64_t seed,
                                       float scale) {
  cli::DeviceMemory memory(Device::cuda, std::size_t(elements) * size_of(dtype));
  if (elements > 0) fill_random(memory.data(), elements, dtype, seed, scale, nullptr);
  return memory;
}

}  // namespace convoy::bench
