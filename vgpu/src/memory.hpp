// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

namespace vgpu {

/// Where an allocation came from; decides what the checks may assume about it.
enum class MemoryKind : uint8_t {
  device,    ///< cudaMalloc and friends: every write is seen, so unwritten bytes are known
  managed,   ///< cudaMallocManaged: the host writes it directly
  host,      ///< cudaHostAlloc, cudaHostRegister: the host writes it directly
  symbol,    ///< a `__device__` variable of a module
  constant,  ///< a `__constant__` variable of a module: kernels must not write it
};

const char* to_string(MemoryKind kind);

/// A broken rule that matters only where a value that it spoils is used.
struct BrokenRule {
  const char* check;  ///< that reports it
  std::string text;
};

/// One range of global memory. A device address is the host address of the byte that backs it.
///
/// The methods may be called from several threads at once.
class Allocation {
 public:
  /// `track_writes` keeps one bit a byte that tells whether it was written since allocation.
  Allocation(uint64_t base, uint64_t bytes, MemoryKind kind, uint64_t serial, std::string label,
             bool track_writes);

  uint64_t base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t end() const { return base_ + bytes_; }
  MemoryKind kind() const { return kind_; }
  /// 1 for the program's first allocation, 2 for its second, …
  uint64_t serial() const { return serial_; }
  /// What made it: the API call's name, or the symbol's name.
  const std::string& label() const { return label_; }
  /// False once freed; the range then stays known until it leaves the quarantine.
  bool live() const { return live_.load(std::memory_order_relaxed); }

  /// Whether [address, address + bytes) lies inside.
  bool contains(uint64_t address, uint64_t bytes) const {
    return address >= base_ && bytes <= bytes_ && address - base_ <= bytes_ - bytes;
  }

  bool tracks_writes() const { return !written_.empty(); }
  /// Records that [address, address + bytes), which must lie inside, was written.
  void mark_written(uint64_t address, uint64_t bytes);
  /// Address of the first byte of [address, address + bytes) that was never written, or
  /// `address + bytes` when all were (always so where writes are not tracked).
  uint64_t first_unwritten(uint64_t address, uint64_t bytes) const;
  bool is_written(uint64_t address, uint64_t bytes) const {
    return first_unwritten(address, bytes) == address + bytes;
  }
  /// Makes [address, address + bytes), where writes are tracked, as undefined as what was stored
  /// there; who reads it next finds the rule. A later write ends that.
  void spoil(uint64_t address, uint64_t bytes, const std::shared_ptr<const BrokenRule>& rule);
  /// The rule that spoils one of the bytes, or null.
  std::shared_ptr<const BrokenRule> spoiled(uint64_t address, uint64_t bytes) const;
  /// is_written and mark_written of an access of 1 to 32 bytes that is aligned to its size.
  bool is_written_aligned(uint64_t address, uint32_t bytes) const {
    const uint64_t at = address - base_, mask = ((uint64_t{1} << bytes) - 1) << at % kWordBytes;
    return (written_[at / kWordBytes].load(std::memory_order_relaxed) & mask) == mask;
  }
  void mark_written_aligned(uint64_t address, uint32_t bytes) {
    const uint64_t at = address - base_, mask = ((uint64_t{1} << bytes) - 1) << at % kWordBytes;
    std::atomic<uint64_t>& word = written_[at / kWordBytes];
    // Most writes hit bytes that were written before: look before paying for the atomic.
    if ((word.load(std::memory_order_relaxed) & mask) != mask) {
      word.fetch_or(mask, std::memory_order_relaxed);
    }
  }

 private:
  friend class GlobalMemory;
  static constexpr uint64_t kWordBytes = 64;  // bytes of memory that one word of the bitmap covers

