// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "convoy/convoy.hpp"
#include "core/log.hpp"
#include "dispatch/device.hpp"
#include "dispatch/select.hpp"
#include "expect_error.hpp"

namespace convoy {
namespace {

using test::expect_error;

const Conv2dProblemShape kProblem{.in_height = 8,
                                  .in_width = 8,
                                  .in_channels = 4,
                                  .out_channels = 8,
                                  .filter_h = 3,
                                  .filter_w = 3,
                                  .pad_h = 1,
                                  .pad_w = 1};

/// A kernel that exists for dispatch only.
class FakeKernel final : public KernelCandidate {
 public:
  FakeKernel(std::string name, Device device, double us, std::string reason = {})
      : name_(std::move(name)), device_(device), us_(us), reason_(std::move(reason)) {}
  std::string name() const override { return name_; }
  Device device() const override { return device_; }
  Judgement judge(const PlanRequest&) const override {
    return reason_.empty() ? Judgement(us_) : Judgement(reason_);
  }
  std::unique_ptr<ExecutablePlan> make(const PlanRequest&) const override { return nullptr; }

 private:
  std::string name_;
  Device device_;
  double us_;
  std::string reason_;
};

CandidateList fake_kernels() {
  CandidateList list;
  list.push_back(std::make_unique<FakeKernel>("slow", Device::cpu, 20.0));
  list.push_back(std::make_unique<FakeKernel>("picky", Device::cpu, 1.0, "C = 4; legal: 8"));
  list.push_back(std::make_unique<FakeKernel>("fast", Device::cpu, 10.0));
  list.push_back(std::make_unique<FakeKernel>("gpu", Device::cuda, 30.0));
  return list;
}

TEST(Select, TheFastestThatCanRunIsChosen) {
  const CandidateList kernels = fake_kernels();
  const auto all = select(geometry_of(kProblem), {.device = Device::cpu}, kernels);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0].line.kernel, "fast");
  EXPECT_TRUE(all[0].line.chosen);
  EXPECT_EQ(all[0].line.estimated_us, 10.0);
  EXPECT_EQ(all[1].line.kernel, "slow");
  EXPECT_FALSE(all[1].line.chosen);
  EXPECT_EQ(all[2].line.kernel, "picky");
  EXPECT_EQ(all[2].line.reason, "C = 4; legal: 8");
  EXPECT_EQ(all[3].line.kernel, "gpu");
  EXPECT_EQ(all[3].line.reason, "device = cpu was asked for");
}

TEST(Select, TheGpuComesFirstWhereThereIsOne) {
  const CandidateList kernels = fake_kernels();
  const auto all = select(geometry_of(kProblem), {}, kernels);
  if (cuda_device_count() > 0) {
    EXPECT_EQ(all[0].line.kernel, "gpu");
  } else {
    EXPECT_EQ(all[0].line.kernel, "fast");
    EXPECT_NE(all[3].line.reason, "");
  }
  for (const auto& entry : select(geometry_of(kProblem), {.device = Device::cuda}, kernels)) {
    if (entry.kernel->device() == Device::cpu) {
      EXPECT_EQ(entry.line.reason, "device = cuda was asked for");
      EXPECT_FALSE(entry.line.chosen);
    }
  }
}

TEST(Device, KernelsNeedAmpere) {
  DeviceInfo device{.kind = Device::cuda, .name = "Tesla T4", .compute_capability = 75};
  EXPECT_EQ(device_refusal(device),
            "Tesla T4 has compute capability 7.5; legal: 8.0 and later; nearest: device = cpu");
  for (const int capability : {80, 86, 120}) {
    device.compute_capability = capability;
    EXPECT_EQ(device_refusal(device), "");
  }
}

