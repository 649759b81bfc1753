// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// Rows of RGB, 8 bits each, into a file; throws where that fails.
void write_png(const std::string& path, const std::vector<std::uint8_t>& rgb, std::uint32_t width,
               std::uint32_t height);
