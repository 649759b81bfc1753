// SPDX-License-Identifier: Apache-2.0
//
// Where the input has what a tile reads: for each pixel of the tile and each tap an address, or
// zeros. There are three ways to know it.
//
//   Rows   1×1 layers: input pixels are output pixels
//   Walk   zeros around rows and columns: a tap is the same way from the first tap of any pixel,
//          so an address is a sum of two numbers, and whether it exists is a bit
//   List   any padding, cache and upsampling: each place is worked out once and listed in shared
//          memory, a ring of the taps that are about to be read
//
// Of each a thread asks `copy_of(p, step, column)`, which part of the reduction it copies in a
// step, then `at(p, copy)`, what all pixels have in common there, and `find(...)` for its rows.
#pragma once

#include <algorithm>

#include "kernels/common/device_geometry.cuh"
#include "kernels/mma/config.hpp"
#include "kernels/mma/params.hpp"
#include "kernels/mma/tile.cuh"

namespace convoy::mma {

/// What a thread copies of one pixel.
struct Source {
  const unsigned char* address;
  bool exists;  ///< Else zeros; the address is not used.
};

/// `count` copies from an address. NOTE: one instruction; of a product and a sum in C++ the
/// compiler makes three.
template <int kBytes>
__device__ __forceinline__ const unsigned char* copies_from(const unsigned char* address,
                                                            int count) {
  std::uint64_t result;
  asm("mad.wide.s32 %0, %1, %2, %3;"
      : "=l"(result)
      : "r"(count), "n"(kBytes), "l"(reinterpret_cast<std::uint64_t>(address)));
  return reinterpret_cast<const unsigned char*>(result);
}

/// Input coordinates (image, frame, row, column) of a pixel's first tap; image −1 past the last
/// pixel of the tile.
__device__ __forceinline__ int4 first_tap(const Params& p, const Tile& tile, int row) {
  const int pixel = tile.pixel + row;
  if (pixel >= tile.pixel_end) return make_int4(-1, 0, 0, 0);
  const int4 o = output_position(p, pixel);
  return make_int4(o.x, o.y * p.stride[0] - p.pad[0], o.z * p.stride[1] - p.pad[1] + tile.phase / 2,
                   o.w * p.stride[2] - p.pad[2] + tile.phase % 2);
}

/// A tap's way from the first one: frames, rows, columns.
__device__ __forceinline__ int3 way_of_tap(const Params& p, int tap) {
  const int row = p.filter_extent[2].divide(tap);
  const int frame = p.filter_extent[1].divide(row);
  const auto way = [&p](int axis, int i) { return i * static_cast<int>(p.dilation[axis].divisor); };
  return make_int3(frame * p.tap_frames, way(1, p.filter_extent[1].remainder(row, frame)),
                   way(2, p.filter_extent[2].remainder(tap, row)));
}

/// Where frame `d` of an image's cached and new frames lies: a frame of the cache or of the
/// activation; no frame where the tap reads zeros.
struct FramePlace {
  int number;
  bool exists, cached;
};
__device__ __forceinline__ FramePlace frame_place(const Params& p, int image, int d) {
  const bool exists = map_coordinate(d, p.seen[0], p.pad_mode[0]);
  const bool cached = d < p.cached_frames;
  return {cached ? image * p.cached_frames + d : image * p.frames + d - p.cached_frames, exists,
          cached};
}

/// The input of a tile: the first channel of its group.
template <Config kConfig>
struct Input {
  const unsigned char* activation;
  const unsigned char* cache;

  __device__ __forceinline__ Input(const Params& p, const Tile& tile) {
    const std::int64_t group = std::int64_t{tile.group} * p.tap_copies.divisor * kConfig.copy_bytes;
    activation = static_cast<const unsigned char*>(p.activation) + group;
    cache = static_cast<const unsigned char*>(p.cache) + group;
  }
};

/// One copy of the reduction: of a tap, from a channel of the group on, in copies.
struct ReductionCopy {
  int tap, channel;

