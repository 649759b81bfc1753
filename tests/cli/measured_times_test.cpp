// SPDX-License-Identifier: Apache-2.0
#include "measured_times.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "convoy/error.hpp"

namespace convoy::cli {
namespace {

/// A file with this text, as the reader sees it.
std::vector<MeasuredTime> read(const std::string& text) {
  const std::string path = testing::TempDir() + "measured_times_test.csv";
  std::ofstream(path, std::ios::trunc) << text;
  return read_measured_times(path);
}

std::string refusal(const std::string& text) {
  try {
    read(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::io_error);
    return error.what();
  }
  return "";
}

TEST(MeasuredTimes, ColumnsByName) {
  const std::vector<MeasuredTime> times = read(
      "# one H100\n"
      "us,kernel,problem,epilogue,splits,dtype,modelled_us,runs\n"
      "\n"
      "7.25,sm90_fprop_64x64_splitk_bf16,n1h8w8c64k64r1s1,bias_fp32+silu,3,fp16,6.5,9\r\n");
  ASSERT_EQ(times.size(), 1u);
  EXPECT_EQ(times[0].problem, "n1h8w8c64k64r1s1");
  EXPECT_EQ(times[0].dtype, "fp16");
  EXPECT_EQ(times[0].epilogue, "bias_fp32+silu");
  EXPECT_EQ(times[0].kernel, "sm90_fprop_64x64_splitk_bf16");
  EXPECT_EQ(times[0].splits, 3);
  EXPECT_EQ(times[0].us, 7.25);
  EXPECT_EQ(times[0].modelled_us, 6.5);
  EXPECT_EQ(times[0].layer(), "n1h8w8c64k64r1s1 fp16 bias_fp32+silu");
}

TEST(MeasuredTimes, WhatOlderFilesLack) {
  const std::vector<MeasuredTime> times = read("problem,kernel,us\nn1h8w8c64k64r1s1,general,12\n");
  ASSERT_EQ(times.size(), 1u);
  EXPECT_EQ(times[0].layer(), "n1h8w8c64k64r1s1 bf16 none");
  EXPECT_EQ(times[0].splits, 0);
  EXPECT_EQ(times[0].modelled_us, 0);
}

TEST(MeasuredTimes, Refusals) {
  EXPECT_NE(refusal("").find("empty"), std::string::npos);
  EXPECT_NE(refusal("problem,us\n").find("no column 'kernel'"), std::string::npos);
  EXPECT_NE(refusal("problem,kernel,us\n# x\nn1h8w8c64k64r1s1,general\n").find(":3: 2 fields"),
            std::string::npos);
  EXPECT_NE(refusal("problem,kernel,us\na,b,fast\n").find(":2: us = 'fast'; legal: a number"),
            std::string::npos);
  EXPECT_NE(refusal("problem,kernel,us,splits\na,b,1,2x\n").find("splits = '2x'"),
            std::string::npos);
  EXPECT_THROW(read_measured_times("/nowhere/times.csv"), Error);
}

}  // namespace
}  // namespace convoy::cli
