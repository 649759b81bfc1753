// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "io/atomic_file.hpp"
#include "io/byte_source.hpp"
#include "io/host_tensor.hpp"

namespace convoy::io {

/// Reads a picture as fp32 [H, W, C], values 0 to 1 as stored (no gamma or colour management).
/// C is 1 (grey), 2 (grey, alpha), 3 (RGB) or 4 (RGBA); palettes are expanded, 16 bits kept.
/// Throws Error{io_error}.
HostTensor read_png(ByteSource& source);

/// Writes 8 bits a sample: `image` is fp32 [H, W, 1] or [H, W, 3], values clamped to 0 to 1, NaN
/// as 0.
void write_png(AtomicFile& file, const HostTensor& image);

/// What is written for a tensor [N, (D,) H, W, C], its leading extents optional. 1 and 3 channels
/// of one frame are a picture, values 0 to 1. Anything else is a contact sheet: a grid of one grey
/// tile for each frame and channel, each spread over its own finite minimum to maximum, averaged
/// down until the sheet is at most `kLargestSheet` pixels a side.
HostTensor picture_of(const HostTensor& tensor);
inline constexpr std::int64_t kLargestSheet = 4096;

}  // namespace convoy::io
