// SPDX-License-Identifier: Apache-2.0
//
// fp32 to the accuracy of fp32 on tensor cores: every kernel that splits its operands, beside an
// FMA loop, with numbers that TF32 does not hold, and with infinities and NaNs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "convoy/info.hpp"
#include "convoy/plan.hpp"
#include "support/guarded_buffer.hpp"

namespace convoy::test {
namespace {

/// A convolution without padding, dense KRSC, on the host.
struct Tensors {
  Conv2dProblemShape shape;
  std::vector<float> activation, filter;

  explicit Tensors(std::int64_t pixels, std::int64_t channels, std::int64_t filters,
                   std::int64_t extent) {
    shape = {.batch = 1,
             .in_height = extent + 1,
             .in_width = pixels + extent - 1,
             .in_channels = channels,
             .out_channels = filters,
             .filter_h = extent,
             .filter_w = extent};
    activation.resize(static_cast<std::size_t>(shape.in_height * shape.in_width * channels));
    filter.resize(static_cast<std::size_t>(filters * extent * extent * channels));
  }

  /// Every output's sum, by `add(sum, x, w)`.
  template <typename Sum, typename Add>
  std::vector<Sum> sums(const Add& add) const {
    std::vector<Sum> out;
    for (std::int64_t p = 0; p < shape.in_height - shape.filter_h + 1; ++p) {
      for (std::int64_t q = 0; q < shape.in_width - shape.filter_w + 1; ++q) {
        for (std::int64_t k = 0; k < shape.out_channels; ++k) {
          Sum sum = 0;
          const std::int64_t row = shape.filter_w * shape.in_channels;
          for (std::int64_t r = 0; r < shape.filter_h; ++r) {
            const float* const x = &activation[((p + r) * shape.in_width + q) * shape.in_channels];
            const float* const w = &filter[(k * shape.filter_h + r) * row];
            for (std::int64_t i = 0; i < row; ++i) sum = add(sum, x[i], w[i]);
          }
          out.push_back(sum);
        }
      }
    }
    return out;
  }
  std::vector<double> exact() const {
    return sums<double>([](double sum, float x, float w) { return sum + double{x} * double{w}; });
  }
  std::vector<float> by_fma() const {
    return sums<float>([](float sum, float x, float w) { return std::fma(x, w, sum); });
  }
};

std::vector<float> floats_of(const GuardedBuffer& buffer) {
  const std::vector<unsigned char> bytes = buffer.download();
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// What a kernel makes of them; `packed`: of a packed filter.
std::vector<float> run(const Tensors& t, const std::string& kernel, bool packed) {
  const Plan plan = convoy::plan(
      t.shape,
      {.dtype = DType::fp32, .device = Device::cuda, .packed_filter = packed, .kernel = kernel});
  EXPECT_FALSE(plan.info().tf32) << kernel;
  GuardedBuffer activation(t.activation.size() * sizeof(float));
  GuardedBuffer filter(t.filter.size() * sizeof(float));
  GuardedBuffer output(static_cast<std::size_t>(t.shape.gemm_m() * t.shape.out_channels) *
                       sizeof(float));
  GuardedBuffer workspace(plan.workspace_bytes());
  activation.upload(t.activation.data());
  filter.upload(t.filter.data());
  RunArguments arguments;
  arguments.output = output.data();
  arguments.activation = ConstTensorView(activation.data());
  PackedFilter holds;
  if (packed) {
    holds = plan.pack_filter(filter.data(), FilterLayout::krsc);
    arguments.filter = holds;
  } else {
    arguments.filter = filter.data();
  }
  if (plan.workspace_bytes() > 0) arguments.workspace = workspace.data();
  plan.run(arguments, nullptr);
  const std::vector<float> result = floats_of(output);
  EXPECT_TRUE(output.guards_intact() && workspace.guards_intact()) << kernel;
  return result;
}

/// Call `body(kernel, result)` for every kernel that splits fp32 operands and takes the problem,
/// with filters dense and packed.
template <typename Body>
void for_each_result(const Tensors& t, const Body& body,
                     std::initializer_list<bool> filters = {false, true}) {
  int kernels = 0;
  for (const bool packed : filters) {
    const PlanOptions options{
        .dtype = DType::fp32, .device = Device::cuda, .packed_filter = packed};
    for (const Candidate& candidate : candidates(t.shape, options)) {
      if (candidate.kernel.find("tf32x3") == std::string::npos || !candidate.reason.empty())
        continue;
      SCOPED_TRACE(candidate.kernel + (packed ? ", packed" : ""));
      body(candidate.kernel, run(t, candidate.kernel, packed));
      ++kernels;
    }
  }
  EXPECT_GE(kernels, 4 * static_cast<int>(filters.size()));
}

/// Root mean square and largest of the errors.
struct Errors {
  double rms = 0, largest = 0;
};
Errors errors_of(const std::vector<float>& got, const std::vector<double>& exact) {
  Errors errors;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double error = std::fabs(got[i] - exact[i]);
    errors.rms += error * error;
    errors.largest = std::max(errors.largest, error);
  }
  errors.rms = std::sqrt(errors.rms / static_cast<double>(exact.size()));
  return errors;
}

class SplitOperands : public ::testing::Test {
 protected:
  void SetUp() override {
    if (compute_capability() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

enum class Data { normal, positive, cancelling, magnitudes };

void fill(Tensors& t, Data data) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (auto* values : {&t.activation, &t.filter}) {
    for (float& value : *values) {
      value = normal(random);
      if (data == Data::positive) value = std::fabs(value);
      // NOTE: eight decades; the largest products settle the error.
      if (data == Data::magnitudes) value *= std::exp2(static_cast<float>(random() % 27));
    }
  }
  if (data != Data::cancelling) return;
  // The second half of a pixel's channels undoes the first but for the last bits.
  const std::size_t channels = static_cast<std::size_t>(t.shape.in_channels), half = channels / 2;
  for (std::size_t i = 0; i < t.activation.size(); ++i) {
    if (i % channels >= half) t.activation[i] = -t.activation[i - half] * (1.0f + 0x1p-18f);
  }
  for (std::size_t i = 0; i < t.filter.size(); ++i) {
    if (i % channels >= half) t.filter[i] = t.filter[i - half];
  }
}

TEST_F(SplitOperands, ErrAtMostTwiceAsFarAsAnFmaLoop) {
  bool packed = false;  // In turns: every kind of data and, over two of them, every shape has both.
  for (const Data data : {Data::normal, Data::positive, Data::cancelling, Data::magnitudes}) {
    for (Tensors t : {Tensors(40, 32, 20, 1), Tensors(37, 64, 40, 1), Tensors(16, 32, 36, 3)}) {
      SCOPED_TRACE("data " + std::to_string(static_cast<int>(data)) + ", channels " +
                   std::to_string(t.shape.in_channels));
      fill(t, data);
      const std::vector<double> exact = t.exact();
      const Errors fma = errors_of(t.by_fma(), exact);
      for_each_result(t,
                      [&](const std::string&, const std::vector<float>& result) {
                        const Errors split = errors_of(result, exact);
                        EXPECT_LE(split.rms, 2 * fma.rms);
                        EXPECT_LE(split.largest, 2 * fma.largest);
                        EXPECT_GT(split.rms, 0.0);
                      },
                      {packed});
      packed = !packed;
    }
  }
}

TEST_F(SplitOperands, ExactOnIntegersThatTf32DoesNotHold) {
  Tensors t(9, 260, 24, 1);
  std::mt19937 random(5);
  for (float& x : t.activation)
    x = static_cast<float>(static_cast<int>(random() % (1 << 19)) - (1 << 18));
  for (float& w : t.filter) w = static_cast<float>(static_cast<int>(random() % 3) - 1);
  const std::vector<double> exact = t.exact();
  for_each_result(t, [&](const std::string&, const std::vector<float>& result) {
    EXPECT_TRUE(std::equal(result.begin(), result.end(), exact.begin()));
  });
  // The same of the filter.
  for (std::size_t i = 0; i < t.filter.size(); ++i) t.filter[i] *= i % 3 == 0 ? 4099.0f : 1.0f;
  for (float& x : t.activation) x = std::trunc(x * 0x1p-15f);
  const std::vector<double> filters = t.exact();
  for_each_result(t, [&](const std::string&, const std::vector<float>& result) {
    EXPECT_TRUE(std::equal(result.begin(), result.end(), filters.begin()));
  });
}

TEST_F(SplitOperands, InfinitiesAndNans) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float largest = std::numeric_limits<float>::max();
  Tensors t(36, 64, 24, 3);
  fill(t, Data::normal);
  const auto pixel = [&](std::int64_t number, std::int64_t channel) -> float& {
    return t.activation[static_cast<std::size_t>(number * t.shape.in_channels + channel)];
  };
  pixel(2, 5) = infinity;
  pixel(9, 40) = -infinity;
  pixel(15, 63) = nan;
  pixel(21, 0) = largest;  // Rounds up to an infinity as TF32; sums of it do not.
  pixel(22, 7) = -largest / 2;
  pixel(30, 8) = infinity;  // With a zero, and with a number that TF32 holds.
  for (std::size_t i = 0; i < t.filter.size(); ++i) {
    if (i % 64 == 8 && i / 576 % 3 == 0) t.filter[i] = i / 576 % 2 == 0 ? 0.0f : -0.5f;
    if (i % 64 == 0 || i % 64 == 7) t.filter[i] *= 0x1p-6f;
  }
  t.filter[5 * 576 + 100] = infinity;  // A filter of its own.
  t.filter[7 * 576 + 101] = nan;
  t.filter[9 * 576 + 130] = largest;
  const std::vector<float> expected = t.by_fma();
  const std::vector<double> exact = t.exact();
  int infinities = 0, nans = 0;
  for (const float x : expected) {
    infinities += std::isinf(x) ? 1 : 0;
    nans += std::isnan(x) ? 1 : 0;
  }
  EXPECT_GT(infinities, 50);
  EXPECT_GT(nans, 50);
  for_each_result(t, [&](const std::string&, const std::vector<float>& result) {
    int wrong = 0;
    for (std::size_t i = 0; i < result.size(); ++i) {
      // NOTE: where the largest numbers cancel, an FMA loop errs by 1e-5 too.
      const bool is_near = std::fabs(result[i] - exact[i]) <= 1e-4 * std::fabs(exact[i]) + 1e-4;
      const bool is_right = std::isnan(expected[i])   ? std::isnan(result[i])
                            : std::isinf(expected[i]) ? result[i] == expected[i]
                                                      : is_near;
      wrong += is_right ? 0 : 1;
    }
    EXPECT_EQ(wrong, 0);
  });
}

}  // namespace
}  // namespace convoy::test
