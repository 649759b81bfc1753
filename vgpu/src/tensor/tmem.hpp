// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// Tensor memory of one CTA (sm_100a): 128 lanes x 512 columns of 32 bits, its allocator, and which
/// cells were written. Addresses: lane << 16 | column. Source: PTX ISA "Tensor Memory".
namespace vgpu::tensor {

inline constexpr uint32_t kTmemLanes = 128;
inline constexpr uint32_t kTmemColumns = 512;
inline constexpr uint32_t kTmemAllocationUnit = 32;

struct TmemAddress {
  uint32_t lane = 0, column = 0;
  static TmemAddress from(uint32_t bits) { return {bits >> 16, bits & 0xffff}; }
  uint32_t bits() const { return lane << 16 | column; }
};

class Tmem {
 public:
  Tmem();

  // ---- allocation
  /// tcgen05.alloc: the first column, or nothing when no `columns` adjacent ones are free (the
  /// instruction then blocks). Throws Fault for counts other than 32, 64, 128, 256, 512, after
  /// relinquish(), and for an allocation with another cta_group than an earlier one.
  std::optional<uint32_t> allocate(uint32_t columns, int cta_group);
  /// Whether allocate() would succeed now; same faults. For pairs, where both CTAs must succeed.
  bool can_allocate(uint32_t columns, int cta_group) const;
  /// tcgen05.dealloc: throws Fault unless exactly such an allocation exists.
  void deallocate(uint32_t column, uint32_t columns, int cta_group);
  /// tcgen05.relinquish_alloc_permit.
  void relinquish(int cta_group);
  bool relinquished() const { return relinquished_; }
  /// Columns still allocated: a leak when the CTA exits.
  uint32_t allocated_columns() const;
  /// "columns 0..127, 256..511" for reports.
  std::string describe_allocations() const;

  // ---- cells
  /// Throws Fault (illegal address) unless the whole rectangle exists and is allocated.
  void check(const char* what, uint32_t lane, uint32_t lanes, uint32_t column,
             uint32_t columns) const;
  /// The 512 cells of a lane.
  uint32_t* row(uint32_t lane) { return &cells_[lane * kTmemColumns]; }
  const uint32_t* row(uint32_t lane) const { return &cells_[lane * kTmemColumns]; }

  // ---- which cells were written since they were allocated
  void mark_written(uint32_t lane, uint32_t lanes, uint32_t column, uint32_t columns);
  /// The first unwritten cell of a rectangle, if any.
  std::optional<TmemAddress> first_unwritten(uint32_t lane, uint32_t lanes, uint32_t column,
                                             uint32_t columns) const;

 private:
  struct Allocation {
    uint32_t column, columns;
  };
  void check_group(const char* what, int cta_group) const;
  std::optional<uint32_t> find_free(uint32_t columns) const;

  std::vector<uint32_t> cells_;          // lane-major; made on the first allocation
  std::vector<uint64_t> written_;        // lane-major, 8 words a lane
  std::vector<Allocation> allocations_;  // by column
  uint32_t allocated_mask_ = 0;          // bit i: columns 32 i .. 32 i + 31
  int cta_group_ = 0;                    // of the first tcgen05.alloc, 0: none yet
  bool relinquished_ = false;
};

}  // namespace vgpu::tensor
