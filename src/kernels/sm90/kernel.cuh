// SPDX-License-Identifier: Apache-2.0
//
// Implicit-GEMM forward convolution for Hopper: persistent, warp-specialised, TMA in, WGMMA, TMA
// out. M = output pixels, N = filters, K = channels x taps; bf16 / fp16 in, fp32 accumulation.
// docs/kernels-sm90.md walks through this file with drawings.
//
//   warp 0          loads activation tiles                 full/empty barriers of ring A
//   warp 1          loads filter tiles                     full/empty barriers of ring B
//                   (CTAs of a cluster share one of the two: each multicasts its slice)
//   warp 2          completes patches at the border, where padding replicates or reflects
//   warps 4..       consumer warpgroups: wgmma, then the epilogue of their 64-row blocks,
//                   each warp storing pieces of 16 rows by TMA from its own staging buffers
//   behind them     where Input::normalised: a warpgroup that normalises every patch
//
// The K loop is: for each temporal tap that meets real frames, for each block of 64 channels, for
// each spatial tap. With the halo loader one A stage serves all spatial taps of a channel block:
// the wgmma descriptors slide over it. With strides it serves those taps that fall on its plane.
#pragma once

#include "kernels/common/border.cuh"
#include "kernels/common/normalise.cuh"
#include "kernels/common/pipeline.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/sm90/config.hpp"
#include "kernels/sm90/epilogue.cuh"
#include "kernels/sm90/epilogue_swapped.cuh"
#include "kernels/sm90/smem.cuh"
#include "kernels/sm90/statistics.cuh"
#include "kernels/sm90/tile.cuh"
#include "kernels/sm90/trace.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace convoy::sm90 {

template <Config kConfig, EpiloguePath kPath, typename ComputeOp, typename StoreOp>
struct Kernel {
  using Smem = sm90::Smem<kConfig>;
  using Mma = Wgmma<Element<kConfig.in>, kConfig.tile_columns()>;
  using ActState = PipelineState<Smem::kActStages>;
  using FilterState = PipelineState<Smem::kFilterStages>;
  using Statistics = WarpStatistics<kConfig, kPath>;

  static constexpr int kBlocks = kConfig.blocks();
  static constexpr int kClusterM = kConfig.cluster_m;
  static constexpr int kClusterN = kConfig.cluster_n;
  static constexpr int kClusterSize = kConfig.cluster_size();
  static constexpr bool kSplit = kConfig.splits_k();
  static constexpr bool kPingpong = kConfig.is_pingpong();
  static constexpr bool kBlockwise = kConfig.is_blockwise();
  static constexpr bool kSwapped = kConfig.is_swapped();
  static constexpr bool kHalo = kConfig.has_halo();
  static constexpr bool kPlanes = kConfig.has_planes();
  static constexpr bool kResident = kConfig.is_resident();
  static constexpr bool kActRing = kConfig.has_act_ring();
  static constexpr bool kMatrix = kConfig.is_matrix();
  static constexpr bool kFillsBorder = kConfig.fills_border();
  static constexpr bool kNormalises = kConfig.normalises();
  static constexpr int kFirstNormaliser = 4 + kConfig.consumer_warps();
  // Rows of a tile that each CTA of a cluster loads for all.
  static constexpr int kActSlice = kConfig.block_m / kClusterN;
  static constexpr int kFilterSlice = kConfig.block_n / kClusterM;
  static_assert(!kSwapped || kPath != EpiloguePath::general,
                "EpiloguePath::general wants neighbouring filters, as ops do; swapped tiles hold "
                "neighbouring pixels");

  // NOTE: measured: these gain by it (the short loop of runs, spills of 128x192 and 256x96 halo
  // tiles, the reads of general kernels); others spill by it (256x64 halo, fused).
  static constexpr bool kKeepsBase =
      !kHalo || kPath == EpiloguePath::general || kConfig.needs_many_registers();

  // Threads that come to the named barriers of set-up.
  static constexpr int kReadyThreads = 96 + 128 * kConfig.consumers;
  static constexpr int kStagesReadyThreads = 64;
  static constexpr int kBorderReadyThreads = 64;
  static constexpr int kNormaliserReadyThreads = 32 + 32 * kNormaliserWarps;

  /// Bias of a tile as a thread keeps it.
  static constexpr int kBiases = kSwapped ? 2 * kBlocks : kBiasWords<kConfig>;
  using Accumulators = float[kBlocks][kConfig.tile_columns() / 2];

  /// Where a warp stands, and which tiles are its CTA's.
  struct Place {
    int warp, lane;
    int cluster_size;      // CTAs; with split K what the launch says
    int cta_rank, m_rank;  // in the cluster, and where its CTAs have different tiles (else 0)
    int first_index, index_step;
  };

  static __device__ __forceinline__ Place place(const Params& p) {
    Place at;
    at.warp = static_cast<int>(ptx::warp_id());
    at.lane = static_cast<int>(ptx::lane_id());
    at.cluster_size = kSplit ? static_cast<int>(ptx::cluster_size()) : kClusterSize;
    at.cta_rank = kSplit || kClusterSize > 1 ? static_cast<int>(ptx::cluster_cta_rank()) : 0;
    at.m_rank = kSplit ? 0 : at.cta_rank;
    at.first_index = static_cast<int>(kSplit ? ptx::cluster_id_x() : blockIdx.x / kClusterSize);
    // Split tiles get a cluster each.
    at.index_step = kSplit ? p.num_cluster_tiles : static_cast<int>(gridDim.x / kClusterSize);
    return at;
  }

  /// Spatial taps.
  static __device__ __forceinline__ int taps_of(const Params& p) {
    return kMatrix ? 1 : p.filter[1] * p.filter[2];
  }

  /// Some patches are completed between the loader and the consumers.
  static __device__ __forceinline__ bool completes_patches(const Params& p) {
    return kFillsBorder && (p.fills_border || kNormalises);
  }

  // ---- Set-up ---------------------------------------------------------------------------------

