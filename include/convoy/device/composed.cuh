// SPDX-License-Identifier: Apache-2.0
//
// Q-slicing and im2col + matmul with a device functor of your own as epilogue, on 5-D coordinates:
// what include/convoy/device/sm90/conv3d_composed.cuh and
// include/convoy/device/sm100/conv3d_composed.cuh share.
//
//   struct AddFrame {
//     template <int kWidth>
//     __device__ void operator()(const convoy::OutputIndex& at, int k,
//                                float (&values)[kWidth]) const {
//       for (float& value : values) value += static_cast<float>(at.z);
//     }
//   };
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "convoy/error.hpp"
#include "convoy/problem.hpp"
#include "core/geometry.hpp"
#include "kernels/common/epilogue.cuh"
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
  std::string reason;  ///< Empty where sliced; otherwise condition, value and what is legal.
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

/// Bytes of a part of a workspace.
constexpr std::size_t aligned(std::int64_t bytes) {
  return (static_cast<std::size_t>(bytes) + 255) / 256 * 256;
}

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

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw Error(Status::launch_failure, std::string(what) + ": " + cudaGetErrorString(error));
  }
}

// Cast the accumulator behind the op, kWidth filters a thread.
template <int kWidth, typename Out, typename Op>
__global__ void __launch_bounds__(256)
    finish_slices(Out* output, const float* accumulator, const __grid_constant__ RowsOp<Op> op,
                  std::int64_t filters, std::int64_t elements) {
  const std::int64_t step = std::int64_t{gridDim.x} * 256 * kWidth;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * 256 + threadIdx.x) * kWidth; i < elements;
       i += step) {
    float v[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) v[j] = accumulator[i + j];
    op(i / filters, static_cast<int>(i % filters), v);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) output[i + j] = from_float<Out>(v[j]);
  }
}

template <typename Out, typename Op>
void cast_accumulator(Out* output, const float* accumulator, const RowsOp<Op>& op,
                      const ConvGeometry& g, cudaStream_t stream) {
  const std::int64_t elements = g.output_elements();
  const auto blocks = [](std::int64_t items) {
    return static_cast<unsigned>(std::clamp<std::int64_t>((items + 255) / 256, 1, 1 << 16));
  };
  if (g.out_channels % 8 == 0) {
    finish_slices<8, Out><<<blocks(elements / 8), 256, 0, stream>>>(output, accumulator, op,
                                                                    g.out_channels, elements);
  } else {
    finish_slices<1, Out>
        <<<blocks(elements), 256, 0, stream>>>(output, accumulator, op, g.out_channels, elements);
  }
  check(cudaGetLastError(), "accumulator cast");
}

inline std::size_t accumulator_bytes(const ConvGeometry& g) {
  return aligned(g.output_elements() * 4);
}

/// T two-dimensional convolutions a batch element into the fp32 accumulator, then the cast.
/// `slice(accumulator, activation, filter, problem, beta)` enqueues one: accumulator =
/// conv + beta · accumulator.
template <typename Act, typename Out, typename Op, typename Slice>
void qslice(Out* output, const Act* activation, const Act* filter, const ConvGeometry& g,
            void* workspace, const Op& op, cudaStream_t stream, const Slice& slice) {
  auto* accumulator = static_cast<float*>(workspace);
  auto* slices = reinterpret_cast<Act*>(static_cast<char*>(workspace) + accumulator_bytes(g));
  // The filter as T dense slices [T, K, R, S, C].
  const std::int64_t row = g.filter[1] * g.filter[2] * g.in_channels;
  const auto row_bytes = static_cast<std::size_t>(row) * sizeof(Act);
  for (std::int64_t t = 0; t < g.filter[0]; ++t) {
    check(cudaMemcpy2DAsync(slices + t * g.out_channels * row, row_bytes, filter + t * row,
                            row_bytes * static_cast<std::size_t>(g.filter[0]), row_bytes,
                            static_cast<std::size_t>(g.out_channels), cudaMemcpyDeviceToDevice,
                            stream),
          "filter slicing");
  }
  Conv2dProblemShape problem{.batch = g.out[0],
                             .in_height = g.in[1],
                             .in_width = g.in[2],
                             .in_channels = g.in_channels,
                             .out_channels = g.out_channels,
                             .filter_h = g.filter[1],
                             .filter_w = g.filter[2],
                             .pad_h = g.pad_begin[1],
                             .pad_w = g.pad_begin[2]};
  problem.pad_h_end = g.pad_end[1];
  problem.pad_w_end = g.pad_end[2];
  const std::int64_t frame = g.in[1] * g.in[2] * g.in_channels;
  for (std::int64_t n = 0; n < g.batch; ++n) {
    for (std::int64_t t = 0; t < g.filter[0]; ++t) {
      slice(accumulator + n * (g.output_elements() / g.batch),
            activation + (n * g.in[0] + t) * frame, slices + t * g.out_channels * row, problem,
            t == 0 ? 0.0f : 1.0f);
    }
  }
  const RowsOp<Op> finish{op, extents_of(g)};
  // NOTE: the types are spelled out: nvcc 13.0 prints a deduced `Out` by the configuration that it
  // came from, and its host stub then does not compile.
  if constexpr (std::is_same_v<Out, float>) {
    cast_accumulator<float>(output, accumulator, finish, g, stream);
  } else if constexpr (std::is_same_v<Out, __half>) {
    cast_accumulator<__half>(output, accumulator, finish, g, stream);
  } else {
    cast_accumulator<__nv_bfloat16>(output, accumulator, finish, g, stream);
  }
}

