// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "io/host_tensor.hpp"

namespace convoy::io {

/// Reads FILE.npy, FILE.safetensors, FILE.safetensors:TENSOR, FILE.png, FILE.jpg or FILE.jpeg.
/// Throws Error{io_error}; Error{unsupported} for a JPEG where `can_read_jpeg` says no.
HostTensor read_tensor(const std::string& spec);

/// Writes the same kinds but JPEG, whole or not at all; a PNG as `picture_of` says. The tensor of a
/// safetensors file is called "output" unless the spec names it.
void write_tensor(const std::string& spec, const HostTensor& tensor);

/// Throws Error{invalid_argument} or Error{io_error} where `write_tensor` could not begin.
void check_can_write_tensor(const std::string& spec);

/// Whether two specs write the same file, whatever its tensors are called.
bool is_same_file(const std::string& spec, const std::string& other);

}  // namespace convoy::io
