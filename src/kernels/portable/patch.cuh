// SPDX-License-Identifier: Apache-2.0
//
// Convolutions of few input channels (image stems, conv_in): implicit GEMM in which several taps
// share one 16-deep step of the tensor cores. A block keeps the filters of 64 output channels in
// shared memory for its lifetime and walks over tiles of output pixels. For each tile it copies
// the input patch under the tile, halo included, into shared memory once, and every warp builds
// its matrix fragments straight from the patch: the im2col matrix is never written anywhere.
//
// The reduction is cut into chunks of 8 elements that lie side by side in the patch:
//   by row: the S·C elements of a filter row (C small and undilated along the width), or
//   by tap: the C channels of one tap (C a multiple of 8, or dilated).
// A chunk that its row or tap does not fill is masked, so that a neighbour's Inf never meets a
// zero filter element.
#pragma once

#include "kernels/common/ptx.cuh"
#include "kernels/portable/device_code.cuh"
#include "kernels/portable/device_geometry.cuh"
#include "kernels/portable/output.cuh"

namespace convoy {

inline constexpr int kPatchThreads = 256;
inline constexpr int kPatchWarps = kPatchThreads / 32;
inline constexpr int kPatchTileColumns = 16;  // Output columns of a tile: one 16-row MMA fragment.
inline constexpr int kPatchBlockN = 64;       // Filters of a block.

/// Everything about a launch that the host works out. Sizes in elements unless said otherwise.
struct PatchLayout {
  bool by_tap = false;
  int chunks = 0;        ///< Of 8 elements, an even number (the last may be empty).
  int filter_pitch = 0;  ///< From one filter to the next in shared memory.
  int rows = 0;          ///< Of the patch, per frame.
  int columns = 0;       ///< Pixels of a patch row.
  int pixel_pitch = 0;
  int row_pitch = 0;
  int elements = 0;  ///< Of one patch buffer, slack for a row's last chunk included.
  int vector = 1;    ///< Elements copied at once: 8, 4, 2 or 1.
  /// Patch rows are runs of the input: zero padding, no upsampling, pixels dense.
  bool contiguous = false;
  int tiles_p = 0, tiles_q = 0;
  int filter_tiles = 0;
  std::int64_t tiles = 0;  ///< N·Z·tiles_p·tiles_q

  // Shared memory, in bytes: chunk table, filters, two patches, one staging area a warp.
  __host__ __device__ int table_bytes() const { return (chunks * 8 + 15) / 16 * 16; }
  __host__ __device__ int filter_bytes() const { return kPatchBlockN * filter_pitch * 2; }
  __host__ __device__ int patch_bytes() const { return elements * 2; }
  __host__ __device__ int shared_bytes() const {
    return table_bytes() + filter_bytes() + 2 * patch_bytes() +
           kPatchWarps * kStageFloats<kPatchBlockN / 8> * 4;
  }
};

struct PatchArguments {
  const void* activation;
  const void* cache;
  const void* filter;
  DeviceGeometry geometry;
  ConvOutput output;
  PatchLayout layout;
};

#ifdef __CUDACC__

// A chunk of the reduction: where it starts in the patch (relative to a pixel's first tap), where
// in a filter, and how many of its 8 elements exist.
struct PatchChunk {
  int patch_offset;
  int filter_offset_and_valid;  // offset · 16 + valid
};

__device__ __forceinline__ PatchChunk patch_chunk(const DeviceGeometry& g, const PatchLayout& l,
                                                  int index) {
  const int run = l.by_tap ? g.channels : g.filter[2] * g.channels;
  const int chunks_of_run = (run + 7) / 8;
  const int start = index % chunks_of_run * 8;
  int position = index / chunks_of_run;  // Of the tap or the filter row.
  const int filter_offset = position * run + start;
  int s = 0;
  if (l.by_tap) {
    s = position % g.filter[2];
    position /= g.filter[2];
  }
  const int r = position % g.filter[1];
  const int t = position / g.filter[1];
  if (t >= g.filter[0]) return {0, 0};
  const int valid = run - start < 8 ? run - start : 8;
  return {
      (t * l.rows + r * g.dilation[1]) * l.row_pitch + s * g.dilation[2] * l.pixel_pitch + start,
      filter_offset * 16 + valid};
}

// Copy the filters of this block, chunk by chunk, zeros where there is no element.
template <typename Element>
__device__ __forceinline__ void load_patch_filters(const PatchArguments& arguments,
                                                   Element* filters, const PatchChunk* table,
                                                   int first_filter) {
  const DeviceGeometry& g = arguments.geometry;
  const PatchLayout& l = arguments.layout;
  for (int i = static_cast<int>(threadIdx.x); i < kPatchBlockN * l.chunks; i += kPatchThreads) {
    const int chunk = i % l.chunks, k = i / l.chunks;
    const int valid = first_filter + k < g.filters ? table[chunk].filter_offset_and_valid % 16 : 0;
    const Element* from = static_cast<const Element*>(arguments.filter) +
                          (std::int64_t{first_filter} + k) * g.reduction +
                          table[chunk].filter_offset_and_valid / 16;
    using Vector = OutputVector<Element, 8>;
    Vector v;
    if (valid == 8 && g.channels % 8 == 0) {
      v = *reinterpret_cast<const Vector*>(from);
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) v.values[e] = e < valid ? from[e] : from_float<Element>(0.0f);
    }
    *reinterpret_cast<Vector*>(filters + k * l.filter_pitch + chunk * 8) = v;
  }
}