TEST(Select, OneKernelByName) {
  const CandidateList kernels = fake_kernels();
  const auto all =
      select(geometry_of(kProblem), {.device = Device::cpu, .kernel = "slow"}, kernels);
  EXPECT_EQ(all[0].line.kernel, "slow");
  EXPECT_TRUE(all[0].line.chosen);
  EXPECT_EQ(all[1].line.reason.empty(), false);
  expect_error(Status::invalid_argument, {"'slaw'", "nearest: slow, ", "list all 4"},
               [&] { select(geometry_of(kProblem), {.kernel = "slaw"}, kernels); });
}

/// A kernel that must not be asked.
class SilentKernel final : public KernelCandidate {
 public:
  std::string name() const override { return "silent"; }
  Device device() const override { return Device::cpu; }
  Judgement judge(const PlanRequest&) const override {
    ADD_FAILURE() << "asked about an empty problem";
    return "empty";
  }
  std::unique_ptr<ExecutablePlan> make(const PlanRequest&) const override { return nullptr; }
};

TEST(Select, KernelsAreNotAskedAboutEmptyProblems) {
  CandidateList kernels;
  kernels.push_back(std::make_unique<SilentKernel>());
  for (int which = 0; which < 2; ++which) {
    Conv2dProblemShape p = kProblem;
    (which == 0 ? p.batch : p.out_channels) = 0;
    const auto all = select(geometry_of(p), {.device = Device::cpu}, kernels);
    EXPECT_TRUE(all[0].line.chosen);
  }
}

TEST(Select, RefusesOptionsThatMakeNoSense) {
  const CandidateList kernels = fake_kernels();
  const auto refuse = [&](std::initializer_list<const char*> parts, auto&& change) {
    PlanOptions options;
    change(options);
    expect_error(Status::invalid_argument, parts,
                 [&] { select(geometry_of(kProblem), options, kernels); });
  };
  refuse({"dtype = 9", "bf16 (0)"}, [](auto& o) { o.dtype = static_cast<DType>(9); });
  refuse({"output_dtype = -1"}, [](auto& o) { o.output_dtype = static_cast<DType>(-1); });
  refuse({"epilogue.bias_dtype = 3"},
         [](auto& o) { o.epilogue.bias_dtype = static_cast<DType>(3); });
  refuse({"epilogue.activation = 10", "9 (clamp)"},
         [](auto& o) { o.epilogue.activation = static_cast<Activation>(10); });
  refuse({"epilogue.order = 2"}, [](auto& o) { o.epilogue.order = static_cast<ResidualOrder>(2); });
  refuse({"epilogue.rounding = 5"},
         [](auto& o) { o.epilogue.rounding = static_cast<EpilogueRounding>(5); });
  refuse({"device = 4"}, [](auto& o) { o.device = static_cast<Device>(4); });
  refuse({"device_index = -2"}, [](auto& o) { o.device_index = -2; });
}

TEST(Plan, RefusesIllegalShapesAndSaysSo) {
  Conv2dProblemShape bad = kProblem;
  bad.groups = 3;
  expect_error(Status::invalid_argument, {"groups = 3"}, [&] { plan(bad); });
  expect_error(Status::invalid_argument, {"groups = 3"}, [&] { candidates(bad); });
  const Support support = supports(bad);
  EXPECT_FALSE(support);
  EXPECT_NE(support.reason.find("invalid argument: groups = 3"), std::string::npos);
}

TEST(Plan, NoDeviceOrNoKernelIsUnsupportedWithEveryReason) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there is a GPU";
  expect_error(
      Status::unsupported,
      {"no kernel can run n1h8w8c4k8r3s3ph1pw1 with device = cuda: ", "; legal: device = cpu"},
      [&] { plan(kProblem, {.device = Device::cuda}); });
  // No GPU is one reason, however many kernels there are.
  const Support support = supports(kProblem, {.device = Device::cuda});
  EXPECT_FALSE(support);
  EXPECT_EQ(std::count(support.reason.begin(), support.reason.end(), '\n'), 0) << support.reason;
  // Each reason stands in it once, however many kernels share it.
  const Conv2dProblemShape wide{
      .in_height = 1, .in_width = 65536, .in_channels = 1, .out_channels = 65536};
  std::set<std::string> reasons;
  for (const Candidate& candidate : candidates(wide)) reasons.insert(candidate.reason);
  const std::string said = supports(wide).reason;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), std::ptrdiff_t(reasons.size())) << said;
}

