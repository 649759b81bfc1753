// SPDX-License-Identifier: Apache-2.0
// tcgen05.mma.ws, f16 accumulators of kind::f8f6f4, tcgen05.shift and tcgen05.cp.4x256b.
#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "fault.hpp"
#include "matrix_layout.hpp"
#include "tensor/tcgen05_ldst.hpp"
#include "tensor/tcgen05_mma.hpp"

namespace vgpu::tensor {
namespace {

using test::element_bits;
using test::Matrix;

constexpr uint32_t kShared = 200 * 1024, kDColumn = 32, kAColumn = 8;

struct WsCase {
  MmaKind kind = MmaKind::f16;
  ElementType type = ElementType::bf16;
  AccumulatorType d = AccumulatorType::f32;
  uint32_t m = 64, n = 128;
  bool ws = true;
  Tcgen05Mma mma{};
  Tmem tmem{};

  uint32_t bits() const {
    const uint32_t d_code = d == AccumulatorType::f16 ? 0 : d == AccumulatorType::f32 ? 1 : 2;
    const uint32_t type_code = type == ElementType::bf16 || type == ElementType::s8 ? 1
                               : type == ElementType::tf32                          ? 2
                                                                                    : 0;
    return d_code << 4 | type_code << 7 | type_code << 10 | n / 8 << 17 | m / 16 << 24;
  }

  /// Layouts D (M = 128), E (M = 64: halves of N in lanes 0-63 and 64-127) and G (M = 32:
  /// quarters).
  uint32_t& cell(uint32_t row, uint32_t column) {
    const uint32_t part = n * m / 128;
    return tmem.row(row + column / part * m)[kDColumn + column % part];
  }

