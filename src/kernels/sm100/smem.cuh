// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/common/ptx.cuh"
#include "kernels/sm100/config.hpp"
#include "kernels/sm100/tcgen05.cuh"

namespace convoy::sm100 {

/// The shared memory of one CTA. Tiles are swizzled by TMA and start at multiples of 1024 bytes,
/// the period of the 128-byte swizzle. The source tiles are there with `kWithSource` only.
template <std::uint64_t kTiles, std::uint64_t kPipeline, bool kWithSource>
struct Conv2dSmem {
  static constexpr Config kConfig = ValidatedConfig<kTiles, kPipeline>::kConfig;
  static constexpr int kStages = kConfig.pipeline_stages(kWithSource);
  /// Pairs of full / empty barriers: one for each k group of stages, one for all resident filters.
  static constexpr int kGroups =
      kConfig.input == Input::resident ? 1 : kStages / kConfig.k_group_size;
  /// Stages that hold activations.
  static constexpr int kActStages = kConfig.has_act_ring() ? kConfig.num_act_stages : kStages;
  static constexpr int kAccumStages = kConfig.num_accum_pipeline_stages;
  static constexpr int kClcStages = kConfig.num_clc_pipeline_stages;
  static constexpr int kSourceTiles = kWithSource ? kConfig.source_stages() : 1;
  static_assert(kStages >= 1,
                "Conv2dConfig: with a residual not one input stage fits in 227 KiB of shared "
                "memory; take smaller tiles");

  struct alignas(1024) ActTile {
    std::uint8_t bytes[kConfig.act_tile_bytes()];
  };
  struct alignas(1024) FilterTile {
    std::uint8_t bytes[kConfig.filter_tile_bytes()];
  };
  struct alignas(1024) OutTile {
    std::uint8_t bytes[kConfig.output_stage_bytes()];
  };
  struct SourceTiles {
    OutTile tiles[kSourceTiles];
  };
  struct NoSourceTiles {};
  /// Parts of a split reduction: [part][column / 4][row] of 4 columns.
  struct alignas(1024) Exchange {
    float4 values[kConfig.splits_reduction() ? kConfig.exchange_bytes() / 16 : 1];
  };
  struct NoExchange {};
  /// Of the pixels of each patch.
  struct alignas(128) InverseRms {
    float values[kActStages][kConfig.normalises() ? kConfig.inverse_rms_floats() : 1];
  };
  struct NoInverseRms {};
  static_assert(kConfig.inverse_rms_floats() % 32 == 0,
                "Conv2dConfig::halo_pixels with Input::normalised is a multiple of 20 (TMA writes "
                "the inverse RMS of a stage to multiples of 128 bytes)");

  ActTile act[kActStages];
  FilterTile filter[kStages];
  OutTile out[kConfig.num_output_stages];
  [[no_unique_address]] std::conditional_t<kWithSource, SourceTiles, NoSourceTiles> source;
  [[no_unique_address]] std::conditional_t<kConfig.splits_reduction(), Exchange, NoExchange>
      exchange;
  [[no_unique_address]] std::conditional_t<kConfig.normalises(), InverseRms, NoInverseRms>
      inverse_rms;

  ptx::ClcResponse clc_response[kClcStages];

  // Of the activations' own ring.
  ptx::Barrier act_loaded[kConfig.has_halo() ? kActStages : 1];
  ptx::Barrier act_full[kActStages];
  ptx::Barrier act_empty[kActStages];
  ptx::Barrier input_full[kGroups];
  ptx::Barrier input_empty[kGroups];
  ptx::Barrier accum_full[kAccumStages];
  ptx::Barrier accum_empty[kAccumStages];
  ptx::Barrier clc_full[kClcStages];
  ptx::Barrier clc_empty[kClcStages];
  ptx::Barrier throttle_full[kClcStages];
  ptx::Barrier throttle_empty[kClcStages];
  ptx::Barrier source_barriers[2 * kSourceTiles];  // full, then empty
  ptx::Barrier exchange_full;
  ptx::Barrier exchange_empty;
  ptx::Barrier load_order;
  ptx::Barrier tmem_dealloc;
  std::uint32_t tmem_address;

  __device__ __forceinline__ std::uint8_t* act_tiles(int stage = 0) { return act[stage].bytes; }
  __device__ __forceinline__ std::uint8_t* filter_tiles(int stage = 0) {
    return filter[stage].bytes;
  }
  __device__ __forceinline__ std::uint8_t* out_tiles(int stage = 0) { return out[stage].bytes; }
  __device__ __forceinline__ std::uint8_t* src_tiles(int step = 0) {
    return source.tiles[step].bytes;
  }
  /// Those of full source tiles, then those of empty ones.
  __device__ __forceinline__ ptx::Barrier* epi_load_barriers() { return source_barriers; }
  __device__ __forceinline__ ptx::Barrier* source_full() { return source_barriers; }
  __device__ __forceinline__ ptx::Barrier* source_empty() { return source_barriers + kSourceTiles; }
  __device__ __forceinline__ ptx::Barrier* load_order_barrier() { return &load_order; }

  static_assert(kConfig.act_tile_bytes() % 1024 == 0 && kConfig.filter_tile_bytes() % 1024 == 0 &&
                    kConfig.output_tile_bytes() % 1024 == 0,
                "Conv2dConfig: every tile takes a multiple of 1024 bytes (a filter tile of 8 rows "
                "of 128 bytes)");
};

}  // namespace convoy::sm100
