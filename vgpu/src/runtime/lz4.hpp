// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace vgpu::runtime {

/// Unpacks one raw LZ4 block (the LZ4 block format: no frame header) that holds exactly
/// `unpacked_bytes` bytes. Empty when the block is damaged.
std::optional<std::string> lz4_unpack(std::span<const uint8_t> block, size_t unpacked_bytes);

}  // namespace vgpu::runtime
