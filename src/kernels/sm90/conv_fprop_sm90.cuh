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

#include "kernels/common/epilogue.cuh"
#include "kernels/common/pipeline.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/sm90/conv_params_sm90.hpp"
#include "kernels/sm90/wgmma.cuh"

namespace convoy::sm90 {

/// Compile-time configuration of the kernel. Illegal combinations are compile-time errors.
template <typename In_, typename Out_, int M, int N, int Consumers, int Cluster, bool Halo,
          bool Split, int FilterStages, int HaloStages = 2, int HaloPixels = 0>
struct FpropConfig {
  using In = In_;
  using Out = Out_;
  static constexpr int BLOCK_M = M;
  static constexpr int BLOCK_N = N;
  static constexpr int BLOCK_K = 64;            // channels of a stage: one 128-byte swizzle row
  static constexpr int kConsumers = Consumers;  // consumer warpgroups
  static constexpr int kCluster = Cluster;      // CTAs along M that share filter tiles
  static constexpr bool kHalo = Halo;
  static constexpr bool kSplit = Split;  // the cluster splits K and reduces over shared memory
  static constexpr int kStages = FilterStages;
  static constexpr int kActStages = Halo ? HaloStages : FilterStages;
  static constexpr int kBlocksPerGroup = M / 64 / Consumers;  // 64-row blocks of a warpgroup

  static constexpr int kThreads = 128 * (1 + Consumers);
  static constexpr int kConsumerWarps = 4 * Consumers;
  static constexpr int kActBytes = Halo ? (HaloPixels * 128 + 1023) / 1024 * 1024 : M * 128;
  static constexpr int kFilterBytes = N * 128;

  // The epilogue moves pieces of 16 rows x 32 filters: one warp, 16 values a thread.
  static constexpr int kChunkN = 32;
  static constexpr int kChunksPerBlock = N / kChunkN;
  static constexpr int kChunks = kBlocksPerGroup * kChunksPerBlock;
  static constexpr int kChunkRowBytes = kChunkN * static_cast<int>(sizeof(Out));
  static constexpr int kChunkBytes = 16 * kChunkRowBytes;
  static constexpr int kStagingBuffers = sizeof(Out) == 2 ? 4 : 2;
  static constexpr int kStagingBytes = kConsumerWarps * kStagingBuffers * kChunkBytes;
  static constexpr int kBarriers = 2 * kActStages + 2 * kStages + kConsumerWarps * kStagingBuffers;
  static constexpr int kSharedBytes = 1024 /* alignment */ + kActStages * kActBytes +
                                      kStages * kFilterBytes + kStagingBytes + kBarriers * 8;

