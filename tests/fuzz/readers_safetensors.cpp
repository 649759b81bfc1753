// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.hpp"
#include "readers_check.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace convoy::io;
  // Half of the inputs by name, half for the only tensor.
  check_reader([&] {
    MemorySource source("fuzz", {reinterpret_cast<const std::byte*>(data), size});
    return read_safetensors(source, size % 2 == 0 ? "w" : "");
  });
  return 0;
}