  /// Prefetch the descriptors and initialise the barriers.
  // NOTE: set-up is on the critical path of small layers. Warp 0 initialises what its first loads
  // need and goes on without waiting for anybody; the others hear of the barriers when they need
  // them. An initialisation takes its thread some 25 cycles, so warp 1 has half of them. One thread
  // each: addresses that differ by lane become a loop of some 70 cycles a barrier.
  static __device__ __forceinline__ void setup(const Params& p, const Smem& smem, const Place& at) {
    if (at.warp == 0) {
      if (ptx::elect_one()) {
        ptx::prefetch_tensor_map(&p.activation_map);
        for (int i = 0; kActRing && i < Smem::kActStages; ++i) {
          ptx::barrier_init(&smem.act_full[i], kNormalises ? kNormaliserWarps : 1);
        }
        for (int i = 0; i < Smem::kFilterStages; ++i) {
          // Without a ring of their own activation tiles share the stages: both loaders arrive.
          ptx::barrier_init(&smem.filter_full[i], kActRing ? 1 : 2);
        }
        if (completes_patches(p)) {
          for (int i = 0; i < Smem::kActStages; ++i) ptx::barrier_init(&smem.act_loaded[i], 1);
        }
        ptx::fence_barrier_init();
      }
      __syncwarp();
      if constexpr (kClusterSize == 1) {
        ptx::named_barrier_arrive(kReadyBarrier, kReadyThreads);
        if (completes_patches(p)) {
          ptx::named_barrier_arrive(kPatchReadyBarrier,
                                    kNormalises ? kNormaliserReadyThreads : kBorderReadyThreads);
        }
      }
    } else if (at.warp == 1) {
      if (ptx::elect_one()) {
        ptx::prefetch_tensor_map(&p.filter_map);
        for (int i = 0; kActRing && i < Smem::kActStages; ++i) {
          ptx::barrier_init(&smem.act_empty[i], kConfig.reading_warps());
        }
        for (int i = 0; i < Smem::kFilterStages; ++i) {
          ptx::barrier_init(&smem.filter_empty[i], kConfig.reading_warps() * kClusterSize);
        }
        // TMA does not arrive on them, other CTAs may.
        if constexpr (kClusterSize > 1) ptx::fence_barrier_init();
      }
      __syncwarp();
      if constexpr (kClusterSize == 1) ptx::named_barrier_arrive(kReadyBarrier, kReadyThreads);
    } else if (at.warp == 3) {
      if (ptx::elect_one()) {
        ptx::prefetch_tensor_map(&p.output_map[0]);
        if (kPath != EpiloguePath::linear && kPath != EpiloguePath::plain &&
            p.epilogue.has_residual) {
          ptx::prefetch_tensor_map(&p.source_map[0]);
          for (int i = 0; i < Smem::kSources; ++i) ptx::barrier_init(&smem.source_full[i], 1);
          ptx::fence_barrier_init();
        }
      }
      __syncwarp();
      if constexpr (kClusterSize == 1) ptx::named_barrier_arrive(kReadyBarrier, kReadyThreads);
    }
    // With a cluster its barrier tells everybody, in both CTAs.
    if constexpr (kClusterSize > 1) ptx::cluster_arrive_relaxed();
  }

  /// The usual first loads, while the other warps get ready; how many stages they fill.
  // NOTE: issued here, by one thread, from code that follows the set-up: the loaders' own lies
  // elsewhere, and comes from device memory in a fresh kernel.
  // NOTE: with a cluster each CTA loads all of its first tiles itself: what is multicast must wait
  // until the other CTA is there.
  static __device__ __forceinline__ int preload(const Params& p, const Smem& smem, const Place& at,
                                                const Tile& tile) {
    const int preloaded = kSplit || kPlanes ? 0 : p.preloaded;
    if (preloaded > 0 && at.warp == 0) {
      if (ptx::elect_one()) {
        Trace{p}.load();
        if constexpr (kHalo)
          load_halo(p, smem, tile, {&p.activation_map, tile.frame, false}, 0, 0, 0, 0);
        const int filter = tile.phase * p.filters + tile.filter;
#pragma unroll 1
        for (int i = 0; i < preloaded; ++i) {
          if constexpr (!kHalo) {
            const int c = i * p.block_channels;
            ptx::Barrier* const full = kResident ? &smem.act_full[i] : &smem.filter_full[i];
            ptx::barrier_arrive_expect(full, kConfig.block_m * p.block_bytes);
#pragma unroll
            for (int slice = 0; slice < kClusterN; ++slice) {
              ptx::tma_load_3d(smem.act_tile(i) + slice * kActSlice * 128, &p.activation_map, full,
                               p.read_once ? ptx::kL2EvictFirst : ptx::kL2EvictNormal, c,
                               tile.pixel + slice * kActSlice, tile.frame);
            }
          }
          ptx::barrier_arrive_expect(&smem.filter_full[i], kConfig.block_n * p.block_bytes);
#pragma unroll
          for (int slice = 0; slice < kClusterM; ++slice) {
            ptx::tma_load_3d(smem.filter_tile(i) + slice * kFilterSlice * 128, &p.filter_map,
                             &smem.filter_full[i], ptx::kL2EvictLast,
                             kHalo ? 0 : i * p.filter_block, filter + slice * kFilterSlice,
                             kHalo ? i : 0);
          }
        }
      }
      __syncwarp();
    }
    return preloaded;
  }

  // ---- Activation loader ----------------------------------------------------------------------

  /// Where the activation of one temporal tap lies.
  struct FrameSource {
    const CUtensorMap* map;
    int frame;
    bool cached;
  };
  static __device__ __forceinline__ FrameSource frame_source(const Params& p, const Tile& tile,
                                                             int t) {
    if constexpr (kMatrix) return {&p.activation_map, 0, false};
    int d = tile.z * p.stride[0] - p.pad[0] + t * p.dilation[0];
    if (p.pad_mode[0] != PadMode::zero) {
      d = inside(d, p.cached_frames + p.new_frames, p.pad_mode[0]);
    }
    if (d < p.cached_frames) return {&p.cache_map, tile.batch * p.cached_frames + d, true};
    return {&p.activation_map, tile.batch * p.new_frames + d - p.cached_frames, false};
  }

  /// First input position of a linear tile, before padding is taken off by the tap's offset.
  struct Im2colOrigin {
    int frame, h, w;
  };
  static __device__ __forceinline__ Im2colOrigin im2col_origin(const Params& p, const Tile& tile) {
    Im2colOrigin origin;
    origin.frame = p.plane.divide(tile.pixel);
    const int pixel = p.plane.remainder(tile.pixel, origin.frame);
    const int row = p.width.divide(pixel);
    origin.h = row * p.stride[1] - p.pad[1];
    origin.w = p.width.remainder(pixel, row) * p.stride[2] - p.pad[2];
    return origin;
  }

