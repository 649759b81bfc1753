// SPDX-License-Identifier: Apache-2.0
//
// Forward convolution for Blackwell (sm_100f) as a warp-specialised implicit GEMM:
//
//   warps 0-3  epilogue        tensor memory -> registers -> shared memory -> global (TMA)
//   warp  4    scheduler       asks cluster launch control for the next tile; completes patches at
//                              the border where padding replicates or reflects
//   warp  5    main load       TMA: im2col activation tiles, filter tiles
//   warp  6    MMA             tcgen05.mma, one thread (of one CTA of a pair)
//   warp  7    epilogue load   TMA: source (residual) tiles
//   warps 8-15 normalisers     Input::normalised alone: apply a prologue to every patch
//
//   global --TMA--> input ring --MMA--> accumulators --epilogue--> output ring --TMA--> global
//                   full/empty          full/empty      ^ source tiles, full/empty
//
// Rows of the GEMM are output pixels (M), columns filters (N); the reduction runs over filter taps
// and, inside a tap, over channels in spans of one swizzle ("atoms"), channels beyond C reading
// zero. docs/kernels-sm100.md walks through it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/common/border.cuh"
#include "kernels/common/epilogue.cuh"
#include "kernels/common/normalise.cuh"
#include "kernels/common/pipeline.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/sm100/config.hpp"
#include "kernels/sm100/epilogue.cuh"
#include "kernels/sm100/params.hpp"
#include "kernels/sm100/smem.cuh"
#include "kernels/sm100/tcgen05.cuh"

namespace convoy::sm100 {

/// Output tile of one CTA.
struct Tile {
  int phase = 0;   ///< Of an upsampling.
  int group = 0;   ///< Group of rows, of this phase.
  int row = 0;     ///< First row, within the group; may lie beyond the last.
  int filter = 0;  ///< First filter of the MMA tile.
};

template <std::uint64_t kTiles, std::uint64_t kPipeline, typename ComputeOp, typename StoreOp,
          bool kWithResidual>
struct Conv2dFpropKernel {
  using Smem = Conv2dSmem<kTiles, kPipeline, kWithResidual>;
  static constexpr Config kConfig = Smem::kConfig;
  using Epilogue = TileEpilogue<kTiles, kPipeline, ComputeOp, StoreOp, kWithResidual>;

  static constexpr int kCtaGroup = kConfig.cta_group;
  static constexpr int kClusterM = kConfig.cluster_shape.m;
  static constexpr int kClusterN = kConfig.cluster_shape.n;
  static constexpr int kClusterK = kConfig.cluster_shape.k;
  static constexpr int kClusterSize = kConfig.cluster_size();
  static constexpr int kPairsM = kClusterM / kCtaGroup;
  static constexpr int kAtomK = kConfig.atom_k();
  static constexpr int kAtomsPerTile = kConfig.atoms_per_tile();
  static constexpr int kAtomsPerGroup = kAtomsPerTile * kConfig.k_group_size;
  static constexpr int kAtomBytes = kConfig.act_atom_bytes() + kConfig.filter_atom_bytes();
  static constexpr int kActSliceBytes = kConfig.act_slice_rows() * kConfig.a_swizzle;
  static constexpr int kFilterSliceBytes = kConfig.filter_slice_rows() * kConfig.b_swizzle;
  static constexpr bool kBf16 = kConfig.act_dtype == DType::bf16;
  static constexpr bool kHalo = kConfig.has_halo();
  static constexpr bool kNormalises = kConfig.normalises();
  static constexpr bool kResident = kConfig.input == Input::resident;
  using InputState = PipelineState<Smem::kGroups>;
  using ActState = PipelineState<Smem::kActStages>;

  // Threads that come to the named barriers of a CTA.
  static constexpr int kEpilogueThreads = 128;
  static constexpr int kHandOverBarrier = 1;
  static constexpr int kNormalisedBarrier = 3;  // Behind the epilogue's; normalisers, of a patch.
  static constexpr int kHandOverThreads = kEpilogueThreads + 32;

  // Threads that read each launch-control answer: the scheduler of the first CTA; load, MMA,
  // epilogue and, with a residual, epilogue-load warps of every CTA. The others' schedulers come on
  // top in launches whose borders they fill.
  static constexpr int kNormaliserThreads = kNormalises ? 32 * kNormaliserWarps : 0;
  static constexpr int kClcConsumers = 32 + kClusterSize * (32 + 32 + (kWithResidual ? 32 : 0) +
                                                            kEpilogueThreads + kNormaliserThreads);

  // Registers of a thread where there are normalisers: of the epilogue, of the single warps, of the
  // normalisers. With 512 threads each begins with 128.
  static constexpr int kEpilogueRegisters = 232;
  static constexpr int kSingleRegisters = 56;
  static constexpr int kNormaliserRegisters = 104;
  static_assert(4 * (kEpilogueRegisters + kSingleRegisters) +
                        kNormaliserWarps * kNormaliserRegisters <=
                    (8 + kNormaliserWarps) * 128,
                "setmaxnreg waits for registers that no warp gives back");

  enum Role : std::uint32_t {
    kScheduler = 4,
    kMainLoad = 5,
    kMma = 6,
    kEpilogueLoad = 7,
    kNormaliser = 8
  };

  // Position of a CTA in its cluster. Ranks count M first, so a CTA pair is ranks 2i, 2i + 1.
  struct Place {
    int m, n, k;    // in the cluster
    int pair_rank;  // in the CTA pair: 0 leads
    int leader;     // rank of the pair's leader
    std::uint32_t rank;
  };

  // In this launch the scheduler's warps complete patches that reach outside the input.
  static __device__ __forceinline__ bool fills_border(const Params& params) {
    return kHalo && !kNormalises && params.fills_border;
  }

  // Who tells the MMA warp of a full patch: a thread of each CTA whose loader or scheduler may do
  // it, each CTA's normalisers, or the leader's loader for both.
  static __device__ __forceinline__ int patch_tellers(const Params& params) {
    if constexpr (kNormalises) return kCtaGroup * kNormaliserWarps;
    return fills_border(params) ? kCtaGroup : 1;
  }

  // ---- Tiles ----------------------------------------------------------------------------------

  static __device__ __forceinline__ Place place() {
    Place at;
    at.rank = kClusterSize == 1 ? 0 : ptx::cluster_cta_rank();
    at.m = static_cast<int>(at.rank) % kClusterM;
    at.n = static_cast<int>(at.rank) / kClusterM % kClusterN;
    at.k = static_cast<int>(at.rank) / (kClusterM * kClusterN);
    at.pair_rank = at.m % kCtaGroup;
    at.leader = static_cast<int>(at.rank) - at.pair_rank;
    return at;
  }

  // Tile of this CTA in the cluster tile number `index`. Order: groups, then bands of
  // block_swizzle_size M tiles, inside a band all M tiles of an N tile, then the next N tile.
  static __device__ __forceinline__ Tile tile_of(const Params& params, const Place& at, int index) {
    const int per_group = params.m_clusters * params.n_clusters;
    const int group = index / per_group;
    index -= group * per_group;
    // Resident filters change as seldom as they can.
    const int band_size = kResident ? params.m_clusters : kConfig.block_swizzle_size;
    const int band = index / (band_size * params.n_clusters);
    index -= band * band_size * params.n_clusters;
    const int first_m = band * band_size;
    const int band_m = min(band_size, params.m_clusters - first_m);
    const int n = index / band_m;
    const int m = first_m + index - n * band_m;
    const int phase = group / params.groups_per_phase;
    return {.phase = phase,
            .group = group - phase * params.groups_per_phase,
            .row = (m * kClusterM + at.m) * kConfig.block_tile_shape.m,
            .filter = (n * kClusterN + at.n) * kConfig.mma_shape.n};
  }

