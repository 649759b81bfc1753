// SPDX-License-Identifier: Apache-2.0
//
// Compile-time configuration of conv_fprop_sm90, and how a tile number becomes a place in the
// output.
#pragma once

#include "kernels/common/ptx.cuh"
#include "kernels/sm90/params.hpp"

namespace convoy::sm90 {

/// How the consumer warpgroups share the work, and how K is split.
enum class Schedule {
  cooperative,  ///< The warpgroups split the rows of a tile.
  pingpong,     ///< Each warpgroup has its own tiles: one multiplies while the other stores.
  split_k,      ///< Cooperative; the CTAs of a cluster split K and reduce over shared memory.
};

/// Compile-time configuration of the kernel. Illegal combinations are compile-time errors.
template <typename In_, typename Out_, int M, int N, int Consumers, int ClusterM, bool Halo,
          Schedule kSchedule, int FilterStages, int HaloStages = 2, int HaloPixels = 0,
          int StagingPieces = 4, bool Swapped = false, int ClusterN = 1>
struct FpropConfig {
  using In = In_;
  using Out = Out_;
  static constexpr int BLOCK_M = M;
  static constexpr int BLOCK_N = N;
  static constexpr int BLOCK_K = 64;            // channels of a stage: one 128-byte swizzle row
  static constexpr int kConsumers = Consumers;  // consumer warpgroups
  static constexpr int kClusterM = ClusterM;    // CTAs along M, which share filter tiles
  static constexpr int kClusterN = ClusterN;    // or along N, which share activation tiles
  static constexpr int kCluster = ClusterM * ClusterN;
  static constexpr bool kHalo = Halo;
  static constexpr int kHaloPixels = HaloPixels;  // input pixels a halo stage holds
  static constexpr bool kSplit = kSchedule == Schedule::split_k;
  static constexpr bool kPingPong = kSchedule == Schedule::pingpong;
  // Resident: 1x1 filters whose blocks of a tile are loaded once and stay in their stages, while
  // activation tiles pass by in a ring of their own, as with a halo.
  static constexpr bool kResident = !Halo && HaloPixels > 0;
  static constexpr bool kOwnActRing = Halo || kResident;
  static constexpr int kStages = FilterStages;
  static constexpr int kActStages = kOwnActRing ? HaloStages : FilterStages;
  // Swapped: filters are the rows of the MMA and pixels its columns, so that a tile may have any
  // multiple of 32 pixels: what fits a layer's pixels to the multiprocessors.
  static constexpr bool kSwapped = Swapped;
  static constexpr int kMmaRows = Swapped ? N : M;
  static constexpr int kMmaColumns = Swapped ? M : N;
  static constexpr int kBlocksPerGroup = kMmaRows / 64 / (kPingPong ? 1 : Consumers);

  static constexpr int kThreads = 128 * (1 + Consumers);
  static constexpr int kCtasPerSm = kSplit && Consumers == 1 ? 2 : 1;
  static constexpr int kConsumerWarps = 4 * Consumers;
  static constexpr int kReleasingWarps = kPingPong ? 4 : kConsumerWarps;  // readers of a stage
  static constexpr int kActBytes = Halo ? (HaloPixels * 128 + 1023) / 1024 * 1024 : M * 128;
  static constexpr int kFilterBytes = N * 128;

  // Registers a thread after the roles part (setmaxnreg), of 64 K in all.
  static constexpr bool kManyRegisters = kBlocksPerGroup * kMmaColumns / 2 > 160;
  static constexpr int kLoaderRegisters = kManyRegisters ? 24 : 56;
  static constexpr int kConsumerRegisters =
      Consumers == 3 ? 152
                     : (kCtasPerSm == 2 ? 192 : (kManyRegisters || Consumers == 1 ? 240 : 224));

  // The epilogue moves pieces of 16 rows x 32 filters, or 64 where N and the registers allow it
  // (half the TMA stores): one warp, 16 values a thread for each 32 filters.
  // Swapped tiles: pieces of 32 rows x 64 filters of a warpgroup, each with a buffer of its own.
  static constexpr int kChunkN =
      Swapped || (!kSplit && !kManyRegisters && N % 64 == 0 && sizeof(Out) == 2) ? 64 : 32;
  static constexpr int kHalves = kChunkN / 32;
  static constexpr int kChunkRows = Swapped ? 32 : 16;
  static constexpr int kChunksPerBlock = Swapped ? M / kChunkRows : N / kChunkN;
  static constexpr int kChunks = kBlocksPerGroup * kChunksPerBlock;
  static constexpr int kChunkRowBytes = kChunkN * static_cast<int>(sizeof(Out));
  static constexpr int kChunkBytes = kChunkRows * kChunkRowBytes;
  static constexpr int kStagingBuffers = Swapped ? kChunks : StagingPieces / kHalves;
  static constexpr int kStagings = Swapped ? Consumers : kConsumerWarps;  // that store on their own
  static constexpr int kStagingBytes = kStagings * kStagingBuffers * kChunkBytes;
  static constexpr int kBarriers = 2 * kActStages + 2 * kStages + kStagings * kStagingBuffers;

  static constexpr int kSharedBytes = 1024 /* alignment */ + kActStages * kActBytes +
                                      kStages * kFilterBytes + kStagingBytes + kBarriers * 8;

