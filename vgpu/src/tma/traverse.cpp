// SPDX-License-Identifier: Apache-2.0
#include "tma/traverse.hpp"

#include <algorithm>
#include <cstring>

namespace vgpu::tma {
namespace {

// Elements of a tiled box along one dimension: element strides thin it out, rounding up
// (CUDA driver API, cuTensorMapEncodeTiled, elementStrides).
uint32_t box_elements(const TensorMap& map, uint32_t dim) {
  return (map.box[dim] + map.element_strides[dim] - 1) / map.element_strides[dim];
}

// Of data: gaps do not count (nor do they in transaction counts: CUTLASS kernels for mixed
// mxf8f6f4 types expect half a byte an element).
uint32_t inner_bytes(const TensorMap& map) {
  return (map.im2col ? map.channels_per_pixel : box_elements(map, 0)) * element_bits(map.type) / 8;
}

uint32_t row_count(const TensorMap& map) {
  if (map.im2col) return map.pixels_per_column;
  uint32_t rows = 1;
  for (uint32_t dim = 1; dim < map.rank; ++dim) rows *= box_elements(map, dim);
  return rows;
}

// NOTE: with a swizzle, rows lie one span apart even where the inner box is narrower (measured on
// an H200: a 16-byte row in a 32-byte span leaves 16 bytes of shared memory untouched).
uint32_t row_pitch(const TensorMap& map) {
  if (has_gaps(map.type)) return box_elements(map, 0);
  return std::max(inner_bytes(map), swizzle_span(map.swizzle));
}

// Appends one row of the box: dimension 0 from `start`, clipped to [0, dims[0]).
void add_row(const TensorMap& map, uint64_t row_address, bool row_in_bounds, int64_t start,
             uint32_t offset, std::vector<Run>& out) {
  // Sub-byte elements move as bytes: boxes start and tensors end at whole ones.
  const uint32_t bits = element_bits(map.type), size = bits < 8 ? 1 : bits / 8;
  const int64_t count = inner_bytes(map) / size;
  if (!row_in_bounds) {
    out.push_back({0, offset, static_cast<uint32_t>(count * size), false});
    return;
  }
  int64_t extent = static_cast<int64_t>(map.dims[0]);
  if (bits < 8) {
    start = start * bits / 8;
    extent = extent * bits / 8;
  }
  const int64_t first = std::clamp<int64_t>(-start, 0, count);
  const int64_t last = std::clamp<int64_t>(extent - start, first, count);
  const auto add = [&](int64_t from, int64_t to, bool in_bounds) {
    if (from == to) return;
    const uint64_t global =
        in_bounds ? row_address + static_cast<uint64_t>((start + from) * size) : 0;
    out.push_back({global, offset + static_cast<uint32_t>(from * size),
                   static_cast<uint32_t>((to - from) * size), in_bounds});
  };
  add(0, first, false);
  add(first, last, true);
  add(last, count, false);
}

// Splits the rows of a box into the pieces between the gaps: sixteen elements, every 16 bytes.
void open_gaps(const TensorMap& map, std::vector<Run>& runs) {
  const uint32_t piece = 2 * element_bits(map.type), pitch = row_pitch(map);
  std::vector<Run> whole = std::move(runs);
  runs.clear();
  for (const Run& run : whole) {
    const uint32_t row = run.offset / pitch;
    for (uint32_t done = 0; done < run.bytes;) {
      const uint32_t at = run.offset % pitch + done;
      const uint32_t bytes = std::min(piece - at % piece, run.bytes - done);
      runs.push_back({run.in_bounds ? run.global + done : 0,
                      row * pitch + at / piece * 16 + at % piece, bytes, run.in_bounds});
      done += bytes;
    }
  }
}

void traverse_tiled(const TensorMap& map, const Coordinates& at, std::vector<Run>& out) {
  uint32_t count[TensorMap::kMaxRank] = {1, 1, 1, 1, 1};
  for (uint32_t dim = 1; dim < map.rank; ++dim) count[dim] = box_elements(map, dim);
  const uint32_t pitch = row_pitch(map);
  uint32_t index[TensorMap::kMaxRank] = {};
  for (uint32_t row = 0, rows = row_count(map); row < rows; ++row) {
    uint64_t address = map.address;
    bool in_bounds = true;
    for (uint32_t dim = 1; dim < map.rank; ++dim) {
      const int64_t position =
          static_cast<int64_t>(at.start[dim]) + int64_t{index[dim]} * map.element_strides[dim];
      in_bounds &= position >= 0 && position < static_cast<int64_t>(map.dims[dim]);
      address += static_cast<uint64_t>(position) * map.strides[dim];
    }
    add_row(map, address, in_bounds, at.start[0], row * pitch, out);
    // Step to the next row, dimension 1 fastest.
    for (uint32_t dim = 1; dim < map.rank; ++dim) {
      if (++index[dim] < count[dim]) break;
      index[dim] = 0;
    }
  }
}

// The pixels of an im2col column walk the bounding box W first, then H, D and N. The box spans
// [lower corner, dims + upper corner) of each spatial dimension; the offsets (the filter tap) are
// added after the walk (PTX ISA "Im2col mode").
void traverse_im2col(const TensorMap& map, const Coordinates& at, std::vector<Run>& out) {
  const uint32_t spatial = map.rank - 2;
  int64_t pixel[3] = {};
  for (uint32_t i = 0; i < spatial; ++i) pixel[i] = at.start[1 + i];
  int64_t image = at.start[map.rank - 1];
  const uint32_t pitch = row_pitch(map);
  for (uint32_t row = 0; row < map.pixels_per_column; ++row) {
    bool in_bounds = image >= 0 && image < static_cast<int64_t>(map.dims[map.rank - 1]);
    uint64_t address = map.address + static_cast<uint64_t>(image) * map.strides[map.rank - 1];
    for (uint32_t i = 0; i < spatial; ++i) {
      const int64_t position = pixel[i] + at.im2col_offset[i];
      in_bounds &= position >= 0 && position < static_cast<int64_t>(map.dims[1 + i]);
      address += static_cast<uint64_t>(position) * map.strides[1 + i];
    }
    add_row(map, address, in_bounds, at.start[0], row * pitch, out);
    uint32_t i = 0;
    for (; i < spatial; ++i) {
      pixel[i] += map.element_strides[1 + i];
      if (pixel[i] < static_cast<int64_t>(map.dims[1 + i]) + map.upper_corner[i]) break;
      pixel[i] = map.lower_corner[i];
    }
    if (i == spatial) ++image;
  }
}

// NOTE: NAN_REQUEST_ZERO_FMA fills with the 16-bit pattern 0x7ff7 whatever the type is (measured on
// an H200 for every floating-point type).
constexpr uint16_t kNanFill = 0x7ff7;

void fill(OobFill kind, uint8_t* target, uint32_t bytes) {
  if (kind == OobFill::zero) {
    std::memset(target, 0, bytes);
    return;
  }
  for (uint32_t i = 0; i < bytes; i += sizeof kNanFill) {
    std::memcpy(target + i, &kNanFill, sizeof kNanFill);
  }
}

bool is_tf32(DataType type) {
  return type == DataType::tfloat32 || type == DataType::tfloat32_ftz;
}

// NOTE: loads of a TFLOAT32 map round each element to tf32, ties to even, and every NaN becomes
// 0x7fffe000; the FTZ types flush nothing on a load (measured on an H200).
void round_to_tf32(uint8_t* data, uint32_t bytes) {
  constexpr uint32_t kDropped = 13, kNan = 0x7fffe000;
  for (uint32_t i = 0; i < bytes; i += 4) {
    uint32_t word;
    std::memcpy(&word, data + i, sizeof word);
    if ((word & 0x7fffffff) > 0x7f800000) {
      word = kNan;
    } else {
      word += (1u << (kDropped - 1)) - 1 + (word >> kDropped & 1);
      word &= ~0u << kDropped;
    }
    std::memcpy(data + i, &word, sizeof word);
  }
}

std::string number(int64_t value) {
  return std::to_string(value);
}

}  // namespace

uint32_t box_bytes(const TensorMap& map) {
  return inner_bytes(map) * row_count(map);
}

uint32_t box_footprint(const TensorMap& map) {
  const uint32_t last = has_gaps(map.type) ? row_pitch(map) : inner_bytes(map);
  return row_pitch(map) * (row_count(map) - 1) + last;
}

// Measured on an H200 (probe/h200.txt): each of these raises an illegal instruction.
std::string check_coordinates(const TensorMap& map, const Coordinates& at, bool writes_global) {
  const uint32_t bits = element_bits(map.type);
  if (static_cast<int64_t>(at.start[0]) * bits % 128 != 0) {
    return "start coordinate 0 is " + number(at.start[0]) + ", " +
           number(static_cast<int64_t>(at.start[0]) * bits / 8) +
           " bytes into the row: the box must start at a multiple of 16 bytes (" +
           number(128 / bits) + " elements)";
  }
  if (has_gaps(map.type) && writes_global) {
    return std::string("stores with tensorDataType ") + to_string(map.type) +
           " are not supported by the virtual GPU";
  }
  if (has_gaps(map.type) && at.start[0] % 128 != 0) {
    return "start coordinate 0 is " + number(at.start[0]) + ": with tensorDataType " +
           to_string(map.type) + " the virtual GPU supports multiples of 128";
  }
  if (writes_global) {
    for (uint32_t dim = 0; dim < map.rank; ++dim) {
      if (at.start[dim] >= 0) continue;
      return "start coordinate " + number(dim) + " of a store is " + number(at.start[dim]) +
             ": stores may pass the tensor's end, not its beginning";
    }
  }
  if (!map.im2col) return {};
  for (uint32_t i = 0; i + 2 < map.rank; ++i) {
    const int64_t first = map.lower_corner[i];
    const int64_t last = static_cast<int64_t>(map.dims[1 + i]) + map.upper_corner[i] - 1;
    const int64_t start = at.start[1 + i];
    if (start < first || start > last) {
      return "start coordinate " + number(1 + i) + " is " + number(start) +
             ", outside the im2col bounding box of " + number(first) + " to " + number(last);
    }
    if (writes_global && first < 0) {
      return "an im2col store with a lower corner of " + number(first) + " along dimension " +
             number(1 + i) + ": stores may not reach before the tensor's beginning";
    }
  }
  return {};
}

void traverse(const TensorMap& map, const Coordinates& at, std::vector<Run>& out) {
  out.clear();
  if (map.im2col) {
    traverse_im2col(map, at, out);
  } else {
    traverse_tiled(map, at, out);
    if (has_gaps(map.type)) open_gaps(map, out);
  }
}

// PTX ISA, ".tile::scatter4 and .tile::gather4 modes": four bounding boxes of one row each.
std::string make_four_rows(TensorMap& map) {
  if (map.im2col || map.rank != 2) {
    return "gather4 and scatter4 need a tiled tensor map of rank 2: " + describe(map);
  }
  if (map.box[1] != 1) {
    return "gather4 and scatter4 need boxDim[1] = 1, it is " + number(map.box[1]);
  }
  map.box[1] = 4;
  map.element_strides[1] = 1;
  return {};
}

void traverse_four_rows(const TensorMap& map, int32_t column, const int32_t* rows,
                        std::vector<Run>& out) {
  out.clear();
  for (uint32_t k = 0; k < 4; ++k) {
    const int64_t row = rows[k];
    const bool in_bounds = row >= 0 && row < static_cast<int64_t>(map.dims[1]);
    add_row(map, map.address + static_cast<uint64_t>(row) * map.strides[1], in_bounds, column,
            k * row_pitch(map), out);
  }
  if (has_gaps(map.type)) open_gaps(map, out);
}

// CUDA driver API, CUtensorMapSwizzle: 16-, 32- or 64-byte chunks within a 32-, 64- or 128-byte
// span, exchanged by the row number, which is what lies above address bit 7.
uint32_t swizzle_address(Swizzle swizzle, uint32_t address) {
  const uint32_t row = address >> 7;
  switch (swizzle) {
    case Swizzle::none:
      return address;
    case Swizzle::b32:
      return address ^ (row & 1) << 4;
    case Swizzle::b64:
      return address ^ (row & 3) << 4;
    case Swizzle::b128:
      return address ^ (row & 7) << 4;
    case Swizzle::b128_atom32:
      return address ^ (row & 3) << 5;
    case Swizzle::b128_atom64:
      return address ^ (row & 1) << 6;
    case Swizzle::b128_atom32_flip8:
      break;  // refused by validate()
  }
  return address;
}

void load_box(const TensorMap& map, const std::vector<Run>& runs, uint8_t* shared,
              uint32_t shared_address) {
  const bool rounds = is_tf32(map.type);
  for (const Run& run : runs) {
    const auto* source = reinterpret_cast<const uint8_t*>(run.global);
    for_each_piece(map.swizzle, shared_address, run.offset, run.bytes,
                   [&](uint32_t to, uint32_t from, uint32_t bytes) {
                     if (!run.in_bounds) {
                       fill(map.fill, shared + to, bytes);
                       return;
                     }
                     std::memcpy(shared + to, source + from, bytes);
                     if (rounds) round_to_tf32(shared + to, bytes);
                   });
  }
}

void store_box(const TensorMap& map, const std::vector<Run>& runs, const uint8_t* shared,
               uint32_t shared_address) {
  for (const Run& run : runs) {
    if (!run.in_bounds) continue;
    auto* target = reinterpret_cast<uint8_t*>(run.global);
    for_each_piece(map.swizzle, shared_address, run.offset, run.bytes,
                   [&](uint32_t from, uint32_t to, uint32_t bytes) {
                     std::memcpy(target + to, shared + from, bytes);
                   });
  }
}

void reduce_box(const TensorMap& map, const std::vector<Run>& runs, const uint8_t* shared,
                uint32_t shared_address, ReduceOp op, ReduceType type) {
  for (const Run& run : runs) {
    if (!run.in_bounds) continue;
    auto* target = reinterpret_cast<uint8_t*>(run.global);
    for_each_piece(map.swizzle, shared_address, run.offset, run.bytes,
                   [&](uint32_t from, uint32_t to, uint32_t bytes) {
                     reduce(op, type, target + to, shared + from, bytes);
                   });
  }
}

}  // namespace vgpu::tma
