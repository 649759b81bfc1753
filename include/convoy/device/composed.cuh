// SPDX-License-Identifier: Apache-2.0
//
// Q-slicing and im2col + matmul with a device functor of your own as epilogue, on 5-D coordinates:
// what include/convoy/device/sm90/conv3d_composed.cuh and
// include/convoy/device/sm100/conv3d_composed.cuh share.
//
// ```cuda
// struct AddFrame {
//   template <int kWidth>
//   __device__ void operator()(const convoy::OutputIndex& at, int k,
//                              float (&values)[kWidth]) const {
//     for (float& value : values) value += static_cast<float>(at.z);
//   }
// };
// ```
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "convoy/error.hpp"
#include "convoy/geometry.hpp"
#include "convoy/problem.hpp"
#include "kernels/common/epilogue.cuh"
#include "kernels/common/launch.hpp"
#include "kernels/composed/driver.hpp"
#include "kernels/composed/im2col_matmul.hpp"
#include "kernels/composed/qslice.hpp"

namespace convoy {

/// Output pixel (n, z, p, q) of [N, Z, P, Q, K]; z is 0 in 2-D.
struct OutputIndex {
  std::int64_t n = 0;  ///< Image.
  int z = 0;           ///< Frame.
  int p = 0;           ///< Row.
  int q = 0;           ///< Column.
};

/// How `qslice_conv3d` computed a problem, and why not by slices.
struct QsliceDecision {
  bool sliced = false;  ///< By slices.
  std::string reason;   ///< Empty where sliced; otherwise condition, value and what is legal.
};

/// Whether `qslice_conv3d` slices a problem of elements of this type; asks no device.
inline QsliceDecision qslice_decision(const Conv3dProblemShape& problem, DType dtype) {
  PlanRequest request;
  request.geometry = geometry_of(problem);
  request.dtype = request.output_dtype = dtype;
  QsliceDecision decision;
  decision.reason = composed::qslice_refusal(request);
  decision.sliced = decision.reason.empty();
  return decision;
}

namespace composed {

/// Extents that turn a row of the GEMM into coordinates.
struct OutputExtents {
  int z = 1, p = 1, q = 1;
  std::int64_t first_row = 0;  ///< Row of the whole output that row 0 is.
  __device__ OutputIndex index(std::int64_t m) const {
    m += first_row;
    OutputIndex at;
    const std::int64_t line = m / q, frame = line / p;
    at.q = static_cast<int>(m - line * q);
    at.p = static_cast<int>(line - frame * p);
    at.n = frame / z;
    at.z = static_cast<int>(frame - at.n * z);
    return at;
  }
};

inline OutputExtents extents_of(const ConvGeometry& g) {
  return {static_cast<int>(g.out[0]), static_cast<int>(g.out[1]), static_cast<int>(g.out[2])};
}

/// A 5-D op as the compute op of a GEMM on some rows of the output.
template <typename Op>
struct RowsOp {
  static constexpr bool kEnabled = true;
  static constexpr bool kOnRegisters = true;
  Op op;
  OutputExtents extents;
  template <int kWidth>
  __device__ void operator()(std::int64_t m, int n, float (&values)[kWidth]) const {
    op(extents.index(m), n, values);
  }
};

inline constexpr int kFinishThreads = 256;

// Cast the accumulator behind the op, kWidth filters a thread.
template <int kWidth, typename Out, typename Op>
__global__ void __launch_bounds__(kFinishThreads)
    finish_slices_with_op(Out* output, const float* accumulator,
                          const __grid_constant__ RowsOp<Op> op, std::int64_t filters,
                          std::int64_t elements) {
  const std::int64_t step = std::int64_t{gridDim.x} * kFinishThreads * kWidth;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * kFinishThreads + threadIdx.x) * kWidth;
       i < elements; i += step) {
    float v[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) v[j] = accumulator[i + j];
    op(i / filters, static_cast<int>(i % filters), v);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) output[i + j] = from_float<Out>(v[j]);
  }
}