  /// Input::halo: the patch of a tile with its halo, channels from c on, into a stage.
  /// Input::planes: of its rows those that are `row` beyond a multiple of the stride, likewise
  /// columns.
  static __device__ __forceinline__ void load_halo(const Params& p, const Smem& smem,
                                                   const Tile& tile, const FrameSource& source,
                                                   int c, int row, int column,
                                                   std::uint32_t stage) {
    int h = tile.row, w = tile.column;
    if constexpr (kPlanes) {
      h = h * p.stride[1] + row;
      w = w * p.stride[2] + column;
    }
    w += tile.phase_column - p.pad[2];
    h += tile.phase_row - p.pad[1];
    // NOTE: at the border the consumers hear of the stage from the warp that completes it, with a
    // prologue always.
    const bool is_completed =
        kFillsBorder && (kNormalises || needs_border(p, patch_origin(p, tile)));
    ptx::Barrier* const full = is_completed ? &smem.act_loaded[stage] : &smem.act_full[stage];
    const bool is_normalised = kNormalises && !source.cached;
    const bool by_rms = is_normalised && p.norm == PrologueNorm::rms;
    const int factor_bytes = is_normalised ? min(p.block_channels, p.channels - c) * 4 : 0;
    ptx::barrier_arrive_expect(
        full, p.halo_height * p.halo_width * p.block_bytes +
                  (by_rms ? p.inverse_rms_bytes + factor_bytes : 2 * factor_bytes));
    const int channel = c + first_channel_of_group<kConfig>(p, tile);
    const auto load_box = [&](int first) {
      ptx::tma_load_4d(smem.act_tile(stage) + first * 128, source.map, full, ptx::kL2EvictNormal,
                       channel, w + first, h, source.frame);
    };
    load_box(0);
    // NOTE: a box has at most 256 pixels a side, which a line and its halo exceed.
    if (kConfig.takes_lines() && p.box_width < p.halo_width) load_box(p.box_width);
    if (is_normalised) {
      float* const factors = smem.factors + stage * kConfig.factor_floats();
      const std::int64_t first = c + (by_rms ? 0 : std::int64_t{tile.batch} * p.channels);
      ptx::bulk_load(factors, p.prologue.scale + first, factor_bytes, full);
      if (by_rms) {
        ptx::tma_load_3d(smem.inverse_rms + stage * kConfig.inverse_rms_floats(),
                         &p.inverse_rms_map, full, ptx::kL2EvictNormal, w & ~3, h, source.frame);
      } else {
        ptx::bulk_load(factors + kConfig.block_k(), p.prologue.shift + first, factor_bytes, full);
      }
    }
  }

  /// Input::runs and resident: the rows of tap (t, r, s), a block of channels from c on: block_m
  /// rows.
  template <Loader kLoader>
  static __device__ __forceinline__ void load_pixels(const Params& p, const Tile& tile,
                                                     const Im2colOrigin& origin,
                                                     const FrameSource& source, int t, int r, int s,
                                                     int c, int cta_rank, std::uint8_t* stage,
                                                     ptx::Barrier* full) {
    const auto offset_h = static_cast<std::uint16_t>(r * p.dilation[1]);
    const auto offset_w = static_cast<std::uint16_t>(s * p.dilation[2]);
    ptx::barrier_arrive_expect(full, kConfig.block_m * p.block_bytes);
    if constexpr (kClusterN > 1) {
      // Loader::tiled. Each CTA loads its slice of the pixels for all.
      ptx::tma_load_3d_multicast(stage + cta_rank * kActSlice * 128, source.map, full,
                                 (1 << kClusterN) - 1,
                                 p.read_once ? ptx::kL2EvictFirst : ptx::kL2EvictNormal, c,
                                 tile.pixel + cta_rank * kActSlice, source.frame);
    } else if constexpr (kLoader == Loader::tiled) {
      ptx::tma_load_3d(stage, source.map, full,
                       p.read_once ? ptx::kL2EvictFirst : ptx::kL2EvictNormal, c, tile.pixel,
                       source.frame);
    } else if constexpr (kLoader == Loader::im2col) {
      ptx::tma_load_im2col_4d(stage, source.map, full, ptx::kL2EvictNormal, c, origin.w, origin.h,
                              source.frame + origin.frame, offset_w, offset_h);
    } else if constexpr (kLoader == Loader::im2col_5d) {
      const int batch = p.depth.divide(origin.frame);
      const int d = p.depth.remainder(origin.frame, batch) * p.stride[0] - p.pad[0];
      ptx::tma_load_im2col_5d(stage, &p.activation_map, full, ptx::kL2EvictNormal, c, origin.w,
                              origin.h, d, batch, offset_w, offset_h,
                              static_cast<std::uint16_t>(t * p.dilation[0]));
    } else if constexpr (!kSwapped) {
      for (int block = 0; block < kConfig.block_m / 64; ++block) {
        const int row = tile.row + block / p.patch_columns * 8;
        const int column = tile.column + block % p.patch_columns * 8;
        ptx::tma_load_4d(stage + block * 64 * 128, source.map, full, ptx::kL2EvictNormal, c,
                         column * p.stride[2] - p.pad[2] + s * p.dilation[2] + tile.phase_column,
                         row * p.stride[1] - p.pad[1] + r * p.dilation[1] + tile.phase_row,
                         source.frame);
      }
    }
  }

  /// The blocks of K in `range` of a tile, from `k` on, in the order of the K loop.
  // NOTE: a loop for each loader. A stage of a 1x1 layer is multiplied in 128 to 512 cycles; in one
  // loop that asked for the loader, the frame and the tap each time, a stage took its thread 435.
  template <Loader kLoader>
  static __device__ __forceinline__ void load_runs(const Params& p, const Smem& smem,
                                                   const Place& at, const Tile& tile, KRange range,
                                                   KBlock k, ActState& act, bool first_tile) {
    // The activations' own ring, or the one they share with the filters.
    ptx::Barrier* const full = kActRing ? smem.act_full : smem.filter_full;
    ptx::Barrier* const empty = kActRing ? smem.act_empty : smem.filter_empty;
    const Im2colOrigin origin = kLoader == Loader::im2col || kLoader == Loader::im2col_5d
                                    ? im2col_origin(p, tile)
                                    : Im2colOrigin{};
    const int height = kLoader == Loader::tiled ? 1 : p.filter[1];
    const int width = kLoader == Loader::tiled ? 1 : p.filter[2];
    for (int left = range.end - range.begin; left > 0; ++k.t, k.channels = 0) {
      const FrameSource source = frame_source(p, tile, k.t);
      const int blocks = kMatrix ? left : min(left, p.channel_blocks - k.channels);
      left -= blocks;
      int c = k.channels * p.block_channels + first_channel_of_group<kConfig>(p, tile);
      for (const int end = c + blocks * p.block_channels; c < end; c += p.block_channels) {
        for (int r = 0; r < height; ++r) {
          for (int s = 0; s < width; ++s) {
            ptx::barrier_wait(&empty[act.index], act.producer_parity());
            Trace{p}.load(first_tile && c == 0);
            load_pixels<kLoader>(p, tile, origin, source, k.t, r, s, c, at.cta_rank,
                                 smem.act_tile(act.index), &full[act.index]);
            act.advance();
          }
        }
      }
    }
  }

  /// Input::halo and planes: as load_runs.
  static __device__ __forceinline__ void load_halos(const Params& p, const Smem& smem,
                                                    const Tile& tile, KRange range, KBlock k,
                                                    ActState& act) {
    for (int i = range.begin; i < range.end; ++i, k.advance(p)) {
      const int c = k.channels * p.block_channels;
      const FrameSource source = frame_source(p, tile, k.t);
      for (int row = 0; row < (kPlanes ? p.planes[0] : 1); ++row) {
        for (int column = 0; column < (kPlanes ? p.planes[1] : 1); ++column) {
          ptx::barrier_wait(&smem.act_empty[act.index], act.producer_parity());
          load_halo(p, smem, tile, source, c, row, column, act.index);
          act.advance();
        }
      }
    }
  }

