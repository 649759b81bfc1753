// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace convoy {

/// CONVOY_LOG=off|info|dispatch|trace: each level includes the ones before it. Default: off.
enum class LogLevel : int { off = 0, info = 1, dispatch = 2, trace = 3 };

/// The level, read from the environment once. An unknown value counts as `info` and is reported.
LogLevel log_level();
inline bool log_enabled(LogLevel level) {
  return log_level() >= level;
}

/// Replace the level (tests).
void set_log_level(LogLevel level);

/// Write one line to the standard error stream, in one call:
///   convoy,v1,<level>,<event>,<field>,...
/// Fields with a comma, a quote or a line break are quoted as RFC 4180 says. Host memory only: safe
/// under CUDA-graph capture.
void log_line(LogLevel level, const char* event, const std::vector<std::string>& fields);

/// The same whatever the level, as `info`: what the user asked for and does not get.
void log_always(const char* event, const std::vector<std::string>& fields);

}  // namespace convoy
