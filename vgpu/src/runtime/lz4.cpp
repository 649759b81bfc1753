// SPDX-License-Identifier: Apache-2.0
#include "runtime/lz4.hpp"

namespace vgpu::runtime {
namespace {

// A length nibble of 15 goes on in the next bytes, each 255 asking for one more.
bool read_length(std::span<const uint8_t> block, size_t& at, size_t& length) {
  if (length != 15) return true;
  uint8_t byte = 255;
  while (byte == 255) {
    if (at >= block.size()) return false;
    byte = block[at++];
    length += byte;
  }
  return true;
}

}  // namespace

// A block is a row of sequences: token (literal and match length nibbles), literals, 16-bit
// distance back, match. The last sequence ends after its literals.
std::optional<std::string> lz4_unpack(std::span<const uint8_t> block, size_t unpacked_bytes) {
  constexpr size_t kMinMatch = 4;
  std::string out;
  out.reserve(unpacked_bytes);
  size_t at = 0;
  while (at < block.size()) {
    const uint8_t token = block[at++];
    size_t literals = token >> 4;
    if (!read_length(block, at, literals)) return std::nullopt;
    if (literals > block.size() - at || literals > unpacked_bytes - out.size()) return std::nullopt;
    out.append(reinterpret_cast<const char*>(block.data()) + at, literals);
    at += literals;
    if (at == block.size()) break;

    if (block.size() - at < 2) return std::nullopt;
    const size_t distance = block[at] | static_cast<size_t>(block[at + 1]) << 8;
    at += 2;
    size_t match = token & 15;
    if (!read_length(block, at, match)) return std::nullopt;
    match += kMinMatch;
    if (distance == 0 || distance > out.size() || match > unpacked_bytes - out.size()) {
      return std::nullopt;
    }
    // The match may overlap what it produces: copy byte by byte.
    for (size_t from = out.size() - distance; match > 0; --match) out.push_back(out[from++]);
  }
  if (out.size() != unpacked_bytes) return std::nullopt;
  return out;
}

}  // namespace vgpu::runtime
