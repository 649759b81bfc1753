// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "matrix_layout.hpp"
#include "tensor/tcgen05_ldst.hpp"
#include "tensor/tmem.hpp"

namespace vgpu::tensor {
namespace {

using test::fault_text;

TEST(Tmem, AllocatesUntilFull) {
  Tmem tmem;
  EXPECT_EQ(tmem.allocate(256, 1), 0u);
  EXPECT_EQ(tmem.allocate(128, 1), 256u);
  EXPECT_EQ(tmem.allocate(256, 1), std::nullopt);
  EXPECT_EQ(tmem.allocate(128, 1), 384u);
  EXPECT_EQ(tmem.allocate(32, 1), std::nullopt);
  EXPECT_EQ(tmem.allocated_columns(), 512u);
  tmem.deallocate(256, 128, 1);
  EXPECT_EQ(tmem.allocate(32, 1), 256u);
  EXPECT_EQ(tmem.describe_allocations(), "columns 0..255, 256..287, 384..511");
}

TEST(Tmem, RefusesMisuse) {
  Tmem tmem;
  EXPECT_NE(fault_text([&] { tmem.allocate(48, 1); }).find("32, 64, 128"), std::string::npos);
  EXPECT_NE(fault_text([&] { tmem.allocate(16, 1); }).find("of 16 columns"), std::string::npos);
  EXPECT_EQ(tmem.allocate(64, 1), 0u);
  EXPECT_NE(fault_text([&] { tmem.allocate(64, 2); }).find("same cta_group"), std::string::npos);
  EXPECT_NE(fault_text([&] { tmem.deallocate(0, 32, 1); }).find("no allocation"),
            std::string::npos);
  EXPECT_NE(fault_text([&] { tmem.check("access", 0, 32, 63, 2); }).find("not allocated"),
            std::string::npos);
  EXPECT_NE(fault_text([&] { tmem.check("access", 100, 32, 0, 1); }).find("lanes 100..131"),
            std::string::npos);
  EXPECT_EQ(fault_text([&] { tmem.check("access", 0, 128, 0, 64); }), "no fault");
  tmem.deallocate(0, 64, 1);
  tmem.relinquish(1);
  EXPECT_NE(fault_text([&] { tmem.allocate(32, 1); }).find("relinquish"), std::string::npos);
}

TEST(Tmem, KnowsUnwrittenCells) {
  Tmem tmem;
  tmem.allocate(512, 1);
  tmem.mark_written(3, 2, 60, 10);
  EXPECT_FALSE(tmem.first_unwritten(3, 2, 60, 10));
  auto missing = tmem.first_unwritten(3, 3, 60, 10);
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->lane, 5u);
  EXPECT_EQ(missing->column, 60u);
  missing = tmem.first_unwritten(3, 1, 60, 11);
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->column, 70u);
  // A new owner of the columns starts from scratch.
  tmem.deallocate(0, 512, 1);
  tmem.allocate(128, 1);
  EXPECT_TRUE(tmem.first_unwritten(3, 1, 60, 10));
}

// ---- tcgen05.ld and tcgen05.st

/// Cell of one register, from the figures: which thread of which 8-row group holds which bits.
TmemCell figure_cell(TmemShape shape, uint32_t half_split, uint32_t thread, uint32_t reg) {
  switch (shape) {
    case TmemShape::s32x32b:
      return {thread, reg};
    case TmemShape::s16x64b: {
      // 2 columns per repeat; threads 4i, 4i+2 hold row i; 4i+1, 4i+3 hold row i + 8.
      const uint32_t row[4] = {0, 8, 0, 8}, column[4] = {0, 0, 1, 1};
      return {thread / 4 + row[thread % 4], 2 * reg + column[thread % 4]};
    }
    case TmemShape::s16x128b: {
      // 4 columns per repeat; even registers rows 0-7, odd registers rows 8-15.
      return {thread / 4 + (reg & 1 ? 8 : 0), 4 * (reg >> 1) + (thread & 3)};
    }
    case TmemShape::s16x256b: {
      // 8 columns per repeat of four registers: two columns of the upper row, two of the lower.
      uint32_t in = reg & 3;
      return {thread / 4 + (in >= 2 ? 8 : 0), 8 * (reg >> 2) + 2 * (thread & 3) + (in & 1)};
    }
    case TmemShape::s16x32bx2:
      return thread < 16 ? TmemCell{thread, reg} : TmemCell{thread - 16, half_split + reg};
  }
  return {};
}

