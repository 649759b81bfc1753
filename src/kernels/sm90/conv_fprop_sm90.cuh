// SPDX-License-Identifier: Apache-2.0
//
// Implicit-GEMM forward convolution for Hopper: persistent, warp-specialised, TMA in, WGMMA, TMA
// out. M = output pixels, N = filters, K = channels x taps; bf16 / fp16 in, fp32 accumulation.
// docs/kernels-sm90.md walks through this file with drawings.
//
//   warp 0          loads activation tiles                 full/empty barriers of ring A
//   warp 1          loads filter tiles (multicast)         full/empty barriers of ring B
//   warps 4..       consumer warpgroups: wgmma, then the epilogue of their 64-row blocks,
//                   each warp storing 16 x 32 pieces by TMA from its own staging buffers
//
// The K loop is: for each temporal tap that meets real frames, for each block of 64 channels, for
// each spatial tap. With the halo loader one A stage serves all spatial taps of a channel block:
// the wgmma descriptors slide over it.
#pragma once

#include "kernels/common/pipeline.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/sm90/epilogue_sm90.cuh"
#include "kernels/sm90/tile_sm90.cuh"
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
                                                int c, std::uint8_t* stage, ptx::Barrier* full) {
  const auto offset_h = static_cast<std::uint16_t>(r * p.dilation[1]);
  const auto offset_w = static_cast<std::uint16_t>(s * p.dilation[2]);
  switch (p.loader) {
    case Loader::tiled:
      ptx::tma_load_3d(stage, source.map, full, ptx::kL2EvictNormal, c, tile.pixel, source.frame);
      break;
    case Loader::im2col:
      ptx::tma_load_im2col_4d(stage, source.map, full, ptx::kL2EvictNormal, c, origin.w, origin.h,
                              source.frame + origin.frame, offset_w, offset_h);
      break;
    case Loader::im2col_5d: {
      const int batch = p.depth.divide(origin.frame);
      const int d = p.depth.remainder(origin.frame, batch) * p.stride[0] - p.pad[0];
      ptx::tma_load_im2col_5d(stage, &p.activation_map, full, ptx::kL2EvictNormal, c, origin.w,
                              origin.h, d, batch, offset_w, offset_h,
                              static_cast<std::uint16_t>(t * p.dilation[0]));
      break;
    }
    default:
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

// ---- The kernel -----------------------------------------------------------------------------

template <typename Config, typename ComputeOp = NoComputeOp, typename StoreOp = NoStoreOp>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtasPerSm)
    conv_fprop_sm90(const __grid_constant__ FpropParams p, ComputeOp compute_op, StoreOp store_op) {
  using Mma = Wgmma<typename Config::In, Config::BLOCK_N>;
  using ActState = PipelineState<Config::kActStages>;
  using FilterState = PipelineState<Config::kStages>;
  constexpr bool kHalo = Config::kHalo;
  constexpr int kBlocks = Config::kBlocksPerGroup;

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
  const int cluster_size = static_cast<int>(ptx::cluster_size());
  const int cta_rank = static_cast<int>(ptx::cluster_cta_rank());
  const int m_rank = Config::kCluster > 1 ? cta_rank : 0;
  const int first_tile = static_cast<int>(blockIdx.x) / cluster_size;
  const int tile_step = static_cast<int>(gridDim.x) / cluster_size;

  if (warp == 0 && ptx::elect_one()) {
    ptx::prefetch_tensor_map(&p.activation_map);
    ptx::prefetch_tensor_map(&p.filter_map);
    ptx::prefetch_tensor_map(&p.output_map[0]);
    for (int i = 0; i < Config::kActStages; ++i) {
      ptx::barrier_init(&act_full[i], 1);
      ptx::barrier_init(&act_empty[i], Config::kReleasingWarps);
    }
    for (int i = 0; i < Config::kStages; ++i) {
      // Without a halo both loaders arrive on this barrier: a stage is full with both tiles.
      ptx::barrier_init(&filter_full[i], kHalo ? 1 : 2);
      ptx::barrier_init(&filter_empty[i], Config::kReleasingWarps * Config::kCluster);
    }
    for (int i = 0; i < Config::kConsumerWarps * Config::kStagingBuffers; ++i) {
      ptx::barrier_init(&source_full[i], 1);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();
  if (cluster_size > 1) {
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  }

  ptx::dependent_launch_trigger();
  // NOTE: nothing before this line reads or writes what an earlier kernel may still write or read.
  ptx::dependent_launch_wait();

  if (warp < 4) {
    ptx::set_max_registers_decrease<Config::kLoaderRegisters>();

    if (warp == 0 && ptx::elect_one()) {
      // -- Activation loader --
      ActState act;
      for (int index = first_tile; index < p.num_cluster_tiles; index += tile_step) {
        const Tile tile = decode_tile<Config>(p, index, m_rank);
        const GroupRange range = group_range<Config>(p, tile, cta_rank, cluster_size);
        const Im2colOrigin origin = kHalo ? Im2colOrigin{} : im2col_origin(p, tile);
        for (int group = range.begin; group < range.end; ++group) {
          const int tap_t = p.blocks.divide(group);
          const int t = tile.t_begin + tap_t;
          const int c = p.blocks.remainder(group, tap_t) * Config::BLOCK_K;
          const FrameSource source = frame_source(p, tile, t);
          if constexpr (kHalo) {
            ptx::barrier_wait(&act_empty[act.index], act.producer_parity());
            ptx::barrier_arrive_expect(&act_full[act.index], p.halo_height * p.halo_width * 128);
            ptx::tma_load_4d(act_stages + act.index * Config::kActBytes, source.map,
                             &act_full[act.index], ptx::kL2EvictNormal, c,
                             tile.column - p.pad[2] + tile.phase_column,
                             tile.row - p.pad[1] + tile.phase_row, source.frame);
            act.advance();
          } else {
            for (int r = 0; r < p.filter[1]; ++r) {
              for (int s = 0; s < p.filter[2]; ++s) {
                ptx::barrier_wait(&filter_empty[act.index], act.producer_parity());
                ptx::barrier_arrive_expect(&filter_full[act.index], Config::kActBytes);
                load_activation<Config>(p, tile, origin, source, t, r, s, c,
                                        act_stages + act.index * Config::kActBytes,
                                        &filter_full[act.index]);
                act.advance();
              }
            }
          }
        }
      }
    } else if (warp == 1 && ptx::elect_one()) {
      // -- Filter loader --
      FilterState state;
      const int taps = p.filter[1] * p.filter[2];
      for (int index = first_tile; index < p.num_cluster_tiles; index += tile_step) {
        const Tile tile = decode_tile<Config>(p, index, m_rank);
        const GroupRange range = group_range<Config>(p, tile, cta_rank, cluster_size);
        const int filter = tile.phase * p.filters + tile.filter;
        for (int group = range.begin; group < range.end; ++group) {
          const int tap_t = p.blocks.divide(group);
          const int t = tile.t_begin + tap_t;
          const int c = p.blocks.remainder(group, tap_t) * Config::BLOCK_K;
          for (int tap = t * taps; tap < (t + 1) * taps; ++tap) {
            ptx::barrier_wait(&filter_empty[state.index], state.producer_parity());
            ptx::barrier_arrive_expect(&filter_full[state.index], Config::kFilterBytes);
            std::uint8_t* const stage = filter_stages + state.index * Config::kFilterBytes;
            if constexpr (Config::kCluster == 1) {
              ptx::tma_load_3d(stage, &p.filter_map, &filter_full[state.index], ptx::kL2EvictLast,
                               c, tap, filter);
            } else {
              // Each CTA loads its slice of the filters for all.
              constexpr int kSlice = Config::BLOCK_N / Config::kCluster;
              ptx::tma_load_3d_multicast(stage + cta_rank * kSlice * 128, &p.filter_map,
                                         &filter_full[state.index], (1 << Config::kCluster) - 1,
                                         ptx::kL2EvictLast, c, tap, filter + cta_rank * kSlice);
            }
            state.advance();
          }
        }
      }
    }
  } else {
    ptx::set_max_registers_increase<Config::kConsumerRegisters>();
    // -- Consumers --
    const int group_index = warp / 4 - 1;
    const int warp_in_group = warp % 4;
    const int lane = static_cast<int>(ptx::lane_id());
    const int consumer_warp = warp - 4;
    WarpStaging staging{
        staging_buffers + consumer_warp * Config::kStagingBuffers * Config::kChunkBytes,
        source_full + consumer_warp * Config::kStagingBuffers};
    const bool prefetch_source = p.epilogue.has_residual && !p.direct_store && !Config::kSplit;

    // Where each 64-row block starts in an activation stage, and how far its groups of 8 rows are
    // apart: blocks of a halo stage are 8 x 8 pixels of a wider patch.
    const int first_block = Config::kPingPong ? 0 : group_index * kBlocks;
    std::uint32_t block_offset[kBlocks];
    std::uint32_t row_group_bytes = 1024;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int block = first_block + b;
      block_offset[b] = block * 64 * 128;
      if constexpr (kHalo) {
        block_offset[b] =
            (block / p.patch_columns * p.halo_width + block % p.patch_columns) * 8 * 128;
        row_group_bytes = p.halo_width * 128;
      }
    }

    // The piece of a tile that row block `block` of warp `warp_in_group` has at filters 32·chunk.
    const auto piece_at = [&p](const Tile& tile, int block, int warp_in_group, int chunk) {
      Piece piece;
      piece.filter = tile.filter + chunk * Config::kChunkN;
      if (kHalo || is_patched(p.loader)) {
        const int patch_row = block / p.patch_columns;
        piece.pixel = tile.column + (block - patch_row * p.patch_columns) * 8;
        piece.row = tile.row + patch_row * 8 + warp_in_group * 2;
      } else {
        piece.pixel = tile.pixel + block * 64 + warp_in_group * 16;
        piece.row = 0;
      }
      return piece;
    };

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
    for (int index = first_tile; index < p.num_cluster_tiles; index += tile_step) {
      const Tile tile = decode_tile<Config>(p, index, m_rank);
      const GroupRange range = group_range<Config>(p, tile, cta_rank, cluster_size);
      if constexpr (Config::kPingPong) {
        // The stages of every other tile are the other warpgroup's.
        if ((turn++ & 1) != group_index) {
          const int groups = range.end - range.begin;
          if constexpr (kHalo) act.advance(groups);
          filter_state.advance(groups * p.filter[1] * p.filter[2]);
          continue;
        }
      }

      // Fetch the first pieces of the residual while the main loop runs.
      const auto source_piece = [&](int chunk) {
        return piece_at(tile, first_block + chunk / Config::kChunksPerBlock, warp_in_group,
                        chunk % Config::kChunksPerBlock);
      };
      if (prefetch_source && lane == 0) {
        ptx::tma_store_wait_read<0>();
        for (int i = 0; i < min(Config::kStagingBuffers, Config::kChunks); ++i) {
          load_source<Config>(p, tile, staging, staging.sequence + i, source_piece(i));
        }
      }

      if constexpr (Config::kPingPong) {
        // Wait for the turn. NOTE: parity tells only adjacent phases of a barrier apart, so a
        // warpgroup must not wait for a stage before the other has seen that stage's last round.
        if (turn > 1) ptx::named_barrier_sync(2 + group_index, 256);
      }

      float bias[Config::kChunksPerBlock];
      load_tile_bias<Config>(p, tile, bias);
      float accumulators[kBlocks][Config::BLOCK_N / 2];
      bool accumulate = false;
      std::uint32_t previous_filter = 0;
      std::uint32_t previous_act = 0;
      bool pending_filter = false;
      bool pending_act = false;
      int channel_block = p.blocks.remainder(range.begin, p.blocks.divide(range.begin));
      for (int group = range.begin; group < range.end; ++group) {
        const int steps =
            channel_block == p.channel_blocks - 1 ? p.last_block_steps : Config::BLOCK_K / 16;
        if (++channel_block == p.channel_blocks) channel_block = 0;
        if constexpr (kHalo) ptx::barrier_wait(&act_full[act.index], act.parity());
        for (int r = 0; r < p.filter[1]; ++r) {
          for (int s = 0; s < p.filter[2]; ++s) {
            ptx::barrier_wait(&filter_full[filter_state.index], filter_state.parity());
            std::uint32_t act_address = ptx::shared_address(act_stages);
            if constexpr (kHalo) {
              act_address += act.index * Config::kActBytes +
                             (r * p.dilation[1] * p.halo_width + s * p.dilation[2]) * 128;
            } else {
              act_address += filter_state.index * Config::kActBytes;
            }
            const std::uint64_t b = descriptor_128b(
                ptx::shared_address(filter_stages) + filter_state.index * Config::kFilterBytes,
                1024);
            std::uint64_t a[kBlocks];
#pragma unroll
            for (int i = 0; i < kBlocks; ++i) {
              a[i] = descriptor_128b(act_address + block_offset[i], row_group_bytes);
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
                for (int i = 0; i < kBlocks; ++i) {
                  Mma::mma(accumulators[i], a[i] + step * 2, b + step * 2, accumulate || step > 0);
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
            if (kHalo && pending_act) release_act(previous_act);
            pending_act = false;
            previous_filter = filter_state.index;
            pending_filter = true;
            filter_state.advance();
          }
        }
        if constexpr (kHalo) {
          previous_act = act.index;
          pending_act = true;
          act.advance();
        }
      }
      if constexpr (Config::kPingPong) {
        if (index + tile_step < p.num_cluster_tiles) {
          ptx::named_barrier_arrive(2 + (group_index ^ 1), 256);
        }
      }
      wgmma_wait<0>();
      if (pending_filter) release_filter(previous_filter);
      if (kHalo && pending_act) release_act(previous_act);
      if (!accumulate) {
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
          for (int j = 0; j < Config::BLOCK_N / 2; ++j) accumulators[i][j] = 0.0f;
        }
      }

      const EpiloguePath path = choose_path<ComputeOp, StoreOp>(p);
      if constexpr (!Config::kSplit) {
        // Registers must not be indexed at run time: `first` is a constant (the unrolled loop), or
        // every piece is a candidate of a selection (the rolled loop, whose code exists once).
        const auto store = [&]<EpiloguePath kPath, int kCount>(int first) {
          Piece pieces[kCount];
          float v[kCount][16];
          float lane_bias[kCount] = {};
#pragma unroll
          for (int u = 0; u < kCount; ++u) {
            pieces[u] = source_piece(first + u);
#pragma unroll
            for (int c = 0; c < Config::kChunks; ++c) {
              if (c == first + u) {
                lane_bias[u] = bias[c % Config::kChunksPerBlock];
#pragma unroll
                for (int i = 0; i < 16; ++i) {
                  v[u][i] = accumulators[c / Config::kChunksPerBlock]
                                        [c % Config::kChunksPerBlock * 16 + i];
                }
              }
            }
          }
          store_pieces<Config, kPath>(p, tile, pieces, v, lane_bias, staging, compute_op, store_op);
          // Refill the buffers of the residual that are needed again.
          if (kPath != EpiloguePath::plain && prefetch_source && lane == 0) {
#pragma unroll
            for (int u = 0; u < kCount; ++u) {
              const int refill = first + u + Config::kStagingBuffers;
              if (refill < Config::kChunks) {
                ptx::tma_store_wait_read<0>();
                load_source<Config>(p, tile, staging,
                                    staging.sequence - kCount + u + Config::kStagingBuffers,
                                    source_piece(refill));
              }
            }
          }
        };
        const auto store_all = [&]<EpiloguePath kPath>() {
          constexpr int kCount = Config::kManyRegisters ? 1 : 2;
#pragma unroll
          for (int first = 0; first + kCount <= Config::kChunks; first += kCount) {
            store.template operator()<kPath, kCount>(first);
          }
          if constexpr (Config::kChunks % kCount != 0) {
            store.template operator()<kPath, 1>(Config::kChunks - 1);
          }
        };
        if (path == EpiloguePath::plain) {
          store_all.template operator()<EpiloguePath::plain>();
        } else if (path == EpiloguePath::fused) {
          store_all.template operator()<EpiloguePath::fused>();
        } else {
#pragma unroll 1
          for (int chunk = 0; chunk < Config::kChunks; ++chunk) {
            store.template operator()<EpiloguePath::general, 1>(chunk);
          }
        }
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
#pragma unroll 1
        for (int unit = cta_rank * Config::kConsumerWarps + consumer_warp;
             unit < Config::kChunks * Config::kConsumerWarps;
             unit += cluster_size * Config::kConsumerWarps) {
          const int unit_warp = unit % Config::kConsumerWarps;
          const int chunk = unit / Config::kConsumerWarps;
          float v[1][16] = {};
#pragma unroll 2
          for (int rank = 0; rank < cluster_size; ++rank) {
            const std::uint32_t remote = ptx::map_shared_rank(base, rank);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const float4 part = ptx::load_shared_cluster_v4(
                  remote + ((chunk * 4 + j) * kConsumerThreads + unit_warp * 32 + lane) * 16);
              v[0][4 * j] += part.x;
              v[0][4 * j + 1] += part.y;
              v[0][4 * j + 2] += part.z;
              v[0][4 * j + 3] += part.w;
            }
          }
          const Piece piece[1] = {
              piece_at(tile, unit_warp / 4 * kBlocks + chunk / Config::kChunksPerBlock,
                       unit_warp % 4, chunk % Config::kChunksPerBlock)};
          if (p.epilogue.has_residual && !p.direct_store && lane == 0) {
            load_source<Config>(p, tile, staging, staging.sequence, piece[0]);
          }
          float lane_bias[1] = {};
#pragma unroll
          for (int c = 0; c < Config::kChunksPerBlock; ++c) {
            if (c == chunk % Config::kChunksPerBlock) lane_bias[0] = bias[c];
          }
          if (path == EpiloguePath::plain) {
            store_pieces<Config, EpiloguePath::plain>(p, tile, piece, v, lane_bias, staging,
                                                      compute_op, store_op);
          } else if (path == EpiloguePath::fused) {
            store_pieces<Config, EpiloguePath::fused>(p, tile, piece, v, lane_bias, staging,
                                                      compute_op, store_op);
          } else {
            store_pieces<Config, EpiloguePath::general>(p, tile, piece, v, lane_bias, staging,
                                                        compute_op, store_op);
          }
          if (p.epilogue.has_residual && lane == 0) ptx::tma_store_wait_read<0>();
        }
      }
    }
    // NOTE: shared memory must outlive the stores that read it.
    if (lane == 0) ptx::tma_store_wait<0>();
  }

  if constexpr (Config::kSplit) {
    // The loaders' half of the barrier above: one tile per cluster.
    if (warp < 4) {
      __syncwarp();
      ptx::cluster_sync();
    }
  }
  // NOTE: no CTA may leave while others still copy into, arrive on or read its shared memory.
  if (cluster_size > 1) {
    __syncwarp();
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  }
}

}  // namespace convoy::sm90
