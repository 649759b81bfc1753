// SPDX-License-Identifier: Apache-2.0
#include "kernels/common/filter_packing.hpp"

#include "core/text.hpp"
#include "kernels/common/epilogue.cuh"
#include "kernels/common/launch.hpp"

namespace convoy {
namespace {

constexpr int kThreads = 256;

// Element strides of a source filter, and the extents of the KTRSC destination.
struct FilterAccess {
  std::int64_t stride_k, stride_t, stride_r, stride_s, stride_c;
  std::int64_t k, t, r, s, c;
};

FilterAccess access_of(FilterLayout layout, const ConvGeometry& g) {
  const bool flat =
      layout == FilterLayout::krsc || layout == FilterLayout::kcrs || layout == FilterLayout::rscf;
  if (flat && g.filter[0] != 1) {
    throw_invalid("filter layout = ", to_string(layout),
                  ", without a depth axis, and T = ", g.filter[0],
                  "; legal: ktrsc, kctrs or trscf");
  }
  const std::int64_t k = g.out_channels, c = g.group_channels();
  const std::int64_t t = g.filter[0], r = g.filter[1], s = g.filter[2];
  switch (layout) {
    case FilterLayout::krsc:
    case FilterLayout::ktrsc:
      return {t * r * s * c, r * s * c, s * c, c, 1, k, t, r, s, c};
    case FilterLayout::kcrs:
    case FilterLayout::kctrs:
      return {c * t * r * s, r * s, s, 1, t * r * s, k, t, r, s, c};
    case FilterLayout::rscf:
    case FilterLayout::trscf:
      return {1, r * s * c * k, s * c * k, c * k, k, k, t, r, s, c};
  }
  throw_invalid("filter layout = ", static_cast<int>(layout),
                "; legal: krsc, kcrs, rscf, ktrsc, kctrs or trscf");
}

// One destination element a thread: the writes are coalesced, the reads are whatever the layout
// gives. A filter is packed once, so this is not worth a tiled transpose.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    repack_filter_kernel(Word* packed, const Word* filter, FilterAccess f, FilterBlocks blocks,
                         std::int64_t elements) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements;
       i += step) {
    std::int64_t rest = i;
    const std::int64_t place = rest % blocks.pitch;
    rest /= blocks.pitch;
    const std::int64_t c = rest % blocks.count * blocks.channels + place;
    rest /= blocks.count;
    const std::int64_t s = rest % f.s;
    rest /= f.s;
    const std::int64_t r = rest % f.r;
    rest /= f.r;
    const std::int64_t t = rest % f.t;
    const std::int64_t k = rest / f.t;
    packed[i] = place >= blocks.channels || c >= f.c
                    ? Word{0}
                    : filter[k * f.stride_k + t * f.stride_t + r * f.stride_r + s * f.stride_s +
                             c * f.stride_c];
  }
}

// First and last filter tap that fall on tap `u` of a phase: phase 0 joins taps 1 and 2, phase 1
// taps 0 and 1.
__device__ int first_tap(int phase, int u) {
  return u == 0 ? 0 : 1 + phase;
}
__device__ int last_tap(int phase, int u) {
  return u == 0 ? phase : 2;
}

template <typename Element>
__global__ void __launch_bounds__(kThreads)
    pack_upsampled_filter_kernel(Element* packed, const Element* filter, FilterAccess f, int terms,
                                 std::int64_t elements) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements;
       i += step) {
    std::int64_t rest = i;
    const std::int64_t c = rest % f.c;
    rest /= f.c;
    const int v = static_cast<int>(rest % 2);
    const int u = static_cast<int>(rest / 2 % 2);
    rest /= 4;
    const bool remainder = rest % terms == 1;
    rest /= terms;
    const std::int64_t k = rest % f.k;
    const int phase = static_cast<int>(rest / f.k);
    const int a = phase / 2, b = phase % 2;
    float sum = 0.0f;
    for (int r = first_tap(a, u); r <= last_tap(a, u); ++r) {
      for (int s = first_tap(b, v); s <= last_tap(b, v); ++s) {
        sum += to_float(filter[k * f.stride_k + r * f.stride_r + s * f.stride_s + c * f.stride_c]);
      }
    }
    const Element rounded = from_float<Element>(sum);
    const float left = isfinite(to_float(rounded)) ? sum - to_float(rounded) : 0.0f;
    packed[i] = remainder ? from_float<Element>(left) : rounded;
  }
}

}  // namespace

void repack_filter(void* packed, const void* filter, FilterLayout layout,
                   const ConvGeometry& geometry, DType dtype, cudaStream_t stream) {
  const std::int64_t channels = geometry.group_channels();
  pack_filter_in_blocks(packed, filter, layout, geometry, {1, channels, channels}, dtype, stream);
}

void pack_filter_in_blocks(void* packed, const void* filter, FilterLayout layout,
                           const ConvGeometry& geometry, const FilterBlocks& blocks, DType dtype,
                           cudaStream_t stream) {
  const FilterAccess access = access_of(layout, geometry);
  const std::int64_t elements = access.k * access.t * access.r * access.s * blocks.row();
  if (elements == 0) return;
  const auto launch = [&]<typename Word>(Word*) {
    launch_kernel(repack_filter_kernel<Word>,
                  {.name = "repack_filter",
                   .grid = blocks_for(elements, kThreads),
                   .block = kThreads,
                   .stream = stream},
                  static_cast<Word*>(packed), static_cast<const Word*>(filter), access, blocks,
                  elements);
  };
  if (size_of(dtype) == 2) {
    launch(static_cast<std::uint16_t*>(nullptr));
  } else {
    launch(static_cast<std::uint32_t*>(nullptr));
  }
}

std::string upsample_folding_refusal(const ConvGeometry& g) {
  const auto need = [](const std::string& name, std::int64_t got, std::int64_t legal) {
    return got == legal ? std::string()
                        : text("folded upsampling: ", name, " = ", got, "; legal: ", legal);
  };
  std::string reason = need("upsample", g.upsample, 2);
  for (int axis = 0; axis < 3 && reason.empty(); ++axis) {
    const std::string name = kAxisNames[axis];
    reason = need("filter " + name, g.filter[axis], axis == 0 ? 1 : 3);
    if (reason.empty()) reason = need("stride " + name, g.stride[axis], 1);
    if (axis == 0) continue;
    if (reason.empty()) reason = need("dilation " + name, g.dilation[axis], 1);
    if (reason.empty()) reason = need("padding before " + name, g.pad_begin[axis], 1);
    if (reason.empty()) reason = need("padding after " + name, g.pad_end[axis], 1);
  }
  return reason;
}

void pack_upsampled_filter(void* packed, const void* filter, FilterLayout layout,
                           const ConvGeometry& geometry, DType dtype, cudaStream_t stream) {
  const std::string reason = upsample_folding_refusal(geometry);
  if (!reason.empty()) throw Error(Status::unsupported, reason);
  const FilterAccess access = access_of(layout, geometry);
  const std::int64_t terms = upsampled_filter_terms(geometry);
  const std::int64_t elements = 16 * terms * access.k * access.c;
  if (elements == 0) return;
  dispatch_element(dtype, [&]<typename Element>() {
    launch_kernel(pack_upsampled_filter_kernel<Element>,
                  {.name = "pack_upsampled_filter",
                   .grid = blocks_for(elements, kThreads),
                   .block = kThreads,
                   .stream = stream},
                  static_cast<Element*>(packed), static_cast<const Element*>(filter), access,
                  static_cast<int>(terms), elements);
  });
}

}  // namespace convoy