  // Filter depths [begin, end) of a tile that meet a frame, where padding is not of zeros all; at
  // least one, so that every tile writes its accumulator (a depth in the padding reads zeros).
  struct Depths {
    int begin, end;
  };

  static __device__ __forceinline__ Depths depths_of(const Params& params, const Tile& tile) {
    // Depths of an upsampling are terms of its filters, which read the same frame.
    if (!by_frames(params) || params.phases > 1 || params.pad_mode[0] != PadMode::zero) {
      return {0, params.filter_extent[0]};
    }
    const int first = tile.group % params.out_extent[0] * params.stride[0] - params.pad[0];
    const int dilation = params.dilation[0];
    const int seen = params.cached_frames + params.frames;
    const int begin = first < 0 ? (dilation - 1 - first) / dilation : 0;
    const int end =
        min(params.filter_extent[0], first < seen ? (seen - first + dilation - 1) / dilation : 0);
    if (begin >= end) return {0, 1};
    return {begin, end};
  }

  // Atoms of a tile's reduction that this CTA sums: all, or its part of a split; never none.
  struct AtomRange {
    int first, count;
  };

  static __device__ __forceinline__ AtomRange atoms_of(const Params& params, const Place& at,
                                                       const Tile& tile) {
    const Depths depths = depths_of(params, tile);
    const int per_depth = params.filter_extent[1] * params.filter_extent[2] * params.channel_atoms;
    const int atoms = (depths.end - depths.begin) * per_depth;
    const int begin = kClusterK == 1 ? 0 : atoms * at.k / kClusterK;
    const int end = kClusterK == 1 ? atoms : atoms * (at.k + 1) / kClusterK;
    return {depths.begin * per_depth + begin, end - begin};
  }

  // ---- Set-up ---------------------------------------------------------------------------------

  static __device__ __forceinline__ void prefetch_descriptors(const Params& params) {
    ptx::prefetch_tensor_map(&params.activation_map);
    if (params.cached_frames > 0) ptx::prefetch_tensor_map(&params.cache_map);
    ptx::prefetch_tensor_map(&params.filter_map);
    if (!params.tma_store) return;
    for (int phase = 0; phase < params.phases; ++phase) {
      ptx::prefetch_tensor_map(&params.output_map[phase]);
      if constexpr (kWithResidual) ptx::prefetch_tensor_map(&params.source_map[phase]);
    }
  }

  /// Prefetch the descriptors, initialise every barrier, synchronise the cluster, and wait for the
  /// kernels that this one depends on.
  static __device__ __forceinline__ void init_barriers(const Params& params, Smem& smem) {
    if (threadIdx.x == 0) {
      prefetch_descriptors(params);
      for (int i = 0; i < Smem::kGroups; ++i) {
        ptx::barrier_init(&smem.input_full[i], 1);
        // One commit of every MMA leader that reads what this CTA loads.
        ptx::barrier_init(&smem.input_empty[i], kPairsM + kClusterN - 1);
      }
      for (int i = 0; kConfig.has_act_ring() && i < Smem::kActStages; ++i) {
        ptx::barrier_init(&smem.act_full[i], patch_tellers(params));
        ptx::barrier_init(&smem.act_empty[i], 1);
        if constexpr (kHalo) ptx::barrier_init(&smem.act_loaded[i], 1);
      }
      for (int i = 0; i < Smem::kAccumStages; ++i) {
        ptx::barrier_init(&smem.accum_full[i], 1);
        ptx::barrier_init(&smem.accum_empty[i], kCtaGroup * kEpilogueThreads);
      }
      for (int i = 0; i < Smem::kClcStages; ++i) {
        ptx::barrier_init(&smem.clc_full[i], 1);
        ptx::barrier_init(&smem.clc_empty[i],
                          kClcConsumers + (fills_border(params) ? 32 * (kClusterSize - 1) : 0));
        ptx::barrier_init(&smem.throttle_full[i], 32);
        ptx::barrier_init(&smem.throttle_empty[i], 32);
      }
      if constexpr (kWithResidual) {
        for (int i = 0; i < Smem::kSourceTiles; ++i) {
          ptx::barrier_init(&smem.source_full()[i], 1);
          ptx::barrier_init(&smem.source_empty()[i], kEpilogueThreads);
        }
        ptx::barrier_init(&smem.load_order, 1);
      }
      if constexpr (kClusterK > 1) {
        ptx::barrier_init(&smem.exchange_full, 1);
        ptx::barrier_init(&smem.exchange_empty, kClusterK * kEpilogueThreads / 32);
      }
      ptx::barrier_init(&smem.tmem_dealloc, kCtaGroup * kEpilogueThreads);
      ptx::fence_barrier_init();
    }
    __syncwarp();  // What follows is .aligned.
    if constexpr (kClusterSize > 1) {
      ptx::cluster_sync();
    } else {
      __syncthreads();
    }
    // NOTE: nothing before this line reads or writes what an earlier kernel may still write or
    // read, or takes tensor memory that it may still ask for.
    ptx::dependent_launch_wait();
  }

  // ---- Scheduler ------------------------------------------------------------------------------

  using ClcState = PipelineState<Smem::kClcStages>;

  // Wait for the next launch-control answer and read it. False: there is no further tile.
  static __device__ __forceinline__ bool fetch_next_tile(Smem& smem, ClcState& state, int& index) {
    ptx::barrier_wait(&smem.clc_full[state.index], state.parity());
    std::uint32_t first_cta = 0;
    const bool obtained = ptx::clc_query(&smem.clc_response[state.index], first_cta);
    // NOTE: the next answer is written by the async proxy; this read must come before it.
    ptx::fence_async_shared();
    ptx::barrier_arrive_cluster(
        ptx::map_shared_rank(ptx::shared_address(&smem.clc_empty[state.index]), 0));
    state.advance();
    index = static_cast<int>(first_cta) / kClusterM;
    return obtained;
  }

  /// Ask launch control for the tile after the one that the main load has begun, so that no CTA
  /// hoards tiles. The answer goes to every CTA of the cluster.
  static __device__ __forceinline__ void request_next_tile(Smem& smem, bool leader,
                                                           ClcState& throttle, ClcState& request) {
    ptx::barrier_wait(&smem.throttle_full[throttle.index], throttle.parity());
    ptx::barrier_arrive(&smem.throttle_empty[throttle.index]);
    throttle.advance();

    ptx::barrier_wait(&smem.clc_empty[request.index], request.producer_parity());
    const std::uint32_t full = ptx::shared_address(&smem.clc_full[request.index]);
    if (ptx::lane_id() < kClusterSize) {
      ptx::barrier_arrive_expect_cluster(ptx::map_shared_rank(full, ptx::lane_id()),
                                         sizeof(ptx::ClcResponse));
    }
    // NOTE: no wait for those arrivals: a phase only ends when they and the answer have come.
    if (leader) {
      ptx::ClcResponse* response = &smem.clc_response[request.index];
      if constexpr (kClusterSize > 1) {
        ptx::clc_try_cancel_multicast(response, &smem.clc_full[request.index]);
      } else {
        ptx::clc_try_cancel(response, &smem.clc_full[request.index]);
      }
    }
    __syncwarp();
    request.advance();
  }

