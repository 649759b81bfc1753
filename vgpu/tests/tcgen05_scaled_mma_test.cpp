// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "fault.hpp"
#include "matrix_layout.hpp"
#include "tensor/tcgen05_scaled_mma.hpp"

namespace vgpu::tensor {
namespace {

using test::element_bits;
using test::Matrix;
using test::SparseRow;

struct Config {
  ScaledMmaKind kind = ScaledMmaKind::mxf8f6f4;
  uint32_t scales = 1;
  ElementType a = ElementType::e4m3, b = ElementType::e4m3;
  bool ue4m3 = false;
  uint32_t a_id = 0, b_id = 0;
  int cta_group = 1;
  uint32_t m = 128, n = 64;
  Major a_major = Major::k, b_major = Major::k;
  Swizzle swizzle = Swizzle::b128;
  bool a_in_tmem = false;
  bool negate_a = false, negate_b = false, accumulate = true;
  bool sparse = false;

  bool packed() const { return kind != ScaledMmaKind::mxf8f6f4; }
  std::string text() const {
    return std::string(name_of(kind)) + " " + std::to_string(scales) + "X " + name_of(a) + "x" +
           name_of(b) + " cta_group " + std::to_string(cta_group) + " M " + std::to_string(m) +
           " N " + std::to_string(n) + " ids " + std::to_string(a_id) + "," + std::to_string(b_id);
  }
  /// The tables "Instruction descriptor format" of the kinds.
  uint32_t bits() const {
    auto code = [&](ElementType type) -> uint32_t {
      if (packed()) return 1;
      switch (type) {
        case ElementType::e4m3:
          return 0;
        case ElementType::e5m2:
          return 1;
        case ElementType::e2m3:
          return 3;
        case ElementType::e3m2:
          return 4;
        default:
          return 5;
      }
    };
    return uint32_t{sparse} << 2 | b_id << 4 | code(a) << 7 | code(b) << 10 |
           uint32_t{negate_a} << 13 | uint32_t{negate_b} << 14 |
           uint32_t{a_major == Major::mn} << 15 | uint32_t{b_major == Major::mn} << 16 |
           n / 8 << 17 | uint32_t{!ue4m3} << 23 | m / 128 << 27 | a_id << 29;
  }
};

class ScaledCase {
 public:
  static constexpr uint32_t kDColumn = 64, kAColumn = 8, kScaleA = 400, kScaleB = 440,
                            kMetadata = 380;
  static constexpr uint32_t kShared = 200 * 1024;

