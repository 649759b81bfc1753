// SPDX-License-Identifier: Apache-2.0
//
// How the library calls the CUDA runtime: launches, limits of shared memory, memory, errors.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "convoy/error.hpp"
#include "convoy/export.h"
#include "convoy/types.hpp"

namespace convoy {

/// Call the runtime; the error that the call itself returns.
/// NOTE: the runtime also keeps the error of a failed call for the next cudaGetLastError of this
/// thread, and programs around us (PyTorch) check that after launches of their own. Our error,
/// which is reported as an exception, is taken off again; an error that was there before is not
/// ours to take. Nothing else in the library asks for the last error.
template <typename Call>
cudaError_t call_runtime(Call&& call) {
  const bool clean = cudaPeekAtLastError() == cudaSuccess;
  const cudaError_t error = call();
  if (error != cudaSuccess && clean) (void)cudaGetLastError();
  return error;
}

/// "cudaErrorInvalidValue: invalid argument"
CONVOY_API std::string error_text(cudaError_t error);

/// Call the runtime. Throws Error{launch_failure} with `what` was tried and the runtime's words.
template <typename Call>
void require_runtime(const char* what, Call&& call) {
  const cudaError_t error = call_runtime(static_cast<Call&&>(call));
  if (error == cudaSuccess) return;
  throw Error(Status::launch_failure, std::string(what) + ": " + error_text(error));
}

/// How a kernel is launched.
struct LaunchConfig {
  const char* name;  ///< Of the kernel, in errors.
  dim3 grid;         ///< Blocks.
  dim3 block;        ///< Threads.
  std::size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  /// The kernel begins while those before it end, and waits for them itself (griddepcontrol.wait):
  /// programmatic stream serialization.
  bool overlapped = false;
  dim3 cluster = dim3(0, 0, 0);  ///< Blocks of a cluster; zeros: launched without clusters.
};

/// Blocks of `threads` threads for a kernel that walks `items` in strides of the grid: 1 to 2^16,
/// which is enough to fill any device.
constexpr unsigned blocks_for(std::int64_t items, int threads) {
  return static_cast<unsigned>(
      std::clamp<std::int64_t>((items + threads - 1) / threads, 1, std::int64_t{1} << 16));
}

/// Launch a kernel; `arguments` points to its parameters, in order. Throws Error{launch_failure}
/// with what the launch itself returns.
CONVOY_API void launch_kernel(const void* kernel, const LaunchConfig& config, void** arguments);

/// The same with the arguments themselves, converted to the kernel's parameters.
template <typename... Parameters>
void launch_kernel(void (*kernel)(Parameters...), const LaunchConfig& config,
                   const std::type_identity_t<Parameters>&... arguments) {
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  launch_kernel(reinterpret_cast<const void*>(kernel), config, pointers);
}

/// Let a kernel have `bytes` of dynamic shared memory at least on the current device; needed above
/// 48 KiB. The limit is only ever raised: other plans of the kernel may need more. Thread-safe.
/// Throws Error{launch_failure}.
CONVOY_API void raise_shared_memory_limit(const void* kernel, int bytes, const char* name);
template <typename... Parameters>
void raise_shared_memory_limit(void (*kernel)(Parameters...), int bytes, const char* name) {
  raise_shared_memory_limit(reinterpret_cast<const void*>(kernel), bytes, name);
}

/// Blocks of a kernel that one multiprocessor of the current device holds at once, 1 at least.
/// Throws Error{launch_failure}.
CONVOY_API int resident_blocks(const void* kernel, int threads, int shared_bytes, const char* name);
template <typename... Parameters>
int resident_blocks(void (*kernel)(Parameters...), int threads, int shared_bytes,
                    const char* name) {
  return resident_blocks(reinterpret_cast<const void*>(kernel), threads, shared_bytes, name);
}

/// Memory of the current device, freed with the last copy. Throws Error{out_of_memory},
/// Error{launch_failure}.
std::shared_ptr<void> allocate_device_memory(std::size_t bytes);

/// Call `body.template operator()<Element>()` with the device type of `dtype`.
template <typename Body>
void dispatch_element(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::bf16:
      return body.template operator()<__nv_bfloat16>();
    case DType::fp16:
      return body.template operator()<__half>();
    case DType::fp32:
      return body.template operator()<float>();
  }
  throw Error(Status::invalid_argument,
              "dtype = " + std::to_string(static_cast<int>(dtype)) + "; legal: bf16, fp16, fp32");
}

}  // namespace convoy
