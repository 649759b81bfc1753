// SPDX-License-Identifier: Apache-2.0
#include "dispatch/tuning.hpp"

#include <gtest/gtest.h>

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

TEST(Tuning, TextComesBack) {
  TuningDatabase database;
  const std::string key = tuning_key(some_request());
  database.set(key, {"portable_halo", 168.9});
  database.set("other | key", {"sm90", 1.0});
  const TuningDatabase read = TuningDatabase::parse(database.to_text(), "test");
  EXPECT_EQ(read.size(), 2u);
  const auto found = read.find(key);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->kernel, "portable_halo");
  EXPECT_DOUBLE_EQ(found->us, 168.9);
  EXPECT_FALSE(read.find("none").has_value());
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
  const auto error_of = [](const char* content) -> std::string {
    try {
      TuningDatabase::parse(content, "file");
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::io_error);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(error_of("convoy-tuning 1\n# comment\n\n1.5 k | d | t | s\n"), "accepted");
  EXPECT_NE(error_of("").find("file:1:"), std::string::npos);
  EXPECT_NE(error_of("convoy-tuning 2\n").find("file:1:"), std::string::npos);
  EXPECT_NE(error_of("convoy-tuning 1\nfast kernel | d\n").find("file:2:"), std::string::npos);
  EXPECT_NE(error_of("convoy-tuning 1\n1.5 kernel\n").find("file:2:"), std::string::npos);
  EXPECT_NE(error_of("convoy-tuning 1\n1.5x kernel | d\n").find("file:2:"), std::string::npos);
  EXPECT_NE(error_of("convoy-tuning 1\n-1 kernel | d\n").find("file:2:"), std::string::npos);
  EXPECT_NE(error_of("convoy-tuning 1\n1.5 | d\n").find("file:2:"), std::string::npos);
}

}  // namespace
}  // namespace convoy
