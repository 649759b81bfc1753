// SPDX-License-Identifier: Apache-2.0
//
// Pieces of the output: 16 pixels x 32 or 64 filters that a warp stages in shared memory, and how
// they come from and go to memory, by TMA and where TMA cannot.
#pragma once

#include <cstring>

#include "kernels/common/ptx.cuh"
#include "kernels/sm90/config.hpp"
#include "kernels/sm90/smem.cuh"
#include "kernels/sm90/tile.cuh"

namespace convoy::sm90 {

/// Staging buffers of a consumer warp (of a warpgroup where tiles are swapped): a ring of pieces
/// that are (with a residual) filled by TMA, overwritten in place by the result, and stored by TMA.
struct Staging {
  std::uint8_t* buffers;
  ptx::Barrier* source_full;
  std::uint8_t* shifts;     // of the statistics, where they are taken
  std::uint32_t tiles = 0;  // whose residual went through the buffers
};

/// Phase of a piece's source barrier: piece q of every tile uses buffer q mod staging_buffers.
template <Config kConfig>
__device__ __forceinline__ std::uint32_t source_parity(const Staging& staging, int q) {
  constexpr int kBuffers = kConfig.staging_buffers();
  const int uses = (kConfig.pieces() - q % kBuffers + kBuffers - 1) / kBuffers;  // in one tile
  return (staging.tiles * uses + q / kBuffers) & 1;
}

/// Coordinates of a piece: 16 pixels (a run of a linear tile, or 2 rows of 8 of a patched one).
struct Piece {
  int filter;  // first filter, of the group's
  int pixel;   // linear: first pixel in the frame; patched: column
  int row;     // patched: row; linear: 0
};

/// The piece that row block `block` of a tile, rows 16·warp of it, has at filters piece_n·chunk.
template <Config kConfig>
__device__ __forceinline__ Piece piece_at(const Params& p, const Tile& tile, int block,
                                          int warp_in_warpgroup, int chunk) {
  Piece piece;
  piece.filter = tile.filter + chunk * kConfig.piece_n();
  if (is_patched<kConfig>(p)) {
    const int row = patch_row(p, block);
    piece.pixel = tile.column + (block - row * p.patch_columns) * 8;
    piece.row = tile.row + row * 8 + warp_in_warpgroup * 2;
  } else {
    piece.pixel = tile.pixel + block * 64 + warp_in_warpgroup * 16;
    piece.row = 0;
  }
  return piece;
}

/// Output pixel (n·Z·P·Q order) of row `i` of a piece, or -1 outside the output.
template <Config kConfig>
__device__ __forceinline__ std::int64_t output_pixel(const Params& p, const Tile& tile,
                                                     const Piece& piece, int i) {
  if (!is_patched<kConfig>(p)) {
    const std::int64_t pixel = static_cast<std::int64_t>(piece.pixel) + i;
    return pixel < p.frame_pixels ? tile.frame * p.frame_pixels + pixel : -1;
  }
  const int row = piece.row + i / 8;
  const int column = piece.pixel + i % 8;
  if (row >= p.out[1] || column >= p.out[2]) return -1;
  const int scale = p.phases == 4 && !in_groups<kConfig>(p) ? 2 : 1;
  const std::int64_t rows = static_cast<std::int64_t>(p.out[1]) * scale;
  return (tile.frame * rows + row * scale + tile.phase_row) * (p.out[2] * scale) + column * scale +
         tile.phase_column;
}

/// Shared-memory address of 16-byte unit `unit` of row `row` of a piece: the 64- or 128-byte
/// swizzle of the output map, or none.
template <Config kConfig>
__device__ __forceinline__ std::uint32_t staged_address(std::uint32_t buffer, int row, int unit) {
  int place = unit;
  if (!kConfig.is_odd()) place ^= kConfig.piece_row_bytes() == 64 ? row / 2 % 4 : row % 8;
  return buffer + row * kConfig.piece_row_bytes() + place * 16;
}

/// Start the TMA load of a piece of the residual into a staging buffer.
template <Config kConfig>
__device__ __forceinline__ void load_source(const Params& p, const Tile& tile,
                                            const Staging& staging, int buffer,
                                            const Piece& piece) {
  ptx::barrier_arrive_expect(&staging.source_full[buffer], kConfig.piece_bytes());
  if (in_groups<kConfig>(p)) {
    ptx::tma_load_5d(staging.buffers + buffer * kConfig.piece_bytes(), &p.source_map[0],
                     &staging.source_full[buffer], ptx::kL2EvictFirst, piece.filter, tile.phase,
                     piece.pixel, piece.row, tile.frame);
    return;
  }
  ptx::tma_load_4d(staging.buffers + buffer * kConfig.piece_bytes(), &p.source_map[tile.phase],
                   &staging.source_full[buffer], ptx::kL2EvictFirst, piece.filter, piece.pixel,
                   piece.row, tile.frame);
}

/// Store a staged piece by TMA.
template <Config kConfig>
__device__ __forceinline__ void store_staged(const Params& p, const Tile& tile,
                                             const Staging& staging, int buffer,
                                             const Piece& piece) {
  if (in_groups<kConfig>(p)) {
    ptx::tma_store_5d(&p.output_map[0], staging.buffers + buffer * kConfig.piece_bytes(),
                      piece.filter, tile.phase, piece.pixel, piece.row, tile.frame);
    return;
  }
  ptx::tma_store_4d(&p.output_map[tile.phase], staging.buffers + buffer * kConfig.piece_bytes(),
                    piece.filter, piece.pixel, piece.row, tile.frame);
}

/// Where a lane finds its values in a staged piece.
template <Config kConfig>
struct PieceLane {
  int lane, row, matrix_row, matrix_unit;
  __device__ PieceLane()
      : lane(static_cast<int>(ptx::lane_id())),
        row(lane / 4),
        matrix_row((lane / 8 % 2) * 8 + lane % 8),  // of stmatrix / ldmatrix
        matrix_unit(lane / 16) {}
  /// Byte offset of the fp32 pair v[2i], v[2i + 1].
  __device__ std::uint32_t pair_offset(int i) const {
    return staged_address<kConfig>(0, row + 8 * (i % 2), i / 2 * 2 + lane % 4 / 2) + lane % 2 * 8;
  }
};

/// Words of 4 bytes of a piece between a staging buffer and memory, where TMA cannot: neighbouring
/// lanes have neighbouring words of a row. `copy(word, element, count)`: of `count` elements in
/// range, 0 to 4 / size, from the tensor's `element` on.
// NOTE: a lane keeps its column, and rows are a step apart: ten instructions a word, not forty.
template <Config kConfig, typename Copy>
__device__ __forceinline__ void for_each_word(const Params& p, const Tile& tile, const Piece& piece,
                                              std::uint8_t* buffer, int lane, const Copy& copy) {
  constexpr int kWords = kConfig.piece_row_bytes() / 4;
  constexpr int kWidth = 4 / static_cast<int>(size_of(kConfig.out));
  constexpr int kRowsAtOnce = 32 / kWords;
  const int word = lane % kWords;
  const int n = piece.filter + word * kWidth;
  const int count = max(0, min(kWidth, p.filters - n));
  // Eight pixels side by side, and eight behind them, or of a patch below.
  const bool patched = is_patched(p.loader);
  const int scale = patched && p.phases == 4 && !in_groups<kConfig>(p) ? 2 : 1;
  const std::int64_t width = static_cast<std::int64_t>(p.out[2]) * scale;
  std::int64_t first = tile.frame * p.frame_pixels + piece.pixel;
  if (patched) {
    first = (static_cast<std::int64_t>(tile.frame) * p.out[1] * scale + piece.row * scale +
             tile.phase_row) *
                width +
            piece.pixel * scale + tile.phase_column;
  }
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    const std::int64_t pixel = first + (patched ? half * width * scale : half * 8);
    const std::int64_t left = patched ? (piece.row + half < p.out[1] ? p.out[2] - piece.pixel : 0)
                                      : p.frame_pixels - piece.pixel - half * 8;
    std::int64_t element = (pixel + lane / kWords * scale) * p.filters + n;
#pragma unroll
    for (int i = 0; i < 8; i += kRowsAtOnce) {
      const int row = i + lane / kWords;
      copy(reinterpret_cast<std::uint32_t*>(buffer +
                                            staged_address<kConfig>(0, half * 8 + row, word / 4)) +
               word % 4,
           element, row < left ? count : 0);
      element += static_cast<std::int64_t>(kRowsAtOnce) * scale * p.filters;
    }
  }
}

