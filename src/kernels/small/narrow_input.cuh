// SPDX-License-Identifier: Apache-2.0
//
// Convolutions of 1 to 8 input channels (image stems, volumes of one channel, sound), whose time is
// that of writing the output. A block keeps the filters in shared memory for its lifetime and walks
// over tiles of output pixels, 8 rows of 32 or, of an output of one row, 256 side by side. Under
// each tile it brings the input patch into shared memory, double-buffered. Every warp multiplies 32
// pixels of a row by all the filters of the block, a strip of them at a time.
//
// A pixel has 1, 4 or 8 channels in the patch, zeros behind those of the input, so that a filter
// row is one run of elements, cut into chunks of 8. ldmatrix wants chunks at multiples of 16 bytes;
// so the patch is kept in several copies, each shifted by a pixel or more, and each pixel of the
// tile reads the copy in which its run begins at such a multiple. What a chunk holds beyond its run
// is masked, so that a neighbour's Inf never meets a zero filter element.
//
// Fragments of 16-bit outputs are rounded, turned into rows in shared memory and stored in whole
// lines of 128 bytes: stored as they are, in pieces of 64 bytes, L2 takes them at half the rate.
#pragma once

#include "kernels/common/device_code.cuh"
#include "kernels/common/device_geometry.cuh"
#include "kernels/common/output.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/common/short_epilogue.cuh"
#include "kernels/common/tile_walk.cuh"
#include "kernels/small/patch_arguments.hpp"

namespace convoy::small {

inline constexpr int kNarrowInputThreads = 256;
inline constexpr int kNarrowInputWarps = kNarrowInputThreads / 32;
inline constexpr int kNarrowInputWarpPixels = 32;
inline constexpr int kNarrowInputFragments = kNarrowInputWarpPixels / 16;
inline constexpr int kNarrowInputMaxChannels = 8;

/// A step of 16 of the reduction: its two chunks, as offsets from a pixel's first element, and how
/// many of their 8 elements exist.
struct NarrowInputStep {
  int offset[2];
  int valid[2];
};

/// Everything about a launch that the host works out. Sizes in elements unless said otherwise.
struct NarrowInputLayout {
  int cell_log2 = 0;      ///< Of the channels of a pixel in the patch: 1, 4 or 8.
  int steps = 0;          ///< Of 16 elements.
  int row_chunks = 0;     ///< Of a filter row.
  int strip = 64;         ///< Filters multiplied at once: 32 or 64.
  int strips = 0;         ///< Of a block.
  int filter_groups = 0;  ///< Blocks side by side, each with `strips` strips.
  int filter_pitch = 0;   ///< From one filter to the next in shared memory.
  int rows = 0;           ///< Of the patch, per frame.
  int row_pitch = 0;
  int copies = 1;      ///< Of the patch,
  int shift = 0;       ///< each so much further on than the one before.
  int copy_pitch = 0;  ///< From one copy to the next.
  int tile_rows = kNarrowInputWarps;
  int tile_columns = kNarrowInputWarpPixels;
  int warp_elements = 0;     ///< In the patch, from a warp's pixels to the next warp's.
  int pixels = 0;            ///< Of a patch.
  bool plain_input = false;  ///< Zero padding, no upsampling, no cache.
  FastDivide by_columns, by_rows, by_chunks, by_row_chunks;
  TileWalk walk;
  int tiles = 0;  ///< N·Z·tile rows·tile columns

  // Shared memory, in bytes: steps, bias, filters, two patches, one staging area a warp.
  __host__ __device__ int cell() const { return 1 << cell_log2; }
  __host__ __device__ int steps_bytes() const {
    return steps * static_cast<int>(sizeof(NarrowInputStep));
  }
  __host__ __device__ int bias_bytes() const { return strips * strip * 4; }
  __host__ __device__ int filter_bytes() const { return strips * strip * filter_pitch * 2; }
  __host__ __device__ int patch_bytes() const { return copies * copy_pitch * 2; }
  __host__ __device__ int staging_floats() const {
    return strip == 32 ? kStagingFloats<4> : kStagingFloats<8>;
  }
  __host__ __device__ int shared_bytes() const {
    return steps_bytes() + bias_bytes() + filter_bytes() + 2 * patch_bytes() +
           kNarrowInputWarps * staging_floats() * 4;
  }
};

using NarrowInputArguments = PatchArguments<NarrowInputLayout>;

#ifdef __CUDACC__

__device__ __forceinline__ NarrowInputStep narrow_input_step(const DeviceGeometry& g,
                                                             const NarrowInputLayout& l,
                                                             int index) {
  NarrowInputStep step;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int chunk = 2 * index + half;
    const int start = chunk % l.row_chunks * 8;
    const int row = chunk / l.row_chunks;  // Of the filter, all frames.
    const int t = row / g.filter[1];
    const int left = g.filter[2] * l.cell() - start;
    const bool exists = t < g.filter[0];
    step.offset[half] =
        exists ? (t * l.rows + row % g.filter[1] * g.dilation[1]) * l.row_pitch + start : 0;
    step.valid[half] = !exists ? 0 : left < 8 ? left : 8;
  }
  return step;
}