template <int kVector, typename Element>
__device__ __forceinline__ void copy_or_zero(Element* shared, const Element* global, bool valid) {
  if constexpr (kVector == 1) {
    *shared = valid ? *global : from_float<Element>(0.0f);
  } else {
    copy_async<kVector * 2>(ptx::shared_address(shared), global, valid);
  }
}

// Copy the patch under a tile: a warp takes a row at a time.
template <int kVector, typename Element>
__device__ __forceinline__ void load_patch_rows(const PatchArguments& arguments, Element* patch,
                                                int n, int first_d, int first_h, int first_w) {
  const DeviceGeometry& g = arguments.geometry;
  const PatchLayout& l = arguments.layout;
  const auto* activation = static_cast<const Element*>(arguments.activation);
  const auto* cache = static_cast<const Element*>(arguments.cache);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int vectors_of_pixel = g.channels / kVector;
  for (int i = warp; i < g.filter[0] * l.rows; i += kPatchWarps) {
    const int d = first_d + i / l.rows * g.dilation[0];
    const int h = first_h + i % l.rows;
    Element* to = patch + i * l.row_pitch;
    if (l.contiguous) {
      // One run of the input row; `first` may lie in the padding on its left.
      const Element* row = input_pixel(g, activation, cache, n, d, h, 0);
      const int first = first_w * g.channels;
      const int end = g.seen[2] * g.channels;
      for (int e = lane * kVector; e < l.columns * g.channels; e += 32 * kVector) {
        const bool valid = row != nullptr && first + e >= 0 && first + e < end;
        copy_or_zero<kVector>(to + e, valid ? row + first + e : activation, valid);
      }
    } else {
      for (int e = lane; e < l.columns * vectors_of_pixel; e += 32) {
        const int column = e / vectors_of_pixel;
        const int channel = e % vectors_of_pixel * kVector;
        const Element* pixel = input_pixel(g, activation, cache, n, d, h, first_w + column);
        copy_or_zero<kVector>(to + column * l.pixel_pitch + channel,
                              pixel != nullptr ? pixel + channel : activation, pixel != nullptr);
      }
    }
  }
}

// Two neighbouring elements of the patch as one register.
template <bool kPairsAligned, typename Element>
__device__ __forceinline__ std::uint32_t load_pair(const Element* at) {
  if constexpr (kPairsAligned) {
    return *reinterpret_cast<const std::uint32_t*>(at);
  } else {
    const auto* halves = reinterpret_cast<const std::uint16_t*>(at);
    return halves[0] | static_cast<std::uint32_t>(halves[1]) << 16;
  }
}

