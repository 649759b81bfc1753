// SPDX-License-Identifier: Apache-2.0
//
// Compile-time configuration of the Hopper convolution: tile shape, cluster, schedule, pipeline
// depths. Plain host C++ (the kernels, their host twin and the model read it).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "convoy/types.hpp"
#include "kernels/common/packed_config.hpp"

namespace convoy::sm90 {

/// Bytes of a pixel's channels in a stage: one row of the 128-byte swizzle. An MMA takes 32 of
/// them.
inline constexpr int kRowBytes = 128;
inline constexpr int kStepBytes = 32;
/// Bytes of shared memory of an SM that blocks may use on compute capability 9.0, 227 KiB (CUDA C++
/// Programming Guide, technical specifications per compute capability).
inline constexpr int kSharedMemoryBudget = 227 * 1024;

/// How the consumer warpgroups share the work, and how K is split.
enum class Schedule : std::int16_t {
  cooperative,  ///< The warpgroups split the rows of a tile.
  pingpong,     ///< Each warpgroup has its own tiles: one multiplies while the other stores.
  split_k,      ///< Cooperative; the CTAs of a cluster split K and reduce over shared memory.
  /// Cooperative; every block of channels is summed by itself, and fp32 adders add the blocks. What
  /// tensor cores cut off does not add up so (docs/lab/2026-11-22-split-operands.md).
  blockwise,
};

/// Warps that normalise patches.
inline constexpr int kNormaliserWarps = 4;

/// What is loaded, and how often.
enum class Input : std::int16_t {
  runs,      ///< Runs of pixels, once for each tap; one ring of stages for both operands.
  halo,      ///< Patches with their halo, once for all spatial taps, in a ring of their own.
  resident,  ///< 1×1 filters that stay in their stages, while pixels pass in a ring of their own.
  /// As halo, for strides above 1. A stage holds a plane of the patch: of every stride-th row and
  /// column. In it the pixels of neighbouring outputs are neighbours.
  planes,
  /// As halo, with a warpgroup of its own that normalises every patch (normalise.cuh).
  normalised,
  /// As runs, of convolutions in groups. NOTE: apart, since more code in the others' way to their
  /// first load and last store is up to 5 % of a small layer.
  grouped_runs,
  /// As runs, of layers that are products of matrices (is_matrix in host.cpp): one tap, no frames,
  /// phases or groups. NOTE: of a layer of 10 µs half a microsecond goes to code that comes from
  /// memory, most of all behind jumps over what does not run (docs/lab/2026-12-01-short-code.md).
  matrix,
};

/// What the rows of the MMA are. Filters as rows ("swapped"): a tile may have any multiple of 16
/// pixels, which fits a layer's pixels to the multiprocessors.
enum class MmaRows : std::int16_t { pixels, filters };

/// Compile-time configuration of the kernel; `ValidConfig` refuses illegal combinations.
/// NOTE: 16 bits a field: a configuration is part of a kernel's name, as four words.
struct Config {
  DType in = DType::bf16;  ///< Of activation and filter; fp32 is multiplied as TF32.
  DType out = DType::bf16;
  std::int16_t block_m = 128;      ///< Output pixels of a CTA's tile.
  std::int16_t block_n = 128;      ///< Filters of it.
  std::int16_t consumers = 2;      ///< Consumer warpgroups.
  std::int16_t cluster_m = 1;      ///< CTAs along M, which share filter tiles,
  std::int16_t cluster_n = 1;      ///< or along N, which share activation tiles.
  std::int16_t filter_stages = 4;  ///< Stages of the filters; of both operands with Input::runs.
  std::int16_t act_stages = 0;     ///< Stages of the activations' own ring; 0 with Input::runs.
  std::int16_t halo_pixels = 0;    ///< Input pixels of a stage with halo and planes, or 0.
  /// Pieces of 16 pixels x 32 filters (of an odd tile's own) that a warp's epilogue holds: also
  /// those of a residual that are fetched ahead. Not used where filters are the rows.
  std::int16_t staging_pieces = 4;
  Input input = Input::runs;
  Schedule schedule = Schedule::cooperative;
  MmaRows mma_rows = MmaRows::pixels;