  uint64_t base_;
  uint64_t bytes_;
  MemoryKind kind_;
  uint64_t serial_;
  std::string label_;
  std::atomic<bool> live_{true};
  bool owned_ = true;                           // false for cudaHostRegister: not ours to unmap
  std::vector<std::atomic<uint64_t>> written_;  // bit i of word w: byte 64 w + i
  mutable std::mutex spoiled_mutex_;
  std::map<uint64_t, std::shared_ptr<const BrokenRule>> spoiled_;  // by word; stale once written
  std::atomic<bool> any_spoiled_{false};
};

/// The registry of global memory: allocates ranges, finds the one that holds an address, and
/// remembers freed ones for a while so that a use after free is named as such.
///
/// Addresses come from one reserved arena, in order, at a fixed base where the system allows it:
/// the same program sees the same addresses in every run. Freed ranges give their pages back at
/// once and keep their addresses until `kQuarantineBytes` are in quarantine.
class GlobalMemory {
 public:
  static constexpr uint64_t kArenaBase = 0x2000'0000'0000;
  static constexpr uint64_t kArenaBytes = 1ull << 40;
  static constexpr uint64_t kAlignment = 512;  // what cudaMalloc gives
  static constexpr uint64_t kQuarantineBytes = 256ull << 30;

  /// `capacity` limits the live device bytes, as the GPU's memory does.
  explicit GlobalMemory(uint64_t capacity);
  ~GlobalMemory();
  GlobalMemory(const GlobalMemory&) = delete;
  GlobalMemory& operator=(const GlobalMemory&) = delete;

  /// A new range of `bytes` > 0 zeroed bytes, or null when the capacity or the arena is exhausted.
  Allocation* allocate(uint64_t bytes, MemoryKind kind, std::string label);
  /// Makes a range of host memory known to kernels (cudaHostRegister); null when it overlaps one.
  Allocation* adopt(void* host, uint64_t bytes, std::string label);
  /// Frees the live allocation that starts at `address`; false when there is none.
  bool free(uint64_t address);

  /// The allocation, live or quarantined, that holds `address`, or null. The pointer stays valid
  /// while a `Pin` is held.
  Allocation* find(uint64_t address) const;
  /// Says in words where an address lies: "12 bytes past the end of allocation #3 (cudaMalloc, …)".
  std::string describe(uint64_t address) const;
  /// Empty when [address, address + bytes) lies in one live allocation, otherwise what is wrong.
  std::string check(uint64_t address, uint64_t bytes) const;
  /// Marks what a host-side copy or memset wrote.
  void mark_written(uint64_t address, uint64_t bytes);

  /// Frees everything (cudaDeviceReset). Symbols go too.
  void reset();

  uint64_t capacity() const { return capacity_; }
  uint64_t live_bytes() const { return live_bytes_.load(); }
  /// The live allocations in order of address, for leak reports.
  std::vector<const Allocation*> live() const;

  /// Keeps every `Allocation*` valid while it exists: hold one for the length of a launch.
  class Pin {
   public:
    explicit Pin(GlobalMemory& memory) : memory_(memory) { memory_.pins_.fetch_add(1); }
    ~Pin() { memory_.pins_.fetch_sub(1); }
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

   private:
    GlobalMemory& memory_;
  };

 private:
  Allocation* find_locked(uint64_t address) const;
  void drop_quarantine_locked(uint64_t limit);

  mutable std::shared_mutex mutex_;
  uint64_t capacity_;
  uint64_t arena_ = 0;  // base address of the reserved range
  uint64_t next_ = 0;   // next unused address in it
  uint64_t serial_ = 0;
  std::map<uint64_t, std::unique_ptr<Allocation>> by_base_;
  std::multimap<uint64_t, uint64_t> holes_;  // bytes -> base of ranges that left the quarantine
  std::deque<uint64_t> quarantine_;          // bases of freed ranges, oldest first
  uint64_t quarantine_bytes_ = 0;
  std::atomic<uint64_t> live_bytes_{0};
  std::atomic<int> pins_{0};
};

}  // namespace vgpu
