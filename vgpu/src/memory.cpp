// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <mutex>

namespace vgpu {
namespace {

constexpr uint64_t kPage = 4096;

uint64_t round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Address space of one allocation: its pages and a guard page behind them.
uint64_t footprint(uint64_t bytes) {
  return round_up(bytes, kPage) + kPage;
}

// Bits [first, last) of a word, 0 <= first < last <= 64.
uint64_t bit_range(uint64_t first, uint64_t last) {
  const uint64_t below_last = last == 64 ? ~0ull : (1ull << last) - 1;
  return below_last & ~((1ull << first) - 1);
}

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

std::string name(const Allocation& allocation) {
  std::string text =
      allocation.kind() == MemoryKind::symbol || allocation.kind() == MemoryKind::constant
          ? "variable " + allocation.label()
          : "allocation #" + std::to_string(allocation.serial()) + " (" + allocation.label() + ")";
  return text + " of " + std::to_string(allocation.bytes()) + " bytes at " + hex(allocation.base());
}

}  // namespace

const char* to_string(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::device:
      return "device";
    case MemoryKind::managed:
      return "managed";
    case MemoryKind::host:
      return "host";
    case MemoryKind::symbol:
      return "symbol";
    case MemoryKind::constant:
      return "constant";
  }
  return "unknown";
}

Allocation::Allocation(uint64_t base, uint64_t bytes, MemoryKind kind, uint64_t serial,
                       std::string label, bool track_writes)
    : base_(base),
      bytes_(bytes),
      kind_(kind),
      serial_(serial),
      label_(std::move(label)),
      written_(track_writes ? (bytes + kWordBytes - 1) / kWordBytes : 0) {}

void Allocation::mark_written(uint64_t address, uint64_t bytes) {
  if (written_.empty() || bytes == 0) return;
  uint64_t at = address - base_;
  const uint64_t end = at + bytes;
  while (at < end) {
    const uint64_t word = at / kWordBytes;
    const uint64_t stop = std::min(end, (word + 1) * kWordBytes);
    const uint64_t mask = bit_range(at % kWordBytes, stop - word * kWordBytes);
    // Most writes hit bytes that were written before: look before paying for the atomic.
    if ((written_[word].load(std::memory_order_relaxed) & mask) != mask) {
      written_[word].fetch_or(mask, std::memory_order_relaxed);
    }
    at = stop;
  }
}

uint64_t Allocation::first_unwritten(uint64_t address, uint64_t bytes) const {
  const uint64_t last = address + bytes;
  if (written_.empty()) return last;
  uint64_t at = address - base_;
  const uint64_t end = at + bytes;
  while (at < end) {
    const uint64_t word = at / kWordBytes;
    const uint64_t stop = std::min(end, (word + 1) * kWordBytes);
    const uint64_t mask = bit_range(at % kWordBytes, stop - word * kWordBytes);
    const uint64_t missing = ~written_[word].load(std::memory_order_relaxed) & mask;
    if (missing != 0) {
      return base_ + word * kWordBytes + static_cast<uint64_t>(__builtin_ctzll(missing));
    }
    at = stop;
  }
  return last;
}

void Allocation::spoil(uint64_t address, uint64_t bytes,
                       const std::shared_ptr<const BrokenRule>& rule) {
  const uint64_t end = address - base_ + bytes;
  for (uint64_t at = address - base_; at < end;) {
    const uint64_t word = at / kWordBytes;
    const uint64_t stop = std::min(end, (word + 1) * kWordBytes);
    const uint64_t mask = bit_range(at % kWordBytes, stop - word * kWordBytes);
    {
      std::lock_guard lock(spoiled_mutex_);
      spoiled_[word] = rule;
    }
    written_[word].fetch_and(~mask, std::memory_order_relaxed);
    at = stop;
  }
  any_spoiled_.store(true, std::memory_order_relaxed);
}

