// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>

#include "convoy/error.hpp"
#include "shape_string.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace convoy::cli;
  try {
    const ParsedShape parsed = parse_shape({reinterpret_cast<const char*>(data), size});
    // What is accepted prints as something that reads as the same again, legal or not.
    const std::string text = to_string(parsed.problem);
    if (to_string(parse_shape(text).problem) != text) std::abort();
    const auto geometry = geometry_of(parsed.problem);
    if (geometry.output_elements() < 0 || geometry.gemm_k() < 1) std::abort();
  } catch (const convoy::Error& error) {
    if (error.status() != convoy::Status::invalid_argument) std::abort();
  }
  return 0;
}
