// SPDX-License-Identifier: Apache-2.0
#pragma once

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
  uint32_t last_issued = 0;  ///< id of the last operation issued before it
  const ptx::Instruction* instruction = nullptr;
};

/// One cell: 16 bytes of shared memory (a unit is a byte), or 16 lanes x 8 columns of TMEM (a unit
/// is a column).
struct Cell {
  uint32_t written = 0;  ///< units written since the start (TMEM: since allocated)
  std::vector<PastAccess> accesses;
};

/// Shared memory of one CTA: cells of 16 bytes.
inline constexpr uint32_t kSharedCellBytes = 16;
/// TMEM of one CTA: cell index = lane / 16 * 64 + column / 8.
inline constexpr uint32_t kTmemCellLanes = 16, kTmemCellColumns = 8;
inline constexpr uint32_t kTmemCellsPerRow = 512 / kTmemCellColumns;
inline constexpr uint32_t kTmemCells = 128 / kTmemCellLanes * kTmemCellsPerRow;

/// `count` ones from bit `first`.
inline uint32_t unit_mask(uint32_t first, uint32_t count) {
  return (count >= 32 ? ~0u : (1u << count) - 1) << first;
}

}  // namespace vgpu::check
