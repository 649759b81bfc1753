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

#include "kernels/common/device_code.cuh"
#include "kernels/common/device_geometry.cuh"
#include "kernels/common/output.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/common/tile_walk.cuh"
#include "kernels/small/patch_arguments.hpp"
#include "kernels/small/patch_load.cuh"

namespace convoy::small {

inline constexpr int kFewChannelsThreads = 256;
inline constexpr int kFewChannelsWarps = kFewChannelsThreads / 32;
// Output columns of a strip: one 16-row MMA fragment. A tile is a strip of as many rows as the
// warps take, or, of an output of one row, as many strips side by side.
inline constexpr int kFewChannelsTileColumns = 16;

/// How a warp reads its fragments from the patch.
enum class FragmentRead {
  elements,  ///< Pairs may start at an odd element: two 16-bit loads each.
  pairs,     ///< Every pair starts at an even element: 32-bit loads.
  chunks,    ///< Every chunk is whole and aligned to 16 bytes: ldmatrix.
};

/// Everything about a launch that the host works out. Sizes in elements unless said otherwise.
struct FewChannelsLayout : PatchLayout {
  bool by_tap = false;
  FragmentRead read = FragmentRead::elements;
  int chunks = 0;             ///< Of 8 elements, an even number (the last may be empty).
  int block_n = 64;           ///< Filters of a block: 64, or 16 where there are no more.
  int filter_pitch = 0;       ///< From one filter to the next in shared memory.
  int fragment_elements = 0;  ///< In the patch, from a fragment of 16 pixels to the next.
  int elements = 0;           ///< Of one patch buffer, slack for a row's last chunk included.
  TileWalk walk;
  int filter_tiles = 0;
  int tiles = 0;  ///< N·Z·tile rows·tile columns

  // Shared memory, in bytes: chunk table, filters, two patches, one staging area a warp.
  __host__ __device__ int table_bytes() const { return (chunks * 8 + 15) / 16 * 16; }
  __host__ __device__ int filter_bytes() const { return block_n * filter_pitch * 2; }
  __host__ __device__ int patch_bytes() const { return elements * 2; }
  __host__ __device__ int shared_bytes() const {
    return table_bytes() + filter_bytes() + 2 * patch_bytes() +
           kFewChannelsWarps * (block_n == 16 ? kStagingFloats<2> : kStagingFloats<8>)*4;
  }
};

using FewChannelsArguments = PatchArguments<FewChannelsLayout>;

#ifdef __CUDACC__

// A chunk of the reduction: where it starts in the patch (relative to a pixel's first tap), where
// in a filter, and how many of its 8 elements exist.
struct FewChannelsChunk {
  int patch_offset;
  int filter_offset_and_valid;  // offset · 16 + valid
};

__device__ __forceinline__ FewChannelsChunk patch_chunk(const DeviceGeometry& g,
                                                        const FewChannelsLayout& l, int index) {
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
__device__ __forceinline__ void load_patch_filters(const FewChannelsArguments& arguments,
                                                   Element* filters, const FewChannelsChunk* table,
                                                   int first_filter) {
  const DeviceGeometry& g = arguments.geometry;
  const FewChannelsLayout& l = arguments.layout;
  const auto* source = static_cast<const Element*>(arguments.filter) + g.filter_offset;
  // Chunks of all filters one after the other; position and step are divided once.
  int k = static_cast<int>(threadIdx.x) / l.chunks,
      chunk = static_cast<int>(threadIdx.x) % l.chunks;
  const int k_step = kFewChannelsThreads / l.chunks, chunk_step = kFewChannelsThreads % l.chunks;
  while (k < l.block_n) {
    const Element* from = source + (std::int64_t{first_filter} + k) * g.filter_pitch;
    const int offset = table[chunk].filter_offset_and_valid / 16;
    const int valid = first_filter + k < g.filters ? table[chunk].filter_offset_and_valid % 16 : 0;
    Element* to = filters + k * l.filter_pitch + chunk * 8;
    if (g.channels % 8 == 0) {  // Whole, aligned chunks.
      copy_async<16>(ptx::shared_address(to), valid > 0 ? from + offset : source, valid > 0);
    } else {
      OutputVector<Element, 8> v;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        v.values[e] = e < valid ? from[offset + e] : from_float<Element>(0.0f);
      }
      *reinterpret_cast<OutputVector<Element, 8>*>(to) = v;
    }
    k += k_step;
    chunk += chunk_step;
    if (chunk >= l.chunks) chunk -= l.chunks, ++k;
  }
}

// Two neighbouring elements of the patch as one register.
template <FragmentRead kRead, typename Element>
__device__ __forceinline__ std::uint32_t load_pair(const Element* at) {
  if constexpr (kRead == FragmentRead::pairs) {
    return *reinterpret_cast<const std::uint32_t*>(at);
  } else {
    const auto* halves = reinterpret_cast<const std::uint16_t*>(at);
    return halves[0] | static_cast<std::uint32_t>(halves[1]) << 16;
  }
}

// The fragments of kRows output rows for chunks `table[0]` and `table[1]`. `patch` is the first
// tap of the warp's first row.
template <FragmentRead kRead, int kRows, typename Element>
__device__ __forceinline__ void load_patch_fragments(std::uint32_t (&a)[kRows][4],
                                                     const Element* patch,
                                                     const FewChannelsChunk* table, int pixel_step,
                                                     int row_step) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (kRead == FragmentRead::chunks) {
    const Element* at = patch + lane % 16 * pixel_step + table[lane / 16].patch_offset;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      ptx::load_matrix_x4(ptx::shared_address(at + i * row_step), a[i][0], a[i][1], a[i][2],
                          a[i][3]);
    }
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const FewChannelsChunk c = table[half];
      const int valid = c.filter_offset_and_valid % 16 - lane % 4 * 2;
      const std::uint32_t mask = (valid > 0 ? 0x0000ffffu : 0u) | (valid > 1 ? 0xffff0000u : 0u);
      const Element* at = patch + lane / 4 * pixel_step + lane % 4 * 2 + c.patch_offset;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        a[i][2 * half] = load_pair<kRead>(at + i * row_step) & mask;
        a[i][2 * half + 1] = load_pair<kRead>(at + i * row_step + 8 * pixel_step) & mask;
      }
    }
  }
}

