// SPDX-License-Identifier: Apache-2.0
#include "tensor/tmem.hpp"

#include <algorithm>
#include <bit>

#include "fault.hpp"

namespace vgpu::tensor {
namespace {

constexpr uint32_t kWords = kTmemColumns / 64;  // of the written bitmap, a lane
/// What unwritten cells hold: a NaN as f32 and as two halves, easy to recognise.
constexpr uint32_t kUnwrittenCell = 0xffbadbad;

/// Bits [first, first + count) of word `word` of a bitmap.
uint64_t word_mask(uint32_t word, uint32_t first, uint32_t count) {
  uint32_t low = std::max(first, word * 64), high = std::min(first + count, word * 64 + 64);
  if (low >= high) return 0;
  uint64_t ones = high - low == 64 ? ~uint64_t{0} : (uint64_t{1} << (high - low)) - 1;
  return ones << (low - word * 64);
}

uint32_t unit_mask(uint32_t column, uint32_t columns) {
  uint32_t first = column / kTmemAllocationUnit, count = columns / kTmemAllocationUnit;
  return (count >= 32 ? ~0u : (1u << count) - 1) << first;
}

void check_columns(const char* what, uint32_t columns) {
  if (columns < 32 || columns > 512 || !std::has_single_bit(columns)) {
    fault(kIllegalInstruction, "%s of %u columns; legal: 32, 64, 128, 256, 512", what, columns);
  }
}

}  // namespace

Tmem::Tmem() = default;

void Tmem::check_group(const char* what, int cta_group) const {
  if (cta_group_ != 0 && cta_group_ != cta_group) {
    fault(kIllegalInstruction,
          "%s with .cta_group::%d after a tcgen05.alloc with .cta_group::%d: all tcgen05 "
          "instructions of a kernel must use the same cta_group",
          what, cta_group, cta_group_);
  }
}

std::optional<uint32_t> Tmem::find_free(uint32_t columns) const {
  for (uint32_t column = 0; column + columns <= kTmemColumns; column += kTmemAllocationUnit) {
    if ((allocated_mask_ & unit_mask(column, columns)) == 0) return column;
  }
  return std::nullopt;
}

bool Tmem::can_allocate(uint32_t columns, int cta_group) const {
  check_columns("tcgen05.alloc", columns);
  check_group("tcgen05.alloc", cta_group);
  if (relinquished_) {
    fault(kIllegalInstruction,
          "tcgen05.alloc after tcgen05.relinquish_alloc_permit: the CTA gave up its right to "
          "allocate");
  }
  return find_free(columns).has_value();
}

std::optional<uint32_t> Tmem::allocate(uint32_t columns, int cta_group) {
  if (!can_allocate(columns, cta_group)) return std::nullopt;
  uint32_t column = *find_free(columns);
  if (cells_.empty()) {
    cells_.assign(kTmemLanes * kTmemColumns, kUnwrittenCell);
    written_.assign(kTmemLanes * kWords, 0);
  }
  allocated_mask_ |= unit_mask(column, columns);
  auto at = std::find_if(allocations_.begin(), allocations_.end(),
                         [&](const Allocation& other) { return other.column > column; });
  allocations_.insert(at, {column, columns});
  cta_group_ = cta_group;
  // New columns are unwritten, whatever an earlier owner left there.
  for (uint32_t lane = 0; lane < kTmemLanes; ++lane) {
    for (uint32_t word = 0; word < kWords; ++word) {
      written_[lane * kWords + word] &= ~word_mask(word, column, columns);
    }
  }
  return column;
}

void Tmem::deallocate(uint32_t column, uint32_t columns, int cta_group) {
  check_columns("tcgen05.dealloc", columns);
  check_group("tcgen05.dealloc", cta_group);
  auto at = std::find_if(allocations_.begin(), allocations_.end(), [&](const Allocation& other) {
    return other.column == column && other.columns == columns;
  });
  if (at == allocations_.end()) {
    fault(kIllegalInstruction,
          "tcgen05.dealloc of columns %u..%u, which is no allocation; live: %s", column,
          column + columns - 1, describe_allocations().c_str());
  }
  allocations_.erase(at);
  allocated_mask_ &= ~unit_mask(column, columns);
}

void Tmem::relinquish(int cta_group) {
  check_group("tcgen05.relinquish_alloc_permit", cta_group);
  relinquished_ = true;
}

uint32_t Tmem::allocated_columns() const {
  uint32_t columns = 0;
  for (const Allocation& allocation : allocations_) columns += allocation.columns;
  return columns;
}

std::string Tmem::describe_allocations() const {
  if (allocations_.empty()) return "none";
  std::string text;
  for (const Allocation& allocation : allocations_) {
    text += format("%s%u..%u", text.empty() ? "columns " : ", ", allocation.column,
                   allocation.column + allocation.columns - 1);
  }
  return text;
}

void Tmem::check(const char* what, uint32_t lane, uint32_t lanes, uint32_t column,
                 uint32_t columns) const {
  if (lane + lanes > kTmemLanes || column + columns > kTmemColumns) {
    fault(kIllegalAddress,
          "%s reaches TMEM lanes %u..%u, columns %u..%u; there are %u lanes and %u columns", what,
          lane, lane + lanes - 1, column, column + columns - 1, kTmemLanes, kTmemColumns);
  }
  for (uint32_t unit = column / kTmemAllocationUnit;
       unit <= (column + columns - 1) / kTmemAllocationUnit; ++unit) {
    if (!(allocated_mask_ >> unit & 1)) {
      fault(kIllegalAddress, "%s reaches TMEM columns %u..%u, which are not allocated; live: %s",
            what, column, column + columns - 1, describe_allocations().c_str());
    }
  }
}

void Tmem::mark_written(uint32_t lane, uint32_t lanes, uint32_t column, uint32_t columns) {
  for (uint32_t l = lane; l < lane + lanes; ++l) {
    for (uint32_t word = column / 64; word <= (column + columns - 1) / 64; ++word) {
      written_[l * kWords + word] |= word_mask(word, column, columns);
    }
  }
}

std::optional<TmemAddress> Tmem::first_unwritten(uint32_t lane, uint32_t lanes, uint32_t column,
                                                 uint32_t columns) const {
  for (uint32_t l = lane; l < lane + lanes; ++l) {
    for (uint32_t word = column / 64; word <= (column + columns - 1) / 64; ++word) {
      uint64_t missing = word_mask(word, column, columns) & ~written_[l * kWords + word];
      if (missing != 0) {
        return TmemAddress{l, word * 64 + static_cast<uint32_t>(std::countr_zero(missing))};
      }
    }
  }
  return std::nullopt;
}

}  // namespace vgpu::tensor
