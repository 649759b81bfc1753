// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <random>

#include "fault.hpp"
#include "matrix_layout.hpp"
#include "tensor/tcgen05_mma.hpp"

namespace vgpu::tensor {
namespace {

using test::element_bits;
using test::Matrix;
using test::SparseRow;

constexpr uint32_t kShared = 200 * 1024;

struct Config {
  MmaKind kind = MmaKind::f16;
  ElementType a = ElementType::bf16, b = ElementType::bf16;
  AccumulatorType d = AccumulatorType::f32;
  int cta_group = 1;
  uint32_t m = 128, n = 128;
  Major a_major = Major::k, b_major = Major::k;
  Swizzle swizzle = Swizzle::b128;
  bool a_in_tmem = false;
  bool negate_a = false, negate_b = false, saturate = false;
  bool accumulate = true;
  uint32_t d_lane = 0;
  uint32_t scale_input_d = 0;
  bool sparse = false;
  uint32_t sparsity_selector = 0;

  std::string text() const {
    return std::string(name_of(kind)) + " " + name_of(a) + "x" + name_of(b) + " cta_group " +
           std::to_string(cta_group) + " M " + std::to_string(m) + " N " + std::to_string(n) +
           (a_in_tmem ? " A in TMEM" : "") + " swizzle " + name_of(swizzle);
  }
  uint32_t bits() const {
    auto code = [](ElementType type) -> uint32_t {
      switch (type) {
        case ElementType::f16:
        case ElementType::e4m3:
        case ElementType::u8:
          return 0;
        case ElementType::bf16:
        case ElementType::e5m2:
        case ElementType::s8:
          return 1;
        case ElementType::tf32:
          return 2;
        case ElementType::e2m3:
          return 3;
        case ElementType::e3m2:
          return 4;
        case ElementType::e2m1:
          return 5;
      }
      return 7;
    };
    uint32_t d_code = d == AccumulatorType::f16 ? 0 : d == AccumulatorType::f32 ? 1 : 2;
    return sparsity_selector | uint32_t{sparse} << 2 | uint32_t{saturate} << 3 | d_code << 4 |
           code(a) << 7 | code(b) << 10 | uint32_t{negate_a} << 13 | uint32_t{negate_b} << 14 |
           uint32_t{a_major == Major::mn} << 15 | uint32_t{b_major == Major::mn} << 16 |
           n / 8 << 17 | m / 16 << 24;
  }
};

/// Lane and column (relative to D's) of element (row, column) of a CTA's rows of D, as the data
/// path figures show: one line for each layout letter.
std::pair<uint32_t, uint32_t> figure_position(const Config& c, uint32_t row, uint32_t column) {
  if (c.cta_group == 1 && c.m == 64) {  // F
    return {32 * (row / 16) + row % 16 + c.d_lane, column};
  }
  if (c.cta_group == 2 && c.m == 128) {  // B
    return column < c.n / 2 ? std::pair{row, column} : std::pair{row + 64, column - c.n / 2};
  }
  return {row, column};  // A, D
}

class MmaCase {
 public:
  explicit MmaCase(const Config& config, uint32_t seed = 1)
      : c(config),
        stored_(wgmma_k(config.a)),
        k_(config.sparse ? 2 * stored_ : stored_),
        rows_(config.m / config.cta_group),
        random_(seed) {
    a_.resize(c.m * k_);
    b_.resize(c.n * k_);
    d_.resize(c.m * c.n);
    fill(a_, c.a);
    fill(b_, c.b);
    for (int64_t& value : d_) value = static_cast<int>(random_() % 9) - 4;
    if (c.scale_input_d != 0) {
      for (int64_t& value : d_) value *= int64_t{1} << c.scale_input_d;
    }
    for (uint32_t row = 0; row < c.m; ++row) {
      patterns_.push_back(SparseRow::make(c.a, k_, random_));
      if (!c.sparse) continue;
      std::vector<int64_t> kept(k_);
      for (uint32_t at : patterns_[row].stored) kept[at] = a_[row * k_ + at];
      std::copy(kept.begin(), kept.end(), a_.begin() + row * k_);
    }
    const uint32_t bytes = container_bytes(c.a);
    Matrix a = Matrix::make(c.swizzle, c.a_major, bytes, rows_, 0x2000);
    Matrix b =
        Matrix::make(c.swizzle, c.b_major, bytes, c.n / c.cta_group, 0x14000, c.sparse ? 64 : 32);
    for (int cta = 0; cta < c.cta_group; ++cta) {
      shared_[cta].assign(kShared, 0xee);
      tmem_[cta].allocate(512, c.cta_group);
      for (uint32_t row = 0; row < rows_; ++row) {
        for (uint32_t s = 0; s < stored_; ++s) {
          put(cta, a, row, s, c.a, stored(cta * rows_ + row, s));
        }
      }
      const uint32_t columns = c.n / c.cta_group;
      for (uint32_t column = 0; column < columns; ++column) {
        for (uint32_t k = 0; k < k_; ++k) {
          put(cta, b, column, k, c.b, b_[(cta * columns + column) * k_ + k]);
        }
      }
      if (c.a_in_tmem) put_a_in_tmem(cta);
      if (c.sparse) put_metadata(cta);
      for (uint32_t row = 0; row < rows_; ++row) {
        for (uint32_t column = 0; column < c.n; ++column) {
          cell(cta, row, column) = d_bits(d_[(cta * rows_ + row) * c.n + column]);
        }
      }
      ctas_.push_back({{shared_[cta].data(), 1024, kShared}, &tmem_[cta]});
    }
    mma.kind = c.kind;
    mma.cta_group = c.cta_group;
    mma.instruction_descriptor = c.bits();
    mma.d_address = c.d_lane << 16 | kDColumn;
    mma.a_in_tmem = c.a_in_tmem;
    mma.a = c.a_in_tmem ? (c.d_lane << 16 | kAColumn) : a.tcgen05_bits();
    mma.b_descriptor = b.tcgen05_bits();
    mma.accumulate = c.accumulate;
    mma.scale_input_d = c.scale_input_d;
    mma.sparse = c.sparse;
    mma.sp_meta_address = kMetadataColumn;
  }