/// Columns of the explicit matrices: T·R·S·C, rounded up to rows of a multiple of 16 bytes.
inline std::int64_t pitch_of(const ConvGeometry& g) {
  return (g.gemm_k() + 7) / 8 * 8;
}
inline Im2colChunks chunks_of(const ConvGeometry& g, std::size_t budget) {
  return im2col_chunks(g.gemm_m(), pitch_of(g) * 2, budget);
}
inline std::size_t columns_bytes(const ConvGeometry& g, std::size_t budget) {
  return aligned(chunks_of(g, budget).rows * pitch_of(g) * 2);
}
inline std::size_t padded_filter_bytes(const ConvGeometry& g) {
  return pitch_of(g) == g.gemm_k() ? 0 : aligned(g.out_channels * pitch_of(g) * 2);
}

/// Chunks of columns, each multiplied by `gemm(output, columns, filter, problem, op)`.
template <typename Act, typename Out, typename Op, typename Gemm>
void im2col_matmul(Out* output, const Act* activation, const Act* cache, const Act* filter,
                   const ConvGeometry& g, DType dtype, std::size_t budget, void* workspace,
                   const Op& op, cudaStream_t stream, const Gemm& gemm) {
  if (g.groups != 1) {
    throw Error(Status::unsupported,
                "im2col_matmul: groups = " + std::to_string(g.groups) + "; legal: 1");
  }
  auto* columns = static_cast<Act*>(workspace);
  const std::int64_t pitch = pitch_of(g);
  if (padded_filter_bytes(g) > 0) {
    auto* padded = reinterpret_cast<Act*>(static_cast<char*>(workspace) + columns_bytes(g, budget));
    const auto row_bytes = static_cast<std::size_t>(g.gemm_k()) * sizeof(Act);
    check(cudaMemsetAsync(padded, 0, padded_filter_bytes(g), stream), "filter padding");
    check(cudaMemcpy2DAsync(padded, static_cast<std::size_t>(pitch) * sizeof(Act), filter,
                            row_bytes, row_bytes, static_cast<std::size_t>(g.out_channels),
                            cudaMemcpyDeviceToDevice, stream),
          "filter padding");
    filter = padded;
  }
  const Im2colChunks chunks = chunks_of(g, budget);
  for (std::int64_t begin = 0; begin < g.gemm_m(); begin += chunks.rows) {
    const std::int64_t end = std::min(g.gemm_m(), begin + chunks.rows);
    im2col_device(columns, activation, cache, g, dtype, begin, end, pitch, stream);
    const Conv2dProblemShape problem{.batch = 1,
                                     .in_height = 1,
                                     .in_width = end - begin,
                                     .in_channels = pitch,
                                     .out_channels = g.out_channels,
                                     .filter_h = 1,
                                     .filter_w = 1};
    OutputExtents extents = extents_of(g);
    extents.first_row = begin;
    gemm(output + begin * g.out_channels, columns, filter, problem, RowsOp<Op>{op, extents});
  }
}

}  // namespace composed

/// Workspace of `im2col_matmul_conv2d` / `conv3d` for 16-bit elements: columns of at most `budget`
/// bytes (1,024 rows at least), and the filter where T·R·S·C is not a multiple of 8.
template <typename Problem>
std::size_t im2col_matmul_workspace_bytes(const Problem& problem,
                                          std::size_t budget = composed::kIm2colScratchBytes) {
  const ConvGeometry g = geometry_of(problem);
  return composed::columns_bytes(g, budget) + composed::padded_filter_bytes(g);
}

/// Workspace of `qslice_conv3d`, also where it falls through: the fp32 accumulator [N, Z, P, Q, K]
/// and the filter's slices, or that of im2col_matmul_conv3d.
inline std::size_t qslice_workspace_bytes(const Conv3dProblemShape& problem, DType dtype) {
  const ConvGeometry g = geometry_of(problem);
  if (!qslice_decision(problem, dtype).sliced) return im2col_matmul_workspace_bytes(problem);
  return composed::accumulator_bytes(g) + composed::aligned(g.filter_elements() * 2);
}

}  // namespace convoy
