// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "convoy/types.hpp"
#include "core/geometry.hpp"

namespace convoy {

/// Write `packed` = `filter` as dense KTRSC, [K, T, R, S, C / groups], from any layout. Both are
/// device pointers of `dtype` and do not overlap; one kernel on `stream`, nothing else.
/// Throws Error{invalid_argument} where the layout has no depth axis and T > 1,
/// Error{launch_failure}.
void repack_filter(void* packed, const void* filter, FilterLayout layout,
                   const ConvGeometry& geometry, DType dtype, cudaStream_t stream);

/// What dense KTRSC is called of the problem's rank: images have no depth axis.
inline FilterLayout dense_layout(const ConvGeometry& geometry) {
  return geometry.rank == 2 ? FilterLayout::krsc : FilterLayout::ktrsc;
}

/// Channels of a tap in blocks with gaps behind them.
struct FilterBlocks {
  std::int64_t count, channels;  ///< The last block may have fewer.
  std::int64_t pitch;            ///< Elements from a block to the next.
  std::int64_t row() const { return count * pitch; }
};

/// As repack_filter, with zeros in the gaps: `packed` is [K, T, R, S, blocks, pitch].
void pack_filter_in_blocks(void* packed, const void* filter, FilterLayout layout,
                           const ConvGeometry& geometry, const FilterBlocks& blocks, DType dtype,
                           cudaStream_t stream);

/// The four phase filters of a nearest-2× upsampling followed by a 3×3 convolution of stride,
/// dilation 1 and padding 1. Output pixel (2i + a, 2j + b) is a 2×2 convolution of the input as it
/// was before upsampling, with its first tap at (i − 1 + a, j − 1 + b):
///   phase[a][b][k][u][v][c] = Σ filter[k][r][s][c] over the r, s whose tap falls on input
///   row i − 1 + a + u, column j − 1 + b + v   (a = 0: {0}, {1, 2}; a = 1: {0, 1}, {2}).
/// Sums are taken in fp32. UpsampleFolding::fast rounds them once; exact keeps two terms, the
/// rounded sum and what it left over, rounded (none where the sum is not finite). `packed` is dense
/// [2][2][K][terms][2][2][C / groups]: `upsampled_filter_bytes`. Throws Error{unsupported} for
/// another geometry.
void pack_upsampled_filter(void* packed, const void* filter, FilterLayout layout,
                           const ConvGeometry& geometry, DType dtype, cudaStream_t stream);

/// Elements of the type that make one element of a phase filter.
inline std::int64_t upsampled_filter_terms(const ConvGeometry& geometry) {
  return geometry.upsample_folding == UpsampleFolding::exact ? 2 : 1;
}

/// Bytes of the four phase filters: 16 / 9 of the filter's for each term.
inline std::size_t upsampled_filter_bytes(const ConvGeometry& geometry, DType dtype) {
  return static_cast<std::size_t>(16 * upsampled_filter_terms(geometry) * geometry.out_channels *
                                  geometry.group_channels()) *
         size_of(dtype);
}

/// Whether the folding above covers the geometry; the reason where not.
std::string upsample_folding_refusal(const ConvGeometry& geometry);

}  // namespace convoy
