// SPDX-License-Identifier: Apache-2.0
//
// The Blackwell templates as a user instantiates them: named configuration, own functor, residual,
// errors.
#include <gtest/gtest.h>

#include <concepts>
#include <cstring>
#include <optional>
#include <type_traits>

#include "convoy/device/sm100/conv2d_fprop.cuh"
#include "support/integer_tensors.hpp"

namespace convoy::sm100 {
namespace {

using bf16 = __nv_bfloat16;
using test::GuardedBuffer;
using test::IntegerTensors;

constexpr auto kConfig = Conv2dConfig<bf16, bf16, bf16>::default_bf16_1sm();

struct AddOneRelu {
  static constexpr bool kEnabled = true;
  static constexpr bool kOnRegisters = true;
  float added = 1.0f;
  template <int kWidth>
  __device__ void operator()(std::int64_t, int, float (&values)[kWidth]) const {
    for (float& value : values) value = fmaxf(value + added, 0.0f);
  }
};

/// Writes what it sees, and the bytes of alignment it is promised, to matrices of its own.
struct RecordingStore {
  static constexpr bool kEnabled = true;
  static constexpr bool kReplacesStore = false;
  bf16* seen;
  int* alignment;
  std::int64_t filters;
  template <int kAlignment, typename Out, int kWidth>
  __device__ void operator()(std::int64_t m, int n, const Out (&values)[kWidth]) const {
    for (int i = 0; i < kWidth; ++i) seen[m * filters + n + i] = values[i];
    const bool aligned = (m * filters + n) * sizeof(Out) % kAlignment == 0;
    alignment[m * filters + n] = aligned ? kAlignment : -1;
  }
};

// The described system's names, on both sides of the residual (docs/kernels-sm100.md has the list).
using DefaultConfig = Conv2dConfig<bf16, bf16, bf16>;
constexpr PackedConfig kPacked = validated_pack<kConfig>();

template <bool kWithSource>
concept SmemAsDescribed = requires(Conv2dSmem<kPacked.tiles, kPacked.pipeline, kWithSource>& smem) {
  { smem.act_tiles() } -> std::same_as<std::uint8_t*>;
  { smem.filter_tiles() } -> std::same_as<std::uint8_t*>;
  { smem.out_tiles() } -> std::same_as<std::uint8_t*>;
  { smem.epi_load_barriers() } -> std::same_as<ptx::Barrier*>;
  { smem.load_order_barrier() } -> std::same_as<ptx::Barrier*>;
};
static_assert(SmemAsDescribed<false> && SmemAsDescribed<true>);
static_assert(requires(Conv2dSmem<kPacked.tiles, kPacked.pipeline, true> & smem) {
  { smem.src_tiles() } -> std::same_as<std::uint8_t*>;
});

using Kernel = Conv2dFpropKernel<kPacked.tiles, kPacked.pipeline, NoComputeOp, NoStoreOp, true>;
static_assert(std::is_function_v<decltype(Kernel::init_barriers)>);
static_assert(std::is_function_v<decltype(Kernel::load_input_tiles)>);
static_assert(std::is_function_v<decltype(Kernel::mma)>);

static_assert(requires(DefaultConfig config, GemmShape shape, int value) {
  config.block_tile_shape = config.mma_shape = config.cluster_shape = shape;
  config.output_tile_shape = shape;
  config.cta_group = config.num_output_stages = config.num_accum_pipeline_stages = value;
  config.num_clc_pipeline_stages = config.k_group_size = config.block_swizzle_size = value;
  config.a_swizzle = config.b_swizzle = config.c_swizzle = config.num_pipeline_stages = value;
  config.register_based_epilogue = true;
});
static_assert(DefaultConfig::accum_type() == DType::fp32);
static_assert(DefaultConfig::default_fp16() == DefaultConfig::default_bf16());
static_assert(requires(Conv2dProblemShape shape, std::int64_t value) {
  shape.batch = shape.in_height = shape.in_width = shape.in_channels = shape.out_channels = value;
  shape.filter_h = shape.filter_w = shape.pad_h = shape.pad_w = shape.stride_h = value;
  shape.stride_w = shape.dilation_h = shape.dilation_w = shape.groups = value;
  value = shape.out_height() + shape.out_width() + shape.gemm_m() + shape.gemm_n();
  value = shape.gemm_k() + shape.num_m_tiles(value) + shape.num_n_tiles(value);
  value = shape.num_k_tiles(value);
});

Conv2dProblemShape problem_shape() {
  return {.batch = 1,
          .in_height = 9,
          .in_width = 10,
          .in_channels = 32,
          .out_channels = 24,
          .filter_h = 3,
          .filter_w = 3,
          .pad_h = 1,
          .pad_w = 1};
}

class Sm100Api : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::on_blackwell()) GTEST_SKIP() << "needs compute capability 10.x, real or virtual";
    activation_.emplace(data_.activation.size() * 2);
    filter_.emplace(data_.filter.size() * 2);
    source_.emplace(data_.source.size() * 2);
    output_.emplace(data_.source.size() * 2);
    activation_->upload(test::encode(data_.activation, DType::bf16).data());
    filter_->upload(test::encode(data_.filter, DType::bf16).data());
    source_->upload(test::encode(data_.source, DType::bf16).data());
    output_->fill_with_nan();
  }

  ConstTensorView source() {
    return {source_->data(), {DType::bf16, Layout::nhwc, {1, 9, 10, 24, 0}}};
  }
  bf16* output() { return static_cast<bf16*>(output_->data()); }
  const bf16* activation() { return static_cast<const bf16*>(activation_->data()); }
  const bf16* filter() { return static_cast<const bf16*>(filter_->data()); }

  // Compare with add-one, ReLU, + beta·source.
  void expect(float added, bool relu, float beta) {
    CONVOY_ASSERT_CUDA(cudaDeviceSynchronize());
    std::vector<double> expected = data_.convolution();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      double value = expected[i] + added;
      if (relu) value = std::max(value, 0.0);
      expected[i] = round_to(DType::bf16, static_cast<float>(value + beta * data_.source[i]));
    }
    EXPECT_TRUE(output_->guards_intact()) << "around output";
    EXPECT_EQ(
        test::difference(output_->download(), expected, DType::bf16, data_.geometry.out_channels),
        "");
  }

  IntegerTensors data_{geometry_of(problem_shape())};
  // Allocated once there is known to be a device.
  std::optional<GuardedBuffer> activation_, filter_, source_, output_;
};

