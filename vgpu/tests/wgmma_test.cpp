// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <vector>

#include "fault.hpp"
#include "matrix_layout.hpp"
#include "tensor/wgmma.hpp"

namespace vgpu::tensor {
namespace {

using test::element_bits;
using test::Matrix;
using test::SparseRow;

constexpr uint32_t kShared = 220 * 1024;

/// One warpgroup's registers and operands, with the integer matrices they hold.
class WgmmaCase {
 public:
  WgmmaCase(const WgmmaInstruction& instruction, Swizzle swizzle, uint32_t seed)
      : instruction_(instruction),
        k_(wgmma_k(instruction.a) * (instruction.sparse ? 2 : 1)),
        stored_(wgmma_k(instruction.a)),
        random_(seed),
        shared_(kShared, 0xee) {
    const uint32_t n = instruction.n;
    a_.resize(64 * k_);
    b_.resize(n * k_);
    d_.resize(64 * n);
    fill(a_, instruction.a);
    fill(b_, instruction.b);
    for (int64_t& value : d_) value = static_cast<int>(random_() % 9) - 4;
    for (uint32_t row = 0; row < 64; ++row) {
      rows_.push_back(SparseRow::make(instruction.a, k_, random_));
      if (!instruction.sparse) continue;
      std::vector<int64_t> kept(k_);
      for (uint32_t at : rows_[row].stored) kept[at] = a_[row * k_ + at];
      std::copy(kept.begin(), kept.end(), a_.begin() + row * k_);
    }
    if (instruction.sparse) pack_metadata();
    const uint32_t bytes = container_bytes(instruction.a);
    Matrix a = Matrix::make(swizzle, instruction.a_major, bytes, 64, 0x2000);
    Matrix b =
        Matrix::make(swizzle, instruction.b_major, bytes, n, 0x10000, instruction.sparse ? 64 : 32);
    for (uint32_t row = 0; row < 64; ++row) {
      for (uint32_t s = 0; s < stored_; ++s) put(a.address(row, s), instruction.a, stored(row, s));
    }
    for (uint32_t column = 0; column < n; ++column) {
      for (uint32_t k = 0; k < k_; ++k) {
        put(b.address(column, k), instruction.b, b_[column * k_ + k]);
      }
    }
    operands_.a_descriptor = a.wgmma_bits();
    operands_.b_descriptor = b.wgmma_bits();
    pack_a_registers();
    pack_d_registers();
  }

  void run(bool scale_d) {
    operands_.scale_d = scale_d;
    validate(instruction_);
    wgmma(instruction_, operands_, {shared_.data(), 1024, kShared});
    for (uint32_t row = 0; row < 64; ++row) {
      for (uint32_t column = 0; column < instruction_.n; ++column) {
        int64_t sum = scale_d ? d_[row * instruction_.n + column] : 0;
        for (uint32_t k = 0; k < k_; ++k) {
          sum +=
              instruction_.scale_a * instruction_.scale_b * a_[row * k_ + k] * b_[column * k_ + k];
        }
        ASSERT_EQ(result(row, column), sum) << "row " << row << " column " << column;
      }
    }
  }

  WgmmaOperands& operands() { return operands_; }
  uint32_t& metadata(uint32_t warp, uint32_t lane) { return metadata_[warp][lane]; }
  void compute() { wgmma(instruction_, operands_, {shared_.data(), 1024, kShared}); }

 private:
  /// What A stores of a row.
  int64_t stored(uint32_t row, uint32_t s) const {
    return a_[row * k_ + (instruction_.sparse ? rows_[row].stored[s] : s)];
  }

  /// What each lane's sp-meta holds, as the figures of "Matrix fragments ... with sparse matrix A"
  /// give it: rows and chunks of its bits. The lanes that the selector leaves out hold noise.
  void pack_metadata() {
    const bool bytes = container_bytes(instruction_.a) == 1;
    for (uint32_t warp = 0; warp < 4; ++warp) {
      for (uint32_t lane = 0; lane < 32; ++lane) {
        uint32_t& word = metadata_[warp][lane];
        word = static_cast<uint32_t>(random_());
        const uint32_t group = lane / 4, quad = lane % 4;
        if (!bytes && quad / 2 != instruction_.sparsity_selector) continue;
        word = 0;
        for (uint32_t nibble = 0; nibble < 8; ++nibble) {
          const uint32_t row = group + (bytes ? quad % 2 : nibble / 4) * 8;
          const uint32_t chunk = bytes ? quad / 2 * 8 + nibble : quad % 2 * 4 + nibble % 4;
          word |= rows_[warp * 16 + row].index[chunk] << 4 * nibble;
        }
      }
      operands_.metadata[warp] = metadata_[warp].data();
    }
  }