  friend constexpr bool operator==(const Config&, const Config&) = default;

  // ---- What follows from the fields -----------------------------------------------------------

  /// Channels of a stage, and of an MMA.
  constexpr int block_k() const { return kRowBytes / static_cast<int>(size_of(in)); }
  constexpr int step_k() const { return kStepBytes / static_cast<int>(size_of(in)); }
  constexpr bool has_planes() const { return input == Input::planes; }
  constexpr bool has_halo() const { return input == Input::halo || has_planes() || normalises(); }
  /// Patches may be runs of pixels, where an image has one row.
  // NOTE: with 160 accumulators or more patches would take 2 to 3 % longer.
  constexpr bool takes_lines() const { return input == Input::halo && accumulators() < 160; }
  /// Patches may be completed in shared memory where they reach outside the input (border.cuh).
  // NOTE: with 160 accumulators or more ptxas spills for it.
  constexpr bool fills_border() const {
    return (input == Input::halo && accumulators() < 160) || normalises();
  }
  /// And normalised there (normalise.cuh).
  constexpr bool normalises() const { return input == Input::normalised; }
  /// The epilogue can take statistics of what it stores (statistics.cuh).
  // NOTE: the tile of most layers behind which a GroupNorm stands; each kernel costs build time.
  constexpr bool takes_statistics() const {
    return (input == Input::halo || normalises()) && is_pingpong() && block_m == 128 &&
           block_n == 128 && cluster_size() == 1 && in != DType::fp32 && out == in;
  }
  constexpr bool is_resident() const { return input == Input::resident; }
  constexpr bool has_act_ring() const {
    return input != Input::runs && input != Input::matrix && input != Input::grouped_runs;
  }
  /// Layers are products of matrices, [pixels, C] by [C, K].
  constexpr bool is_matrix() const { return input == Input::matrix || is_resident(); }
  /// There are entry points for such layers alone: EpiloguePath::linear,
  constexpr bool takes_linear_path() const {
    return (input == Input::runs || is_resident()) && out != DType::fp32 && !splits_k();
  }
  /// and the others of tiles that layers of few microseconds take.
  // NOTE: half a microsecond is little of a layer that large tiles take, and each is to be built.
  constexpr bool takes_matrices_apart() const {
    return input == Input::runs && out != DType::fp32 && block_m * block_n <= 96 * 128;
  }
  /// Tiles may be of convolutions in groups.
  constexpr bool takes_groups() const {
    return input == Input::halo || has_planes() || input == Input::grouped_runs;
  }
  constexpr bool is_pingpong() const { return schedule == Schedule::pingpong; }
  constexpr bool splits_k() const { return schedule == Schedule::split_k; }
  constexpr bool is_blockwise() const { return schedule == Schedule::blockwise; }
  constexpr bool is_swapped() const { return mma_rows == MmaRows::filters; }
  /// Tiles of filters that are no multiple of 32, for layers that have a multiple of as many.
  constexpr bool is_odd() const { return !is_swapped() && block_n % 32 != 0; }
  /// There is EpiloguePath::general: it wants neighbouring filters, in groups of 16.
  constexpr bool takes_general_path() const { return !is_swapped() && !is_odd(); }

  /// CTAs of a cluster that share tiles (those that split K: a launch says).
  constexpr int cluster_size() const { return cluster_m * cluster_n; }
  constexpr int ctas_per_sm() const { return splits_k() && consumers == 1 ? 2 : 1; }
  constexpr int threads() const { return 128 * (1 + consumers + (normalises() ? 1 : 0)); }
  constexpr int consumer_warps() const { return 4 * consumers; }
  /// Warps of a CTA that read a stage, and give it back.
  constexpr int reading_warps() const { return is_pingpong() ? 4 : consumer_warps(); }