TEST_F(Sm100Api, PlainAndWithAComputeOp) {
  conv2d_fprop<kConfig>(output(), activation(), filter(), problem_shape(), nullptr);
  expect(0.0f, false, 0.0f);
  output_->fill_with_nan();
  conv2d_fprop<kConfig>(output(), activation(), filter(), problem_shape(), AddOneRelu{-9.0f},
                        nullptr);
  expect(-9.0f, true, 0.0f);
}

TEST_F(Sm100Api, ConfigurationAsACallInPlace) {
  conv2d_fprop<Conv2dConfig<bf16, bf16, bf16>::default_bf16_1sm()>(
      output(), activation(), filter(), problem_shape(), AddOneRelu{-9.0f}, nullptr);
  expect(-9.0f, true, 0.0f);
}

TEST_F(Sm100Api, ResidualJoinsAfterTheOp) {
  conv2d_fprop_with_residual<kConfig, true>(output(), activation(), filter(), source(), -0.5f,
                                            problem_shape(), AddOneRelu{-9.0f});
  expect(-9.0f, true, -0.5f);
}

TEST_F(Sm100Api, WithoutTemplateArgumentsTheDefaultConfigurationWithoutResidual) {
  conv2d_fprop_with_residual(output(), activation(), filter(), ConstTensorView(), 1.0f,
                             problem_shape());
  expect(0.0f, false, 0.0f);
}

TEST_F(Sm100Api, StoreOpBesideTheStoreKnowsItsAlignment) {
  const std::size_t elements = data_.source.size();
  GuardedBuffer seen(elements * 2), alignment(elements * 4);
  CONVOY_ASSERT_CUDA(cudaMemset(alignment.data(), 0, alignment.bytes()));
  const RecordingStore store{static_cast<bf16*>(seen.data()), static_cast<int*>(alignment.data()),
                             24};
  conv2d_fprop<kConfig>(output(), activation(), filter(), problem_shape(), AddOneRelu{-9.0f}, store,
                        nullptr);
  expect(-9.0f, true, 0.0f);
  EXPECT_EQ(seen.download(), output_->download());
  const auto bytes = alignment.download();
  for (std::size_t i = 0; i < elements; ++i) {
    int value;
    std::memcpy(&value, bytes.data() + 4 * i, 4);
    ASSERT_EQ(value, i % 8 == 0 ? 16 : 0) << i;
  }
}

TEST_F(Sm100Api, NoResidualAndBetaZeroAreThePlainConvolution) {
  const void* unreadable = reinterpret_cast<const void*>(std::uintptr_t{16});
  conv2d_fprop_with_residual<kConfig, false>(output(), activation(), filter(), unreadable, 1.0f,
                                             problem_shape());
  expect(0.0f, false, 0.0f);
  output_->fill_with_nan();
  conv2d_fprop_with_residual<kConfig, true>(output(), activation(), filter(), unreadable, 0.0f,
                                            problem_shape());
  expect(0.0f, false, 0.0f);
}