  /// In the cluster's first CTA ask for tiles; in every CTA of a launch that fills borders complete
  /// patches, while an answer is on its way.
  static __device__ __forceinline__ void scheduler_warp(const Params& params, Smem& smem,
                                                        const Place& at, int index) {
    const bool schedules = at.rank == 0;
    if (!schedules && !fills_border(params)) return;
    ClcState throttle, request, answer;
    [[maybe_unused]] BorderState border;
    const bool leader = ptx::elect_one();
    bool more = true;
    while (more) {
      if (schedules) request_next_tile(smem, leader, throttle, request);
      if constexpr (kHalo) {
        if (fills_border(params)) {
          complete_patches(params, smem, at, tile_of(params, at, index), border);
        }
      }
      more = fetch_next_tile(smem, answer, index);
    }
    if (!schedules) return;
    // Stay until every CTA has read the last answers: their arrivals come to this CTA's barriers.
    for (int i = 0; i < Smem::kClcStages; ++i) {
      ptx::barrier_wait(&smem.clc_empty[request.index], request.producer_parity());
      request.advance();
    }
  }

  // ---- Main load ------------------------------------------------------------------------------

  // Where the reduction stands: an atom of channels of a filter tap.
  struct KPosition {
    int channel_atom, s, r, t, tap;
    __device__ __forceinline__ KPosition(const Params& params, int atom)
        : channel_atom(atom), s(0), r(0), t(0), tap(0) {
      if (atom == 0) return;  // NOTE: for most tiles, and three divisions less.
      tap = atom / params.channel_atoms;
      const int row = tap / params.filter_extent[2];
      channel_atom = atom - tap * params.channel_atoms;
      s = tap - row * params.filter_extent[2];
      t = row / params.filter_extent[1];
      r = row - t * params.filter_extent[1];
    }
    // To the next atom; true: of another tap.
    __device__ __forceinline__ bool advance(const Params& params) {
      if (++channel_atom < params.channel_atoms) return false;
      channel_atom = 0;
      ++tap;
      if (++s == params.filter_extent[2]) {
        s = 0;
        if (++r == params.filter_extent[1]) {
          r = 0;
          ++t;
        }
      }
      return true;
    }
  };

  // First pixel of this CTA's slice of the activation tile, in coordinates of its descriptor.
  struct PixelStart {
    int w, h, d, n;
    int image;  // by frames: batch index
  };

  static __device__ __forceinline__ PixelStart pixel_start(const Params& params, const Tile& tile,
                                                           int row) {
    PixelStart start{
        .w = -params.pad[2], .h = -params.pad[1], .d = -params.pad[0], .n = -1, .image = -1};
    // A slice that begins beyond the last row reads image -1: zeros.
    const RowPixel pixel = pixel_of_row<kConfig.block_tile_shape.m>(params, row);
    if (!pixel.inside) return start;
    start.n = pixel.n;
    if (params.tiled_loads && params.row_groups != RowGroups::patches) {
      start.w = row;
      start.n = 0;
    } else {
      start.w += pixel.q * params.stride[2];
      start.h += pixel.p * params.stride[1];
    }
    if (params.row_groups == RowGroups::volumes) {
      start.n = pixel.n / params.out_extent[0];
      start.d += (pixel.n - start.n * params.out_extent[0]) * params.stride[0];
    } else if (by_frames(params)) {
      start.image = tile.group / params.out_extent[0];
      start.d += tile.group % params.out_extent[0] * params.stride[0];
    }
    return start;
  }

  // Input::halo: where the patch of a tile begins in its frame.
  static __device__ __forceinline__ PatchOrigin patch_origin(const Tile& tile,
                                                             const PixelStart& start) {
    return {start.h + (tile.phase >> 1), start.w + (tile.phase & 1)};
  }

  // Where the activation of filter depth `t` comes from: the map and its outermost coordinate; by
  // frames that of the one frame which the depth meets, in the padding -1 (zeros) or the frame that
  // it replicates or reflects.
  struct FrameSource {
    const CUtensorMap* map;
    int n;
  };

  static __device__ __forceinline__ FrameSource frame_source(const Params& params,
                                                             const PixelStart& start, int t) {
    FrameSource source{&params.activation_map, start.n};
    if (by_frames(params) && start.n >= 0) {
      const int seen = params.cached_frames + params.frames;
      int frame = start.d + t * params.dilation[0];
      if (frame < 0 || frame >= seen) {
        if (params.pad_mode[0] == PadMode::zero) return {source.map, -1};
        frame = inside(frame, seen, params.pad_mode[0]);
      }
      if (frame < params.cached_frames) {
        source.map = &params.cache_map;
        source.n = start.image * params.cached_frames + frame;
      } else {
        source.n = start.image * params.frames + frame - params.cached_frames;
      }
    }
    return source;
  }

  // The leader's barrier, at which the bytes of both CTAs of a pair are counted.
  static __device__ __forceinline__ std::uint32_t leader_barrier(const Place& at,
                                                                 ptx::Barrier* full) {
    if constexpr (kCtaGroup == 1) return ptx::shared_address(full);
    return ptx::map_shared_rank(ptx::shared_address(full), static_cast<std::uint32_t>(at.leader));
  }

  // Rings of the main load. Those without activations of their own have no use for `act`.
  struct Rings {
    InputState input;
    ActState act;
  };

  /// Load filter rows, channels of atom `atom` of a tap, into stage `stage`, counted at `full`.
  static __device__ __forceinline__ void load_filter_atom(const Params& params, Smem& smem,
                                                          const Place& at, const Tile& tile,
                                                          int atom, int tap, int stage,
                                                          ptx::Barrier* full) {
    ptx::tma_load_tiled_4d<kCtaGroup, false>(
        smem.filter_tiles(stage), &params.filter_map, leader_barrier(at, full), 0,
        ptx::kL2EvictLast, atom * kAtomK, tap,
        tile.filter + at.pair_rank * kConfig.block_tile_shape.n, tile.phase);
  }

  /// Load a box of activations into the next stage of their own ring: `bytes` from channel atom
  /// `atom`, pixel (w, h) of frame `n` on. `is_completed`: by this CTA's scheduler, which has a
  /// border to fill, or its normalisers. `with_rms`: the pixels' inverse RMS as well.
  static __device__ __forceinline__ void load_act_stage(const Params& params, Smem& smem,
                                                        const Place& at, bool leader, ActState& act,
                                                        const CUtensorMap* map, int bytes, int atom,
                                                        int w, int h, int n,
                                                        bool is_completed = false,
                                                        bool with_rms = false) {
    ptx::barrier_wait(&smem.act_empty[act.index], act.producer_parity());
    if (leader) {
      ptx::Barrier* full = &smem.act_full[act.index];
      std::uint32_t counted_at = leader_barrier(at, full);
      if (kNormalises || fills_border(params)) {
        // Each CTA announces its own bytes: to the pair's leader, or at home to who completes them.
        if (is_completed) counted_at = ptx::shared_address(&smem.act_loaded[act.index]);
        const int rms_bytes = kNormalises && with_rms ? params.inverse_rms_bytes : 0;
        ptx::barrier_arrive_expect_cluster(counted_at,
                                           static_cast<std::uint32_t>(bytes + rms_bytes));
      } else if (at.pair_rank == 0) {
        ptx::barrier_arrive_expect(full, static_cast<std::uint32_t>(kCtaGroup * bytes));
      }
      ptx::tma_load_tiled_4d<kCtaGroup, false>(smem.act_tiles(static_cast<int>(act.index)), map,
                                               counted_at, 0, ptx::kL2EvictNormal, atom * kAtomK, w,
                                               h, n);
      if constexpr (kNormalises) {
        if (with_rms) {
          ptx::tma_load_3d(smem.inverse_rms.values[act.index], &params.inverse_rms_map,
                           &smem.act_loaded[act.index], ptx::kL2EvictNormal, w & ~3, h, n);
        }
      }
    }
    __syncwarp();
    act.advance();
  }

