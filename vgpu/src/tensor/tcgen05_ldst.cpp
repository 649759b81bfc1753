// SPDX-License-Identifier: Apache-2.0
#include "tensor/tcgen05_ldst.hpp"

#include <bit>
#include <cstring>

#include "fault.hpp"

namespace vgpu::tensor {
namespace {

struct Extent {
  uint32_t lanes = 0, columns = 0;  // columns of 32 bits, before packing
};

/// What one instruction covers; 16x32bx2 covers two such rectangles.
Extent extent(TmemShape shape, uint32_t repeat) {
  switch (shape) {
    case TmemShape::s32x32b:
      return {32, repeat};
    case TmemShape::s16x64b:
      return {16, 2 * repeat};
    case TmemShape::s16x128b:
      return {16, 4 * repeat};
    case TmemShape::s16x256b:
      return {16, 8 * repeat};
    case TmemShape::s16x32bx2:
      return {16, repeat};
  }
  return {};
}

/// Where the warp goes: its own quarter of the lanes, whichever the address names.
TmemAddress own_address(const TmemTransfer& transfer) {
  TmemAddress address = TmemAddress::from(transfer.address);
  address.lane = transfer.warp % 4 * 32 + address.lane % 32;
  return address;
}

bool names_no_lane(const TmemTransfer& transfer) {
  return TmemAddress::from(transfer.address).lane >= kTmemLanes;
}

struct Rectangle {
  uint32_t lane, lanes, column, columns;
};

/// The rectangles a transfer touches, checked.
struct Footprint {
  Rectangle parts[2];
  uint32_t count = 1;
};

Footprint footprint(const char* what, const Tmem& tmem, const TmemTransfer& transfer) {
  validate(transfer.shape, transfer.repeat);
  const TmemAddress base = own_address(transfer);
  const Extent size = extent(transfer.shape, transfer.repeat);
  if (base.lane % size.lanes != 0 || names_no_lane(transfer)) {
    fault(
        kIllegalAddress,
        "%s.%s by warp %u (%u of its warpgroup) names lane %u; it can reach lanes %u..%u, starting "
        "at a multiple of %u",
        what, name_of(transfer.shape), transfer.warp, transfer.warp % 4,
        TmemAddress::from(transfer.address).lane, base.lane / 32 * 32, base.lane / 32 * 32 + 31,
        size.lanes);
  }
  // NOTE: a packed transfer moves the low halves of twice as many columns.
  const uint32_t columns = size.columns * (transfer.pack16 ? 2 : 1);
  Footprint result;
  result.parts[0] = {base.lane, size.lanes, base.column, columns};
  if (transfer.shape == TmemShape::s16x32bx2) {
    result.parts[1] = result.parts[0];
    result.parts[1].column += transfer.half_split_offset;
    result.count = 2;
  }
  for (uint32_t i = 0; i < result.count; ++i) {
    const Rectangle& part = result.parts[i];
    tmem.check(what, part.lane, part.lanes, part.column, part.columns);
  }
  return result;
}

void report(const Footprint& footprint, AccessVisitor* visitor, bool write) {
  if (!visitor) return;
  for (uint32_t i = 0; i < footprint.count; ++i) {
    const Rectangle& part = footprint.parts[i];
    visitor->tmem(0, part.lane, part.lanes, part.column, part.columns, write);
  }
}

/// Calls move(lane, reg, row pointer, column): the cell, or the first of two cells when packed.
template <typename Move>
void for_each_cell(const TmemTransfer& transfer, Move move) {
  const TmemAddress base = own_address(transfer);
  const uint32_t registers = tmem_registers(transfer.shape, transfer.repeat);
  const uint32_t scale = transfer.pack16 ? 2 : 1;
  // The split of 16x32bx2 is in TMEM columns, packed or not: keep it out of the scaling.
  for (uint32_t reg = 0; reg < registers; ++reg) {
    for (uint32_t lane = 0; lane < 32; ++lane) {
      TmemCell cell = tmem_cell(transfer.shape, transfer.repeat, 0, lane, reg);
      uint32_t split =
          transfer.shape == TmemShape::s16x32bx2 && lane >= 16 ? transfer.half_split_offset : 0;
      move(lane, reg, base.lane + cell.lane, base.column + cell.column * scale + split);
    }
  }
}

}  // namespace

bool names_own_lanes(const TmemTransfer& transfer) {
  return TmemAddress::from(transfer.address).lane / 32 == transfer.warp % 4;
}

const char* name_of(TmemShape shape) {
  switch (shape) {
    case TmemShape::s32x32b:
      return "32x32b";
    case TmemShape::s16x64b:
      return "16x64b";
    case TmemShape::s16x128b:
      return "16x128b";
    case TmemShape::s16x256b:
      return "16x256b";
    case TmemShape::s16x32bx2:
      return "16x32bx2";
  }
  return "?";
}

uint32_t tmem_registers(TmemShape shape, uint32_t repeat) {
  switch (shape) {
    case TmemShape::s16x128b:
      return 2 * repeat;
    case TmemShape::s16x256b:
      return 4 * repeat;
    default:
      return repeat;
  }
}

void validate(TmemShape shape, uint32_t repeat) {
  if (repeat == 0 || !std::has_single_bit(repeat) || tmem_registers(shape, repeat) > 128) {
    fault(kInvalidPtx, "tcgen05.ld/st .%s.x%u does not exist; legal: x1..x%u in powers of two",
          name_of(shape), repeat, 128 / tmem_registers(shape, 1));
  }
}

TmemCell tmem_cell(TmemShape shape, uint32_t, uint32_t half_split_offset, uint32_t lane,
                   uint32_t reg) {
  switch (shape) {
    case TmemShape::s32x32b:
      return {lane, reg};
    case TmemShape::s16x64b:
      return {lane / 4 + lane % 2 * 8, reg * 2 + lane / 2 % 2};
    case TmemShape::s16x128b:
      return {lane / 4 + reg % 2 * 8, reg / 2 * 4 + lane % 4};
    case TmemShape::s16x256b:
      return {lane / 4 + reg / 2 % 2 * 8, reg / 4 * 8 + lane % 4 * 2 + reg % 2};
    case TmemShape::s16x32bx2:
      return {lane % 16, reg + (lane >= 16 ? half_split_offset : 0)};
  }
  return {};
}

void tcgen05_load(const Tmem& tmem, const TmemTransfer& transfer,
                  std::span<uint32_t* const> registers, AccessVisitor* visitor) {
  report(footprint("tcgen05.ld", tmem, transfer), visitor, false);
  for_each_cell(transfer, [&](uint32_t lane, uint32_t reg, uint32_t row, uint32_t column) {
    const uint32_t* cell = tmem.row(row) + column;
    registers[reg][lane] = transfer.pack16 ? (cell[0] & 0xffff) | cell[1] << 16 : cell[0];
  });
}

void tcgen05_store(Tmem& tmem, const TmemTransfer& transfer,
                   std::span<const uint32_t* const> registers, AccessVisitor* visitor) {
  Footprint touched = footprint("tcgen05.st", tmem, transfer);
  report(touched, visitor, true);
  for_each_cell(transfer, [&](uint32_t lane, uint32_t reg, uint32_t row, uint32_t column) {
    uint32_t* cell = tmem.row(row) + column;
    const uint32_t value = registers[reg][lane];
    if (transfer.pack16) {
      cell[0] = value & 0xffff;
      cell[1] = value >> 16;
    } else {
      cell[0] = value;
    }
  });
  for (uint32_t i = 0; i < touched.count; ++i) {
    const Rectangle& part = touched.parts[i];
    tmem.mark_written(part.lane, part.lanes, part.column, part.columns);
  }
}

const char* name_of(TmemCopyShape shape) {
  switch (shape) {
    case TmemCopyShape::s128x256b:
      return "128x256b";
    case TmemCopyShape::s128x128b:
      return "128x128b";
    case TmemCopyShape::s64x128b_02_13:
      return "64x128b.warpx2::02_13";
    case TmemCopyShape::s64x128b_01_23:
      return "64x128b.warpx2::01_23";
    case TmemCopyShape::s32x128b_warpx4:
      return "32x128b.warpx4";
    case TmemCopyShape::s4x256b:
      return "4x256b";
  }
  return "?";
}

namespace {

constexpr uint32_t kChunkColumns = 4;  // a chunk is 16 bytes
constexpr uint32_t kGroupRows = 16;

/// Rows of the source, chunks of a row, and how often a row is copied.
struct CopyPlan {
  uint32_t rows, chunks, copies;
};

CopyPlan copy_plan(TmemCopyShape shape) {
  switch (shape) {
    case TmemCopyShape::s128x256b:
      return {128, 2, 1};
    case TmemCopyShape::s128x128b:
      return {128, 1, 1};
    case TmemCopyShape::s64x128b_02_13:
    case TmemCopyShape::s64x128b_01_23:
      return {64, 1, 2};
    case TmemCopyShape::s32x128b_warpx4:
      return {32, 1, 4};
    case TmemCopyShape::s4x256b:
      return {4, 2, 1};
  }
  return {};
}

uint32_t copy_lane(TmemCopyShape shape, uint32_t row, uint32_t copy) {
  switch (shape) {
    case TmemCopyShape::s64x128b_02_13:
      return row + 64 * copy;
    case TmemCopyShape::s64x128b_01_23:
      return row % 32 + row / 32 * 64 + 32 * copy;
    case TmemCopyShape::s32x128b_warpx4:
      return row + 32 * copy;
    case TmemCopyShape::s4x256b:
      return 31 + 32 * row;
    default:
      return row;
  }
}

}  // namespace

void tcgen05_copy(TmemCopyShape shape, uint32_t address, uint64_t descriptor_bits,
                  const CtaMemory& memory, uint32_t cta, AccessVisitor* visitor) {
  const SmemDescriptor descriptor = decode_tcgen05_descriptor(descriptor_bits);
  const TmemAddress base = TmemAddress::from(address);
  const CopyPlan plan = copy_plan(shape);
  const bool last_lanes = shape == TmemCopyShape::s4x256b;
  const uint32_t lane = last_lanes ? 31 : 0;
  if (base.lane != lane) {
    fault(last_lanes ? kNotSupported : kIllegalAddress,
          "tcgen05.cp.%s: TMEM address 0x%08x has lane %u; %s %u", name_of(shape), address,
          base.lane, last_lanes ? "supported:" : "it must be", lane);
  }
  memory.tmem->check("tcgen05.cp", 0, kTmemLanes, base.column, plan.chunks * kChunkColumns);
  // Rows that go to lanes next to each other: a group is told as a whole, read and then written.
  const uint32_t group = last_lanes ? 1 : kGroupRows;
  for (uint32_t first = 0; first < plan.rows; first += group) {
    for (uint32_t chunk = 0; chunk < plan.chunks; ++chunk) {
      uint32_t from[kGroupRows];
      for (uint32_t row = first; row < first + group; ++row) {
        const uint32_t at = element_address(descriptor, Major::k, row, chunk * 16, 1);
        if (at < memory.shared.first || at + 16 > memory.shared.end) {
          fault(kIllegalAddress,
                "tcgen05.cp.%s: row %u reads shared address 0x%x, outside the CTA's 0x%x..0x%x "
                "(%s)",
                name_of(shape), row, at, memory.shared.first, memory.shared.end,
                describe(descriptor).c_str());
        }
        from[row - first] = at;
      }
      const uint32_t column = base.column + chunk * kChunkColumns;
      if (visitor) visitor->shared_chunks(cta, {from, group});
      for (uint32_t copy = 0; copy < plan.copies; ++copy) {
        const uint32_t to = copy_lane(shape, first, copy);
        for (uint32_t r = 0; r < group; ++r) {
          std::memcpy(memory.tmem->row(to + r) + column, memory.shared.data + from[r], 16);
        }
        if (visitor) visitor->tmem(cta, to, group, column, kChunkColumns, true);
        memory.tmem->mark_written(to, group, column, kChunkColumns);
      }
    }
  }
}

void tcgen05_shift(uint32_t address, const CtaMemory& memory, uint32_t cta,
                   AccessVisitor* visitor) {
  constexpr uint32_t kLanes = 32, kColumns = 8;
  const TmemAddress base = TmemAddress::from(address);
  if (base.lane % kLanes != 0) {
    fault(kIllegalAddress,
          "tcgen05.shift: TMEM address 0x%08x has lane %u; it must be a multiple of %u", address,
          base.lane, kLanes);
  }
  Tmem& tmem = *memory.tmem;
  tmem.check("tcgen05.shift", base.lane, kLanes, base.column, kColumns);
  if (visitor) {
    visitor->tmem(cta, base.lane + 1, kLanes - 1, base.column, kColumns, false);
    visitor->tmem(cta, base.lane, kLanes - 1, base.column, kColumns, true);
  }
  for (uint32_t lane = base.lane; lane + 1 < base.lane + kLanes; ++lane) {
    std::memcpy(tmem.row(lane) + base.column, tmem.row(lane + 1) + base.column,
                kColumns * sizeof(uint32_t));
  }
  tmem.mark_written(base.lane, kLanes - 1, base.column, kColumns);
}

}  // namespace vgpu::tensor
