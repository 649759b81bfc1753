// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "io/atomic_file.hpp"
#include "io/byte_source.hpp"
#include "io/host_tensor.hpp"

namespace convoy::io {

/// Reads one tensor of a safetensors file: 8 bytes of header length, a JSON header, the data.
/// Types F32, F16, BF16. An empty `tensor` names the only tensor of the file. Throws
/// Error{io_error} for anything that is not so, naming the tensors that are there.
HostTensor read_safetensors(ByteSource& source, const std::string& tensor);

/// Writes a file with this one tensor.
void write_safetensors(AtomicFile& file, const HostTensor& tensor, const std::string& name);

}  // namespace convoy::io