// The filters of this block, chunk by chunk, zeros where there is no element; and their bias.
template <typename Element>
__device__ __forceinline__ void load_narrow_input_filters(const NarrowInputArguments& arguments,
                                                          Element* filters, float* bias,
                                                          int first_filter) {
  const DeviceGeometry& g = arguments.geometry;
  const NarrowInputLayout& l = arguments.layout;
  const auto* source = static_cast<const Element*>(arguments.filter) + g.filter_offset;
  for (int i = static_cast<int>(threadIdx.x); i < l.strips * l.strip * 2 * l.steps;
       i += kNarrowInputThreads) {
    const int column = l.by_chunks.divide(i), chunk = l.by_chunks.remainder(i, column);
    const int filter = first_filter + column;
    const int row = l.by_row_chunks.divide(chunk);
    const int start = l.by_row_chunks.remainder(chunk, row) * 8;
    const Element* from = source + std::int64_t{filter} * g.filter_pitch +
                          std::int64_t{row} * g.filter[2] * g.channels;
    const bool exists = filter < g.filters && row < g.filter[0] * g.filter[1];
    OutputVector<Element, 8> v;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int tap = (start + e) >> l.cell_log2, channel = (start + e) & (l.cell() - 1);
      const bool real = exists && tap < g.filter[2] && channel < g.channels;
      v.values[e] = real ? from[tap * g.channels + channel] : from_float<Element>(0.0f);
    }
    *reinterpret_cast<OutputVector<Element, 8>*>(filters + column * l.filter_pitch + chunk * 8) = v;
  }
  const EpilogueParams& epilogue = arguments.output.epilogue;
  for (int i = static_cast<int>(threadIdx.x); i < l.strips * l.strip; i += kNarrowInputThreads) {
    const bool real = epilogue.bias != nullptr && first_filter + i < g.filters;
    bias[i] = real ? load_bias(epilogue, first_filter + i) : 0.0f;
  }
}

/// The channels of a pixel as the patch holds them: 1, 4 or 8.
template <int kCell>
struct alignas(2 * kCell) NarrowInputCell {
  std::uint16_t values[kCell];
};

template <int kCell>
__device__ __forceinline__ NarrowInputCell<kCell> load_cell(const std::uint16_t* pixel,
                                                            int channels) {
  NarrowInputCell<kCell> cell{};
  if (pixel == nullptr) return cell;
  if (channels == kCell) {
    cell = *reinterpret_cast<const NarrowInputCell<kCell>*>(pixel);
  } else {
#pragma unroll
    for (int c = 0; c < kCell; ++c) cell.values[c] = c < channels ? pixel[c] : std::uint16_t{0};
  }
  return cell;
}

/// Where a thread's pixel lies in a patch.
struct NarrowInputPlace {
  int t, row, column;  ///< In the input, from the patch's first pixel; t before dilation.
  int to;              ///< In elements of the patch; -1 for none.
};
__device__ __forceinline__ NarrowInputPlace narrow_input_place(const NarrowInputLayout& l,
                                                               int pixel) {
  const int line = l.by_columns.divide(pixel);
  const int column = l.by_columns.remainder(pixel, line);
  const int t = l.by_rows.divide(line);
  return {t, l.by_rows.remainder(line, t), column,
          pixel < l.pixels ? line * l.row_pitch + (column << l.cell_log2) : -1};
}