  /// Input::halo, one tile: for each atom of channels the patch with its border, then the filter
  /// rows of each tap. `loaded(last)` is called after each of those.
  template <typename Loaded>
  static __device__ __forceinline__ void load_halo_tile(const Params& params, Smem& smem,
                                                        const Place& at, const Tile& tile,
                                                        bool leader, Rings& rings,
                                                        const Loaded& loaded) {
    const Depths depths = depths_of(params, tile);
    const PixelStart start = pixel_start(params, tile, tile.row);
    const PatchOrigin patch = patch_origin(tile, start);
    const bool is_completed = kNormalises || needs_border(params, patch);
    const int taps = params.filter_extent[1] * params.filter_extent[2];
    for (int t = depths.begin; t < depths.end; ++t) {
      const auto [map, n] = frame_source(params, start, t);
      const bool with_rms = kNormalises && params.prologue.norm == PrologueNorm::rms &&
                            is_normalised_here(params, {map, n});
      for (int atom = 0; atom < params.channel_atoms; ++atom) {
        load_act_stage(params, smem, at, leader, rings.act, map, params.halo_bytes, atom,
                       patch.column, patch.row, n, is_completed, with_rms);
        for (int tap = 0; tap < taps; ++tap) {
          InputState& input = rings.input;
          ptx::barrier_wait(&smem.input_empty[input.index], input.producer_parity());
          if (leader) {
            ptx::Barrier* full = &smem.input_full[input.index];
            if (at.pair_rank == 0) {
              ptx::barrier_arrive_expect(full, kCtaGroup * kConfig.filter_atom_bytes());
            }
            load_filter_atom(params, smem, at, tile, atom, t * taps + tap,
                             static_cast<int>(input.index), full);
            loaded(t == depths.end - 1 && atom == params.channel_atoms - 1 && tap == taps - 1);
          }
          __syncwarp();
          input.advance();
        }
      }
    }
  }

  /// Input::resident, one tile: its filters, where those there are others, then the activations.
  template <typename Loaded>
  static __device__ __forceinline__ void load_resident_tile(const Params& params, Smem& smem,
                                                            const Place& at, const Tile& tile,
                                                            bool leader, Rings& rings,
                                                            int& resident, const Loaded& loaded) {
    if (tile.filter != resident) {
      resident = tile.filter;
      ptx::barrier_wait(&smem.input_empty[0], rings.input.producer_parity());
      if (leader) {
        ptx::Barrier* full = &smem.input_full[0];
        if (at.pair_rank == 0) {
          ptx::barrier_arrive_expect(full,
                                     static_cast<std::uint32_t>(kCtaGroup * params.channel_atoms *
                                                                kConfig.filter_atom_bytes()));
        }
        for (int atom = 0; atom < params.channel_atoms; ++atom) {
          load_filter_atom(params, smem, at, tile, atom, 0, atom, full);
        }
      }
      __syncwarp();
      rings.input.advance();
    }
    const PixelStart start = pixel_start(params, tile, tile.row);
    for (int atom = 0; atom < params.channel_atoms; ++atom) {
      load_act_stage(params, smem, at, leader, rings.act, &params.activation_map,
                     kConfig.act_atom_bytes(), atom, start.w, start.h, start.n);
      if (leader) loaded(atom == params.channel_atoms - 1);
      __syncwarp();
    }
  }

  // How the rows of an activation tile come: boxes of pixels as they lie, im2col copies of frames,
  // or of volumes.
  enum class ActCopy { boxes, frames, volumes };

  // Where a tile's atoms come from: what changes with the filter tap, and what does not.
  struct InputSource {
    PixelStart start;
    FrameSource frame;
    int offset_w, offset_h;  // pixels from the first tap's to this one's
    int filter_row;
  };

  /// Load an atom of a pipeline stage, at reduction position `k`: this CTA's slices of the
  /// activation and of the filter rows, multicast to the CTAs that share them, counted at
  /// `full_barrier`.
  static __device__ __forceinline__ void load_input_tiles(
      const Params& params, Smem& smem, const Place& at, ActCopy copy, std::uint32_t full_barrier,
      int stage, int atom, const Tile& tile, const InputSource& source, const KPosition& k) {
    constexpr bool kActMulticast = kClusterN > 1;
    constexpr bool kFilterMulticast = kPairsM > 1;
    // Activations are shared along the cluster's N, filters along its M (by equal pair rank).
    std::uint16_t act_mask = 0, filter_mask = 0;
#pragma unroll
    for (int n = 0; n < kClusterN; ++n) act_mask |= 1u << (at.m + n * kClusterM);
#pragma unroll
    for (int pair = 0; pair < kPairsM; ++pair) {
      filter_mask |= 1u << (pair * kCtaGroup + at.pair_rank + at.n * kClusterM);
    }
    std::uint8_t* act = smem.act_tiles(stage) + atom * kConfig.act_atom_bytes() +
                        (kActMulticast ? at.n * kActSliceBytes : 0);
    std::uint8_t* filter = smem.filter_tiles(stage) + atom * kConfig.filter_atom_bytes() +
                           (kFilterMulticast ? at.m / kCtaGroup * kFilterSliceBytes : 0);
    const int channel = k.channel_atom * kAtomK;
    const PixelStart& start = source.start;
    const auto offset_w = static_cast<std::uint16_t>(source.offset_w);
    const auto offset_h = static_cast<std::uint16_t>(source.offset_h);
    if (copy == ActCopy::volumes) {
      ptx::tma_load_im2col_ndhwc<kCtaGroup, kActMulticast>(
          act, &params.activation_map, full_barrier, act_mask, ptx::kL2EvictNormal, channel,
          start.w, start.h, start.d, start.n, offset_w, offset_h,
          static_cast<std::uint16_t>(k.t * params.dilation[0]));
    } else if (copy == ActCopy::boxes) {
      ptx::tma_load_tiled_4d<kCtaGroup, kActMulticast>(
          act, source.frame.map, full_barrier, act_mask, ptx::kL2EvictNormal, channel,
          start.w + source.offset_w, start.h + source.offset_h, source.frame.n);
    } else {
      ptx::tma_load_im2col_nhwc<kCtaGroup, kActMulticast>(
          act, source.frame.map, full_barrier, act_mask, ptx::kL2EvictNormal, channel, start.w,
          start.h, source.frame.n, offset_w, offset_h);
    }
    ptx::tma_load_tiled_4d<kCtaGroup, kFilterMulticast>(filter, &params.filter_map, full_barrier,
                                                        filter_mask, ptx::kL2EvictLast, channel,
                                                        k.tap, source.filter_row, tile.phase);
  }

