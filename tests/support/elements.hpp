// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "convoy/dtype.hpp"
#include "convoy/types.hpp"

namespace convoy::test {

/// Values as they lie in memory, each rounded once to `dtype`.
inline std::vector<unsigned char> encode(const std::vector<float>& values, DType dtype) {
  std::vector<unsigned char> bytes(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    store_element(bytes.data(), static_cast<std::int64_t>(i), dtype, values[i]);
  }
  return bytes;
}

/// The values of elements as they lie in memory.
inline std::vector<float> decode(const std::vector<unsigned char>& bytes, DType dtype) {
  std::vector<float> values(bytes.size() / size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = load_element(bytes.data(), static_cast<std::int64_t>(i), dtype);
  }
  return values;
}

}  // namespace convoy::test
