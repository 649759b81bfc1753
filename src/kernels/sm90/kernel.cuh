// SPDX-License-Identifier: Apache-2.0
//
// Implicit-GEMM forward convolution for Hopper: persistent, warp-specialised, TMA in, WGMMA, TMA
// out. M = output pixels, N = filters, K = channels x taps; bf16 / fp16 in, fp32 accumulation.
// docs/kernels-sm90.md walks through this file with drawings.
//
//   warp 0          loads activation tiles                 full/empty barriers of ring A
//   warp 1          loads filter tiles                     full/empty barriers of ring B
//                   (CTAs of a cluster share one of the two: each multicasts its slice)
//   warps 4..       consumer warpgroups: wgmma, then the epilogue of their 64-row blocks,
//                   each warp storing 16 x 32 pieces by TMA from its own staging buffers
//
// The K loop is: for each temporal tap that meets real frames, for each block of 64 channels, for
// each spatial tap. With the halo loader one A stage serves all spatial taps of a channel block:
// the wgmma descriptors slide over it.
#pragma once

#include "kernels/common/pipeline.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/sm90/config.hpp"
#include "kernels/sm90/epilogue.cuh"
#include "kernels/sm90/epilogue_swapped.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace convoy::sm90 {

// ---- Loads ----------------------------------------------------------------------------------

/// Where the activation of one temporal tap lies.
struct FrameSource {
  const CUtensorMap* map;
  int frame;
};
__device__ __forceinline__ FrameSource frame_source(const FpropParams& p, const Tile& tile, int t) {
  const int d = tile.z * p.stride[0] - p.pad[0] + t * p.dilation[0];
  if (d < p.cached_frames) return {&p.cache_map, tile.batch * p.cached_frames + d};
  return {&p.activation_map, tile.batch * p.new_frames + d - p.cached_frames};
}

/// First input position of a linear tile, before padding is taken off by the tap's offset.
struct Im2colOrigin {
  int frame, h, w;
};
__device__ __forceinline__ Im2colOrigin im2col_origin(const FpropParams& p, const Tile& tile) {
  Im2colOrigin origin;
  origin.frame = p.plane.divide(tile.pixel);
  const int pixel = p.plane.remainder(tile.pixel, origin.frame);
  const int row = p.width.divide(pixel);
  origin.h = row * p.stride[1] - p.pad[1];
  origin.w = p.width.remainder(pixel, row) * p.stride[2] - p.pad[2];
  return origin;
}

/// The activation tile of tap (t, r, s), channels [c, c + 64): BLOCK_M rows of 128 bytes.
template <typename Config>
__device__ __forceinline__ void load_activation(const FpropParams& p, const Tile& tile,
                                                const Im2colOrigin& origin,
                                                const FrameSource& source, int t, int r, int s,
                                                int c, int cta_rank, std::uint8_t* stage,
                                                ptx::Barrier* full) {
  const auto offset_h = static_cast<std::uint16_t>(r * p.dilation[1]);
  const auto offset_w = static_cast<std::uint16_t>(s * p.dilation[2]);
  // NOTE: no switch: its table would be one more thing to fetch from device memory.
  if constexpr (Config::kClusterN > 1) {
    // Loader::tiled. Each CTA loads its slice of the pixels for all.
    constexpr int kSlice = Config::BLOCK_M / Config::kClusterN;
    ptx::tma_load_3d_multicast(stage + cta_rank * kSlice * 128, source.map, full,
                               (1 << Config::kClusterN) - 1,
                               p.read_once ? ptx::kL2EvictFirst : ptx::kL2EvictNormal, c,
                               tile.pixel + cta_rank * kSlice, source.frame);
  } else if (p.loader == Loader::tiled) {
    ptx::tma_load_3d(stage, source.map, full,
                     p.read_once ? ptx::kL2EvictFirst : ptx::kL2EvictNormal, c, tile.pixel,
                     source.frame);
  } else if (p.loader == Loader::im2col) {
    ptx::tma_load_im2col_4d(stage, source.map, full, ptx::kL2EvictNormal, c, origin.w, origin.h,
                            source.frame + origin.frame, offset_w, offset_h);
  } else if (p.loader == Loader::im2col_5d) {
    const int batch = p.depth.divide(origin.frame);
    const int d = p.depth.remainder(origin.frame, batch) * p.stride[0] - p.pad[0];
    ptx::tma_load_im2col_5d(stage, &p.activation_map, full, ptx::kL2EvictNormal, c, origin.w,
                            origin.h, d, batch, offset_w, offset_h,
                            static_cast<std::uint16_t>(t * p.dilation[0]));
  } else if constexpr (!Config::kSwapped) {
    for (int block = 0; block < Config::BLOCK_M / 64; ++block) {
      const int row = tile.row + block / p.patch_columns * 8;
      const int column = tile.column + block % p.patch_columns * 8;
      ptx::tma_load_4d(stage + block * 64 * 128, source.map, full, ptx::kL2EvictNormal, c,
                       column * p.stride[2] - p.pad[2] + s * p.dilation[2] + tile.phase_column,
                       row * p.stride[1] - p.pad[1] + r * p.dilation[1] + tile.phase_row,
                       source.frame);
    }
  }
}