  /// One thread: every activation tile of this CTA's tiles, but those of the first `preloaded`
  /// stages.
  static __device__ __forceinline__ void activation_loader(const Params& p, const Smem& smem,
                                                           const Place& at, const Tile& first_tile,
                                                           int preloaded) {
    ActState act;
    Tile tile = first_tile;
    int skip = kHalo ? min(preloaded, 1) : preloaded;  // blocks of the first tile
    act.advance(skip);
    for (int index = at.first_index; index < p.num_cluster_tiles;) {
      KRange range = k_range<kConfig>(p, tile, at.cta_rank, at.cluster_size);
      KBlock k = first_k_block<kConfig>(p, tile, range);
      k.channels += skip;
      range.begin += skip;
      skip = 0;
      const bool first = index == at.first_index;
      // NOTE: no switch: its table would be one more thing to fetch from device memory.
      if constexpr (kHalo) {
        load_halos(p, smem, tile, range, k, act);
      } else if (kMatrix || kClusterN > 1 || p.loader == Loader::tiled) {
        load_runs<Loader::tiled>(p, smem, at, tile, range, k, act, first);
      } else if (p.loader == Loader::im2col) {
        load_runs<Loader::im2col>(p, smem, at, tile, range, k, act, first);
      } else if (p.loader == Loader::im2col_5d) {
        load_runs<Loader::im2col_5d>(p, smem, at, tile, range, k, act, first);
      } else if constexpr (!kSwapped) {
        load_runs<Loader::patch>(p, smem, at, tile, range, k, act, first);
      }
      index += at.index_step;
      tile = decode_tile<kConfig>(p, index, at.m_rank);
    }
  }

  // ---- Border filler --------------------------------------------------------------------------

  /// One warp: completes the patches of this CTA's tiles that need it, between the loader and the
  /// consumers. It stays out of the way of all others.
  static __device__ __forceinline__ void border_filler(const Params& p, const Smem& smem,
                                                       const Place& at, const Tile& first_tile) {
    ActState act;
    std::uint32_t parities = 0;  // of act_loaded, a bit a stage: not every patch passes there
    Tile tile = first_tile;
    for (int index = at.first_index; index < p.num_cluster_tiles;) {
      const KRange range = k_range<kConfig>(p, tile, at.cta_rank, at.cluster_size);
      if (needs_border(p, patch_origin(p, tile))) {
        for (int i = range.begin; i < range.end; ++i, act.advance()) {
          ptx::barrier_wait(&smem.act_loaded[act.index], parities >> act.index & 1);
          parities ^= 1u << act.index;
          fill_border(p, patch_origin(p, tile), p.block_bytes, smem.act_tile(act.index), at.lane);
          // The MMAs read through the async proxy.
          ptx::fence_async_shared();
          __syncwarp();
          if (at.lane == 0) ptx::barrier_arrive(&smem.act_full[act.index]);
        }
      } else {
        act.advance(range.end - range.begin);
      }
      index += at.index_step;
      tile = decode_tile<kConfig>(p, index, at.m_rank);
    }
  }

  // ---- Normaliser -----------------------------------------------------------------------------

  /// A warpgroup: normalise every patch of this CTA's tiles, a pixel here, a pixel there, between
  /// the loader and the consumers; the first of them also fills the border. Frames of the cache
  /// are normalised already.
  static __device__ __forceinline__ void normaliser(const Params& p, const Smem& smem,
                                                    const Place& at, const Tile& first_tile) {
    const int worker = at.warp - kFirstNormaliser;
    const NormaliserLane me = normaliser_lane<kNormaliserWarps>(p, worker, at.lane);
    ActState act;
    Tile tile = first_tile;
    for (int index = at.first_index; index < p.num_cluster_tiles;) {
      const KRange range = k_range<kConfig>(p, tile, at.cta_rank, at.cluster_size);
      KBlock k = first_k_block<kConfig>(p, tile, range);
      const bool has_border = needs_border(p, patch_origin(p, tile));
      for (int i = range.begin; i < range.end; ++i, k.advance(p), act.advance()) {
        const int channel = k.channels * p.block_channels + me.unit * 8;
        const bool works = !frame_source(p, tile, k.t).cached && channel < p.channels;
        ptx::barrier_wait(&smem.act_loaded[act.index], act.parity());
        if (works) {
          const bool by_rms = p.norm == PrologueNorm::rms;
          const float* const scale =
              smem.factors + act.index * kConfig.factor_floats() + me.unit * 8;
          ChannelFactors<8> factors;
          factors.load_shared(scale, by_rms ? nullptr : scale + kConfig.block_k());
          normalise_patch<Element<kConfig.in>, false>(
              p, patch_origin(p, tile), me, factors, smem.act_tile(act.index), by_rms,
              smem.inverse_rms + act.index * kConfig.inverse_rms_floats());
        }
        if (has_border) {
          __syncwarp();  // What follows is .aligned.
          ptx::named_barrier_sync(kNormalisedBarrier, kNormaliserWarps * 32);
          if (worker == 0)
            fill_border(p, patch_origin(p, tile), p.block_bytes, smem.act_tile(act.index), at.lane);
        }
        // The MMAs read through the async proxy.
        ptx::fence_async_shared();
        __syncwarp();
        if (at.lane == 0) ptx::barrier_arrive(&smem.act_full[act.index]);
      }
      index += at.index_step;
      tile = decode_tile<kConfig>(p, index, at.m_rank);
    }
  }

  // ---- Filter loader --------------------------------------------------------------------------

  /// Filters [filter, filter + block_n) of a tap, the block of channels at c, into a stage.
  static __device__ __forceinline__ void load_filters(const Params& p, const Smem& smem,
                                                      const Place& at, int c, int filter, int tap,
                                                      std::uint32_t stage) {
    ptx::Barrier* const full = &smem.filter_full[stage];
    ptx::barrier_arrive_expect(full, kConfig.block_n * p.block_bytes);
    std::uint8_t* const tile = smem.filter_tile(stage);
    if constexpr (kClusterM == 1) {
      ptx::tma_load_3d(tile, &p.filter_map, full, ptx::kL2EvictLast, c, filter, tap);
    } else {
      // Each CTA loads its slice of the filters for all.
      ptx::tma_load_3d_multicast(tile + at.cta_rank * kFilterSlice * 128, &p.filter_map, full,
                                 (1 << kClusterM) - 1, ptx::kL2EvictLast, c,
                                 filter + at.cta_rank * kFilterSlice, tap);
    }
  }