// A kernel that was asked for and cannot: its own reason, and those that can.
TEST(Plan, ARefusedKernelGivesItsOwnReason) {
  std::string gpu_kernel;
  for (const KernelInfo& kernel : kernels()) {
    if (kernel.device == Device::cuda) gpu_kernel = kernel.name;
  }
  if (cuda_device_count() > 0 || gpu_kernel.empty()) GTEST_SKIP() << "a GPU, or a build without";
  const Support support = supports(kProblem, {.dtype = DType::fp32, .kernel = gpu_kernel});
  EXPECT_NE(support.reason.find("kernel " + gpu_kernel + " cannot run"), std::string::npos);
  EXPECT_EQ(std::count(support.reason.begin(), support.reason.end(), '\n'), 0) << support.reason;
#ifdef CONVOY_WITH_CPU
  EXPECT_NE(support.reason.find("nearest that can: onednn"), std::string::npos) << support.reason;
#endif
}

#ifdef CONVOY_WITH_CPU

constexpr std::int64_t kPixels = 8 * 8;

/// Host tensors of kProblem in fp32, and arguments that are right.
/// NOTE: GCC 13.2 misplaces locals aligned to more than 32 under AddressSanitizer (its PR 110027).
struct Tensors {
  alignas(32) float activation[kPixels * 4] = {};
  alignas(32) float filter[8 * 9 * 4] = {};
  alignas(32) float output[kPixels * 8] = {};
  alignas(32) float residual[kPixels * 8] = {};
  alignas(32) float bias[8] = {};

  RunArguments arguments() {
    return {.output = output, .activation = activation, .filter = filter};
  }
};

Plan fp32_plan(EpilogueKind kind = {}, bool packed = false) {
  return plan(
      kProblem,
      {.dtype = DType::fp32, .epilogue = kind, .device = Device::cpu, .packed_filter = packed});
}

TEST(Plan, TellsWhatItIs) {
  const Plan p = fp32_plan();
  EXPECT_EQ(p.info().kernel, "onednn");
  EXPECT_EQ(p.info().backend.rfind("cpu (", 0), 0u);
  EXPECT_EQ(p.info().problem, "n1h8w8c4k8r3s3ph1pw1");
  EXPECT_EQ(p.info().flops, 2.0 * kPixels * 8 * 36);
  EXPECT_EQ(p.info().min_bytes, 4.0 * (kPixels * 4 + 8 * 36 + kPixels * 8));
  EXPECT_EQ(p.output_shape(), (TensorShape{DType::fp32, Layout::nhwc, {1, 8, 8, 8, 0}}));
  EXPECT_EQ(p.activation_shape(), (TensorShape{DType::fp32, Layout::nhwc, {1, 8, 8, 4, 0}}));
  EXPECT_TRUE(supports(kProblem, {.device = Device::cpu}));
}

TEST(Plan, ChecksPointers) {
  const Plan p = fp32_plan();
  Tensors t;
  const auto refuse = [&](std::initializer_list<const char*> parts, auto&& change) {
    RunArguments a = t.arguments();
    change(a);
    expect_error(Status::invalid_argument, parts, [&] { p.run(a); });
  };
  p.run(t.arguments());
  refuse({"output is null"}, [](auto& a) { a.output.data = nullptr; });
  refuse({"activation is null"}, [](auto& a) { a.activation.data = nullptr; });
  refuse({"filter is null"}, [](auto& a) { a.filter.data = nullptr; });
  refuse({"output = ", "not aligned", "16"}, [&](auto& a) { a.output.data = t.output + 1; });
  refuse({"activation = ", "not aligned"}, [&](auto& a) { a.activation.data = t.activation + 2; });
  refuse({"filter = ", "not aligned"}, [&](auto& a) { a.filter.data = t.filter + 3; });
  refuse({"workspace = ", "not aligned"}, [&](auto& a) { a.workspace = t.residual + 1; });
  refuse({"cache is given"}, [&](auto& a) { a.cache.data = t.residual; });
  refuse({"next_cache is given", "2-D"}, [&](auto& a) { a.next_cache.data = t.residual; });
  refuse({"output [", "overlaps activation"}, [&](auto& a) { a.output.data = t.activation + 4; });
  refuse({"output [", "overlaps filter"}, [&](auto& a) { a.filter.data = t.output + 32; });
}

