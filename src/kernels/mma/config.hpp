// SPDX-License-Identifier: Apache-2.0
//
// Compile-time configuration of the convolution by mma.sync: tile, warps, stages, how wide the
// input is gathered. Plain host C++ (the kernel, its host twin and the model read it).
#pragma once

#include <cstdint>

#include "convoy/types.hpp"
#include "kernels/common/packed_config.hpp"

namespace convoy::mma {

/// Bytes of the reduction that a stage holds of every pixel and filter: eight cells of 16 bytes. An
/// MMA takes two of them.
inline constexpr int kRowBytes = 128;
inline constexpr int kStepBytes = 32;

/// Extents of a filter that can be walked (input.cuh): a bit each. Frames count only where tiles
/// have pixels of several.
inline constexpr int kWalkedFrames = 5, kWalkedRows = 13, kWalkedColumns = 13;

/// Epilogues that a kernel computes. NOTE: the most common ones have kernels of their own: where
/// code comes cold, as it mostly does in a model, a jump over code that does not run takes up to
/// 1 us (docs/lab/2026-11-28-mma-turns.md).
enum class Epilogues {
  linear,  ///< At most a scale, a bias and ReLU; outputs of the input's 16-bit type, unsplit.
  others,  ///< All that are not linear.
  all,
};

/// Compile-time configuration of the kernel; `ValidConfig` refuses illegal combinations.
/// NOTE: 16 bytes without gaps: a configuration is part of a kernel's name, as two words.
struct Config {
  DType in = DType::bf16;        ///< Of activation and filter; fp32 is multiplied as TF32
                                 ///< or, with `split`, to the accuracy of fp32.
  std::int16_t block_m = 128;    ///< Output pixels of a CTA's tile.
  std::int16_t block_n = 128;    ///< Filters of it.
  std::int8_t warps_m = 2;       ///< Warps that share the pixels of the tile,
  std::int8_t warps_n = 4;       ///< and its filters.
  std::int16_t stages = 3;       ///< Stages of the ring in shared memory.
  std::int16_t copy_bytes = 16;  ///< What one copy brings: it divides the channels of a group.
  bool split = false;            ///< fp32 in two parts of TF32 and three products.
  bool persistent = false;       ///< Blocks of linear epilogues can take tile after tile.

  friend constexpr bool operator==(const Config&, const Config&) = default;

  // ---- What follows from the fields -----------------------------------------------------------

  constexpr int warps() const { return warps_m * warps_n; }
  constexpr int threads() const { return 32 * warps(); }
  /// Pixels and filters of a warp's part of the tile.
  constexpr int warp_m() const { return block_m / warps_m; }
  constexpr int warp_n() const { return block_n / warps_n; }
  /// Accumulator registers a thread.
  constexpr int accumulators() const { return warp_m() * warp_n() / 32; }
  /// Registers of fragments a thread, for two MMA steps; with `split` also the lower parts of one
  /// step, and the sums of a step's products for 16 pixels.
  constexpr int fragments() const {
    return (split ? 3 : 2) * (warp_m() + warp_n()) / 4 + (split ? warp_n() / 2 : 0);
  }
  /// CTAs that share a multiprocessor as far as its 64 K registers go, with 56 a thread for
  /// addresses and what else there is, and at most 227 KB of shared memory.
  constexpr int ctas_per_sm() const {
    const int registers = (accumulators() + fragments() + 56 + 7) / 8 * 8;
    const int by_registers = 65536 / (threads() * (registers < 256 ? registers : 256));
    const int by_memory = 227 * 1024 / ring_bytes();
    return by_registers < by_memory ? by_registers : by_memory;
  }
  /// Whether a block has a multiprocessor to itself: nobody else multiplies while it begins a tile.
  constexpr bool is_alone() const { return ctas_per_sm() == 1; }
  /// Whether most of a stage are filters: such a tile, walked, can take the taps first.
  constexpr bool is_wide() const { return is_alone() && block_n >= 2 * block_m; }
  /// Whether blocks can take tile after tile.
  constexpr bool can_persist(Epilogues epilogues) const {
    return is_alone() || (persistent && epilogues == Epilogues::linear);
  }

