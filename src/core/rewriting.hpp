// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "convoy/geometry.hpp"

namespace convoy {

/// Another way to read the same convolution off the same memory.
struct Rewriting {
  ConvGeometry geometry;
  /// Pixels of an image are as many, of the same channels and in the same order: what holds for
  /// each of them, or for all of an image, holds in this form too.
  bool keeps_pixels = false;
};

/// What a kernel's modelled time is multiplied by where it runs on this form.
// NOTE: measured, 48 layers: of T×1 filters halo tiles take so much longer than the model, which
// was fitted to square ones, beside what other tiles take.
inline double rewriting_doubt(const Rewriting& form) {
  return form.keeps_pixels ? 1.06 : 1.0;
}

/// All of them: activation, cache, dense KTRSC filter and output keep every byte where it is, and
/// only the extents that describe them change. Empty where there are none (upsampling, pitches,
/// nothing to gain). Each is legal, of the same rank, and has no more taps.
///
/// Space to depth, without groups: with W and S multiples of the stride s, s neighbouring columns
/// are one pixel of s·C channels, and the convolution has S / s taps and stride 1 along the width.
/// Padding of zeros that is a multiple of s stays padding. Where one output column takes in a whole
/// row, the row is a pixel, and the height takes the width's place: a patch that spans the image
/// ends as 1×1.
///
/// Rows of patches, likewise: where patches tile the height (R = stride, no padding), the patches
/// of one row are an image of R rows, and all rows of patches a larger batch. With T frames a
/// patch, those rows are frames instead, and a patch's own frames lie P of them apart: dilation.
///
/// Frames as rows: a filter of T×1×1 without a cache, padded by zeros, is one of T×1 over images of
/// D rows of H·W columns, whose taps a kernel may let slide over one patch of several frames.
std::vector<Rewriting> rewritings(const ConvGeometry& geometry);

}  // namespace convoy
