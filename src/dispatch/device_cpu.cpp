// SPDX-License-Identifier: Apache-2.0
#include <sched.h>

#include <fstream>
#include <thread>

#include "convoy/info.hpp"

namespace convoy {
namespace {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

/// Processors this process may run on.
int processor_count() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

DeviceInfo cpu_device() {
  static const std::string name = processor_name();
  return {.kind = Device::cpu, .index = -1, .name = name, .multiprocessors = processor_count()};
}

}  // namespace convoy
