// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cpu/gather.hpp"
#include "onednn/onednn.hpp"

namespace convoy::cpu {

/// A contiguous part of the output that one oneDNN call computes: whole images, or whole frames of
/// one image, or rows of one frame.
struct ConvBlock {
  std::int64_t first_output = 0;  ///< Its first element in the output,
  std::int64_t output_elements = 0;
  InputBox input;  ///< and the part of the (padded) input that it reads.
  onednn::ConvShape shape;
};

/// Cut the output into blocks of at most `limit_bytes` each, where one output row costs `row_bytes`
/// (at least one row a block), as equal as can be. With `gathered` the input boxes include their
/// padding; without, they are parts of the activation and the padding is left to oneDNN.
std::vector<ConvBlock> cut_into_blocks(const ConvGeometry& geometry, std::int64_t row_bytes,
                                       std::int64_t limit_bytes, bool gathered);

/// How many those are.
std::int64_t count_blocks(const ConvGeometry& geometry, std::int64_t row_bytes,
                          std::int64_t limit_bytes);

/// Whether oneDNN can read the activation as it lies: zero padding narrower than the filter's span,
/// no cache, no upsampling.
bool reads_in_place(const ConvGeometry& geometry);

/// Input elements that one row of output reads, the frames and rows it shares with others included.
std::int64_t input_elements_per_row(const ConvGeometry& geometry);

}  // namespace convoy::cpu
