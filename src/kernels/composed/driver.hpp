// SPDX-License-Identifier: Apache-2.0
//
// The two ways to compose a convolution of others: what a workspace holds, in which order kernels
// are launched, which part of the tensors each of them gets. The inner convolution and the last
// pass are the caller's: a candidate's are kernels of the library (qslice.cu, im2col_matmul.cpp), a
// template's have the user's functor in them (include/convoy/device/composed.cuh).
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "convoy/export.h"
#include "convoy/problem.hpp"
#include "core/candidate.hpp"
#include "core/geometry.hpp"

namespace convoy::composed {

/// 3-D convolution as T two-dimensional ones: out[n, z] = sum over t of conv2d(in[n, z + t],
/// filter[t]), accumulated in fp32, then cast once. Partial sums are never rounded to the output
/// type. For problems that qslice_refusal (qslice.hpp) lets pass.
class CONVOY_API QsliceDriver {
 public:
  /// `sliced_filter`: runs get the filter as T dense slices [T, K, R, S, C]; else in `layout`.
  QsliceDriver(const ConvGeometry& geometry, bool sliced_filter,
               FilterLayout layout = FilterLayout::ktrsc);

  /// One filter depth over the Z output frames of one image, into fp32.
  Conv2dProblemShape slice_problem() const;

  /// The accumulator, [N, Z, P, Q, K], and the slices of a filter that does not come sliced.
  /// What the inner convolution needs comes behind.
  std::size_t workspace_bytes() const { return accumulator_bytes_ + slices_bytes_; }

  /// `slice(inner)` enqueues output = conv2d(activation, filter) + beta · residual of `inner`;
  /// `finish(accumulator)` the cast to the output type.
  template <typename Slice, typename Finish>
  void run(const RunPointers& pointers, cudaStream_t stream, const Slice& slice,
           const Finish& finish) const {
    const void* const slices = make_slices(pointers, stream);
    for (std::int64_t n = 0; n < geometry_.batch; ++n) {
      for (std::int64_t t = 0; t < geometry_.filter[0]; ++t) {
        slice(slice_pointers(pointers, slices, n, t));
      }
    }
    finish(static_cast<const float*>(pointers.workspace));
  }

 private:
  const void* make_slices(const RunPointers& pointers, cudaStream_t stream) const;
  RunPointers slice_pointers(const RunPointers& pointers, const void* slices, std::int64_t n,
                             std::int64_t t) const;

  ConvGeometry geometry_;
  FilterLayout layout_;
  std::size_t accumulator_bytes_, slices_bytes_;
};

/// Throws Error{invalid_argument} for a layout that Q-slices do not take.
CONVOY_API void check_qslice_layout(FilterLayout layout);

/// Bytes of the workspace that a filter of 16-bit elements takes as KTRSC, 0 where `layout` is that
/// already; and the filter so, written there or where it was. Throws as repack_filter does.
CONVOY_API std::size_t ktrsc_filter_bytes(const ConvGeometry& geometry, FilterLayout layout);
CONVOY_API const void* make_ktrsc_filter(void* workspace, const void* filter,
                                         const ConvGeometry& geometry, FilterLayout layout,
                                         cudaStream_t stream);

/// Bytes of im2col columns that are written at a time.
inline constexpr std::size_t kIm2colScratchBytes = std::size_t{256} << 20;
/// Rows that are written at a time, at least.
inline constexpr std::int64_t kIm2colLeastRows = 1024;

/// M rows cut into `count` chunks of `rows` rows, the last one shorter.
struct Im2colChunks {
  std::int64_t rows = 0;
  std::int64_t count = 0;
};

/// Chunks of nearly equal size that fit `budget` bytes at `row_bytes` a row, of at least
/// kIm2colLeastRows rows; whole multiples of 8 rows, so that every chunk of the output is aligned.
Im2colChunks im2col_chunks(std::int64_t gemm_m, std::int64_t row_bytes, std::size_t budget);

/// Convolution as an explicit im2col matrix, a chunk of rows at a time, and a matrix product. For
/// problems that im2col_matmul_refusal (im2col_matmul.hpp) lets pass.
class CONVOY_API Im2colMatmulDriver {
 public:
  /// `padded_filter`: runs get the filter's rows as they are packed, with zeros up to `pitch`.
  Im2colMatmulDriver(const ConvGeometry& geometry, DType output_dtype, bool padded_filter,
                     std::size_t scratch_bytes = kIm2colScratchBytes);

  /// Columns of the matrices: T·R·S·C, rounded up to rows of a multiple of 16 bytes.
  std::int64_t pitch() const { return pitch_; }
  bool pads_filter() const { return pitch_ != geometry_.gemm_k(); }
  const Im2colChunks& chunks() const { return chunks_; }
  std::int64_t last_rows() const { return geometry_.gemm_m() - (chunks_.count - 1) * chunks_.rows; }

  /// The matrix product of a chunk, as a 1×1 convolution over one row of `rows` pixels.
  Conv2dProblemShape gemm_problem(std::int64_t rows) const;

  /// A chunk of columns, and the padded filter where runs have to make it. What the matrix product
  /// needs comes behind.
  std::size_t workspace_bytes() const { return columns_bytes_ + filter_bytes_; }

  /// `gemm(first_row, rows, inner)` enqueues the matrix product of a chunk: the pointers of `inner`
  /// are the chunk's columns, the filter's rows, and the rows of output and residual.
  template <typename Gemm>
  void run(const RunPointers& pointers, cudaStream_t stream, const Gemm& gemm) const {
    const void* const filter = make_filter(pointers, stream);
    for (std::int64_t i = 0; i < chunks_.count; ++i) {
      const std::int64_t first = i * chunks_.rows;
      const std::int64_t rows = std::min(chunks_.rows, geometry_.gemm_m() - first);
      write_columns(pointers, first, rows, stream);
      gemm(first, rows, gemm_pointers(pointers, filter, first));
    }
  }

 private:
  const void* make_filter(const RunPointers& pointers, cudaStream_t stream) const;
  void write_columns(const RunPointers& pointers, std::int64_t first, std::int64_t rows,
                     cudaStream_t stream) const;
  RunPointers gemm_pointers(const RunPointers& pointers, const void* filter,
                            std::int64_t first) const;

  ConvGeometry geometry_;
  std::int64_t output_row_bytes_;
  std::int64_t pitch_;
  Im2colChunks chunks_;
  std::size_t columns_bytes_, filter_bytes_;
};

}  // namespace convoy::composed
