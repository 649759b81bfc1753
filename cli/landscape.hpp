// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "io/host_tensor.hpp"

namespace convoy::cli {

/// A picture of mountains, a lake and a sky, made from fractal noise and light: fp32 [size, size,
/// 3], values 0 to 1. The same seed gives the same picture.
io::HostTensor make_landscape(std::int64_t size, std::uint32_t seed);

}  // namespace convoy::cli
