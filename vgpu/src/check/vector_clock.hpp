// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace vgpu::check {

/// A number that grows with the synchronising steps of one component.
using Epoch = uint32_t;
/// A source of events: a warp, the phases of an mbarrier, or the groups a thread commits.
using Component = uint32_t;

/// For each component, up to which epoch its events are known to have happened before.
class VectorClock {
 public:
  Epoch operator[](Component c) const { return c < epochs_.size() ? epochs_[c] : 0; }

  /// Raises one entry; true when that was news.
  bool raise(Component c, Epoch epoch) {
    if (c >= epochs_.size()) epochs_.resize(c + 1, 0);
    if (epochs_[c] >= epoch) return false;
    epochs_[c] = epoch;
    return true;
  }

  /// Takes over all that `other` knows; true when any of it was news.
  bool join(const VectorClock& other) {
    const size_t count = other.epochs_.size();
    if (count > epochs_.size()) epochs_.resize(count, 0);
    Epoch* mine = epochs_.data();
    const Epoch* theirs = other.epochs_.data();
    Epoch changes = 0;
    for (size_t c = 0; c < count; ++c) {
      const Epoch known = std::max(mine[c], theirs[c]);
      changes |= known ^ mine[c];
      mine[c] = known;
    }
    return changes != 0;
  }

  void clear() { epochs_.clear(); }
  size_t size() const { return epochs_.size(); }

 private:
  std::vector<Epoch> epochs_;
};

/// What an agent knows, and through which doors.
struct View {
  VectorClock order;    ///< happened before
  VectorClock proxy;    ///< generic writes made visible to the async proxy (fence.proxy.async)
  VectorClock inits;    ///< mbarrier initialisations published by fence.mbarrier_init
  VectorClock weak;     ///< happened before in time, told by arrivals without release semantics
  VectorClock tcgen05;  ///< ordered before the tcgen05 operations that follow (…after_thread_sync)
  /// Released by a commit or behind a fence::before_thread_sync, but not yet behind this agent's
  /// fence::after_thread_sync.
  VectorClock tcgen05_arrived;
};

/// What a synchronisation object carries from those who arrive to those who wait.
struct Message {
  VectorClock order, proxy, inits, weak, tcgen05;

  void join(const Message& other) {
    order.join(other.order);
    proxy.join(other.proxy);
    inits.join(other.inits);
    weak.join(other.weak);
    tcgen05.join(other.tcgen05);
  }
  void clear() {
    order.clear();
    proxy.clear();
    inits.clear();
    weak.clear();
    tcgen05.clear();
  }
};

}  // namespace vgpu::check