  /// Input::runs, one tile: its atoms, one k group after the other.
  // NOTE: a loop for each kind of copy, which computes taps and frames where they change: an atom
  // is multiplied in 128 to 256 cycles, and Hopper's loader took 400 to ask for all that at each.
  template <ActCopy kCopy, typename Loaded>
  static __device__ __forceinline__ void load_runs_tile(const Params& params, Smem& smem,
                                                        const Place& at, const Tile& tile,
                                                        bool leader, InputState& input,
                                                        const Loaded& loaded) {
    const AtomRange range = atoms_of(params, at, tile);
    KPosition k(params, range.first);
    InputSource source;
    source.start = pixel_start(params, tile, tile.row + at.n * kConfig.act_slice_rows());
    source.frame = frame_source(params, source.start, k.t);
    source.filter_row = tile.filter + at.pair_rank * kConfig.block_tile_shape.n +
                        at.m / kCtaGroup * kConfig.filter_slice_rows();
    const auto go_to_tap = [&] {
      source.offset_w = k.s * params.dilation[2] + (tile.phase & 1);
      source.offset_h = k.r * params.dilation[1] + (tile.phase >> 1);
    };
    go_to_tap();
    for (int left = range.count; left > 0; left -= kAtomsPerGroup) {
      const int atoms = min(left, kAtomsPerGroup);
      ptx::barrier_wait(&smem.input_empty[input.index], input.producer_parity());
      // The bytes of both CTAs of a pair are counted by its leader.
      ptx::Barrier* full = &smem.input_full[input.index];
      const std::uint32_t full_barrier = leader_barrier(at, full);
      if (leader && at.pair_rank == 0) {
        ptx::barrier_arrive_expect(full, kCtaGroup * kAtomBytes * atoms);
      }
      for (int atom = 0; atom < atoms; ++atom) {
        if (leader) {
          load_input_tiles(
              params, smem, at, kCopy, full_barrier,
              static_cast<int>(input.index) * kConfig.k_group_size + atom / kAtomsPerTile,
              atom % kAtomsPerTile, tile, source, k);
        }
        const int depth = k.t;
        if (k.advance(params)) {
          go_to_tap();
          if (kCopy != ActCopy::volumes && k.t != depth) {
            source.frame = frame_source(params, source.start, k.t);
          }
        }
      }
      if (leader) loaded(left <= kAtomsPerGroup);
      __syncwarp();
      input.advance();
    }
  }

  static __device__ __forceinline__ void main_load_warp(const Params& params, Smem& smem,
                                                        const Place& at, int index) {
    const bool leader = ptx::elect_one();
    Rings rings;
    ClcState throttle, answer;
    [[maybe_unused]] int resident = -1;
    bool first_tile = true;
    int prologue = kResident ? Smem::kActStages : Smem::kGroups;
    // Source tiles may be loaded once the ring is full, or the tile done, for the first time.
    const auto loaded = [&](bool last) {
      if (kWithResidual && first_tile && (--prologue == 0 || last)) {
        ptx::barrier_arrive(smem.load_order_barrier());
        first_tile = false;
      }
    };
    bool more = true;
    while (more) {
      if (at.rank == 0) {
        ptx::barrier_wait(&smem.throttle_empty[throttle.index], throttle.producer_parity());
        ptx::barrier_arrive(&smem.throttle_full[throttle.index]);
        throttle.advance();
      }
      const Tile tile = tile_of(params, at, index);
      if constexpr (kHalo) {
        load_halo_tile(params, smem, at, tile, leader, rings, loaded);
      } else if constexpr (kResident) {
        load_resident_tile(params, smem, at, tile, leader, rings, resident, loaded);
      } else if (params.row_groups == RowGroups::volumes) {
        load_runs_tile<ActCopy::volumes>(params, smem, at, tile, leader, rings.input, loaded);
      } else if (params.tiled_loads) {
        load_runs_tile<ActCopy::boxes>(params, smem, at, tile, leader, rings.input, loaded);
      } else {
        load_runs_tile<ActCopy::frames>(params, smem, at, tile, leader, rings.input, loaded);
      }
      more = fetch_next_tile(smem, answer, index);
    }
    // Stay until the MMAs have read everything: commits of other CTAs come to this CTA's barriers.
    for (int i = 0; i < Smem::kGroups; ++i) {
      ptx::barrier_wait(&smem.input_empty[rings.input.index], rings.input.producer_parity());
      rings.input.advance();
    }
    for (int i = 0; kConfig.has_act_ring() && i < Smem::kActStages; ++i) {
      ptx::barrier_wait(&smem.act_empty[rings.act.index], rings.act.producer_parity());
      rings.act.advance();
    }
  }

  // ---- Borders --------------------------------------------------------------------------------

  // Where the ring of patches stands for who completes some of them.
  struct BorderState {
    ActState act;
    std::uint32_t parities = 0;  // of act_loaded, a bit a stage: not every patch passes there
  };

  /// Complete the patches of a tile of this CTA if they reach outside the input, each between the
  /// main load, which decides alike, and the MMAs. A whole warp.
  static __device__ __forceinline__ void complete_patches(const Params& params, Smem& smem,
                                                          const Place& at, const Tile& tile,
                                                          BorderState& border) {
    const Depths depths = depths_of(params, tile);
    const int patches = (depths.end - depths.begin) * params.channel_atoms;
    const PatchOrigin patch = patch_origin(tile, pixel_start(params, tile, tile.row));
    if (!needs_border(params, patch)) {
      border.act.advance(static_cast<std::uint32_t>(patches));
      return;
    }
    const int lane = static_cast<int>(ptx::lane_id());
    for (int i = 0; i < patches; ++i) {
      const std::uint32_t stage = border.act.index;
      ptx::barrier_wait(&smem.act_loaded[stage], border.parities >> stage & 1);
      border.parities ^= 1u << stage;
      fill_border(params, patch, kConfig.a_swizzle, smem.act_tiles(static_cast<int>(stage)), lane);
      // NOTE: the MMAs read through the async proxy, those that a pair's leader issues as well.
      ptx::fence_async_shared();
      __syncwarp();
      if (lane == 0) ptx::barrier_arrive_cluster(leader_barrier(at, &smem.act_full[stage]));
      border.act.advance();
    }
  }

  // ---- Normalisers ----------------------------------------------------------------------------

  /// Call `body`, a template on the element type of the input.
  template <typename Body>
  static __device__ __forceinline__ void with_input_type(const Params& params, const Body& body) {
    with_either_half<std::conditional_t<kBf16, __nv_bfloat16, __half>, kBf16>(params.is_fp16, body);
  }

  // Frames of the cache are normalised already; in the padding there are zeros behind the norm.
  static __device__ __forceinline__ bool is_normalised_here(const Params& params,
                                                            const FrameSource& source) {
    return source.n >= 0 && source.map == &params.activation_map;
  }