TEST_F(Sm100Api, SourceOfAnotherShapeIsRefused) {
  const TensorShape wrong{DType::bf16, Layout::nhwc, {1, 9, 10, 32, 0}};
  try {
    conv2d_fprop_with_residual<kConfig, true>(output(), activation(), filter(),
                                              ConstTensorView(source_->data(), wrong), 1.0f,
                                              problem_shape());
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument);
    EXPECT_STREQ(error.what(),
                 "source is bf16 [1, 9, 10, 32], but the output is bf16 [1, 9, 10, 24]");
  }
  try {
    conv2d_fprop_with_residual<kConfig, true>(output(), activation(), filter(), source_->data(),
                                              1.0f, problem_shape());
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument);
    EXPECT_STREQ(error.what(), "source has no shape; legal: the output's, bf16 [1, 9, 10, 24]");
  }
}

TEST_F(Sm100Api, VolumesWithACacheAnOpAndAResidual) {
  Conv3dProblemShape shape;
  shape.batch = 2;
  shape.in_depth = 2;
  shape.in_height = 7;
  shape.in_width = 9;
  shape.in_channels = 32;
  shape.out_channels = 24;
  shape.filter = {3, 3, 3};
  shape.pad_begin = shape.pad_end = {0, 1, 1};
  shape.cached_frames = 2;
  const IntegerTensors volume(geometry_of(shape));
  GuardedBuffer activation(volume.activation.size() * 2), cache(volume.cache.size() * 2);
  GuardedBuffer filter(volume.filter.size() * 2), source(volume.source.size() * 2);
  GuardedBuffer output(volume.source.size() * 2);
  activation.upload(test::encode(volume.activation, DType::bf16).data());
  cache.upload(test::encode(volume.cache, DType::bf16).data());
  filter.upload(test::encode(volume.filter, DType::bf16).data());
  source.upload(test::encode(volume.source, DType::bf16).data());
  const auto read = [](const GuardedBuffer& b) { return static_cast<const bf16*>(b.data()); };
  const auto run = [&](const ConstTensorView& residual, float beta) {
    output.fill_with_nan();
    conv3d_fprop_with_residual<kConfig, true>(static_cast<bf16*>(output.data()), read(activation),
                                              read(cache), read(filter), residual, beta, shape,
                                              AddOneRelu{-9.0f});
  };
  const auto expect_beta = [&](float beta) {
    CONVOY_ASSERT_CUDA(cudaDeviceSynchronize());
    std::vector<double> expected = volume.convolution();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i] = std::max(expected[i] - 9.0, 0.0) + beta * volume.source[i];
      expected[i] = round_to(DType::bf16, static_cast<float>(expected[i]));
    }
    EXPECT_TRUE(output.guards_intact()) << "around output";
    EXPECT_EQ(test::difference(output.download(), expected, DType::bf16, 24), "");
  };
  run(ConstTensorView(source.data(), {DType::bf16, Layout::ndhwc, {2, 2, 7, 9, 24}}), 0.5f);
  expect_beta(0.5f);
  run(reinterpret_cast<const void*>(std::uintptr_t{16}), 0.0f);  // Not read.
  expect_beta(0.0f);
  output.fill_with_nan();
  conv3d_fprop<kConfig>(static_cast<bf16*>(output.data()), read(activation), read(cache),
                        read(filter), shape, AddOneRelu{-9.0f});
  expect_beta(0.0f);
  try {
    run(ConstTensorView(source.data(), {DType::bf16, Layout::ndhwc, {2, 2, 7, 9, 32}}), 1.0f);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument);
    EXPECT_STREQ(error.what(),
                 "source is bf16 [2, 2, 7, 9, 32], but the output is bf16 [2, 2, 7, 9, 24]");
  }
}

TEST_F(Sm100Api, ConstraintsAreErrorsWithTheirValue) {
  Conv2dProblemShape problem = problem_shape();
  problem.out_channels = 12;
  try {
    conv2d_fprop<kConfig>(output(), activation(), filter(), problem, AddOneRelu{}, nullptr);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::unsupported);
    EXPECT_NE(
        std::string(error.what()).find("out_channels = 12 with hooks; legal: a multiple of 8"),
        std::string::npos)
        << error.what();
  }
  problem = problem_shape();
  problem.stride_h = 9;
  try {
    conv2d_fprop<kConfig>(output(), activation(), filter(), problem, nullptr);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::unsupported);
    EXPECT_NE(std::string(error.what()).find("stride of height = 9; legal: 1 to 8"),
              std::string::npos);
  }
}

TEST(Sm100ApiHost, ZeroSizedGemmReturnsBeforeAnyDescriptor) {
  Conv2dProblemShape problem = problem_shape();
  problem.batch = 0;
  // Null pointers would be refused by the encoder.
  EXPECT_NO_THROW(conv2d_fprop<kConfig>(nullptr, nullptr, nullptr, problem, nullptr));
  problem = problem_shape();
  problem.out_channels = 0;
  EXPECT_NO_THROW((conv2d_fprop_with_residual<kConfig, true>(nullptr, nullptr, nullptr, nullptr,
                                                             1.0f, problem)));
}

}  // namespace
}  // namespace convoy::sm100
