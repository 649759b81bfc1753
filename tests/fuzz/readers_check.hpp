// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>

#include "convoy/error.hpp"
#include "io/host_tensor.hpp"

namespace convoy::io {

/// What must hold of whatever a reader accepts.
inline void check(const HostTensor& tensor) {
  const bool sound = tensor.bytes.size() == checked_bytes(tensor.shape, size_of(tensor.dtype));
  if (!sound) std::abort();
  // Every byte belongs to the tensor and is defined: read them all.
  unsigned sum = 0;
  for (std::size_t i = 0; i < tensor.bytes.size(); ++i) sum += unsigned(tensor.bytes.data()[i]);
  [[maybe_unused]] volatile unsigned keep = sum;
}

/// Calls a reader: it may throw an Error of bad input, and nothing else.
template <typename Reader>
void check_reader(const Reader& reader) {
  try {
    check(reader());
  } catch (const Error& error) {
    if (error.status() != Status::io_error) std::abort();
  }
}

}  // namespace convoy::io