  explicit ScaledCase(const Config& config, uint32_t seed = 1)
      : c(config),
        stored_(config.packed() ? 64 : 32),
        depth_(config.sparse ? 2 * stored_ : stored_),
        rows_(config.m / config.cta_group) {
    std::mt19937 random(seed);
    auto fill = [&](std::vector<int>& values, size_t count, int low, int high) {
      values.resize(count);
      for (int& value : values) {
        value = low + static_cast<int>(random() % static_cast<uint32_t>(high - low + 1));
      }
    };
    fill(a_, c.m * depth_, -4, 4);
    fill(b_, c.n * depth_, -4, 4);
    fill(scale_a_, c.m * c.scales, 0, 3);
    fill(scale_b_, c.n * c.scales, 0, 3);
    fill(d_, c.m * c.n, -9, 9);
    // 5 and 7 are not e2m1 numbers, the rest up to 4 are.
    for (uint32_t row = 0; c.sparse && row < c.m; ++row) {
      patterns_.push_back(SparseRow::of_runs(c.packed() ? 2 : 1, depth_, random));
      std::vector<int> kept(depth_);
      for (uint32_t at : patterns_[row].stored) kept[at] = a_[row * depth_ + at];
      std::copy(kept.begin(), kept.end(), a_.begin() + row * depth_);
    }
    Matrix a = Matrix::make(c.swizzle, c.a_major, 1, rows_, 0x2000);
    Matrix b =
        Matrix::make(c.swizzle, c.b_major, 1, c.n / c.cta_group, 0x14000, c.sparse ? 64 : 32);
    for (int cta = 0; cta < c.cta_group; ++cta) {
      shared_[cta].assign(kShared, 0xee);
      tmem[cta].allocate(512, c.cta_group);
      const uint32_t columns = c.n / c.cta_group;
      for (uint32_t row = 0; row < rows_; ++row) {
        for (uint32_t s = 0; s < stored_; ++s) {
          put(cta, a, row, s, c.a, stored(cta * rows_ + row, s));
        }
      }
      for (uint32_t k = 0; k < depth_; ++k) {
        for (uint32_t column = 0; column < columns; ++column) {
          put(cta, b, column, k, c.b, b_[(cta * columns + column) * depth_ + k]);
        }
      }
      if (c.a_in_tmem) put_a_in_tmem(cta);
      put_scales(cta);
      if (c.sparse) put_metadata(cta);
      for (uint32_t row = 0; row < rows_; ++row) {
        for (uint32_t column = 0; column < c.n; ++column) {
          cell(cta, row, column) =
              std::bit_cast<uint32_t>(static_cast<float>(d_[(cta * rows_ + row) * c.n + column]));
        }
      }
      ctas_.push_back({{shared_[cta].data(), 1024, kShared}, &tmem[cta]});
    }
    mma.kind = c.kind;
    mma.scales = c.scales;
    mma.cta_group = c.cta_group;
    mma.instruction_descriptor = c.bits();
    mma.d_address = kDColumn;
    mma.a_in_tmem = c.a_in_tmem;
    mma.a = c.a_in_tmem ? kAColumn : a.tcgen05_bits();
    mma.b_descriptor = b.tcgen05_bits();
    mma.scale_a = kScaleA;
    mma.scale_b = kScaleB;
    mma.accumulate = c.accumulate;
    mma.sparse = c.sparse;
    mma.sp_meta_address = kMetadata;
  }

  void run(AccessVisitor* visitor = nullptr) { tcgen05_scaled_mma(mma, ctas_, visitor); }

  float result(uint32_t row, uint32_t column) {
    return std::bit_cast<float>(cell(static_cast<int>(row / rows_), row % rows_, column));
  }