  /// Two warpgroups: apply the prologue to every patch of this CTA's tiles, a pixel here, a pixel
  /// there, between the main load and the MMAs; the first warp of them also fills the border.
  static __device__ __forceinline__ void normaliser_warps(const Params& params, Smem& smem,
                                                          const Place& at, int worker, int index) {
    const int lane = static_cast<int>(ptx::lane_id());
    const NormaliserLane me = normaliser_lane<kNormaliserWarps>(params, worker, lane);
    const bool by_rms = params.prologue.norm == PrologueNorm::rms;
    ActState act;
    ClcState answer;
    bool more = true;
    while (more) {
      const Tile tile = tile_of(params, at, index);
      const Depths depths = depths_of(params, tile);
      const PixelStart start = pixel_start(params, tile, tile.row);
      const PatchOrigin patch = patch_origin(tile, start);
      const bool has_border = needs_border(params, patch);
      for (int t = depths.begin; t < depths.end; ++t) {
        const bool here = is_normalised_here(params, frame_source(params, start, t));
        for (int atom = 0; atom < params.channel_atoms; ++atom) {
          const int channel = atom * kAtomK + me.unit * 8;
          const bool works = here && channel < params.channels;
          ChannelFactors<8> factors;
          // NOTE: before the patch is there.
          if (works) {
            const std::int64_t image = by_rms ? 0 : start.image;
            factors.load(params.prologue, image * params.channels + channel);
          }
          std::uint8_t* const stage = smem.act_tiles(static_cast<int>(act.index));
          const float* const inverse_rms = smem.inverse_rms.values[act.index];
          ptx::barrier_wait(&smem.act_loaded[act.index], act.parity());
          if (works) {
            with_input_type(params, [&]<typename Element>() {
              normalise_patch<Element, true>(params, patch, me, factors, stage, by_rms,
                                             inverse_rms);
            });
          }
          if (has_border) {
            __syncwarp();  // What follows is .aligned.
            ptx::named_barrier_sync(kNormalisedBarrier, kNormaliserThreads);
            if (worker == 0) fill_border(params, patch, kConfig.a_swizzle, stage, lane);
          }
          // NOTE: the MMAs read through the async proxy.
          ptx::fence_async_shared();
          __syncwarp();
          if (lane == 0) {
            ptx::barrier_arrive_cluster(leader_barrier(at, &smem.act_full[act.index]));
          }
          act.advance();
        }
      }
      more = fetch_next_tile(smem, answer, index);
    }
  }

  // ---- MMA ------------------------------------------------------------------------------------

  // Accumulator of the tile being multiplied.
  struct Accumulation {
    std::uint32_t address;  // in tensor memory
    std::uint32_t instruction;
    bool accumulate = false;  // The first MMA of a tile initialises the accumulator.
    int channel_atom = 0;     // of the next atom
    // Every atom has kAtomK channels. NOTE: mma_warp has a loop for either, since an atom is
    // multiplied in 128 to 256 cycles.
    bool whole = false;
  };

  /// The instruction descriptor of the MMAs.
  static __device__ __forceinline__ std::uint32_t instruction_of(const Params& params) {
    const bool is_bf16 = kBf16 && !params.is_fp16;
    return ptx::mma_instruction(is_bf16, kConfig.mma_shape.m, kConfig.mma_shape.n);
  }

  /// Multiply `channels` channels of an atom: operands at descriptors `act` and `filter`.
  static __device__ __forceinline__ void multiply_atom(std::uint64_t act, std::uint64_t filter,
                                                       int channels, Accumulation& to) {
#pragma unroll
    for (int k = 0; k < kAtomK; k += kConfig.mma_shape.k) {
      if (!to.whole && k >= channels) break;
      // NOTE: within a swizzle span the operand address simply advances by the bytes of k.
      ptx::mma_f16<kCtaGroup>(to.address, ptx::descriptor_behind(act, 2 * k),
                              ptx::descriptor_behind(filter, 2 * k), to.instruction, to.accumulate);
      to.accumulate = true;
    }
  }

  /// Channels of the next atom: those beyond C are zero in both operands and need no MMA.
  static __device__ __forceinline__ int next_channels(const Params& params, Accumulation& to) {
    if (to.whole || ++to.channel_atom < params.channel_atoms) return kAtomK;
    to.channel_atom = 0;
    return params.last_atom_channels;
  }

  /// Multiply one pipeline stage into the accumulator.
  static __device__ __forceinline__ void mma(const Params& params, std::uint64_t act_operand,
                                             std::uint64_t filter_operand, int stage, int atoms,
                                             Accumulation& to) {
    for (int atom = 0; atom < atoms; ++atom) {
      const int act = stage * kConfig.act_tile_bytes() + atom * kConfig.act_atom_bytes();
      const int filter = stage * kConfig.filter_tile_bytes() + atom * kConfig.filter_atom_bytes();
      const int channels = next_channels(params, to);
      multiply_atom(ptx::descriptor_behind(act_operand, static_cast<std::uint32_t>(act)),
                    ptx::descriptor_behind(filter_operand, static_cast<std::uint32_t>(filter)),
                    channels, to);
    }
  }

  /// Input::halo, one tile: the taps slide over each patch. Rows of the tile are pixels of the
  /// patch, in groups of 8 neighbours, one group a row of the patch.
  static __device__ __forceinline__ void multiply_halo_tile(
      const Params& params, Smem& smem, const Tile& tile, bool leader, std::uint16_t mask,
      Rings& rings, std::uint64_t filter_operand, Accumulation& to, ptx::Barrier* accum_full,
      std::uint16_t accum_mask) {
    const Depths depths = depths_of(params, tile);
    const int blocks = (depths.end - depths.begin) * params.channel_atoms;
    const std::uint64_t patch = ptx::mma_operand<kConfig.a_swizzle>(
        ptx::shared_address(smem.act_tiles()), static_cast<std::uint32_t>(params.halo_width) * 128);
    const auto row_bytes = static_cast<std::uint32_t>(params.dilation[1] * params.halo_width) * 128;
    const auto column_bytes = static_cast<std::uint32_t>(params.dilation[2]) * 128;
    for (int block = 0; block < blocks; ++block) {
      const int channels = next_channels(params, to);
      ptx::barrier_wait(&smem.act_full[rings.act.index], rings.act.parity());
      std::uint64_t row = ptx::descriptor_behind(patch, rings.act.index * kConfig.act_tile_bytes());
      for (int r = 0; r < params.filter_extent[1]; ++r) {
        std::uint64_t pixel = row;
        for (int s = 0; s < params.filter_extent[2]; ++s) {
          InputState& input = rings.input;
          ptx::barrier_wait(&smem.input_full[input.index], input.parity());
          ptx::tmem_fence_after_sync();
          if (leader) {
            multiply_atom(
                pixel,
                ptx::descriptor_behind(filter_operand, input.index * kConfig.filter_tile_bytes()),
                channels, to);
            commit(&smem.input_empty[input.index], mask);
          }
          __syncwarp();
          input.advance();
          pixel = ptx::descriptor_behind(pixel, column_bytes);
        }
        row = ptx::descriptor_behind(row, row_bytes);
      }
      if (leader) {
        commit(&smem.act_empty[rings.act.index], mask);
        if (block == blocks - 1) commit(accum_full, accum_mask);
      }
      __syncwarp();
      rings.act.advance();
    }
  }

