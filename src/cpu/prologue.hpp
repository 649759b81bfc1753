// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "convoy/prologue.hpp"

namespace convoy::cpu {

/// Pixels of the activation that follow each other, and some of their channels: pixel `first` of
/// all, of image `image`.
struct PixelRun {
  std::int64_t image = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t first_channel = 0;
  std::int64_t channels = 0;
};

/// Norm and activation of the prologue, in place: `run.count` pixels of `run.channels` values each,
/// of a tensor of `channels`.
void apply_prologue(float* values, const Prologue& prologue, const PixelRun& run,
                    std::int64_t channels);

}  // namespace convoy::cpu