// The input pixel of a place, of the patch whose first tap is at (n, d, h, w); null for zeros.
__device__ __forceinline__ const std::uint16_t* narrow_input_pixel(
    const NarrowInputArguments& arguments, const NarrowInputPlace& place, int n, int d, int h,
    int w) {
  const DeviceGeometry& g = arguments.geometry;
  const auto* activation = static_cast<const std::uint16_t*>(arguments.activation);
  if (place.to < 0) return nullptr;
  d += place.t * g.dilation[0], h += place.row, w += place.column;
  if (arguments.layout.plain_input) {
    const bool inside = static_cast<unsigned>(d) < static_cast<unsigned>(g.in[0]) &&
                        static_cast<unsigned>(h) < static_cast<unsigned>(g.in[1]) &&
                        static_cast<unsigned>(w) < static_cast<unsigned>(g.in[2]);
    const std::int64_t row = (std::int64_t{n} * g.in[0] + d) * g.in[1] + h;
    return inside ? activation + row * g.row_pitch + std::int64_t{w} * g.channels : nullptr;
  }
  const auto* cache = static_cast<const std::uint16_t*>(arguments.cache);
  return pixel_of_row(g, input_row(g, activation, cache, n, d, h), w);
}

template <int kCell>
__device__ __forceinline__ void store_cell(const NarrowInputLayout& l, std::uint16_t* patch,
                                           const NarrowInputPlace& place,
                                           const NarrowInputCell<kCell>& cell) {
  if (place.to < 0) return;
  for (int copy = 0; copy < l.copies; ++copy) {
    if (copy * l.shift > place.column * kCell) break;
    *reinterpret_cast<NarrowInputCell<kCell>*>(patch + place.to + copy * (l.copy_pitch - l.shift)) =
        cell;
  }
}

// The patch under a tile, into all its copies.
template <int kCell>
__device__ __forceinline__ void load_narrow_input_patch(const NarrowInputArguments& arguments,
                                                        std::uint16_t* patch,
                                                        const TilePosition& at) {
  constexpr int kAtOnce = 2;
  const DeviceGeometry& g = arguments.geometry;
  const NarrowInputLayout& l = arguments.layout;
  const int d = at.z * g.stride[0] - g.pad[0];
  const int h = at.p * l.tile_rows * g.stride[1] - g.pad[1];
  const int w = at.q * l.tile_columns * g.stride[2] - g.pad[2];
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x); first < l.pixels;
       first += kAtOnce * kNarrowInputThreads) {
    NarrowInputPlace places[kAtOnce];
    NarrowInputCell<kCell> cells[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      places[i] = narrow_input_place(l, first + i * kNarrowInputThreads);
      cells[i] =
          load_cell<kCell>(narrow_input_pixel(arguments, places[i], at.n, d, h, w), g.channels);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) store_cell<kCell>(l, patch, places[i], cells[i]);
  }
}

/// Whether outputs are rounded before they are staged: 16-bit outputs in fours, with a short
/// epilogue. Others are staged as floats; their code is there once.
template <typename Element>
__device__ __forceinline__ bool rounds_first(const ConvOutput& out) {
  return out.dtype == dtype_of<Element> && out.channels % 4 == 0 && !out.epilogue.has_residual &&
         is_short(out.epilogue, out.dtype);
}

// Round a warp's accumulators, with bias and activation, and store them through its staging memory.
// `bias`: of the strip's filters. `to`: the first pixel's output of the strip's first filter, of
// which `filters_left` exist. `pixel_pitch`: elements from a pixel to the next.
template <typename Element, int kTiles>
__device__ __forceinline__ void store_rounded(
    const EpilogueParams& epilogue, float (&accumulators)[kNarrowInputFragments][kTiles][4],
    const float* bias, Element* staging, Element* to, int pixel_pitch, int pixels_left,
    int filters_left) {
  // NOTE: an odd number of 16-byte units from row to row keeps stmatrix free of conflicts.
  constexpr int kPitch = 8 * kTiles + 8;
  static_assert(kNarrowInputWarpPixels * kPitch * 2 <= kStagingFloats<kTiles> * 4);
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    const float2 b = *reinterpret_cast<const float2*>(bias + j * 8 + lane % 4 * 2);
#pragma unroll
    for (int i = 0; i < kNarrowInputFragments; ++i) {
      float(&v)[4] = accumulators[i][j];
      v[0] += b.x, v[1] += b.y, v[2] += b.x, v[3] += b.y;
    }
  }
  apply_short_activation<Element>(
      epilogue, reinterpret_cast<float(&)[kNarrowInputFragments * kTiles * 4]>(accumulators));
  __syncwarp();  // What was staged before has been read.
  const std::uint32_t row = ptx::shared_address(staging + lane % 16 * kPitch + lane / 16 * 8);