/// kTiles: filters of a block in eights. kRows: fragments of 16 output pixels of a warp, so that a
/// tile has 8·kRows of them, each on a row of its own or all on one.
template <typename Element, int kTiles, int kRows, FragmentRead kRead>
__global__ void __launch_bounds__(kFewChannelsThreads, kRows == 1 ? 3 : 2)
    few_channels_kernel(const __grid_constant__ FewChannelsArguments arguments) {
  const DeviceGeometry& g = arguments.geometry;
  const FewChannelsLayout& l = arguments.layout;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const table = reinterpret_cast<FewChannelsChunk*>(shared);
  auto* const filters = reinterpret_cast<Element*>(shared + l.table_bytes());
  auto* const patches = reinterpret_cast<Element*>(shared + l.table_bytes() + l.filter_bytes());
  auto* const staging =
      reinterpret_cast<float*>(shared + l.table_bytes() + l.filter_bytes() + 2 * l.patch_bytes());
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  const int first_filter = static_cast<int>(blockIdx.x) % l.filter_tiles * (8 * kTiles);

  // Both patches start as zeros: slack that fragments read (and mask) is then never garbage.
  if constexpr (kRead != FragmentRead::chunks) {
    for (int i = thread; i < l.patch_bytes() / 8; i += kFewChannelsThreads) {
      reinterpret_cast<uint4*>(patches)[i] = make_uint4(0, 0, 0, 0);
    }
  }
  for (int i = thread; i < l.chunks; i += kFewChannelsThreads) table[i] = patch_chunk(g, l, i);
  __syncthreads();
  load_patch_filters(arguments, filters, table, first_filter);

  const auto load_patch = [&](int tile, const TilePosition& at, int buffer) {
    if (tile < l.tiles) {
      Element* patch = patches + buffer * l.elements;
      const int n = at.n;
      const int d = at.z * g.stride[0] - g.pad[0];
      const int h = at.p * l.tile_rows * g.stride[1] - g.pad[1];
      const int w = at.q * l.tile_columns * g.stride[2] - g.pad[2];
      switch (l.vector) {
        case 8:
          load_patch_rows<8>(arguments, patch, n, d, h, w, kFewChannelsThreads);
          break;
        case 4:
          load_patch_rows<4>(arguments, patch, n, d, h, w, kFewChannelsThreads);
          break;
        case 2:
          load_patch_rows<2>(arguments, patch, n, d, h, w, kFewChannelsThreads);
          break;
        default:
          load_patch_rows<1>(arguments, patch, n, d, h, w, kFewChannelsThreads);
      }
    }
    copy_async_commit();
  };

  const int first_tile = static_cast<int>(blockIdx.x) / l.filter_tiles;
  const int tile_step = static_cast<int>(gridDim.x) / l.filter_tiles;
  const TilePosition step = l.walk.position(tile_step);
  TilePosition next = l.walk.position(first_tile);
  load_patch(first_tile, next, 0);
  int buffer = 0;
  for (int tile = first_tile; tile < l.tiles; tile += tile_step, buffer ^= 1) {
    const TilePosition at = next;
    next = l.walk.advance(at, step);
    load_patch(tile + tile_step, next, buffer ^ 1);
    copy_async_wait<1>();
    __syncthreads();

    // Rows of a fragment are 16 columns of the tile.
    const Element* const patch = patches + buffer * l.elements + warp * kRows * l.fragment_elements;
    const Element* const filter =
        filters + (lane / 16 * 8 + lane % 8) * l.filter_pitch + lane / 8 % 2 * 8;
    float accumulators[kRows][kTiles][4] = {};
#pragma unroll 2
    for (int chunk = 0; chunk < l.chunks; chunk += 2) {
      std::uint32_t a[kRows][4];
      load_patch_fragments<kRead>(a, patch, table + chunk, g.stride[2] * l.pixel_pitch,
                                  l.fragment_elements);
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

    const std::int64_t frame = std::int64_t{at.n} * g.out[0] + at.z;
    const bool side_by_side = l.tile_rows == 1;
    store_warp_tile(
        arguments.output, accumulators, staging + warp * kStagingFloats<kTiles>,
        [&](int fragment, int pixel) {
          const int index = warp * kRows + fragment;
          const int p = at.p * l.tile_rows + (side_by_side ? 0 : index);
          const int q =
              at.q * l.tile_columns + (side_by_side ? index * kFewChannelsTileColumns : 0) + pixel;
          const bool inside = p < g.out[1] && q < g.out[2];
          return inside ? (frame * g.out[1] + p) * g.out[2] + q : std::int64_t{-1};
        },
        first_filter, g.filters);
    // The next round overwrites this patch.
    __syncthreads();
  }
  copy_async_wait<0>();
}

#endif  // __CUDACC__

}  // namespace convoy::small
