// SPDX-License-Identifier: Apache-2.0
#include "cpu/gather.hpp"

#include <algorithm>
#include <cstring>

#include "core/padding.hpp"
#include "cpu/convert.hpp"

namespace convoy::cpu {
namespace {

/// One row of the input, [W, C], of frame `d` (counted from the start of the cache) and row `h`.
const char* input_row(const ConvGeometry& g, const void* activation, const void* cache,
                      std::int64_t element, std::int64_t n, std::int64_t d, std::int64_t h) {
  const bool cached = d < g.cached_frames;
  const std::int64_t frame = cached ? n * g.cached_frames + d : n * g.in[0] + d - g.cached_frames;
  const auto* base = static_cast<const char*>(cached ? cache : activation);
  return base + (frame * g.in[1] + h) * g.in[2] * g.in_channels * element;
}

}  // namespace

void gather_input(void* out, const InputBox& box, const ConvGeometry& g, DType dtype,
                  bool widen_to_fp32, const void* activation, const void* cache) {
  const std::array<std::int64_t, 3> seen = g.seen();
  const auto in_element = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t out_element = widen_to_fp32 ? 4 : in_element;
  const std::int64_t channels = g.in_channels;
  const std::int64_t rows = box.images * box.extent[0] * box.extent[1];

  const auto copy = [&](char* to, const char* from, std::int64_t count) {
    if (widen_to_fp32) {
      widen(reinterpret_cast<float*>(to), from, dtype, count);
    } else {
      std::memcpy(to, from, static_cast<std::size_t>(count * in_element));
    }
  };

#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < rows; ++row) {
    char* to = static_cast<char*>(out) + row * box.extent[2] * channels * out_element;
    const std::int64_t n = box.image + row / (box.extent[1] * box.extent[0]);
    const std::int64_t d =
        padded_source(box.begin[0] + row / box.extent[1] % box.extent[0], seen[0], g.pad_mode[0]);
    const std::int64_t h =
        padded_source(box.begin[1] + row % box.extent[1], seen[1], g.pad_mode[1]);
    if (d < 0 || h < 0) {
      std::memset(to, 0, static_cast<std::size_t>(box.extent[2] * channels * out_element));
      continue;
    }
    const char* from = input_row(g, activation, cache, in_element, n, d, h / g.upsample);
    for (std::int64_t w = 0; w < box.extent[2];) {
      // Inside and not upsampled: everything up to the right edge in one piece.
      const std::int64_t at = box.begin[2] + w;
      char* to_pixel = to + w * channels * out_element;
      if (at >= 0 && at < seen[2] && g.upsample == 1) {
        const std::int64_t run = std::min(seen[2] - at, box.extent[2] - w);
        copy(to_pixel, from + at * channels * in_element, run * channels);
        w += run;
        continue;
      }
      const std::int64_t source = padded_source(at, seen[2], g.pad_mode[2]);
      if (source < 0) {
        std::memset(to_pixel, 0, static_cast<std::size_t>(channels * out_element));
      } else {
        copy(to_pixel, from + source / g.upsample * channels * in_element, channels);
      }
      ++w;
    }
  }
}

void write_next_cache(void* next_cache, const ConvGeometry& g, DType dtype, const void* activation,
                      const void* cache) {
  const std::int64_t frames = g.next_cache_frames();
  const std::int64_t skip = g.seen()[0] - frames;  // Negative: frames to fill with zeros.
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t frame_bytes = g.in[1] * g.in[2] * g.in_channels * element;
#pragma omp parallel for schedule(static) collapse(2)
  for (std::int64_t n = 0; n < g.batch; ++n) {
    for (std::int64_t frame = 0; frame < frames; ++frame) {
      char* to = static_cast<char*>(next_cache) + (n * frames + frame) * frame_bytes;
      if (skip + frame < 0) {
        std::memset(to, 0, static_cast<std::size_t>(frame_bytes));
      } else {
        std::memcpy(to, input_row(g, activation, cache, element, n, skip + frame, 0),
                    static_cast<std::size_t>(frame_bytes));
      }
    }
  }
}

}  // namespace convoy::cpu