  /// Elements of the reduction in a stage, and in a copy.
  constexpr int block_k() const { return kRowBytes / static_cast<int>(size_of(in)); }
  constexpr int copy_elements() const { return copy_bytes / static_cast<int>(size_of(in)); }
  /// Copies that make a row of a stage, and rows that the threads copy at once.
  constexpr int row_copies() const { return kRowBytes / copy_bytes; }
  constexpr int rows_at_once() const { return threads() / row_copies(); }

  constexpr int act_bytes() const { return block_m * kRowBytes; }
  constexpr int stage_bytes() const { return (block_m + block_n) * kRowBytes; }
  constexpr int ring_bytes() const { return stages * stage_bytes(); }
  /// NOTE: a thread that copies 2 to 8 bytes at a time has too many rows to keep their places.
  constexpr bool can_walk() const { return copy_bytes == 16; }
  /// Whether there is a kernel of linear epilogues.
  constexpr bool has_linear() const { return can_walk() && in != DType::fp32; }
  /// From a tap of the list of places to the next. NOTE: 16 bytes more than pixels, so that threads
  /// that read 4 pixels under 8 taps do so without bank conflicts.
  constexpr int list_pitch() const { return block_m + 4; }
  /// Shared memory of a CTA: the ring, and
  /// - a list of `taps` taps of its pixels' places, or
  constexpr int listed_bytes(int taps) const { return ring_bytes() + taps * list_pitch() * 4; }
  /// - where each of `taps` taps and each pixel lies.
  static constexpr int tap_table_bytes(int taps) { return (taps + 1) * 16; }
  constexpr int walked_bytes(int taps) const {
    return ring_bytes() + tap_table_bytes(taps) + block_m * 8;
  }
};

/// Instantiate to have a configuration judged: each rule says what is legal.
template <Config kConfig>
struct ValidConfig {
  static constexpr Config kValue = kConfig;

  static_assert(kConfig.block_m % (16 * kConfig.warps_m) == 0,
                "mma::Config::block_m is a multiple of 16 for each of warps_m");
  static_assert(kConfig.block_n % (16 * kConfig.warps_n) == 0 && kConfig.warp_n() <= 64,
                "mma::Config::block_n is a multiple of 16, at most 64, for each of warps_n");
  static_assert(kConfig.accumulators() <= 128,
                "mma::Config: a warp's part takes at most 128 accumulator registers a thread");
  static_assert(kConfig.threads() <= 256, "mma::Config: at most 8 warps");
  static_assert(kConfig.threads() % kConfig.block_m == 0 ||
                    kConfig.block_m % kConfig.threads() == 0,
                "mma::Config::block_m divides the threads or is a multiple of them");
  static_assert(kConfig.copy_bytes == 16 || kConfig.copy_bytes == 8 || kConfig.copy_bytes == 4 ||
                    (kConfig.copy_bytes == 2 && size_of(kConfig.in) == 2),
                "mma::Config::copy_bytes is 16, 8, 4, or 2 with elements of 2 bytes");
  static_assert(kConfig.rows_at_once() >= 1 && kConfig.block_m % kConfig.rows_at_once() == 0 &&
                    kConfig.block_n % kConfig.rows_at_once() == 0,
                "mma::Config: the rows that the threads copy at once divide block_m and block_n");
  static_assert(kConfig.stages >= 2, "mma::Config::stages is at least 2");
  static_assert(!kConfig.split || kConfig.in == DType::fp32, "mma::Config::split is of fp32");
  static_assert(!(kConfig.split && kConfig.is_wide()),
                "mma::Config::split is of tiles that are not wide: sum_by_fma takes the reduction "
                "as a filter has it, and wide tiles the taps first");
};

/// A legal configuration as the type that the kernels take.
template <Config kConfig>
using Packed = PackedConfigOf<Config, ValidConfig<kConfig>::kValue>;

}  // namespace convoy::mma
