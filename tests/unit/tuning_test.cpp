// SPDX-License-Identifier: Apache-2.0
#include "dispatch/tuning.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <locale>

#include "dispatch/backends.hpp"
#include "dispatch/select.hpp"

namespace convoy {
namespace {

PlanRequest some_request() {
  Conv3dProblemShape shape{.batch = 1,
                           .in_depth = 4,
                           .in_height = 480,
                           .in_width = 832,
                           .in_channels = 96,
                           .out_channels = 3,
                           .filter = {3, 3, 3},
                           .pad_begin = {0, 1, 1},
                           .pad_end = {0, 1, 1},
                           .cached_frames = 2};
  PlanRequest request;
  request.geometry = geometry_of(shape);
  request.device.name = "NVIDIA H200";
  return request;
}

/// A key of a tuning file, of a layer with so many channels.
std::string some_key(int channels) {
  PlanRequest request = some_request();
  request.geometry.in_channels = channels;
  return tuning_key(request);
}

TEST(Tuning, TextComesBack) {
  TuningDatabase database;
  const std::string key = tuning_key(some_request());
  database.set(key, {"few_filters", 168.9});
  database.set(some_key(8), {"sm90", 1.0});
  const TuningDatabase read = TuningDatabase::parse(database.to_text(), "test");
  EXPECT_EQ(read.size(), 2u);
  const auto found = read.find(key);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->kernel, "few_filters");
  EXPECT_DOUBLE_EQ(found->us, 168.9);
  EXPECT_FALSE(read.find("none").has_value());
}

TEST(Tuning, ShortAndLongTimesComeBack) {
  for (const double us : {0.004, 1e-300, 0.1, 1.0 / 3, 1e16, 1e300}) {
    TuningDatabase database;
    database.set(some_key(8), {"sm90", us});
    const auto found = TuningDatabase::parse(database.to_text(), "test").find(some_key(8));
    ASSERT_TRUE(found.has_value()) << us;
    EXPECT_DOUBLE_EQ(found->us, us);
  }
}

TEST(Tuning, RefusesWhatNoFileCanHold) {
  TuningDatabase database;
  const auto refused = [&](const std::string& key, TunedKernel choice, const char* what) {
    try {
      database.set(key, std::move(choice));
      ADD_FAILURE() << "taken: " << what;
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  refused("", {"sm90", 1.0}, "key = ''");
  refused("a\nb", {"sm90", 1.0}, "key = 'a");
  refused(some_key(8), {"", 1.0}, "kernel = ''");
  refused(some_key(8), {"|", 1.0}, "kernel = '|'");
  refused(some_key(8) + "\r", {"sm90", 1.0}, "key = ");
  refused(some_key(8), {"two words", 1.0}, "kernel = 'two words'");
  for (const double us : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                          std::numeric_limits<double>::infinity()}) {
    refused(some_key(8), {"sm90", us}, "us = ");
  }
  EXPECT_EQ(database.size(), 0u);
}

// What a reader lets through, `set` takes: its errors have no line.
TEST(Tuning, OddLinesAreReadOrRefusedByTheirNumber) {
  const auto file = [](const std::string& kernel, const std::string& end) {
    return "convoy-tuning 2\n1.5 " + kernel + " | " + some_key(8) + end;
  };
  for (const std::string kernel : {"a|b", "a\rb", "|b"}) {
    const TuningDatabase read = TuningDatabase::parse(file(kernel, "\r\n"), "odd");
    EXPECT_EQ(read.find(some_key(8))->kernel, kernel);
    EXPECT_EQ(TuningDatabase::parse(read.to_text(), "again").size(), 1u);
  }
  std::string cut = file("sm90", "\r\r\n");
  cut.erase(cut.size() - 4, 1);  // Two letters and a return for the modes of padding.
  try {
    TuningDatabase::parse(cut, "odd");
    ADD_FAILURE() << "taken: " << cut;
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::io_error);
    EXPECT_NE(std::string(error.what()).find("odd:2: "), std::string::npos) << error.what();
  }
}

/// 1.024,5 for 1024.5.
class CommaPunctuation final : public std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(Tuning, KeysAndShapesAreTheSameInEveryLocale) {
  const ProblemShape shape = Conv2dProblemShape{
      .in_height = 1024, .in_width = 1024, .in_channels = 4096, .out_channels = 8};
  const std::string key = some_key(1024), name = to_string(shape);
  TuningDatabase database;
  database.set(key, {"sm90", 1024.5});
  const std::string file = database.to_text();
  const std::locale before =
      std::locale::global(std::locale(std::locale::classic(), new CommaPunctuation));
  const std::string key_there = some_key(1024), name_there = to_string(shape);
  const std::string file_there = database.to_text();
  std::locale::global(before);
  EXPECT_EQ(key_there, key);
  EXPECT_EQ(name_there, name);
  EXPECT_EQ(file_there, file);
}

TEST(Tuning, FilesWithFormerKernelNamesAreRead) {
  const std::pair<const char*, const char*> names[] = {
      {"portable_halo", "few_filters"},    {"portable_patch", "few_channels"},
      {"portable_pointwise", "pointwise"}, {"portable_depthwise", "depthwise"},
      {"portable_grouped", "grouped"},     {"portable_general", "general"},
      {"sm90_stem", "sm90_stem"}};
  std::string file = "convoy-tuning 2\n";
  int channels = 0;
  for (const auto& [before, now] : names) {
    file += std::string("1.00 ") + before + " | " + some_key(++channels) + "\n";
  }
  const TuningDatabase read = TuningDatabase::parse(file, "test");
  channels = 0;
  for (const auto& [before, now] : names) {
    const auto found = read.find(some_key(++channels));
    ASSERT_TRUE(found.has_value()) << before;
    EXPECT_EQ(found->kernel, now);
  }
}

TEST(Tuning, EveryFieldOfTheProblemIsInTheKey) {
  const PlanRequest base = some_request();
  const std::string key = tuning_key(base);
  const auto differs = [&](auto change) {
    PlanRequest request = base;
    change(request);
    return tuning_key(request) != key;
  };
  EXPECT_TRUE(differs([](PlanRequest& r) { r.device.name = "NVIDIA B200"; }));
  EXPECT_TRUE(differs([](PlanRequest& r) { r.dtype = DType::fp16; }));
  EXPECT_TRUE(differs([](PlanRequest& r) { r.output_dtype = DType::fp32; }));
  EXPECT_TRUE(differs([](PlanRequest& r) { r.packed_filter = true; }));
  EXPECT_TRUE(differs([](PlanRequest& r) { r.epilogue.residual = true; }));
  EXPECT_TRUE(differs([](PlanRequest& r) { ++r.geometry.batch; }));
  EXPECT_TRUE(differs([](PlanRequest& r) { ++r.geometry.cached_frames; }));
  EXPECT_TRUE(differs([](PlanRequest& r) { ++r.geometry.in_channels; }));
  EXPECT_TRUE(differs([](PlanRequest& r) { ++r.geometry.out_channels; }));
  EXPECT_TRUE(differs([](PlanRequest& r) { ++r.geometry.groups; }));
  EXPECT_TRUE(differs([](PlanRequest& r) { ++r.geometry.upsample; }));
  for (int axis = 0; axis < 3; ++axis) {
    EXPECT_TRUE(differs([&](PlanRequest& r) { ++r.geometry.in[axis]; }));
    EXPECT_TRUE(differs([&](PlanRequest& r) { ++r.geometry.filter[axis]; }));
    EXPECT_TRUE(differs([&](PlanRequest& r) { ++r.geometry.stride[axis]; }));
    EXPECT_TRUE(differs([&](PlanRequest& r) { ++r.geometry.dilation[axis]; }));
    EXPECT_TRUE(differs([&](PlanRequest& r) { ++r.geometry.pad_begin[axis]; }));
    EXPECT_TRUE(differs([&](PlanRequest& r) { ++r.geometry.pad_end[axis]; }));
    for (const PadMode mode : {PadMode::replicate, PadMode::reflect}) {
      EXPECT_TRUE(differs([&](PlanRequest& r) { r.geometry.pad_mode[axis] = mode; }));
    }
  }
}

TEST(Tuning, Tf32IsInTheKeyOfFp32Alone) {
  PlanRequest exact = some_request(), rounded = some_request();
  rounded.allow_tf32 = true;
  EXPECT_EQ(tuning_key(rounded), tuning_key(exact)) << "means nothing to bf16";
  exact.dtype = rounded.dtype = exact.output_dtype = rounded.output_dtype = DType::fp32;
  EXPECT_NE(tuning_key(rounded), tuning_key(exact));
}

TEST(Tuning, ClassesOfEpilogues) {
  EXPECT_EQ(epilogue_class({}), "plain");
  EXPECT_EQ(epilogue_class({.bias = true}), "plain");
  EXPECT_EQ(epilogue_class({.activation = Activation::relu}), "relu");
  EXPECT_EQ(epilogue_class({.bias = true, .activation = Activation::silu}), "activation");
  EXPECT_EQ(epilogue_class({.activation = Activation::gelu}), "activation");
  EXPECT_EQ(epilogue_class({.residual = true}), "plain+residual");
  EXPECT_EQ(epilogue_class({.activation = Activation::silu,
                            .residual = true,
                            .rounding = EpilogueRounding::each_step}),
            "activation+residual+each_step");
}

TEST(Tuning, VersionOneIsOfPlainLayers) {
  PlanRequest request = some_request();
  std::string key = tuning_key(request);
  const std::size_t epilogue = key.find("plain | ");
  ASSERT_NE(epilogue, key.npos);
  key.erase(epilogue, std::string("plain | ").size());
  const TuningDatabase read =
      TuningDatabase::parse("convoy-tuning 1\n12.5 old | " + key + "\n", "test");
  const auto found = read.find(tuning_key(request));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->kernel, "old");
  request.epilogue.activation = Activation::silu;
  EXPECT_FALSE(read.find(tuning_key(request)).has_value());
  EXPECT_EQ(read.to_text().substr(0, 16), "convoy-tuning 2\n");
}