TEST(Plan, ChecksShapes) {
  const Plan p = fp32_plan();
  Tensors t;
  RunArguments a = t.arguments();
  a.output = {t.output, TensorShape{DType::fp32, Layout::nhwc, {1, 8, 8, 8, 0}}};
  a.activation = {t.activation, TensorShape{DType::fp32, Layout::nhwc, {1, 8, 8, 4, 99}}};
  p.run(a);
  a.output.shape->extents[3] = 4;
  expect_error(Status::invalid_argument,
               {"output is fp32 NHWC [1, 8, 8, 4]", "plan is for fp32 NHWC [1, 8, 8, 8]"},
               [&] { p.run(a); });
  a = t.arguments();
  a.activation = {t.activation, TensorShape{DType::bf16, Layout::nhwc, {1, 8, 8, 4, 0}}};
  expect_error(Status::invalid_argument, {"activation is bf16"}, [&] { p.run(a); });
  a.activation.shape = TensorShape{DType::fp32, Layout::ndhwc, {1, 8, 8, 4, 1}};
  expect_error(Status::invalid_argument, {"activation is fp32 NDHWC [1, 8, 8, 4, 1]"},
               [&] { p.run(a); });
}

TEST(Epilogue, TheTextNamesEveryStepInItsOrder) {
  EXPECT_EQ(to_string(EpilogueKind{}), "none");
  EXPECT_EQ(to_string(Epilogue{}), "none");
  Epilogue e;
  e.bias = e.residual = &e;
  e.bias_dtype = DType::bf16;
  e.activation = Activation::leaky_relu;
  EXPECT_EQ(to_string(e.kind()), "bias_bf16+leaky_relu+residual");
  EXPECT_EQ(to_string(e), "bias_bf16+leaky_relu(0.01)+residual");
  e.scale = 0.5f;
  e.beta = -2.0f;
  e.activation = Activation::clamp;
  e.order = ResidualOrder::before_activation;
  e.rounding = EpilogueRounding::each_step;
  EXPECT_EQ(to_string(e.kind()), "bias_bf16+residual_before_activation+clamp+each_step");
  EXPECT_EQ(to_string(e),
            "scale(0.5)+bias_bf16+residual_before_activation(-2)+clamp(0,6)+each_step");
}

TEST(Plan, AProblemOfEitherRank) {
  ProblemShape problem = kProblem;
  EXPECT_EQ(to_string(problem), kProblem.to_string());
  EXPECT_EQ(plan(problem, {.dtype = DType::fp32, .device = Device::cpu}).info().problem,
            kProblem.to_string());
  EXPECT_TRUE(supports(problem, {.device = Device::cpu}));
  EXPECT_EQ(candidates(problem, {.device = Device::cpu}).size(),
            candidates(kProblem, {.device = Device::cpu}).size());
  problem = Conv3dProblemShape{
      .in_depth = 2, .in_height = 3, .in_width = 3, .in_channels = 4, .out_channels = 4};
  EXPECT_EQ(plan(problem, {.device = Device::cpu}).output_shape().layout, Layout::ndhwc);
}

