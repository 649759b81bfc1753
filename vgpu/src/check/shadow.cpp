// SPDX-License-Identifier: Apache-2.0
#include "check/shadow.hpp"

#include <algorithm>

namespace vgpu::check {

Cell StateTable::add(Cell before, uint32_t units, const CellState& after) {
  // Different pasts often end in the same state: a write hides them.
  Cell found = kUnknown;
  const size_t oldest = made_.size() - std::min<size_t>(made_.size(), kCompared);
  for (size_t k = made_.size(); k > oldest && found == kUnknown; --k) {
    if (states_[made_[k - 1]] == after) found = made_[k - 1];
  }
  if (found == kUnknown) {
    if (free_.empty()) {
      found = static_cast<Cell>(states_.size());
      states_.push_back(after);
    } else {
      found = free_.back();
      free_.pop_back();
      states_[found] = after;
    }
    ++in_use_;
    made_.push_back(found);
  }
  changes_[slot_of(before, units)] = {accessor_, before, found, units};
  return found;
}

void StateTable::drop_unused(const std::vector<bool>& used) {
  free_.clear();
  for (size_t k = used.size(); k-- > 0;) {
    if (!used[k]) free_.push_back(static_cast<Cell>(k));
  }
  in_use_ = states_.size() - free_.size();
  limit_ = std::max(kLeastLimit, 2 * in_use_);
  next_accessor();
}

}  // namespace vgpu::check
