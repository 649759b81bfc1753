// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/common/ptx.cuh"

namespace convoy {

/// Position in a ring of `kStages` buffers guarded by one full and one empty mbarrier each.
/// A consumer waits for full[index] with `parity()`; a producer waits for empty[index] with
/// `producer_parity()`, which lets the first round through a fresh barrier.
template <int kStages>
struct PipelineState {
  std::uint32_t index = 0;
  std::uint32_t phase = 0;

  __device__ __forceinline__ std::uint32_t parity() const { return phase; }
  __device__ __forceinline__ std::uint32_t producer_parity() const { return phase ^ 1u; }
  __device__ __forceinline__ void advance() {
    if (++index == kStages) {
      index = 0;
      phase ^= 1u;
    }
  }
  /// Skip `count` buffers.
  __device__ __forceinline__ void advance(std::uint32_t count) {
    index += count;
    phase ^= (index / kStages) & 1u;
    index %= kStages;
  }
};

}  // namespace convoy