TEST(Tuning, MergeOverrides) {
  TuningDatabase shipped, user;
  shipped.set("a", {"first", 2.0});
  shipped.set("b", {"kept", 3.0});
  user.set("a", {"second", 1.0});
  shipped.merge(user);
  EXPECT_EQ(shipped.find("a")->kernel, "second");
  EXPECT_EQ(shipped.find("b")->kernel, "kept");
}

TEST(Tuning, BadFilesAreRefusedWithTheLine) {
  const auto error_of = [](const std::string& content) -> std::string {
    try {
      TuningDatabase::parse(content, "file");
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::io_error);
      return error.what();
    }
    return "accepted";
  };
  const std::string header = "convoy-tuning 2\n", key = some_key(8), line = "1.5 k | " + key;
  EXPECT_EQ(error_of(header + "# comment\n\n" + line + "\n"), "accepted");
  // Cut anywhere but in its last line break.
  for (std::size_t length = 1; length < line.size(); ++length) {
    const std::string error = error_of(header + line.substr(0, length));
    EXPECT_NE(error.find("file:2:"), std::string::npos) << line.substr(0, length);
  }
  for (const char* time : {"inf", "nan", "1e999", "0", "-1"}) {
    EXPECT_NE(error_of(header + time + " k | " + key + "\n").find("file:2:"), std::string::npos);
  }
  for (const std::string& bad :
       {"1.5  | " + key, "1.5 two words | " + key, std::string("1.5 k | d | t |  | ") + "n1",
        "1.5 k | more | " + key}) {
    EXPECT_NE(error_of(header + bad + "\n").find("file:2:"), std::string::npos) << bad;
  }
  EXPECT_NE(error_of("").find("file:1:"), std::string::npos);
  EXPECT_NE(error_of("convoy-tuning 3\n").find("file:1:"), std::string::npos);
  EXPECT_NE(error_of("convoy-tuning 2\nfast kernel | d\n").find("file:2:"), std::string::npos);
  EXPECT_NE(error_of("convoy-tuning 2\n1.5 kernel\n").find("file:2:"), std::string::npos);
  EXPECT_NE(error_of("convoy-tuning 2\n1.5x kernel | d\n").find("file:2:"), std::string::npos);
  EXPECT_NE(error_of("convoy-tuning 2\n-1 kernel | d\n").find("file:2:"), std::string::npos);
  EXPECT_NE(error_of("convoy-tuning 2\n1.5 | d\n").find("file:2:"), std::string::npos);
}

