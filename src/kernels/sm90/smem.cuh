// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/common/ptx.cuh"
#include "kernels/sm90/config.hpp"

namespace convoy::sm90 {

/// The named barriers of a CTA; 0 is __syncthreads'.
enum NamedBarrier : std::uint32_t {
  kPartialBarrier = 1,      ///< All consumers: before partial tiles take the stages' place.
  kTurnBarrier = 2,         ///< And 3, one a warpgroup: it may multiply.
  kReadyBarrier = 4,        ///< Warps 0 and 3 arrive, consumers wait: all barriers are there.
  kFilterReadyBarrier = 5,  ///< Warp 0 arrives, warp 1 waits: the stages' barriers are there.
  kPiecesBarrier = 6,       ///< To 8, one a warpgroup: its warps have written their pieces.
};

/// The shared memory of one CTA. Tiles are swizzled by TMA and start at multiples of 1024 bytes,
/// the period of the 128-byte swizzle.
template <Config kConfig>
struct Smem {
  static constexpr int kActStages = kConfig.act_ring_stages();
  static constexpr int kFilterStages = kConfig.filter_stages;
  static constexpr int kSources = kConfig.storers() * kConfig.staging_buffers();

  std::uint8_t act[kActStages * kConfig.act_bytes()];
  std::uint8_t filter[kFilterStages * kConfig.filter_bytes()];
  std::uint8_t staging[kConfig.staging_bytes()];
  /// Of the activations' own ring; without one both loaders arrive at filter_full.
  ptx::Barrier act_full[kActStages];
  ptx::Barrier act_empty[kActStages];
  ptx::Barrier filter_full[kFilterStages];
  ptx::Barrier filter_empty[kFilterStages];
  ptx::Barrier source_full[kSources];  ///< One a staging buffer: a piece of the residual is there.

  __device__ __forceinline__ std::uint8_t* act_tile(std::uint32_t stage) {
    return act + stage * kConfig.act_bytes();
  }
  __device__ __forceinline__ std::uint8_t* filter_tile(std::uint32_t stage) {
    return filter + stage * kConfig.filter_bytes();
  }

  /// In the dynamic shared memory of a launch with Config::shared_bytes().
  static __device__ __forceinline__ Smem& carve() {
    extern __shared__ std::uint8_t dynamic_shared[];
    return *reinterpret_cast<Smem*>(
        dynamic_shared + ((1024 - (ptx::shared_address(dynamic_shared) & 1023)) & 1023));
  }
};

}  // namespace convoy::sm90
