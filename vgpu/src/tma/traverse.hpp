// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tma/tensor_map.hpp"

namespace vgpu::tma {

/// The coordinates of one cp.async.bulk.tensor instruction.
struct Coordinates {
  int32_t start[TensorMap::kMaxRank] = {};  ///< innermost first, as in the instruction
  uint16_t im2col_offset[3] = {};           ///< filter tap, W first; zero for stores and tiled
};

/// A contiguous piece of a box: global memory on one side, shared memory before swizzling on the
/// other. `offset` counts from the box's start in shared memory and includes the row pitch.
struct Run {
  uint64_t global = 0;  ///< address of the first byte; undefined when `in_bounds` is false
  uint32_t offset = 0;
  uint32_t bytes = 0;
  bool in_bounds = false;  ///< false: a load fills the bytes, a store or reduction skips them
};

/// Bytes that one load adds to the mbarrier's transaction count (out-of-bounds bytes count,
/// the padding of narrow rows does not).
uint32_t box_bytes(const TensorMap& map);
/// Bytes of shared memory from the box's start to its last byte. More than `box_bytes` when the
/// inner box is narrower than the swizzle span: rows then lie one span apart.
uint32_t box_footprint(const TensorMap& map);

/// Empty when the hardware accepts these coordinates, else why it raises an illegal instruction
/// (cudaErrorIllegalInstruction). Stores and reductions (`writes_global`) accept fewer than loads.
std::string check_coordinates(const TensorMap& map, const Coordinates& at, bool writes_global);

/// The runs of a box in order of `offset`. `out` is overwritten (and its memory reused).
void traverse(const TensorMap& map, const Coordinates& at, std::vector<Run>& out);

/// .tile::gather4 and .tile::scatter4: the map of a box of four rows, from that of one (tiled, rank
/// 2, boxDim[1] = 1). Empty text, else why the map is none.
std::string make_four_rows(TensorMap& map);
/// The runs of a box of four rows that lie anywhere: row k of the box is row rows[k] of the tensor,
/// from `column` on. `map` comes from make_four_rows.
void traverse_four_rows(const TensorMap& map, int32_t column, const int32_t* rows,
                        std::vector<Run>& out);

/// Where the byte at shared-memory address `address` of an unswizzled image lies in a swizzled
/// one. Address bits above the swizzle's decide, so `address` counts from the window's start.
/// 16-byte pieces (8-byte for the flipping variant) stay whole.
uint32_t swizzle_address(Swizzle swizzle, uint32_t address);

/// Calls `f(shared_address, run_byte, bytes)` for each piece of [offset, offset + bytes) of a box
/// at `base` that stays contiguous under the swizzle.
template <typename F>
void for_each_piece(Swizzle swizzle, uint32_t base, uint32_t offset, uint32_t bytes, F&& f) {
  const uint32_t first = base + offset;
  if (swizzle == Swizzle::none) {
    f(first, 0u, bytes);
    return;
  }
  for (uint32_t done = 0; done < bytes;) {
    const uint32_t address = first + done;
    const uint32_t left = 16 - address % 16;
    const uint32_t size = left < bytes - done ? left : bytes - done;
    f(swizzle_address(swizzle, address), done, size);
    done += size;
  }
}

/// Loads a box: copies or fills every run into `shared`, the first byte of the shared memory
/// window, at `shared_address`. The caller has checked that the footprint fits and that every
/// in-bounds run lies in a live allocation.
void load_box(const TensorMap& map, const std::vector<Run>& runs, uint8_t* shared,
              uint32_t shared_address);
/// Stores a box: copies every in-bounds run to global memory.
void store_box(const TensorMap& map, const std::vector<Run>& runs, const uint8_t* shared,
               uint32_t shared_address);

enum class ReduceOp : uint8_t { add, min, max, inc, dec, and_op, or_op, xor_op };
const char* to_string(ReduceOp op);

/// Element types of cp.reduce.async.bulk (PTX ISA "cp.reduce.async.bulk").
/// f32_ftz is that of FLOAT32_FTZ and TFLOAT32_FTZ tensor maps.
enum class ReduceType : uint8_t { f16, bf16, f32, f64, u32, s32, u64, s64, b32, b64, f32_ftz };
const char* to_string(ReduceType type);

/// Empty when the combination exists, else what is legal.
std::string check_reduction(ReduceOp op, ReduceType type);
/// Empty and `type` set when a tensor reduction on the map's type exists, else why not.
std::string reduction_type(const TensorMap& map, ReduceOp op, ReduceType& type);

/// global[i] = op(global[i], source[i]) element by element, each one atomically.
/// Both sides are element-aligned.
void reduce(ReduceOp op, ReduceType type, uint8_t* global, const uint8_t* source, uint64_t bytes);
/// Reduces a box into global memory (cp.reduce.async.bulk.tensor).
void reduce_box(const TensorMap& map, const std::vector<Run>& runs, const uint8_t* shared,
                uint32_t shared_address, ReduceOp op, ReduceType type);

}  // namespace vgpu::tma
