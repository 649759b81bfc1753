// SPDX-License-Identifier: Apache-2.0
#include "cpu/gather.hpp"

#include <algorithm>
#include <cstring>

#include "core/padding.hpp"
#include "cpu/convert.hpp"
#include "cpu/epilogue.hpp"
#include "cpu/prologue.hpp"

namespace convoy::cpu {
namespace {

/// One row of the input, [W, C]: where it lies, and which pixels of the activation they are.
struct InputRow {
  const char* data = nullptr;
  bool cached = false;  ///< Of the cache, which a prologue leaves as it is.
  std::int64_t image = 0, first_pixel = 0;
};

/// Row `h` of frame `d`, counted from the start of the cache, of image `n`.
InputRow input_row(const ConvGeometry& g, const RunPointers& pointers, std::int64_t element,
                   std::int64_t n, std::int64_t d, std::int64_t h) {
  const bool cached = d < g.cached_frames;
  const std::int64_t frame = cached ? n * g.cached_frames + d : n * g.in[0] + d - g.cached_frames;
  const auto* base = static_cast<const char*>(cached ? pointers.cache : pointers.activation);
  const std::int64_t pixel = (frame * g.in[1] + h) * g.in[2];
  return {base + pixel * g.in_channels * element, cached, n, pixel};
}

/// Pixels as they are convolved: from the input's type to the same, or to fp32.
class PixelCopy {
 public:
  PixelCopy(const ConvGeometry& g, DType dtype, bool widens, const Prologue& prologue)
      : channels_(g.in_channels),
        element_(static_cast<std::int64_t>(size_of(dtype))),
        dtype_(dtype),
        widens_(widens),
        prologue_(prologue) {}

  void operator()(char* to, const InputRow& row, std::int64_t column, std::int64_t pixels) const {
    const char* const from = row.data + column * channels_ * element_;
    if (prologue_.kind().any() && !row.cached) return normalise(to, from, row, column, pixels);
    if (widens_) {
      widen(reinterpret_cast<float*>(to), from, dtype_, pixels * channels_);
    } else {
      std::memcpy(to, from, static_cast<std::size_t>(pixels * channels_ * element_));
    }
  }

 private:
  void normalise(char* to, const char* from, const InputRow& row, std::int64_t column,
                 std::int64_t pixels) const {
    // Whole pixels in each piece, or channels of one pixel. NOTE: on the stack: an exception must
    // not leave a thread of a parallel region.
    const std::int64_t step = std::max<std::int64_t>(1, kEpiloguePiece / channels_);
    const std::int64_t width = std::min(channels_, kEpiloguePiece);
    float values[kEpiloguePiece];
    for (std::int64_t pixel = 0; pixel < pixels; pixel += step) {
      const std::int64_t count = std::min(step, pixels - pixel);
      for (std::int64_t channel = 0; channel < channels_; channel += width) {
        const std::int64_t channels = std::min(width, channels_ - channel);
        const std::int64_t first = pixel * channels_ + channel, elements = count * channels;
        widen(values, from + first * element_, dtype_, elements);
        apply_prologue(values, prologue_,
                       {row.image, row.first_pixel + column + pixel, count, channel, channels},
                       channels_);
        if (widens_) {
          round_in_place(values, dtype_, elements);
          std::copy_n(values, elements, reinterpret_cast<float*>(to) + first);
        } else {
          narrow(to + first * element_, values, dtype_, elements);
        }
      }
    }
  }

  std::int64_t channels_, element_;
  DType dtype_;
  bool widens_;
  const Prologue& prologue_;
};

}  // namespace

void gather_input(void* out, const InputBox& box, const ConvGeometry& g, DType dtype,
                  bool widen_to_fp32, const RunPointers& pointers) {
  const std::array<std::int64_t, 3> seen = g.seen();
  const auto in_element = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t pixel_bytes = g.in_channels * (widen_to_fp32 ? 4 : in_element);
  const std::int64_t rows = box.images * box.extent[0] * box.extent[1];
  const PixelCopy copy(g, dtype, widen_to_fp32, pointers.prologue);

#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < rows; ++row) {
    char* to = static_cast<char*>(out) + row * box.extent[2] * pixel_bytes;
    const std::int64_t n = box.image + row / (box.extent[1] * box.extent[0]);
    const std::int64_t d =
        padded_source(box.begin[0] + row / box.extent[1] % box.extent[0], seen[0], g.pad_mode[0]);
    const std::int64_t h =
        padded_source(box.begin[1] + row % box.extent[1], seen[1], g.pad_mode[1]);
    if (d < 0 || h < 0) {
      std::memset(to, 0, static_cast<std::size_t>(box.extent[2] * pixel_bytes));
      continue;
    }
    const InputRow from = input_row(g, pointers, in_element, n, d, h / g.upsample);
    for (std::int64_t w = 0; w < box.extent[2];) {
      // Inside and not upsampled: everything up to the right edge in one piece.
      const std::int64_t at = box.begin[2] + w;
      char* to_pixel = to + w * pixel_bytes;
      if (at >= 0 && at < seen[2] && g.upsample == 1) {
        const std::int64_t run = std::min(seen[2] - at, box.extent[2] - w);
        copy(to_pixel, from, at, run);
        w += run;
        continue;
      }
      const std::int64_t source = padded_source(at, seen[2], g.pad_mode[2]);
      if (source < 0) {
        std::memset(to_pixel, 0, static_cast<std::size_t>(pixel_bytes));
      } else {
        copy(to_pixel, from, source / g.upsample, 1);
      }
      ++w;
    }
  }
}

void write_next_cache(const ConvGeometry& g, DType dtype, const RunPointers& pointers) {
  const std::int64_t frames = g.next_cache_frames();
  ConvGeometry frames_only = g;  // Zeros lie before the first frame, whatever the padding's mode.
  frames_only.pad_mode[0] = PadMode::zero;
  const InputBox box = {.image = 0,
                        .images = g.batch,
                        .begin = {g.seen()[0] - frames, 0, 0},
                        .extent = {frames, g.in[1], g.in[2]}};
  gather_input(pointers.next_cache, box, frames_only, dtype, false, pointers);
}

}  // namespace convoy::cpu