  /// Which one it is of a filter's.
  __device__ __forceinline__ int number(const Params& p) const {
    return tap * static_cast<int>(p.tap_copies.divisor) + channel;
  }
};

/// The copies as a filter has them: a step is the next 128 bytes.
template <Config kConfig>
__device__ __forceinline__ ReductionCopy copy_of_filter(const Params& p, int step, int column) {
  const int number = step * kConfig.row_copies() + column;
  const int tap = p.tap_copies.divide(number);
  return {tap, p.tap_copies.remainder(number, tap)};
}

/// Of places that nobody has to list before a step.
struct AlwaysReady {
  __device__ __forceinline__ void extend_to(const Params&, int) {}
  __device__ __forceinline__ void make_ready(const Params&, int) {}
};

// ---- Rows ---------------------------------------------------------------------------------------

/// Of layers without taps, strides and padding: the input is a matrix, a row a pixel.
template <Config kConfig>
struct Rows : AlwaysReady {
  static constexpr bool kTapsFirst = false;
  static constexpr int kRows = kConfig.block_m / kConfig.rows_at_once();

  const unsigned char* first;  ///< The thread's first pixel.
  int pitch;                   ///< From one of its pixels to the next, in copies.
  std::uint32_t exist;         ///< A bit for each of its pixels.

  __device__ __forceinline__ Rows(const Params& p, const Tile& tile, const Steps&, unsigned char*,
                                  int row)
      : pitch(kConfig.rows_at_once() * static_cast<int>(p.pixel_copies)), exist(0) {
    static_assert(kRows <= 32);
    const int pixel = tile.pixel + row;
    first = Input<kConfig>(p, tile).activation +
            std::int64_t{pixel} * p.pixel_copies * kConfig.copy_bytes;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (pixel + i * kConfig.rows_at_once() < tile.pixel_end) exist |= 1u << i;
    }
  }

  __device__ __forceinline__ static ReductionCopy copy_of(const Params&, int step, int column) {
    return {0, step * kConfig.row_copies() + column};
  }

  struct Step {
    const unsigned char* address;
    std::uint32_t exist;
  };
  __device__ __forceinline__ Step at(const Params& p, ReductionCopy copy) const {
    return {first + std::int64_t{copy.channel} * kConfig.copy_bytes,
            copy.channel < p.reduction_copies ? exist : 0};
  }
  template <int kFirst, int kCount>
  __device__ __forceinline__ void find(const Step& step, Source (&sources)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int pixel = kFirst + i;
      sources[i] = {copies_from<kConfig.copy_bytes>(step.address, pixel * pitch),
                    (step.exist >> pixel & 1) != 0};
    }
  }
};

// ---- Walk ---------------------------------------------------------------------------------------

/// What a tap of zero padding adds to a pixel's first tap, and what it needs: bits of the frame,
/// row and column that it reads. A pixel misses some of them; then the tap reads zeros.
/// NOTE: where tiles stay within a frame (Params::within_frames), the frame is the tap's alone: of
/// the cache or of the activation, padded in any way, and needs no bit.
struct TapPlace {
  const unsigned char* address;
  std::uint32_t needs;
};
struct PixelPlace {
  std::int32_t offset;  ///< Of the first tap, in copies.
  std::uint32_t misses;
};

static_assert(sizeof(TapPlace) == 16 && sizeof(PixelPlace) == 8, "Config::walked_bytes");

/// Bits of TapPlace::needs: frames, rows, columns of the filter, and one that all pixels miss.
inline constexpr std::uint32_t kFirstRowBit = kWalkedFrames;
inline constexpr std::uint32_t kFirstColumnBit = kFirstRowBit + kWalkedRows;
inline constexpr std::uint32_t kNowhere = 1u << 31;
static_assert(kFirstColumnBit + kWalkedColumns <= 31);

template <Config kConfig>
struct Walk : AlwaysReady {
  static constexpr bool kTapsFirst = kConfig.is_wide();  ///< Params::taps_first is heeded.
  static constexpr int kRows = kConfig.block_m / kConfig.rows_at_once();

  const TapPlace* taps;
  PixelPlace pixels[kRows];  ///< Of this thread's rows.

  /// The tables of a tile in shared memory; all threads take part.
  __device__ __forceinline__ Walk(const Params& p, const Tile& tile, const Steps&,
                                  unsigned char* table, int row)
      : taps(reinterpret_cast<const TapPlace*>(table)) {
    const Input<kConfig> input(p, tile);
    auto* const of_taps = reinterpret_cast<TapPlace*>(table);
    auto* const of_pixels = reinterpret_cast<PixelPlace*>(table + kConfig.tap_table_bytes(p.taps));
    const int thread = static_cast<int>(threadIdx.x);
    const int4 first = first_tap(p, tile, 0);
#pragma unroll 1
    for (int tap = thread; tap <= p.taps; tap += kConfig.threads()) {
      of_taps[tap] = tap_place(p, input, first, tap);
    }
#pragma unroll 1
    for (int pixel = thread; pixel < kConfig.block_m; pixel += kConfig.threads()) {
      of_pixels[pixel] = pixel_place(p, first_tap(p, tile, pixel));
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRows; ++i) pixels[i] = of_pixels[row + i * kConfig.rows_at_once()];
  }