  static_assert(M % (64 * Consumers) == 0, "BLOCK_M must be a multiple of 64 per consumer group");
  static_assert(N % 32 == 0 && N >= 64 && N <= 256, "BLOCK_N must be a multiple of 32 in 64..256");
  static_assert(kBlocksPerGroup * N / 2 <= 192, "at most 192 accumulator registers a thread");
  static_assert(Consumers >= 1 && Consumers <= 3, "1 to 3 consumer warpgroups");
  static_assert(Cluster == 1 || Cluster == 2, "filter tiles are shared by 1 or 2 CTAs");
  static_assert((N / Cluster) % 8 == 0, "a multicast slice must keep whole swizzle groups");
  static_assert(!Split || Cluster == 1, "a cluster either shares filter tiles or splits K");
  static_assert(!Split || M * N * 4 <= kActStages * kActBytes + kStages * kFilterBytes,
                "split K keeps the fp32 tile in the stages");
  static_assert(kSharedBytes <= 232448, "more than the 227 KiB of shared memory of an SM");
};

/// One output tile of a CTA.
struct Tile {
  int frame;        // output frame n·Z + z; 0 where tiles straddle frames
  int batch, z;     // its parts
  int pixel;        // linear tiles: first pixel of the tile in its frame
  int row, column;  // patched tiles: first output pixel
  int filter;       // first filter, within its phase
  int phase, phase_row, phase_column;
  int t_begin, t_end;  // temporal taps that meet real frames
};

/// Tiles are numbered filters first, then along M inside a band, then through the frames, then
/// bands, then batches, so that CTAs that run together read the same rows and frames from L2.
template <typename Config>
__device__ __forceinline__ Tile decode_tile(const FpropParams& p, int index, int cta_rank) {
  Tile tile;
  const int n = index % (p.n_tiles * p.phases);
  int m = index / (p.n_tiles * p.phases);
  tile.phase = n / p.n_tiles;
  tile.filter = (n % p.n_tiles) * Config::BLOCK_N;
  tile.phase_row = tile.phase >> 1;
  tile.phase_column = tile.phase & 1;

  const int per_batch = p.m_clusters * p.frames_per_batch;
  tile.batch = m / per_batch;
  m -= tile.batch * per_batch;
  const int band_first = m / (p.band * p.frames_per_batch) * p.band;
  const int band_size = min(p.band, p.m_clusters - band_first);
  m -= band_first * p.frames_per_batch;
  tile.z = m / band_size;
  const int m_tile = (band_first + m % band_size) * Config::kCluster + cta_rank;
  tile.frame = tile.batch * p.frames_per_batch + tile.z;

  tile.pixel = m_tile * Config::BLOCK_M;
  const int tile_columns = 8 * p.patch_columns;
  const int tile_rows = Config::BLOCK_M / tile_columns;
  tile.row = m_tile / p.patches_across * tile_rows;
  tile.column = m_tile % p.patches_across * tile_columns;

  tile.t_begin = 0;
  tile.t_end = p.filter[0];
  if (p.loader != Loader::im2col_5d) {
    const int first = tile.z * p.stride[0] - p.pad[0];
    const int frames_in = p.cached_frames + p.new_frames;
    while (tile.t_begin < tile.t_end && first + tile.t_begin * p.dilation[0] < 0) ++tile.t_begin;
    while (tile.t_end > tile.t_begin && first + (tile.t_end - 1) * p.dilation[0] >= frames_in) {
      --tile.t_end;
    }
  }
  return tile;
}

/// Groups (temporal tap, channel block) of a tile that this CTA sums: all, or its share of a split.
struct GroupRange {
  int begin, end;
};
template <typename Config>
__device__ __forceinline__ GroupRange group_range(const FpropParams& p, const Tile& tile,
                                                  int cta_rank, int cluster_size) {
  const int groups = (tile.t_end - tile.t_begin) * p.channel_blocks;
  if constexpr (!Config::kSplit) return {0, groups};
  return {groups * cta_rank / cluster_size, groups * (cta_rank + 1) / cluster_size};
}

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

/// The activation tile of tap (t, r, s), channels [c, c + 64): BLOCK_M rows of 128 bytes.
template <typename Config>
__device__ __forceinline__ void load_activation(const FpropParams& p, const Tile& tile, int t,
                                                int r, int s, int c, std::uint8_t* stage,
                                                ptx::Barrier* full) {
  const FrameSource source = frame_source(p, tile, t);
  if (p.loader == Loader::tiled) {
    ptx::tma_load_3d(stage, source.map, full, ptx::kL2EvictNormal, c, tile.pixel, source.frame);
    return;
  }
  if (p.loader == Loader::patch) {
    for (int block = 0; block < Config::BLOCK_M / 64; ++block) {
      const int row = tile.row + block / p.patch_columns * 8;
      const int column = tile.column + block % p.patch_columns * 8;
      ptx::tma_load_4d(stage + block * 64 * 128, source.map, full, ptx::kL2EvictNormal, c,
                       column * p.stride[2] - p.pad[2] + s * p.dilation[2] + tile.phase_column,
                       row * p.stride[1] - p.pad[1] + r * p.dilation[1] + tile.phase_row,
                       source.frame);
    }
    return;
  }
  const int plane = p.out[1] * p.out[2];
  const int frame = tile.pixel / plane;
  const int pixel = tile.pixel - frame * plane;
  const int h = pixel / p.out[2] * p.stride[1] - p.pad[1];
  const int w = pixel % p.out[2] * p.stride[2] - p.pad[2];
  const auto offset_h = static_cast<std::uint16_t>(r * p.dilation[1]);
  const auto offset_w = static_cast<std::uint16_t>(s * p.dilation[2]);
  if (p.loader == Loader::im2col) {
    ptx::tma_load_im2col_4d(stage, source.map, full, ptx::kL2EvictNormal, c, w, h,
                            source.frame + frame, offset_w, offset_h);
  } else {
    const int d = frame % p.out[0] * p.stride[0] - p.pad[0];
    ptx::tma_load_im2col_5d(stage, &p.activation_map, full, ptx::kL2EvictNormal, c, w, h, d,
                            frame / p.out[0], offset_w, offset_h,
                            static_cast<std::uint16_t>(t * p.dilation[0]));
  }
}

// ---- Epilogue of one warp -------------------------------------------------------------------

/// Staging buffers of a consumer warp: a ring of 16 x 32 pieces that are (with a residual) filled
/// by TMA, overwritten in place by the result, and stored by TMA.
struct WarpStaging {
  std::uint8_t* buffers;
  ptx::Barrier* source_full;
  std::uint32_t sequence = 0;  // pieces used so far
};

/// Coordinates of a piece: 16 pixels (a run of a linear tile, or 2 rows of 8 of a patched one).
struct Piece {
  int filter;  // first filter
  int pixel;   // linear: first pixel in the frame; patched: column
  int row;     // patched: row; linear: 0
};

template <typename Config>
__device__ __forceinline__ Piece piece_at(const FpropParams& p, const Tile& tile, int block,
                                          int warp_in_group, int chunk) {
  Piece piece;
  piece.filter = tile.filter + chunk * Config::kChunkN;
  if (is_patched(p.loader)) {
    piece.pixel = tile.column + block % p.patch_columns * 8;
    piece.row = tile.row + block / p.patch_columns * 8 + warp_in_group * 2;
  } else {
    piece.pixel = tile.pixel + block * 64 + warp_in_group * 16;
    piece.row = 0;
  }
  return piece;
}

/// Output pixel (n·Z·P·Q order) of row `i` of a piece, or -1 outside the output.
__device__ __forceinline__ std::int64_t output_pixel(const FpropParams& p, const Tile& tile,
                                                     const Piece& piece, int i) {
  if (!is_patched(p.loader)) {
    const std::int64_t pixel = static_cast<std::int64_t>(piece.pixel) + i;
    return pixel < p.frame_pixels ? tile.frame * p.frame_pixels + pixel : -1;
  }
  const int row = piece.row + i / 8;
  const int column = piece.pixel + i % 8;
  if (row >= p.out[1] || column >= p.out[2]) return -1;
  const int scale = p.phases == 4 ? 2 : 1;
  const std::int64_t rows = static_cast<std::int64_t>(p.out[1]) * scale;
  return (tile.frame * rows + row * scale + tile.phase_row) * (p.out[2] * scale) + column * scale +
         tile.phase_column;
}

/// Shared-memory address of 16-byte unit `unit` of row `row` of a piece: the 64- or 128-byte
/// swizzle of the output map.
template <typename Config>
__device__ __forceinline__ std::uint32_t staged_address(std::uint32_t buffer, int row, int unit) {
  const int swizzled = Config::kChunkRowBytes == 64 ? unit ^ ((row >> 1) & 3) : unit ^ (row & 7);
  return buffer + row * Config::kChunkRowBytes + swizzled * 16;
}

/// Start the TMA load of a piece of the residual into staging buffer `sequence`.
template <typename Config>
__device__ __forceinline__ void load_source(const FpropParams& p, const Tile& tile,
                                            const WarpStaging& staging, std::uint32_t sequence,
                                            const Piece& piece) {
  const std::uint32_t buffer = sequence % Config::kStagingBuffers;
  ptx::barrier_arrive_expect(&staging.source_full[buffer], Config::kChunkBytes);
  ptx::tma_load_4d(staging.buffers + buffer * Config::kChunkBytes, &p.source_map[tile.phase],
                   &staging.source_full[buffer], ptx::kL2EvictFirst, piece.filter, piece.pixel,
                   piece.row, tile.frame);
}

/// One piece from fp32 values to the output. Thread t of the warp holds, in v[4j + 2h + e], row
/// t / 4 + 8h and filter 8j + 2·(t % 4) + e. The whole warp calls.
template <typename Config, typename ComputeOp, typename StoreOp>
__device__ __forceinline__ void store_piece(const FpropParams& p, const Tile& tile,
                                            const Piece& piece, float (&v)[16],
                                            WarpStaging& staging, const ComputeOp& compute_op,
                                            const StoreOp& store_op) {
  using Out = typename Config::Out;
  const int lane = static_cast<int>(ptx::lane_id());
  const int row0 = lane / 4;
  const int first_filter = piece.filter + 2 * (lane % 4);
  const std::uint32_t buffer_index = staging.sequence % Config::kStagingBuffers;
  std::uint8_t* const buffer = staging.buffers + buffer_index * Config::kChunkBytes;
  const std::uint32_t address = ptx::shared_address(buffer);
  // Row and first unit of the 8x8 matrix this lane addresses in stmatrix / ldmatrix.
  const int matrix_row = (lane / 8 % 2) * 8 + lane % 8;
  const int matrix_unit = lane / 16;

  float bias[16];
  if (p.epilogue.bias != nullptr) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int n = first_filter + 8 * j + e;
        const float b = n < p.filters ? load_bias(p.epilogue, n) : 0.0f;
        bias[4 * j + e] = b;
        bias[4 * j + 2 + e] = b;
      }
    }
  }

  // Read the residual, or wait until the buffer's previous store has left it.
  float source[16];
  const bool staged_source = p.epilogue.has_residual && !p.direct_store;
  if (staged_source) {
    ptx::barrier_wait(&staging.source_full[buffer_index],
                      staging.sequence / Config::kStagingBuffers % 2);
    if constexpr (sizeof(Out) == 2) {
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        std::uint32_t r[4];
        ptx::load_matrix_x4(staged_address<Config>(address, matrix_row, matrix_unit + j), r[0],
                            r[1], r[2], r[3]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = unpack2<Out>(r[i]);
          source[4 * j + 2 * i] = pair.x;
          source[4 * j + 2 * i + 1] = pair.y;
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float2 pair = *reinterpret_cast<const float2*>(
            buffer + staged_address<Config>(0, row0 + 8 * (i % 2), i / 2 * 2 + lane % 4 / 2) +
            lane % 2 * 8);
        source[2 * i] = pair.x;
        source[2 * i + 1] = pair.y;
      }
    }
  } else {
    if (p.epilogue.has_residual) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const std::int64_t m = output_pixel(p, tile, piece, row0 + 8 * (i % 2));
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int n = first_filter + i / 2 * 8 + e;
          source[2 * i + e] =
              m >= 0 && n < p.filters
                  ? to_float(static_cast<const Out*>(p.source_pointer)[m * p.filters + n])
                  : 0.0f;
        }
      }
    }
    if (lane == 0) ptx::tma_store_wait_read<Config::kStagingBuffers - 1>();
    __syncwarp();
  }

  apply_epilogue<Out>(p.epilogue, v, bias, source);
  if constexpr (ComputeOp::kEnabled && ComputeOp::kOnRegisters) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::int64_t m = output_pixel(p, tile, piece, row0 + 8 * (i % 2));
      const int n = first_filter + i / 2 * 8;
      float pair[2] = {v[2 * i], v[2 * i + 1]};
      if (m >= 0 && n < p.filters) compute_op(m, n, pair);
      v[2 * i] = pair[0];
      v[2 * i + 1] = pair[1];
    }
  }

  if constexpr (sizeof(Out) == 2) {
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      ptx::store_matrix_x4(
          staged_address<Config>(address, matrix_row, matrix_unit + j),
          pack2<Out>(v[4 * j], v[4 * j + 1]), pack2<Out>(v[4 * j + 2], v[4 * j + 3]),
          pack2<Out>(v[4 * j + 4], v[4 * j + 5]), pack2<Out>(v[4 * j + 6], v[4 * j + 7]));
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      *reinterpret_cast<float2*>(
          buffer + staged_address<Config>(0, row0 + 8 * (i % 2), i / 2 * 2 + lane % 4 / 2) +
          lane % 2 * 8) = make_float2(v[2 * i], v[2 * i + 1]);
    }
  }

  // Ops on staged values and stores that TMA cannot do: 16-byte vectors of one row, lane by lane.
  constexpr int kWidth = 16 / static_cast<int>(sizeof(Out));
  constexpr bool kStagedOp = ComputeOp::kEnabled && !ComputeOp::kOnRegisters;
  if (kStagedOp || StoreOp::kEnabled || p.direct_store) {
    __syncwarp();
    constexpr int kUnits = Config::kChunkRowBytes / 16;
    for (int i = lane; i < 16 * kUnits; i += 32) {
      const int row = i / kUnits;
      const int n = piece.filter + i % kUnits * kWidth;
      const std::int64_t m = output_pixel(p, tile, piece, row);
      if (m < 0 || n >= p.filters) continue;
      uint4* const unit =
          reinterpret_cast<uint4*>(buffer + staged_address<Config>(0, row, i % kUnits));
      alignas(16) Out values[kWidth];
      *reinterpret_cast<uint4*>(values) = *unit;
      if constexpr (kStagedOp) {
        float x[kWidth];
#pragma unroll
        for (int e = 0; e < kWidth; ++e) x[e] = to_float(values[e]);
        compute_op(m, n, x);
#pragma unroll
        for (int e = 0; e < kWidth; ++e) values[e] = from_float<Out>(x[e]);
        *unit = *reinterpret_cast<const uint4*>(values);
      }
      if constexpr (StoreOp::kEnabled) store_op(m, n, values);
      if (p.direct_store && !StoreOp::kReplacesStore) {
        Out* const output = static_cast<Out*>(p.output_pointer) + m * p.filters + n;
        for (int e = 0; e < kWidth && n + e < p.filters; ++e) output[e] = values[e];
      }
    }
  }

  ptx::fence_async_shared();
  __syncwarp();
  if (!p.direct_store && !StoreOp::kReplacesStore && lane == 0) {
    ptx::tma_store_4d(&p.output_map[tile.phase], buffer, piece.filter, piece.pixel, piece.row,
                      tile.frame);
    ptx::tma_store_commit();
  }
  ++staging.sequence;
}