/// Whether all 16 pixels of a piece are of the output.
template <Config kConfig>
__device__ __forceinline__ bool is_inside(const Params& p, const Piece& piece) {
  return is_patched(p.loader) ? piece.row + 2 <= p.out[1] && piece.pixel + 8 <= p.out[2]
                              : piece.pixel + 16 <= p.frame_pixels;
}

/// The words of 4 bytes that a lane has of a piece whose pixels are all inside, a step of rows
/// apart. NOTE: in a ping-pong tile a scheduler has one warp that stores. So all words are read
/// before the first is written, and what is the same for all of them is worked out once.
template <Config kConfig>
struct InsideWords {
  using Out = Element<kConfig.out>;
  static constexpr int kWidth = 4 / static_cast<int>(sizeof(Out));
  static constexpr int kWords = kConfig.piece_row_bytes() / 4;
  static constexpr int kRowsAtOnce = 32 / kWords;
  static constexpr int kCount = 16 / kRowsAtOnce;

  int word, row;            ///< Column, and first row.
  std::int64_t first;       ///< Element of the first word.
  std::int64_t next, half;  ///< From a pixel to the next; from eight to those behind, or below.
  int elements;             ///< Of its row from the word on; none or less: none.
  bool in_words;            ///< Rows begin at words.

