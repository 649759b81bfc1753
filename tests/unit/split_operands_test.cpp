// SPDX-License-Identifier: Apache-2.0
//
// fp32 numbers in two parts of TF32 (src/kernels/common/split_tf32.hpp), and what sums of their
// products err by on tensor cores that cut off.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "kernels/common/split_tf32.hpp"

namespace convoy {
namespace {

float of_bits(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}
/// What a tensor core reads of a part.
float read_as_tf32(std::uint32_t bits) {
  return of_bits(bits & ~0x1fffu);
}

TEST(SplitTf32, HoldsAllButTheLastBits) {
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) {
    // Any sign and mantissa; exponents whose lower part has no subnormal bits.
    const std::uint32_t exponent = 14 + random() % (254 - 14);
    const std::uint32_t bits = (random() & 0x807fffffu) | exponent << 23;
    const Tf32Parts parts = split_tf32(bits);
    const double x = of_bits(bits);
    const double hi = read_as_tf32(parts.hi), lo = read_as_tf32(parts.lo);
    if (std::isinf(hi)) continue;
    EXPECT_EQ(of_bits(parts.hi), hi) << "more bits than TF32 has";
    EXPECT_EQ(hi + of_bits(parts.lo), x) << std::hexfloat << x;
    EXPECT_LE(std::fabs(x - hi), std::fabs(x) * 0x1p-11) << std::hexfloat << x;
    EXPECT_LE(std::fabs(x - hi - lo), std::fabs(x) * 0x1p-22) << std::hexfloat << x;
  }
}

TEST(SplitTf32, EdgesOfTheRange) {
  const auto parts_of = [](float x) {
    const Tf32Parts parts = split_tf32(std::bit_cast<std::uint32_t>(x));
    return std::array<float, 2>{of_bits(parts.hi), of_bits(parts.lo)};
  };
  using Parts = std::array<float, 2>;
  EXPECT_EQ(parts_of(0.0f), (Parts{0.0f, 0.0f}));
  EXPECT_TRUE(std::signbit(parts_of(-0.0f)[0]));
  EXPECT_EQ(parts_of(1.0f), (Parts{1.0f, 0.0f}));
  EXPECT_EQ(parts_of(1.0f + 0x1p-11f), (Parts{1.0f + 0x1p-10f, -0x1p-11f}));
  EXPECT_EQ(parts_of(0x1.ffdfp127f), (Parts{0x1.ffcp127f, 0x1.fp115f}));
  // Subnormal: no bit is lost, but TF32 does not read the lowest.
  EXPECT_EQ(parts_of(0x1p-149f), (Parts{0.0f, 0x1p-149f}));
  EXPECT_EQ(parts_of(0x1.8p-130f), (Parts{0x1.8p-130f, 0.0f}));
  // Not finite, or past the largest TF32: some part is neither.
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {infinity, -infinity, std::numeric_limits<float>::max(),
                        std::numeric_limits<float>::quiet_NaN(), of_bits(0x7fffffffu),
                        of_bits(0xffffffffu), of_bits(0x7f800001u)}) {
    const Parts parts = parts_of(x);
    EXPECT_FALSE(std::isfinite(parts[0]) && std::isfinite(parts[1])) << x;
  }
}

// ---- Sums ---------------------------------------------------------------------------------------

/// sum + Σ a[i] · b[i] as a tensor core computes it, by measurements of A100 and H100 (Fasi et al.,
/// "Numerical behavior of NVIDIA tensor cores", 2021, and later ones): addends are aligned to the
/// largest exponent, cut off `extra` bits below fp32's last, added exactly, and the sum is cut off
/// to fp32. An H100 keeps a bit or two more than is counted here.
float multiply_add(float sum, const float* a, const float* b, int count, int extra) {
  std::vector<double> addends{sum};
  for (int i = 0; i < count; ++i) addends.push_back(double{a[i]} * double{b[i]});
  int largest = -1000;
  for (const double x : addends) {
    if (x != 0) largest = std::max(largest, std::ilogb(x));
  }
  if (largest == -1000) return 0.0f;
  const double unit = std::ldexp(1.0, largest - 23 - extra);
  double total = 0;
  for (const double x : addends) total += std::trunc(x / unit) * unit;
  if (total == 0) return 0.0f;
  const double last = std::ldexp(1.0, std::ilogb(total) - 23);
  return static_cast<float>(std::trunc(total / last) * last);
}