// ---- The kernel -----------------------------------------------------------------------------

template <typename Config, typename ComputeOp = NoComputeOp, typename StoreOp = NoStoreOp>
__global__ void __launch_bounds__(Config::kThreads, 1)
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
      ptx::barrier_init(&act_empty[i], Config::kConsumerWarps);
    }
    for (int i = 0; i < Config::kStages; ++i) {
      // Without a halo both loaders arrive on this barrier: a stage is full with both tiles.
      ptx::barrier_init(&filter_full[i], kHalo ? 1 : 2);
      ptx::barrier_init(&filter_empty[i], Config::kConsumerWarps * Config::kCluster);
    }
    for (int i = 0; i < Config::kConsumerWarps * Config::kStagingBuffers; ++i) {
      ptx::barrier_init(&source_full[i], 1);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();
  if (cluster_size > 1) ptx::cluster_sync();

  ptx::dependent_launch_trigger();
  // NOTE: nothing before this line reads or writes what an earlier kernel may still write or read.
  ptx::dependent_launch_wait();

  if (warp < 4) {
    ptx::set_max_registers_decrease<40>();

    if (warp == 0 && ptx::elect_one()) {
      // -- Activation loader --
      ActState act;
      for (int index = first_tile; index < p.num_cluster_tiles; index += tile_step) {
        const Tile tile = decode_tile<Config>(p, index, m_rank);
        const GroupRange range = group_range<Config>(p, tile, cta_rank, cluster_size);
        for (int group = range.begin; group < range.end; ++group) {
          const int t = tile.t_begin + group / p.channel_blocks;
          const int c = group % p.channel_blocks * Config::BLOCK_K;
          if constexpr (kHalo) {
            const FrameSource source = frame_source(p, tile, t);
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
                ptx::barrier_wait_cluster(&filter_empty[act.index], act.producer_parity());
                ptx::barrier_arrive_expect(&filter_full[act.index], Config::kActBytes);
                load_activation<Config>(p, tile, t, r, s, c,
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
          const int t = tile.t_begin + group / p.channel_blocks;
          const int c = group % p.channel_blocks * Config::BLOCK_K;
          for (int tap = t * taps; tap < (t + 1) * taps; ++tap) {
            ptx::barrier_wait_cluster(&filter_empty[state.index], state.producer_parity());
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
    ptx::set_max_registers_increase<Config::kConsumers == 3 ? 152 : 232>();
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
    std::uint32_t block_offset[kBlocks];
    std::uint32_t row_group_bytes = 1024;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int block = group_index * kBlocks + b;
      block_offset[b] = block * 64 * 128;
      if constexpr (kHalo) {
        block_offset[b] =
            (block / p.patch_columns * 8 * p.halo_width + block % p.patch_columns * 8) * 128;
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
        if (lane < Config::kCluster) ptx::barrier_arrive_remote(&filter_empty[stage], lane);
      }
    };

    ActState act;
    FilterState filter_state;
    for (int index = first_tile; index < p.num_cluster_tiles; index += tile_step) {
      const Tile tile = decode_tile<Config>(p, index, m_rank);
      const GroupRange range = group_range<Config>(p, tile, cta_rank, cluster_size);

      // Fetch the first pieces of the residual while the main loop runs.
      const auto source_piece = [&](int chunk) {
        return piece_at<Config>(p, tile, group_index * kBlocks + chunk / Config::kChunksPerBlock,
                                warp_in_group, chunk % Config::kChunksPerBlock);
      };
      if (prefetch_source && lane == 0) {
        ptx::tma_store_wait_read<0>();
        for (int i = 0; i < min(Config::kStagingBuffers, Config::kChunks); ++i) {
          load_source<Config>(p, tile, staging, staging.sequence + i, source_piece(i));
        }
      }

      float accumulators[kBlocks][Config::BLOCK_N / 2];
      bool accumulate = false;
      std::uint32_t previous_filter = 0;
      std::uint32_t previous_act = 0;
      bool pending_filter = false;
      bool pending_act = false;
      int channel_block = range.begin % p.channel_blocks;
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
            const auto multiply = [&](int step) {
#pragma unroll
              for (int i = 0; i < kBlocks; ++i) {
                Mma::mma(accumulators[i], a[i] + step * 2, b + step * 2, accumulate);
              }
              accumulate = true;
            };
            if (steps == Config::BLOCK_K / 16) {
              wgmma_fence();
#pragma unroll
              for (int step = 0; step < Config::BLOCK_K / 16; ++step) multiply(step);
            } else {
#pragma unroll 1
              for (int step = 0; step < steps; ++step) {
                wgmma_fence();
                multiply(step);
              }
            }
            wgmma_commit();
            wgmma_wait<1>();
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

      if constexpr (!Config::kSplit) {
        // NOTE: the loop is kept rolled, so that the epilogue's code exists once; the switch picks
        // 16 registers, which must not be indexed at run time.
#pragma unroll 1
        for (int chunk = 0; chunk < Config::kChunks; ++chunk) {
          float v[16];
#pragma unroll
          for (int c = 0; c < Config::kChunks; ++c) {
            if (c == chunk) {
#pragma unroll
              for (int i = 0; i < 16; ++i) {
                v[i] =
                    accumulators[c / Config::kChunksPerBlock][c % Config::kChunksPerBlock * 16 + i];
              }
            }
          }
          store_piece<Config>(p, tile, source_piece(chunk), v, staging, compute_op, store_op);
          // Refill the buffer before this one, whose store has had a piece's time to be read.
          const int refill = chunk - 1 + Config::kStagingBuffers;
          if (prefetch_source && lane == 0 && chunk > 0 && refill < Config::kChunks) {
            ptx::tma_store_wait_read<1>();
            load_source<Config>(p, tile, staging, staging.sequence - 2 + Config::kStagingBuffers,
                                source_piece(refill));
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
          const Piece piece =
              piece_at<Config>(p, tile, unit_warp / 4 * kBlocks + chunk / Config::kChunksPerBlock,
                               unit_warp % 4, chunk % Config::kChunksPerBlock);
          if (p.epilogue.has_residual && !p.direct_store && lane == 0) {
            load_source<Config>(p, tile, staging, staging.sequence, piece);
          }
          store_piece<Config>(p, tile, piece, v, staging, compute_op, store_op);
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
    ptx::cluster_sync();
  }
}

}  // namespace convoy::sm90