  static_assert(!kResident || (HaloPixels == M && kPingPong && kCluster == 1 && !Swapped),
                "resident filters: ping-pong, cluster of 1, activation stages of BLOCK_M pixels");
  static_assert(Swapped || StagingPieces % kHalves == 0, "staging must hold whole pieces");
  static_assert(kStagingBuffers >= 2 || kChunks == 1, "a residual is fetched one piece ahead");
  static_assert(M <= 256, "BLOCK_M must be at most 256 (see patch_row)");
  static_assert(kMmaRows % (64 * (kPingPong ? 1 : Consumers)) == 0,
                "the rows of the MMA must be a multiple of 64 for each group that shares a tile");
  static_assert(!Swapped || (!Halo && kSchedule == Schedule::cooperative && M % kChunkRows == 0 &&
                             sizeof(Out) == 2),
                "swapped tiles are cooperative, without halo, BLOCK_M a multiple of 32, 16-bit "
                "outputs");
  static_assert(N % 32 == 0 && N >= 64 && N <= 256, "BLOCK_N must be a multiple of 32 in 64..256");
  static_assert(kBlocksPerGroup * kMmaColumns / 2 <= 192,
                "at most 192 accumulator registers a thread");
  static_assert(Consumers >= 1 && Consumers <= 3, "1 to 3 consumer warpgroups");
  static_assert(!kPingPong || Consumers == 2, "ping-pong takes turns between 2 groups");
  static_assert(kCluster == 1 || kCluster == 2, "tiles are shared by 1 or 2 CTAs");
  static_assert(ClusterN == 1 || !kOwnActRing, "activation tiles are shared of one ring for both");
  static_assert((N / ClusterM) % 8 == 0 && (M / ClusterN) % 8 == 0,
                "a multicast slice must keep whole swizzle groups");
  static_assert(!kSplit || kCluster == 1, "a cluster either shares tiles or splits K");
  static_assert(!kSplit || M * N * 4 <= kActStages * kActBytes + kStages * kFilterBytes,
                "split K keeps the fp32 tile in the stages");
  static_assert(kSharedBytes <= 232448 / kCtasPerSm, "more than the 227 KiB of an SM");
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
  // NOTE: a division costs some 60 cycles and a cooperative tile does not hide them, so the usual
  // cases (one frame, one phase, no temporal taps) go without.
  Tile tile;
  int m = p.phase_filter_tiles.divide(index);
  int n = p.phase_filter_tiles.remainder(index, m);
  tile.phase = tile.phase_row = tile.phase_column = 0;
  if (p.phases > 1) {
    tile.phase = p.filter_tiles.divide(n);
    n = p.filter_tiles.remainder(n, tile.phase);
    tile.phase_row = tile.phase >> 1;
    tile.phase_column = tile.phase & 1;
  }
  if constexpr (Config::kClusterN > 1) n = n * Config::kClusterN + cta_rank;
  tile.filter = n * Config::BLOCK_N;

  tile.frame = tile.batch = tile.z = 0;
  if (p.output_frames > 1) {
    tile.batch = p.tiles_per_batch.divide(m);
    m = p.tiles_per_batch.remainder(m, tile.batch);
    const int band = p.tiles_per_band.divide(m);
    m = p.tiles_per_band.remainder(m, band);
    const bool last = (band + 1) * p.band >= p.m_clusters;
    const FastDivide& band_size = last ? p.last_band : p.full_band;
    tile.z = band_size.divide(m);
    m = band * p.band + band_size.remainder(m, tile.z);
    tile.frame = tile.batch * p.frames_per_batch + tile.z;
  }
  const int m_tile = m * Config::kClusterM + (Config::kClusterM > 1 ? cta_rank : 0);
  tile.pixel = m_tile * Config::BLOCK_M;
  tile.row = tile.column = 0;
  if (Config::kHalo || is_patched(p.loader)) {
    const int patch_row = p.patches_across.divide(m_tile);
    tile.row = patch_row * p.tile_rows;
    tile.column = p.patches_across.remainder(m_tile, patch_row) * p.tile_columns;
  }

  tile.t_begin = 0;
  tile.t_end = p.filter[0];
  if (p.skip_taps) {
    const int first = tile.z * p.stride[0] - p.pad[0];
    const int frames_in = p.cached_frames + p.new_frames;
    while (tile.t_begin < tile.t_end && first + tile.t_begin * p.dilation[0] < 0) ++tile.t_begin;
    while (tile.t_end > tile.t_begin && first + (tile.t_end - 1) * p.dilation[0] >= frames_in) {
      --tile.t_end;
    }
  }
  return tile;
}

/// Which row of 8x8 sub-patches 64-row block `block` (0..3) of a patched tile is in.
__device__ __forceinline__ int patch_row(const FpropParams& p, int block) {
  return p.patch_columns == 1 ? block : (block >= p.patch_columns ? 1 : 0);
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

/// One group, and the next.
struct Group {
  int t, block;
  __device__ __forceinline__ void advance(const FpropParams& p) {
    if (++block == p.channel_blocks) {
      block = 0;
      ++t;
    }
  }
};
template <typename Config>
__device__ __forceinline__ Group first_group(const FpropParams& p, const Tile& tile,
                                             const GroupRange& range) {
  if constexpr (!Config::kSplit) return {tile.t_begin, 0};
  const int t = p.blocks.divide(range.begin);
  return {tile.t_begin + t, p.blocks.remainder(range.begin, t)};
}

}  // namespace convoy::sm90
