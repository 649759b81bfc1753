// SPDX-License-Identifier: Apache-2.0
#include "core/log.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace convoy {
namespace {

constexpr const char* kLevelNames[] = {"off", "info", "dispatch", "trace"};

void write_line(LogLevel level, const char* event, const std::vector<std::string>& fields) {
  std::string line = std::string("convoy,v1,") + kLevelNames[static_cast<int>(level)] + "," + event;
  for (const std::string& given : fields) {
    line += ',';
    // Control characters may be a file's name, and the stream a terminal.
    std::string field = given;
    for (char& c : field) {
      const bool is_control = static_cast<unsigned char>(c) < ' ' || c == '\x7f';
      if (is_control && c != '\n' && c != '\r') c = '?';
    }
    if (field.find_first_of(",\"\n\r") == std::string::npos) {
      line += field;
      continue;
    }
    line += '"';
    for (char c : field) {
      if (c == '"') line += '"';
      line += c;
    }
    line += '"';
  }
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

LogLevel level_of_environment() {
  const char* value = std::getenv("CONVOY_LOG");
  if (value == nullptr || *value == '\0') return LogLevel::off;
  for (int i = 0; i < 4; ++i) {
    if (std::strcmp(value, kLevelNames[i]) == 0) return static_cast<LogLevel>(i);
  }
  write_line(LogLevel::info, "log",
             {std::string("CONVOY_LOG = ") + value +
              " is not legal; legal: off, info, dispatch, trace; taken: info"});
  return LogLevel::info;
}

std::atomic<LogLevel>& level() {
  static std::atomic<LogLevel> value{level_of_environment()};
  return value;
}

}  // namespace

LogLevel log_level() {
  return level().load(std::memory_order_relaxed);
}
void set_log_level(LogLevel value) {
  level().store(value, std::memory_order_relaxed);
}

void log_line(LogLevel at, const char* event, const std::vector<std::string>& fields) {
  if (log_enabled(at)) write_line(at, event, fields);
}

void log_always(const char* event, const std::vector<std::string>& fields) {
  write_line(LogLevel::info, event, fields);
}

}  // namespace convoy
