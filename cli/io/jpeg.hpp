// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/byte_source.hpp"
#include "io/host_tensor.hpp"

namespace convoy::io {

/// Whether this build reads JPEG: it was built where libjpeg was.
bool can_read_jpeg();

/// Reads a baseline or progressive JPEG of 8 bits as fp32 [H, W, C], values 0 to 1 as stored (no
/// gamma or colour management); C is 1 (grey) or 3 (RGB). The picture lies as it is stored: Exif's
/// orientation is not applied. Throws Error{io_error}, and Error{unsupported} where
/// !can_read_jpeg().
HostTensor read_jpeg(ByteSource& source);

}  // namespace convoy::io