class Registers {
 public:
  explicit Registers(uint32_t count) : words_(count * 32) {
    for (uint32_t r = 0; r < count; ++r) pointers_.push_back(&words_[r * 32]);
  }
  uint32_t& at(uint32_t reg, uint32_t lane) { return words_[reg * 32 + lane]; }
  std::span<uint32_t* const> span() { return pointers_; }
  std::span<const uint32_t* const> const_span() {
    return {const_cast<const uint32_t* const*>(pointers_.data()), pointers_.size()};
  }

 private:
  std::vector<uint32_t> words_;
  std::vector<uint32_t*> pointers_;
};

const TmemShape kShapes[] = {TmemShape::s32x32b, TmemShape::s16x64b, TmemShape::s16x128b,
                             TmemShape::s16x256b, TmemShape::s16x32bx2};

TEST(Tcgen05LdSt, EveryShapeAndRepeat) {
  Tmem tmem;
  tmem.allocate(512, 1);
  for (uint32_t lane = 0; lane < 128; ++lane) {
    for (uint32_t column = 0; column < 512; ++column) tmem.row(lane)[column] = lane << 16 | column;
  }
  for (TmemShape shape : kShapes) {
    for (uint32_t repeat = 1; repeat <= 128; repeat *= 2) {
      const uint32_t count = tmem_registers(shape, repeat);
      if (count > 128) {
        EXPECT_NE(fault_text([&] { validate(shape, repeat); }), "no fault");
        continue;
      }
      for (uint32_t warp = 0; warp < 4; ++warp) {
        for (uint32_t half : {0u, 16u}) {
          if (shape == TmemShape::s32x32b && half != 0) continue;
          TmemTransfer transfer{.shape = shape,
                                .repeat = repeat,
                                .address = TmemAddress{warp * 32 + half, 64}.bits(),
                                .half_split_offset = 130,
                                .warp = warp + 4};
          Registers loaded(count);
          tcgen05_load(tmem, transfer, loaded.span(), nullptr);
          for (uint32_t reg = 0; reg < count; ++reg) {
            for (uint32_t lane = 0; lane < 32; ++lane) {
              TmemCell cell = figure_cell(shape, 130, lane, reg);
              ASSERT_EQ(loaded.at(reg, lane),
                        (warp * 32 + half + cell.lane) << 16 | (64 + cell.column))
                  << name_of(shape) << ".x" << repeat << " lane " << lane << " reg " << reg;
            }
          }
          // A store puts the same registers back where they came from.
          Tmem other;
          other.allocate(512, 1);
          tcgen05_store(other, transfer, loaded.const_span(), nullptr);
          for (uint32_t reg = 0; reg < count; ++reg) {
            for (uint32_t lane = 0; lane < 32; ++lane) {
              TmemCell cell = figure_cell(shape, 130, lane, reg);
              uint32_t row = warp * 32 + half + cell.lane, column = 64 + cell.column;
              ASSERT_EQ(other.row(row)[column], row << 16 | column);
              ASSERT_FALSE(other.first_unwritten(row, 1, column, 1));
            }
          }
        }
      }
    }
  }
}

TEST(Tcgen05LdSt, PackTakesLowHalvesOfColumnPairs) {
  Tmem tmem;
  tmem.allocate(512, 1);
  for (uint32_t lane = 0; lane < 128; ++lane) {
    for (uint32_t column = 0; column < 512; ++column) {
      tmem.row(lane)[column] = 0xdead0000 | lane << 9 | column;
    }
  }
  for (TmemShape shape : kShapes) {
    TmemTransfer transfer{.shape = shape,
                          .repeat = 4,
                          .pack16 = true,
                          .address = TmemAddress{32, 0}.bits(),
                          .half_split_offset = 8,
                          .warp = 1};
    const uint32_t count = tmem_registers(shape, 4);
    Registers loaded(count);
    tcgen05_load(tmem, transfer, loaded.span(), nullptr);
    for (uint32_t reg = 0; reg < count; ++reg) {
      for (uint32_t lane = 0; lane < 32; ++lane) {
        // Packed: column c of the figure is the pair 2c, 2c + 1; the split (8) stays in columns.
        TmemCell cell = figure_cell(shape, 4, lane, reg);
        uint32_t low = ((32 + cell.lane) << 9 | 2 * cell.column) & 0xffff;
        uint32_t high = ((32 + cell.lane) << 9 | (2 * cell.column + 1)) & 0xffff;
        ASSERT_EQ(loaded.at(reg, lane), low | high << 16) << name_of(shape);
      }
    }
    Tmem other;
    other.allocate(512, 1);
    tcgen05_store(other, transfer, loaded.const_span(), nullptr);
    TmemCell cell = figure_cell(shape, 4, 5, 1);
    EXPECT_EQ(other.row(32 + cell.lane)[2 * cell.column],
              ((32 + cell.lane) << 9 | 2 * cell.column) & 0xffff);
  }
}

