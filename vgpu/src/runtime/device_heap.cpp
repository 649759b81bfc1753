// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_heap.hpp"

#include <algorithm>
#include <iterator>

#include "fault.hpp"

namespace vgpu::runtime {

bool DeviceHeap::resize(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (base_ != 0) return false;
  size_ = bytes;
  return true;
}

uint64_t DeviceHeap::allocate(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes > size_) return 0;  // NOTE: none at all is a block of its own, as on an H200.
  if (base_ == 0) {
    const Allocation* made =
        memory_.allocate(size_ + kAlignment, MemoryKind::device, "the heap of malloc in kernels");
    if (!made) return 0;
    base_ = made->base();
    // NOTE: no block starts where the heap does, so that cudaFree of a block frees nothing.
    holes_[base_ + kAlignment] = size_;
  }
  // At least one unit between blocks stays free: one past the end belongs to nobody.
  const uint64_t need = (bytes / kAlignment + 1) * kAlignment;
  const auto hole =
      std::find_if(holes_.begin(), holes_.end(), [&](auto& each) { return each.second >= need; });
  if (hole == holes_.end()) return 0;
  const auto [at, room] = *hole;
  holes_.erase(hole);
  if (room > need) holes_[at + need] = room - need;
  live_[at] = bytes;
  freed_.erase(freed_.lower_bound(at), freed_.lower_bound(at + need));
  return at;
}

bool DeviceHeap::release(uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto block = live_.find(address);
  if (block == live_.end()) return false;
  freed_[address] = block->second;
  uint64_t room = (block->second / kAlignment + 1) * kAlignment;
  live_.erase(block);
  auto after = holes_.lower_bound(address);
  if (after != holes_.end() && after->first == address + room) {
    room += after->second;
    after = holes_.erase(after);
  }
  if (after != holes_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == address) {
      before->second += room;
      return true;
    }
  }
  holes_[address] = room;
  return true;
}

bool DeviceHeap::contains(uint64_t address) const {
  std::lock_guard lock(mutex_);
  return base_ != 0 && address - base_ < size_ + kAlignment;
}

DeviceHeap::Block DeviceHeap::find(uint64_t address) const {
  std::lock_guard lock(mutex_);
  auto block = live_.upper_bound(address);
  if (block == live_.begin()) return {};
  --block;
  return address - block->first < block->second ? Block{block->first, block->second} : Block{};
}

std::string DeviceHeap::describe(uint64_t address) const {
  std::lock_guard lock(mutex_);
  auto in = [&](const std::map<uint64_t, uint64_t>& blocks, const char* what) -> std::string {
    auto block = blocks.upper_bound(address);
    if (block == blocks.begin()) return {};
    --block;
    const uint64_t offset = address - block->first;
    auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
    if (offset < block->second) {
      return format("byte %llu of %s block of %llu bytes (malloc in a kernel)", number(offset),
                    what, number(block->second));
    }
    if (offset < block->second + 4 * kAlignment) {
      return format("%llu bytes past the end of %s block of %llu bytes (malloc in a kernel)",
                    number(offset - block->second), what, number(block->second));
    }
    return {};
  };
  std::string text = in(freed_, "a freed");
  if (text.empty()) text = in(live_, "a");
  return text.empty() ? "in the heap of malloc in kernels, in no block of it" : text;
}

void DeviceHeap::reset() {
  std::lock_guard lock(mutex_);
  base_ = 0;
  size_ = kDefaultBytes;
  live_.clear();
  freed_.clear();
  holes_.clear();
}

}  // namespace vgpu::runtime
