// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "check/vector_clock.hpp"
#include "ptx/module.hpp"

namespace vgpu::check {

/// Which lane of a warp stored each word of a CTA's shared memory last: tells where lanes exchange
/// data without a __syncwarp() between. Room is made at the first store.
class LaneWrites {
 public:
  struct Store {
    Epoch epoch = 0;  ///< of the warp; 0: no lane has stored here
    uint16_t warp = 0;
    uint8_t lane = 0;
    uint8_t other = 0;  ///< stored another part of the word; `lane` when there is none
    const ptx::Instruction* instruction = nullptr;
  };
  /// More lanes than two share the word: not followed.
  static constexpr uint8_t kMany = 0xff;

  void store(uint64_t address, uint64_t bytes, size_t limit, const Store& by) {
    if (words_.empty()) {
      words_.resize(limit / 4 + 1);
      used_.resize(words_.size() / kBlockWords + 1);
    }
    for_words<true>(address, bytes, [&](Store& last) {
      const bool part = bytes < 4 && last.epoch != 0 && last.warp == by.warp;
      const uint8_t other = !part                                              ? by.lane
                            : last.lane == by.lane                             ? last.other
                            : last.other == last.lane || last.other == by.lane ? last.lane
                                                                               : kMany;
      last = by;
      last.other = other;
      return true;
    });
  }
  /// The first word of the range that other lanes of `warp` stored in epochs [since, until], or
  /// null.
  const Store* by_other_lane(uint64_t address, uint64_t bytes, uint16_t warp, uint32_t lane,
                             Epoch since, Epoch until) {
    const Store* found = nullptr;
    for_words<false>(address, bytes, [&](const Store& last) {
      if (last.epoch != 0 && last.epoch >= since && last.epoch <= until && last.warp == warp &&
          last.lane != lane && last.other != lane && last.other != kMany) {
        found = &last;
      }
      return !found;
    });
    return found;
  }
  /// Something that is no lane wrote: an asynchronous copy.
  void forget(uint64_t address, uint64_t bytes) {
    for_words<false>(address, bytes, [](Store& last) {
      last.epoch = 0;
      return true;
    });
  }

 private:
  static constexpr uint64_t kBlockWords = 64;

  /// Calls f(word) until it is false; without `all`, only where some lane has stored nearby.
  template <bool all, typename F>
  void for_words(uint64_t address, uint64_t bytes, F&& f) {
    if (words_.empty() || bytes == 0) return;
    const uint64_t end = std::min<uint64_t>((address + bytes - 1) / 4 + 1, words_.size());
    for (uint64_t word = address / 4; word < end;) {
      const uint64_t block = word / kBlockWords;
      const uint64_t stop = std::min(end, (block + 1) * kBlockWords);
      if (all) used_[block] = 1;
      if (used_[block]) {
        for (; word < stop; ++word) {
          if (!f(words_[word])) return;
        }
      }
      word = stop;
    }
  }

  std::vector<Store> words_;
  std::vector<uint8_t> used_;  // by block of words: a lane has stored there
};

}  // namespace vgpu::check