  void run(AccessVisitor* visitor = nullptr) { tcgen05_mma(mma, ctas_, visitor); }

  int64_t expected(uint32_t row, uint32_t column) const {
    int64_t sum = c.accumulate ? d_[row * c.n + column] >> c.scale_input_d : 0;
    int64_t sign = c.negate_a == c.negate_b ? 1 : -1;
    for (uint32_t k = 0; k < k_; ++k) sum += sign * a_[row * k_ + k] * b_[column * k_ + k];
    return sum;
  }

  int64_t result(uint32_t row, uint32_t column) {
    uint32_t bits = cell(static_cast<int>(row / rows_), row % rows_, column);
    if (c.d == AccumulatorType::s32) return static_cast<int32_t>(bits);
    if (c.d == AccumulatorType::f16) return static_cast<int64_t>(decode(kF16, bits));
    return static_cast<int64_t>(std::bit_cast<float>(bits));
  }

  void check() {
    run();
    for (uint32_t row = 0; row < c.m; ++row) {
      for (uint32_t column = 0; column < c.n; ++column) {
        ASSERT_EQ(result(row, column), expected(row, column))
            << c.text() << " row " << row << " column " << column;
      }
    }
  }

  uint32_t& cell(int cta, uint32_t row, uint32_t column) {
    auto [lane, offset] = figure_position(c, row, column);
    return tmem_[cta].row(lane)[kDColumn + offset];
  }

  static constexpr uint32_t kDColumn = 64, kAColumn = 8, kMetadataColumn = 40;
  const Config c;
  Tcgen05Mma mma;
  Tmem tmem_[2];

