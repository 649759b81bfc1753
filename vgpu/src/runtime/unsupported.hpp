// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace vgpu::runtime {
/// Explains on stderr that `function` is not provided; returns cudaErrorNotSupported.
cudaError_t unsupported(const char* function);
}  // namespace vgpu::runtime

/// A weak entry point that fails with its name. A definition elsewhere takes its place. The
/// parameters do not matter: the caller cleans up its own.
#define VGPU_UNSUPPORTED(name)                                                                   \
  extern "C"                                                                                     \
      __attribute__((visibility("default"), weak)) int vgpu_unsupported_##name() __asm__(#name); \
  int vgpu_unsupported_##name() {                                                                \
    return vgpu::runtime::unsupported(#name);                                                    \
  }
