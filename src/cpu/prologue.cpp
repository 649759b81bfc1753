// SPDX-License-Identifier: Apache-2.0
#include "cpu/prologue.hpp"

#include <limits>

#include "cpu/epilogue.hpp"
#include "cpu/simd.hpp"

namespace convoy::cpu {
namespace {

CONVOY_VECTOR_CLONES
void scale_and_shift(float* row, const float* scale, const float* shift, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) row[i] = row[i] * scale[i] + shift[i];
}

CONVOY_VECTOR_CLONES
void scale_by_pixel(float* row, float factor, const float* scale, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) row[i] = row[i] * factor * scale[i];
}

}  // namespace

void apply_prologue(float* values, const Prologue& prologue, const PixelRun& run,
                    std::int64_t channels) {
  for (std::int64_t i = 0; i < run.count; ++i) {
    float* const row = values + i * run.channels;
    if (prologue.norm == PrologueNorm::rms) {
      scale_by_pixel(row, prologue.inverse_rms[run.first + i], prologue.scale + run.first_channel,
                     run.channels);
    } else {
      const std::int64_t first = run.image * channels + run.first_channel;
      scale_and_shift(row, prologue.scale + first, prologue.shift + first, run.channels);
    }
  }
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  activate(values, run.count * run.channels, prologue.activation, kNone, kNone);
}

}  // namespace convoy::cpu