  /// Rows and columns of a tile as the MMAs see it.
  constexpr int tile_rows() const { return is_swapped() ? block_n : block_m; }
  constexpr int tile_columns() const { return is_swapped() ? block_m : block_n; }
  /// Blocks of 64 rows that a warpgroup holds.
  constexpr int blocks() const { return tile_rows() / 64 / (is_pingpong() ? 1 : consumers); }
  /// Accumulator registers a thread.
  constexpr int accumulators() const { return blocks() * tile_columns() / 2; }

  /// Registers a thread after the roles part (setmaxnreg), of 64 K in all.
  constexpr bool needs_many_registers() const { return accumulators() > 160; }
  constexpr int loader_registers() const {
    if (normalises()) return 32;
    return needs_many_registers() ? 24 : 56;
  }
  constexpr int normaliser_registers() const { return 80; }
  constexpr int consumer_registers() const {
    if (consumers == 3) return 152;
    if (ctas_per_sm() == 2) return 192;
    if (needs_many_registers() || consumers == 1) return 240;
    return normalises() ? 200 : 224;
  }

  constexpr int act_ring_stages() const { return has_act_ring() ? act_stages : filter_stages; }
  constexpr int act_bytes() const {
    return has_halo() ? (halo_pixels * 128 + 1023) / 1024 * 1024 : block_m * 128;
  }
  /// Scale and shift of a stage's channels, fp32.
  constexpr int factor_floats() const { return normalises() ? 2 * block_k() : 0; }
  constexpr int filter_bytes() const { return block_n * 128; }
  /// Inverse RMS of a patch's pixels, fp32, in rows that begin and end at whole 16 bytes of the
  /// tensor: 16 for 10 pixels.
  constexpr int inverse_rms_floats() const {
    return normalises() ? (halo_pixels * 8 / 5 + 31) / 32 * 32 : 0;
  }

  /// The epilogue stores pieces of 16 pixels x 32 filters, or 64 where N and the registers allow it
  /// (half the TMA stores): one warp, 16 values a thread for each 32 filters ("half"). Swapped
  /// tiles: pieces of 32 (or 16) pixels x 64 filters of a warpgroup, each with a buffer of its own;
  /// with ping-pong, which hides that the buffers serve twice, two of more than two have one.
  /// Odd tiles: pieces of an odd number of 8 filters each, in rows without swizzle. NOTE: rows that
  /// lie an odd number of 16 bytes apart meet in no bank.
  constexpr int piece_n() const {
    if (is_odd()) {
      int eights = block_n / 8;
      while (eights % 2 == 0) eights /= 2;
      return 8 * (eights % 3 == 0 && eights > 9 ? eights / 3 : eights);
    }
    const bool wide =
        !splits_k() && !needs_many_registers() && block_n % 64 == 0 && out != DType::fp32;
    return is_swapped() || wide ? 64 : 32;
  }
  constexpr int piece_m() const { return is_swapped() && block_m % 32 == 0 ? 32 : 16; }
  constexpr int piece_halves() const { return piece_n() / 32; }
  constexpr int pieces_per_block() const {
    return is_swapped() ? block_m / piece_m() : block_n / piece_n();
  }
  constexpr int pieces() const { return blocks() * pieces_per_block(); }
  constexpr int piece_row_bytes() const { return piece_n() * static_cast<int>(size_of(out)); }
  constexpr int piece_bytes() const { return piece_m() * piece_row_bytes(); }
  /// Warps (swapped: warpgroups) that store on their own, and the buffers of each.
  constexpr int storers() const { return is_swapped() ? consumers : consumer_warps(); }
  constexpr int staging_buffers() const {
    if (is_odd()) return staging_pieces;
    if (!is_swapped()) return staging_pieces / piece_halves();
    return is_pingpong() && pieces() > 2 ? (pieces() + 1) / 2 : pieces();
  }
  constexpr int staging_bytes() const { return storers() * staging_buffers() * piece_bytes(); }

