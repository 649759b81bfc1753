// SPDX-License-Identifier: Apache-2.0
//
// Grouped convolution with 8 channels and filters a group or more (ResNeXt, RegNet, EfficientViT):
// an implicit GEMM with mma.sync in which a block computes neighbouring groups of together up to 64
// filters. It keeps their filters in shared memory and walks over tiles of output pixels. The input
// patch under a tile, halo included, is copied into shared memory once, all channels of the block's
// groups side by side; every tap reads its fragments from there, and each group only its own
// channels. Filters of a frame of taps are one step; patches come a step ahead.
#pragma once

#include "kernels/common/device_code.cuh"
#include "kernels/common/device_geometry.cuh"
#include "kernels/common/fast_divide.hpp"
#include "kernels/common/output.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/small/patch_arguments.hpp"

namespace convoy::small {

inline constexpr int kGroupedPatchThreads = 256;
inline constexpr int kGroupedPatchWarps = kGroupedPatchThreads / 32;
inline constexpr int kGroupedFragments = 2;    // Of a warp, 16 pixels each.
inline constexpr int kGroupedFilterTiles = 4;  // Of a warp, 8 filters each.
inline constexpr int kGroupedStrip = 8 * kGroupedFilterTiles;
inline constexpr int kGroupedCellBytes = 16;  // 8 channels: what shared memory is counted in.

/// Everything about a launch that the host works out.
struct GroupedPatchLayout {
  int groups_of_block = 1;   ///< 1 where a group has more than one block's filters.
  int filters_of_group = 8;  ///< Of the block's: all, or a part of a large group.
  int blocks_of_group = 1;   ///< Blocks that share a large group's filters.
  /// log2 of the places that a group's filters take among the block's, the last of them empty: a
  /// part of a warp is then of one group.
  int slot_bits = 3;
  bool gathers = false;  ///< Padding other than zeros, or upsampling.
  int strips = 1;        ///< Warps side by side along the filters: 1 or 2.
  int chunks = 1;        ///< Of 8 channels, of a group.
  int patch_chunks = 1;  ///< Of a pixel of the patch: of all groups of the block.
  int pixel_pitch = 1;   ///< In cells; odd, so that eight neighbours lie on different banks.
  int tile_images = 1;   ///< Of a tile, whose pixels are 2^row_bits rows · 2^column_bits
  int row_bits = 0, column_bits = 0;                      ///< columns of each.
  int rows = 1, columns = 1;                              ///< Of the patch of an image.
  int buffers = 2;                                        ///< Patches in shared memory: 1 or 2.
  int taps = 1;                                           ///< Of all frames.
  int filter_tiles = 1;                                   ///< Blocks that share pixels.
  int tiles = 1;                                          ///< Of output pixels.
  FastDivide columns_divide, rows_divide, frames_divide;  ///< Tile columns, tile rows, Z.
  FastDivide patch_chunks_divide, filter_cells_divide;    ///< patch_chunks; taps · chunks.

