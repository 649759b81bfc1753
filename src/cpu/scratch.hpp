// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

namespace convoy::cpu {

constexpr std::size_t kCacheLine = 64;

/// Memory aligned to a cache line. Throws std::bad_alloc.
inline std::shared_ptr<void> allocate_aligned(std::size_t bytes) {
  void* memory = ::operator new (bytes, std::align_val_t{kCacheLine});
  return {memory, [](void* p) { ::operator delete (p, std::align_val_t{kCacheLine}); }};
}

/// Buffers of one size for runs that bring no workspace: one for each run that is under way at the
/// same time, kept for the next.
class ScratchPool {
 public:
  /// Before the first `take`.
  void set_bytes(std::size_t bytes) { bytes_ = bytes; }

  /// A buffer that goes back to the pool with the last copy. The pool must outlive it.
  std::shared_ptr<void> take() {
    std::shared_ptr<void> buffer;
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        buffer = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (buffer == nullptr) buffer = allocate_aligned(bytes_);
    void* memory = buffer.get();
    return {memory, [this, buffer = std::move(buffer)](void*) mutable {
              const std::lock_guard lock(mutex_);
              free_.push_back(std::move(buffer));
            }};
  }

 private:
  std::size_t bytes_ = 0;
  std::mutex mutex_;
  std::vector<std::shared_ptr<void>> free_;
};

}  // namespace convoy::cpu