  void check(bool a_in_tmem = false) {
    const uint32_t k_total = 32 / container_bytes(type);
    std::mt19937 random(m + n);
    auto draw = [&] { return static_cast<int>(random() % 9) - 4; };
    std::vector<int> a(m * k_total), b(n * k_total), before(m * n);
    for (int& value : a) value = draw();
    for (int& value : b) value = draw();
    for (int& value : before) value = draw();
    std::vector<uint8_t> shared(kShared, 0xee);
    const uint32_t bytes = container_bytes(type);
    Matrix a_matrix = Matrix::make(Swizzle::b128, Major::k, bytes, m, 0x2000);
    Matrix b_matrix = Matrix::make(Swizzle::b64, Major::k, bytes, n, 0x14000);
    tmem.allocate(512, 1);
    for (uint32_t k = 0; k < k_total; ++k) {
      for (uint32_t row = 0; row < m; ++row) {
        const uint32_t value = element_bits(type, a[row * k_total + k]);
        if (a_in_tmem) {
          std::memcpy(reinterpret_cast<uint8_t*>(tmem.row(row) + kAColumn) + k * bytes, &value,
                      bytes);
        } else {
          std::memcpy(&shared[a_matrix.address(row, k)], &value, bytes);
        }
      }
      for (uint32_t column = 0; column < n; ++column) {
        const uint32_t value = element_bits(type, b[column * k_total + k]);
        std::memcpy(&shared[b_matrix.address(column, k)], &value, bytes);
      }
    }
    for (uint32_t row = 0; row < m; ++row) {
      for (uint32_t column = 0; column < n; ++column) {
        const int value = before[row * n + column];
        cell(row, column) = d == AccumulatorType::s32   ? static_cast<uint32_t>(value)
                            : d == AccumulatorType::f16 ? encode(kF16, value)
                                                        : std::bit_cast<uint32_t>(float(value));
      }
    }
    mma.kind = kind;
    mma.weight_stationary = ws;
    mma.instruction_descriptor = bits();
    mma.d_address = kDColumn;
    mma.a_in_tmem = a_in_tmem;
    mma.a = a_in_tmem ? kAColumn : a_matrix.tcgen05_bits();
    mma.b_descriptor = b_matrix.tcgen05_bits();
    CtaMemory memory{{shared.data(), 1024, kShared}, &tmem};
    tcgen05_mma(mma, {&memory, 1}, nullptr);
    for (uint32_t row = 0; row < m; ++row) {
      for (uint32_t column = 0; column < n; ++column) {
        int sum = before[row * n + column];
        for (uint32_t k = 0; k < k_total; ++k) {
          sum += a[row * k_total + k] * b[column * k_total + k];
        }
        const uint32_t got = cell(row, column);
        const int value = d == AccumulatorType::s32   ? static_cast<int>(got)
                          : d == AccumulatorType::f16 ? static_cast<int>(decode(kF16, got))
                                                      : static_cast<int>(std::bit_cast<float>(got));
        ASSERT_EQ(value, sum) << name_of(kind) << " M " << m << " N " << n << " row " << row
                              << " column " << column;
      }
    }
  }
};

TEST(Tcgen05MmaWs, EveryTypeAndShape) {
  struct Type {
    MmaKind kind;
    ElementType type;
    AccumulatorType d;
  };
  for (Type t : {Type{MmaKind::f16, ElementType::bf16, AccumulatorType::f32},
                 Type{MmaKind::f16, ElementType::f16, AccumulatorType::f16},
                 Type{MmaKind::tf32, ElementType::tf32, AccumulatorType::f32},
                 Type{MmaKind::f8f6f4, ElementType::e4m3, AccumulatorType::f32},
                 Type{MmaKind::i8, ElementType::s8, AccumulatorType::s32}}) {
    for (uint32_t m : {32u, 64u, 128u}) {
      for (uint32_t n : {64u, 128u, 256u}) {
        WsCase{.kind = t.kind, .type = t.type, .d = t.d, .m = m, .n = n}.check();
        if (m == 128) WsCase{.kind = t.kind, .type = t.type, .d = t.d, .m = m, .n = n}.check(true);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(Tcgen05MmaWs, RefusesWhatItDoesNotHave) {
  auto text = [](WsCase c, bool a_in_tmem = false) -> std::string {
    try {
      c.check(a_in_tmem);
    } catch (const Fault& fault) {
      return fault.text;
    }
    return "no fault";
  };
  EXPECT_NE(text({.n = 96}).find("legal with .ws: 64, 128, 256"), std::string::npos);
  EXPECT_NE(text({.m = 16}).find("legal with .ws: 32, 64, 128"), std::string::npos);
  EXPECT_NE(text({.m = 32, .n = 128, .ws = false}).find("cta_group::1: 64, 128"),
            std::string::npos);
  EXPECT_NE(text({.m = 64}, true).find("M = 64"), std::string::npos);
  WsCase masked{.m = 128};
  masked.mma.zero_column_mask = uint64_t{1} << 39;
  EXPECT_NE(text(masked).find("zero-column mask"), std::string::npos);
  masked.mma.zero_column_mask = uint64_t{2} << 56;
  EXPECT_NE(text(masked).find("zero-column mask"), std::string::npos);
  // Spans without the non-zero mask bit mask nothing (PTX ISA, example 1).
  masked.mma.zero_column_mask = uint64_t{4} << 40 | uint64_t{3} << 48;
  EXPECT_EQ(text(masked), "no fault");
}

TEST(Tcgen05Mma, HalfAccumulatorsOfNarrowTypes) {
  WsCase{.kind = MmaKind::f8f6f4,
         .type = ElementType::e4m3,
         .d = AccumulatorType::f16,
         .m = 128,
         .n = 64,
         .ws = false}
      .check();
}

TEST(Tcgen05Mma, TransposedBytesNeedWholeStepsOfN) {
  const uint32_t transposed_b = 1u << 16, f32 = 1u << 4;
  auto legal = [&](uint32_t n, int group) {
    try {
      decode_mma_instruction(MmaKind::f8f6f4,
                             transposed_b | f32 | n / 8 << 17 | 128u * group / 16 << 24, group);
    } catch (const Fault&) {
      return false;
    }
    return true;
  };
  EXPECT_TRUE(legal(16, 1));
  EXPECT_FALSE(legal(24, 1));
  EXPECT_TRUE(legal(96, 2));
  EXPECT_FALSE(legal(48, 2));
}

TEST(Tcgen05Shift, RowsMoveWithinEachWarpsLanes) {
  for (uint32_t first : {0u, 32u, 96u}) {
    Tmem tmem;
    tmem.allocate(64, 1);
    for (uint32_t lane = 0; lane < 128; ++lane) {
      for (uint32_t column = 0; column < 64; ++column) tmem.row(lane)[column] = lane << 16 | column;
    }
    CtaMemory memory{{}, &tmem};
    tcgen05_shift(first << 16 | 20, memory, 0, nullptr);
    for (uint32_t lane = 0; lane < 128; ++lane) {
      for (uint32_t column = 0; column < 64; ++column) {
        // 31 rows of 256 bits; the last lane keeps its own.
        const bool moved =
            lane >= first && lane < first + 31 && column >= 20 && column < 20 + 256 / 32;
        ASSERT_EQ(tmem.row(lane)[column], (moved ? lane + 1 : lane) << 16 | column)
            << "lane " << lane << " column " << column;
      }
    }
    EXPECT_FALSE(tmem.first_unwritten(first, 31, 20, 8));
    EXPECT_TRUE(tmem.first_unwritten(first + 31, 1, 20, 8));
  }
  Tmem tmem;
  tmem.allocate(32, 1);
  CtaMemory memory{{}, &tmem};
  EXPECT_THROW(tcgen05_shift(16u << 16, memory, 0, nullptr), Fault);
  EXPECT_THROW(tcgen05_shift(28, memory, 0, nullptr), Fault);  // columns 28..35 of 32
}

TEST(Tcgen05Cp, FourRowsGoToTheLastLanes) {
  std::vector<uint8_t> bytes(16 * 1024);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 131 >> 4);
  for (Swizzle swizzle : {Swizzle::none, Swizzle::b32, Swizzle::b128}) {
    Tmem tmem;
    tmem.allocate(64, 1);
    for (uint32_t lane = 0; lane < 128; ++lane) {
      for (uint32_t column = 0; column < 64; ++column) tmem.row(lane)[column] = 0xabababab;
    }
    Matrix matrix = Matrix::make(swizzle, Major::k, 1, 8, 0x1000);
    CtaMemory memory{{bytes.data(), 1024, 16 * 1024}, &tmem};
    tcgen05_copy(TmemCopyShape::s4x256b, 31u << 16 | 20, matrix.tcgen05_bits(), memory, 0, nullptr);
    for (uint32_t lane = 0; lane < 128; ++lane) {
      for (uint32_t byte = 0; byte < 256; ++byte) {
        const uint32_t got = tmem.row(lane)[byte / 4] >> 8 * (byte % 4) & 0xff;
        const bool copied = lane % 32 == 31 && byte >= 80 && byte < 80 + 32;
        ASSERT_EQ(got, copied ? bytes[matrix.address(lane / 32, byte - 80)] : 0xab)
            << "lane " << lane << " byte " << byte;
      }
    }
    EXPECT_FALSE(tmem.first_unwritten(63, 1, 20, 8));
    EXPECT_TRUE(tmem.first_unwritten(62, 1, 20, 8));
    EXPECT_THROW(
        tcgen05_copy(TmemCopyShape::s4x256b, 20, matrix.tcgen05_bits(), memory, 0, nullptr), Fault);
  }
}

}  // namespace
}  // namespace vgpu::tensor
