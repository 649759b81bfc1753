// SPDX-License-Identifier: Apache-2.0
//
// Activations of the Hopper kernel's epilogue against double precision, on instances of the
// library: one of each formula and each type.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "core/text.hpp"
#include "kernels/sm90/host.hpp"
#include "support/integer_tensors.hpp"

namespace convoy::test {
namespace {

GuardedBuffer upload(const std::vector<float>& values, DType dtype) {
  GuardedBuffer buffer(values.size() * size_of(dtype));
  buffer.upload(encode(values, dtype).data());
  return buffer;
}

/// The first instance that has every activation and for which `is` holds.
template <typename Is>
const sm90::Instance& instance_where(DType in, DType out, const Is& is) {
  for (const sm90::Instance& instance : sm90::instances()) {
    const sm90::Config& c = instance.config;
    if (instance.has(sm90::EpiloguePath::curved) && c.in == in && c.out == out && is(c))
      return instance;
  }
  throw std::logic_error("no such instance");
}
bool in_turns(const sm90::Config& c) {
  return c.is_pingpong() && c.input == sm90::Input::runs && c.cluster_n == 1;
}
bool swapped(const sm90::Config& c) {
  return c.is_swapped() && !c.is_pingpong();
}
bool together(const sm90::Config& c) {
  return c.schedule == sm90::Schedule::cooperative && !c.is_swapped();
}

bool shared_by_ctas(const sm90::Config& c) {
  return c.splits_k();
}

class Sm90Activations : public testing::Test {
 protected:
  void SetUp() override {
    if (!on_hopper()) GTEST_SKIP() << "no Hopper GPU";
  }
};

void launch_instance(const sm90::Instance& instance, const Conv2dProblemShape& problem,
                     const RunPointers& pointers, int splits = 1) {
  const NoComputeOp compute;
  const NoStoreOp store;
  sm90::prepare(instance);
  sm90::LaunchOptions options;
  options.multiprocessors = 8;
  options.splits = splits;
  sm90::launch(sm90::plan_launch(instance, geometry_of(problem), options), pointers, &compute,
               &store, nullptr);
  CONVOY_ASSERT_CUDA(cudaDeviceSynchronize());
}

// A 1x1 convolution with the identity, so that the output is the activation of the input; `splits`
// times as many channels, the last of which count. `unit`: of rounding to the output type.
void check_activations(const sm90::Instance& instance, double unit, int splits = 1) {
  SCOPED_TRACE(sm90::name_of(instance));
  const DType in = instance.config.in, out = instance.config.out;
  constexpr std::int64_t kFilters = 64;
  constexpr std::int64_t kPixels = 64;
  const std::int64_t channels = splits * kFilters, skipped = channels - kFilters;
  const Conv2dProblemShape problem{
      .in_height = 8, .in_width = 8, .in_channels = channels, .out_channels = kFilters};
  std::vector<float> values(kPixels * kFilters), a(kPixels * channels, 0.5f);
  std::vector<float> b(kFilters * channels);
  for (std::int64_t i = 0; i < kPixels * kFilters; ++i) {
    // -8 to 8 in steps of 1/256; every seventh near zero.
    const float x = (static_cast<float>(i) - 2048.0f) / 256.0f;
    values[i] = round_to(in, i % 7 == 0 ? x / 1024.0f : x);
    a[i / kFilters * channels + skipped + i % kFilters] = values[i];
  }
  for (std::int64_t i = 0; i < kFilters; ++i) b[i * channels + skipped + i] = 1.0f;
  const GuardedBuffer activation = upload(a, in), filter = upload(b, in);
  GuardedBuffer output(values.size() * size_of(out));
  for (const Activation kind :
       {Activation::none, Activation::relu, Activation::leaky_relu, Activation::gelu,
        Activation::gelu_tanh, Activation::silu, Activation::sigmoid, Activation::tanh,
        Activation::hardswish, Activation::clamp}) {
    RunPointers pointers;
    pointers.output = output.data();
    pointers.activation = activation.data();
    pointers.filter = filter.data();
    pointers.epilogue.activation = kind;
    pointers.epilogue.parameter_a = -1.5f;
    pointers.epilogue.parameter_b = 2.5f;
    output.fill_with_nan();
    launch_instance(instance, problem, pointers, splits);
    reference::Expectation want;
    for (const float x : values) {
      want.value.push_back(reference::activate_fp64(x, kind, -1.5, 2.5));
      want.bound.push_back(unit * std::abs(want.value.back()) + 0x1p-20);
    }
    const reference::Comparison found = reference::compare(output.download().data(), out, want);
    EXPECT_TRUE(found.pass) << to_string(kind) << " of "
                            << values[static_cast<std::size_t>(found.worst)] << " is "
                            << found.worst_got << ", expected " << found.worst_expected;
  }
}
TEST_F(Sm90Activations, InBf16) {
  check_activations(instance_where(DType::bf16, DType::bf16, in_turns), 0x1p-8);
}
TEST_F(Sm90Activations, InFp16) {
  check_activations(instance_where(DType::fp16, DType::fp16, in_turns), 0x1p-11);
}
TEST_F(Sm90Activations, OfSwappedTiles) {
  check_activations(instance_where(DType::bf16, DType::bf16, swapped), 0x1p-8);
}
TEST_F(Sm90Activations, OfTilesSharedByCtas) {
  check_activations(instance_where(DType::bf16, DType::bf16, shared_by_ctas), 0x1p-8, 4);
}
TEST_F(Sm90Activations, InFp32) {
  // No approximation but SiLU's. NOTE: in test builds one type of a tile has all paths.
  for (const DType in : {DType::bf16, DType::fp16}) {
    for (const sm90::Instance& instance : sm90::instances()) {
      if (instance.config.in != in || instance.config.out != DType::fp32) continue;
      if (instance.has(sm90::EpiloguePath::general) && instance.has(sm90::EpiloguePath::fused)) {
        return check_activations(instance, 0x1p-19);
      }
    }
  }
  FAIL() << "no instance with fp32 outputs has every path";
}

// ReLU passes a NaN through: that of a pixel is in all of its sums.
void check_relu_of_nan(const sm90::Instance& instance) {
  SCOPED_TRACE(sm90::name_of(instance));
  const DType type = instance.config.in;
  constexpr std::int64_t kPixels = 64, kChannels = 64, kNanPixel = 37;
  const Conv2dProblemShape problem{
      .in_height = 8, .in_width = 8, .in_channels = kChannels, .out_channels = kChannels};
  std::vector<float> in(kPixels * kChannels), identity(kChannels * kChannels);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i % 7) - 3.0f;
  in[kNanPixel * kChannels + 5] = std::numeric_limits<float>::quiet_NaN();
  for (std::int64_t c = 0; c < kChannels; ++c) identity[c * kChannels + c] = 1.0f;
  const GuardedBuffer activation = upload(in, type), filter = upload(identity, type);
  GuardedBuffer output(in.size() * 2);
  RunPointers pointers;
  pointers.output = output.data();
  pointers.activation = activation.data();
  pointers.filter = filter.data();
  pointers.epilogue.activation = Activation::relu;
  launch_instance(instance, problem, pointers);
  const std::vector<unsigned char> got = output.download();
  for (std::int64_t i = 0; i < kPixels * kChannels; ++i) {
    const double y = load_element(got.data(), i, type);
    if (i / kChannels == kNanPixel) {
      EXPECT_TRUE(std::isnan(y)) << "filter " << i % kChannels << ": " << y;
    } else {
      EXPECT_EQ(y, std::max(0.0f, in[static_cast<std::size_t>(i)])) << "output " << i;
    }
  }
}
TEST_F(Sm90Activations, ReluOfNan) {
  check_relu_of_nan(instance_where(DType::bf16, DType::bf16, in_turns));
  check_relu_of_nan(instance_where(DType::bf16, DType::bf16, swapped));
  check_relu_of_nan(instance_where(DType::bf16, DType::bf16, shared_by_ctas));
}

// SiLU or GELU of every 16-bit value, infinities and NaNs among them, next to values of any other
// size: the bias or the residual is the activation's argument, the convolution is zero.
void check_every_value(const sm90::Instance& instance, Activation kind, bool by_residual) {
  SCOPED_TRACE(text(sm90::name_of(instance), ", ", to_string(kind)));
  const DType type = instance.config.in;
  constexpr std::int64_t kChannels = 8;
  constexpr std::size_t kValues = 1 << 16;
  const Conv2dProblemShape problem{
      .in_height = 1, .in_width = 1, .in_channels = kChannels, .out_channels = kValues};
  std::vector<std::uint16_t> in(kValues);
  for (std::size_t i = 0; i < kValues; ++i) in[i] = static_cast<std::uint16_t>(i * 40503);
  const GuardedBuffer zeros = upload(std::vector<float>(kValues * kChannels), type);
  GuardedBuffer values(kValues * 2), output(kValues * 2);
  values.upload(in.data());
  RunPointers pointers;
  pointers.output = output.data();
  pointers.activation = pointers.filter = zeros.data();
  pointers.epilogue.activation = kind;
  if (by_residual) {
    pointers.epilogue.residual = values.data();
    pointers.epilogue.order = ResidualOrder::before_activation;
  } else {
    pointers.epilogue.bias = values.data();
    pointers.epilogue.bias_dtype = type;
  }
  launch_instance(instance, problem, pointers);
  const std::vector<unsigned char> got = output.download();
  int not_nearest = 0;
  for (std::size_t i = 0; i < kValues; ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const double x = load_element(in.data(), at, type);
    const double want = reference::activate_fp64(x, kind, 0, 0);
    const double y = load_element(got.data(), at, type);
    if (std::isnan(want) || std::isinf(want)) {
      EXPECT_TRUE(std::isnan(want) ? std::isnan(y) : y == want) << "of " << x << ": " << y;
      continue;
    }
    // Rounding to the output type, and what the special-function unit may be off before it. It
    // flushes fp32 subnormals to zero. GELU is a polynomial's (common/gates.hpp).
    const double unit = type == DType::bf16 ? 0x1p-8 : 0x1p-11;
    const double subnormal = type == DType::bf16 ? 0x1p-118 : 0x1p-25;
    const double floor = kind == Activation::gelu        ? 0.04 * 0x1p-20 + subnormal
                         : kind == Activation::gelu_tanh ? 0x1p-50 + subnormal  // fp64's 1 + tanh.
                                                         : subnormal;
    const double off = kind == Activation::gelu        ? 0.04 * 0x1p-12
                       : kind == Activation::gelu_tanh ? 0x1p-14  // The argument of 2^t, up to 126.
                                                       : unit * 0x1p-8;
    // NOTE: in place SiLU multiplies by log2(e) first, which overflows (silu_of_exponent).
    if (kind == Activation::silu && !by_residual && std::abs(x) > 0x1.62p127) continue;
    EXPECT_NEAR(y, want, (unit + off) * std::abs(want) + floor) << "of " << x;
    not_nearest += y != static_cast<double>(round_to(type, static_cast<float>(want)));
  }
  // Values whose fp64 result lies so near the middle between two neighbours that fp32 picks the
  // other one.
  if (kind == Activation::silu) {
    EXPECT_LT(not_nearest, 40) << "of 65536";
  }
}
// Each gate as the instance has it: without a residual, and SiLU with one too.
void check_gates(const sm90::Instance& instance) {
  for (const Activation kind : {Activation::silu, Activation::gelu, Activation::gelu_tanh}) {
    check_every_value(instance, kind, false);
  }
  check_every_value(instance, Activation::silu, true);
}
TEST_F(Sm90Activations, GatesOfEveryBf16InTurns) {
  check_gates(instance_where(DType::bf16, DType::bf16, in_turns));
}
TEST_F(Sm90Activations, GatesOfEveryBf16) {
  check_gates(instance_where(DType::bf16, DType::bf16, swapped));
}
TEST_F(Sm90Activations, GatesOfEveryFp16) {
  check_gates(instance_where(DType::fp16, DType::fp16, together));
}

}  // namespace
}  // namespace convoy::test
