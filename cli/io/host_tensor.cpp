// SPDX-License-Identifier: Apache-2.0
#include "io/host_tensor.hpp"

#include <cstring>
#include <new>

#include "convoy/dtype.hpp"
#include "text.hpp"

namespace convoy::io {

AlignedBytes::AlignedBytes(std::size_t bytes) : bytes_(bytes) {
  constexpr std::size_t kAlignment = 64;
  // aligned_alloc wants a multiple of the alignment; an empty tensor still gets an address.
  const auto fail = [&] {
    throw Error(Status::out_of_memory,
                cli::text("out of memory: a tensor of ", bytes, " bytes could not be reserved"));
  };
  if (bytes > SIZE_MAX - kAlignment) fail();
  const std::size_t padded = (bytes + kAlignment) / kAlignment * kAlignment;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, padded)));
  if (memory_ == nullptr) fail();
}

HostTensor::HostTensor(DType dtype, std::vector<std::int64_t> shape)
    : dtype(dtype), shape(std::move(shape)), bytes(checked_bytes(this->shape, size_of(dtype))) {}

std::int64_t HostTensor::elements() const {
  return static_cast<std::int64_t>(bytes.size() / size_of(dtype));
}

std::string shape_to_string(const std::vector<std::int64_t>& shape) {
  std::string out = "(";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    out += (axis > 0 ? ", " : "") + std::to_string(shape[axis]);
  }
  return out + (shape.size() == 1 ? ",)" : ")");
}

std::uint64_t checked_bytes(const std::vector<std::int64_t>& shape, std::size_t element_bytes) {
  std::int64_t bytes = static_cast<std::int64_t>(element_bytes);
  bool overflow = false;
  bool empty = false;
  for (std::int64_t extent : shape) {
    if (extent < 0) cli::throw_invalid("negative extent in shape ", shape_to_string(shape));
    empty = empty || extent == 0;
    overflow = overflow || __builtin_mul_overflow(bytes, extent, &bytes);
  }
  if (empty) return 0;
  if (overflow)
    cli::throw_invalid("the bytes of shape ", shape_to_string(shape), " overflow 64 bits");
  return static_cast<std::uint64_t>(bytes);
}

HostTensor convert(const HostTensor& tensor, DType dtype) {
  HostTensor out(dtype, tensor.shape);
  if (dtype == tensor.dtype) {
    std::memcpy(out.bytes.data(), tensor.bytes.data(), tensor.bytes.size());
    return out;
  }
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    store_element(out.bytes.data(), i, dtype, load_element(tensor.bytes.data(), i, tensor.dtype));
  }
  return out;
}

}  // namespace convoy::io