 private:
  /// What A stores of a row.
  int64_t stored(uint32_t row, uint32_t s) const {
    return a_[row * k_ + (c.sparse ? patterns_[row].stored[s] : s)];
  }

  /// The cells of a CTA's metadata, as the figures of "Sparsity selector" give them: rows and
  /// chunks of their bits.
  void put_metadata(int cta) {
    const bool bytes = container_bytes(c.a) == 1;
    for (uint32_t lane = 0; lane < 128; ++lane) {
      for (uint32_t column = 0; column < 2; ++column) {
        uint32_t& word = tmem_[cta].row(lane)[kMetadataColumn + column];
        word = static_cast<uint32_t>(random_());
        if (!bytes && column != c.sparsity_selector) continue;
        word = 0;
        for (uint32_t nibble = 0; nibble < 8; ++nibble) {
          const uint32_t row = bytes ? lane : lane / 16 * 16 + nibble / 4 * 8 + lane % 8;
          const uint32_t chunk = bytes ? column * 8 + nibble : lane / 8 % 2 * 4 + nibble % 4;
          if (row >= rows_) continue;
          word |= patterns_[cta * rows_ + row].index[chunk] << 4 * nibble;
        }
      }
    }
  }

  void fill(std::vector<int64_t>& matrix, ElementType type) {
    for (int64_t& value : matrix) {
      if (is_integer(type)) {
        value = static_cast<int>(random_() % 256) - (type == ElementType::u8 ? 0 : 128);
      } else {
        value = static_cast<int>(random_() % 9) - 4;
      }
    }
  }

  void put(int cta, const Matrix& matrix, uint32_t mn, uint32_t k, ElementType type,
           int64_t value) {
    test::put_element(shared_[cta].data(), matrix, mn, k, type,
                      element_bits(type, static_cast<int>(value)));
  }

  void put_a_in_tmem(int cta) {
    const uint32_t bytes = container_bytes(c.a), per_cell = 4 / bytes;
    for (uint32_t row = 0; row < rows_; ++row) {
      for (uint32_t k = 0; k < stored_; ++k) {
        uint32_t bits = element_bits(c.a, static_cast<int>(stored(cta * rows_ + row, k)));
        // Layout B needs A twice: next to both halves of D's columns.
        for (uint32_t column : {0u, c.n - 1}) {
          uint32_t lane = figure_position(c, row, column).first;
          uint32_t& word = tmem_[cta].row(lane)[kAColumn + k / per_cell];
          const uint32_t shift = k % per_cell * 8 * bytes;
          const uint32_t mask = bytes == 4 ? ~0u : ((1u << 8 * bytes) - 1) << shift;
          word = (word & ~mask) | bits << shift;
        }
      }
    }
  }

  uint32_t d_bits(int64_t value) const {
    if (c.d == AccumulatorType::s32) return static_cast<uint32_t>(value);
    if (c.d == AccumulatorType::f16) return 0xabcd0000 | encode(kF16, static_cast<double>(value));
    return std::bit_cast<uint32_t>(static_cast<float>(value));
  }