  double expected(uint32_t row, uint32_t column) const {
    const uint32_t block = depth_ / c.scales;
    double sum = c.accumulate ? d_[row * c.n + column] : 0;
    const double sign = c.negate_a == c.negate_b ? 1 : -1;
    for (uint32_t k = 0; k < depth_; ++k) {
      sum += sign * a_[row * depth_ + k] * scale_value(scale_a_[row * c.scales + k / block]) *
             b_[column * depth_ + k] * scale_value(scale_b_[column * c.scales + k / block]);
    }
    return sum;
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

  /// Layout A or D: lane = row. Layout B (M = 128 of a pair): the halves of N in lanes 0-63,
  /// 64-127.
  uint32_t& cell(int cta, uint32_t row, uint32_t column) {
    const bool folded = c.cta_group == 2 && c.m == 128;
    if (folded && column >= c.n / 2) return tmem[cta].row(row + 64)[kDColumn + column - c.n / 2];
    return tmem[cta].row(row)[kDColumn + column];
  }

  const Config c;
  Tcgen05ScaledMma mma;
  Tmem tmem[2];

 private:
  /// What A stores of a row.
  int stored(uint32_t row, uint32_t s) const {
    return a_[row * depth_ + (c.sparse ? patterns_[row].stored[s] : s)];
  }

  /// Figure 267 of "Sparsity selector": lane = row, chunks of K from the lowest bits on.
  void put_metadata(int cta) {
    for (uint32_t lane = 0; lane < rows_; ++lane) {
      for (uint32_t nibble = 0; nibble < 16; ++nibble) {
        uint32_t& word = tmem[cta].row(lane)[kMetadata + nibble / 8];
        const uint32_t shift = nibble % 8 * 4;
        word = (word & ~(15u << shift)) | patterns_[cta * rows_ + lane].index[nibble] << shift;
      }
    }
  }

  /// Scale factors 1, 2, 4, 8 (ue8m0) or 1, 1.5, 2, 2.5 (ue4m3), as the numbers 0 to 3.
  double scale_value(int s) const { return c.ue4m3 ? 1 + s / 2.0 : 1 << s; }
  uint32_t scale_bits(int s) const {
    if (!c.ue4m3) return 127 + static_cast<uint32_t>(s);
    return encode(kE4m3, scale_value(s));
  }

  /// Scale k of row r: byte id + k of lane r % 32, column r / 32, a copy in each group of 32 lanes.
  /// All other bytes hold NaN.
  void put_scales(int cta) {
    for (uint32_t lane = 0; lane < 128; ++lane) {
      for (uint32_t column = 392; column < 512; ++column) tmem[cta].row(lane)[column] = ~0u;
    }
    auto put = [&](uint32_t lane, uint32_t column, uint32_t byte, int scale) {
      uint32_t& word = tmem[cta].row(lane)[column];
      word = (word & ~(0xffu << 8 * byte)) | scale_bits(scale) << 8 * byte;
    };
    const bool folded = c.cta_group == 2 && c.m == 128;
    const uint32_t part = folded ? c.n / 2 : c.n;
    for (uint32_t group = 0; group < 4; ++group) {
      for (uint32_t k = 0; k < c.scales; ++k) {
        for (uint32_t row = 0; row < rows_; ++row) {
          put(group * 32 + row % 32, kScaleA + row / 32, c.a_id + k,
              scale_a_[(cta * rows_ + row) * c.scales + k]);
        }
        // Layout B: groups 0 and 1 hold the first half of N, 2 and 3 the second.
        const uint32_t first = folded && group >= 2 ? part : 0;
        for (uint32_t n = 0; n < part; ++n) {
          put(group * 32 + n % 32, kScaleB + n / 32, c.b_id + k,
              scale_b_[(first + n) * c.scales + k]);
        }
      }
    }
  }

  /// mxf8f6f4: fp6 and fp4 at the low end of a 16-byte chunk of 16 elements; the other kinds: two
  /// e2m1 a byte.
  void put(int cta, const Matrix& matrix, uint32_t mn, uint32_t k, ElementType type, int value) {
    const uint32_t bits = element_bits(type, value);
    if (c.packed()) {
      uint8_t& byte = shared_[cta][matrix.address(mn, k / 2)];
      byte = static_cast<uint8_t>(k % 2 ? (byte & 0x0f) | bits << 4 : (byte & 0xf0) | bits);
      return;
    }
    test::put_element(shared_[cta].data(), matrix, mn, k, type, bits);
  }

  void put_a_in_tmem(int cta) {
    for (uint32_t row = 0; row < rows_; ++row) {
      for (uint32_t k = 0; k < stored_; ++k) {
        for (uint32_t lane : {row, c.m == 128 && c.cta_group == 2 ? row + 64 : row}) {
          uint32_t& word = tmem[cta].row(lane)[kAColumn + k / 4];
          const uint32_t bits = element_bits(c.a, stored(cta * rows_ + row, k));
          word = (word & ~(0xffu << k % 4 * 8)) | bits << k % 4 * 8;
        }
      }
    }
  }

  uint32_t stored_, depth_, rows_;
  std::vector<SparseRow> patterns_;
  std::vector<int> a_, b_, scale_a_, scale_b_, d_;
  std::vector<uint8_t> shared_[2];
  std::vector<CtaMemory> ctas_;
};

const Config kKinds[] = {
    {},
    {.kind = ScaledMmaKind::mxf4, .scales = 2, .a = ElementType::e2m1, .b = ElementType::e2m1},
    {.kind = ScaledMmaKind::mxf4nvf4, .scales = 2, .a = ElementType::e2m1, .b = ElementType::e2m1},
    {.kind = ScaledMmaKind::mxf4nvf4, .scales = 4, .a = ElementType::e2m1, .b = ElementType::e2m1},
    {.kind = ScaledMmaKind::mxf4nvf4,
     .scales = 4,
     .a = ElementType::e2m1,
     .b = ElementType::e2m1,
     .ue4m3 = true},
};

TEST(Tcgen05ScaledMma, EveryKindShapeAndScaleId) {
  for (Config c : kKinds) {
    for (int group : {1, 2}) {
      for (uint32_t m : {128u, 256u}) {
        if (m == 256 && group == 1) continue;
        for (uint32_t n : {8u, 16u, 24u, 32u, 48u, 96u, 128u, 160u, 192u, 256u}) {
          if (n % (8 * static_cast<uint32_t>(group)) != 0) continue;
          c.cta_group = group;
          c.m = m;
          c.n = n;
          c.a_id = n / 8 * c.scales % 4;
          c.b_id = (n / 16 + 1) * c.scales % 4;
          ScaledCase(c, n).check();
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Tcgen05ScaledMma, EveryElementType) {
  using enum ElementType;
  for (ElementType a : {e4m3, e5m2, e2m3, e3m2, e2m1}) {
    for (ElementType b : {e4m3, e5m2, e2m3, e3m2, e2m1}) {
      ScaledCase({.a = a, .b = b, .n = 32}).check();
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Tcgen05ScaledMma, MajorsNegationAndTmem) {
  for (Major a : {Major::k, Major::mn}) {
    for (Major b : {Major::k, Major::mn}) {
      ScaledCase({.b = ElementType::e5m2, .a_major = a, .b_major = b}).check();
    }
  }
  for (Swizzle swizzle : {Swizzle::none, Swizzle::b32, Swizzle::b64}) {
    ScaledCase({.swizzle = swizzle}).check();
    Config packed = kKinds[4];
    packed.swizzle = swizzle;
    ScaledCase(packed).check();
  }
  for (Config c : {kKinds[0], kKinds[3]}) {
    c.negate_a = true;
    ScaledCase(c).check();
    c.negate_b = true;
    c.accumulate = false;
    ScaledCase(c).check();
  }
  for (ElementType a : {ElementType::e4m3, ElementType::e5m2}) {
    for (int group : {1, 2}) ScaledCase({.a = a, .cta_group = group, .a_in_tmem = true}).check();
  }
}

TEST(Tcgen05ScaledMma, SparseA) {
  for (Config c : kKinds) {
    c.sparse = true;
    for (int group : {1, 2}) {
      for (uint32_t n : {16u, 96u}) {
        c.cta_group = group;
        c.m = 128 * static_cast<uint32_t>(group);
        c.n = n;
        c.a_id = n / 8 * c.scales % 4;
        c.b_id = (n / 16 + 1) * c.scales % 4;
        ScaledCase(c, n).check();
        if (HasFatalFailure()) return;
      }
    }
    c.swizzle = Swizzle::b64;
    c.accumulate = false;
    ScaledCase(c).check();
  }
  using enum ElementType;
  for (ElementType a : {e4m3, e5m2, e2m3, e3m2, e2m1}) {
    ScaledCase({.a = a, .b = e2m3, .n = 32, .negate_a = true, .sparse = true}).check();
  }
  for (Major b : {Major::k, Major::mn}) {
    ScaledCase({.b_major = b, .sparse = true}).check();
    ScaledCase({.b_major = b, .a_in_tmem = true, .sparse = true}).check();
  }
}

TEST(Tcgen05ScaledMma, RefusesWhatIsNoSparseProduct) {
  const auto text = [](const Config& config, auto&& change) {
    ScaledCase c(config);
    change(c);
    return test::fault_text([&] { c.run(); });
  };
  const Config good = {.n = 16, .sparse = true};
  EXPECT_NE(text(good, [](ScaledCase& c) { c.mma.sparse = false; }).find("use tcgen05.mma.sp"),
            std::string::npos);
  EXPECT_NE(text({.n = 16}, [](ScaledCase& c) { c.mma.sparse = true; }).find("must be 1"),
            std::string::npos);
  EXPECT_NE(text(good, [](ScaledCase& c) { c.mma.sp_meta_address |= 1; }).find("even column"),
            std::string::npos);
  const std::string pair = text({.cta_group = 2, .m = 128, .sparse = true}, [](ScaledCase&) {});
  EXPECT_NE(pair.find("without words"), std::string::npos) << pair;
  // Twice the same place, for elements that are not zero: of pairs too.
  for (Config c : {good, kKinds[3]}) {
    c.sparse = true;
    const std::string twice = text(c, [](ScaledCase& broken) {
      for (uint32_t column = 0; column < 2; ++column) {
        broken.tmem[0].row(7)[ScaledCase::kMetadata + column] = 0x55555555;
      }
    });
    EXPECT_NE(twice.find("index 0x5 for elements"), std::string::npos) << twice;
  }
}

TEST(Tcgen05ScaledMma, ExtremeScalesAreNotLost) {
  // 2^127 2^-127: the product of the scales is 1 although each one alone would overflow a sum.
  ScaledCase c({.n = 8, .accumulate = false});
  for (uint32_t lane = 0; lane < 128; ++lane) {
    for (uint32_t column = 0; column < 4; ++column) {
      c.tmem[0].row(lane)[ScaledCase::kScaleA + column] = 0xfe;
    }
    c.tmem[0].row(lane)[ScaledCase::kScaleB] = 0x00;
  }
  ScaledCase ones({.n = 8, .accumulate = false});
  for (uint32_t lane = 0; lane < 128; ++lane) {
    for (uint32_t column = 0; column < 4; ++column) {
      ones.tmem[0].row(lane)[ScaledCase::kScaleA + column] = 127;
    }
    ones.tmem[0].row(lane)[ScaledCase::kScaleB] = 127;
  }
  c.run();
  ones.run();
  for (uint32_t row = 0; row < 128; ++row) {
    for (uint32_t column = 0; column < 8; ++column) {
      ASSERT_EQ(c.result(row, column), ones.result(row, column));
    }
  }
  // 0xff is NaN.
  c.tmem[0].row(5)[ScaledCase::kScaleA] = 0xff;
  c.run();
  EXPECT_TRUE(std::isnan(c.result(5, 0)));
  EXPECT_FALSE(std::isnan(c.result(6, 0)));
}

TEST(Tcgen05ScaledMma, EachGroupOfLanesUsesItsOwnCopyOfTheScales) {
  ScaledCase c({.n = 32});
  for (uint32_t column = 0; column < 4; ++column) {
    for (uint32_t lane = 96; lane < 128; ++lane) {
      c.tmem[0].row(lane)[ScaledCase::kScaleB + column] = 127;
    }
  }
  ScaledCase same({.n = 32});
  c.run();
  same.run();
  bool differs = false;
  for (uint32_t row = 0; row < 128; ++row) {
    for (uint32_t column = 0; column < 32; ++column) {
      if (row < 96) {
        ASSERT_EQ(c.result(row, column), same.result(row, column));
      }
      differs |= c.result(row, column) != same.result(row, column);
    }
  }
  EXPECT_TRUE(differs);
}

TEST(Tcgen05ScaledMma, IllegalDescriptorsAreNamed) {
  auto text = [](ScaledMmaKind kind, uint32_t scales, uint32_t bits, int group = 1) -> std::string {
    try {
      decode_scaled_mma(kind, scales, bits, group);
    } catch (const Fault& fault) {
      return fault.text;
    }
    return "no fault";
  };
  const uint32_t mx8 = Config{}.bits(), mx4 = kKinds[1].bits(), nv4 = kKinds[4].bits();
  EXPECT_EQ(text(ScaledMmaKind::mxf8f6f4, 1, mx8), "no fault");
  EXPECT_EQ(text(ScaledMmaKind::mxf4, 2, mx4), "no fault");
  EXPECT_EQ(text(ScaledMmaKind::mxf4nvf4, 4, nv4), "no fault");
  struct Bad {
    ScaledMmaKind kind;
    uint32_t scales, bits;
    const char* what;
  };
  const auto mxf8f6f4 = ScaledMmaKind::mxf8f6f4, mxf4 = ScaledMmaKind::mxf4,
             mxf4nvf4 = ScaledMmaKind::mxf4nvf4;
  const Bad bad[] = {
      {mxf8f6f4, 1, mx8 | 1u << 2, "sparsity"},
      {mxf8f6f4, 1, mx8 | 1, "bits 0-1"},
      {mxf8f6f4, 1, mx8 | 1u << 3, "bits 3-3"},
      {mxf8f6f4, 1, mx8 | 1u << 6, "bits 6-6"},
      {mxf8f6f4, 1, mx8 | 1u << 25, "bits 24-26"},
      {mxf8f6f4, 1, mx8 | 1u << 31, "bit 31"},
      {mxf8f6f4, 1, mx8 | 2u << 7, "type is 2"},
      {mxf8f6f4, 1, mx8 & ~(1u << 23), "ue4m3"},
      {mxf8f6f4, 1, mx8 | 2u << 27, "M (bits 27-28"},
      {mxf8f6f4, 1, mx8 & ~(63u << 17), "N (bits"},
      {mxf4, 2, mx4 | 1u << 31, "K = 96"},
      {mxf4, 2, mx4 | 1u << 4, "scale-B data ID"},
      {mxf4, 2, mx4 | 1u << 29, "scale-A data ID"},
      {mxf4, 2, mx4 | 1u << 15, "MN-major"},
      {mxf4, 2, mx4 | 1u << 12, "bit 12"},
      {mxf4, 2, mx4 ^ 3u << 7, "legal: 1 (e2m1)"},
      {mxf4nvf4, 2, nv4, "ue4m3"},
      {mxf4nvf4, 4, nv4 | 2u << 4, "legal with"},
  };
  for (const Bad& b : bad) {
    EXPECT_NE(text(b.kind, b.scales, b.bits).find(b.what), std::string::npos)
        << text(b.kind, b.scales, b.bits) << " should name " << b.what;
  }
  EXPECT_THROW(ScaledCase({.a = ElementType::e2m1, .a_in_tmem = true}).run(), Fault);
  ScaledCase lane({});
  lane.mma.scale_a |= 32u << 16;
  EXPECT_THROW(lane.run(), Fault);
}

TEST(Tcgen05ScaledMma, ReportsWhatItTouches) {
  struct Counter : AccessVisitor {
    uint64_t shared_bytes = 0, reads = 0, writes = 0;
    void shared_chunks(uint32_t, std::span<const uint32_t> addresses) override {
      shared_bytes += 16 * addresses.size();
    }
    void tmem(uint32_t, uint32_t, uint32_t lanes, uint32_t, uint32_t columns, bool write) override {
      (write ? writes : reads) += uint64_t{lanes} * columns;
    }
  } counter;
  ScaledCase c({.n = 64});
  c.run(&counter);
  EXPECT_EQ(counter.shared_bytes, (128u + 64u) * 32u);
  EXPECT_EQ(counter.reads, 128u * (64u + 4u + 2u));  // D, scale-A, scale-B
  EXPECT_EQ(counter.writes, 128u * 64u);
}

}  // namespace
}  // namespace vgpu::tensor