TEST(Tuning, AGpuWithoutMultiprocessorsIsRefused) {
  const Conv2dProblemShape shape{
      .in_height = 4, .in_width = 4, .in_channels = 4, .out_channels = 4};
  DeviceInfo gpu = known_gpu("h200");
  EXPECT_NO_THROW(candidates(shape, {}, gpu));
  gpu.multiprocessors = 0;
  EXPECT_THROW(candidates(shape, {}, gpu), Error);
}

/// A CUDA kernel whose model time depends on the activation, and is wrong.
class ModelledKernel final : public KernelCandidate {
 public:
  ModelledKernel(std::string name, double us, double activation_us, bool packs_as_dense = false)
      : name_(std::move(name)),
        us_(us),
        activation_us_(activation_us),
        packs_as_dense_(packs_as_dense) {}
  std::string name() const override { return name_; }
  Device device() const override { return Device::cuda; }
  Judgement judge(const PlanRequest& request) const override {
    return us_ + (request.epilogue.activation == Activation::none ? 0.0 : activation_us_);
  }
  std::unique_ptr<ExecutablePlan> make(const PlanRequest&) const override { return nullptr; }
  bool packs_as_dense(const PlanRequest&) const override { return packs_as_dense_; }

 private:
  std::string name_;
  double us_, activation_us_;
  bool packs_as_dense_;
};