std::shared_ptr<const BrokenRule> Allocation::spoiled(uint64_t address, uint64_t bytes) const {
  if (!any_spoiled_.load(std::memory_order_relaxed)) return nullptr;
  std::lock_guard lock(spoiled_mutex_);
  const uint64_t first = address - base_, last = first + bytes;
  for (auto at = spoiled_.lower_bound(first / kWordBytes);
       at != spoiled_.end() && at->first * kWordBytes < last; ++at) {
    const uint64_t from = std::max(first, at->first * kWordBytes);
    const uint64_t to = std::min(last, (at->first + 1) * kWordBytes);
    if (!is_written(base_ + from, to - from)) return at->second;
  }
  return nullptr;
}

GlobalMemory::GlobalMemory(uint64_t capacity) : capacity_(capacity) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* base = MAP_FAILED;
#if !defined(__SANITIZE_THREAD__)  // NOTE: TSan's shadow layout leaves no room at the fixed address
  base = mmap(reinterpret_cast<void*>(kArenaBase), kArenaBytes, PROT_NONE,
              flags | MAP_FIXED_NOREPLACE, -1, 0);
#endif
  if (base == MAP_FAILED) base = mmap(nullptr, kArenaBytes, PROT_NONE, flags, -1, 0);
  if (base == MAP_FAILED) return;  // every allocation then fails as out of memory
  arena_ = next_ = reinterpret_cast<uint64_t>(base);
}

GlobalMemory::~GlobalMemory() {
  if (arena_ != 0) munmap(reinterpret_cast<void*>(arena_), kArenaBytes);
}

Allocation* GlobalMemory::allocate(uint64_t bytes, MemoryKind kind, std::string label) {
  std::unique_lock lock(mutex_);
  const bool counts = kind == MemoryKind::device || kind == MemoryKind::managed;
  if (arena_ == 0 || bytes == 0 || bytes > kArenaBytes / 2) return nullptr;
  if (counts && bytes > capacity_ - live_bytes_.load()) return nullptr;

  // Take fresh addresses as long as there are any; then those that left the quarantine.
  const uint64_t need = footprint(bytes);
  uint64_t base = 0;
  if (next_ - arena_ + need <= kArenaBytes) {
    base = next_;
    next_ += need;
  } else {
    if (pins_.load() == 0) drop_quarantine_locked(0);
    const auto hole = holes_.lower_bound(need);
    if (hole == holes_.end()) return nullptr;
    base = hole->second;
    const uint64_t rest = hole->first - need;
    holes_.erase(hole);
    if (rest >= 2 * kPage) holes_.emplace(rest, base + need);
  }
  if (mprotect(reinterpret_cast<void*>(base), round_up(bytes, kPage), PROT_READ | PROT_WRITE) !=
      0) {
    holes_.emplace(need, base);
    return nullptr;
  }
  auto allocation = std::make_unique<Allocation>(base, bytes, kind, ++serial_, std::move(label),
                                                 kind == MemoryKind::device);
  Allocation* result = allocation.get();
  by_base_[base] = std::move(allocation);
  if (counts) live_bytes_ += bytes;
  return result;
}

Allocation* GlobalMemory::adopt(void* host, uint64_t bytes, std::string label) {
  std::unique_lock lock(mutex_);
  const uint64_t base = reinterpret_cast<uint64_t>(host);
  if (base == 0 || bytes == 0) return nullptr;
  const auto next = by_base_.lower_bound(base);
  if (next != by_base_.end() && next->first < base + bytes && next->second->live()) return nullptr;
  if (next != by_base_.begin()) {
    const Allocation& before = *std::prev(next)->second;
    if (before.live() && before.end() > base) return nullptr;
  }
  auto allocation = std::make_unique<Allocation>(base, bytes, MemoryKind::host, ++serial_,
                                                 std::move(label), false);
  allocation->owned_ = false;
  Allocation* result = allocation.get();
  by_base_[base] = std::move(allocation);
  return result;
}