  __device__ __forceinline__ InsideWords(const Params& p, const Tile& tile, const Piece& piece,
                                         int lane)
      : word(lane % kWords), row(lane / kWords) {
    const bool patched = is_patched(p.loader);
    const int scale = patched && p.phases == 4 && !in_groups<kConfig>(p) ? 2 : 1;
    const int n = piece.filter + word * kWidth;
    next = static_cast<std::int64_t>(scale) * p.filters;
    half = (patched ? static_cast<std::int64_t>(p.out[2]) * scale : 8) * next;
    first = output_pixel<kConfig>(p, tile, piece, 0) * p.filters + n + row * next;
    elements = p.filters - n;
    in_words = p.filters % kWidth == 0;
  }
  __device__ __forceinline__ std::int64_t element(int i) const {
    constexpr int kHalf = kCount / 2;
    return first + i / kHalf * half + i % kHalf * (kRowsAtOnce * next);
  }
  /// In the staging buffer.
  __device__ __forceinline__ int offset(int i) const {
    return static_cast<int>(staged_address<kConfig>(0, i * kRowsAtOnce + row, word / 4)) +
           word % 4 * 4;
  }
};

/// Fill a staging buffer with a piece of the residual by ordinary loads, where TMA cannot.
template <Config kConfig>
__device__ __forceinline__ void fill_source(const Params& p, const Tile& tile, const Piece& piece,
                                            std::uint8_t* buffer, int lane) {
  using Words = InsideWords<kConfig>;
  using Out = typename Words::Out;
  constexpr int kWidth = Words::kWidth;
  const Out* const source = static_cast<const Out*>(p.source_pointer);
  if (!is_inside<kConfig>(p, piece)) {
    for_each_word<kConfig>(p, tile, piece, buffer, lane,
                           [&](std::uint32_t* word, std::int64_t element, int count) {
                             Out values[kWidth] = {};
#pragma unroll
                             for (int e = 0; e < kWidth; ++e) {
                               if (e < count) values[e] = source[element + e];
                             }
                             memcpy(word, values, 4);
                           });
    return;
  }
  const Words at(p, tile, piece, lane);
  std::uint32_t words[Words::kCount] = {};
  if (at.elements > 0) {
#pragma unroll
    for (int i = 0; i < Words::kCount; ++i) {
      const Out* const from = source + at.element(i);
      if (at.in_words) {
        words[i] = *reinterpret_cast<const std::uint32_t*>(from);
      } else {
        Out values[kWidth] = {from[0]};
        if (at.elements >= kWidth) values[kWidth - 1] = from[kWidth - 1];
        memcpy(&words[i], values, 4);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < Words::kCount; ++i) {
    *reinterpret_cast<std::uint32_t*>(buffer + at.offset(i)) = words[i];
  }
}

/// Write a staged piece of all filters, whose pixels are all inside, by ordinary stores of 16 bytes
/// a lane: eight pixels side by side are one run of memory, of a multiple of 16 bytes. False: runs
/// begin elsewhere.
template <Config kConfig>
__device__ __forceinline__ bool store_dense(const Params& p, const Tile& tile, const Piece& piece,
                                            const std::uint8_t* buffer, int lane) {
  using Out = Element<kConfig.out>;
  constexpr int kWidth = 16 / static_cast<int>(sizeof(Out));
  const bool patched = is_patched(p.loader);
  if (p.phases > 1 || piece.filter > 0) return false;
  const std::int64_t pixel =
      patched
          ? (static_cast<std::int64_t>(tile.frame) * p.out[1] + piece.row) * p.out[2] + piece.pixel
          : tile.frame * p.frame_pixels + piece.pixel;
  const std::int64_t next = static_cast<std::int64_t>(patched ? p.out[2] : 8) * p.filters;
  Out* const output = static_cast<Out*>(p.output_pointer) + pixel * p.filters;
  if ((reinterpret_cast<std::uintptr_t>(output) | next * sizeof(Out)) % 16 != 0) return false;
  const int filters = p.filters, units = 8 * filters / kWidth;  // of a half
#pragma unroll 1
  for (int i = lane; i < 2 * units; i += 32) {
    const int half = i >= units ? 1 : 0;
    const int first = (i - half * units) * kWidth;
    int row = first / filters, n = first - row * filters;
    alignas(16) Out values[kWidth];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      values[e] = *reinterpret_cast<const Out*>(
          buffer + staged_address<kConfig>(0, half * 8 + row, n / kWidth) +
          n % kWidth * sizeof(Out));
      if (++n == filters) {
        n = 0;
        ++row;
      }
    }
    *reinterpret_cast<uint4*>(output + half * next + first) =
        *reinterpret_cast<const uint4*>(values);
  }
  return true;
}

/// Write a staged piece by ordinary stores, where TMA cannot.
template <Config kConfig>
__device__ __forceinline__ void store_words(const Params& p, const Tile& tile, const Piece& piece,
                                            std::uint8_t* buffer, int lane) {
  using Words = InsideWords<kConfig>;
  using Out = typename Words::Out;
  constexpr int kWidth = Words::kWidth;
  Out* const output = static_cast<Out*>(p.output_pointer);
  if (!is_inside<kConfig>(p, piece)) {
    for_each_word<kConfig>(p, tile, piece, buffer, lane,
                           [&](std::uint32_t* word, std::int64_t element, int count) {
                             Out values[kWidth];
                             memcpy(values, word, 4);
#pragma unroll
                             for (int e = 0; e < kWidth; ++e) {
                               if (e < count) output[element + e] = values[e];
                             }
                           });
    return;
  }
  if (p.filters <= kConfig.piece_n() && store_dense<kConfig>(p, tile, piece, buffer, lane)) return;
  const Words at(p, tile, piece, lane);
  if (at.elements <= 0) return;
  std::uint32_t words[Words::kCount];
#pragma unroll
  for (int i = 0; i < Words::kCount; ++i) {
    words[i] = *reinterpret_cast<const std::uint32_t*>(buffer + at.offset(i));
  }
#pragma unroll
  for (int i = 0; i < Words::kCount; ++i) {
    Out* const to = output + at.element(i);
    if (at.in_words) {
      *reinterpret_cast<std::uint32_t*>(to) = words[i];
    } else {
      Out values[kWidth];
      memcpy(values, &words[i], 4);
      to[0] = values[0];
      if (kWidth == 2 && at.elements >= kWidth) to[kWidth - 1] = values[kWidth - 1];
    }
  }
}

}  // namespace convoy::sm90