TEST(Plan, ChecksTheEpilogue) {
  Tensors t;
  Epilogue e;
  e.bias = t.bias;
  e.activation = Activation::silu;
  e.residual = t.residual;
  const Plan p = fp32_plan(e.kind());
  RunArguments a = t.arguments();
  a.epilogue = e;
  p.run(a);
  const auto refuse = [&](std::initializer_list<const char*> parts, auto&& change) {
    RunArguments changed = a;
    change(changed.epilogue);
    expect_error(Status::invalid_argument, parts, [&] { p.run(changed); });
  };
  refuse({"epilogue is silu+residual,", "plan is for bias_fp32+silu+residual"},
         [](auto& x) { x.bias = nullptr; });
  refuse({"bias_bf16"}, [](auto& x) { x.bias_dtype = DType::bf16; });
  refuse({"bias_fp32+relu+residual", "bias_fp32+silu+residual"},
         [](auto& x) { x.activation = Activation::relu; });
  refuse({"epilogue is bias_fp32+silu,"}, [](auto& x) { x.residual = nullptr; });
  refuse({"bias_fp32+residual_before_activation+silu"},
         [](auto& x) { x.order = ResidualOrder::before_activation; });
  refuse({"silu+residual+each_step"}, [](auto& x) { x.rounding = EpilogueRounding::each_step; });
  refuse({"epilogue.bias = ", "not aligned"}, [&](auto& x) { x.bias = t.bias + 1; });
  refuse({"epilogue.residual is fp32 NHWC [1, 8, 8, 7]"}, [](auto& x) {
    x.residual_shape = TensorShape{DType::fp32, Layout::nhwc, {1, 8, 8, 7, 0}};
  });
  refuse({"overlaps epilogue.residual"}, [&](auto& x) { x.residual = t.output + 4; });
  // With beta == 0 the residual may be anything, since it is not read.
  a.epilogue.beta = 0.0f;
  a.epilogue.residual = nullptr;
  p.run(a);
  // Values may change from run to run; the residual may be the output.
  a.epilogue.beta = 0.5f;
  a.epilogue.scale = 3.0f;
  a.epilogue.residual = t.output;
  p.run(a);
}

TEST(Plan, ChecksThePackedFilter) {
  Tensors t;
  const Plan bare = fp32_plan();
  const Plan packed = fp32_plan({}, true);
  Conv2dProblemShape wider = kProblem;
  wider.out_channels = 16;
  const Plan other =
      plan(wider, {.dtype = DType::fp32, .device = Device::cpu, .packed_filter = true});
  alignas(64) static float wide_filter[16 * 36] = {};
  RunArguments a = t.arguments();
  expect_error(Status::invalid_argument, {"bare pointer", "packed_filter"}, [&] { packed.run(a); });
  a.filter = packed.pack_filter(t.filter, FilterLayout::kcrs);
  packed.run(a);
  expect_error(Status::invalid_argument, {"filter was packed as 'onednn", "plan reads 'ktrsc"},
               [&] { bare.run(a); });
  a.filter = other.pack_filter(wide_filter, FilterLayout::krsc);
  expect_error(Status::invalid_argument, {"k16", "k8"}, [&] { packed.run(a); });
  // A plan that reads dense filters also repacks them.
  a.filter = bare.pack_filter(t.filter, FilterLayout::rscf);
  bare.run(a);
  expect_error(Status::invalid_argument, {"filter is null"},
               [&] { packed.pack_filter(nullptr, FilterLayout::krsc); });
  expect_error(Status::invalid_argument, {"KTRSC", "2-D"},
               [&] { packed.pack_filter(t.filter, FilterLayout::ktrsc); });
}

TEST(Plan, AnEmptyOutputReturnsAtOnce) {
  for (int which = 0; which < 2; ++which) {
    Conv2dProblemShape p = kProblem;
    (which == 0 ? p.batch : p.out_channels) = 0;
    for (bool packed : {false, true}) {
      const Plan made =
          plan(p, {.dtype = DType::bf16, .device = Device::cpu, .packed_filter = packed});
      made.run({});
      alignas(16) static std::uint16_t filter[8 * 9 * 4] = {};
      made.run({.filter = made.pack_filter(filter, FilterLayout::krsc)});
    }
  }
}

