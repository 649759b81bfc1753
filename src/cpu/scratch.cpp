// SPDX-License-Identifier: Apache-2.0
#include "cpu/scratch.hpp"

namespace convoy::cpu {

std::shared_ptr<SharedScratch> SharedScratch::get() {
  static std::weak_ptr<SharedScratch> current;
  const std::lock_guard lock(fork_safe_mutex<PoolsTag>());
  std::shared_ptr<SharedScratch> scratch = current.lock();
  if (scratch == nullptr) current = scratch = std::make_shared<SharedScratch>();
  return scratch;
}

}  // namespace convoy::cpu