/// kRows: output rows of a warp, so that a tile has 8·kRows rows of 16 pixels.
/// kPairsAligned: every pair of a fragment starts at an even element of the patch.
template <typename Element, int kRows, bool kPairsAligned>
__global__ void __launch_bounds__(kPatchThreads, 2)
    patch_kernel(const __grid_constant__ PatchArguments arguments) {
  constexpr int kTiles = kPatchBlockN / 8;
  const DeviceGeometry& g = arguments.geometry;
  const PatchLayout& l = arguments.layout;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const table = reinterpret_cast<PatchChunk*>(shared);
  auto* const filters = reinterpret_cast<Element*>(shared + l.table_bytes());
  auto* const patches = reinterpret_cast<Element*>(shared + l.table_bytes() + l.filter_bytes());
  auto* const stages =
      reinterpret_cast<float*>(shared + l.table_bytes() + l.filter_bytes() + 2 * l.patch_bytes());
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  const int first_filter = static_cast<int>(blockIdx.x) % l.filter_tiles * kPatchBlockN;

  // Both patches start as zeros: slack that fragments read (and mask) is then never garbage.
  for (int i = thread; i < l.patch_bytes() / 8; i += kPatchThreads) {
    reinterpret_cast<uint4*>(patches)[i] = make_uint4(0, 0, 0, 0);
  }
  for (int i = thread; i < l.chunks; i += kPatchThreads) table[i] = patch_chunk(g, l, i);
  __syncthreads();
  load_patch_filters(arguments, filters, table, first_filter);

  struct TileOrigin {
    int n, z, p, q;
  };
  const auto origin_of = [&](std::int64_t tile) {
    TileOrigin o;
    o.q = static_cast<int>(tile % l.tiles_q) * kPatchTileColumns;
    tile /= l.tiles_q;
    o.p = static_cast<int>(tile % l.tiles_p) * (kPatchWarps * kRows);
    tile /= l.tiles_p;
    o.z = static_cast<int>(tile % g.out[0]);
    o.n = static_cast<int>(tile / g.out[0]);
    return o;
  };
  const auto load_patch = [&](std::int64_t tile, int buffer) {
    if (tile < l.tiles) {
      const TileOrigin o = origin_of(tile);
      Element* patch = patches + buffer * l.elements;
      const int d = o.z * g.stride[0] - g.pad[0];
      const int h = o.p * g.stride[1] - g.pad[1];
      const int w = o.q * g.stride[2] - g.pad[2];
      switch (l.vector) {
        case 8:
          load_patch_rows<8>(arguments, patch, o.n, d, h, w);
          break;
        case 4:
          load_patch_rows<4>(arguments, patch, o.n, d, h, w);
          break;
        case 2:
          load_patch_rows<2>(arguments, patch, o.n, d, h, w);
          break;
        default:
          load_patch_rows<1>(arguments, patch, o.n, d, h, w);
      }
    }
    copy_async_commit();
  };

  const std::int64_t first_tile = blockIdx.x / l.filter_tiles;
  const std::int64_t tile_step = gridDim.x / l.filter_tiles;
  load_patch(first_tile, 0);
  int buffer = 0;
  for (std::int64_t tile = first_tile; tile < l.tiles; tile += tile_step, buffer ^= 1) {
    load_patch(tile + tile_step, buffer ^ 1);
    copy_async_wait<1>();
    __syncthreads();

    // Fragment rows are the tile's columns: this lane's two pixels of each row.
    const Element* const patch =
        patches + buffer * l.elements + lane / 4 * g.stride[2] * l.pixel_pitch + lane % 4 * 2;
    const int eight_pixels = 8 * g.stride[2] * l.pixel_pitch;
    const Element* const filter =
        filters + (lane / 16 * 8 + lane % 8) * l.filter_pitch + lane / 8 % 2 * 8;
    float accumulators[kRows][kTiles][4] = {};
#pragma unroll 1
    for (int chunk = 0; chunk < l.chunks; chunk += 2) {
      std::uint32_t a[kRows][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const PatchChunk c = table[chunk + half];
        const int valid = c.filter_offset_and_valid % 16 - lane % 4 * 2;
        const std::uint32_t mask = (valid > 0 ? 0x0000ffffu : 0u) | (valid > 1 ? 0xffff0000u : 0u);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          const Element* at =
              patch + (warp * kRows + i) * g.stride[1] * l.row_pitch + c.patch_offset;
          a[i][2 * half] = load_pair<kPairsAligned>(at) & mask;
          a[i][2 * half + 1] = load_pair<kPairsAligned>(at + eight_pixels) & mask;
        }
      }
#pragma unroll
      for (int j = 0; j < kTiles; j += 2) {
        std::uint32_t b[4];
        ptx::load_matrix_x4(ptx::shared_address(filter + j * 8 * l.filter_pitch + chunk * 8), b[0],
                            b[1], b[2], b[3]);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          mma_16x8x16<Element>(accumulators[i][j], a[i], b[0], b[1]);
          mma_16x8x16<Element>(accumulators[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }

    const TileOrigin o = origin_of(tile);
    const int first_row = o.p + warp * kRows;
    const std::int64_t first_pixel =
        ((std::int64_t{o.n} * g.out[0] + o.z) * g.out[1] + first_row) * g.out[2] + o.q;
    store_warp_tile(
        arguments.output, accumulators, stages + warp * kStageFloats<kTiles>,
        [&](int row, int column) {
          const bool inside = first_row + row < g.out[1] && o.q + column < g.out[2];
          return inside ? first_pixel + std::int64_t{row} * g.out[2] + column : std::int64_t{-1};
        },
        first_filter, g.filters);
    // The next round overwrites this patch.
    __syncthreads();
  }
  copy_async_wait<0>();
}

#endif  // __CUDACC__

}  // namespace convoy