  /// One thread: every filter tile of this CTA's tiles, but those of the first `preloaded` stages.
  static __device__ __forceinline__ void filter_loader(const Params& p, const Smem& smem,
                                                       const Place& at, const Tile& first_tile,
                                                       int preloaded) {
    FilterState state;
    const int taps = taps_of(p);
    Tile tile = first_tile;
    state.advance(preloaded);
    // Of the first tile: blocks, or taps of the first block.
    int skip_blocks = kHalo ? 0 : preloaded;
    int skip_taps = kHalo ? preloaded : 0;
    for (int index = at.first_index; index < p.num_cluster_tiles;) {
      const KRange range = k_range<kConfig>(p, tile, at.cta_rank, at.cluster_size);
      KBlock k = first_k_block<kConfig>(p, tile, range);
      const int filter = tile.phase * p.filters + tile.filter;
      k.channels += skip_blocks;
      int left = range.end - range.begin - skip_blocks;
      skip_blocks = 0;
      for (; left > 0; ++k.t, k.channels = 0) {
        const int blocks = kMatrix ? left : min(left, p.channel_blocks - k.channels);
        left -= blocks;
        int c = k.channels * p.filter_block;
        for (const int end = c + blocks * p.filter_block; c < end; c += p.filter_block) {
          const auto load = [&](int tap) {
            ptx::barrier_wait(&smem.filter_empty[state.index], state.producer_parity());
            load_filters(p, smem, at, c, filter, tap, state.index);
            state.advance();
          };
          const int first_tap = k.t * taps;
          if constexpr (kPlanes) {
            // Plane by plane, as the consumers take them.
            for (int row = 0; row < p.planes[0]; ++row) {
              for (int column = 0; column < p.planes[1]; ++column) {
                for (int r = row; r < p.filter[1]; r += p.stride[1]) {
                  for (int s = column; s < p.filter[2]; s += p.stride[2]) {
                    load(first_tap + r * p.filter[2] + s);
                  }
                }
              }
            }
          } else {
            for (int tap = skip_taps; tap < taps; ++tap) load(first_tap + tap);
            skip_taps = 0;
          }
        }
      }
      // The filters of all other tiles are these.
      if constexpr (kResident) break;
      index += at.index_step;
      tile = decode_tile<kConfig>(p, index, at.m_rank);
    }
  }

  // ---- Consumers: the main loop ---------------------------------------------------------------

  /// Where a consumer warp stands.
  struct Consumer {
    int warpgroup, warp, lane;  // warp: in the warpgroup
    int first_block;            // of 64 rows, of those that a tile has
    /// Of stage 0: each block of rows, and the columns. Blocks of a halo stage are 8 x 8 pixels of
    /// a wider patch.
    std::uint64_t rows[kBlocks];
    std::uint64_t columns;
    bool fetches_residual;  // by TMA, ahead
    bool stores;            // this thread issues the warp's (swapped: the warpgroup's) copies
  };

  static __device__ __forceinline__ Consumer consumer_of(const Params& p, const Smem& smem,
                                                         const Place& at) {
    Consumer me;
    me.warpgroup = at.warp / 4 - 1;
    me.warp = at.warp % 4;
    me.lane = at.lane;
    me.stores = at.lane == 0 && (!kSwapped || me.warp == 0);
    me.fetches_residual =
        !is_in_place<kPath> && !kSplit && p.epilogue.has_residual && !p.direct_store;
    me.first_block = kPingpong ? 0 : me.warpgroup * kBlocks;
    const std::uint32_t act_address = ptx::shared_address(smem.act);
    const std::uint32_t filter_address = ptx::shared_address(smem.filter);
    me.columns = descriptor_128b(kSwapped ? act_address : filter_address, 1024);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int block = me.first_block + b;
      std::uint32_t offset = block * 64 * 128;
      std::uint32_t row_group_bytes = 1024;
      if (kHalo && is_patched<kConfig>(p)) {
        const int row = patch_row(p, block);
        offset = (row * p.halo_width + block - row * p.patch_columns) * 8 * 128;
        row_group_bytes = p.halo_width * 128;
      }
      me.rows[b] =
          descriptor_128b((kSwapped ? filter_address : act_address) + offset, row_group_bytes);
    }
    return me;
  }

  /// Stages that MMAs still read; a warp gives them back once no wgmma does any more.
  struct Reads {
    std::uint32_t filter = 0, act = 0;
    bool has_filter = false, has_act = false;

    __device__ __forceinline__ void release(const Smem& smem, int lane) {
      if (has_filter) {
        if constexpr (kClusterSize == 1) {
          if (lane == 0) ptx::barrier_arrive(&smem.filter_empty[filter]);
        } else {
          if (lane < kClusterSize) ptx::barrier_arrive_remote(&smem.filter_empty[filter], lane);
        }
      }
      if (kActRing && has_act) {
        if (lane == 0) ptx::barrier_arrive(&smem.act_empty[act]);
      }
      has_act = false;
    }
  };

  static __device__ __forceinline__ void clear(Accumulators& accumulators) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
      for (float& value : accumulators[i]) {
        // NOTE: by assembly, so that it stays behind its branch. The compiler made a selection a
        // value of it, which every tile paid for.
        asm volatile("mov.f32 %0, 0f00000000;" : "=f"(value));
      }
    }
  }

  /// A tap of a block of channels: kSteps MMAs of 16 channels for each block of rows, in flight
  /// when this returns, and the tap before done.
  // NOTE: fence, MMAs, commit and wait stay in one basic block: where the commit is in another,
  // ptxas closes the group early and the wait becomes a full drain.
  // NOTE: the swizzle permutes by address bits, so a step of 16 channels is an offset of 32 bytes
  // in the descriptor, and whole rows may be skipped likewise.
  template <int kSteps>
  static __device__ __forceinline__ void multiply(Accumulators& accumulators,
                                                  const std::uint64_t (&rows)[kBlocks],
                                                  std::uint64_t columns, bool accumulate) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        Mma::mma(accumulators[b], ptx::descriptor_behind(rows[b], step * 32),
                 ptx::descriptor_behind(columns, step * 32), accumulate || step > 0);
      }
    }
    wgmma_commit();
    wgmma_wait<kBlockwise ? 0 : 1>();
  }

  /// Schedule::blockwise: what a tap of a block of channels comes to, `block`, onto the sums.
  static __device__ __forceinline__ void add_block(Accumulators& sums, Accumulators& block) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      wgmma_results(block[b]);