  void fill(std::vector<int64_t>& matrix, ElementType type) {
    bool is_unsigned = type == ElementType::u8;
    for (int64_t& value : matrix) {
      value = is_integer(type) ? static_cast<int>(random_() % 256) - (is_unsigned ? 0 : 128)
                               : static_cast<int>(random_() % 9) - 4;
    }
  }

  void put(uint32_t address, ElementType type, int64_t value) {
    uint32_t bits = element_bits(type, static_cast<int>(value));
    std::memcpy(&shared_[address], &bits, container_bytes(type));
  }

  // Fragments as the PTX ISA's figures draw them: each row of 8 is shared by groups of 4 threads.
  void pack_a_registers() {
    const uint32_t bytes = container_bytes(instruction_.a), per_word = 4 / bytes;
    for (uint32_t warp = 0; warp < 4; ++warp) {
      for (uint32_t group = 0; group < 8; ++group) {
        for (uint32_t thread = 0; thread < 4; ++thread) {
          for (uint32_t half_k = 0; half_k < 2; ++half_k) {
            for (uint32_t half_row = 0; half_row < 2; ++half_row) {
              uint32_t word = 0;
              for (uint32_t i = 0; i < per_word; ++i) {
                uint32_t row = 16 * warp + 8 * half_row + group;
                uint32_t k = half_k * stored_ / 2 + thread * per_word + i;
                word |= element_bits(instruction_.a, static_cast<int>(stored(row, k)))
                        << (8 * bytes * i);
              }
              a_words_[warp][2 * half_k + half_row][4 * group + thread] = word;
            }
          }
        }
      }
    }
    for (uint32_t warp = 0; warp < 4; ++warp) {
      for (uint32_t reg = 0; reg < 4; ++reg) {
        operands_.a_registers[warp][reg] = a_words_[warp][reg].data();
      }
    }
  }

  uint32_t* d_word(uint32_t row, uint32_t column, bool& high) {
    uint32_t warp = row / 16, lane = row % 8 * 4 + column % 8 / 2;
    uint32_t pair = column / 8 * 2 + row % 16 / 8;  // pairs of adjacent columns, in register order
    high = column % 2;
    if (instruction_.d == AccumulatorType::f16) return &d_words_[warp][pair][lane];
    return &d_words_[warp][2 * pair + column % 2][lane];
  }

  void pack_d_registers() {
    for (uint32_t row = 0; row < 64; ++row) {
      for (uint32_t column = 0; column < instruction_.n; ++column) {
        bool high;
        uint32_t* word = d_word(row, column, high);
        auto value = static_cast<int32_t>(d_[row * instruction_.n + column]);
        if (instruction_.d == AccumulatorType::s32) {
          *word = static_cast<uint32_t>(value);
        } else if (instruction_.d == AccumulatorType::f32) {
          *word = std::bit_cast<uint32_t>(static_cast<float>(value));
        } else {
          *word = (*word & (high ? 0x0000ffffu : 0xffff0000u)) | encode(kF16, value) << (16 * high);
        }
      }
    }
    for (uint32_t warp = 0; warp < 4; ++warp) {
      for (uint32_t reg = 0; reg < 128; ++reg) d_pointers_[warp][reg] = d_words_[warp][reg].data();
      operands_.d_registers[warp] = d_pointers_[warp].data();
    }
  }

  int64_t result(uint32_t row, uint32_t column) {
    bool high;
    uint32_t word = *d_word(row, column, high);
    if (instruction_.d == AccumulatorType::s32) return static_cast<int32_t>(word);
    if (instruction_.d == AccumulatorType::f32) {
      return static_cast<int64_t>(std::bit_cast<float>(word));
    }
    return static_cast<int64_t>(decode(kF16, high ? word >> 16 : word & 0xffff));
  }