#pragma unroll
  for (int i = 0; i < kNarrowInputFragments; ++i) {
#pragma unroll
    for (int j = 0; j < kTiles; j += 2) {
      const float(&u)[4] = accumulators[i][j];
      const float(&v)[4] = accumulators[i][j + 1];
      ptx::store_matrix_x4(row + (i * 16 * kPitch + j * 8) * 2, pack2<Element>(u[0], u[1]),
                           pack2<Element>(u[2], u[3]), pack2<Element>(v[0], v[1]),
                           pack2<Element>(v[2], v[3]));
    }
  }
  __syncwarp();
  if (pixel_pitch % 8 != 0) {  // Rows of fours.
    constexpr int kLanes = 2 * kTiles;
    const int column = lane % kLanes * 4;
    if (column >= filters_left) return;
#pragma unroll
    for (int pixel = 0; pixel < kNarrowInputWarpPixels; pixel += 32 / kLanes) {
      const int at = pixel + lane / kLanes;
      if (at >= pixels_left) continue;
      *reinterpret_cast<uint2*>(to + std::int64_t{at} * pixel_pitch + column) =
          *reinterpret_cast<const uint2*>(staging + at * kPitch + column);
    }
    return;
  }
  const int column = lane % kTiles * 8;
  if (column >= filters_left) return;
#pragma unroll
  for (int pixel = 0; pixel < kNarrowInputWarpPixels; pixel += 32 / kTiles) {
    const int at = pixel + lane / kTiles;
    if (at >= pixels_left) continue;
    *reinterpret_cast<uint4*>(to + std::int64_t{at} * pixel_pitch + column) =
        *reinterpret_cast<const uint4*>(staging + at * kPitch + column);
  }
}