#pragma unroll
      for (int i = 0; i < kConfig.tile_columns() / 2; ++i) sums[b][i] += block[b][i];
    }
  }

  /// The sums of a tile as they grow.
  struct Sums {
    Accumulators& total;
    Accumulators block;       // With kBlockwise: of one tap.
    bool accumulate = false;  // There is something in `total`.

    __device__ __forceinline__ explicit Sums(Accumulators& accumulators) : total(accumulators) {
      if constexpr (kBlockwise) clear(total);
    }
  };

  /// Waits for the next stage of filters and multiplies it: `act_offset` bytes from stage 0 of the
  /// activations on. The stages of the tap before are free then.
  template <int kSteps>
  static __device__ __forceinline__ void multiply_tap(const Smem& smem, const Consumer& me,
                                                      std::uint32_t act_offset, FilterState& filter,
                                                      Sums& sums, Reads& reads,
                                                      const TileTrace& trace) {
    ptx::barrier_wait(&smem.filter_full[filter.index], filter.parity());
    trace.full(!sums.accumulate);
    const std::uint32_t filter_offset = filter.index * kConfig.filter_bytes();
    std::uint64_t rows[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      rows[b] = ptx::descriptor_behind(me.rows[b], kSwapped ? filter_offset : act_offset);
    }
    const std::uint64_t columns =
        ptx::descriptor_behind(me.columns, kSwapped ? act_offset : filter_offset);
    if constexpr (kBlockwise) {
      multiply<kSteps>(sums.block, rows, columns, false);
      // This tap's stage, at once: the other warpgroup multiplies while this one adds.
      reads.filter = filter.index;
      reads.has_filter = true;
      reads.release(smem, me.lane);
      reads.has_filter = false;
      add_block(sums.total, sums.block);
    } else {
      multiply<kSteps>(sums.total, rows, columns, sums.accumulate);
      reads.release(smem, me.lane);
      reads.filter = filter.index;
      reads.has_filter = !kResident;
    }
    sums.accumulate = true;
    filter.advance();
  }

  /// The MMAs of `blocks` blocks of K, of kSteps steps each.
  // NOTE: steps are told apart outside of it, and nothing but stages changes within: the MMAs of a
  // stage of a 64x64 tile take 128 cycles, and a loop that asked for more took 400.
  template <int kSteps>
  static __device__ __forceinline__ void multiply_blocks(const Params& p, const Smem& smem,
                                                         const Consumer& me, int blocks,
                                                         ActState& act, FilterState& filter,
                                                         Sums& sums, Reads& reads,
                                                         const TileTrace& trace) {
    if constexpr (!kActRing) {
      for (int left = blocks * taps_of(p); left > 0; --left) {
        multiply_tap<kSteps>(smem, me, filter.index * kConfig.act_bytes(), filter, sums, reads,
                             trace);
      }
      return;
    }
    // With planes: the taps that fall on one, then the next.
    const int row_step = kPlanes ? p.stride[1] : 1, column_step = kPlanes ? p.stride[2] : 1;
    const std::uint32_t row_bytes = kHalo ? p.dilation[1] * p.halo_width * 128 : 0;
    const std::uint32_t column_bytes = kHalo ? p.dilation[2] * 128 : 0;
    for (; blocks > 0; --blocks) {
      for (int first_row = 0; first_row < (kPlanes ? p.planes[0] : 1); ++first_row) {
        for (int first_column = 0; first_column < (kPlanes ? p.planes[1] : 1); ++first_column) {
          ptx::barrier_wait(&smem.act_full[act.index], act.parity());
          std::uint32_t row_offset = act.index * kConfig.act_bytes();
          if constexpr (kResident) {
            multiply_tap<kSteps>(smem, me, row_offset, filter, sums, reads, trace);
          } else {
            for (int r = first_row; r < p.filter[1]; r += row_step, row_offset += row_bytes) {
              std::uint32_t offset = row_offset;
              for (int s = first_column; s < p.filter[2]; s += column_step) {
                multiply_tap<kSteps>(smem, me, offset, filter, sums, reads, trace);
                offset += column_bytes;
              }
            }
          }
          reads.act = act.index;
          reads.has_act = true;
          act.advance();
        }
      }
    }
  }

  /// Blocks of K that follow each other and have as many steps.
  struct AlikeBlocks {
    int count, steps;
  };

  /// Of the `left` blocks from one of channels on: all, or all but the last of a temporal tap, and
  /// then that one.
  static __device__ __forceinline__ AlikeBlocks alike_blocks(const Params& p, int left,
                                                             int channels) {
    if (p.block_steps == p.last_block_steps) return {left, p.block_steps};
    const int before_last = p.channel_blocks - 1 - channels;
    if (before_last == 0) return {1, p.last_block_steps};
    return {min(left, before_last), p.block_steps};
  }

  /// The MMAs of a tile, `first` its first blocks. The last tap's still run when this returns;
  /// `reads` are its stages. False: there was nothing to sum.
  static __device__ __forceinline__ bool main_loop(const Params& p, const Smem& smem,
                                                   const Consumer& me, const KRange& range,
                                                   const KBlock& k, const AlikeBlocks& first,
                                                   ActState& act, FilterState& filter,
                                                   Accumulators& accumulators, Reads& reads,
                                                   const TileTrace& trace) {
    Sums sums(accumulators);
    AlikeBlocks next = first;
    int channels = k.channels;
    for (int left = range.end - range.begin; left > 0;) {
      if (next.steps == 4) {
        multiply_blocks<4>(p, smem, me, next.count, act, filter, sums, reads, trace);
      } else if (next.steps == 3) {
        multiply_blocks<3>(p, smem, me, next.count, act, filter, sums, reads, trace);
      } else if (next.steps == 2) {
        multiply_blocks<2>(p, smem, me, next.count, act, filter, sums, reads, trace);
      } else {
        multiply_blocks<1>(p, smem, me, next.count, act, filter, sums, reads, trace);
      }
      left -= next.count;
      if (left > 0) {
        channels += next.count;
        if (channels == p.channel_blocks) channels = 0;
        next = alike_blocks(p, left, channels);
      }
    }
    return sums.accumulate;
  }

  // ---- Consumers: the epilogue ----------------------------------------------------------------

  static __device__ __forceinline__ Piece tile_piece(const Params& p, const Tile& tile,
                                                     const Consumer& me, int q) {
    if constexpr (kSwapped) return swapped_piece<kConfig>(tile, me.first_block, q);
    return piece_at<kConfig>(p, tile, me.first_block + q / kConfig.pieces_per_block(), me.warp,
                             q % kConfig.pieces_per_block());
  }

  /// Fetch the first pieces of a tile's residual, while its main loop runs.
  static __device__ __forceinline__ void fetch_residual(const Params& p, const Tile& tile,
                                                        const Consumer& me, Staging& staging) {
    if (!me.fetches_residual || !me.stores) return;
    ptx::tma_store_wait_read<0>();
#pragma unroll 1
    for (int q = 0; q < min(kConfig.staging_buffers(), kConfig.pieces()); ++q) {
      load_source<kConfig>(p, tile, staging, q, tile_piece(p, tile, me, q));
    }
  }

  /// A warp's part of a tile from accumulators to the output.
  static __device__ __forceinline__ void store(const Params& p, const Tile& tile,
                                               const Consumer& me, Accumulators& accumulators,
                                               const float (&bias)[kBiases], Staging& staging,
                                               Statistics& statistics, const ComputeOp& compute_op,
                                               const StoreOp& store_op) {
    if constexpr (kSwapped) {
      store_swapped_tile<kConfig, kPath>(p, tile, me.warpgroup, me.first_block, me.warp,
                                         accumulators, bias, staging);
    } else if constexpr (kPath != EpiloguePath::general) {
      store_tile<kConfig, kPath>(p, tile, me.first_block, me.warp, accumulators, bias, staging,
                                 statistics);
    } else {
      store_general(p, tile, me, accumulators, bias, staging, compute_op, store_op);
    }
  }

  /// EpiloguePath::general: one piece after the other.
  // NOTE: in a rolled loop; registers must not be indexed at run time, so every piece is a
  // candidate of a selection.
  static __device__ __forceinline__ void store_general(
      const Params& p, const Tile& tile, const Consumer& me, Accumulators& accumulators,
      const float (&bias)[kBiases], Staging& staging, const ComputeOp& compute_op,
      const StoreOp& store_op) {
    constexpr int kBuffers = kConfig.staging_buffers();
    constexpr int kPieces = kConfig.pieces();
    constexpr int kPerBlock = kConfig.pieces_per_block();
    constexpr int kHalves = kConfig.piece_halves();
    constexpr int kPieceValues = kPieceGroups<kConfig> * kGroupValues;
    constexpr int kValues = groups_at_once<kConfig, kPath>() * kGroupValues;
#pragma unroll 1
    for (int q = 0; q < kPieces; ++q) {
      float lane_bias[kHalves] = {};
#pragma unroll
      for (int c = 0; c < kPieces; ++c) {
        if (c != q) continue;
#pragma unroll
        for (int h = 0; h < kHalves; ++h) lane_bias[h] = bias[c % kPerBlock * kHalves + h];
      }
      // The piece's values are in front, and in it those that are not yet taken.
      const auto values = [&](int, float(&v)[kValues]) {
#pragma unroll
        for (int i = 0; i < kPieceValues; ++i) {
          if (i < kValues) v[i] = accumulators[0][i];
          if (i >= kValues) accumulators[0][i - kValues] = accumulators[0][i];
        }
      };
      if (!p.epilogue.has_residual) {
        // The last tile's stores too: its last piece may have used any buffer.
        if (me.lane == 0) {
          if (q == 0) {
            ptx::tma_store_wait_read<0>();
          } else {
            ptx::tma_store_wait_read<kBuffers - 1>();
          }
        }
        __syncwarp();
      }
      finish_piece<kConfig, kPath>(p, tile, tile_piece(p, tile, me, q), values, lane_bias, staging,
                                   q % kBuffers, source_parity<kConfig>(staging, q), compute_op,
                                   store_op);
      move_up<kPieceValues>(accumulators);
      if (me.fetches_residual && me.lane == 0 && q + kBuffers < kPieces) {
        ptx::tma_store_wait_read<0>();
        load_source<kConfig>(p, tile, staging, q % kBuffers, tile_piece(p, tile, me, q + kBuffers));
      }
    }
    ++staging.tiles;
  }

  /// Split K: every CTA of the cluster leaves its partial tile in its own stages (all loads have
  /// been consumed), then each sums a share of the pieces over all CTAs, in rank order.
  static __device__ __forceinline__ void reduce_split(
      const Params& p, const Smem& smem, const Place& at, const Tile& tile, const Consumer& me,
      Accumulators& accumulators, const float (&bias)[kBiases], const Staging& staging,
      const ComputeOp& compute_op, const StoreOp& store_op) {
    constexpr int kPerBlock = kConfig.pieces_per_block();
    constexpr int kBuffers = kConfig.staging_buffers();
    constexpr int kWarps = kConfig.consumer_warps();
    constexpr int kThreads = 128 * kConfig.consumers;
    auto* const partial = reinterpret_cast<float4*>(smem.act);
    const int thread = static_cast<int>(threadIdx.x) - 128;
    ptx::named_barrier_sync(kPartialBarrier, kThreads);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < kConfig.block_n / 8; ++j) {
        partial[(i * (kConfig.block_n / 8) + j) * kThreads + thread] =
            make_float4(accumulators[i][4 * j], accumulators[i][4 * j + 1],
                        accumulators[i][4 * j + 2], accumulators[i][4 * j + 3]);
      }
    }
    ptx::cluster_sync();
    const std::uint32_t base = ptx::shared_address(partial);
    int unit_count = 0;
