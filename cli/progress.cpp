// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <system_error>

#include "io/printable.hpp"
#include "text.hpp"

namespace convoy::cli {

Progress::Progress(std::string label) : label_(io::printable(std::move(label))) {
  if (isatty(STDERR_FILENO) == 0) return;
  try {
    thread_ = std::thread([this] { show(); });
  } catch (const std::system_error&) {
    thread_ = std::thread();  // None to be had: silent then.
  }
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

std::string Countdown::place(std::size_t done) const {
  if (tasks_ < 2) return "";
  std::string left;
  if (done > 0) {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin_;
    const double seconds = spent.count() / double(done) * double(tasks_ - done);
    left = text(", about ", std::llround(seconds), " s left");
  }
  return text(" (", done + 1, " of ", tasks_, left, ")");
}

}  // namespace convoy::cli
