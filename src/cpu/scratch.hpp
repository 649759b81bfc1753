// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "core/fork_safe.hpp"
#include "core/text.hpp"

namespace convoy::cpu {

constexpr std::size_t kCacheLine = 64;

/// Memory aligned to a cache line. Throws Error{out_of_memory} that says how much was asked for.
inline std::shared_ptr<void> allocate_aligned(std::size_t bytes) {
  void* memory = ::operator new (bytes, std::align_val_t{kCacheLine}, std::nothrow);
  if (memory == nullptr) {
    throw Error(Status::out_of_memory, text(bytes, " bytes of host memory could not be reserved"));
  }
  return {memory, [](void* p) { ::operator delete (p, std::align_val_t{kCacheLine}); }};
}

struct PoolsTag;

/// What one run needs for itself, kept for the next: as many as runs were ever under way at once.
template <typename T>
class Pool {
 public:
  /// An item until the end of a scope, when it goes back. The pool must outlive it.
  class Lease {
   public:
    Lease(Pool& pool, std::unique_ptr<T> item) : pool_(pool), item_(std::move(item)) {}
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (item_ != nullptr) pool_.give_back(std::move(item_));
    }
    T& operator*() const { return *item_; }
    T* operator->() const { return item_.get(); }

   private:
    Pool& pool_;
    std::unique_ptr<T> item_;
  };

  /// An idle item, or `make()`.
  template <typename Make>
  Lease take(const Make& make) {
    {
      const std::lock_guard lock(fork_safe_mutex<PoolsTag>());
      if (!idle_.empty()) {
        std::unique_ptr<T> item = std::move(idle_.back());
        idle_.pop_back();
        return {*this, std::move(item)};
      }
      // NOTE: room for every item there is, so that giving one back cannot fail.
      idle_.reserve(++made_);
    }
    return {*this, std::make_unique<T>(make())};
  }

 private:
  void give_back(std::unique_ptr<T> item) {
    const std::lock_guard lock(fork_safe_mutex<PoolsTag>());
    idle_.push_back(std::move(item));
  }

  std::size_t made_ = 0;
  std::vector<std::unique_ptr<T>> idle_;
};

/// Working memory of the runs that bring none. All plans share it: as many pieces as runs were ever
/// under way at once, each as large as the largest run that took it. Freed with the last plan.
class SharedScratch {
 public:
  struct Piece {
    std::size_t bytes = 0;
    std::shared_ptr<void> memory;
  };
  using Lease = Pool<Piece>::Lease;

  /// The one of the process; a plan holds it for as long as it lives.
  static std::shared_ptr<SharedScratch> get();

  /// At least `bytes`, as allocate_aligned gives them.
  Lease take(std::size_t bytes) {
    Lease piece = pool_.take([] { return Piece{}; });
    if (piece->bytes < bytes) {
      *piece = {};  // Before there are two.
      *piece = {bytes, allocate_aligned(bytes)};
    }
    return piece;
  }

 private:
  Pool<Piece> pool_;
};

}  // namespace convoy::cpu
