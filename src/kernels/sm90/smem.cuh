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
  kReadyBarrier = 4,        ///< Warps 0, 1 and 3 arrive, consumers wait: all barriers are there.
  kStagesReadyBarrier = 5,  ///< The loaders: each has initialised its half of the stages' barriers.
  kPiecesBarrier = 6,       ///< To 8, one a warpgroup: its warps have written their pieces.
  kPatchReadyBarrier = 9,   ///< Warp 0 arrives, 2 or the normalisers wait: as above.
  kNormalisedBarrier = 10,  ///< The normalisers: each has normalised its pixels of a patch.
};

/// Where the parts of a CTA's shared memory lie. Tiles are swizzled by TMA and start at multiples
/// of 1024 bytes, the period of the 128-byte swizzle.
template <Config kConfig>
struct Smem {
  static constexpr int kActStages = kConfig.act_ring_stages();
  static constexpr int kFilterStages = kConfig.filter_stages;
  static constexpr int kSources = kConfig.storers() * kConfig.staging_buffers();

  std::uint8_t* act;
  std::uint8_t* filter;
  std::uint8_t* staging;
  float* inverse_rms;    ///< Of a stage's pixels; Config::inverse_rms_floats() each.
  float* factors;        ///< Of its channels; Config::factor_floats() each.
  std::uint8_t* shifts;  ///< Of statistics: Config::shift_bytes() of each storer.
  /// Of the activations' own ring; without one both loaders use the filters' barriers.
  ptx::Barrier* act_full;
  ptx::Barrier* act_empty;
  ptx::Barrier* filter_full;
  ptx::Barrier* filter_empty;
  ptx::Barrier* source_full;  ///< One a staging buffer: a piece of the residual is there.
  ptx::Barrier* act_loaded;   ///< A patch is there that is still to be completed.

  __device__ __forceinline__ std::uint8_t* act_tile(std::uint32_t stage) const {
    return act + stage * kConfig.act_bytes();
  }
  __device__ __forceinline__ std::uint8_t* filter_tile(std::uint32_t stage) const {
    return filter + stage * kConfig.filter_bytes();
  }

  /// Carve up the dynamic shared memory of a launch, Config::shared_bytes(). `kKept`: the base is
  /// computed once and kept in a register.
  // NOTE: where it is not kept, ptxas may compute it anew in the main loop, with a read of the
  // CTA's number in the cluster (S2UR) each time; where it is, the register may be one too many.
  template <bool kKept>
  static __device__ __forceinline__ Smem carve() {
    extern __shared__ std::uint8_t dynamic_shared[];
    Smem smem;
    std::uint32_t address = ptx::shared_address(dynamic_shared);
    address += (1024 - (address & 1023)) & 1023;
    if constexpr (kKept) asm("" : "+r"(address));  // opaque
    smem.act = static_cast<std::uint8_t*>(__cvta_shared_to_generic(address));
    smem.filter = smem.act + kActStages * kConfig.act_bytes();
    smem.staging = smem.filter + kFilterStages * kConfig.filter_bytes();
    smem.inverse_rms = reinterpret_cast<float*>(smem.staging + kConfig.staging_bytes());
    smem.factors = smem.inverse_rms + kActStages * kConfig.inverse_rms_floats();
    smem.shifts =
        reinterpret_cast<std::uint8_t*>(smem.factors + kActStages * kConfig.factor_floats());
    smem.act_full =
        reinterpret_cast<ptx::Barrier*>(smem.shifts + kConfig.storers() * kConfig.shift_bytes());
    smem.act_empty = smem.act_full + kActStages;
    smem.filter_full = smem.act_empty + kActStages;
    smem.filter_empty = smem.filter_full + kFilterStages;
    smem.source_full = smem.filter_empty + kFilterStages;
    smem.act_loaded = smem.source_full + kSources;
    return smem;
  }
};

}  // namespace convoy::sm90
