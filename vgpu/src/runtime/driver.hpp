// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

/// Driver functions by name, for cudaGetDriverEntryPoint and cuGetProcAddress.
namespace vgpu::runtime {

struct EntryPoint {
  std::string_view name;
  void* function;
};

template <typename F>
EntryPoint entry(const char* name, F* function) {
  return {name, reinterpret_cast<void*>(function)};
}

/// Null when no entry has the name.
inline void* find_entry_point(std::span<const EntryPoint> entries, std::string_view name) {
  for (const EntryPoint& point : entries) {
    if (point.name == name) return point.function;
  }
  return nullptr;
}

/// A function of api_driver_work.cpp; null when it is not one of them.
void* find_driver_work(std::string_view name, int version);

}  // namespace vgpu::runtime
