// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace vgpu::cli {

/// What the launcher wants to know of a program before it starts it.
struct ElfFile {
  std::vector<std::string> needed;  ///< DT_NEEDED: the libraries it is linked with
  std::vector<std::string> sections;
  bool has_rpath = false;  ///< DT_RPATH, which wins over LD_LIBRARY_PATH

  bool has_section(const std::string& name) const;
  bool needs(const std::string& library) const;
};

/// Reads a 64-bit little-endian ELF file; empty when the file is none (a script, say) or damaged.
std::optional<ElfFile> read_elf(const std::string& path);

}  // namespace vgpu::cli
