// SPDX-License-Identifier: Apache-2.0
#include "kernels/composed/transforms.hpp"

#include <limits>

#include "kernels/common/device_geometry.cuh"
#include "kernels/common/fast_divide.hpp"
#include "kernels/common/launch.hpp"
#include "kernels/composed/threads.hpp"

namespace convoy::composed {
namespace {

// Divisions of one geometry, in 32 bits where its numbers fit (kNarrow), else in 64.
struct Im2colDivisors {
  FastDivide row_vectors, channels, columns, rows, out_columns, out_rows, out_frames;
};

template <bool kNarrow>
__device__ __forceinline__ std::int64_t divide(std::int64_t x, const FastDivide& narrow,
                                               std::int64_t by) {
  if constexpr (kNarrow) return narrow.divide(static_cast<int>(x));
  return x / by;
}

// One vector of a row a thread; neighbouring threads take neighbouring channels.
template <typename Vector, bool kNarrow>
__global__ void __launch_bounds__(kThreads)
    im2col_kernel(Vector* columns, const std::uint16_t* activation, const std::uint16_t* cache,
                  const __grid_constant__ DeviceGeometry g,
                  const __grid_constant__ Im2colDivisors by, std::int64_t row_begin,
                  std::int64_t vectors, std::int64_t pitch) {
  constexpr int kWidth = sizeof(Vector) / 2;
  const std::int64_t row_vectors = pitch / kWidth;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors; i += step) {
    const std::int64_t row = divide<kNarrow>(i, by.row_vectors, row_vectors);
    const std::int64_t column = (i - row * row_vectors) * kWidth;
    Vector value{};
    if (column < g.reduction) {
      const auto tap = static_cast<int>(divide<kNarrow>(column, by.channels, g.channels));
      const auto channel = static_cast<int>(column - std::int64_t{tap} * g.channels);
      const int tap_row = by.columns.divide(tap), s = by.columns.remainder(tap, tap_row);
      const int t = by.rows.divide(tap_row), r = by.rows.remainder(tap_row, t);
      OutputPixel at;
      if constexpr (kNarrow) {
        const auto m = static_cast<int>(row_begin + row);
        const int line = by.out_columns.divide(m), frame = by.out_rows.divide(line);
        at.n = by.out_frames.divide(frame);
        at.z = by.out_frames.remainder(frame, at.n);
        at.p = by.out_rows.remainder(line, frame);
        at.q = by.out_columns.remainder(m, line);
      } else {
        at = output_pixel(g, row_begin + row);
      }
      const std::uint16_t* pixel =
          input_pixel(g, activation, cache, at.n, at.z * g.stride[0] - g.pad[0] + t * g.dilation[0],
                      at.p * g.stride[1] - g.pad[1] + r * g.dilation[1],
                      at.q * g.stride[2] - g.pad[2] + s * g.dilation[2]);
      if (pixel != nullptr) value = *reinterpret_cast<const Vector*>(pixel + channel);
    }
    columns[i] = value;
  }
}

// `slice_elements`: R·S·C.
__global__ void __launch_bounds__(kThreads)
    slice_filter_kernel(std::uint16_t* slices, const std::uint16_t* filter, std::int64_t filters,
                        std::int64_t depths, std::int64_t slice_elements, std::int64_t elements) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements;
       i += step) {
    const std::int64_t within = i % slice_elements;
    const std::int64_t k = i / slice_elements % filters;
    const std::int64_t t = i / slice_elements / filters;
    slices[i] = filter[(k * depths + t) * slice_elements + within];
  }
}

__global__ void __launch_bounds__(kThreads)
    pad_filter_kernel(std::uint16_t* padded, const std::uint16_t* filter, std::int64_t reduction,
                      std::int64_t pitch, std::int64_t elements) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements;
       i += step) {
    const std::int64_t k = i / pitch, column = i - k * pitch;
    padded[i] = column < reduction ? filter[k * reduction + column] : std::uint16_t{0};
  }
}

LaunchConfig launch_config(const char* name, std::int64_t items, cudaStream_t stream) {
  return {.name = name, .grid = blocks_for(items, kThreads), .block = kThreads, .stream = stream};
}

}  // namespace

void write_im2col_rows(void* columns, const void* activation, const void* cache,
                       const ConvGeometry& geometry, std::int64_t row_begin, std::int64_t row_end,
                       std::int64_t pitch, cudaStream_t stream) {
  const DeviceGeometry g = device_geometry(geometry);
  const std::int64_t elements = (row_end - row_begin) * pitch;
  constexpr std::int64_t kNarrowest = std::numeric_limits<std::int32_t>::max();
  const auto launch = [&]<typename Vector>(Vector* to) {
    constexpr std::int64_t kWidth = sizeof(Vector) / 2;
    const std::int64_t vectors = elements / kWidth;
    const bool narrow =
        vectors <= kNarrowest && geometry.gemm_m() <= kNarrowest && pitch <= kNarrowest;
    // NOTE: a problem that is not narrow uses but the taps' divisors.
    const Im2colDivisors by{.row_vectors = FastDivide(narrow ? pitch / kWidth : 1),
                            .channels = FastDivide(g.channels),
                            .columns = FastDivide(g.filter[2]),
                            .rows = FastDivide(g.filter[1]),
                            .out_columns = FastDivide(g.out[2]),
                            .out_rows = FastDivide(g.out[1]),
                            .out_frames = FastDivide(g.out[0])};
    launch_kernel(narrow ? im2col_kernel<Vector, true> : im2col_kernel<Vector, false>,
                  launch_config("im2col", vectors, stream), to,
                  static_cast<const std::uint16_t*>(activation),
                  static_cast<const std::uint16_t*>(cache), g, by, row_begin, vectors, pitch);
  };
  switch (im2col_vector(geometry)) {
    case 8:
      return launch(static_cast<uint4*>(columns));
    case 4:
      return launch(static_cast<uint2*>(columns));
    case 2:
      return launch(static_cast<std::uint32_t*>(columns));
    default:
      return launch(static_cast<std::uint16_t*>(columns));
  }
}

void slice_filter(void* slices, const void* filter, const ConvGeometry& g, cudaStream_t stream) {
  const std::int64_t elements = g.filter_elements();
  launch_kernel(slice_filter_kernel, launch_config("slice_filter", elements, stream),
                static_cast<std::uint16_t*>(slices), static_cast<const std::uint16_t*>(filter),
                g.out_channels, g.filter[0], elements / g.out_channels / g.filter[0], elements);
}

void pad_filter_rows(void* padded, const void* filter, const ConvGeometry& g, std::int64_t pitch,
                     cudaStream_t stream) {
  const std::int64_t elements = g.out_channels * pitch;
  launch_kernel(pad_filter_kernel, launch_config("pad_filter_rows", elements, stream),
                static_cast<std::uint16_t*>(padded), static_cast<const std::uint16_t*>(filter),
                g.gemm_k(), pitch, elements);
}

}  // namespace convoy::composed