TEST(Tcgen05LdSt, WarpsReachTheirOwnLanes) {
  Tmem tmem;
  tmem.allocate(32, 1);
  Registers registers(1);
  auto load = [&](uint32_t lane, uint32_t warp, TmemShape shape) {
    return fault_text([&] {
      tcgen05_load(tmem, {.shape = shape, .address = lane << 16, .warp = warp}, registers.span(),
                   nullptr);
    });
  };
  EXPECT_EQ(load(32, 1, TmemShape::s32x32b), "no fault");
  EXPECT_EQ(load(32, 5, TmemShape::s32x32b), "no fault");
  EXPECT_EQ(load(48, 1, TmemShape::s16x64b), "no fault");
  EXPECT_NE(load(48, 1, TmemShape::s32x32b).find("can reach lanes 32..63"), std::string::npos);
  EXPECT_NE(load(40, 1, TmemShape::s16x64b), "no fault");
  EXPECT_NE(load(128, 1, TmemShape::s32x32b), "no fault");
}

// The bare base address reaches the warp's own quarter (DeepGEMM, CUTLASS 93).
TEST(Tcgen05LdSt, TheQuarterIsTheWarps) {
  Tmem tmem;
  tmem.allocate(32, 1);
  for (uint32_t lane = 0; lane < 128; ++lane) tmem.row(lane)[3] = lane;
  for (uint32_t warp = 0; warp < 8; ++warp) {
    for (uint32_t named : {0u, 64u, 80u}) {
      const TmemShape shape = named == 80 ? TmemShape::s16x64b : TmemShape::s32x32b;
      TmemTransfer transfer{.shape = shape, .address = named << 16 | 3, .warp = warp};
      Registers registers(1);
      tcgen05_load(tmem, transfer, registers.span(), nullptr);
      EXPECT_EQ(registers.at(0, 0), warp % 4 * 32 + named % 32);
      EXPECT_EQ(names_own_lanes(transfer), warp % 4 == named / 32);
      registers.at(0, 0) = 1000 + warp;
      tcgen05_store(tmem, transfer, registers.const_span(), nullptr);
      EXPECT_EQ(tmem.row(warp % 4 * 32 + named % 32)[3], 1000 + warp);
      tmem.row(warp % 4 * 32 + named % 32)[3] = warp % 4 * 32 + named % 32;
    }
  }
}

TEST(Tcgen05Cp, RowsGoToLanes) {
  std::vector<uint8_t> bytes(64 * 1024);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 131 >> 4);
  struct Shape {
    TmemCopyShape shape;
    uint32_t rows, chunks;
  };
  const Shape shapes[] = {{TmemCopyShape::s128x256b, 128, 2},
                          {TmemCopyShape::s128x128b, 128, 1},
                          {TmemCopyShape::s64x128b_02_13, 64, 1},
                          {TmemCopyShape::s64x128b_01_23, 64, 1},
                          {TmemCopyShape::s32x128b_warpx4, 32, 1}};
  for (const Shape& s : shapes) {
    for (Swizzle swizzle : {Swizzle::none, Swizzle::b128}) {
      Tmem tmem;
      tmem.allocate(64, 1);
      test::Matrix matrix = test::Matrix::make(swizzle, Major::k, 1, 128, 0x2000);
      CtaMemory memory{{bytes.data(), 1024, 64 * 1024}, &tmem};
      tcgen05_copy(s.shape, 20, matrix.tcgen05_bits(), memory, 0, nullptr);
      for (uint32_t lane = 0; lane < 128; ++lane) {
        // Which source row the figures put into a lane.
        uint32_t row = lane;
        if (s.shape == TmemCopyShape::s64x128b_02_13) row = lane % 64;
        if (s.shape == TmemCopyShape::s64x128b_01_23) row = lane / 64 * 32 + lane % 32;
        if (s.shape == TmemCopyShape::s32x128b_warpx4) row = lane % 32;
        for (uint32_t byte = 0; byte < 16 * s.chunks; ++byte) {
          uint32_t cell = tmem.row(lane)[20 + byte / 4];
          ASSERT_EQ(cell >> 8 * (byte % 4) & 0xff, bytes[matrix.address(row, byte)])
              << name_of(s.shape) << " lane " << lane << " byte " << byte;
        }
      }
      EXPECT_FALSE(tmem.first_unwritten(0, 128, 20, 4 * s.chunks));
      EXPECT_TRUE(tmem.first_unwritten(0, 1, 20 + 4 * s.chunks, 1));
    }
  }
}

}  // namespace
}  // namespace vgpu::tensor
