// SPDX-License-Identifier: Apache-2.0
//
// The configurations that the Blackwell tests run, compiled in sm100_configs_*.cu: every cluster
// shape that each CTA group allows, both swizzles, and the fields that no library instance sets.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/sm100/instances.hpp"

namespace convoy::sm100 {

struct TestKernel {
  const char* why;
  Instance (*make)();
};
const std::vector<TestKernel>& test_kernels();

/// D = scale·Conv + (3·m + n) mod 16: shows that a hook gets its coordinates right.
struct CoordinateOp {
  static constexpr bool kEnabled = true;
  static constexpr bool kOnRegisters = true;
  float scale = 1.0f;
#ifdef __CUDACC__
  template <int kWidth>
  __device__ void operator()(std::int64_t m, int n, float (&values)[kWidth]) const {
    for (int i = 0; i < kWidth; ++i) {
      values[i] = scale * values[i] + static_cast<float>((m * 3 + n + i) % 16);
    }
  }
#endif
};

/// Adds value + 1000 to an fp32 matrix, in place of the store: an element seen twice, or never,
/// shows.
struct CountingStore {
  static constexpr bool kEnabled = true;
  static constexpr bool kReplacesStore = true;
  float* seen = nullptr;
  std::int64_t filters = 0;
#ifdef __CUDACC__
  template <typename Out, int kWidth>
  __device__ void operator()(std::int64_t m, int n, const Out (&values)[kWidth]) const {
    for (int i = 0; i < kWidth; ++i) {
      if (n + i < filters) seen[m * filters + n + i] += static_cast<float>(values[i]) + 1000.0f;
    }
  }
#endif
};

Instance hook_kernel(bool on_registers);
Instance store_hook_kernel(bool on_registers);

}  // namespace convoy::sm100