  /// `first`: of any pixel of the tile. The tap behind the last one reads nothing.
  __device__ __forceinline__ static TapPlace tap_place(const Params& p, const Input<kConfig>& input,
                                                       int4 first, int tap) {
    if (tap == p.taps) return {input.activation, kNowhere};
    const int3 way = way_of_tap(p, tap);
    const int tap_row = p.filter_extent[2].divide(tap);
    const int tap_frame = p.filter_extent[1].divide(tap_row);
    std::uint32_t needs = 1u << (kFirstRowBit + p.filter_extent[1].remainder(tap_row, tap_frame)) |
                          1u << (kFirstColumnBit + p.filter_extent[2].remainder(tap, tap_row));
    const unsigned char* base = input.activation;
    std::int64_t frame = way.x;
    if (p.within_frames) {
      const FramePlace place = frame_place(p, first.x, first.y + way.x);
      if (!place.exists) return {input.activation, kNowhere};
      if (place.cached) base = input.cache;
      frame = place.number;
    } else {
      needs |= 1u << tap_frame;
    }
    const std::int64_t copies =
        (frame * p.height + way.y) * p.row_copies + std::int64_t{way.z} * p.pixel_copies;
    return {base + copies * kConfig.copy_bytes, needs};
  }

  /// Of the taps along an axis, the first one at `from`, those that lie outside the input: a bit
  /// each. NOTE: not a loop over taps, whose code every block would fetch first.
  __device__ __forceinline__ static std::uint32_t taps_outside(const Params& p, int axis,
                                                               int from) {
    const FastDivide& dilation = p.dilation[axis];
    const int taps = static_cast<int>(p.filter_extent[axis].divisor), last = p.seen[axis] - 1;
    const int out_of = dilation.divide(max(-from - 1, 0)) + 1;   // Taps, where one is in front,
    const int up_to = dilation.divide(max(last - from, 0)) + 1;  // and where one is not behind.
    const bool together = axis == 0 && p.tap_frames == 0;
    const int before = from < 0 ? (together ? taps : min(out_of, taps)) : 0;
    const int inside = from <= last ? (together ? taps : min(up_to, taps)) : 0;
    const auto first_bits = [](int count) { return (1u << count) - 1; };
    return first_bits(taps) & ~(first_bits(inside) & ~first_bits(before));
  }

  __device__ __forceinline__ static PixelPlace pixel_place(const Params& p, int4 first) {
    if (first.x < 0) return {0, ~0u};
    std::uint32_t misses = kNowhere | taps_outside(p, 1, first.z) << kFirstRowBit |
                           taps_outside(p, 2, first.w) << kFirstColumnBit;
    int row = first.z;
    if (!p.within_frames) {
      misses |= taps_outside(p, 0, first.y);
      row += (first.x * p.frames + first.y) * p.height;
    }
    return {row * static_cast<int>(p.row_copies) + first.w * static_cast<int>(p.pixel_copies),
            misses};
  }

  __device__ __forceinline__ static ReductionCopy copy_of(const Params& p, int step, int column) {
    if constexpr (!kTapsFirst) return copy_of_filter<kConfig>(p, step, column);
    const int number = p.taps_first ? step : step * kConfig.row_copies() + column;
    const int quotient = p.inner.divide(number), rest = p.inner.remainder(number, quotient);
    if (!p.taps_first) return {quotient, rest};
    return {rest, quotient * kConfig.row_copies() + column};
  }

  struct Step {
    const unsigned char* address;
    std::uint32_t needs;
  };
  __device__ __forceinline__ Step at(const Params& p, ReductionCopy copy) const {
    const TapPlace place = taps[min(copy.tap, p.taps)];
    return {place.address + std::int64_t{copy.channel} * kConfig.copy_bytes, place.needs};
  }
  /// Of this thread's rows from the kFirst-th on.
  template <int kFirst, int kCount>
  __device__ __forceinline__ void find(const Step& step, Source (&sources)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const PixelPlace& pixel = pixels[kFirst + i];
      sources[i] = {copies_from<kConfig.copy_bytes>(step.address, pixel.offset),
                    (pixel.misses & step.needs) == 0};
    }
  }
};

