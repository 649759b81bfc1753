// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "check/vector_clock.hpp"
#include "exec/observer.hpp"

/// What is remembered of each piece of shared memory and TMEM: who wrote and read it last.
namespace vgpu::check {

/// An accessor: a warp (its component), or an asynchronous operation (its id).
struct Who {
  static constexpr uint32_t kOperationBit = 0x8000'0000u;
  static Who warp(Component component) { return {component}; }
  static Who operation(uint64_t id) { return {static_cast<uint32_t>(id) | kOperationBit}; }

  bool is_operation() const { return bits & kOperationBit; }
  uint32_t index() const { return bits & ~kOperationBit; }
  bool operator==(const Who&) const = default;

  uint32_t bits = 0;
};

/// A past access of some units of a cell.
struct PastAccess {
  Who who;
  Epoch epoch = 0;     ///< of the warp; operations publish their end in Operation::releases
  uint32_t units = 0;  ///< mask
  exec::Access access = exec::Access::read;
  exec::Proxy proxy = exec::Proxy::generic;
  bool rows = false;         ///< rows of A of a wgmma
  uint32_t last_issued = 0;  ///< id of the last operation issued before it
  uint32_t first = 0;        ///< of rows: id of the first operation that it stands for
  const ptx::Instruction* instruction = nullptr;

  bool operator==(const PastAccess&) const = default;
};

/// What is remembered of a cell: 16 bytes of shared memory (a unit is a byte), or 16 lanes x 8
/// columns of TMEM (a unit is a column).
struct CellState {
  uint32_t written = 0;  ///< units written since the start (TMEM: since allocated)
  std::vector<PastAccess> accesses;

  bool operator==(const CellState&) const = default;
};

/// A cell: the number of its state in a StateTable, and a mark.
using Cell = uint32_t;
/// Nobody has touched the cell.
inline constexpr Cell kFreshCell = 0;
/// Mark: the cell holds a live mbarrier.
inline constexpr Cell kGuardedCell = 0x8000'0000u;

/// The states that cells are in. Neighbouring cells mostly share one, since copies and matrix
/// operations touch many cells alike: an accessor then works out the change from one state to
/// the next once and applies it to all.
class StateTable {
 public:
  StateTable() : states_(1), in_use_(1) {}

  const CellState& at(Cell cell) const { return states_[cell & ~kGuardedCell]; }

  /// Another accessor than that of the changes known up to now.
  void next_accessor() {
    ++accessor_;
    made_.clear();
  }
  /// What an access of `units` by this accessor makes of `before`; kUnknown when it has not been
  /// worked out.
  static constexpr Cell kUnknown = 0x7fff'ffffu;
  Cell find(Cell before, uint32_t units) const {
    const Change& change = changes_[slot_of(before, units)];
    return change.accessor == accessor_ && change.before == before && change.units == units
               ? change.after
               : kUnknown;
  }
  /// Remembers that change.
  Cell add(Cell before, uint32_t units, const CellState& after);

  /// True now and then: time to drop the states that no cell is in.
  bool crowded() const { return in_use_ >= limit_; }
  /// Calls for_each_cells(mark), which must call mark(cells) with every array of cells.
  template <typename F>
  void collect(F&& for_each_cells) {
    std::vector<bool> used(states_.size());
    used[kFreshCell] = true;
    for_each_cells([&](const std::vector<Cell>& cells) {
      for (Cell cell : cells) used[cell & ~kGuardedCell] = true;
    });
    drop_unused(used);
  }

 private:
  struct Change {
    uint64_t accessor = 0;
    Cell before = 0, after = 0;
    uint32_t units = 0;
  };
  static constexpr size_t kChanges = 64, kCompared = 8, kLeastLimit = 2048;
  static size_t slot_of(Cell before, uint32_t units) {
    return (before ^ before >> 6 ^ units * 0x9e37u >> 7) % kChanges;
  }
  void drop_unused(const std::vector<bool>& used);

  std::vector<CellState> states_;
  std::vector<Cell> free_;
  size_t in_use_ = 0, limit_ = kLeastLimit;
  uint64_t accessor_ = 1;
  std::array<Change, kChanges> changes_{};
  std::vector<Cell> made_;  // by this accessor
};

/// Shared memory begins with a KiB that the hardware keeps.
inline constexpr uint32_t kReservedBytes = 1024;
/// Bytes of shared memory in a cell, and the units of a whole one.
inline constexpr uint32_t kSharedCellBytes = 16, kAllBytes = 0xffff;
/// TMEM of one CTA: cell index = lane / 16 * 64 + column / 8.
inline constexpr uint32_t kTmemCellLanes = 16, kTmemCellColumns = 8;
inline constexpr uint32_t kTmemCellsPerRow = 512 / kTmemCellColumns;
inline constexpr uint32_t kTmemCells = 128 / kTmemCellLanes * kTmemCellsPerRow;

/// `count` ones from bit `first`.
inline uint32_t unit_mask(uint32_t first, uint32_t count) {
  return (count >= 32 ? ~0u : (1u << count) - 1) << first;
}

}  // namespace vgpu::check
