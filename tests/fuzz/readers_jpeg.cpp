// SPDX-License-Identifier: Apache-2.0
#include "io/jpeg.hpp"
#include "readers_check.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace convoy::io;
  check_reader([&] {
    MemorySource source("fuzz", std::as_bytes(std::span(data, size)));
    return read_jpeg(source);
  });
  return 0;
}