class Ranking : public testing::Test {
 protected:
  // By the model the first is the fastest; "exposed" hides nothing of an activation.
  const ModelledKernel optimist_{"optimist", 80.0, 15.0};
  const ModelledKernel exposed_{"exposed", 100.0, 30.0};
  const ModelledKernel hiding_{"hiding", 104.0, 5.0};

  /// What `tuning` makes of the kernels, best first.
  std::vector<Considered> ranked(const TuningDatabase& tuning, Activation activation,
                                 std::vector<const ModelledKernel*> kernels = {}) const {
    if (kernels.empty()) kernels = {&optimist_, &exposed_, &hiding_};
    std::vector<Considered> all;
    for (const ModelledKernel* kernel : kernels) {
      Considered entry;
      entry.kernel = kernel;
      entry.request = some_request();
      entry.request.epilogue.activation = activation;
      entry.line.kernel = kernel->name();
      entry.line.estimated_us = kernel->judge(entry.request).estimated_us;
      all.push_back(entry);
    }
    rank(all, tuning);
    return all;
  }

  static TuningDatabase measured(const std::string& kernel, double us,
                                 Activation activation = Activation::none) {
    PlanRequest request = some_request();
    request.epilogue.activation = activation;
    TuningDatabase tuning;
    tuning.set(tuning_key(request), {kernel, us});
    return tuning;
  }
};

TEST_F(Ranking, TheModelDecidesWhereNothingWasMeasured) {
  const auto all = ranked({}, Activation::silu);
  EXPECT_EQ(all[0].line.kernel, "optimist");
  EXPECT_EQ(all[0].line.estimated_us, 95.0);
  EXPECT_EQ(all[2].line.kernel, "exposed");
  // Nor does a kernel count that is not there.
  EXPECT_EQ(ranked(measured("gone", 1.0), Activation::silu)[0].line.kernel, "optimist");
}

TEST_F(Ranking, TheMeasuredKernelComesFirst) {
  const auto all = ranked(measured("exposed", 90.0), Activation::none);
  EXPECT_EQ(all[0].line.kernel, "exposed");
  EXPECT_EQ(all[0].line.estimated_us, 90.0);
  EXPECT_TRUE(all[0].tuned);
  EXPECT_EQ(all[1].line.kernel, "optimist");
}