// ---- List ---------------------------------------------------------------------------------------

/// A place in the list: copies from the first element of the activation, or with kInCache of the
/// cache; kZeros where the tap reads zeros.
inline constexpr std::uint32_t kInCache = 1u << 31;
inline constexpr std::uint32_t kZeros = ~0u;

/// The place of the pixel whose first tap is `first`, under `tap`.
__device__ __forceinline__ std::uint32_t place_under_tap(const Params& p, int4 first, int tap) {
  if (first.x < 0 || tap >= p.taps) return kZeros;
  const int3 way = way_of_tap(p, tap);
  int h = first.z + way.y, w = first.w + way.z;
  const FramePlace frame = frame_place(p, first.x, first.y + way.x);
  if (!frame.exists || !map_coordinate(h, p.seen[1], p.pad_mode[1]) ||
      !map_coordinate(w, p.seen[2], p.pad_mode[2])) {
    return kZeros;
  }
  const std::uint32_t row = frame.number * p.height + (h >> p.upsample_shift);
  const std::uint32_t place = row * p.row_copies + (w >> p.upsample_shift) * p.pixel_copies;
  return frame.cached ? place | kInCache : place;
}

/// The list, a ring of taps: `places[tap & mask][row of the tile]`. Each thread keeps the first
/// taps of one pixel or some and writes their places.
template <Config kConfig>
struct List {
  static constexpr bool kTapsFirst = false;
  static constexpr int kTapsAtOnce = std::max(1, kConfig.threads() / kConfig.block_m);
  static constexpr int kPixels = std::max(1, kConfig.block_m / kConfig.threads());

  std::uint32_t* places;
  Input<kConfig> input;
  int row;  ///< This thread's first to copy.
  int4 first[kPixels];
  int listed;  ///< Taps below are in the list.

  __device__ __forceinline__ List(const Params& p, const Tile& tile, const Steps& steps,
                                  unsigned char* table, int row)
      : places(reinterpret_cast<std::uint32_t*>(table)),
        input(p, tile),
        row(row),
        listed(p.tap_copies.divide(steps.begin * kConfig.row_copies())) {
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      first[i] = first_tap(p, tile, pixel_of_thread() + i * kConfig.threads());
    }
  }
  __device__ __forceinline__ static int pixel_of_thread() {
    return static_cast<int>(threadIdx.x) % kConfig.block_m;
  }

  /// Write the taps that `step` reads and that are not there yet.
  __device__ __forceinline__ void extend_to(const Params& p, int step) {
    const int end = p.tap_copies.divide((step + 1) * kConfig.row_copies() - 1) + 1;
    for (int tap = listed + static_cast<int>(threadIdx.x) / kConfig.block_m; tap < end;
         tap += kTapsAtOnce) {
      std::uint32_t* const row_of_tap =
          places + (tap & p.list_mask) * kConfig.list_pitch() + pixel_of_thread();
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
        row_of_tap[i * kConfig.threads()] = place_under_tap(p, first[i], tap);
      }
    }
    listed = end;
  }
  /// The same, for all threads.
  __device__ __forceinline__ void make_ready(const Params& p, int step) {
    extend_to(p, step);
    __syncthreads();
  }

  __device__ __forceinline__ static ReductionCopy copy_of(const Params& p, int step, int column) {
    return copy_of_filter<kConfig>(p, step, column);
  }

  struct Step {
    const std::uint32_t* places;  ///< Of the thread's first row.
    std::uint32_t channel;        ///< In copies.
  };
  __device__ __forceinline__ Step at(const Params& p, ReductionCopy copy) const {
    return {places + (copy.tap & p.list_mask) * kConfig.list_pitch() + row,
            static_cast<std::uint32_t>(copy.channel)};
  }
  template <int kFirst, int kCount>
  __device__ __forceinline__ void find(const Step& step, Source (&sources)[kCount]) const {
    std::uint32_t found[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      found[i] = step.places[(kFirst + i) * kConfig.rows_at_once()];
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const std::uint64_t copies = (found[i] & ~kInCache) + step.channel;
      sources[i] = {
          (found[i] >= kInCache ? input.cache : input.activation) + copies * kConfig.copy_bytes,
          found[i] != kZeros};
    }
  }
};

}  // namespace convoy::mma