  /// Shifts of a warp's statistics: a word a slice of 4 filters.
  constexpr int shift_bytes() const { return takes_statistics() ? block_n : 0; }

  constexpr int barriers() const {
    return (fills_border() ? 3 : 2) * act_ring_stages() + 2 * filter_stages +
           storers() * staging_buffers();
  }
  /// Shared memory of a CTA, with the slack that aligns the tiles to 1024 bytes.
  constexpr int shared_bytes() const {
    return 1024 + act_ring_stages() * act_bytes() + filter_stages * filter_bytes() +
           staging_bytes() + act_ring_stages() * (inverse_rms_floats() + factor_floats()) * 4 +
           storers() * shift_bytes() + barriers() * 8;
  }
};

/// The same tile for layers that are products of matrices.
constexpr Config of_matrices(Config config) {
  if (config.input == Input::runs) config.input = Input::matrix;
  return config;
}

/// The device type of an element.
template <DType kDtype>
struct ElementOf;
template <>
struct ElementOf<DType::bf16> {
  using Type = __nv_bfloat16;
};
template <>
struct ElementOf<DType::fp16> {
  using Type = __half;
};
template <>
struct ElementOf<DType::fp32> {
  using Type = float;
};
template <DType kDtype>
using Element = ElementOf<kDtype>::Type;

/// And the other way round.
template <typename T>
constexpr DType dtype_of() {
  static_assert(std::is_same_v<T, Element<DType::bf16>> ||
                    std::is_same_v<T, Element<DType::fp16>> ||
                    std::is_same_v<T, Element<DType::fp32>>,
                "sm90::Config: elements are __nv_bfloat16, __half or float");
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return DType::bf16;
  return std::is_same_v<T, __half> ? DType::fp16 : DType::fp32;
}

/// Instantiate to have a configuration judged: each rule says what is legal.
template <Config kConfig>
struct ValidConfig {
  static constexpr Config kValue = kConfig;