  uint32_t stored_, k_, rows_;
  std::mt19937 random_;
  std::vector<int64_t> a_, b_, d_;
  std::vector<SparseRow> patterns_;
  std::vector<uint8_t> shared_[2];
  std::vector<CtaMemory> ctas_;
};

const Config kTypeConfigs[] = {
    {},
    {.a = ElementType::f16, .b = ElementType::f16},
    {.a = ElementType::f16, .b = ElementType::f16, .d = AccumulatorType::f16},
    {.kind = MmaKind::tf32, .a = ElementType::tf32, .b = ElementType::tf32},
    {.kind = MmaKind::f8f6f4, .a = ElementType::e4m3, .b = ElementType::e4m3},
    {.kind = MmaKind::f8f6f4, .a = ElementType::e5m2, .b = ElementType::e4m3},
    {.kind = MmaKind::i8, .a = ElementType::s8, .b = ElementType::u8, .d = AccumulatorType::s32},
    {.kind = MmaKind::i8, .a = ElementType::u8, .b = ElementType::s8, .d = AccumulatorType::s32},
};

bool n_exists(const Config& c) {
  bool integer = c.kind == MmaKind::i8;
  if (c.cta_group == 2) return c.n % (integer ? 32 : 16) == 0;
  return c.n % 8 == 0 && (!integer || c.n <= 32 || c.n % 16 == 0);
}

TEST(Tcgen05Mma, EveryTypeShapeAndGroup) {
  for (Config c : kTypeConfigs) {
    for (int group : {1, 2}) {
      for (uint32_t m : {64u * group, 128u * group}) {
        for (bool in_tmem : {false, true}) {
          for (uint32_t n = 8; n <= 256; n += 8) {
            c.cta_group = group;
            c.m = m;
            c.n = n;
            c.a_in_tmem = in_tmem;
            if (!n_exists(c)) {
              EXPECT_THROW(decode_mma_instruction(c.kind, c.bits(), group), Fault) << c.text();
              continue;
            }
            MmaCase(c, n).check();
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(Tcgen05Mma, EverySwizzleAndMajor) {
  for (Config c : kTypeConfigs) {
    for (int group : {1, 2}) {
      for (Swizzle swizzle :
           {Swizzle::none, Swizzle::b32, Swizzle::b64, Swizzle::b128, Swizzle::b128_atom32}) {
        for (Major a_major : {Major::k, Major::mn}) {
          for (Major b_major : {Major::k, Major::mn}) {
            c.cta_group = group;
            c.m = 128 * group;
            c.n = 96;
            c.swizzle = swizzle;
            c.a_major = a_major;
            c.b_major = b_major;
            // 32-bit elements are transposed through 32-byte atoms, nothing else is.
            bool tf32 = c.kind == MmaKind::tf32;
            auto legal = [&](Major major) {
              return (swizzle == Swizzle::b128_atom32) == (tf32 && major == Major::mn);
            };
            if (legal(a_major) && legal(b_major)) {
              MmaCase(c).check();
            } else {
              EXPECT_THROW(MmaCase(c).run(), Fault) << c.text();
            }
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(Tcgen05Mma, SparseA) {
  for (Config c : kTypeConfigs) {
    c.sparse = true;
    for (int group : {1, 2}) {
      for (uint32_t selector = 0; selector < (container_bytes(c.a) == 1 ? 1u : 2u); ++selector) {
        for (bool in_tmem : {false, true}) {
          for (uint32_t n : {32u, 96u}) {
            c.cta_group = group;
            c.m = 128 * group;
            c.sparsity_selector = selector;
            c.a_in_tmem = in_tmem;
            c.n = n;
            MmaCase(c, n + selector).check();
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(Tcgen05Mma, SparseAWithEverySwizzleAndMajor) {
  for (Swizzle swizzle : {Swizzle::none, Swizzle::b32, Swizzle::b64, Swizzle::b128}) {
    for (Major a_major : {Major::k, Major::mn}) {
      for (Major b_major : {Major::k, Major::mn}) {
        Config c{.n = 96,
                 .a_major = a_major,
                 .b_major = b_major,
                 .swizzle = swizzle,
                 .negate_a = true,
                 .sparse = true,
                 .sparsity_selector = 1};
        if (swizzle == Swizzle::b32 && b_major == Major::k) {
          EXPECT_NE(test::fault_text([&] { MmaCase(c).run(); }).find("64 bytes of K"),
                    std::string::npos);
        } else {
          MmaCase(c).check();
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Tcgen05Mma, RefusesWhatIsNoSparseProduct) {
  auto text = [](Config c, auto change) {
    MmaCase subject(c);
    change(subject.mma);
    return test::fault_text([&] { subject.run(); });
  };
  auto none = [](Tcgen05Mma&) {};
  const Config good{.sparse = true};
  EXPECT_EQ(text(good, none), "no fault");
  EXPECT_NE(text({.m = 64, .sparse = true}, none).find("supported: M = 128"), std::string::npos);
  EXPECT_NE(text(good, [](Tcgen05Mma& mma) { mma.sp_meta_address += 1; }).find("an even column"),
            std::string::npos);
  EXPECT_NE(text(good, [](Tcgen05Mma& mma) { mma.sparse = false; }).find("use tcgen05.mma.sp"),
            std::string::npos);
  EXPECT_NE(text({}, [](Tcgen05Mma& mma) { mma.sparse = true; }).find("must be 1"),
            std::string::npos);
  EXPECT_NE(text({.sparse = true, .sparsity_selector = 2}, none).find("legal: 0, 1"),
            std::string::npos);
}

TEST(Tcgen05Mma, NarrowTypes) {
  using enum ElementType;
  for (ElementType a : {e4m3, e5m2, e2m3, e3m2, e2m1}) {
    for (ElementType b : {e4m3, e5m2, e2m3, e3m2, e2m1}) {
      Config c{.kind = MmaKind::f8f6f4, .a = a, .b = b, .n = 64};
      MmaCase(c).check();
      if (HasFatalFailure()) return;
    }
  }
  Config transposed{.kind = MmaKind::f8f6f4, .a = e2m1, .b = e4m3, .a_major = Major::mn};
  EXPECT_THROW(MmaCase(transposed).run(), Fault);
  Config in_tmem{.kind = MmaKind::f8f6f4, .a = e3m2, .b = e4m3, .a_in_tmem = true};
  EXPECT_THROW(MmaCase(in_tmem).run(), Fault);
}

TEST(Tcgen05Mma, NegateScaleAndAccumulate) {
  for (bool negate_a : {false, true}) {
    for (bool negate_b : {false, true}) {
      for (bool accumulate : {false, true}) {
        for (bool in_tmem : {false, true}) {
          MmaCase({.n = 32,
                   .a_in_tmem = in_tmem,
                   .negate_a = negate_a,
                   .negate_b = negate_b,
                   .accumulate = accumulate})
              .check();
        }
      }
    }
  }
  MmaCase({.n = 32, .scale_input_d = 3}).check();
  MmaCase({.m = 64, .n = 32, .d_lane = 16}).check();
  MmaCase({.m = 64, .n = 32, .a_in_tmem = true, .d_lane = 16}).check();
  EXPECT_THROW(MmaCase({.m = 128, .d_lane = 16}).run(), Fault);
}

TEST(Tcgen05Mma, HalfAccumulatorsTakeWholeCells) {
  MmaCase c({.a = ElementType::f16, .b = ElementType::f16, .d = AccumulatorType::f16, .n = 16});
  c.check();
  EXPECT_EQ(c.cell(0, 0, 0) >> 16, 0u);
}

TEST(Tcgen05Mma, IntegersSaturate) {
  for (bool saturate : {false, true}) {
    MmaCase c({.kind = MmaKind::i8,
               .a = ElementType::u8,
               .b = ElementType::u8,
               .d = AccumulatorType::s32,
               .n = 32,
               .saturate = saturate});
    auto before = static_cast<int32_t>(c.cell(0, 5, 7));
    auto product = static_cast<uint32_t>(c.expected(5, 7) - before);
    ASSERT_GT(product, 1000u);
    c.cell(0, 5, 7) = 0x7fffffff;
    c.run();
    EXPECT_EQ(c.cell(0, 5, 7), saturate ? 0x7fffffffu : 0x7fffffffu + product);
    EXPECT_EQ(c.result(5, 8), c.expected(5, 8));
  }
}

TEST(Tcgen05Mma, DisabledLanesKeepTheirValues) {
  for (int group : {1, 2}) {
    MmaCase c({.cta_group = group, .m = 128u * group, .n = 32});
    c.mma.disable_output_lane[0] = 1u << 3;
    c.mma.disable_output_lane[3] = 1u << 31;
    if (group == 2) c.mma.disable_output_lane[4] = 1u << 1;
    uint32_t before[3] = {c.cell(0, 3, 5), c.cell(0, 127, 5), c.cell(group - 1, 1, 5)};
    c.run();
    EXPECT_EQ(c.cell(0, 3, 5), before[0]);
    EXPECT_EQ(c.cell(0, 127, 5), before[1]);
    if (group == 2) {
      EXPECT_EQ(c.cell(1, 1, 5), before[2]);
    }
    EXPECT_EQ(c.result(4, 5), c.expected(4, 5));
    EXPECT_EQ(c.result(1, 5), c.expected(1, 5));
  }
}

TEST(Tcgen05Mma, IllegalInstructionDescriptorsAreNamed) {
  auto text = [](MmaKind kind, uint32_t bits, int group = 1) -> std::string {
    try {
      decode_mma_instruction(kind, bits, group);
    } catch (const Fault& fault) {
      return fault.text;
    }
    return "no fault";
  };
  const uint32_t good = Config{}.bits();
  EXPECT_EQ(text(MmaKind::f16, good), "no fault");
  const std::pair<uint32_t, const char*> bad[] = {{good | 1u << 2, "sparsity"},
                                                  {good | 1, "sparsity selector"},
                                                  {good | 1u << 6, "bit 6"},
                                                  {good | 1u << 23, "bit 23"},
                                                  {good | 1u << 29, "bit 29"},
                                                  {good | 1u << 30, "maximum shift"},
                                                  {good | 1u << 3, "saturate"},
                                                  {good | 1u << 5, "D type"},
                                                  {good ^ 1u << 10, "must be the same"},
                                                  {good | 1u << 9, "A (bits 7-9) type is 5"},
                                                  {good & ~(31u << 24), "M (bits 24-28"},
                                                  {good & ~(63u << 17), "N (bits 17-22"}};
  for (auto [bits, what] : bad) {
    EXPECT_NE(text(MmaKind::f16, bits).find(what), std::string::npos)
        << text(MmaKind::f16, bits) << " should name " << what;
  }
  EXPECT_NE(text(MmaKind::tf32, good).find("tf32"), std::string::npos);
  EXPECT_NE(text(MmaKind::f16, Config{.m = 256}.bits(), 1).find("legal with cta_group::1: 64, 128"),
            std::string::npos);
}

TEST(Tcgen05Mma, ReportsWhatItTouches) {
  struct Counter : AccessVisitor {
    uint64_t shared_bytes[2] = {0, 0}, tmem_reads[2] = {0, 0}, tmem_writes[2] = {0, 0};
    void shared_chunks(uint32_t cta, std::span<const uint32_t> addresses) override {
      shared_bytes[cta] += 16 * addresses.size();
    }
    void tmem(uint32_t cta, uint32_t, uint32_t lanes, uint32_t, uint32_t columns,
              bool write) override {
      (write ? tmem_writes : tmem_reads)[cta] += uint64_t{lanes} * columns;
    }
  } counter;
  MmaCase c({.cta_group = 2, .m = 256, .n = 128});
  c.run(&counter);
  for (int cta : {0, 1}) {
    EXPECT_EQ(counter.shared_bytes[cta], (128u + 64u) * 32u);
    EXPECT_EQ(counter.tmem_reads[cta], 128u * 128u);
    EXPECT_EQ(counter.tmem_writes[cta], 128u * 128u);
  }
}

TEST(Tcgen05Mma, UnallocatedTmemFaults) {
  MmaCase c({.n = 128});
  c.tmem_[0].deallocate(0, 512, 1);
  c.tmem_[0].allocate(128, 1);  // columns 0..127; D needs 64..191
  try {
    c.run();
    FAIL() << "no fault";
  } catch (const Fault& fault) {
    EXPECT_EQ(fault.cuda_error, kIllegalAddress);
    EXPECT_NE(fault.text.find("not allocated"), std::string::npos);
  }
}

}  // namespace
}  // namespace vgpu::tensor
