// SPDX-License-Identifier: Apache-2.0
#include "elf_file.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

namespace vgpu::cli {
namespace {

// A bounds-checked view of the file.
class Bytes {
 public:
  explicit Bytes(std::string data) : data_(std::move(data)) {}

  template <typename T>
  bool read(uint64_t offset, T& value) const {
    if (offset > data_.size() || sizeof value > data_.size() - offset) return false;
    std::memcpy(&value, data_.data() + offset, sizeof value);
    return true;
  }
  // A zero-terminated text; empty when it is outside.
  std::string text(uint64_t offset) const {
    if (offset >= data_.size()) return {};
    const size_t end = data_.find('\0', offset);
    return end == std::string::npos ? std::string() : data_.substr(offset, end - offset);
  }

 private:
  std::string data_;
};

}  // namespace

bool ElfFile::has_section(const std::string& name) const {
  return std::find(sections.begin(), sections.end(), name) != sections.end();
}

bool ElfFile::needs(const std::string& library) const {
  return std::find(needed.begin(), needed.end(), library) != needed.end();
}

std::optional<ElfFile> read_elf(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return std::nullopt;
  char magic[4] = {};
  stream.read(magic, sizeof magic);
  if (std::memcmp(magic, ELFMAG, SELFMAG) != 0) return std::nullopt;
  stream.seekg(0);
  const Bytes file(std::string(std::istreambuf_iterator<char>(stream), {}));

  Elf64_Ehdr header;
  if (!file.read(0, header) || header.e_ident[EI_CLASS] != ELFCLASS64) return std::nullopt;
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  for (size_t i = 0; i < sections.size(); ++i) {
    if (!file.read(header.e_shoff + i * sizeof(Elf64_Shdr), sections[i])) return std::nullopt;
  }
  ElfFile elf;
  const uint64_t names =
      header.e_shstrndx < sections.size() ? sections[header.e_shstrndx].sh_offset : 0;
  for (const Elf64_Shdr& section : sections) {
    elf.sections.push_back(file.text(names + section.sh_name));
    if (section.sh_type != SHT_DYNAMIC || section.sh_link >= sections.size()) continue;
    const uint64_t strings = sections[section.sh_link].sh_offset;
    Elf64_Dyn entry;
    for (uint64_t at = 0; at + sizeof entry <= section.sh_size; at += sizeof entry) {
      if (!file.read(section.sh_offset + at, entry) || entry.d_tag == DT_NULL) break;
      if (entry.d_tag == DT_NEEDED) elf.needed.push_back(file.text(strings + entry.d_un.d_val));
      if (entry.d_tag == DT_RPATH) elf.has_rpath = true;
    }
  }
  return elf;
}

}  // namespace vgpu::cli