TEST_F(Ranking, WhatHidesTheEpilogueOvertakesThePlainLayersChoice) {
  // The measured time is half the model's: so are the other kernels' and the activation's.
  const auto all = ranked(measured("exposed", 50.0), Activation::silu);
  EXPECT_EQ(all[0].line.kernel, "hiding");
  EXPECT_DOUBLE_EQ(all[0].line.estimated_us, 52.0 + 2.5);
  EXPECT_FALSE(all[0].tuned);
  // Not as fast as the model has it, since it was beaten.
  EXPECT_EQ(all[1].line.kernel, "optimist");
  EXPECT_DOUBLE_EQ(all[1].line.estimated_us, 1.03 * 50.0 + 7.5);
  EXPECT_EQ(all[2].line.kernel, "exposed");
  EXPECT_DOUBLE_EQ(all[2].line.estimated_us, 50.0 + 15.0);
}

TEST_F(Ranking, ALittleOfTheEpilogueDoesNotOvertakeThePlainLayersChoice) {
  // By the model the first is faster, plain and not; but plain it was beaten.
  const ModelledKernel rival{"rival", 103.0, 4.0};
  const auto all = ranked(measured("hiding", 104.0), Activation::silu, {&rival, &hiding_});
  EXPECT_EQ(all[0].line.kernel, "hiding");
  EXPECT_DOUBLE_EQ(all[1].line.estimated_us, 1.03 * 104.0 + 4.0);
}

TEST_F(Ranking, TheClassesOwnMeasurementBeatsThePlainOne) {
  TuningDatabase tuning = measured("hiding", 50.0);
  tuning.merge(measured("exposed", 70.0, Activation::silu));
  const auto all = ranked(tuning, Activation::gelu);  // Of SiLU's class.
  EXPECT_EQ(all[0].line.kernel, "exposed");
  EXPECT_EQ(all[0].line.estimated_us, 70.0);
  EXPECT_TRUE(all[0].tuned);
  EXPECT_EQ(ranked(tuning, Activation::none)[0].line.kernel, "hiding");
}

TEST_F(Ranking, APackedMeasurementHoldsForADenseFilterThatIsReadAlike) {
  const ModelledKernel alike{"alike", 103.0, 4.0, true};
  const ModelledKernel packs{"packs", 103.0, 4.0, false};
  PlanRequest request = some_request();
  request.packed_filter = true;
  for (const ModelledKernel* kernel : {&alike, &packs}) {
    TuningDatabase tuning;
    tuning.set(tuning_key(request), {kernel->name(), 60.0});
    const auto all = ranked(tuning, Activation::none, {&optimist_, kernel});
    EXPECT_EQ(all[0].line.kernel, kernel == &alike ? "alike" : "optimist");
    EXPECT_EQ(all[0].line.estimated_us, kernel == &alike ? 60.0 : 80.0);
  }
  // A dense measurement goes before.
  TuningDatabase tuning = measured("optimist", 70.0);
  tuning.set(tuning_key(request), {"alike", 60.0});
  EXPECT_EQ(ranked(tuning, Activation::none, {&optimist_, &alike})[0].line.kernel, "optimist");
}