  /// Input::resident, one tile: `resident` are the filters that are there.
  static __device__ __forceinline__ void multiply_resident_tile(
      const Params& params, Smem& smem, const Tile& tile, bool leader, std::uint16_t mask,
      Rings& rings, int& resident, std::uint64_t act_operand, std::uint64_t filter_operand,
      Accumulation& to, ptx::Barrier* accum_full, std::uint16_t accum_mask) {
    if (tile.filter != resident) {
      if (resident >= 0) give_back_filters(smem, leader, mask, rings.input);
      resident = tile.filter;
      ptx::barrier_wait(&smem.input_full[0], rings.input.parity());
    }
    for (int atom = 0; atom < params.channel_atoms; ++atom) {
      const bool last = atom == params.channel_atoms - 1;
      ptx::barrier_wait(&smem.act_full[rings.act.index], rings.act.parity());
      ptx::tmem_fence_after_sync();
      if (leader) {
        multiply_atom(
            ptx::descriptor_behind(act_operand, rings.act.index * kConfig.act_tile_bytes()),
            ptx::descriptor_behind(filter_operand,
                                   static_cast<std::uint32_t>(atom * kConfig.filter_tile_bytes())),
            last ? params.last_atom_channels : kAtomK, to);
        commit(&smem.act_empty[rings.act.index], mask);
        if (last) commit(accum_full, accum_mask);
      }
      __syncwarp();
      rings.act.advance();
    }
  }

  /// Input::runs, one tile: `atoms` atoms, one k group after the other.
  static __device__ __forceinline__ void multiply_runs_tile(
      const Params& params, Smem& smem, int atoms, bool leader, std::uint16_t mask,
      InputState& input, std::uint64_t act_operand, std::uint64_t filter_operand, Accumulation& to,
      ptx::Barrier* accum_full, std::uint16_t accum_mask) {
    for (int left = atoms; left > 0; left -= kAtomsPerGroup) {
      const int group = min(left, kAtomsPerGroup);
      ptx::barrier_wait(&smem.input_full[input.index], input.parity());
      // Orders the MMAs after both waits: the operands are there, the accumulator is free.
      ptx::tmem_fence_after_sync();
      if (leader) {
        for (int tile_k = 0; tile_k < kConfig.k_group_size; ++tile_k) {
          const int stage = static_cast<int>(input.index) * kConfig.k_group_size + tile_k;
          mma(params, act_operand, filter_operand, stage,
              min(group - tile_k * kAtomsPerTile, kAtomsPerTile), to);
        }
        commit(&smem.input_empty[input.index], mask);
        if (left <= kAtomsPerGroup) commit(accum_full, accum_mask);
      }
      __syncwarp();
      input.advance();
    }
  }

  // When the MMAs so far are done, others may be loaded.
  static __device__ __forceinline__ void give_back_filters(Smem& smem, bool leader,
                                                           std::uint16_t mask, InputState& input) {
    if (leader) commit(&smem.input_empty[0], mask);
    __syncwarp();
    input.advance();
  }

  // CTAs that a commit tells: every one that loads into this pair, those of its rows and filters,
  // of a free input stage; the pair's of a full accumulator.
  struct CommitMasks {
    std::uint16_t input = 0, accum = 0;
  };

  static __device__ __forceinline__ CommitMasks commit_masks(const Place& at) {
    CommitMasks masks;
#pragma unroll
    for (int n = 0; n < kClusterN; ++n) {
#pragma unroll
      for (int m = 0; m < kClusterM; ++m) {
        const bool same_rows = m / kCtaGroup == at.m / kCtaGroup;
        const std::uint16_t cta = 1u << (m + n * kClusterM);
        if (same_rows || n == at.n) masks.input |= cta;
        if (same_rows && n == at.n) masks.accum |= cta;
      }
    }
    masks.input <<= at.k * kClusterM * kClusterN;
    masks.accum <<= at.k * kClusterM * kClusterN;
    return masks;
  }

  static __device__ __forceinline__ void mma_warp(const Params& params, Smem& smem, const Place& at,
                                                  int index) {
    ptx::tmem_allocate<kCtaGroup, kTmemColumns>(&smem.tmem_address);
    // NOTE: not before: a CTA of the next kernel that shares this SM could take tensor memory and
    // keep it until this grid has ended, which would wait for it.
    ptx::dependent_launch_trigger();
    ptx::named_barrier_arrive(kHandOverBarrier, kHandOverThreads);
    const std::uint32_t tmem = *static_cast<volatile std::uint32_t*>(&smem.tmem_address);

    const CommitMasks masks = commit_masks(at);
    const bool issues = at.pair_rank == 0;
    const bool leader = ptx::elect_one();
    const std::uint64_t act_operand =
        ptx::mma_operand<kConfig.a_swizzle>(ptx::shared_address(smem.act_tiles(0)));
    const std::uint64_t filter_operand =
        ptx::mma_operand<kConfig.b_swizzle>(ptx::shared_address(smem.filter_tiles(0)));
    Rings rings;
    [[maybe_unused]] int resident = -1;
    PipelineState<Smem::kAccumStages> accum;
    ClcState answer;
    bool more = true;
    while (more) {
      if (issues) {
        // NOTE: not the producer's parity: the epilogue hands every stage over once at the start,
        // which also tells that both CTAs of the pair have their tensor memory.
        ptx::barrier_wait(&smem.accum_empty[accum.index], accum.parity());
        const Tile tile = tile_of(params, at, index);
        const AtomRange range = atoms_of(params, at, tile);
        Accumulation accumulation{
            .address =
                tmem + accum.index * static_cast<std::uint32_t>(kConfig.accum_stage_columns()),
            .instruction = instruction_of(params),
            .channel_atom = kClusterK == 1 ? 0 : range.first % params.channel_atoms};
        ptx::Barrier* accum_full = &smem.accum_full[accum.index];
        const bool whole = params.last_atom_channels == kAtomK;
        const auto multiply_tile = [&](auto is_whole) {
          accumulation.whole = is_whole;
          if constexpr (kHalo) {
            multiply_halo_tile(params, smem, tile, leader, masks.input, rings, filter_operand,
                               accumulation, accum_full, masks.accum);
          } else if constexpr (kResident) {
            multiply_resident_tile(params, smem, tile, leader, masks.input, rings, resident,
                                   act_operand, filter_operand, accumulation, accum_full,
                                   masks.accum);
          } else {
            multiply_runs_tile(params, smem, range.count, leader, masks.input, rings.input,
                               act_operand, filter_operand, accumulation, accum_full, masks.accum);
          }
        };
        if (whole && !kResident) {
          multiply_tile(std::true_type{});
        } else {
          multiply_tile(std::false_type{});
        }
        accum.advance();
      }
      more = fetch_next_tile(smem, answer, index);
    }
    if constexpr (kResident) {
      if (resident >= 0) give_back_filters(smem, leader, masks.input, rings.input);
    }
    // Stay until every stage has been handed back: the other CTA's epilogue arrives here.
    // NOTE: the wait below does not imply it: PTX orders arrivals at two barriers with nothing.
    if (issues) {
      for (int i = 0; i < Smem::kAccumStages; ++i) {
        ptx::barrier_wait(&smem.accum_empty[accum.index], accum.parity());
        accum.advance();
      }
    }
    // Free the tensor memory when both epilogues of the pair have read it.
    ptx::barrier_wait(&smem.tmem_dealloc, 0);
    ptx::tmem_fence_after_sync();
    ptx::tmem_free<kCtaGroup, kTmemColumns>(tmem);
  }