/// kTiles: filters of a strip in eights. kCell: channels of a pixel in the patch.
template <typename Element, int kTiles, int kCell>
__global__ void __launch_bounds__(kNarrowInputThreads, kTiles == 8 ? 2 : 3)
    narrow_input_kernel(const __grid_constant__ NarrowInputArguments arguments) {
  constexpr int kFragments = kNarrowInputFragments;
  const DeviceGeometry& g = arguments.geometry;
  const NarrowInputLayout& l = arguments.layout;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const steps = reinterpret_cast<NarrowInputStep*>(shared);
  auto* const bias = reinterpret_cast<float*>(shared + l.steps_bytes());
  auto* const filters = reinterpret_cast<Element*>(shared + l.steps_bytes() + l.bias_bytes());
  auto* const patches = reinterpret_cast<std::uint16_t*>(shared + l.steps_bytes() + l.bias_bytes() +
                                                         l.filter_bytes());
  auto* const staging =
      reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(patches) + 2 * l.patch_bytes());
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  const int first_filter = static_cast<int>(blockIdx.x) % l.filter_groups * l.strips * l.strip;
  const int first_tile = static_cast<int>(blockIdx.x) / l.filter_groups;
  const int tile_step = static_cast<int>(gridDim.x) / l.filter_groups;
  const TilePosition step = l.walk.position(tile_step);
  TilePosition next = l.walk.position(first_tile);

  // NOTE: zeros at first: what chunks read beyond their run, and mask, is then never garbage.
  for (int i = thread; i < l.patch_bytes() / 8; i += kNarrowInputThreads) {
    reinterpret_cast<uint4*>(patches)[i] = make_uint4(0, 0, 0, 0);
  }
  for (int i = thread; i < l.steps; i += kNarrowInputThreads) {
    steps[i] = narrow_input_step(g, l, i);
  }
  __syncthreads();
  load_narrow_input_patch<kCell>(arguments, patches, next);
  load_narrow_input_filters(arguments, filters, bias, first_filter);
  __syncthreads();

  // Of ldmatrix, this lane's row: a pixel's run, in the copy where it begins at 16 bytes.
  const int run_start = lane % 16 * g.stride[2] * kCell;
  const int pixel_offset = run_start / 8 * 8 +
                           (l.copies > 1 ? run_start % 8 / l.shift : 0) * l.copy_pitch +
                           warp * l.warp_elements;
  const int fragment_elements = 16 * g.stride[2] * kCell;
  // Of the filters, eight columns by 16 bytes a quarter of the warp.
  const std::uint32_t lane_filter =
      ptx::shared_address(filters + (lane / 16 * 8 + lane % 8) * l.filter_pitch + lane / 8 % 2 * 8);
  const int pair = lane % 4 * 2;
  const bool rounded = rounds_first<Element>(arguments.output);

  int buffer = 0;
  for (int tile = first_tile; tile < l.tiles; tile += tile_step, buffer ^= 1) {
    const TilePosition at = next;
    next = l.walk.advance(at, step);
    std::uint16_t* const next_patch = patches + (buffer ^ 1) * (l.patch_bytes() / 2);
    if (tile + tile_step < l.tiles) {
      load_narrow_input_patch<kCell>(arguments, next_patch, next);
    }

    const std::uint32_t patch =
        ptx::shared_address(patches + buffer * (l.patch_bytes() / 2) + pixel_offset);
    const bool side_by_side = l.tile_rows == 1;
    const int p = at.p * l.tile_rows + (side_by_side ? 0 : warp);
    const int first_q = at.q * l.tile_columns + (side_by_side ? warp * kNarrowInputWarpPixels : 0);
    const std::int64_t first_pixel =
        ((std::int64_t{at.n} * g.out[0] + at.z) * g.out[1] + p) * g.out[2] + first_q;
    const int pixels_left = p < g.out[1] ? g.out[2] - first_q : 0;  // Of the warp's.

#pragma unroll 1
    for (int strip = 0; strip < l.strips && pixels_left > 0; ++strip) {
      const std::uint32_t filter = lane_filter + strip * 8 * kTiles * l.filter_pitch * 2;
      float accumulators[kFragments][kTiles][4] = {};
#pragma unroll 2
      for (int k = 0; k < l.steps; ++k) {
        const NarrowInputStep s = steps[k];
        const std::uint32_t from = patch + (lane < 16 ? s.offset[0] : s.offset[1]) * 2;
        std::uint32_t a[kFragments][4];
#pragma unroll
        for (int i = 0; i < kFragments; ++i) {
          ptx::load_matrix_x4(from + i * fragment_elements * 2, a[i][0], a[i][1], a[i][2], a[i][3]);
        }
        if (s.valid[0] + s.valid[1] != 16) {
          std::uint32_t masks[2];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int valid = s.valid[half] - pair;
            masks[half] = (valid > 0 ? 0x0000ffffu : 0u) | (valid > 1 ? 0xffff0000u : 0u);
          }
#pragma unroll
          for (int i = 0; i < kFragments; ++i) {
            a[i][0] &= masks[0], a[i][1] &= masks[0];
            a[i][2] &= masks[1], a[i][3] &= masks[1];
          }
        }
#pragma unroll
        for (int j = 0; j < kTiles; j += 2) {
          std::uint32_t b[4];
          ptx::load_matrix_x4(filter + (j * 8 * l.filter_pitch + k * 16) * 2, b[0], b[1], b[2],
                              b[3]);
#pragma unroll
          for (int i = 0; i < kFragments; ++i) {
            mma_16x8x16<Element>(accumulators[i][j], a[i], b[0], b[1]);
            mma_16x8x16<Element>(accumulators[i][j + 1], a[i], b[2], b[3]);
          }
        }
      }

      const int strip_filter = first_filter + strip * 8 * kTiles;
      float* const warp_staging = staging + warp * kStagingFloats<kTiles>;
      if (rounded) {
        store_rounded(
            arguments.output.epilogue, accumulators, bias + strip * 8 * kTiles,
            reinterpret_cast<Element*>(warp_staging),
            static_cast<Element*>(arguments.output.data) + first_pixel * g.filters + strip_filter,
            g.filters, pixels_left, g.filters - strip_filter);
      } else {
        store_warp_tile(
            arguments.output, accumulators, warp_staging,
            [&](int fragment, int row) {
              const int pixel = fragment * 16 + row;
              return pixel < pixels_left ? first_pixel + pixel : std::int64_t{-1};
            },
            strip_filter, g.filters);
      }
    }
    // This patch is overwritten in the next round, the other one is complete.
    __syncthreads();
  }
}

#endif  // __CUDACC__

}  // namespace convoy::small