struct TensorCore {
  const char* name;
  int depth;  ///< Products that it adds at once.
  int extra;
};
constexpr TensorCore kTensorCores[] = {{"A100", 4, 0}, {"H100", 8, 0}};

/// How the products of split operands are summed.
enum class Sums {
  steps_of_8,    ///< As kernels/mma: each step of 8 by itself, its small products first.
  blocks_of_32,  ///< Blocks of 32 products of one kind by themselves.
  one,           ///< All in the tensor core's accumulator.
};

float sum_of_split(const std::vector<float>& x, const std::vector<float>& y, Sums how,
                   const TensorCore& core) {
  const std::size_t n = x.size();
  std::array<std::vector<float>, 2> a, b;  // Upper and lower parts.
  for (auto* parts : {&a[0], &a[1], &b[0], &b[1]}) parts->resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    const Tf32Parts px = split_tf32(std::bit_cast<std::uint32_t>(x[i]));
    const Tf32Parts py = split_tf32(std::bit_cast<std::uint32_t>(y[i]));
    a[0][i] = read_as_tf32(px.hi), a[1][i] = read_as_tf32(px.lo);
    b[0][i] = read_as_tf32(py.hi), b[1][i] = read_as_tf32(py.lo);
  }
  constexpr std::array<std::array<int, 2>, 3> kProducts = {{{1, 0}, {0, 1}, {0, 0}}};
  float sum = 0.0f;
  const auto add = [&](float& to, int product, std::size_t from, std::size_t count) {
    for (std::size_t i = from; i < std::min(from + count, n); i += core.depth) {
      to = multiply_add(to, &a[kProducts[product][0]][i], &b[kProducts[product][1]][i],
                        static_cast<int>(std::min<std::size_t>(core.depth, n - i)), core.extra);
    }
  };
  switch (how) {
    case Sums::steps_of_8:
      for (std::size_t i = 0; i < n; i += 8) {
        float step = 0.0f;
        for (int product = 0; product < 3; ++product) add(step, product, i, 8);
        sum += step;
      }
      break;
    case Sums::blocks_of_32:
      for (int product = 0; product < 3; ++product) {
        for (std::size_t i = 0; i < n; i += 32) {
          float block = 0.0f;
          add(block, product, i, 32);
          sum += block;
        }
      }
      break;
    case Sums::one:
      for (int product = 0; product < 3; ++product) add(sum, product, 0, n);
  }
  return sum;
}

/// Root mean square of the errors against fp64, of split operands over those of an FMA loop.
double error_beside_fma(int length, bool positive, Sums how, const TensorCore& core) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  double split_square = 0, fma_square = 0;
  for (int turn = 0; turn < 80; ++turn) {
    std::vector<float> x(static_cast<std::size_t>(length)), y(x);
    for (auto* values : {&x, &y}) {
      for (float& value : *values) value = positive ? std::fabs(normal(random)) : normal(random);
    }
    double exact = 0;
    float by_fma = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      exact += double{x[i]} * double{y[i]};
      by_fma = std::fma(x[i], y[i], by_fma);
    }
    split_square += std::pow(sum_of_split(x, y, how, core) - exact, 2);
    fma_square += std::pow(by_fma - exact, 2);
  }
  return std::sqrt(split_square / fma_square);
}

TEST(SplitTf32, SumsAsCloseAsAnFmaLoops) {
  for (const TensorCore& core : kTensorCores) {
    for (const bool positive : {false, true}) {
      for (const int length : {16, 32, 256, 1152}) {
        for (const Sums how : {Sums::steps_of_8, Sums::blocks_of_32}) {
          // NOTE: blocks are Hopper's, for reductions of 256 and more.
          if (how == Sums::blocks_of_32 && (core.depth < 8 || length < 256)) continue;
          EXPECT_LE(error_beside_fma(length, positive, how, core), 2.0)
              << core.name << (positive ? ", positive, " : ", normal, ")
              << (how == Sums::steps_of_8 ? "steps of 8, " : "blocks of 32, ") << length;
        }
      }
    }
  }
}

TEST(SplitTf32, OneAccumulatorDrifts) {
  // Why the kernels do not leave the sums to the tensor cores.
  for (const TensorCore& core : kTensorCores) {
    EXPECT_GT(error_beside_fma(4608, true, Sums::one, core), 20.0) << core.name;
  }
}

}  // namespace
}  // namespace convoy
