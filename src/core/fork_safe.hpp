// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <mutex>

namespace convoy {

/// A mutex of the process, one for each `Tag`, that a child of fork() finds unlocked. NOTE: a child
/// has the forking thread alone: whatever another one held would stay locked. fork() waits for it.
template <typename Tag>
std::mutex& fork_safe_mutex() {
  static std::mutex mutex;
  [[maybe_unused]] static const int registered =
      pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });
  return mutex;
}

}  // namespace convoy
