// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdarg>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>

namespace vgpu {

/// The CUDA runtime error codes that a kernel or a module load can end with (values of
/// cudaError_t, CUDA 13 driver_types.h). Kept here so that only runtime/ needs the CUDA headers.
enum CudaError : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kMemoryAllocation = 2,
  kInvalidConfiguration = 9,
  kInvalidDeviceFunction = 98,
  kNoKernelImageForDevice = 209,
  kInvalidPtx = 218,
  kUnsupportedPtxVersion = 222,
  kNotSupported = 801,
  kIllegalAddress = 700,
  kLaunchOutOfResources = 701,
  kLaunchTimeout = 702,
  kAssert = 710,
  kHardwareStackError = 714,
  kIllegalInstruction = 715,
  kMisalignedAddress = 716,
  kInvalidAddressSpace = 717,
  kInvalidPc = 718,
  kLaunchFailure = 719,
  kInvalidClusterSize = 912,
  kTensorMemoryLeak = 721,
};

/// An explained failure: the CUDA error a real GPU would give, and a text for the user. Pure
/// functions (tma/, tensor/) throw it; exec/ adds where it happened (kernel, CTA, warp, PTX line,
/// source line) and turns it into a LaunchResult.
struct Fault : std::exception {
  Fault(int error, std::string message) : cuda_error(error), text(std::move(message)) {}
  const char* what() const noexcept override { return text.c_str(); }

  int cuda_error;
  std::string text;
};

/// vprintf into a std::string.
inline std::string format_list(const char* pattern, va_list args) {
  va_list again;
  va_copy(again, args);
  std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, pattern, args)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  return text;
}

/// printf into a std::string.
__attribute__((format(printf, 1, 2))) inline std::string format(const char* pattern, ...) {
  va_list args;
  va_start(args, pattern);
  std::string text = format_list(pattern, args);
  va_end(args);
  return text;
}

/// Throws a Fault with a printf-formatted text.
[[noreturn]] __attribute__((format(printf, 2, 3))) inline void fault(int error, const char* pattern,
                                                                     ...) {
  va_list args;
  va_start(args, pattern);
  std::string text = format_list(pattern, args);
  va_end(args);
  throw Fault(error, std::move(text));
}

}  // namespace vgpu
