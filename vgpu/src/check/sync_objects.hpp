// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "check/register_hazards.hpp"
#include "check/shadow.hpp"
#include "check/vector_clock.hpp"

/// The state of everything that orders agents: warps, barriers, mbarriers, groups, operations.
namespace vgpu::check {

/// What a lane copied for itself by cp.async: to the others a store, when its group is waited for.
struct LaneCopy {
  Epoch group = 0;
  uint32_t cta = 0;
  uint64_t address = 0, bytes = 0;
  uint8_t lane = 0;
  const ptx::Instruction* instruction = nullptr;
};

/// A warp of the cluster.
struct WarpState {
  Component self = 0;
  View view;                   ///< view.order[self] is its own epoch
  Message fenced;              ///< what its last memory fence lets a relaxed arrival publish
  VectorClock tcgen05_before;  ///< what its last tcgen05.fence::before_thread_sync covered
  Message waited;              ///< what relaxed waits told: its next fence makes it known
  /// tcgen05.mma and .cp of the warp run in order: epochs of this component count them.
  Component tensor_pipeline = 0;
  Epoch tensor_issued = 0;
  uint32_t uncommitted_lanes = 0;  ///< that issued some of them since the last tcgen05.commit
  WarpRegisters registers;
  bool wgmma_fenced = false;  ///< has executed wgmma.fence
  uint64_t loads_used = 0;    ///< results of tcgen05.ld up to this operation were used, unwaited
  Epoch lanes_met = 1;        ///< its lanes know of each other what came before this
  bool lanes_used_shared = false;        ///< since then
  Epoch lanes_stored_in = 0;             ///< when its lanes last stored to shared memory
  std::vector<LaneCopy> lane_copies;     ///< of cp.async groups that were not waited for yet
  std::vector<uint64_t> unfenced_inits;  ///< mbarriers it initialised and has not fenced
  std::vector<uint64_t> copies;  ///< cp.async operations since its last cp.async.mbarrier.arrive
  uint64_t version = 1;          ///< counts the changes but for its own epoch

  Epoch epoch() const { return view.order[self]; }
  void next_epoch() { view.order.raise(self, epoch() + 1); }
  /// What the lanes did up to now is ordered among them. True when there was something.
  bool meet_lanes() {
    if (!lanes_used_shared) return false;
    lanes_used_shared = false;
    next_epoch();
    lanes_met = epoch();
    return true;
  }
  /// The view, or what it publishes, changed.
  void touch() { ++version; }
  /// `view` as it is now, but for its own epoch.
  std::shared_ptr<const View> take_snapshot() {
    if (snapshot_version_ == version) return snapshots_[snapshot_];
    // One that no operation refers to any more is written over.
    for (snapshot_ = 0; snapshot_ < snapshots_.size(); ++snapshot_) {
      if (snapshots_[snapshot_].use_count() == 1) break;
    }
    if (snapshot_ < snapshots_.size()) {
      *snapshots_[snapshot_] = view;
    } else {
      snapshots_.push_back(std::make_shared<View>(view));
    }
    snapshot_version_ = version;
    return snapshots_[snapshot_];
  }

 private:
  std::vector<std::shared_ptr<View>> snapshots_;
  size_t snapshot_ = 0;
  uint64_t snapshot_version_ = 0;
};

/// Epochs that tell that an operation is done; mostly one or two.
class ReleasePoints {
 public:
  using Point = std::pair<Component, Epoch>;

  void push_back(Point point) {
    if (count_ > 0 && (more_.empty() ? first_[count_ - 1] : more_.back()) == point) return;
    if (count_ < first_.size()) {
      first_[count_++] = point;
    } else {
      more_.push_back(point);
    }
  }
  /// Whether f(component, epoch) holds for any of them.
  template <typename F>
  bool any(F&& f) const {
    for (uint32_t k = 0; k < count_; ++k) {
      if (f(first_[k].first, first_[k].second)) return true;
    }
    for (const Point& point : more_) {
      if (f(point.first, point.second)) return true;
    }
    return false;
  }

