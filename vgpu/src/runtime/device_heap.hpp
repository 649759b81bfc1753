// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "memory.hpp"

namespace vgpu::runtime {

/// What malloc and free of device code hand out (CUDA C++ Programming Guide, "Dynamic Global Memory
/// Allocation and Operations"): a heap of fixed size in global memory, whose blocks outlive
/// kernels, are aligned to 16 bytes and are out of the host's reach. All functions may be called at
/// once from several threads.
class DeviceHeap {
 public:
  static constexpr uint64_t kDefaultBytes = 8 << 20;

  explicit DeviceHeap(GlobalMemory& memory) : memory_(memory) {}

  /// cudaLimitMallocHeapSize; it can be changed until the first kernel uses the heap.
  uint64_t size() const { return size_; }
  bool resize(uint64_t bytes);
  /// A block's address; 0 where there is no room.
  uint64_t allocate(uint64_t bytes);
  /// False where no live block starts at `address`.
  bool release(uint64_t address);
  bool contains(uint64_t address) const;
  struct Block {
    uint64_t base = 0, bytes = 0;
  };
  /// The live block that holds an address; bytes 0: none.
  Block find(uint64_t address) const;
  /// Where an address of the heap lies, in words.
  std::string describe(uint64_t address) const;
  /// Forgets everything (cudaDeviceReset).
  void reset();

 private:
  static constexpr uint64_t kAlignment = 16;

  GlobalMemory& memory_;
  mutable std::mutex mutex_;
  uint64_t size_ = kDefaultBytes;
  uint64_t base_ = 0;                   // 0: not used yet
  std::map<uint64_t, uint64_t> live_;   // start -> bytes asked for
  std::map<uint64_t, uint64_t> freed_;  // the last blocks that were freed, for reports
  std::map<uint64_t, uint64_t> holes_;  // start -> bytes
};

}  // namespace vgpu::runtime
