// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
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

}  // namespace convoy::cli
