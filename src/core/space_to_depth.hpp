// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "convoy/geometry.hpp"

namespace convoy {

/// Other ways to read the same convolution off the same memory: activation, cache, dense KTRSC
/// filter and output keep every byte where it is, and only the extents that describe them change.
/// Empty where there are none (groups, upsampling, nothing to gain).
///
/// Space to depth: with W and S multiples of the stride s, s neighbouring columns are one pixel of
/// s·C channels, and the convolution has S / s taps and stride 1 along the width. Padding of zeros
/// that is a multiple of s stays padding. Where one output column takes in a whole row, the row is
/// a pixel, and the height takes the width's place: a patch that spans the image ends as 1×1.
///
/// Rows of patches: where patches tile the height (R = stride, no padding), the patches of one row
/// are an image of R rows, and all rows of patches a larger batch. With T frames a patch, those
/// rows are frames instead, and a patch's own frames lie P of them apart: dilation.
///
/// Each of the rewritten problems is legal, of the same rank, and has no more taps.
std::vector<ConvGeometry> space_to_depth(const ConvGeometry& geometry);

}  // namespace convoy
