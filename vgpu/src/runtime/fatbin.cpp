// SPDX-License-Identifier: Apache-2.0
#include "runtime/fatbin.hpp"

#include <lz4.h>
#include <zstd.h>

#include <cstring>
#include <span>

#include "fault.hpp"

namespace vgpu::runtime {
namespace {

constexpr uint32_t kWrapperMagic = 0x466243B1;
constexpr uint32_t kContainerMagic = 0xBA55ED50;
constexpr uint64_t kMaxUnpackedBytes = 1ull << 30;  // a damaged size must not eat the memory

// The layouts that nvcc 13 writes (found by reading its output; all fields little-endian).
struct Wrapper {
  uint32_t magic, version;
  const void* container;
  const void* prelinked;
};

struct ContainerHeader {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;  // of all entries
};

struct EntryHeader {
  uint16_t kind, version;  // kind 1: PTX, 2: ELF
  uint32_t header_bytes;
  uint64_t padded_bytes;  // of the payload
  uint32_t packed_bytes;  // of the payload if it is packed, else 0
  uint32_t options_offset;
  uint16_t minor, major;  // PTX ISA
  uint32_t arch;
  uint32_t name_offset, name_bytes;
  uint64_t flags;
  uint64_t reserved;
  uint64_t unpacked_bytes;
};
static_assert(sizeof(EntryHeader) == 64);

constexpr uint16_t kKindPtx = 1;
constexpr uint64_t kFlagLz4 = 0x2000, kFlagZstd = 0x8000;
constexpr uint64_t kFlagArchSpecific = 0x100000, kFlagFamilySpecific = 0x200000;

std::string unpack(const EntryHeader& header, const uint8_t* payload, std::string& problem) {
  const size_t packed = header.packed_bytes ? header.packed_bytes : header.padded_bytes;
  if (packed > header.padded_bytes || packed > kMaxUnpackedBytes ||
      header.unpacked_bytes > kMaxUnpackedBytes) {
    problem = "its sizes are damaged";
    return {};
  }
  if (header.flags & kFlagZstd) {
    std::string text(header.unpacked_bytes, '\0');
    const size_t got = ZSTD_decompress(text.data(), text.size(), payload, packed);
    if (ZSTD_isError(got) || got != text.size()) {
      problem = "its zstd data are damaged";
      return {};
    }
    return text;
  }
  if (header.flags & kFlagLz4) {
    std::string text(header.unpacked_bytes, '\0');
    const int got = LZ4_decompress_safe(reinterpret_cast<const char*>(payload), text.data(),
                                        static_cast<int>(packed), static_cast<int>(text.size()));
    if (got < 0 || static_cast<size_t>(got) != text.size()) {
      problem = "its LZ4 data are damaged";
      return {};
    }
    return text;
  }
  return std::string(reinterpret_cast<const char*>(payload), packed);
}

std::string list_names(const std::vector<FatEntry>& entries) {
  std::string text;
  for (const FatEntry& entry : entries) text += (text.empty() ? "" : ", ") + entry.name();
  return text.empty() ? "nothing" : text;
}

// The 'f' targets run on every member of their family: compute_100f on 100 and 103.
bool same_family(uint32_t entry_arch, uint32_t arch) {
  return entry_arch / 10 == arch / 10 && entry_arch <= arch;
}

}  // namespace

std::string FatEntry::name() const {
  std::string text = (is_ptx ? "PTX compute_" : "SASS sm_") + std::to_string(arch);
  if (suffix) text += suffix;
  return text;
}

std::vector<FatEntry> read_fat_container(const void* container) {
  ContainerHeader header;
  std::memcpy(&header, container, sizeof header);
  if (header.magic != kContainerMagic || header.header_bytes < sizeof header) {
    fault(kInvalidPtx, "fat binary: container magic 0x%08x, expected 0x%08x", header.magic,
          kContainerMagic);
  }
  std::vector<FatEntry> entries;
  const uint8_t* at = static_cast<const uint8_t*>(container) + header.header_bytes;
  uint64_t left = header.bytes;
  while (left >= sizeof(EntryHeader)) {
    EntryHeader entry;
    std::memcpy(&entry, at, sizeof entry);
    const bool fits = entry.header_bytes >= sizeof entry && entry.header_bytes <= left &&
                      entry.padded_bytes <= left - entry.header_bytes;
    if (!fits) {
      fault(kInvalidPtx, "fat binary: entry %zu passes the container's end", entries.size());
    }
    FatEntry result;
    result.is_ptx = entry.kind == kKindPtx;
    result.arch = entry.arch;
    result.suffix = entry.flags & kFlagArchSpecific     ? 'a'
                    : entry.flags & kFlagFamilySpecific ? 'f'
                                                        : char{0};
    if (result.is_ptx) {
      result.ptx = unpack(entry, at + entry.header_bytes, result.problem);
      while (!result.ptx.empty() && result.ptx.back() == '\0') result.ptx.pop_back();
    }
    entries.push_back(std::move(result));
    at += entry.header_bytes + entry.padded_bytes;
    left -= entry.header_bytes + entry.padded_bytes;
  }
  return entries;
}

std::vector<FatEntry> read_fat_wrapper(const void* wrapper) {
  Wrapper header;
  std::memcpy(&header, wrapper, sizeof header);
  if (header.magic != kWrapperMagic || header.container == nullptr) {
    fault(kInvalidPtx, "fat binary: wrapper magic 0x%08x, expected 0x%08x", header.magic,
          kWrapperMagic);
  }
  return read_fat_container(header.container);
}

std::vector<FatEntry> read_fat_image(const void* image) {
  uint32_t magic;
  std::memcpy(&magic, image, sizeof magic);
  if (magic == kWrapperMagic) return read_fat_wrapper(image);
  if (magic == kContainerMagic) return read_fat_container(image);
  if (std::memcmp(&magic, "\177ELF", 4) == 0) {
    fault(kNoKernelImageForDevice,
          "the image is a cubin (machine code), which the virtual GPU cannot run; load PTX text or "
          "a fat binary that holds PTX");
  }
  // Text: take the architecture from its .target line.
  FatEntry entry;
  entry.is_ptx = true;
  entry.ptx = static_cast<const char*>(image);
  const size_t target = entry.ptx.find(".target");
  const size_t sm = target == std::string::npos ? target : entry.ptx.find("sm_", target);
  if (sm == std::string::npos) {
    fault(kInvalidPtx, "the image is neither a fat binary nor PTX text with a .target line");
  }
  size_t at = sm + 3;
  for (; at < entry.ptx.size() && entry.ptx[at] >= '0' && entry.ptx[at] <= '9'; ++at) {
    entry.arch = entry.arch * 10 + static_cast<uint32_t>(entry.ptx[at] - '0');
  }
  if (at < entry.ptx.size() && (entry.ptx[at] == 'a' || entry.ptx[at] == 'f')) {
    entry.suffix = entry.ptx[at];
  }
  return {entry};
}

const FatEntry& choose_ptx(const std::vector<FatEntry>& entries, uint32_t arch) {
  const FatEntry* best = nullptr;
  uint32_t best_rank = 0;
  for (const FatEntry& entry : entries) {
    if (!entry.is_ptx) continue;
    uint32_t rank = 0;
    if (entry.suffix == 'a') {
      rank = entry.arch == arch ? 3000 : 0;
    } else if (entry.suffix == 'f') {
      rank = same_family(entry.arch, arch) ? 2000 + entry.arch : 0;
    } else {
      rank = entry.arch <= arch ? 1 + entry.arch : 0;
    }
    if (rank > best_rank) {
      best = &entry;
      best_rank = rank;
    }
  }
  if (best == nullptr) {
    const char* suffix = arch >= 90 ? "a" : "";
    fault(kNoKernelImageForDevice,
          "the program holds no PTX for this GPU (sm_%u): it holds %s. Build it with\n"
          "  nvcc -gencode arch=compute_%u%s,code=[sm_%u%s,compute_%u%s]\n"
          "(code=sm_%u%s alone embeds machine code only)",
          arch, list_names(entries).c_str(), arch, suffix, arch, suffix, arch, suffix, arch,
          suffix);
  }
  if (!best->problem.empty()) {
    fault(kInvalidPtx, "the program's %s cannot be unpacked: %s", best->name().c_str(),
          best->problem.c_str());
  }
  return *best;
}

}  // namespace vgpu::runtime
