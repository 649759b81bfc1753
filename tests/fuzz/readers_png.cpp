// SPDX-License-Identifier: Apache-2.0
#include <zlib.h>

#include <string>

#include "io/png.hpp"
#include "readers_check.hpp"

namespace {

std::uint32_t big_endian(const std::string& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | std::uint8_t(bytes[at + i]);
  return value;
}

/// Makes every checksum right, so that the fuzzer gets past them.
void mend_checksums(std::string& png) {
  for (std::size_t at = 8; at + 12 <= png.size();) {
    const std::uint64_t length = big_endian(png, at);
    if (length > png.size() - at - 12) return;
    const auto* chunk = reinterpret_cast<const Bytef*>(png.data() + at + 4);
    const auto crc = std::uint32_t(crc32(crc32(0, nullptr, 0), chunk, uInt(length + 4)));
    for (std::size_t i = 0; i < 4; ++i) png[at + 8 + length + i] = char(crc >> (24 - 8 * i));
    at += 12 + length;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace convoy::io;
  std::string png(reinterpret_cast<const char*>(data), size);
  mend_checksums(png);
  check_reader([&] {
    MemorySource source("fuzz", std::as_bytes(std::span(png)));
    const HostTensor image = read_png(source);
    // Contact sheets of whatever came in.
    if (image.elements() > 0 && image.elements() < 1 << 16) check(picture_of(image));
    return convert(image, convoy::DType::bf16);
  });
  return 0;
}