  WgmmaInstruction instruction_;
  uint32_t k_, stored_;
  std::mt19937 random_;
  std::vector<uint8_t> shared_;
  std::vector<int64_t> a_, b_, d_;
  std::vector<SparseRow> rows_;
  std::array<std::array<uint32_t, 32>, 4> metadata_{};
  std::array<std::array<std::array<uint32_t, 32>, 4>, 4> a_words_{};
  std::array<std::array<std::array<uint32_t, 32>, 128>, 4> d_words_{};
  std::array<std::array<uint32_t*, 128>, 4> d_pointers_{};
  WgmmaOperands operands_;
};

struct Types {
  ElementType a, b;
  AccumulatorType d;
};
const Types kTypes[] = {
    {ElementType::bf16, ElementType::bf16, AccumulatorType::f32},
    {ElementType::f16, ElementType::f16, AccumulatorType::f32},
    {ElementType::f16, ElementType::f16, AccumulatorType::f16},
    {ElementType::tf32, ElementType::tf32, AccumulatorType::f32},
    {ElementType::e4m3, ElementType::e4m3, AccumulatorType::f32},
    {ElementType::e4m3, ElementType::e5m2, AccumulatorType::f32},
    {ElementType::e5m2, ElementType::e4m3, AccumulatorType::f16},
    {ElementType::s8, ElementType::s8, AccumulatorType::s32},
    {ElementType::s8, ElementType::u8, AccumulatorType::s32},
    {ElementType::u8, ElementType::u8, AccumulatorType::s32},
};

TEST(Wgmma, EveryTypeAndN) {
  for (const Types& types : kTypes) {
    for (uint32_t n = 8; n <= 256; n += 8) {
      if (is_integer(types.a) && n > 32 && n % 16 != 0) continue;
      for (bool in_registers : {false, true}) {
        WgmmaInstruction instruction{
            .a = types.a, .b = types.b, .d = types.d, .n = n, .a_in_registers = in_registers};
        SCOPED_TRACE(std::string(name_of(types.a)) + " x " + name_of(types.b) + " n " +
                     std::to_string(n) + (in_registers ? " A in registers" : ""));
        WgmmaCase(instruction, Swizzle::b128, n).run(true);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Wgmma, EverySwizzleAndMajor) {
  for (Swizzle swizzle : {Swizzle::none, Swizzle::b32, Swizzle::b64, Swizzle::b128}) {
    for (const Types& types : kTypes) {
      for (Major a_major : {Major::k, Major::mn}) {
        for (Major b_major : {Major::k, Major::mn}) {
          bool transposed = a_major == Major::mn || b_major == Major::mn;
          if (transposed && container_bytes(types.a) != 2) continue;
          WgmmaInstruction instruction{.a = types.a,
                                       .b = types.b,
                                       .d = types.d,
                                       .n = 96,
                                       .a_major = a_major,
                                       .b_major = b_major};
          SCOPED_TRACE(std::string(name_of(types.a)) + " swizzle " + name_of(swizzle));
          WgmmaCase(instruction, swizzle, 5).run(true);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Wgmma, ScalesAndScaleD) {
  for (int scale_a : {1, -1}) {
    for (int scale_b : {1, -1}) {
      for (bool in_registers : {false, true}) {
        for (bool scale_d : {false, true}) {
          WgmmaInstruction instruction{
              .n = 64, .a_in_registers = in_registers, .scale_a = scale_a, .scale_b = scale_b};
          WgmmaCase(instruction, Swizzle::b128, 11).run(scale_d);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Wgmma, SparseA) {
  for (const Types& types : kTypes) {
    for (uint32_t n : {8u, 32u, 96u, 256u}) {
      for (bool in_registers : {false, true}) {
        for (uint32_t selector = 0; selector < (container_bytes(types.a) == 1 ? 1u : 2u);
             ++selector) {
          WgmmaInstruction instruction{.a = types.a,
                                       .b = types.b,
                                       .d = types.d,
                                       .n = n,
                                       .a_in_registers = in_registers,
                                       .sparse = true,
                                       .sparsity_selector = selector};
          SCOPED_TRACE(std::string(name_of(types.a)) + " x " + name_of(types.b) + " n " +
                       std::to_string(n) + " selector " + std::to_string(selector));
          WgmmaCase(instruction, Swizzle::b128, n + selector).run(true);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Wgmma, SparseAWithEverySwizzleAndMajor) {
  for (Swizzle swizzle : {Swizzle::none, Swizzle::b32, Swizzle::b64, Swizzle::b128}) {
    for (Major a_major : {Major::k, Major::mn}) {
      for (Major b_major : {Major::k, Major::mn}) {
        WgmmaInstruction instruction{.a = ElementType::f16,
                                     .b = ElementType::f16,
                                     .n = 96,
                                     .scale_a = -1,
                                     .a_major = a_major,
                                     .b_major = b_major,
                                     .sparse = true};
        WgmmaCase subject(instruction, swizzle, 5);
        if (swizzle == Swizzle::b32 && b_major == Major::k) {
          EXPECT_NE(test::fault_text([&] { subject.compute(); }).find("64 bytes of K"),
                    std::string::npos);
          continue;
        }
        SCOPED_TRACE(std::string("swizzle ") + name_of(swizzle));
        subject.run(false);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Wgmma, SparseMetadataThatMeanNothingAreReported) {
  WgmmaInstruction instruction{
      .a = ElementType::f16, .b = ElementType::f16, .n = 8, .sparse = true};
  WgmmaCase subject(instruction, Swizzle::b128, 3);
  subject.metadata(1, 8) = 0x5555aaaa;  // rows 18 and 26 of A: both elements at one position
  EXPECT_EQ(
      test::fault_text([&] { subject.compute(); }),
      format("wgmma.mma_async.sp: the metadata of row 18 (0x%xaaaa) have index 0xa for elements "
             "0..3 of K, whose behaviour is undefined; legal for f16: two different positions "
             "of 2 bits each",
             subject.metadata(1, 9) & 0xffff));
}

TEST(Wgmma, IntegersWrapOrSaturate) {
  std::vector<uint8_t> shared(kShared);
  Matrix a = Matrix::make(Swizzle::none, Major::k, 1, 64, 0x2000);
  Matrix b = Matrix::make(Swizzle::none, Major::k, 1, 8, 0x10000);
  for (uint32_t k = 0; k < 32; ++k) {
    shared[a.address(0, k)] = 127;
    shared[b.address(0, k)] = 127;
  }
  for (bool saturate : {false, true}) {
    uint32_t words[4][32] = {};
    words[0][0] = 0x7fffffff;
    uint32_t* registers[4] = {words[0], words[1], words[2], words[3]};
    WgmmaInstruction instruction{.a = ElementType::s8,
                                 .b = ElementType::s8,
                                 .d = AccumulatorType::s32,
                                 .n = 8,
                                 .satfinite = saturate};
    WgmmaOperands operands{.a_descriptor = a.wgmma_bits(), .b_descriptor = b.wgmma_bits()};
    operands.d_registers[0] = registers;  // the other warps are skipped
    wgmma(instruction, operands, {shared.data(), 1024, kShared});
    uint32_t sum = 32 * 127 * 127;
    EXPECT_EQ(words[0][0], saturate ? 0x7fffffffu : 0x7fffffffu + sum);
    EXPECT_EQ(words[1][0], 0u);
  }
}

TEST(Wgmma, RefusesWhatDoesNotExist) {
  auto refused = [](const WgmmaInstruction& instruction) {
    try {
      validate(instruction);
    } catch (const Fault&) {
      return true;
    }
    return false;
  };
  using enum ElementType;
  EXPECT_FALSE(refused({.n = 256}));
  EXPECT_TRUE(refused({.n = 264}));
  EXPECT_TRUE(refused({.n = 12}));
  EXPECT_TRUE(refused({.a = s8, .b = s8, .d = AccumulatorType::s32, .n = 40}));
  EXPECT_FALSE(refused({.a = s8, .b = u8, .d = AccumulatorType::s32, .n = 48}));
  EXPECT_TRUE(refused({.a = bf16, .b = f16}));
  EXPECT_TRUE(refused({.a = bf16, .b = bf16, .d = AccumulatorType::f16}));
  EXPECT_TRUE(refused({.a = tf32, .b = tf32, .a_major = Major::mn}));
  EXPECT_TRUE(refused({.scale_a = 2}));
  EXPECT_TRUE(refused({.satfinite = true}));
  EXPECT_TRUE(refused({.a_in_registers = true, .a_major = Major::mn}));
  EXPECT_FALSE(refused({.sparse = true, .sparsity_selector = 1}));
  EXPECT_TRUE(refused({.sparse = true, .sparsity_selector = 2}));
  EXPECT_TRUE(refused({.a = e4m3, .b = e4m3, .sparse = true, .sparsity_selector = 1}));
}

}  // namespace
}  // namespace vgpu::tensor