  static __device__ __forceinline__ void commit(ptx::Barrier* barrier, std::uint16_t mask) {
    if constexpr (kClusterSize == 1) {
      ptx::mma_commit_local(barrier);
    } else {
      ptx::mma_commit<kCtaGroup>(barrier, mask);
    }
  }

  // ---- Epilogue load --------------------------------------------------------------------------

  static __device__ __forceinline__ void epilogue_load_warp(const Params& params, Smem& smem,
                                                            const Place& at, int index) {
    if constexpr (kWithResidual) {
      const bool leader = ptx::elect_one();
      PipelineState<Smem::kSourceTiles> source;
      ClcState answer;
      ptx::barrier_wait(smem.load_order_barrier(), 0);
      bool more = true;
      while (more) {
        const Tile tile = output_tile(at, tile_of(params, at, index));
        if (params.tma_store) {
          const typename Epilogue::TileStart start = Epilogue::tile_start(params, tile);
          for (int step = 0; step < kConfig.epilogue_steps(); ++step) {
            ptx::barrier_wait(&smem.source_empty()[source.index], source.producer_parity());
            if (leader) {
              ptx::Barrier* full = &smem.source_full()[source.index];
              ptx::barrier_arrive_expect(full, kConfig.output_stage_bytes());
              Epilogue::load_source_tiles(params, tile, start, step,
                                          smem.src_tiles(static_cast<int>(source.index)), full);
            }
            __syncwarp();
            source.advance();
          }
        }
        more = fetch_next_tile(smem, answer, index);
      }
    }
  }

  // ---- Epilogue -------------------------------------------------------------------------------

  // The rows of a tile that this CTA finishes: all, or its share where the reduction is split.
  static __device__ __forceinline__ Tile output_tile(const Place& at, Tile tile) {
    if constexpr (kClusterK > 1) tile.row += at.k * kConfig.output_tile_shape.m;
    return tile;
  }

  static __device__ __forceinline__ void epilogue_warps(const Params& params, Smem& smem,
                                                        const Place& at, int index,
                                                        const ComputeOp& compute,
                                                        const StoreOp& store) {
    ptx::named_barrier_sync(kHandOverBarrier, kHandOverThreads);
    const std::uint32_t tmem = *static_cast<volatile std::uint32_t*>(&smem.tmem_address);
    const auto arrive_empty = [&](std::uint32_t stage) {
      if constexpr (kCtaGroup == 1) {
        ptx::barrier_arrive(&smem.accum_empty[stage]);
      } else {
        ptx::barrier_arrive_cluster(ptx::map_shared_rank(
            ptx::shared_address(&smem.accum_empty[stage]), static_cast<std::uint32_t>(at.leader)));
      }
    };
    // Hand every stage over once: the tensor memory of this CTA is there.
    for (int stage = 0; stage < Smem::kAccumStages; ++stage) {
      arrive_empty(static_cast<std::uint32_t>(stage));
    }
    PipelineState<Smem::kAccumStages> accum;
    ClcState answer;
    typename Epilogue::State state;
    bool more = true;
    while (more) {
      const Tile tile = output_tile(at, tile_of(params, at, index));
      ptx::barrier_wait(&smem.accum_full[accum.index], accum.parity());
      ptx::tmem_fence_after_sync();
      const std::uint32_t accumulator =
          tmem + accum.index * static_cast<std::uint32_t>(kConfig.accum_stage_columns());
      const auto release = [&] {
        ptx::tmem_fence_before_sync();
        arrive_empty(accum.index);
      };
      if constexpr (kClusterK > 1) {
        Epilogue::write_split_tile(params, smem, tile, {at.k, at.m, kClusterM}, accumulator, state,
                                   compute, store, release);
      } else {
        Epilogue::write_tile(params, smem, tile, accumulator, state, compute, store, release);
      }
      accum.advance();
      more = fetch_next_tile(smem, answer, index);
    }
    // Tell both CTAs of the pair that this thread is done with the tensor memory. Its last load was
    // fenced when the stage was handed back.
    for (int peer = 0; peer < kCtaGroup; ++peer) {
      ptx::barrier_arrive_cluster(ptx::map_shared_rank(
          ptx::shared_address(&smem.tmem_dealloc), static_cast<std::uint32_t>(at.leader + peer)));
    }
    // Stay until the other CTAs have told that they read their last parts.
    if constexpr (kClusterK > 1) {
      ptx::barrier_wait(&smem.exchange_empty, state.exchange_phase ^ 1u);
    }
    // Output tiles are read from shared memory by the last stores.
    if (threadIdx.x == 0) ptx::tma_store_wait_read<0>();
  }

  // ---- The kernel -----------------------------------------------------------------------------

  static __device__ __forceinline__ void body(const Params& params, const ComputeOp& compute,
                                              const StoreOp& store) {
    extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
    Smem& smem = *reinterpret_cast<Smem*>(shared_bytes);
    const Place at = place();
    const std::uint32_t warp = ptx::warp_id();
    const int first_tile = static_cast<int>(blockIdx.x) / kClusterM;

    init_barriers(params, smem);
    if constexpr (kNormalises) {
      if (warp >= kNormaliser) {
        ptx::set_max_registers_decrease<kNormaliserRegisters>();
        normaliser_warps(params, smem, at, static_cast<int>(warp) - kNormaliser, first_tile);
        return;
      }
      if (warp < kScheduler) {
        ptx::set_max_registers_increase<kEpilogueRegisters>();
      } else {
        ptx::set_max_registers_decrease<kSingleRegisters>();
      }
    }
    if (warp < kScheduler) {
      epilogue_warps(params, smem, at, first_tile, compute, store);
    } else if (warp == kScheduler) {
      scheduler_warp(params, smem, at, first_tile);
    } else if (warp == kMainLoad) {
      main_load_warp(params, smem, at, first_tile);
    } else if (warp == kMma) {
      mma_warp(params, smem, at, first_tile);
    } else {
      epilogue_load_warp(params, smem, at, first_tile);
    }
  }
};

template <std::uint64_t kTiles, std::uint64_t kPipeline>
inline constexpr int kThreads = unpack({kTiles, kPipeline}).threads();

/// Entry points, which share one body: D = compute(Conv(A, B)), and the same + beta·C.
template <std::uint64_t kTiles, std::uint64_t kPipeline, typename ComputeOp, typename StoreOp>
__global__ void __launch_bounds__(kThreads<kTiles, kPipeline>, 1)
    conv2d_fprop_run(const __grid_constant__ Params params,
                     const __grid_constant__ ComputeOp compute,
                     const __grid_constant__ StoreOp store) {
  Conv2dFpropKernel<kTiles, kPipeline, ComputeOp, StoreOp, false>::body(params, compute, store);
}

template <std::uint64_t kTiles, std::uint64_t kPipeline, typename ComputeOp, typename StoreOp>
__global__ void __launch_bounds__(kThreads<kTiles, kPipeline>, 1)
    conv2d_fprop_run_with_residual(const __grid_constant__ Params params,
                                   const __grid_constant__ ComputeOp compute,
                                   const __grid_constant__ StoreOp store) {
  Conv2dFpropKernel<kTiles, kPipeline, ComputeOp, StoreOp, true>::body(params, compute, store);
}

}  // namespace convoy::sm100