// ---- Trace ----------------------------------------------------------------------------------

// Stamps of bench/sm90/cta_trace.py: slots 0 and 1 are nanoseconds, the others cycles of the SM; of
// each of a CTA's first 6 tiles the start of its main loop, first full stage, end of the main
// loop, and end of the epilogue.
#ifdef CONVOY_SM90_TRACE
__device__ __forceinline__ void stamp(const FpropParams& p, int slot) {
  long long time;
  if (slot < 2) {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)::"memory");
  } else {
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(time)::"memory");
  }
  if (p.trace != nullptr && slot < kTraceSlots) p.trace[blockIdx.x * kTraceSlots + slot] = time;
}
#define CONVOY_SM90_STAMP(thread, slot) \
  if (threadIdx.x == (thread)) stamp(p, slot)
#else
#define CONVOY_SM90_STAMP(thread, slot) (void)0
#endif

// ---- The kernel -----------------------------------------------------------------------------

template <typename Config, EpiloguePath kPath, typename ComputeOp = NoComputeOp,
          typename StoreOp = NoStoreOp>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtasPerSm)
    conv_fprop_sm90(const __grid_constant__ FpropParams p, ComputeOp compute_op, StoreOp store_op) {
  using Mma = Wgmma<typename Config::In, Config::kMmaColumns>;
  using ActState = PipelineState<Config::kActStages>;
  using FilterState = PipelineState<Config::kStages>;
  constexpr bool kHalo = Config::kHalo;
  constexpr bool kResident = Config::kResident;
  constexpr bool kOwnActRing = Config::kOwnActRing;
  constexpr int kBlocks = Config::kBlocksPerGroup;
  static_assert(!Config::kSwapped || (!ComputeOp::kEnabled && !StoreOp::kEnabled),
                "ops want neighbouring filters; swapped tiles hold neighbouring pixels");

  CONVOY_SM90_STAMP(0, 0);
  CONVOY_SM90_STAMP(0, 2);
  // Carve up shared memory; swizzle atoms need 1024-byte alignment.
  extern __shared__ std::uint8_t dynamic_shared[];
  std::uint8_t* const shared =
      dynamic_shared + ((1024 - (ptx::shared_address(dynamic_shared) & 1023)) & 1023);
  std::uint8_t* const act_stages = shared;
  std::uint8_t* const filter_stages = act_stages + Config::kActStages * Config::kActBytes;
  std::uint8_t* const staging_buffers = filter_stages + Config::kStages * Config::kFilterBytes;
  auto* const act_full = reinterpret_cast<ptx::Barrier*>(staging_buffers + Config::kStagingBytes);
  ptx::Barrier* const act_empty = act_full + Config::kActStages;
  ptx::Barrier* const filter_full = act_empty + Config::kActStages;
  ptx::Barrier* const filter_empty = filter_full + Config::kStages;
  ptx::Barrier* const source_full = filter_empty + Config::kStages;

  const int warp = static_cast<int>(ptx::warp_id());
  const int lane = static_cast<int>(ptx::lane_id());
  const int cluster_size =
      Config::kSplit ? static_cast<int>(ptx::cluster_size()) : Config::kCluster;
  const int cta_rank =
      Config::kSplit || Config::kCluster > 1 ? static_cast<int>(ptx::cluster_cta_rank()) : 0;
  const int m_rank = Config::kSplit ? 0 : cta_rank;
  const int first_index =
      static_cast<int>(Config::kSplit ? ptx::cluster_id_x() : blockIdx.x / Config::kCluster);
  // Split tiles get a cluster each.
  const int index_step =
      Config::kSplit ? p.num_cluster_tiles : static_cast<int>(gridDim.x / Config::kCluster);

  // NOTE: set-up is on the critical path of small layers. Warp 0 initialises what its first loads
  // need and goes on without waiting for anybody; the others hear of the barriers when they need
  // them. Barriers are initialised by one thread: addresses that differ by lane become a loop of
  // some 70 cycles a barrier.
  constexpr int kReadyBarrier = 4;        // named: warps 0 and 3 arrive, consumers wait
  constexpr int kFilterReadyBarrier = 5;  // warp 0 arrives, warp 1 waits
  constexpr int kReadyThreads = Config::kThreads - 64;
  if (warp == 0) {
    if (ptx::elect_one()) {
      ptx::prefetch_tensor_map(&p.activation_map);
      for (int i = 0; kOwnActRing && i < Config::kActStages; ++i) {
        ptx::barrier_init(&act_full[i], 1);
        ptx::barrier_init(&act_empty[i], Config::kReleasingWarps);
      }
      for (int i = 0; i < Config::kStages; ++i) {
        // Without a ring of their own activation tiles share the stages: both loaders arrive.
        ptx::barrier_init(&filter_full[i], kOwnActRing ? 1 : 2);
        ptx::barrier_init(&filter_empty[i], Config::kReleasingWarps * Config::kCluster);
      }
      ptx::fence_barrier_init();
    }
    __syncwarp();
    if constexpr (Config::kCluster == 1) {
      ptx::named_barrier_arrive(kReadyBarrier, kReadyThreads);
      ptx::named_barrier_arrive(kFilterReadyBarrier, 64);
    }
  } else if (warp == 1) {
    if (ptx::elect_one()) ptx::prefetch_tensor_map(&p.filter_map);
  } else if (warp == 3) {
    if (ptx::elect_one()) {
      ptx::prefetch_tensor_map(&p.output_map[0]);
      if (kPath != EpiloguePath::plain && p.epilogue.has_residual) {
        ptx::prefetch_tensor_map(&p.source_map[0]);
        for (int i = 0; i < Config::kStagings * Config::kStagingBuffers; ++i) {
          ptx::barrier_init(&source_full[i], 1);
        }
        ptx::fence_barrier_init();
      }
    }
    __syncwarp();
    if constexpr (Config::kCluster == 1) ptx::named_barrier_arrive(kReadyBarrier, kReadyThreads);
  }
  // With a cluster its barrier tells everybody, in both CTAs.
  if constexpr (Config::kCluster > 1) ptx::cluster_arrive_relaxed();
  const Tile first_tile = decode_tile<Config>(p, first_index, m_rank);

  ptx::dependent_launch_trigger();
  // NOTE: nothing before this line reads or writes what an earlier kernel may still write or read.
  ptx::dependent_launch_wait();
  CONVOY_SM90_STAMP(0, 3);

  // NOTE: before the loads, whose issue may stall: consumers wait for these registers.
  if (warp < 4) ptx::set_max_registers_decrease<Config::kLoaderRegisters>();

  // NOTE: the usual first loads are issued here, by one thread, from code that follows the set-up:
  // the loaders' own lies elsewhere, and comes from device memory in a fresh kernel.
  // NOTE: with a cluster each CTA loads all of its first tiles itself: what is multicast must wait
  // until the other CTA is there.
  const int preloaded = Config::kSplit ? 0 : p.preloaded;
  if (preloaded > 0 && warp == 0) {
    if (ptx::elect_one()) {
      CONVOY_SM90_STAMP(threadIdx.x, 6);
      if constexpr (kHalo) {
        ptx::barrier_arrive_expect(&act_full[0], p.halo_height * p.halo_width * 128);
        ptx::tma_load_4d(act_stages, &p.activation_map, &act_full[0], ptx::kL2EvictNormal, 0,
                         first_tile.column - p.pad[2] + first_tile.phase_column,
                         first_tile.row - p.pad[1] + first_tile.phase_row, first_tile.frame);
      }
      const int filter = first_tile.phase * p.filters + first_tile.filter;
#pragma unroll 1
      for (int i = 0; i < preloaded; ++i) {
        const int c = kHalo ? 0 : i * Config::BLOCK_K;
        if constexpr (!kHalo) {
          ptx::Barrier* const full = kResident ? &act_full[i] : &filter_full[i];
          ptx::barrier_arrive_expect(full, Config::kActBytes);
#pragma unroll
          for (int slice = 0; slice < Config::kClusterN; ++slice) {
            constexpr int kSlice = Config::BLOCK_M / Config::kClusterN;
            ptx::tma_load_3d(act_stages + i * Config::kActBytes + slice * kSlice * 128,
                             &p.activation_map, full,
                             p.read_once ? ptx::kL2EvictFirst : ptx::kL2EvictNormal, c,
                             first_tile.pixel + slice * kSlice, first_tile.frame);
          }
        }
        ptx::barrier_arrive_expect(&filter_full[i], Config::kFilterBytes);
#pragma unroll
        for (int slice = 0; slice < Config::kClusterM; ++slice) {
          constexpr int kSlice = Config::BLOCK_N / Config::kClusterM;
          ptx::tma_load_3d(filter_stages + i * Config::kFilterBytes + slice * kSlice * 128,
                           &p.filter_map, &filter_full[i], ptx::kL2EvictLast, c,
                           filter + slice * kSlice, kHalo ? i : 0);
        }
      }
    }
    __syncwarp();
  }

  // From here on the other CTA's barriers exist, to multicast to and to release stages of.
  if constexpr (Config::kCluster > 1) ptx::cluster_wait();

  if (warp < 4) {
    if (warp == 0 && ptx::elect_one()) {
      // -- Activation loader --
      ActState act;
      Tile tile = first_tile;
      int skip = kHalo ? min(preloaded, 1) : preloaded;  // groups of the first tile
      act.advance(skip);
      for (int index = first_index; index < p.num_cluster_tiles;) {
        const GroupRange range = group_range<Config>(p, tile, cta_rank, cluster_size);
        Group group = first_group<Config>(p, tile, range);
        const bool linear = !kHalo && p.loader != Loader::tiled && p.loader != Loader::patch;
        const Im2colOrigin origin = linear ? im2col_origin(p, tile) : Im2colOrigin{};
        group.block += skip;
        int i = range.begin + skip;
        skip = 0;
        for (; i < range.end; ++i, group.advance(p)) {
          const int c = group.block * Config::BLOCK_K;
          const FrameSource source = frame_source(p, tile, group.t);
          if constexpr (kHalo) {
            ptx::barrier_wait(&act_empty[act.index], act.producer_parity());
            ptx::barrier_arrive_expect(&act_full[act.index], p.halo_height * p.halo_width * 128);
            ptx::tma_load_4d(act_stages + act.index * Config::kActBytes, source.map,
                             &act_full[act.index], ptx::kL2EvictNormal, c,
                             tile.column - p.pad[2] + tile.phase_column,
                             tile.row - p.pad[1] + tile.phase_row, source.frame);
            act.advance();
          } else if constexpr (kResident) {
            ptx::barrier_wait(&act_empty[act.index], act.producer_parity());
            ptx::barrier_arrive_expect(&act_full[act.index], Config::kActBytes);
            load_activation<Config>(p, tile, origin, source, 0, 0, 0, c, 0,
                                    act_stages + act.index * Config::kActBytes,
                                    &act_full[act.index]);
            act.advance();
          } else {
            for (int r = 0; r < p.filter[1]; ++r) {
              for (int s = 0; s < p.filter[2]; ++s) {
                ptx::barrier_wait(&filter_empty[act.index], act.producer_parity());
                ptx::barrier_arrive_expect(&filter_full[act.index], Config::kActBytes);
                if (index == first_index && i == range.begin) CONVOY_SM90_STAMP(threadIdx.x, 6);
                load_activation<Config>(p, tile, origin, source, group.t, r, s, c, cta_rank,
                                        act_stages + act.index * Config::kActBytes,
                                        &filter_full[act.index]);
                act.advance();
              }
            }
          }
        }
        index += index_step;
        tile = decode_tile<Config>(p, index, m_rank);
      }
    } else if (warp == 1) {
      if constexpr (Config::kCluster == 1) ptx::named_barrier_sync(kFilterReadyBarrier, 64);
      if (ptx::elect_one()) {
        // -- Filter loader --
        FilterState state;
        const int taps = p.filter[1] * p.filter[2];
        Tile tile = first_tile;
        // Of the first tile: groups, or taps of the first group.
        int skip = preloaded;
        state.advance(skip);
        for (int index = first_index; index < p.num_cluster_tiles;) {
          const GroupRange range = group_range<Config>(p, tile, cta_rank, cluster_size);
          Group group = first_group<Config>(p, tile, range);
          const int filter = tile.phase * p.filters + tile.filter;
          int i = range.begin;
          if constexpr (!kHalo) {
            group.block += skip;
            i += skip;
            skip = 0;
          }
          for (; i < range.end; ++i, group.advance(p)) {
            const int c = group.block * Config::BLOCK_K;
            int tap = group.t * taps;
            if constexpr (kHalo) {
              tap += skip;
              skip = 0;
            }
            for (; tap < (group.t + 1) * taps; ++tap) {
              ptx::barrier_wait(&filter_empty[state.index], state.producer_parity());
              ptx::barrier_arrive_expect(&filter_full[state.index], Config::kFilterBytes);
              std::uint8_t* const stage = filter_stages + state.index * Config::kFilterBytes;
              if constexpr (Config::kClusterM == 1) {
                ptx::tma_load_3d(stage, &p.filter_map, &filter_full[state.index], ptx::kL2EvictLast,
                                 c, filter, tap);
              } else {
                // Each CTA loads its slice of the filters for all.
                constexpr int kSlice = Config::BLOCK_N / Config::kClusterM;
                ptx::tma_load_3d_multicast(stage + cta_rank * kSlice * 128, &p.filter_map,
                                           &filter_full[state.index], (1 << Config::kClusterM) - 1,
                                           ptx::kL2EvictLast, c, filter + cta_rank * kSlice, tap);
              }
              state.advance();
            }
          }
          // The filters of all other tiles are these.
          if constexpr (kResident) break;
          index += index_step;
          tile = decode_tile<Config>(p, index, m_rank);
        }
      }
    }
    __syncwarp();
  } else {
    ptx::set_max_registers_increase<Config::kConsumerRegisters>();
    if constexpr (Config::kCluster == 1) ptx::named_barrier_sync(kReadyBarrier, kReadyThreads);
    // -- Consumers --
    const int group_index = warp / 4 - 1;
    const int warp_in_group = warp % 4;
    const int consumer_warp = warp - 4;
    const int storer = Config::kSwapped ? group_index : consumer_warp;
    const bool storing = lane == 0 && (!Config::kSwapped || warp_in_group == 0);
    Staging staging{staging_buffers + storer * Config::kStagingBuffers * Config::kChunkBytes,
                    source_full + storer * Config::kStagingBuffers};
    const bool prefetch_source = kPath != EpiloguePath::plain && !Config::kSplit &&
                                 p.epilogue.has_residual && !p.direct_store;

    // Where each 64-row block starts in a stage, and how far its groups of 8 rows are apart: blocks
    // of a halo stage are 8 x 8 pixels of a wider patch.
    const int first_block = Config::kPingPong ? 0 : group_index * kBlocks;
    std::uint32_t block_offset[kBlocks];
    std::uint32_t row_group_bytes = 1024;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int block = first_block + b;
      block_offset[b] = block * 64 * 128;
      if constexpr (kHalo) {
        const int row = patch_row(p, block);
        block_offset[b] = (row * p.halo_width + block - row * p.patch_columns) * 8 * 128;
        row_group_bytes = p.halo_width * 128;
      }
    }

    // Give stages back once no wgmma reads them any more.
    const auto release_act = [&](std::uint32_t stage) {
      if (lane == 0) ptx::barrier_arrive(&act_empty[stage]);
    };
    const auto release_filter = [&](std::uint32_t stage) {
      if constexpr (Config::kCluster == 1) {
        if (lane == 0) ptx::barrier_arrive(&filter_empty[stage]);
      } else {
        if (lane < Config::kCluster) ptx::barrier_release_remote(&filter_empty[stage], lane);
      }
    };

    ActState act;
    FilterState filter_state;
    int turn = 0;
    Tile next_tile = first_tile;
#ifdef CONVOY_SM90_TRACE
    const int stamping = Config::kPingPong ? 128 + 128 * group_index : 128;
    int local_tile = Config::kPingPong ? group_index : 0;
#endif
    for (int index = first_index; index < p.num_cluster_tiles; index += index_step) {
      const Tile tile = Config::kPingPong ? decode_tile<Config>(p, index, m_rank) : next_tile;
      const GroupRange range = group_range<Config>(p, tile, cta_rank, cluster_size);
      if constexpr (Config::kPingPong) {
        // The stages of every other tile are the other warpgroup's.
        if ((turn++ & 1) != group_index) {
          const int groups = range.end - range.begin;
          if constexpr (kOwnActRing) act.advance(groups);
          filter_state.advance(groups * p.filter[1] * p.filter[2]);
          continue;
        }
      }

      // Fetch the first pieces of the residual while the main loop runs.
      const auto tile_piece = [&](int q) {
        if constexpr (Config::kSwapped) return swapped_piece<Config>(tile, group_index, q);
        return piece_at<Config>(p, tile, first_block + q / Config::kChunksPerBlock, warp_in_group,
                                q % Config::kChunksPerBlock);
      };
      if (prefetch_source && storing) {
        ptx::tma_store_wait_read<0>();
#pragma unroll 1
        for (int q = 0; q < min(Config::kStagingBuffers, Config::kChunks); ++q) {
          load_source<Config>(p, tile, staging, q, tile_piece(q));
        }
      }
      constexpr int kBiases = Config::kSwapped ? 2 * kBlocks : Config::BLOCK_N / 32;
      std::uint32_t bias_bits[kBiases];
      if constexpr (Config::kSwapped) {
        load_swapped_bias<Config>(p, tile, group_index, warp_in_group, bias_bits);
      } else {
        load_tile_bias<Config>(p, tile, bias_bits);
      }
      Group group = first_group<Config>(p, tile, range);
      if constexpr (kResident) filter_state = FilterState{};

      if constexpr (Config::kPingPong) {
        // Wait for the turn. NOTE: parity tells only adjacent phases of a barrier apart, so a
        // warpgroup must not wait for a stage before the other has seen that stage's last round.
        if (turn > 1) ptx::named_barrier_sync(2 + group_index, 256);
      }
      CONVOY_SM90_STAMP(stamping, 8 + 4 * local_tile);
      float accumulators[kBlocks][Config::kMmaColumns / 2];
      bool accumulate = false;
      std::uint32_t previous_filter = 0;
      std::uint32_t previous_act = 0;
      bool pending_filter = false;
      bool pending_act = false;
      for (int i = range.begin; i < range.end; ++i, group.advance(p)) {
        const int steps =
            group.block == p.channel_blocks - 1 ? p.last_block_steps : Config::BLOCK_K / 16;
        if constexpr (kOwnActRing) ptx::barrier_wait(&act_full[act.index], act.parity());
        for (int r = 0; r < p.filter[1]; ++r) {
          for (int s = 0; s < p.filter[2]; ++s) {
            ptx::barrier_wait(&filter_full[filter_state.index], filter_state.parity());
            if (!accumulate) CONVOY_SM90_STAMP(stamping, 9 + 4 * local_tile);
            std::uint32_t act_address = ptx::shared_address(act_stages);
            if constexpr (kHalo) {
              act_address += act.index * Config::kActBytes +
                             (r * p.dilation[1] * p.halo_width + s * p.dilation[2]) * 128;
            } else if constexpr (kResident) {
              act_address += act.index * Config::kActBytes;
            } else {
              act_address += filter_state.index * Config::kActBytes;
            }
            const std::uint32_t filter_address =
                ptx::shared_address(filter_stages) + filter_state.index * Config::kFilterBytes;
            const std::uint32_t rows = Config::kSwapped ? filter_address : act_address;
            const std::uint64_t columns =
                descriptor_128b(Config::kSwapped ? act_address : filter_address, 1024);
            std::uint64_t a[kBlocks];
#pragma unroll
            for (int b = 0; b < kBlocks; ++b) {
              a[b] = descriptor_128b(rows + block_offset[b], row_group_bytes);
            }
            // NOTE: the swizzle permutes by address bits, so a step of 16 channels is an offset
            // of 32 bytes in the descriptor, and whole rows may be skipped likewise.
            // NOTE: fence, MMAs, commit and wait stay in one basic block: where the commit is
            // in another, ptxas closes the group early and the wait becomes a full drain.
            const auto multiply = [&]<int kSteps>() {
              wgmma_fence();
#pragma unroll
              for (int step = 0; step < kSteps; ++step) {
#pragma unroll
                for (int b = 0; b < kBlocks; ++b) {
                  Mma::mma(accumulators[b], a[b] + step * 2, columns + step * 2,
                           accumulate || step > 0);
                }
              }
              wgmma_commit();
              wgmma_wait<1>();
            };
            if (steps == 4) {
              multiply.template operator()<4>();
            } else if (steps == 3) {
              multiply.template operator()<3>();
            } else if (steps == 2) {
              multiply.template operator()<2>();
            } else {
              multiply.template operator()<1>();
            }
            accumulate = true;
            if (pending_filter) release_filter(previous_filter);
            if (kOwnActRing && pending_act) release_act(previous_act);
            pending_act = false;
            previous_filter = filter_state.index;
            pending_filter = !kResident;
            filter_state.advance();
          }
        }
        if constexpr (kOwnActRing) {
          previous_act = act.index;
          pending_act = true;
          act.advance();
        }
      }
      if constexpr (Config::kPingPong) {
        if (index + index_step < p.num_cluster_tiles) {
          ptx::named_barrier_arrive(2 + (group_index ^ 1), 256);
        }
      }
      // While the last MMAs run.
      if constexpr (!Config::kPingPong && !Config::kSplit) {
        next_tile = decode_tile<Config>(p, index + index_step, m_rank);
      }
      wgmma_wait<0>();
      CONVOY_SM90_STAMP(stamping, 10 + 4 * local_tile);
      if (pending_filter) release_filter(previous_filter);
      if (kOwnActRing && pending_act) release_act(previous_act);
      if (!accumulate) {
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
          for (int j = 0; j < Config::kMmaColumns / 2; ++j) accumulators[i][j] = 0.0f;
        }
      }

      float bias[kBiases];
#pragma unroll
      for (int i = 0; i < kBiases; ++i) bias[i] = bias_value(p.epilogue, bias_bits[i]);
      if constexpr (Config::kSwapped) {
        store_swapped_tile<Config, kPath>(p, tile, group_index, warp_in_group, accumulators, bias,
                                          staging);
      } else if constexpr (!Config::kSplit && kPath != EpiloguePath::general) {
        store_tile<Config, kPath>(p, tile, first_block, warp_in_group, accumulators, bias, staging);
      } else if constexpr (!Config::kSplit) {
        // One piece after the other in a rolled loop: registers must not be indexed at run time, so
        // every piece is a candidate of a selection.
#pragma unroll 1
        for (int q = 0; q < Config::kChunks; ++q) {
          constexpr int kBuffers = Config::kStagingBuffers;
          constexpr int kValues = 16 * Config::kHalves;
          float v[kValues] = {};
          float lane_bias[Config::kHalves] = {};
#pragma unroll
          for (int c = 0; c < Config::kChunks; ++c) {
            if (c != q) continue;
            constexpr int kPerBlock = Config::kChunksPerBlock;
#pragma unroll
            for (int h = 0; h < Config::kHalves; ++h) {
              lane_bias[h] = bias[c % kPerBlock * Config::kHalves + h];
            }
#pragma unroll
            for (int i = 0; i < kValues; ++i) {
              v[i] = accumulators[c / kPerBlock][c % kPerBlock * kValues + i];
            }
          }
          if (!p.epilogue.has_residual) {
            // The last tile's stores too: its last piece may have used any buffer.
            if (lane == 0) {
              if (q == 0) {
                ptx::tma_store_wait_read<0>();
              } else {
                ptx::tma_store_wait_read<kBuffers - 1>();
              }
            }
            __syncwarp();
          }
          finish_piece<Config, kPath>(p, tile, tile_piece(q), v, lane_bias, staging, q % kBuffers,
                                      source_parity<Config>(staging, q), compute_op, store_op);
          if (prefetch_source && lane == 0 && q + kBuffers < Config::kChunks) {
            ptx::tma_store_wait_read<0>();
            load_source<Config>(p, tile, staging, q % kBuffers, tile_piece(q + kBuffers));
          }
        }
        ++staging.tiles;
      } else {
        // Split K: every CTA of the cluster leaves its partial tile in its own stages (all loads
        // have been consumed), then each sums a share of the pieces over all CTAs, in rank order.
        auto* const partial = reinterpret_cast<float4*>(act_stages);
        constexpr int kConsumerThreads = 128 * Config::kConsumers;
        const int thread = static_cast<int>(threadIdx.x) - 128;
        ptx::named_barrier_sync(1, kConsumerThreads);
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
          for (int j = 0; j < Config::BLOCK_N / 8; ++j) {
            partial[(i * (Config::BLOCK_N / 8) + j) * kConsumerThreads + thread] =
                make_float4(accumulators[i][4 * j], accumulators[i][4 * j + 1],
                            accumulators[i][4 * j + 2], accumulators[i][4 * j + 3]);
          }
        }
        ptx::cluster_sync();
        const std::uint32_t base = ptx::shared_address(partial);
        int unit_count = 0;
#pragma unroll 1
        for (int unit = cta_rank * Config::kConsumerWarps + consumer_warp;
             unit < Config::kChunks * Config::kConsumerWarps;
             unit += cluster_size * Config::kConsumerWarps, ++unit_count) {
          const int unit_warp = unit % Config::kConsumerWarps;
          const int chunk = unit / Config::kConsumerWarps;
          const int slot = unit_count % Config::kStagingBuffers;
          const std::uint32_t parity = unit_count / Config::kStagingBuffers % 2;
          const Piece piece =
              piece_at<Config>(p, tile, unit_warp / 4 * kBlocks + chunk / Config::kChunksPerBlock,
                               unit_warp % 4, chunk % Config::kChunksPerBlock);
          if (lane == 0) {
            ptx::tma_store_wait_read<Config::kStagingBuffers - 1>();
            if (p.epilogue.has_residual && !p.direct_store) {
              load_source<Config>(p, tile, staging, slot, piece);
            }
          }
          __syncwarp();
          float v[16] = {};
#pragma unroll 2
          for (int rank = 0; rank < cluster_size; ++rank) {
            const std::uint32_t remote = ptx::map_shared_rank(base, rank);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const float4 part = ptx::load_shared_cluster_v4(
                  remote + ((chunk * 4 + j) * kConsumerThreads + unit_warp * 32 + lane) * 16);
              v[4 * j] += part.x;
              v[4 * j + 1] += part.y;
              v[4 * j + 2] += part.z;
              v[4 * j + 3] += part.w;
            }
          }
          float lane_bias[1] = {};
#pragma unroll
          for (int c = 0; c < Config::kChunksPerBlock; ++c) {
            if (c == chunk % Config::kChunksPerBlock) lane_bias[0] = bias[c];
          }
          finish_piece<Config, kPath>(p, tile, piece, v, lane_bias, staging, slot, parity,
                                      compute_op, store_op);
        }
      }
      CONVOY_SM90_STAMP(stamping, 11 + 4 * local_tile);
#ifdef CONVOY_SM90_TRACE
      local_tile += Config::kPingPong ? 2 : 1;
#endif
    }
    // NOTE: shared memory must outlive the stores that read it.
    if (storing) ptx::tma_store_wait<0>();
    CONVOY_SM90_STAMP(stamping, 4 + group_index);
  }

  if constexpr (Config::kSplit) {
    // The loaders' half of the barrier above: one tile per cluster.
    if (warp < 4) {
      __syncwarp();
      ptx::cluster_sync();
    }
  }
  // NOTE: no CTA may leave while others still copy into, arrive on or read its shared memory.
  if constexpr (Config::kSplit || Config::kCluster > 1) {
    __syncwarp();
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  }
  CONVOY_SM90_STAMP(0, 1);
  CONVOY_SM90_STAMP(0, 7);
}

}  // namespace convoy::sm90