/// The request that a choice of the tuning database is of; `rank` is not part of its key.
PlanRequest request_of(const std::string& key, int rank) {
  // "NVIDIA H200 | bf16>bf16 packed | plain | n1 d0+1 h1024 ..."
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin != std::string::npos;) {
    const std::size_t end = key.find(" | ", begin);
    parts.push_back(key.substr(begin, end - begin));
    begin = end == std::string::npos ? end : end + 3;
  }
  PlanRequest request;
  if (parts.size() != 4) return request;
  request.device.name = parts[0];
  for (const DType in : {DType::bf16, DType::fp16, DType::fp32}) {
    for (const DType out : {DType::bf16, DType::fp16, DType::fp32}) {
      const std::string types = std::string(to_string(in)) + ">" + to_string(out);
      if (parts[1].rfind(types + " ", 0) != 0) continue;
      request.dtype = in;
      request.output_dtype = out;
    }
  }
  request.packed_filter = parts[1].find(" packed") != std::string::npos;
  for (const Activation activation : {Activation::none, Activation::relu, Activation::silu}) {
    for (const bool residual : {false, true}) {
      const EpilogueKind kind = {.bias = true, .activation = activation, .residual = residual};
      if (epilogue_class(kind) == parts[2]) request.epilogue = kind;
    }
  }
  ConvGeometry& g = request.geometry;
  g.rank = rank;
  long v[25] = {};
  char modes[4] = {};
  if (std::sscanf(parts[3].c_str(),
                  "n%ld d%ld+%ld h%ld w%ld c%ld k%ld f%ldx%ldx%ld s%ldx%ldx%ld l%ldx%ldx%ld "
                  "p%ldx%ldx%ld:%ldx%ldx%ld g%ld u%ld %3s",
                  &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7], &v[8], &v[9], &v[10],
                  &v[11], &v[12], &v[13], &v[14], &v[15], &v[16], &v[17], &v[18], &v[19], &v[20],
                  &v[21], &v[22], &v[23], modes) != 25) {
    return request;
  }
  g.batch = v[0];
  g.cached_frames = v[1];
  g.in = {v[2], v[3], v[4]};
  g.in_channels = v[5];
  g.out_channels = v[6];
  g.groups = v[22];
  g.upsample = v[23];
  for (std::size_t axis = 0; axis < 3; ++axis) {
    g.filter[axis] = v[7 + axis];
    g.stride[axis] = v[10 + axis];
    g.dilation[axis] = v[13 + axis];
    g.pad_begin[axis] = v[16 + axis];
    g.pad_end[axis] = v[19 + axis];
    g.pad_mode[axis] = modes[axis] == 'p'   ? PadMode::replicate
                       : modes[axis] == 'f' ? PadMode::reflect
                                            : PadMode::zero;
    g.out[axis] = (g.seen()[axis] + g.pad_begin[axis] + g.pad_end[axis] -
                   g.dilation[axis] * (g.filter[axis] - 1) - 1) /
                      g.stride[axis] +
                  1;
  }
  return request;
}

/// Whether this build has the kernels of a name: what was left out cannot be asked.
bool is_built(const std::string& kernel) {
#if defined(CONVOY_WITH_SM90)
  (void)kernel;
  return true;
#elif defined(CONVOY_WITH_CUDA)
  // Composed kernels run on the ones of the architecture.
  return kernel.rfind("sm90_", 0) != 0 && kernel.rfind("im2col_", 0) != 0 &&
         kernel.rfind("qslice_", 0) != 0;
#else
  (void)kernel;
  return false;
#endif
}

TEST(ShippedTuning, EachRowNamesAKernelThatTakesTheProblem) {
  const DeviceInfo h200 = {.kind = Device::cuda,
                           .index = 0,
                           .name = "NVIDIA H200",
                           .compute_capability = 90,
                           .multiprocessors = 132,
                           .shared_memory = 232448,
                           .l2_bytes = std::size_t{60} << 20};
  const TuningDatabase shipped = shipped_tuning();
  ASSERT_GT(shipped.size(), 300u);
  int judged = 0;
  for (const auto& [key, choice] : shipped.choices()) {
    SCOPED_TRACE(choice.kernel + " | " + key);
    PlanRequest request = request_of(key, 3);
    ASSERT_EQ(tuning_key(request), key) << "not understood";
    ASSERT_EQ(request.device.name, h200.name) << "what device is that?";
    EXPECT_GT(choice.us, 0.0);
    if (!is_built(choice.kernel)) continue;
    request.device = h200;
    const auto found = std::find_if(
        registry().begin(), registry().end(),
        [&, &name = choice.kernel](const auto& kernel) { return kernel->name() == name; });
    if (found == registry().end()) {
      ADD_FAILURE() << "no such kernel";
      continue;
    }
    std::string refusal = (*found)->judge(request).refusal;
    if (!refusal.empty() && request.geometry.in[0] == 1 && request.geometry.filter[0] == 1) {
      request.geometry.rank = 2;
      refusal = (*found)->judge(request).refusal;
    }
    EXPECT_EQ(refusal, "");
    ++judged;
  }
#ifdef CONVOY_WITH_SM90
  EXPECT_EQ(judged, static_cast<int>(shipped.size()));
#endif
}

}  // namespace
}  // namespace convoy