 private:
  uint32_t count_ = 0;
  std::array<Point, 2> first_{};
  std::vector<Point> more_;
};

/// An asynchronous operation: what it starts after, and what tells others that it is done.
struct Operation {
  exec::AsyncKind kind = exec::AsyncKind::tma_load;
  Component issuer = 0;
  Epoch issuer_epoch = 0;      ///< accesses of the issuer up to this epoch come before it
  Epoch lanes_met = 0;         ///< of the issuer, when it issued
  Epoch group = 0;             ///< cp.async: its group
  bool moves_nothing = false;  ///< a copy of no bytes
  uint32_t lanes = 0;
  const ptx::Instruction* instruction = nullptr;
  std::shared_ptr<const View> start;
  std::vector<uint64_t> tracked;  ///< cp.async.mbarrier.arrive: the copies it waits for
  Epoch covers = 0;               ///< tcgen05.commit: how much of the issuer's pipeline
  /// Whoever knows one of these epochs knows that the operation is done.
  ReleasePoints releases;
};

/// The operations of a cluster by id; they stay where they are.
class OperationTable {
 public:
  Operation& at(uint64_t id) {
    while (id / kBlock >= blocks_.size()) {
      blocks_.push_back(std::make_unique<std::array<Operation, kBlock>>());
    }
    return (*blocks_[id / kBlock])[id % kBlock];
  }
  const Operation& operator[](uint64_t id) const { return (*blocks_[id / kBlock])[id % kBlock]; }
  template <typename F>
  void for_each(F&& f) const {
    for (const auto& block : blocks_) {
      for (const Operation& operation : *block) f(operation);
    }
  }

 private:
  static constexpr uint64_t kBlock = 64;
  std::vector<std::unique_ptr<std::array<Operation, kBlock>>> blocks_;
};

/// bar.sync / barrier and barrier.cluster: arrivals gather until the generation completes.
class GenerationBarrier {
 public:
  /// The message that an arriving warp must add its own to.
  Message& arrive(Component warp) {
    arrived_in_[warp] = generation_;
    return gathering_;
  }
  /// The first warp that passes closes the generation it arrived in. `exited`: what warps that it
  /// does not wait for any more did, null where it counts on none of them.
  const Message& pass(Component warp, const VectorClock* exited = nullptr) {
    auto at = arrived_in_.find(warp);
    if (at != arrived_in_.end() && at->second == generation_) {
      std::swap(complete_, gathering_);
      if (exited) complete_.weak.join(*exited);
      gathering_.clear();
      ++generation_;
    }
    return complete_;
  }

 private:
  uint64_t generation_ = 0;
  std::unordered_map<Component, uint64_t> arrived_in_;
  Message gathering_, complete_;
};

/// An mbarrier object in shared memory.
struct MbarrierState {
  static constexpr Component kNobody = ~0u;

  bool live = false;
  Component phases = 0;  ///< component whose epochs are the phases it has completed
  Epoch completed = 0;   ///< phases, counted over re-initialisations
  Message gathering, complete;
  Component initialiser = 0;
  Epoch init_epoch = 0;
  const ptx::Instruction* init_instruction = nullptr;
  bool init_fenced = false;
  // Threads of one warp, and copies of one thread, arrive and wait one after the other: whose
  // knowledge `gathering` holds already, and who knows `complete` already.
  Component arrived = kNobody, waited = kNobody;
  uint64_t arrived_version = 0;
  std::shared_ptr<const View> arrived_start;
  // The last that came from outside the CTA's own threads: of an asynchronous operation or of
  // another CTA.
  Epoch outside = 0;  ///< phase that it counts in, 0: none
  Component outside_issuer = 0;
  const ptx::Instruction* outside_instruction = nullptr;

  /// Begins the next phase.
  void start_gathering() {
    gathering.clear();
    arrived = waited = kNobody;
    arrived_start.reset();
  }
};

/// The groups that a thread (bulk copies) or a warp (the rest) commits and waits for.
struct GroupStream {
  Component component = 0;
  Epoch open = 1;  ///< number of the group that takes the next operations
};

}  // namespace vgpu::check
