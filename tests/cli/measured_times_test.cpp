// SPDX-License-Identifier: Apache-2.0
#include "measured_times.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "memory_file.hpp"
#include "unit/expect_error.hpp"

namespace convoy::cli {
namespace {

/// A file with this text, as the reader sees it.
std::vector<MeasuredTime> read(const std::string& text) {
  const io::TemporaryFolder folder;
  const std::string path = folder / "times.csv";
  std::ofstream(path) << text;
  return read_measured_times(path);
}

void expect_refusal(const char* part, const std::string& text) {
  test::expect_error(Status::io_error, {part}, [&] { read(text); });
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
  expect_refusal("empty", "");
  expect_refusal("no column 'kernel'", "problem,us\n");
  expect_refusal(":3: 2 fields", "problem,kernel,us\n# x\nn1h8w8c64k64r1s1,general\n");
  expect_refusal(":2: us = 'fast'; legal: a number", "problem,kernel,us\na,b,fast\n");
  expect_refusal("splits = '2x'", "problem,kernel,us,splits\na,b,1,2x\n");
  test::expect_error(Status::io_error, {"/nowhere/times.csv"},
                     [] { read_measured_times("/nowhere/times.csv"); });
  const io::TemporaryFolder folder;
  test::expect_error(Status::io_error, {"regular file"},
                     [&] { read_measured_times(folder / "."); });
}

}  // namespace
}  // namespace convoy::cli