  static_assert(kConfig.out == kConfig.in || kConfig.out == DType::fp32,
                "sm90::Config::out is the type of in, or fp32");
  static_assert(kConfig.consumers >= 1 && kConfig.consumers <= 3,
                "sm90::Config::consumers is 1 to 3");
  static_assert(!kConfig.is_pingpong() || kConfig.consumers == 2,
                "sm90::Config::consumers is 2 with Schedule::pingpong: they take turns");
  static_assert(kConfig.block_m <= 256, "sm90::Config::block_m is at most 256 (see patch_row)");
  static_assert(kConfig.block_n % 8 == 0 && kConfig.block_n >= 32 && kConfig.block_n <= 256,
                "sm90::Config::block_n is a multiple of 8 in 32..256");
  static_assert(!kConfig.is_odd() ||
                    (!kConfig.splits_k() && !kConfig.is_blockwise() && size_of(kConfig.out) == 2),
                "sm90::Config::block_n is a multiple of 32 with Schedule::split_k and blockwise, "
                "and with fp32 outputs");
  static_assert(kConfig.blocks() >= 1 &&
                    kConfig.tile_rows() % (64 * (kConfig.is_pingpong() ? 1 : kConfig.consumers)) ==
                        0,
                "sm90::Config: the rows of the MMA (block_m; block_n with MmaRows::filters) are a "
                "multiple of 64 for each warpgroup that shares a tile");
  static_assert(kConfig.accumulators() <= 192,
                "sm90::Config: a tile takes at most 192 accumulator registers a thread");
  static_assert(kConfig.cluster_size() == 1 || kConfig.cluster_size() == 2,
                "sm90::Config: cluster_m x cluster_n is 1x1, 2x1 or 1x2");
  static_assert(kConfig.cluster_n == 1 || !kConfig.has_act_ring(),
                "sm90::Config::cluster_n is 1 with Input::halo, planes and resident");
  static_assert((kConfig.block_n / kConfig.cluster_m) % 8 == 0 &&
                    (kConfig.block_m / kConfig.cluster_n) % 8 == 0,
                "sm90::Config: multicast slices (block_n / cluster_m, block_m / cluster_n) are "
                "multiples of 8 rows");
  static_assert(kConfig.filter_stages >= 1, "sm90::Config::filter_stages is at least 1");
  static_assert(kConfig.has_act_ring() ? kConfig.act_stages >= 1 : kConfig.act_stages == 0,
                "sm90::Config::act_stages is at least 1 with Input::halo, planes and resident, "
                "else 0");
  static_assert(kConfig.has_halo() ? kConfig.halo_pixels >= 1 : kConfig.halo_pixels == 0,
                "sm90::Config::halo_pixels is at least 1 with Input::halo and planes, else 0");
  static_assert(!kConfig.is_resident() ||
                    (kConfig.is_pingpong() && kConfig.cluster_size() == 1 && !kConfig.is_swapped()),
                "sm90::Config: Input::resident takes Schedule::pingpong, a cluster of 1, "
                "MmaRows::pixels");
  static_assert(!kConfig.normalises() || (kConfig.is_pingpong() && kConfig.cluster_size() == 1 &&
                                          !kConfig.is_swapped() && kConfig.in != DType::fp32 &&
                                          kConfig.accumulators() < 160),
                "sm90::Config: Input::normalised takes Schedule::pingpong, a cluster of 1, "
                "MmaRows::pixels, 16-bit elements, less than 160 accumulators");
  // A second CTA may have a tile behind the last frame, where its im2col copies cannot start.
  static_assert(kConfig.input != Input::grouped_runs || kConfig.cluster_size() == 1,
                "sm90::Config: Input::grouped_runs takes a cluster of 1");
  static_assert(!kConfig.splits_k() || kConfig.cluster_size() == 1,
                "sm90::Config: a cluster either shares tiles or splits K");
  static_assert(!kConfig.splits_k() || kConfig.block_m * kConfig.block_n * 4 <=
                                           kConfig.act_ring_stages() * kConfig.act_bytes() +
                                               kConfig.filter_stages * kConfig.filter_bytes(),
                "sm90::Config: Schedule::split_k keeps the fp32 tile in the stages");
  static_assert(!kConfig.is_blockwise() || (kConfig.in == DType::fp32 && !kConfig.is_swapped() &&
                                            2 * kConfig.accumulators() <= 160),
                "sm90::Config: Schedule::blockwise takes fp32, MmaRows::pixels, at most 80 "
                "accumulators: it has them twice");
  static_assert(!kConfig.is_swapped() ||
                    ((kConfig.input == Input::runs || kConfig.input == Input::matrix) &&
                     (kConfig.schedule == Schedule::cooperative || kConfig.is_pingpong()) &&
                     kConfig.block_m % kConfig.piece_m() == 0 && kConfig.out != DType::fp32),
                "sm90::Config: MmaRows::filters takes Input::runs or matrix, Schedule::cooperative "
                "or pingpong, block_m a multiple of 16, 16-bit outputs");
  static_assert(kConfig.is_swapped() || kConfig.is_odd() ||
                    kConfig.staging_pieces % kConfig.piece_halves() == 0,
                "sm90::Config::staging_pieces makes whole pieces: even where they have 64 filters");
  static_assert(kConfig.staging_buffers() >= 2 || kConfig.pieces() == 1,
                "sm90::Config::staging_pieces holds two pieces: a residual is fetched one ahead");
  static_assert(kConfig.shared_bytes() <= kSharedMemoryBudget / kConfig.ctas_per_sm(),
                "sm90::Config: the tiles do not fit the 227 KiB of an SM");
};

/// A legal configuration as the type that the kernels take.
template <Config kConfig>
using Packed = PackedConfigOf<Config, ValidConfig<kConfig>::kValue>;

}  // namespace convoy::sm90
