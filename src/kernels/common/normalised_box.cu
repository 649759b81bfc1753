// SPDX-License-Identifier: Apache-2.0
#include "kernels/common/normalised_box.hpp"

#include <limits>

#include "core/checked.hpp"
#include "kernels/common/channel_vector.cuh"
#include "kernels/common/device_geometry.cuh"
#include "kernels/common/fast_divide.hpp"
#include "kernels/common/launch.hpp"
#include "kernels/common/prologue.cuh"
#include "kernels/common/ptx.cuh"

namespace convoy {
namespace {

constexpr int kMostThreads = 256;
constexpr int kVectors = 4;  // Of a thread, all loaded before the first is stored.
constexpr std::int64_t kMostVectors =
    std::numeric_limits<std::int32_t>::max() - kMostThreads * kVectors;

// One copy. Vectors are counted in 32 bits.
struct NormalisedBox {
  DeviceGeometry g;
  int origin[4];  // image, frame, row, column
  int vectors;
  FastDivide pixel_vectors, columns, rows, frames;
  Prologue prologue;
  EpilogueParams activation;  // The activation only.
};

// A vector in the order of the box, neighbouring threads having neighbouring ones. Threads of a
// block are a multiple of a pixel's vectors, where that is less: a thread then keeps its channels.
template <typename Element, int kVec>
__global__ void __launch_bounds__(kMostThreads)
    normalised_box_kernel(Element* to, const Element* activation, const Element* cache,
                          const __grid_constant__ NormalisedBox p) {
  const int threads = static_cast<int>(blockDim.x);
  const int first =
      static_cast<int>(blockIdx.x) * threads * kVectors + static_cast<int>(threadIdx.x);
  const bool by_image = p.prologue.norm == PrologueNorm::scale_shift;
  ChannelVector<Element, kVec> values[kVectors] = {};
  float inverse[kVectors];
  // Vector of scale and shift; -1: left as it is.
  std::int64_t factors_of[kVectors];
  ptx::dependent_launch_trigger();
  ptx::dependent_launch_wait();
#pragma unroll
  for (int e = 0; e < kVectors; ++e) {
    inverse[e] = 1.0f;
    factors_of[e] = -1;
    const int vector = first + e * threads;
    if (vector >= p.vectors) continue;
    const int pixel = p.pixel_vectors.divide(vector);
    const int line = p.columns.divide(pixel), frame = p.rows.divide(line);
    const int unit = p.pixel_vectors.remainder(vector, pixel);
    const int block = p.frames.divide(frame);
    const int image = p.origin[0] + block;
    int d = p.origin[1] + p.frames.remainder(frame, block);
    int h = p.origin[2] + p.rows.remainder(line, frame);
    int w = p.origin[3] + p.columns.remainder(pixel, line);
    if (!map_coordinate(d, p.g.seen[0], p.g.pad_mode[0]) ||
        !map_coordinate(h, p.g.seen[1], p.g.pad_mode[1]) ||
        !map_coordinate(w, p.g.seen[2], p.g.pad_mode[2])) {
      continue;
    }
    const bool cached = d < p.g.cached_frames;
    const std::int64_t in_frame = cached ? std::int64_t{image} * p.g.cached_frames + d
                                         : std::int64_t{image} * p.g.in[0] + d - p.g.cached_frames;
    const std::int64_t in_pixel =
        (in_frame * p.g.in[1] + (h >> p.g.upsample_shift)) * p.g.in[2] + (w >> p.g.upsample_shift);
    values[e].load((cached ? cache : activation) + in_pixel * p.g.channels + unit * kVec);
    if (cached) continue;
    factors_of[e] = unit;
    if (by_image) {
      factors_of[e] += std::int64_t{image} * p.pixel_vectors.divisor;
    } else {
      inverse[e] = __ldg(p.prologue.inverse_rms + in_pixel);
    }
  }
  ChannelFactors<kVec> factors;
  std::int64_t loaded = -1;
#pragma unroll
  for (int e = 0; e < kVectors; ++e) {
    const int vector = first + e * threads;
    if (vector >= p.vectors) continue;
    if (factors_of[e] >= 0) {
      if (factors_of[e] != loaded) {
        loaded = factors_of[e];
        factors.load(p.prologue, loaded * kVec);
      }
      float v[kVec];
      values[e].widen(v);
      factors.apply(inverse[e], v);
      activate(p.activation, v);
      values[e].narrow(v);
    }
    values[e].store(to + std::int64_t{vector} * kVec, false);
  }
}

template <typename Element, int kVec>
void launch(void* to, const RunPointers& pointers, const ConvGeometry& g, const InputBox& box,
            cudaStream_t stream) {
  const std::int64_t pixel_vectors = g.in_channels / kVec;
  NormalisedBox p{.g = device_geometry(g)};
  std::int64_t vectors = pixel_vectors;
  for (int i = 0; i < 4; ++i) {
    p.origin[i] = static_cast<int>(box.origin[i]);
    vectors *= box.extent[i];
  }
  if (vectors == 0) return;
  p.g.channels = static_cast<int>(g.in_channels);  // Of all groups.
  p.vectors = static_cast<int>(vectors);
  p.pixel_vectors = FastDivide(pixel_vectors);
  p.columns = FastDivide(box.extent[3]);
  p.rows = FastDivide(box.extent[2]);
  p.frames = FastDivide(box.extent[1]);
  p.prologue = pointers.prologue;
  p.activation.activation = pointers.prologue.activation;
  const int threads = pixel_vectors > kMostThreads
                          ? kMostThreads
                          : static_cast<int>(kMostThreads / pixel_vectors * pixel_vectors);
  launch_kernel(normalised_box_kernel<Element, kVec>,
                {.name = "normalised_box",
                 .grid = static_cast<unsigned>(ceil_div(vectors, std::int64_t{threads} * kVectors)),
                 .block = static_cast<unsigned>(threads),
                 .stream = stream,
                 .overlapped = true},
                static_cast<Element*>(to), static_cast<const Element*>(pointers.activation),
                static_cast<const Element*>(pointers.cache), p);
}

}  // namespace

void write_normalised_box(void* to, const RunPointers& pointers, const ConvGeometry& g, DType dtype,
                          const InputBox& box, cudaStream_t stream) {
  const auto wide = static_cast<std::int64_t>(16 / size_of(dtype));
  const bool is_wide = g.in_channels % wide == 0;
  const std::int64_t pixel_vectors = is_wide ? g.in_channels / wide : g.in_channels;
  std::int64_t vectors = pixel_vectors;
  for (const std::int64_t extent : box.extent) vectors *= extent;
  if (vectors > kMostVectors) {  // In halves.
    int axis = 0;
    while (box.extent[axis] == 1) ++axis;
    InputBox half = box, rest = box;
    half.extent[axis] = box.extent[axis] / 2;
    rest.extent[axis] -= half.extent[axis];
    rest.origin[axis] += half.extent[axis];
    std::int64_t bytes = g.in_channels * static_cast<std::int64_t>(size_of(dtype));
    for (const std::int64_t extent : half.extent) bytes *= extent;
    write_normalised_box(to, pointers, g, dtype, half, stream);
    return write_normalised_box(static_cast<char*>(to) + bytes, pointers, g, dtype, rest, stream);
  }
  dispatch_element(dtype, [&]<typename Element>() {
    if (is_wide) {
      launch<Element, kChannelVector<Element>>(to, pointers, g, box, stream);
    } else {
      launch<Element, 1>(to, pointers, g, box, stream);
    }
  });
}

void write_normalised_cache(const RunPointers& pointers, const ConvGeometry& g, DType dtype,
                            cudaStream_t stream) {
  const std::int64_t frames = g.next_cache_frames();
  ConvGeometry zeros_before = g;
  zeros_before.pad_mode[0] = PadMode::zero;
  const InputBox box{.origin = {0, g.seen()[0] - frames, 0, 0},
                     .extent = {g.batch, frames, g.in[1], g.in[2]}};
  write_normalised_box(pointers.next_cache, pointers, zeros_before, dtype, box, stream);
}

}  // namespace convoy
