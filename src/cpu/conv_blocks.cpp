// SPDX-License-Identifier: Apache-2.0
#include "cpu/conv_blocks.hpp"

#include <algorithm>

#include "core/checked.hpp"

namespace convoy::cpu {
namespace {

/// Elements of the input under `count` outputs of one axis, gaps included.
std::int64_t input_span(const ConvGeometry& g, int axis, std::int64_t count) {
  return (count - 1) * g.stride[axis] + g.dilation[axis] * (g.filter[axis] - 1) + 1;
}

/// What a block starting at output `first` and `count` long reads of one axis.
void place_axis(const ConvGeometry& g, int axis, std::int64_t first, std::int64_t count,
                bool gathered, ConvBlock& block) {
  const std::int64_t begin = first * g.stride[axis] - g.pad_begin[axis];
  const std::int64_t end = begin + input_span(g, axis, count);
  block.shape.out[axis] = count;
  block.input.begin[axis] = begin;
  block.input.extent[axis] = end - begin;
  if (!gathered) {
    const std::int64_t low = std::max<std::int64_t>(begin, 0);
    // The last block takes what the stride leaves over, so that the whole width or height of the
    // activation is one dense box.
    const bool last = first + count == g.out[axis];
    const std::int64_t high = last ? g.in[axis] : std::min(end, g.in[axis]);
    block.input.begin[axis] = low;
    block.input.extent[axis] = high - low;
    block.shape.pad_begin[axis] = low - begin;
    block.shape.pad_end[axis] = std::max<std::int64_t>(end - high, 0);
  }
  block.shape.in[axis] = block.input.extent[axis];
}

/// The size of the fewest parts of `total` of at most `most`, as equal as can be.
std::int64_t part_size(std::int64_t total, std::int64_t most) {
  const std::int64_t parts = ceil_div(total, std::max<std::int64_t>(most, 1));
  return ceil_div(total, std::max<std::int64_t>(parts, 1));
}

std::int64_t count_parts(std::int64_t total, std::int64_t most) {
  return total > 0 ? ceil_div(total, part_size(total, most)) : 0;
}

/// Cut `total` into such parts; call back with each.
template <typename Body>
void for_each_part(std::int64_t total, std::int64_t most, Body&& body) {
  const std::int64_t size = part_size(total, most);
  for (std::int64_t first = 0; first < total; first += size) {
    body(first, std::min(size, total - first));
  }
}

/// What a block holds at most.
struct Most {
  std::int64_t images, frames, rows;

  Most(const ConvGeometry& g, std::int64_t row_bytes, std::int64_t limit_bytes)
      : images(1), frames(1), rows(std::max<std::int64_t>(limit_bytes / row_bytes, 1)) {
    frames = std::max<std::int64_t>(rows / g.out[1], 1);
    images = std::max<std::int64_t>(rows / g.out[1] / g.out[0], 1);
  }
};

}  // namespace

bool reads_in_place(const ConvGeometry& g) {
  if (g.cached_frames > 0 || g.upsample > 1) return false;
  for (int axis = 0; axis < 3; ++axis) {
    const std::int64_t pad = std::max(g.pad_begin[axis], g.pad_end[axis]);
    if (pad > 0 && g.pad_mode[axis] != PadMode::zero) return false;
    if (pad > g.dilation[axis] * (g.filter[axis] - 1)) return false;
  }
  return true;
}

std::int64_t input_elements_per_row(const ConvGeometry& g) {
  std::int64_t product = input_span(g, 0, 1);
  for (std::int64_t factor : {g.stride[1], input_span(g, 2, g.out[2]), g.in_channels}) {
    if (__builtin_mul_overflow(product, factor, &product)) return INT64_MAX;
  }
  return product;
}

std::int64_t count_blocks(const ConvGeometry& g, std::int64_t row_bytes, std::int64_t limit_bytes) {
  const Most most(g, row_bytes, limit_bytes);
  std::int64_t product = count_parts(g.batch, most.images);
  for (std::int64_t factor :
       {count_parts(g.out[0], most.frames), count_parts(g.out[1], most.rows)}) {
    if (__builtin_mul_overflow(product, factor, &product)) return INT64_MAX;
  }
  return product;
}

std::vector<ConvBlock> cut_into_blocks(const ConvGeometry& g, std::int64_t row_bytes,
                                       std::int64_t limit_bytes, bool gathered) {
  const Most most(g, row_bytes, limit_bytes);
  const std::int64_t row_elements = g.out[2] * g.out_channels;

  std::vector<ConvBlock> blocks;
  for_each_part(g.batch, most.images, [&](std::int64_t n, std::int64_t images) {
    for_each_part(g.out[0], most.frames, [&](std::int64_t z, std::int64_t frames) {
      for_each_part(g.out[1], most.rows, [&](std::int64_t p, std::int64_t rows) {
        ConvBlock block;
        block.first_output = ((n * g.out[0] + z) * g.out[1] + p) * row_elements;
        block.output_elements = images * frames * rows * row_elements;
        block.input.image = n;
        block.input.images = images;
        block.shape.rank = g.rank;
        block.shape.images = images;
        place_axis(g, 0, z, frames, gathered, block);
        place_axis(g, 1, p, rows, gathered, block);
        place_axis(g, 2, 0, g.out[2], gathered, block);
        blocks.push_back(block);
      });
    });
  });
  return blocks;
}

}  // namespace convoy::cpu