  __host__ __device__ std::int64_t patch_pixels() const {
    return std::int64_t{tile_images} * rows * columns;
  }
  __host__ __device__ std::int64_t filter_bytes() const {
    return std::int64_t{taps} * chunks * strips * kGroupedStrip * kGroupedCellBytes;
  }
  __host__ __device__ std::int64_t patch_bytes() const {
    return patch_pixels() * pixel_pitch * kGroupedCellBytes;
  }
  __host__ __device__ std::int64_t shared_bytes() const {
    return filter_bytes() + patch_pixels() * kGroupedCellBytes + buffers * patch_bytes();
  }
};

using GroupedPatchArguments = PatchArguments<GroupedPatchLayout>;

#ifdef __CUDACC__

// A tile of output pixels: its first image, frame, row and column.
struct GroupedTile {
  int n, z, p, q;
};
__device__ __forceinline__ GroupedTile grouped_tile(const GroupedPatchLayout& l, int tile) {
  const int row = l.columns_divide.divide(tile), frame = l.rows_divide.divide(row);
  const int image = l.frames_divide.divide(frame);
  return {image * l.tile_images, l.frames_divide.remainder(frame, image),
          l.rows_divide.remainder(row, frame) << l.row_bits,
          l.columns_divide.remainder(tile, row) << l.column_bits};
}

// Pixel m of a tile.
struct TilePixel {
  int image, row, column;
};
__device__ __forceinline__ TilePixel tile_pixel(const GroupedPatchLayout& l, int m) {
  const int row = m >> l.column_bits;
  return {row >> l.row_bits, row & ((1 << l.row_bits) - 1), m & ((1 << l.column_bits) - 1)};
}

// A pixel of the patch: from its first one, in elements; its image, row and column.
struct alignas(16) PatchPixel {
  std::int64_t offset;
  int image;
  int row_and_column;  // row · 2^16 + column
};
static_assert(sizeof(PatchPixel) == kGroupedCellBytes);

__device__ __forceinline__ void write_patch_pixels(const GroupedPatchArguments& arguments,
                                                   PatchPixel* pixels) {
  const GroupedPatchLayout& l = arguments.layout;
  const DeviceGeometry& g = arguments.geometry;
  for (int i = static_cast<int>(threadIdx.x); i < l.tile_images * l.rows * l.columns;
       i += kGroupedPatchThreads) {
    const int row = i / l.columns, column = i % l.columns, of_image = row % l.rows;
    pixels[i] = {of_image * g.row_pitch + column * g.pixel_pitch, row / l.rows,
                 of_image << 16 | column};
  }
}

// Copy the block's filters, [tap][chunk][place] cells; zeros where there is no filter.
template <typename Element>
__device__ __forceinline__ void load_grouped_patch_filters(const GroupedPatchArguments& arguments,
                                                           std::uint32_t shared, int first_filter,
                                                           int groups, int filters) {
  const GroupedPatchLayout& l = arguments.layout;
  const DeviceGeometry& g = arguments.geometry;
  const int width = l.strips * kGroupedStrip, cells = l.taps * l.chunks;
  const auto* filter = static_cast<const Element*>(arguments.filter) +
                       first_filter * g.filter_pitch + g.filter_offset;
  for (int i = static_cast<int>(threadIdx.x); i < cells * width; i += kGroupedPatchThreads) {
    const int place = l.filter_cells_divide.divide(i);
    const int cell = l.filter_cells_divide.remainder(i, place);
    const int group = place >> l.slot_bits, of_group = place - (group << l.slot_bits);
    const bool exists = group < groups && of_group < filters;
    copy_async<16>(shared + (cell * width + place) * kGroupedCellBytes,
                   filter + (exists ? group * g.filters + of_group : 0) * g.filter_pitch + cell * 8,
                   exists);
  }
}

// Copy the patch of filter frame `t` under a tile: all threads, a cell at a time.
template <typename Element>
__device__ __forceinline__ void load_grouped_patch(const GroupedPatchArguments& arguments,
                                                   std::uint32_t shared, const PatchPixel* pixels,
                                                   GroupedTile tile, int t, int first_channel) {
  const GroupedPatchLayout& l = arguments.layout;
  const DeviceGeometry& g = arguments.geometry;
  const auto* activation = static_cast<const Element*>(arguments.activation);
  const auto* cache = static_cast<const Element*>(arguments.cache);
  const int d = tile.z * g.stride[0] - g.pad[0] + t * g.dilation[0];
  const int first_h = tile.p * g.stride[1] - g.pad[1];
  const int first_w = tile.q * g.stride[2] - g.pad[2];
  // The patch's first pixel, which may lie outside the tensor.
  const bool cached = d < g.cached_frames;
  const std::int64_t frame_pitch = g.in[1] * g.row_pitch;
  const int frames = cached ? g.cached_frames : g.in[0];
  const Element* const first =
      (cached ? cache : activation) + first_channel +
      (std::int64_t{tile.n} * frames + d - (cached ? 0 : g.cached_frames)) * frame_pitch +
      first_h * g.row_pitch + first_w * g.pixel_pitch;
  const std::int64_t image_pitch = frames * frame_pitch;
  // What exists of images, rows, columns and chunks.
  const bool frame_exists = static_cast<unsigned>(d) < static_cast<unsigned>(g.seen[0]);
  const int images = frame_exists ? g.batch - tile.n : 0;
  const int chunks = (g.groups * g.channels - first_channel) / 8;

  const int pixel_count = l.tile_images * l.rows * l.columns;
  int index = l.patch_chunks_divide.divide(static_cast<int>(threadIdx.x));
  int chunk = l.patch_chunks_divide.remainder(static_cast<int>(threadIdx.x), index);
  const int index_step = l.patch_chunks_divide.divide(kGroupedPatchThreads);
  const int chunk_step = l.patch_chunks_divide.remainder(kGroupedPatchThreads, index_step);
  while (index < pixel_count) {
    const PatchPixel pixel = pixels[index];
    const int h = first_h + (pixel.row_and_column >> 16);
    const int w = first_w + (pixel.row_and_column & 0xffff);
    const std::uint32_t to = shared + (index * l.pixel_pitch + chunk) * kGroupedCellBytes;
    if (l.gathers) {
      const Element* from = nullptr;
      if (tile.n + pixel.image < g.batch && chunk < chunks) {
        from = input_pixel(g, activation, cache, tile.n + pixel.image, d, h, w);
      }
      copy_async<16>(to, from != nullptr ? from + first_channel + chunk * 8 : activation,
                     from != nullptr);
    } else {
      const bool exists = static_cast<unsigned>(h) < static_cast<unsigned>(g.in[1]) &&
                          static_cast<unsigned>(w) < static_cast<unsigned>(g.in[2]) &&
                          pixel.image < images && chunk < chunks;
      const Element* const from = first + pixel.offset + pixel.image * image_pitch + chunk * 8;
      copy_async<16>(to, exists ? from : activation, exists);
    }
    index += index_step;
    chunk += chunk_step;
    if (chunk >= l.patch_chunks) chunk -= l.patch_chunks, ++index;
  }
}

// Of four filter tiles this lane holds two columns of each, its neighbours in the row the others:
// make it the eight of tile lane % 4. Value: what holds two columns.
template <typename Value>
__device__ __forceinline__ void transpose_quad(Value (&v)[kGroupedFilterTiles]) {
  static_assert(kGroupedFilterTiles == 4, "as many tiles as lanes share a row");
  const int lane = static_cast<int>(threadIdx.x) % 4;
  const auto exchange = [&](Value& low, Value& high, int mask) {
    const bool upper = (lane & mask) != 0;
    const Value sent = upper ? low : high;
    Value got;
    if constexpr (sizeof(Value) == 8) {
      got.x = __shfl_xor_sync(0xffffffffu, sent.x, mask);
      got.y = __shfl_xor_sync(0xffffffffu, sent.y, mask);
    } else {
      got = __shfl_xor_sync(0xffffffffu, sent, mask);
    }
    low = upper ? got : low;
    high = upper ? high : got;
  };
  exchange(v[0], v[1], 1);
  exchange(v[2], v[3], 1);
  exchange(v[0], v[2], 2);
  exchange(v[1], v[3], 2);
}

// One filter frame of taps of a tile. kShare: neighbouring filter tiles that are always of one
// group, and so read the same channels. `pixels`: cells of this lane's rows of the fragments;
// `group_cells`: of each part's channels in a pixel, negative where a part has no filters.
template <typename Element, int kShare>
__device__ __forceinline__ void multiply_grouped_patch(
    const GroupedPatchArguments& arguments,
    float (&sums)[kGroupedFragments][kGroupedFilterTiles][4], std::uint32_t patch,
    std::uint32_t filters, const int (&pixels)[kGroupedFragments],
    const int (&group_cells)[kGroupedFilterTiles / kShare]) {
  const GroupedPatchLayout& l = arguments.layout;
  const DeviceGeometry& g = arguments.geometry;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int width = l.strips * kGroupedStrip;
  // Matrices of a load: of pixels rows 0-7, 8-15 of a chunk, then of the next one; of filters
  // the two chunks of a tile, then of the next tile.
  const int next_chunk = lane / 16;
  const int filter_row = kShare > 1 ? lane / 16 * 8 + lane % 8 : lane % 8;
  const int filter_chunk = lane / 8 % 2;
  for (int r = 0; r < g.filter[1]; ++r) {
    for (int s = 0; s < g.filter[2]; ++s, filters += l.chunks * width * kGroupedCellBytes) {
      const int tap = (r * g.dilation[1] * l.columns + s * g.dilation[2]) * l.pixel_pitch;
#pragma unroll
      for (int part = 0; part < kGroupedFilterTiles / kShare; ++part) {
        if (group_cells[part] < 0) continue;
        const auto step = [&](int chunk, bool whole) {
          // The second chunk of a step that has but one is read as the first, and left out.
          std::uint32_t a[kGroupedFragments][4], b[(kShare + 1) / 2][4];
#pragma unroll
          for (int i = 0; i < kGroupedFragments; ++i) {
            const int cell = pixels[i] + tap + group_cells[part] + chunk + (whole ? next_chunk : 0);
            ptx::load_matrix_x4(patch + cell * kGroupedCellBytes, a[i][0], a[i][1], a[i][2],
                                a[i][3]);
            if (!whole) a[i][2] = a[i][3] = 0;
          }
#pragma unroll
          for (int j = 0; j < (kShare + 1) / 2; ++j) {
            const int cell = (chunk + (whole ? filter_chunk : 0)) * width + filter_row +
                             (part * kShare + j * 2) * 8;
            ptx::load_matrix_x4(filters + cell * kGroupedCellBytes, b[j][0], b[j][1], b[j][2],
                                b[j][3]);
            if (!whole) b[j][1] = b[j][3] = 0;
          }
#pragma unroll
          for (int i = 0; i < kGroupedFragments; ++i) {
#pragma unroll
            for (int j = 0; j < kShare; ++j) {
              mma_16x8x16<Element>(sums[i][part * kShare + j], a[i], b[j / 2][j % 2 * 2],
                                   b[j / 2][j % 2 * 2 + 1]);
            }
          }
        };
        int chunk = 0;
#pragma unroll 2
        for (; chunk + 2 <= l.chunks; chunk += 2) step(chunk, true);
        if (chunk < l.chunks) step(chunk, false);
      }
    }
  }
}

template <typename Element, int kShare>
__global__ void __launch_bounds__(kGroupedPatchThreads, 2)
    grouped_patch_kernel(const __grid_constant__ GroupedPatchArguments arguments) {
  extern __shared__ __align__(16) unsigned char shared[];
  const GroupedPatchLayout& l = arguments.layout;
  const DeviceGeometry& g = arguments.geometry;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int strip = warp % l.strips, first_row = warp / l.strips * (16 * kGroupedFragments);
  auto* const patch_pixels = reinterpret_cast<PatchPixel*>(shared + l.filter_bytes());
  const std::uint32_t all_filters = ptx::shared_address(shared);
  const std::uint32_t patches =
      all_filters +
      static_cast<std::uint32_t>(l.filter_bytes() + l.patch_pixels() * kGroupedCellBytes);
  const auto patch_bytes = static_cast<std::uint32_t>(l.patch_bytes());

  // This block's groups and filters.
  const int filter_tile = static_cast<int>(blockIdx.x) % l.filter_tiles;
  const int first_group = filter_tile / l.blocks_of_group * l.groups_of_block;
  const int first_channel = first_group * g.channels;
  const int part_of_group = filter_tile % l.blocks_of_group * l.filters_of_group;
  const int first_filter = first_group * g.filters + part_of_group;
  const int groups = min(l.groups_of_block, g.groups - first_group);
  const int filters = min(l.filters_of_group, g.filters - part_of_group);
  load_grouped_patch_filters<Element>(arguments, all_filters, first_filter, groups, filters);
  write_patch_pixels(arguments, patch_pixels);
  __syncthreads();

  // This warp's parts: the cells of their groups. This lane's filters in the output, or -1, and the
  // cells of its pixels.
  int group_cells[kGroupedFilterTiles / kShare];
#pragma unroll
  for (int part = 0; part < kGroupedFilterTiles / kShare; ++part) {
    const int place = strip * kGroupedStrip + part * kShare * 8;
    const int group = place >> l.slot_bits, of_group = place - (group << l.slot_bits);
    group_cells[part] = group < groups && of_group < filters ? group * l.chunks : -1;
  }
  int output_channel = -1;
  {
    const int place = strip * kGroupedStrip + lane % 4 * 8;
    const int group = place >> l.slot_bits, of_group = place - (group << l.slot_bits);
    if (group < groups && of_group < filters) {
      output_channel = first_filter + group * g.filters + of_group;
    }
  }
  int pixels[kGroupedFragments];
#pragma unroll
  for (int i = 0; i < kGroupedFragments; ++i) {
    const int m = first_row + i * 16 + lane % 16;
    const TilePixel at = tile_pixel(l, m);
    pixels[i] = ((at.image * l.rows + at.row * g.stride[1]) * l.columns + at.column * g.stride[2]) *
                l.pixel_pitch;
  }

  const int tile_step = static_cast<int>(gridDim.x) / l.filter_tiles;
  int tile = static_cast<int>(blockIdx.x) / l.filter_tiles, t = 0, buffer = 0;
  const auto load = [&](int of_tile, int of_frame, int to) {
    if (of_tile < l.tiles) {
      load_grouped_patch<Element>(arguments, patches + static_cast<std::uint32_t>(to) * patch_bytes,
                                  patch_pixels, grouped_tile(l, of_tile), of_frame, first_channel);
    }
    copy_async_commit();
  };
  load(tile, 0, 0);
  float sums[kGroupedFragments][kGroupedFilterTiles][4] = {};
  while (tile < l.tiles) {
    const bool last = t + 1 == g.filter[0];
    const int next_tile = last ? tile + tile_step : tile, next_t = last ? 0 : t + 1;
    if (l.buffers == 2) {
      load(next_tile, next_t, buffer ^ 1);
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    __syncthreads();
    const int frame_cells = t * g.filter[1] * g.filter[2] * l.chunks * l.strips * kGroupedStrip;
    multiply_grouped_patch<Element, kShare>(
        arguments, sums, patches + static_cast<std::uint32_t>(buffer) * patch_bytes,
        all_filters +
            static_cast<std::uint32_t>((frame_cells + strip * kGroupedStrip) * kGroupedCellBytes),
        pixels, group_cells);
    __syncthreads();
    if (l.buffers == 1) {
      load(next_tile, next_t, 0);
    } else {
      buffer ^= 1;
    }
    if (last) {
      const GroupedTile at = grouped_tile(l, tile);
      // The output pixel of row `m` of the tile, or -1.
      const auto output_pixel = [&](int m) {
        const TilePixel of_tile = tile_pixel(l, m);
        const int n = at.n + of_tile.image, p = at.p + of_tile.row, q = at.q + of_tile.column;
        const bool exists = n < g.batch && p < g.out[1] && q < g.out[2] && output_channel >= 0;
        return exists ? ((std::int64_t{n} * g.out[0] + at.z) * g.out[1] + p) * g.out[2] + q
                      : std::int64_t{-1};
      };
      if (arguments.output.plain && arguments.output.dtype == dtype_of<Element>) {
#pragma unroll
        for (int i = 0; i < 2 * kGroupedFragments; ++i) {
          std::uint32_t v[kGroupedFilterTiles];
#pragma unroll
          for (int f = 0; f < kGroupedFilterTiles; ++f) {
            v[f] = pack2<Element>(sums[i / 2][f][i % 2 * 2], sums[i / 2][f][i % 2 * 2 + 1]);
          }
          transpose_quad(v);
          const std::int64_t pixel = output_pixel(first_row + i * 8 + lane / 4);
          if (pixel < 0) continue;
          *reinterpret_cast<uint4*>(static_cast<Element*>(arguments.output.data) +
                                    pixel * arguments.output.channels + output_channel) =
              make_uint4(v[0], v[1], v[2], v[3]);
        }
      } else {
        // One copy of the epilogue's code: registers are picked by constant indices.
#pragma unroll 1
        for (int i = 0; i < 2 * kGroupedFragments; ++i) {
          float2 v[kGroupedFilterTiles] = {};
#pragma unroll
          for (int j = 0; j < 2 * kGroupedFragments; ++j) {
#pragma unroll
            for (int f = 0; f < kGroupedFilterTiles; ++f) {
              const float(&of_row)[4] = sums[j / 2][f];
              if (i == j) v[f] = make_float2(of_row[j % 2 * 2], of_row[j % 2 * 2 + 1]);
            }
          }
          transpose_quad(v);
          const std::int64_t pixel = output_pixel(first_row + i * 8 + lane / 4);
          if (pixel < 0) continue;
          float values[8];
#pragma unroll
          for (int c = 0; c < kGroupedFilterTiles; ++c) {
            values[2 * c] = v[c].x;
            values[2 * c + 1] = v[c].y;
          }
          store_channels(arguments.output, values, pixel, output_channel, 8);
        }
      }
#pragma unroll
      for (int i = 0; i < kGroupedFragments; ++i) {
#pragma unroll
        for (int f = 0; f < kGroupedFilterTiles; ++f) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[i][f][e] = 0.0f;
        }
      }
    }
    tile = next_tile;
    t = next_t;
  }
  copy_async_wait<0>();
}

#endif  // __CUDACC__

}  // namespace convoy::small
