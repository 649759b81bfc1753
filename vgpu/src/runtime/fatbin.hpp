// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vgpu::runtime {

/// One image of a fat binary: PTX text or machine code for one architecture.
struct FatEntry {
  bool is_ptx = false;
  uint32_t arch = 0;    ///< 90 for sm_90a
  char suffix = 0;      ///< 'a' (this architecture only), 'f' (its family) or 0 (and later ones)
  std::string ptx;      ///< unpacked text; empty for machine code
  std::string problem;  ///< why `ptx` could not be unpacked, else empty

  std::string name() const;  ///< "PTX compute_90a" or "SASS sm_90a"
};

/// The entries of a fat binary container (magic 0xBA55ED50). Throws Fault (kInvalidPtx) when the
/// bytes are no container.
std::vector<FatEntry> read_fat_container(const void* container);

/// The entries that a program registers: `wrapper` is the structure in .nvFatBinSegment that
/// __cudaRegisterFatBinary gets (magic 0x466243B1). Throws Fault (kInvalidPtx).
std::vector<FatEntry> read_fat_wrapper(const void* wrapper);

/// The entries of what cudaLibraryLoadData takes: a wrapper, a container, or plain PTX text.
std::vector<FatEntry> read_fat_image(const void* image);

/// The PTX to run on a GPU of `arch` (90, 100): the text made for exactly this architecture wins
/// over its family's, and that over the newest portable one. Plain texts of programs that also
/// carry an 'a' text are often full of trap stubs.
/// Throws Fault (kNoKernelImageForDevice) that lists what there is and names the nvcc flag to add.
const FatEntry& choose_ptx(const std::vector<FatEntry>& entries, uint32_t arch);

}  // namespace vgpu::runtime
