// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <thread>

namespace convoy::cli {

/// While it lives, a line on stderr that says what is going on and for how long: from half a
/// second on, on a terminal only. Gone without a trace at the end.
class Progress {
 public:
  explicit Progress(std::string label);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  void show();

  std::string label_;
  bool ended_ = false;
  std::mutex mutex_;
  std::condition_variable end_;
  std::thread thread_;
};

/// Where a list of like tasks stands.
class Countdown {
 public:
  explicit Countdown(std::size_t tasks) : tasks_(tasks) {}
  /// " (3 of 23, about 40 s left)" before task `done`, counted from 0; nothing for a single task.
  std::string place(std::size_t done) const;

 private:
  std::size_t tasks_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace convoy::cli
