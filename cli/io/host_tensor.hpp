// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "convoy/types.hpp"

namespace convoy::io {

/// Bytes aligned to 64, not initialised.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  /// Throws Error{out_of_memory} with the size.
  explicit AlignedBytes(std::size_t bytes);

  std::byte* data() { return memory_.get(); }
  const std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::size_t bytes_ = 0;
};

/// A dense tensor in host memory, last extent fastest.
struct HostTensor {
  DType dtype = DType::fp32;
  std::vector<std::int64_t> shape;
  AlignedBytes bytes;

  HostTensor() = default;
  /// Memory for the shape, not initialised. Throws Error{invalid_argument} where the number of
  /// bytes overflows 64 bits.
  HostTensor(DType dtype, std::vector<std::int64_t> shape);

  std::int64_t elements() const;
  int rank() const { return static_cast<int>(shape.size()); }
};

/// "(1, 256, 256, 3)", as numpy writes a shape.
std::string shape_to_string(const std::vector<std::int64_t>& shape);

/// Bytes of a dense tensor; throws Error{invalid_argument} for a negative extent and on overflow
/// of 63 bits.
std::uint64_t checked_bytes(const std::vector<std::int64_t>& shape, std::size_t element_bytes);

/// The same values in another type: exact where wider, rounded to nearest even where narrower.
HostTensor convert(const HostTensor& tensor, DType dtype);

}  // namespace convoy::io
