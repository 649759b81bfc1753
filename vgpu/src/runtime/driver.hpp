// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <span>
#include <string>
#include <string_view>

#include "runtime/context.hpp"

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
/// A function of api_driver_graph.cpp; null when it is not one of them.
void* find_driver_graph(std::string_view name);

/// Calls that work on the device need a context, which only cuCtx* and cuDevicePrimaryCtx* make.
template <typename F>
CUresult forward(const char* api, F&& f) {
  if (!context_is_current) {
    log(1, std::string("CUDA_ERROR_INVALID_CONTEXT: ") + api +
               ": no context is current on this thread; cuCtxCreate or cuCtxSetCurrent makes one");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  return static_cast<CUresult>(f());
}
#define VGPU_FORWARD(...) forward(__func__, [&] { return __VA_ARGS__; })

}  // namespace vgpu::runtime