#pragma unroll 1
    for (int unit = at.cta_rank * kWarps + at.warp - 4; unit < kConfig.pieces() * kWarps;
         unit += at.cluster_size * kWarps, ++unit_count) {
      const int unit_warp = unit % kWarps;
      const int chunk = unit / kWarps;
      const int slot = unit_count % kBuffers;
      const std::uint32_t parity = unit_count / kBuffers % 2;
      const Piece piece = piece_at<kConfig>(p, tile, unit_warp / 4 * kBlocks + chunk / kPerBlock,
                                            unit_warp % 4, chunk % kPerBlock);
      if (me.lane == 0) {
        ptx::tma_store_wait_read<kBuffers - 1>();
        if (p.epilogue.has_residual && !p.direct_store) {
          load_source<kConfig>(p, tile, staging, slot, piece);
        }
      }
      __syncwarp();
      float v[16] = {};
#pragma unroll 2
      for (int rank = 0; rank < at.cluster_size; ++rank) {
        const std::uint32_t remote = ptx::map_shared_rank(base, rank);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float4 part = ptx::load_shared_cluster_v4(
              remote + ((chunk * 4 + j) * kThreads + unit_warp * 32 + me.lane) * 16);
          v[4 * j] += part.x;
          v[4 * j + 1] += part.y;
          v[4 * j + 2] += part.z;
          v[4 * j + 3] += part.w;
        }
      }
      float lane_bias[1] = {};
