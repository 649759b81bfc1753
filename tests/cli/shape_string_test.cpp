// SPDX-License-Identifier: Apache-2.0
#include "shape_string.hpp"

#include "memory_file.hpp"
#include "shape_file.hpp"

namespace convoy::cli {
namespace {

std::string again(const std::string& text) {
  return to_string(parse_shape(text).problem);
}

std::string refused(const std::string& text) {
  try {
    parse_shape(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument);
    return error.what();
  }
  return "accepted";
}

TEST(ShapeString, ReadsWhatAProblemPrints) {
  for (const char* text : {
           "n1h256w256c512k512r3s3ph1pw1",
           "n64h224w224c3k64r7s7ph3sh2pw3sw2",
           "n1h8w9c4k6r1s3g2",
           "n1h64w64c8k8r3s3phe1dh2pw2pwe1dw3",
           "n1h64w64c8k8r3s3ph1mh2pw1mw2up2",
           "n1d4h120w208c384k384t3r3s3ph1pw1cache2",
           "n1d1h1024w1024c96k96t3r3s3pd2pde0ph1pw1",
           "n2d5h6w7c8k8t3r1s1sd2dd2md1",
           "n0h1w1c1k0r1s1",
       }) {
    EXPECT_EQ(again(text), text);
  }
}

TEST(ShapeString, TakesFieldsInAnyOrderWithDefaults) {
  EXPECT_EQ(again("c4k8h5w6"), "n1h5w6c4k8r1s1");
  EXPECT_EQ(again("k8c4w6h5s3r3pw1ph1"), "n1h5w6c4k8r3s3ph1pw1");
}

TEST(ShapeString, ReadsBenchdnn) {
  EXPECT_EQ(again("mb1ic512ih256oc512oh256kh3ph1n\"up1\""), "n1h256w256c512k512r3s3ph1pw1");
  EXPECT_EQ(parse_shape("mb1ic8ih4oc8kh1n\"up1\"").name, "up1");
  // Dilation counts from 0.
  EXPECT_EQ(again("mb2ic8ih16oc8oh16kh3ph2dh1"), "n2h16w16c8k8r3s3ph2dh2pw2dw2");
  // The output extent says how much padding there is at the end: 7 + 0 + x = 4·2 + 1.
  EXPECT_EQ(again("g2mb1_ic8_ih8_oc8_oh4_kh3sh2ph0"), "n1h8w8c8k8r3s3phe1sh2pwe1sw2g2");
  // 112 = (224 + 3 + 3 - 7) / 2 + 1 leaves a row over: the padding is symmetric.
  EXPECT_EQ(again("mb1ic3ih224oc64oh112kh7sh2ph3"), "n1h224w224c3k64r7s7ph3sh2pw3sw2");
  EXPECT_EQ(again("mb1ic8id4ih5iw6oc8kd3kh3kw3pd1ph1pw1"), "n1d4h5w6c8k8t3r3s3pd1ph1pw1");
}

TEST(ShapeString, ReadsMiopen) {
  const ParsedShape parsed = parse_shape(
      "./bin/MIOpenDriver convbfp16 -n 1 -c 512 -H 256 -W 128 -k 64 -y 3 -x 5 -p 1 -q 2 -u 2 -v 1 "
      "-l 1 -j 2 -m conv -g 4 -F 1");
  EXPECT_EQ(to_string(parsed.problem), "n1h256w128c512k64r3s5ph1sh2pw2dw2g4");
  EXPECT_EQ(parsed.dtype, DType::bf16);
  EXPECT_EQ(again("conv -n 1 -c 8 -_ 3 -! 4 -H 5 -W 6 -k 8 -@ 3 -y 3 -x 3 -$ 1 -p 1 -q 1"),
            "n1d4h5w6c8k8t3r3s3pd1ph1pw1");
}

TEST(ShapeString, RefusesWithTheReason) {
  const auto expect = [](const std::string& text, const std::string& reason) {
    EXPECT_NE(refused(text).find(reason), std::string::npos) << text << ": " << refused(text);
  };
  expect("", "is empty");
  expect("  ", "is empty");
  expect("n1h2w3c4", "field 'k' is missing");
  expect("n1h2w3c4kx5", "unknown field 'kx'");
  expect("n1h2w3c4k5k5", "field 'k' is given twice");
  expect("n1h2w3c4k", "field 'k' has no number");
  expect("n1h2w3c4k99999999999999999999", "does not fit 64 bits");
  expect("5n1", "a field's name expected");
  expect("n1h2w3c4k5cache2", "field 'cache' does not belong to a 2-D shape");
  expect("n1d2h2w3c4k5up2", "field 'up' does not belong to a 3-D shape");
  expect("n1h2w3c4k5t3", "field 'd' is missing");
  expect("n1h2w3c4k5mh3mw3", "legal: 0 (zero)");
  expect("n1h2w3c4k5mh1", "mh and mw differ");
  expect("mb1ic4oc4", "field 'ih' is missing");
  expect("mb1ic4ih4oc4kh3zz1", "unknown field 'zz'");
  expect("mb1ic4ih9999999999oc4kh3", "legal: at most");
  expect("mb1ic4ih4oc4n\"open", "is not closed");
  expect("conv -n 1 -c", "option '-c' has no value");
  expect("conv -n 1 -Z 3", "unknown option '-Z'");
  expect("conv -n one", "has no number");
  expect("convint8 -n 1", "unknown operation");
  expect("conv -F 2", "legal: 1, forward");
  expect(std::string(5000, 'n'), "5000 characters");
  expect("n1h2w3c4k5\x01", "not printable");
}

TEST(ShapeString, LeavesJudgementToValidate) {
  const ParsedShape parsed = parse_shape("n1h-2w3c4k5r9s9");
  EXPECT_THROW(std::visit([](const auto& p) { p.validate(); }, parsed.problem), Error);
}

TEST(ShapeFile, ReadsCountsNamesAndComments) {
  const io::TemporaryFolder folder;
  std::ofstream(folder / "set.txt") << "# a comment\n\n"
                                       "n1h8w8c4k4r3s3  count=7  name=a.b  # the end\n"
                                       "conv -n 1 -c 8 -H 4 -W 4 -k 8 -y 1 -x 1 count=2\r\n";
  const auto cases = read_shape_file(folder / "set.txt");
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_EQ(cases[0].count, 7);
  EXPECT_EQ(cases[0].name, "a.b");
  EXPECT_EQ(to_string(cases[1].problem), "n1h4w4c8k8r1s1");
  EXPECT_EQ(cases[1].count, 2);
}

TEST(ShapeFile, ReadsTypesAndEpilogues) {
  const io::TemporaryFolder folder;
  std::ofstream(folder / "set.txt")
      << "n1h8w8c4k4r3s3 dtype=fp16 epilogue=bias+silu+residual name=a\n"
         "n1h8w8c4k4r3s3 epilogue=none\n"
         "n1h8w8c4k4r3s3\n"
         "convbfp16 -n 1 -c 8 -H 4 -W 4 -k 8 -y 1 -x 1 dtype=fp32\n";
  const auto cases = read_shape_file(folder / "set.txt");
  ASSERT_EQ(cases.size(), 4u);
  EXPECT_EQ(cases[0].dtype, DType::fp16);
  EXPECT_EQ(cases[0].epilogue, (EpilogueKind{.bias = true,
                                             .bias_dtype = DType::fp32,
                                             .activation = Activation::silu,
                                             .residual = true}));
  EXPECT_EQ(cases[1].epilogue, EpilogueKind{});
  EXPECT_FALSE(cases[1].dtype.has_value());
  EXPECT_FALSE(cases[2].epilogue.has_value());
  EXPECT_EQ(cases[3].dtype, DType::fp32);  // The file's word is the last.
}

TEST(ShapeFile, EpiloguesAreAsTheirKindsArePrinted) {
  for (int i = 0; i <= static_cast<int>(Activation::clamp); ++i) {
    for (const ResidualOrder order :
         {ResidualOrder::after_activation, ResidualOrder::before_activation}) {
      const EpilogueKind kind{
          .bias = i % 2 == 0,
          .bias_dtype = i % 4 == 0 ? DType::bf16 : DType::fp32,
          .activation = static_cast<Activation>(i),
          .residual = true,
          .order = order,
          .rounding = i % 3 == 0 ? EpilogueRounding::each_step : EpilogueRounding::once};
      EpilogueKind expected = kind;
      if (!kind.bias) expected.bias_dtype = EpilogueKind{}.bias_dtype;
      EXPECT_EQ(parse_epilogue(to_string(kind)), expected) << to_string(kind);
    }
  }
  EXPECT_EQ(parse_epilogue("none"), EpilogueKind{});
  for (const char* wrong : {"", "silly", "bias+", "bias_int8", "relu++residual", "NONE"}) {
    EXPECT_THROW(parse_epilogue(wrong), Error) << wrong;
  }
}

TEST(ShapeFile, RefusesWordsThatItDoesNotKnowOrKnowsAlready) {
  const io::TemporaryFolder folder;
  const auto error_of = [&](const std::string& words) -> std::string {
    std::ofstream(folder / "set.txt") << "n1h4w4c4k8 " << words << "\n";
    try {
      read_shape_file(folder / "set.txt");
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(error_of("count=2 name=a dtype=bf16 epilogue=bias+residual_before_activation+silu"),
            "accepted");
  const std::pair<const char*, const char*> wrong[] = {
      {"cuont=2", "'cuont' is not known; legal: count, name, dtype, epilogue; nearest: count"},
      {"count=2 count=3", "count is given twice"},
      {"epilogue=none+relu", "'none' among others"},
      {"epilogue=relu+silu", "legal: one activation"},
      {"epilogue=bias+bias_bf16", "a bias is given twice"},
      {"epilogue=residual+residual", "a residual is given twice"},
      {"epilogue=residual+silu", "legal: silu+residual, or residual_before_activation+silu"},
      {"epilogue=silu+residual_before_activation", "behind 'silu'"},
      {"epilogue=each_step+each_step", "each_step is given twice"}};
  for (const auto& [words, reason] : wrong) {
    EXPECT_NE(error_of(words).find(reason), std::string::npos) << words << ": " << error_of(words);
  }
}

TEST(ShapeFile, NamesTheLine) {
  const io::TemporaryFolder folder;
  std::ofstream(folder / "set.txt") << "n1h8w8c4k4r3s3\nn1h8w8c4\n";
  try {
    read_shape_file(folder / "set.txt");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("set.txt:2: shape: field 'k' is missing"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace convoy::cli
