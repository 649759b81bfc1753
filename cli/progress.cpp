// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>

namespace convoy::cli {

Progress::Progress(std::string label) : label_(std::move(label)) {
  if (isatty(STDERR_FILENO) != 0) thread_ = std::thread([this] { show(); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  end_.notify_one();
  thread_.join();
}

void Progress::show() {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  std::unique_lock lock(mutex_);
  const auto ended = [this] { return ended_; };
  if (end_.wait_for(lock, std::chrono::milliseconds(500), ended)) return;
  do {
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    std::fprintf(stderr, "\r%s: %.0f s\x1b[K", label_.c_str(), seconds);
    std::fflush(stderr);
  } while (!end_.wait_for(lock, std::chrono::milliseconds(200), ended));
  std::fprintf(stderr, "\r\x1b[K");
}

}  // namespace convoy::cli