TEST(Plan, CausalCacheFrameByFrameEqualsTheWholeClip) {
  // Five frames at once with two frames of zero padding in front...
  Conv3dProblemShape whole;
  whole.in_depth = 5;
  whole.in_height = whole.in_width = 4;
  whole.in_channels = 3;
  whole.out_channels = 2;
  whole.filter = {3, 3, 3};
  whole.pad_begin = {2, 1, 1};
  whole.pad_end = {0, 1, 1};
  constexpr int kFrameIn = 4 * 4 * 3, kFrameOut = 4 * 4 * 2;
  alignas(64) float clip[5 * kFrameIn], filter[2 * 27 * 3 + 2], expected[5 * kFrameOut];
  for (int i = 0; i < 5 * kFrameIn; ++i) clip[i] = static_cast<float>(i % 7 - 3);
  for (int i = 0; i < 2 * 27 * 3; ++i) filter[i] = static_cast<float>(i % 5 - 2);
  const PlanOptions options{.dtype = DType::fp32, .device = Device::cpu};
  plan(whole, options).run({.output = expected, .activation = clip, .filter = filter});

  // ... and one by one: the first without a cache, the others with the cache of the call before.
  alignas(64) float out[kFrameOut], cache[2][2 * kFrameIn];
  for (int frame = 0; frame < 5; ++frame) {
    Conv3dProblemShape step = whole;
    step.in_depth = 1;
    step.pad_begin[0] = frame == 0 ? 2 : 0;
    step.cached_frames = frame == 0 ? 0 : 2;
    const Plan made = plan(step, options);
    EXPECT_EQ(made.next_cache_shape().extents, (std::array<std::int64_t, 5>{1, 2, 4, 4, 3}));
    std::memset(cache[frame % 2], 0xff, sizeof(cache[0]));
    RunArguments a{.output = out, .activation = clip + frame * kFrameIn, .filter = filter};
    if (frame > 0) a.cache = {cache[(frame + 1) % 2], made.cache_shape()};
    a.next_cache = {cache[frame % 2], made.next_cache_shape()};
    made.run(a);
    EXPECT_EQ(std::memcmp(out, expected + frame * kFrameOut, sizeof(out)), 0) << frame;
  }
}

TEST(Plan, ChecksTheCache) {
  Conv3dProblemShape p;
  p.in_depth = 1;
  p.in_height = p.in_width = 2;
  p.in_channels = 4;
  p.out_channels = 4;
  p.filter = {3, 1, 1};
  p.cached_frames = 2;
  const Plan made = plan(p, {.dtype = DType::fp32, .device = Device::cpu});
  alignas(64) float in[16] = {}, filter[48] = {}, out[16], cache[32] = {}, next[32];
  RunArguments a{.output = out, .activation = in, .filter = filter};
  expect_error(Status::invalid_argument, {"cache is null"}, [&] { made.run(a); });
  a.cache = {cache, TensorShape{DType::fp32, Layout::ndhwc, {1, 1, 2, 2, 4}}};
  expect_error(Status::invalid_argument, {"cache is fp32 NDHWC [1, 1, 2, 2, 4]"},
               [&] { made.run(a); });
  a.cache = cache;
  a.next_cache = cache + 4;
  expect_error(Status::invalid_argument, {"next_cache [", "overlaps cache"}, [&] { made.run(a); });
  a.next_cache = next;
  made.run(a);
  // Fewer frames than the next cache needs, and a padding mode that is not zero.
  p.cached_frames = 0;
  p.pad_begin[0] = 2;
  p.pad_mode[0] = PadMode::replicate;
  const Plan replicated = plan(p, {.dtype = DType::fp32, .device = Device::cpu});
  a.cache = {};
  expect_error(Status::invalid_argument, {"next_cache takes 2 frames", "have 1", "replicate"},
               [&] { replicated.run(a); });
}

