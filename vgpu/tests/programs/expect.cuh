// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdio>

/// Expectations of the programs that check the runtime from inside: a failed one is printed and
/// counted.

inline int failures = 0;

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      std::printf("%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                               \
    }                                                                           \
  } while (0)
#define CHECK_ERROR(call, expected)                                               \
  do {                                                                            \
    const cudaError_t error_ = (call);                                            \
    if (error_ != (expected)) {                                                   \
      std::printf("%s:%d: %s gives %s, expected %s\n", __FILE__, __LINE__, #call, \
                  cudaGetErrorName(error_), cudaGetErrorName(expected));          \
      ++failures;                                                                 \
    }                                                                             \
  } while (0)
#define CHECK_OK(call) CHECK_ERROR(call, cudaSuccess)
