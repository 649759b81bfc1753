// SPDX-License-Identifier: Apache-2.0
//
// Q-slicing and explicit im2col + matmul against an exact integer reference, on whichever of
// Hopper and Blackwell the device is, real or virtual.
#include <gtest/gtest.h>

#include <functional>

#include "kernel_case.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/composed/candidates.hpp"
#include "kernels/composed/folded_stride.hpp"
#include "kernels/composed/joined_groups.hpp"
#include "kernels/composed/padded_channels.hpp"
#include "kernels/composed/padded_copy.hpp"
#include "kernels/sm100/candidates.hpp"
#include "kernels/sm90/candidates.hpp"
#include "support/integer_tensors.hpp"

namespace convoy {
namespace {

using test::GuardedBuffer;
using test::IntegerTensors;
using namespace composed;

// The implicit-GEMM kernels of this build.
InnerKernels inner_kernels() {
  static const CandidateList all = [] {
    CandidateList list;
#ifdef CONVOY_WITH_SM100
    sm100::register_kernels(list);
#endif
#ifdef CONVOY_WITH_SM90
    sm90::register_kernels(list);
#endif
    return list;
  }();
  return InnerKernels(all);
}

DeviceInfo current_device() {
  DeviceInfo device;
  device.kind = Device::cuda;
  device.index = 0;
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
  cudaDeviceGetAttribute(&device.multiprocessors, cudaDevAttrMultiProcessorCount, 0);
  device.compute_capability = 10 * major + minor;
  int shared = 0;
  cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
  device.shared_memory = static_cast<std::size_t>(shared);
  return device;
}

PlanRequest request_for(const ConvGeometry& geometry, DType dtype = DType::bf16) {
  PlanRequest request;
  request.geometry = geometry;
  request.dtype = request.output_dtype = dtype;
  request.device = current_device();
  return request;
}

// Plan, run and compare every output bit.
void run_and_compare(const KernelCandidate& candidate, PlanRequest request, bool packed,
                     bool with_epilogue, FilterLayout layout = FilterLayout::ktrsc) {
  request.packed_filter = packed;
  if (with_epilogue) {
    request.epilogue = {.bias = true, .activation = Activation::relu, .residual = true};
  }
  const Judgement judgement = candidate.judge(request);
  ASSERT_EQ(judgement.refusal, "");
  EXPECT_GT(judgement.estimated_us, 0.0);
  const auto plan = candidate.make(request);
  const ConvGeometry& g = request.geometry;
  const IntegerTensors problem(g);
  const std::size_t bytes = size_of(request.dtype);
  GuardedBuffer activation(problem.activation.size() * bytes), cache(problem.cache.size() * bytes);
  GuardedBuffer filter(problem.filter.size() * bytes), bias(problem.bias.size() * 4);
  GuardedBuffer source(problem.source.size() * bytes), output(problem.source.size() * bytes);
  GuardedBuffer workspace(plan->workspace_bytes());
  GuardedBuffer packed_filter(plan->packed_filter_bytes());
  activation.upload(test::encode(problem.activation, request.dtype).data());
  cache.upload(test::encode(problem.cache, request.dtype).data());
  filter.upload(test::encode(problem.filter, request.dtype).data());
  bias.upload(problem.bias.data());
  source.upload(test::encode(problem.source, request.dtype).data());
  output.fill_with_nan();
  workspace.fill_with_nan();
  packed_filter.fill_with_nan();

  RunPointers pointers;
  pointers.output = output.data();
  pointers.activation = activation.data();
  pointers.cache = g.cached_frames > 0 ? cache.data() : nullptr;
  pointers.filter = filter.data();
  if (packed) {
    plan->pack_filter(packed_filter.data(), filter.data(), layout, nullptr);
    pointers.filter = packed_filter.data();
  }
  pointers.workspace = workspace.data();
  if (with_epilogue) {
    pointers.epilogue.bias = bias.data();
    pointers.epilogue.activation = Activation::relu;
    pointers.epilogue.residual = source.data();
    pointers.epilogue.beta = -0.5f;
  }
  plan->run(pointers, nullptr);
  CONVOY_ASSERT_CUDA(cudaDeviceSynchronize());

  std::vector<double> expected = problem.convolution();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    double value = expected[i];
    if (with_epilogue) {
      value += problem.bias[i % static_cast<std::size_t>(g.out_channels)];
      value = (value <= 0 ? 0 : value) - 0.5 * problem.source[i];
    }
    expected[i] = round_to(request.dtype, static_cast<float>(value));
  }
  EXPECT_TRUE(output.guards_intact()) << "around output";
  EXPECT_TRUE(workspace.guards_intact()) << "around workspace";
  EXPECT_TRUE(packed_filter.guards_intact()) << "around packed filter";
  EXPECT_EQ(test::difference(output.download(), expected, request.dtype, g.out_channels), "");
}

class Composed : public testing::Test {
 protected:
  void SetUp() override {
    const int capability = current_device().compute_capability;
    if (capability != 90 && capability / 10 != 10) {
      GTEST_SKIP() << "needs compute capability 9.0 or 10.x, real or virtual";
    }
  }
};

ConvGeometry volume(std::int64_t n, std::array<std::int64_t, 3> in, std::int64_t c, std::int64_t k,
                    std::array<std::int64_t, 3> filter, std::array<std::int64_t, 3> pad = {},
                    const std::function<void(Conv3dProblemShape&)>& change = {}) {
  return test::conv3d(n, in, c, k, filter, pad, pad, 0, change);
}

ConvGeometry image(const std::function<void(Conv2dProblemShape&)>& change) {
  Conv2dProblemShape p{.batch = 1,
                       .in_height = 9,
                       .in_width = 11,
                       .in_channels = 32,
                       .out_channels = 24,
                       .filter_h = 3,
                       .filter_w = 3,
                       .pad_h = 1,
                       .pad_w = 1};
  change(p);
  return geometry_of(p);
}

// ---- Q-slicing ----------------------------------------------------------------------------------

TEST_F(Composed, QsliceSumsDepthsInFp32) {
  const auto candidate = make_qslice_candidate(inner_kernels());
  const ConvGeometry cases[] = {
      volume(1, {4, 8, 9}, 32, 40, {3, 3, 3}, {0, 1, 1}),
      volume(2, {3, 7, 6}, 16, 24, {2, 3, 1}, {0, 1, 0}),
      volume(2, {3, 5, 5}, 8, 3, {2, 3, 3}, {0, 1, 1}),
      volume(1, {5, 6, 6}, 32, 32, {5, 1, 3}, {0, 0, 2}),
  };
  for (const ConvGeometry& g : cases) {
    for (const bool packed : {false, true}) {
      SCOPED_TRACE(text("T = ", g.filter[0], ", K = ", g.out_channels, packed ? ", packed" : ""));
      run_and_compare(*candidate, request_for(g), packed, false);
      run_and_compare(*candidate, request_for(g), packed, true);
    }
  }
  run_and_compare(*candidate, request_for(cases[0], DType::fp16), false, true);
}

// A filter whose depths cancel: partial sums of 10^3..10^5 that bf16 would round, total exact.
TEST_F(Composed, QsliceNeverRoundsPartialSums) {
  const ConvGeometry g = volume(1, {2, 8, 8}, 64, 16, {2, 3, 3}, {0, 1, 1});
  IntegerTensors problem(g);
  for (float& x : problem.activation) x = 7.0f;
  const std::int64_t slice = g.filter_elements() / g.out_channels / 2;
  for (std::int64_t i = 0; i < g.filter_elements(); ++i) {
    const std::int64_t t = i / slice % 2;
    problem.filter[static_cast<std::size_t>(i)] = t == 0 ? 13.0f : -13.0f;
  }
  for (std::int64_t k = 0; k < g.out_channels; ++k) {  // One tap more in depth 1.
    problem.filter[static_cast<std::size_t>(k * 2 * slice + slice + 4 * g.in_channels)] = -12.0f;
  }
  const PlanRequest request = request_for(g);
  const auto plan = make_qslice_candidate(inner_kernels())->make(request);
  GuardedBuffer activation(problem.activation.size() * 2), filter(problem.filter.size() * 2);
  GuardedBuffer output(problem.source.size() * 2), workspace(plan->workspace_bytes());
  activation.upload(test::encode(problem.activation, DType::bf16).data());
  filter.upload(test::encode(problem.filter, DType::bf16).data());
  RunPointers pointers;
  pointers.output = output.data();
  pointers.activation = activation.data();
  pointers.filter = filter.data();
  pointers.workspace = workspace.data();
  plan->run(pointers, nullptr);
  CONVOY_ASSERT_CUDA(cudaDeviceSynchronize());
  const std::vector<double> expected = problem.convolution();
  EXPECT_EQ(expected[0], 7.0);  // One tap of 7 · 1; a partial sum in bf16 would lose it.
  EXPECT_EQ(test::difference(output.download(), expected, DType::bf16, g.out_channels), "");
}

TEST(QsliceGate, SaysWhichConditionFails) {
  const auto reason = [](const ConvGeometry& g, DType dtype = DType::bf16) {
    PlanRequest request;
    request.geometry = g;
    request.dtype = dtype;
    return qslice_refusal(request);
  };
  const std::array<std::int64_t, 3> in = {4, 8, 8};
  EXPECT_EQ(reason(volume(1, in, 16, 8, {3, 3, 3})), "");
  EXPECT_EQ(reason(volume(1, in, 12, 8, {3, 3, 3})),
            "in_channels = 12; legal: a multiple of 8; nearest: 16");
  EXPECT_EQ(reason(volume(1, in, 16, 8, {1, 3, 3})),
            "filter depth T = 1; legal: at least 2; nearest: 2");
  EXPECT_EQ(reason(volume(1, in, 16, 8, {3, 1, 1})),
            "filter R·S = 1; legal: at least 2; nearest: 2");
  EXPECT_EQ(reason(volume(1, in, 16, 8, {3, 3, 3}, {1, 1, 1})),
            "padding of depth = 1, 1; legal: 0, 0");
  EXPECT_EQ(reason(volume(1, in, 16, 8, {3, 3, 3}, {}, [](auto& p) { p.stride[1] = 2; })),
            "stride of height = 2; legal: 1");
  EXPECT_EQ(reason(volume(1, in, 16, 8, {2, 2, 2}, {}, [](auto& p) { p.dilation[0] = 2; })),
            "dilation of depth = 2; legal: 1");
  EXPECT_EQ(reason(volume(1, in, 16, 8, {3, 3, 3}, {}, [](auto& p) { p.groups = 2; })),
            "groups = 2; legal: 1");
  EXPECT_EQ(reason(volume(1, in, 16, 8, {3, 3, 3}, {}, [](auto& p) { p.cached_frames = 2; })),
            "cached_frames = 2; legal: 0");
  EXPECT_EQ(reason(volume(1, in, 16, 8, {3, 3, 3}, {0, 1, 1},
                          [](auto& p) { p.pad_mode[2] = PadMode::replicate; })),
            "padding mode of width = replicate; legal: zero");
  EXPECT_EQ(reason(volume(1, in, 16, 8, {3, 3, 3}, {0, 0, 0},
                          [](auto& p) { p.pad_mode[2] = PadMode::replicate; })),
            "");
  EXPECT_EQ(reason(volume(1, in, 16, 8, {3, 3, 3}), DType::fp32),
            "dtype = fp32; legal: bf16 or fp16");
}

// ---- Padded channels ----------------------------------------------------------------------------

TEST_F(Composed, PaddedChannelsComputesRowsOfAnyAlignment) {
  const auto candidate = make_padded_channels_candidate(inner_kernels());
  for (const int channels : {5, 18, 36, 129}) {
    SCOPED_TRACE(channels);
    const ConvGeometry g = image([&](auto& p) { p.in_channels = channels; });
    run_and_compare(*candidate, request_for(g), false, false);
    run_and_compare(*candidate, request_for(g), true, true);
    run_and_compare(*candidate, request_for(g, DType::fp16), false, true);
  }
  if (current_device().compute_capability == 90) {
    PlanRequest request = request_for(image([](auto& p) { p.in_channels = 3; }), DType::fp32);
    request.allow_tf32 = true;
    run_and_compare(*candidate, request, false, true);
    run_and_compare(*candidate, request, true, true);
    EXPECT_TRUE(candidate->make(request)->multiplies_tf32());
  }
  // Rows that TMA can neither read nor write.
  run_and_compare(*candidate,
                  request_for(image([](auto& p) { p.in_channels = p.out_channels = 18; })), true,
                  true);
  run_and_compare(*candidate,
                  request_for(volume(1, {2, 6, 6}, 12, 16, {3, 3, 3}, {0, 1, 1},
                                     [](auto& p) { p.cached_frames = 2; })),
                  false, true);
}

TEST_F(Composed, FoldedWidthMakesChannelsOfTaps) {
  const auto candidate = make_folded_width_candidate(inner_kernels());
  if (current_device().compute_capability != 90) {  // Hopper's tiles alone take pitches.
    const PlanRequest request = request_for(image([](auto& p) { p.in_channels = 3; }));
    const std::string refusal = candidate->judge(request).refusal;
    EXPECT_NE(refusal.find("pixels that overlap; legal: dense ones"), std::string::npos) << refusal;
    return;
  }
  const auto run = [&](const ConvGeometry& g, DType dtype = DType::bf16) {
    PlanRequest request = request_for(g, dtype);
    request.allow_tf32 = dtype == DType::fp32;
    run_and_compare(*candidate, request, false, true);
    run_and_compare(*candidate, request, true, false);
    EXPECT_EQ(candidate->make(request)->multiplies_tf32(), dtype == DType::fp32);
  };
  for (const int channels : {1, 3, 4}) {
    SCOPED_TRACE(channels);
    run(image([&](auto& p) { p.in_channels = channels; }), DType::fp32);
    run(image([&](auto& p) { p.in_channels = 2 * channels; }));
  }
  // Strides, padding that differs, wide filters, one row, no padding at all; frames and a cache;
  // taps that do not overlap.
  run(image([](auto& p) {
    p.in_channels = 4, p.filter_w = p.stride_w = 2, p.filter_h = p.stride_h = 2, p.pad_w = 2;
  }));
  run(image([](auto& p) {
        p.in_channels = 3, p.stride_h = p.stride_w = 2, p.filter_h = p.filter_w = 7;
        p.pad_h = p.pad_w = 3, p.pad_w_end = 2;
      }),
      DType::fp32);
  run(image([](auto& p) {
    p.in_channels = 1, p.in_height = 1, p.in_width = 300, p.filter_h = 1, p.filter_w = 10;
    p.pad_h = p.pad_w = 0, p.stride_w = 5;
  }));
  run(volume(2, {3, 9, 10}, 3, 16, {2, 3, 5}, {1, 1, 2}), DType::fp32);
  run(volume(1, {2, 6, 7}, 5, 16, {3, 3, 3}, {0, 1, 1}, [](auto& p) { p.cached_frames = 2; }));
}

TEST_F(Composed, FoldedWidthRefusesWithAReason) {
  const auto candidate = make_folded_width_candidate(inner_kernels());
  const auto refusal = [&](auto change, DType dtype = DType::bf16) {
    return candidate->judge(request_for(image(change), dtype)).refusal;
  };
  EXPECT_EQ(refusal([](auto& p) { p.in_channels = 9; }),
            "in_channels = 9; legal: at most 8 (16 bytes); nearest: 8");
  EXPECT_EQ(refusal([](auto& p) { p.in_channels = 5; }, DType::fp32),
            "in_channels = 5; legal: at most 4 (16 bytes); nearest: 4");
  EXPECT_EQ(refusal([](auto& p) { p.in_channels = 3, p.filter_w = 1, p.pad_w = 0; }),
            "filter_w = 1; legal: 2 to 64; nearest: 2");
  EXPECT_EQ(refusal([](auto& p) { p.in_channels = 3, p.dilation_w = 2; }),
            "dilation_w = 2; legal: 1; nearest: 1");
  EXPECT_EQ(refusal([](auto& p) { p.in_channels = 3, p.pad_mode = PadMode::reflect; }),
            "padding of the width by a mode; legal: zeros");
}

TEST_F(Composed, PaddedChannelsRefusesWithAReason) {
  const auto candidate = make_padded_channels_candidate(inner_kernels());
  const auto refusal = [&](const PlanRequest& request) {
    return candidate->judge(request).refusal;
  };
  EXPECT_EQ(refusal(request_for(image([](auto& p) { p.in_channels = 24; }))),
            "in_channels = 24; legal: no multiple of 8 (those need no copy)");
  EXPECT_EQ(refusal(request_for(image([](auto& p) { p.in_channels = 18, p.groups = 2; }))),
            "groups = 2; legal: 1");
  EXPECT_EQ(refusal(request_for(image([](auto& p) { p.in_channels = 20; }), DType::fp32)),
            "in_channels = 20; legal: no multiple of 4 (those need no copy)");
  EXPECT_NE(refusal(request_for(image([](auto& p) {
              p.in_channels = 18;
              p.stride_h = 9;
            }))),
            "");
}

// ---- Joined groups ------------------------------------------------------------------------------

ConvGeometry groups_of(
    std::int64_t groups, int channels, int filters,
    const std::function<void(Conv2dProblemShape&)>& change = [](auto&) {}) {
  return image([&](auto& p) {
    p.groups = groups;
    p.in_channels = static_cast<int>(groups) * channels;
    p.out_channels = static_cast<int>(groups) * filters;
    change(p);
  });
}

TEST_F(Composed, JoinedGroupsComputesNarrowGroups) {
  const auto candidate = make_joined_groups_candidate(inner_kernels());
  const auto run = [&](const ConvGeometry& g, DType dtype = DType::bf16) {
    SCOPED_TRACE(text("groups = ", g.groups, ", channels = ", g.in_channels));
    run_and_compare(*candidate, request_for(g, dtype), false, true);
    run_and_compare(*candidate, request_for(g, dtype), true, false);
  };
  if (current_device().compute_capability == 100) {  // Hopper's tiles alone take groups.
    run(groups_of(8, 4, 4));                         // All of them joined.
    return;
  }
  run(groups_of(32, 4, 4));
  run(groups_of(16, 8, 8), DType::fp16);
  run(groups_of(12, 16, 16, [](auto& p) { p.stride_h = p.stride_w = 2; }));
  run(groups_of(4, 24, 40));  // More filters than channels.
  run(groups_of(5, 8, 8));    // Five in one: 40 channels.
  run(groups_of(10, 4, 8));   // Ten in one, of 80 filters.
  ConvGeometry frames =
      volume(2, {3, 6, 7}, 64, 64, {3, 3, 3}, {0, 1, 1}, [](auto& p) { p.cached_frames = 2; });
  frames.groups = 8;
  run(frames);
}

TEST_F(Composed, JoinedGroupsPacksTheFilterWithZeros) {
  const auto candidate = make_joined_groups_candidate(inner_kernels());
  PlanRequest request = request_for(groups_of(8, 4, 4));
  request.packed_filter = true;
  const auto plan = candidate->make(request);
  // And then as the inner kernel packs its own.
  EXPECT_TRUE(plan->filter_format().starts_with("joined_groups_8")) << plan->filter_format();
  EXPECT_GE(plan->packed_filter_bytes(),
            static_cast<std::size_t>(8 * request.geometry.filter_elements() * 2));
}

TEST_F(Composed, JoinedGroupsRefusesWithAReason) {
  const auto candidate = make_joined_groups_candidate(inner_kernels());
  const auto refusal = [&](std::int64_t groups, int channels, int filters) {
    return candidate->judge(request_for(groups_of(groups, channels, filters))).refusal;
  };
  EXPECT_EQ(refusal(1, 32, 32), "groups = 1; legal: more");
  EXPECT_EQ(refusal(32, 1, 1), "one channel a group; legal: more (depthwise kernels take those)");
  EXPECT_EQ(refusal(2, 40, 40), "C / groups = 40; legal: at most 32; nearest: 32");
  EXPECT_EQ(refusal(3, 8, 8), "groups = 3 of 8 channels; legal: some that join to 32 to 192");
  EXPECT_EQ(refusal(31, 8, 8), "groups = 31 of 8 channels; legal: some that join to 32 to 192");
}

// ---- Folded stride ------------------------------------------------------------------------------

ConvGeometry strided(int width, int channels, int filter, int stride, int pad_left, int pad_right,
                     int height = 1) {
  return image([&](auto& p) {
    p.in_height = height;
    p.in_width = width;
    p.in_channels = channels;
    p.out_channels = 24;
    p.filter_h = height == 1 ? 1 : 3;
    p.filter_w = filter;
    p.pad_h = height == 1 ? 0 : 1;
    p.pad_w = pad_left;
    p.pad_w_end = pad_right;
    p.stride_h = height == 1 ? 1 : 2;
    p.stride_w = stride;
  });
}

TEST_F(Composed, FoldedStrideComputesNarrowPixels) {
  const auto candidate = make_folded_stride_candidate(inner_kernels());
  const auto run = [&](const ConvGeometry& g, DType dtype = DType::bf16) {
    SCOPED_TRACE(text(g.in[2], " columns of ", g.in_channels, ", filter_w = ", g.filter[2],
                      ", stride_w = ", g.stride[2], ", pad = ", g.pad_begin[2], ", ",
                      g.pad_end[2]));
    run_and_compare(*candidate, request_for(g, dtype), false, true);
    run_and_compare(*candidate, request_for(g, dtype), true, false);
  };
  run(strided(40, 32, 4, 2, 1, 1));               // Zeros in front and behind.
  run(strided(40, 32, 3, 2, 0, 0), DType::fp16);  // Behind; the last column is not read.
  run(strided(36, 16, 3, 2, 1, 1, 10));           // Rows too.
  run(strided(36, 8, 5, 4, 3, 2, 7));             // A stride of four.
  run(strided(30, 24, 7, 3, 3, 3, 6));            // Of three.
  run(strided(40, 4, 1, 2, 0, 0));                // One tap, pixels of eight bytes.
  run(strided(26, 20, 3, 2, 2, 5));               // Far beyond the end.
  run(strided(26, 36, 3, 2, 1, 1, 8));            // Pixels that TMA cannot read.
  run(volume(2, {3, 6, 8}, 16, 24, {3, 3, 3}, {0, 1, 1}, [](auto& p) {
    p.cached_frames = 2;
    p.stride = {1, 2, 2};
  }));
}

TEST_F(Composed, FoldedStridePacksTheFilterWithZeros) {
  const auto candidate = make_folded_stride_candidate(inner_kernels());
  PlanRequest request = request_for(strided(40, 32, 4, 2, 1, 1));
  request.packed_filter = true;
  const auto plan = candidate->make(request);
  EXPECT_TRUE(plan->filter_format().starts_with("folded_stride_1_6")) << plan->filter_format();
  EXPECT_GE(plan->packed_filter_bytes(), std::size_t{24} * 6 * 32 * 2);
}

TEST_F(Composed, FoldedStrideRefusesWithAReason) {
  const auto candidate = make_folded_stride_candidate(inner_kernels());
  const auto refusal = [&](const ConvGeometry& g) {
    return candidate->judge(request_for(g)).refusal;
  };
  EXPECT_EQ(refusal(strided(40, 32, 4, 1, 1, 1)), "stride_w = 1; legal: more; nearest: 2");
  EXPECT_EQ(refusal(strided(40, 40, 3, 2, 1, 1)),
            "in_channels = 40; legal: at most 32, or no multiple of 8 (others are loaded as fast "
            "as they lie); nearest: 32");
  EXPECT_EQ(refusal(strided(40, 32, 4, 2, 0, 0)),
            "filter_w = 4 and pad_left = 0; legal: one that is no multiple of stride_w = 2 "
            "(others need no taps of zeros)");
  EXPECT_EQ(refusal(strided(41, 32, 3, 2, 1, 1, 6)),
            "in_w = 41; legal: a multiple of stride_w = 2; nearest: 42");
}

// ---- Padded copy --------------------------------------------------------------------------------

void replicate_frames_reflect_rows(Conv3dProblemShape& p) {
  p.pad_mode = {PadMode::replicate, PadMode::reflect, PadMode::replicate};
}

TEST(PaddedCopyForm, LeavesZerosToTheInnerKernel) {
  const ConvGeometry g = volume(2, {4, 8, 8}, 16, 8, {3, 3, 3}, {1, 1, 1}, [](auto& p) {
    p.pad_mode = {PadMode::zero, PadMode::zero, PadMode::reflect};
    p.pad_end[2] = 2;
    p.cached_frames = 2;
  });
  const PaddedCopyForm form = padded_copy_form(g, DType::bf16, {.depth = false});
  EXPECT_EQ(form.part.in, (std::array<std::int64_t, 3>{6, 8, 11}));
  EXPECT_EQ(form.part.pad_begin, (std::array<std::int64_t, 3>{1, 1, 0}));
  EXPECT_EQ(form.part.pad_end, (std::array<std::int64_t, 3>{1, 1, 0}));
  EXPECT_EQ(form.part.cached_frames, 0);
  EXPECT_EQ(form.part.out, g.out);
  EXPECT_EQ(form.batch_parts * form.frame_parts, 1);
}

TEST(PaddedCopyForm, PartsFitTheBudget) {
  const ConvGeometry g = volume(3, {20, 8, 8}, 16, 8, {3, 3, 3}, {1, 1, 1},
                                [](auto& p) { replicate_frames_reflect_rows(p); });
  constexpr std::int64_t kFrame = std::int64_t{10} * 10 * 16 * 2;
  // Two images of 22 frames; then one with less than another.
  const PaddedCopyForm images = padded_copy_form(g, DType::bf16, {.depth = true}, 50 * kFrame);
  EXPECT_EQ(images.part.batch, 2);
  EXPECT_EQ(images.batch_parts, 2);
  EXPECT_EQ(images.frame_parts, 1);
  // Nine frames, seven of the output, of one image.
  const PaddedCopyForm frames = padded_copy_form(g, DType::bf16, {.depth = false}, 9 * kFrame);
  EXPECT_TRUE(frames.padding.depth);
  EXPECT_EQ(frames.part.batch, 1);
  EXPECT_EQ(frames.part.in[0], 9);
  EXPECT_EQ(frames.part.out[0], 7);
  EXPECT_EQ(frames.batch_parts, 3);
  EXPECT_EQ(frames.frame_parts, 3);
  // No budget: as many output frames as the taps reach over.
  EXPECT_EQ(padded_copy_form(g, DType::bf16, {.depth = false}, 1).part.out[0], 3);
}

TEST_F(Composed, PaddedCopyOfEveryKindOfPadding) {
  const auto expect_right = [](const ConvGeometry& g, DType dtype = DType::bf16) {
    SCOPED_TRACE(to_string(test::problem_of(g)));
    test::ConvCase test = test::with_kernel(g, "padded_copy", dtype);
    test::expect_right(test);
    test.bias = test.residual = test.residual_in_place = true;
    test.epilogue.activation = Activation::relu;
    test.epilogue.beta = 2.0f;
    test.options.packed_filter = true;
    test.next_cache = g.rank == 3;
    test::expect_right(test);
  };
  for (const PadMode mode : {PadMode::replicate, PadMode::reflect}) {
    const auto with_mode = [&](auto&& change) {
      return image([&](auto& p) {
        p.pad_mode = mode;
        change(p);
      });
    };
    expect_right(with_mode([](auto&) {}));
    expect_right(with_mode([](auto& p) { p.pad_h = 4, p.pad_w = 0, p.pad_w_end = 3; }));
    expect_right(with_mode([](auto& p) { p.stride_h = 2, p.dilation_w = 2; }));
    expect_right(with_mode([](auto& p) { p.upsample = 2; }));
    expect_right(with_mode([](auto& p) { p.groups = 4; }));
    // Vectors of 8, 4 and 2 bytes.
    expect_right(with_mode([](auto& p) { p.in_channels = 12; }));
    expect_right(with_mode([](auto& p) { p.in_channels = 6; }), DType::fp16);
    expect_right(with_mode([](auto& p) { p.in_channels = 3; }));
    expect_right(with_mode([](auto& p) { p.in_channels = 3; }), DType::fp32);
  }
  // A causal volume: its first frame again; with a cache in front; reflected at both ends.
  const auto causal = [](std::int64_t cached) {
    return volume(2, {3, 6, 9}, 16, 8, {3, 3, 3}, {2, 1, 1}, [&](auto& p) {
      replicate_frames_reflect_rows(p);
      p.pad_end[0] = 0;
      p.cached_frames = cached;
    });
  };
  expect_right(causal(0));
  expect_right(causal(1));
  expect_right(causal(2));
  expect_right(volume(1, {4, 6, 9}, 16, 8, {3, 3, 3}, {2, 1, 1}, [](auto& p) {
    p.pad_mode = {PadMode::reflect, PadMode::zero, PadMode::replicate};
    p.stride[0] = 2;
  }));
  // Zeros in front, and another mode across.
  expect_right(volume(1, {4, 6, 9}, 16, 8, {3, 3, 3}, {2, 1, 1},
                      [](auto& p) { p.pad_mode[2] = PadMode::replicate; }));
}

TEST_F(Composed, PaddedCopyInParts) {
  // Images two at a time and one; frames in parts, zeros along depth in the copy too.
  const auto of_bytes = [](std::size_t budget) {
    return make_padded_copy_candidate(inner_kernels(), budget);
  };
  const ConvGeometry images = image([](auto& p) {
    p.batch = 5;
    p.pad_mode = PadMode::reflect;
  });
  run_and_compare(*of_bytes(2 * 11 * 13 * 32 * 2), request_for(images), false, true);
  const ConvGeometry frames = volume(2, {7, 6, 6}, 16, 8, {3, 3, 3}, {2, 1, 1}, [](auto& p) {
    p.pad_end[0] = 1;
    p.pad_mode[1] = PadMode::replicate;
  });
  run_and_compare(*of_bytes(6 * 8 * 8 * 16 * 2), request_for(frames), false, true);
  run_and_compare(*of_bytes(1), request_for(frames, DType::fp16), true, true);
  const ConvGeometry strided = volume(1, {9, 6, 6}, 16, 8, {3, 3, 3}, {1, 1, 1}, [](auto& p) {
    replicate_frames_reflect_rows(p);
    p.stride[0] = 2;
    p.cached_frames = 1;
  });
  run_and_compare(*of_bytes(1), request_for(strided), false, true);
}

TEST_F(Composed, PaddedCopyRefusesWithAReason) {
  const auto candidate = make_padded_copy_candidate(inner_kernels());
  const auto refusal = [&](const PlanRequest& request) {
    return candidate->judge(request).refusal;
  };
  const auto zeros = refusal(request_for(image([](auto&) {})));
  EXPECT_NE(zeros.find("no padding but of zeros"), std::string::npos) << zeros;
  // A mode of an axis that has no padding is none.
  EXPECT_EQ(refusal(request_for(image([](auto& p) {
              p.pad_h = p.pad_w = 0;
              p.pad_mode = PadMode::reflect;
            }))),
            zeros);
  const auto wide = refusal(request_for(image([](auto& p) {
    p.out_channels = 1;
    p.pad_h = p.pad_w = std::int64_t{1} << 29;
    p.pad_mode = PadMode::replicate;
  })));
  EXPECT_NE(wide.find("padded input of"), std::string::npos) << wide;
  const auto large = refusal(request_for(image([](auto& p) {
    p.pad_h = p.pad_w = std::int64_t{1} << 17;
    p.pad_mode = PadMode::replicate;
  })));
  EXPECT_NE(large.find("32-bit counters"), std::string::npos) << large;
}

// ---- im2col + matmul ----------------------------------------------------------------------------

TEST(Im2colChunks, AreEvenAlignedAndBounded) {
  // All of it fits.
  EXPECT_EQ(im2col_chunks(100, 64, 1 << 20).count, 1);
  EXPECT_EQ(im2col_chunks(100, 64, 1 << 20).rows, 100);
  // A budget of 4000 rows for 10000: three nearly equal parts.
  const Im2colChunks three = im2col_chunks(10000, 64, 4000 * 64);
  EXPECT_EQ(three.count, 3);
  EXPECT_EQ(three.rows, 3336);
  // A budget of less than 1024 rows is raised to that.
  const Im2colChunks least = im2col_chunks(4096, 1 << 20, 1);
  EXPECT_EQ(least.rows, 1024);
  EXPECT_EQ(least.count, 4);
  EXPECT_EQ(im2col_chunks(0, 64, 1 << 20).count, 0);
}

TEST_F(Composed, Im2colMatmulComputesWhatTheDirectKernelsDecline) {
  const auto flat = make_im2col_matmul_candidate(inner_kernels(), 2);
  const auto deep = make_im2col_matmul_candidate(inner_kernels(), 3);
  const std::pair<const KernelCandidate*, ConvGeometry> cases[] = {
      {flat.get(), image([](auto& p) { p.in_channels = 3; })},
      {flat.get(), image([](auto& p) { p.pad_mode = PadMode::reflect; })},
      {flat.get(), image([](auto& p) {
         p.pad_mode = PadMode::replicate;
         p.pad_h = p.pad_w = 2;
       })},
      {flat.get(), image([](auto& p) { p.stride_h = p.stride_w = 9; })},
      {flat.get(), image([](auto& p) { p.upsample = 2; })},
      {flat.get(), image([](auto& p) { p.out_channels = 3; })},
      {deep.get(), volume(2, {3, 5, 6}, 5, 16, {2, 3, 3}, {1, 1, 1})},
      {deep.get(),
       volume(1, {2, 6, 6}, 16, 16, {3, 3, 3}, {0, 1, 1}, [](auto& p) { p.cached_frames = 2; })},
  };
  for (const auto& [candidate, g] : cases) {
    SCOPED_TRACE(text("C = ", g.in_channels, ", K = ", g.out_channels, ", stride ", g.stride[1],
                      ", pad mode ", to_string(g.pad_mode[1]), ", upsample ", g.upsample));
    run_and_compare(*candidate, request_for(g), false, false);
    run_and_compare(*candidate, request_for(g), true, true);
  }
  run_and_compare(*flat, request_for(cases[0].second, DType::fp16), false, true);
}

TEST_F(Composed, Im2colMatmulInSeveralChunks) {
  const auto candidate =
      make_im2col_matmul_candidate(inner_kernels(), 2, 1);  // Least chunks: 1024 rows.
  const ConvGeometry g = image([](auto& p) {
    p.in_height = 40;
    p.in_width = 53;
    p.in_channels = 4;
    p.out_channels = 17;
  });
  run_and_compare(*candidate, request_for(g), false, true);
}

TEST_F(Composed, Im2colMatmulRefusesWithAReason) {
  const auto candidate = make_im2col_matmul_candidate(inner_kernels(), 2);
  PlanRequest request = request_for(image([](auto& p) { p.groups = 2; }));
  EXPECT_EQ(candidate->judge(request).refusal, "groups = 2; legal: 1");
  request = request_for(image([](auto&) {}), DType::fp32);
  EXPECT_EQ(candidate->judge(request).refusal, "dtype = fp32; legal: bf16 or fp16");
  EXPECT_NE(candidate->judge(request_for(volume(1, {2, 4, 4}, 8, 8, {1, 1, 1}))).refusal, "");
}

}  // namespace
}  // namespace convoy
