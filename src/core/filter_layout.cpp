// SPDX-License-Identifier: Apache-2.0
#include "core/filter_layout.hpp"

#include <cstring>

#include "core/text.hpp"

namespace convoy {

std::array<std::int64_t, 5> filter_strides(const ConvGeometry& geometry, FilterLayout layout) {
  const std::int64_t filters = geometry.out_channels;
  const auto [t, r, s] = geometry.filter;
  const std::int64_t c = geometry.group_channels();
  switch (layout) {
    case FilterLayout::krsc:
    case FilterLayout::ktrsc:
      if ((layout == FilterLayout::krsc) != (geometry.rank == 2)) break;
      return {t * r * s * c, r * s * c, s * c, c, 1};
    case FilterLayout::kcrs:
    case FilterLayout::kctrs:
      if ((layout == FilterLayout::kcrs) != (geometry.rank == 2)) break;
      return {c * t * r * s, r * s, s, 1, t * r * s};
    case FilterLayout::rscf:
    case FilterLayout::trscf:
      if ((layout == FilterLayout::rscf) != (geometry.rank == 2)) break;
      return {1, r * s * c * filters, s * c * filters, c * filters, filters};
  }
  throw_invalid(
      "filter layout ", to_string(layout), " does not fit a ", geometry.rank,
      "-D convolution; legal: ", geometry.rank == 2 ? "KRSC, KCRS, RSCF" : "KTRSC, KCTRS, TRSCF");
}

namespace {

template <typename Element>
void repack(Element* out, const Element* in, const std::array<std::int64_t, 5>& stride,
            const ConvGeometry& g) {
  for (std::int64_t k = 0; k < g.out_channels; ++k) {
    for (std::int64_t t = 0; t < g.filter[0]; ++t) {
      for (std::int64_t r = 0; r < g.filter[1]; ++r) {
        for (std::int64_t s = 0; s < g.filter[2]; ++s) {
          const Element* tap = in + k * stride[0] + t * stride[1] + r * stride[2] + s * stride[3];
          for (std::int64_t c = 0; c < g.group_channels(); ++c) *out++ = tap[c * stride[4]];
        }
      }
    }
  }
}

}  // namespace

void repack_filter(void* ktrsc, const void* filter, DType dtype, FilterLayout layout,
                   const ConvGeometry& geometry) {
  const auto stride = filter_strides(geometry, layout);
  if (size_of(dtype) == 4) {
    repack(static_cast<std::uint32_t*>(ktrsc), static_cast<const std::uint32_t*>(filter), stride,
           geometry);
  } else {
    repack(static_cast<std::uint16_t*>(ktrsc), static_cast<const std::uint16_t*>(filter), stride,
           geometry);
  }
}

}  // namespace convoy