bool GlobalMemory::free(uint64_t address) {
  std::unique_lock lock(mutex_);
  const auto found = by_base_.find(address);
  if (found == by_base_.end() || !found->second->live()) return false;
  Allocation& allocation = *found->second;
  allocation.live_.store(false, std::memory_order_relaxed);
  if (allocation.kind_ == MemoryKind::device || allocation.kind_ == MemoryKind::managed) {
    live_bytes_ -= allocation.bytes_;
  }
  if (allocation.owned_) {
    // Give the pages back and make every later host access trap; the addresses stay taken.
    void* base = reinterpret_cast<void*>(address);
    const uint64_t pages = round_up(allocation.bytes_, kPage);
    madvise(base, pages, MADV_DONTNEED);
    mprotect(base, pages, PROT_NONE);
  }
  quarantine_.push_back(address);
  quarantine_bytes_ += footprint(allocation.bytes_);
  if (pins_.load() == 0) drop_quarantine_locked(kQuarantineBytes);
  return true;
}

void GlobalMemory::drop_quarantine_locked(uint64_t limit) {
  while (!quarantine_.empty() && quarantine_bytes_ > limit) {
    const uint64_t base = quarantine_.front();
    quarantine_.pop_front();
    const auto found = by_base_.find(base);
    if (found == by_base_.end() || found->second->live()) continue;  // adopted again meanwhile
    const uint64_t bytes = footprint(found->second->bytes_);
    quarantine_bytes_ -= std::min(bytes, quarantine_bytes_);
    if (found->second->owned_) holes_.emplace(bytes, base);
    by_base_.erase(found);
  }
}

Allocation* GlobalMemory::find_locked(uint64_t address) const {
  auto next = by_base_.upper_bound(address);
  if (next == by_base_.begin()) return nullptr;
  Allocation* candidate = std::prev(next)->second.get();
  return candidate->contains(address, 1) ? candidate : nullptr;
}

Allocation* GlobalMemory::find(uint64_t address) const {
  std::shared_lock lock(mutex_);
  return find_locked(address);
}

std::string GlobalMemory::describe(uint64_t address) const {
  std::shared_lock lock(mutex_);
  if (const Allocation* inside = find_locked(address)) {
    const std::string offset = std::to_string(address - inside->base());
    return "byte " + offset + " of " + (inside->live() ? "" : "freed ") + name(*inside);
  }
  // Name the nearer neighbour.
  const auto next = by_base_.upper_bound(address);
  const Allocation* before = next == by_base_.begin() ? nullptr : std::prev(next)->second.get();
  const Allocation* after = next == by_base_.end() ? nullptr : next->second.get();
  const uint64_t past = before ? address - before->end() : ~0ull;
  const uint64_t ahead = after ? after->base() - address : ~0ull;
  constexpr uint64_t kNear = 1ull << 30;  // farther away, a neighbour explains nothing
  if (before && past <= ahead && past < kNear) {
    return std::to_string(past) + " bytes past the end of " + (before->live() ? "" : "freed ") +
           name(*before);
  }
  if (after && ahead < kNear) {
    return std::to_string(ahead) + " bytes before " + (after->live() ? "" : "freed ") +
           name(*after);
  }
  return address < kPage ? "a null pointer plus " + std::to_string(address) + " bytes"
                         : "in no allocation";
}

std::string GlobalMemory::check(uint64_t address, uint64_t bytes) const {
  Allocation* inside = find(address);
  if (inside != nullptr && inside->live() && inside->contains(address, bytes)) return {};
  const std::string range = std::to_string(bytes) + " bytes at " + hex(address);
  if (inside != nullptr && inside->live()) {
    return range + " run " + std::to_string(address + bytes - inside->end()) +
           " bytes past the end of " + name(*inside);
  }
  return range + " lie in no live allocation: " + describe(address);
}

void GlobalMemory::mark_written(uint64_t address, uint64_t bytes) {
  std::shared_lock lock(mutex_);
  if (Allocation* inside = find_locked(address)) {
    inside->mark_written(address, std::min(bytes, inside->end() - address));
  }
}

void GlobalMemory::reset() {
  std::vector<uint64_t> bases;
  for (const Allocation* allocation : live()) bases.push_back(allocation->base());
  for (uint64_t base : bases) free(base);
}

std::vector<const Allocation*> GlobalMemory::live() const {
  std::shared_lock lock(mutex_);
  std::vector<const Allocation*> result;
  for (const auto& [base, allocation] : by_base_) {
    if (allocation->live()) result.push_back(allocation.get());
  }
  return result;
}

}  // namespace vgpu