TEST(Plan, RefusesWhatThirtyTwoBitsCannotHold) {
  // A row of 2^16 pixels and 2^16 filters.
  const Conv2dProblemShape p{
      .in_height = 1, .in_width = 65536, .in_channels = 1, .out_channels = 65536};
  const auto lines = candidates(p, {.device = Device::cpu});
  const auto line = std::find_if(lines.begin(), lines.end(),
                                 [](const Candidate& c) { return c.kernel == "onednn"; });
  ASSERT_NE(line, lines.end());
  EXPECT_NE(line->reason.find("elements of an output row = 4294967296"), std::string::npos);
}

TEST(Plan, RefusesStridesPastThirtyTwoBitsByTheirName) {
  for (const std::int64_t stride : {std::int64_t{1} << 31, std::int64_t{1} << 62, INT64_MAX}) {
    const Conv2dProblemShape p{
        .in_height = 4, .in_width = 4, .in_channels = 2, .out_channels = 2, .stride_h = stride};
    const Support support = supports(p, {.device = Device::cpu});
    EXPECT_NE(support.reason.find("onednn: stride = " + std::to_string(stride) + ";"),
              std::string::npos)
        << support.reason;
  }
}

TEST(Log, DispatchAndTraceAreVersionedCsv) {
  Tensors t;
  set_log_level(LogLevel::trace);
  ::testing::internal::CaptureStderr();
  const Plan p = plan(kProblem, {.dtype = DType::fp32, .device = Device::cpu});
  p.run(t.arguments());
  const std::string lines = ::testing::internal::GetCapturedStderr();
  set_log_level(LogLevel::off);
  EXPECT_NE(lines.find("convoy,v1,dispatch,chosen,n1h8w8c4k8r3s3ph1pw1,fp32,none,onednn,"),
            std::string::npos)
      << lines;
  EXPECT_NE(lines.find("convoy,v1,trace,run,n1h8w8c4k8r3s3ph1pw1,onednn,"), std::string::npos)
      << lines;
  ::testing::internal::CaptureStderr();
  fp32_plan().run(t.arguments());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(Log, FallingBackToTheCpuIsSaid) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there is a GPU";
  set_log_level(LogLevel::info);
  ::testing::internal::CaptureStderr();
  plan(kProblem);
  const std::string lines = ::testing::internal::GetCapturedStderr();
  set_log_level(LogLevel::off);
  EXPECT_EQ(lines.rfind("convoy,v1,info,fallback,n1h8w8c4k8r3s3ph1pw1,", 0), 0u) << lines;
  EXPECT_NE(lines.find("CUDA"), std::string::npos) << lines;
}

#endif  // CONVOY_WITH_CPU

TEST(Log, QuotesFields) {
  set_log_level(LogLevel::info);
  ::testing::internal::CaptureStderr();
  log_line(LogLevel::info, "event", {"plain", "a,b", "say \"hi\"", "two\nlines"});
  log_line(LogLevel::dispatch, "hidden", {});
  const std::string lines = ::testing::internal::GetCapturedStderr();
  set_log_level(LogLevel::off);
  EXPECT_EQ(lines, "convoy,v1,info,event,plain,\"a,b\",\"say \"\"hi\"\"\",\"two\nlines\"\n");
}

TEST(Names, EveryEnumeratorHasOne) {
  for (int i = 0; i <= 6; ++i) EXPECT_STRNE(to_string(static_cast<Status>(i)), "unknown status");
  EXPECT_STREQ(to_string(DType::fp16), "fp16");
  EXPECT_STREQ(to_string(Layout::ndhwc), "NDHWC");
  EXPECT_STREQ(to_string(FilterLayout::trscf), "TRSCF");
  EXPECT_STREQ(to_string(PadMode::reflect), "reflect");
  EXPECT_STREQ(to_string(Device::automatic), "auto");
  EXPECT_STREQ(to_string(Activation::hardswish), "hardswish");
  EXPECT_STREQ(to_string(static_cast<DType>(77)), "unknown dtype");
  EXPECT_EQ(std::string(version()).rfind("0.1.0 (git ", 0), 0u);
}

}  // namespace
}  // namespace convoy