#pragma unroll
      for (int c = 0; c < kPerBlock; ++c) {
        if (c == chunk % kPerBlock) lane_bias[0] = bias[c];
      }
      constexpr int kValues = groups_at_once<kConfig, kPath>() * kGroupValues;
      const auto values = [&](int g, float(&some)[kValues]) {
#pragma unroll
        for (int i = 0; i < kValues; ++i) some[i] = g == 0 ? v[i] : v[16 - kValues + i];
      };
      finish_piece<kConfig, kPath>(p, tile, piece, values, lane_bias, staging, slot, parity,
                                   compute_op, store_op);
    }
  }

  // ---- Consumers ------------------------------------------------------------------------------

  /// Blocks of the reduction of tile `index`, not split.
  // NOTE: where no tile skips temporal taps all have as many, and none need be decoded.
  static __device__ __forceinline__ int blocks_of(const Params& p, const Place& at, int index) {
    if constexpr (kMatrix) return p.channel_blocks;
    if (!p.skip_taps) return p.filter[0] * p.channel_blocks;
    return k_range<kConfig>(p, decode_tile<kConfig>(p, index, at.m_rank), 0, 1).end;
  }

  /// A consumer warp: main loop and epilogue of every tile, or with ping-pong of every other one.
  static __device__ __forceinline__ void consumer(const Params& p, const Smem& smem,
                                                  const Place& at, const Tile& first_tile,
                                                  const ComputeOp& compute_op,
                                                  const StoreOp& store_op) {
    const Consumer me = consumer_of(p, smem, at);
    const int storer = kSwapped ? me.warpgroup : at.warp - 4;
    Staging staging{smem.staging + storer * kConfig.staging_buffers() * kConfig.piece_bytes(),
                    smem.source_full + storer * kConfig.staging_buffers(),
                    smem.shifts + storer * kConfig.shift_bytes()};
    Statistics statistics;
    ActState act;
    FilterState filter;
    int turn = 0;
    Tile next_tile = first_tile;
    TileTrace trace{p, kPingpong, me.warpgroup};
    for (int index = at.first_index; index < p.num_cluster_tiles; index += at.index_step) {
      if constexpr (kPingpong) {
        // The stages of every other tile are the other warpgroup's.
        if ((turn++ & 1) != me.warpgroup) {
          const int blocks = blocks_of(p, at, index);
          if constexpr (kPlanes) {
            act.advance(blocks * p.planes[0] * p.planes[1]);
          } else if constexpr (kActRing) {
            act.advance(blocks);
          }
          filter.advance(blocks * taps_of(p));
          continue;
        }
      }
      // NOTE: elsewhere decoding is so much code that skipping it costs as much as running it.
      const bool is_known = !kPingpong || (kMatrix && index == at.first_index);
      const Tile tile = is_known ? next_tile : decode_tile<kConfig>(p, index, at.m_rank);
      const KRange range = k_range<kConfig>(p, tile, at.cta_rank, at.cluster_size);

      fetch_residual(p, tile, me, staging);
      std::uint32_t bias_bits[kBiases];
      if constexpr (kSwapped) {
        load_swapped_bias<kConfig>(p, tile, me.first_block, me.warp, bias_bits);
      } else {
        load_tile_bias<kConfig>(p, tile, bias_bits);
      }
      const KBlock first_k = first_k_block<kConfig>(p, tile, range);
      const AlikeBlocks first_blocks = alike_blocks(p, range.end - range.begin, first_k.channels);
      if constexpr (kResident) filter = FilterState{};

      if constexpr (kPingpong) {
        // Wait for the turn. NOTE: parity tells only adjacent phases of a barrier apart, so a
        // warpgroup must not wait for a stage before the other has seen that stage's last round.
        if (turn > 1) ptx::named_barrier_sync(kTurnBarrier + me.warpgroup, 256);
      }
      trace.turn();
      Accumulators accumulators;
      Reads reads;
      const bool any = main_loop(p, smem, me, range, first_k, first_blocks, act, filter,
                                 accumulators, reads, trace);
      if constexpr (kPingpong) {
        if (index + at.index_step < p.num_cluster_tiles) {
          ptx::named_barrier_arrive(kTurnBarrier + (me.warpgroup ^ 1), 256);
        }
      }
      // While the last MMAs run.
      if constexpr (!kPingpong && !kSplit) {
        next_tile = decode_tile<kConfig>(p, index + at.index_step, at.m_rank);
      }
      wgmma_wait<0>();
      trace.multiplied();
      reads.release(smem, me.lane);
      // NOTE: a matrix has blocks, but a share of a split may have none.
      if ((kSplit || !kMatrix) && !any) clear(accumulators);

      float bias[kBiases];
      bias_values(p.epilogue, bias_bits, bias);
      if constexpr (kSplit) {
        reduce_split(p, smem, at, tile, me, accumulators, bias, staging, compute_op, store_op);
      } else {
        store(p, tile, me, accumulators, bias, staging, statistics, compute_op, store_op);
        statistics.finish(p, tile, index, me.warp, staging.shifts);
      }
      trace.stored();
    }
    // NOTE: shared memory must outlive the stores that read it; what they write the kernel's end
    // waits for.
    if (me.stores) ptx::tma_store_wait_read<0>();
    trace.done();
  }

  // ---- The kernel -----------------------------------------------------------------------------

  /// Wait for whom this CTA's shared memory still serves.
  static __device__ __forceinline__ void leave(const Place& at) {
    if constexpr (kSplit) {
      // The loaders' half of the barrier in reduce_split: one tile per cluster.
      if (at.warp < 4) {
        __syncwarp();
        ptx::cluster_sync();
      }
    }
    // NOTE: no CTA may leave while others still copy into, arrive on or read its shared memory.
    if constexpr (kSplit || kClusterSize > 1) {
      __syncwarp();
      ptx::cluster_arrive_relaxed();
      ptx::cluster_wait();
    }
  }

  static __device__ __forceinline__ void body(const Params& p, const ComputeOp& compute_op,
                                              const StoreOp& store_op) {
    const Trace trace{p};
    trace.begin();
    const Smem smem = Smem::template carve<kKeepsBase>();
    const Place at = place(p);
    setup(p, smem, at);
    const Tile first_tile = decode_tile<kConfig>(p, at.first_index, at.m_rank);

    ptx::dependent_launch_trigger();
    // NOTE: nothing before this line reads or writes what an earlier kernel may still write or
    // read.
    ptx::dependent_launch_wait();
    trace.ready();
    // NOTE: before the loads, whose issue may stall: consumers wait for these registers.
    if (at.warp < 4) ptx::set_max_registers_decrease<kConfig.loader_registers()>();
    const int preloaded = preload(p, smem, at, first_tile);
    // From here on the other CTA's barriers exist, to multicast to and to release stages of.
    if constexpr (kClusterSize > 1) ptx::cluster_wait();

    if (at.warp < 4) {
      // NOTE: loaders have registers to keep its base in.
      const Smem kept = Smem::template carve<true>();
      if (at.warp < 2 && kClusterSize == 1) {
        ptx::named_barrier_sync(kStagesReadyBarrier, kStagesReadyThreads);
      }
      if (at.warp == 0 && ptx::elect_one()) {
        activation_loader(p, kept, at, first_tile, preloaded);
      } else if (at.warp == 1) {
        if (ptx::elect_one()) filter_loader(p, kept, at, first_tile, preloaded);
      } else if (kFillsBorder && !kNormalises && at.warp == 2 && p.fills_border) {
        if constexpr (kClusterSize == 1) {
          ptx::named_barrier_sync(kPatchReadyBarrier, kBorderReadyThreads);
        }
        border_filler(p, smem, at, first_tile);
      }
      __syncwarp();
    } else if (kNormalises && at.warp >= kFirstNormaliser) {
      ptx::set_max_registers_decrease<kConfig.normaliser_registers()>();
      ptx::named_barrier_sync(kPatchReadyBarrier, kNormaliserReadyThreads);
      if constexpr (kNormalises) normaliser(p, smem, at, first_tile);
    } else {
      ptx::set_max_registers_increase<kConfig.consumer_registers()>();
      if constexpr (kClusterSize == 1) ptx::named_barrier_sync(kReadyBarrier, kReadyThreads);
      consumer(p, smem, at, first_tile, compute_op, store_op);
    }
    leave(at);
    trace.end();
  }
};

/// The entry point: D = compute(epilogue(Conv(A, B))). `Packed`: a PackedConfig.
template <typename Packed, EpiloguePath kPath, typename ComputeOp = NoComputeOp,
          typename StoreOp = NoStoreOp>
__global__ void __launch_bounds__(Packed::kConfig.threads(), Packed::kConfig.ctas_per_sm())
    conv_fprop_kernel(const __grid_constant__ Params p, ComputeOp compute_op, StoreOp store_op) {
  Kernel<Packed::kConfig, kPath, ComputeOp, StoreOp>::body(p, compute_op, store_op);
}

}  // namespace convoy::sm90