template <typename Out, typename Op>
void finish_slices(Out* output, const float* accumulator, const RowsOp<Op>& op,
                   const ConvGeometry& g, cudaStream_t stream) {
  const std::int64_t elements = g.output_elements();
  const auto start = [&](auto kernel, int width) {
    launch_kernel(kernel,
                  {.name = "finish_slices_with_op",
                   .grid = blocks_for(elements / width, kFinishThreads),
                   .block = kFinishThreads,
                   .stream = stream},
                  output, accumulator, op, g.out_channels, elements);
  };
  if (g.out_channels % 8 == 0) {
    start(finish_slices_with_op<8, Out, Op>, 8);
  } else {
    start(finish_slices_with_op<1, Out, Op>, 1);
  }
}

/// QsliceDriver with an op. `slice(inner)`: see there.
template <typename Out, typename Op, typename Slice>
void qslice(const RunPointers& pointers, const ConvGeometry& g, const Op& op, FilterLayout layout,
            cudaStream_t stream, const Slice& slice) {
  const auto finish = [&](const float* accumulator) {
    const RowsOp<Op> rows_op{op, extents_of(g)};
    // NOTE: the types are spelled out: nvcc 13.0 prints an `Out` by the configuration that it came
    // from, and its host stub then does not compile.
    if constexpr (std::is_same_v<Out, float>) {
      finish_slices(static_cast<float*>(pointers.output), accumulator, rows_op, g, stream);
    } else if constexpr (std::is_same_v<Out, __half>) {
      finish_slices(static_cast<__half*>(pointers.output), accumulator, rows_op, g, stream);
    } else {
      finish_slices(static_cast<__nv_bfloat16*>(pointers.output), accumulator, rows_op, g, stream);
    }
  };
  QsliceDriver(g, false, layout).run(pointers, stream, slice, finish);
}

/// Im2colMatmulDriver with an op: `gemm(inner, problem, op)` enqueues the matrix product of a chunk
/// of rows. Throws Error{unsupported}.
template <typename Op, typename Gemm>
void im2col_matmul(const RunPointers& pointers, const ConvGeometry& g, DType dtype,
                   DType output_dtype, std::size_t scratch_bytes, const Op& op, cudaStream_t stream,
                   const Gemm& gemm) {
  PlanRequest request;
  request.geometry = g;
  request.dtype = dtype;
  const std::string refusal = im2col_matmul_refusal(request);
  if (!refusal.empty()) throw Error(Status::unsupported, "im2col_matmul: " + refusal);
  const Im2colMatmulDriver driver(g, output_dtype, false, scratch_bytes);
  driver.run(pointers, stream,
             [&](std::int64_t first_row, std::int64_t rows, const RunPointers& inner) {
               RowsOp<Op> rows_op{op, extents_of(g)};
               rows_op.extents.first_row = first_row;
               gemm(inner, driver.gemm_problem(rows), rows_op);
             });
}

}  // namespace composed

/// Workspace of `im2col_matmul_conv2d` / `conv3d` for 16-bit elements: columns of at most `budget`
/// bytes (1,024 rows at least), and the filter where T·R·S·C is not a multiple of 8.
template <typename Problem>
std::size_t im2col_matmul_workspace_bytes(const Problem& problem,
                                          std::size_t budget = composed::kIm2colScratchBytes) {
  return composed::Im2colMatmulDriver(geometry_of(problem), DType::bf16, false, budget)
      .workspace_bytes();
}

/// Workspace of `qslice_conv3d`, also where it falls through: the fp32 accumulator [N, Z, P, Q, K]
/// and the filter's slices, or that of im2col_matmul_conv3d and the filter as KTRSC.
inline std::size_t qslice_workspace_bytes(const Conv3dProblemShape& problem, DType dtype,
                                          FilterLayout layout = FilterLayout::ktrsc) {
  if (!qslice_decision(problem, dtype).sliced) {
    return composed::ktrsc_filter_bytes(geometry_of(problem), layout) +
           im2col_matmul_workspace_bytes(problem);
  }
  return composed::QsliceDriver(geometry_of(problem), false).workspace_bytes();
}

}  // namespace convoy
