// SPDX-License-Identifier: Apache-2.0
// The registers check on straight-line PTX: which register is reported, if any.
#include <gtest/gtest.h>

#include "check/register_hazards.hpp"

namespace vgpu::check {
namespace {

/// The name of the first register that one warp accesses against the rules, with ".fence" where a
/// wgmma.fence is missing; empty: none.
std::string hazard(const std::string& body) {
  const auto module = ptx::parse(
      ".version 9.0\n.target sm_100a\n.address_size 64\n.visible .entry k()\n{\n"
      ".reg .b32 %r<16>;\n.reg .f32 %f<16>;\n.reg .b64 %rd<8>;\n" +
      body + "ret;\n}\n");
  const ptx::Function& function = module->functions.front();
  const FunctionRegisters registers(*module, function);
  WarpRegisters warp;
  Epoch loads = 1, products = 1;  // the open groups
  for (size_t i = 0; i < function.code.size(); ++i) {
    const std::string& form = module->forms[function.code[i].form].text;
    if (form.starts_with("tcgen05.wait::ld")) warp.loads_done(loads++);
    if (form.starts_with("wgmma.wait_group")) warp.wgmma_done(products++);
    if (form.starts_with("wgmma.fence")) warp.wgmma_fence();
    const RegisterHazard found = warp.execute(registers, i, &function.code[i], products, loads);
    if (found.slot) return *found.name + (found.missing_fence ? ".fence" : "");
  }
  return "";
}

const std::string kLoad = "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r0, %r1}, [%r9];\n";
const std::string kWaitLoad = "tcgen05.wait::ld.sync.aligned;\n";

TEST(RegisterHazards, ResultOfALoad) {
  EXPECT_EQ(hazard(kLoad + "add.s32 %r5, %r1, 1;\n"), "%r1");
  EXPECT_EQ(hazard(kLoad + kWaitLoad + "add.s32 %r5, %r1, 1;\n"), "");
  EXPECT_EQ(hazard(kLoad + "add.s32 %r5, %r6, 1;\n"), "");
}

TEST(RegisterHazards, ResultsAreFollowedThroughMoves) {
  EXPECT_EQ(hazard(kLoad + "mov.b32 %r5, %r1;\n"), "") << "a move is no access";
  EXPECT_EQ(hazard(kLoad + "mov.b32 %r5, %r1;\nadd.s32 %r6, %r5, 1;\n"), "%r5");
  EXPECT_EQ(hazard(kLoad + "mov.b32 %r5, %r1;\n" + kWaitLoad + "add.s32 %r6, %r5, 1;\n"), "");
  // Two moves, the second before the first in the text.
  EXPECT_EQ(hazard("mov.b32 %r6, %r5;\n" + kLoad + "mov.b32 %r5, %r1;\nmov.b32 %f6, %r5;\n" +
                   "add.f32 %f7, %f6, %f8;\n"),
            "%f6");
  // Packed and unpacked.
  EXPECT_EQ(hazard(kLoad + "mov.b64 %rd1, {%r8, %r1};\nst.global.b64 [%rd2], %rd1;\n"), "%rd1");
  EXPECT_EQ(hazard(kLoad + "mov.b64 %rd1, {%r8, %r1};\nmov.b64 {%r5, %r6}, %rd1;\n" +
                   "add.s32 %r7, %r6, 1;\n"),
            "%r6");
}

TEST(RegisterHazards, AnotherValueTakesTheResultsPlace) {
  EXPECT_EQ(hazard(kLoad + "mov.b32 %r1, 7;\nadd.s32 %r5, %r1, 1;\n"), "");
  EXPECT_EQ(hazard(kLoad + "mov.b32 %r1, %r8;\nadd.s32 %r5, %r1, 1;\n"), "");
  EXPECT_EQ(hazard(kLoad + "mov.b32 %r1, %r8;\nadd.s32 %r5, %r0, 1;\n"), "%r0");
}

const std::string kProduct =
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %rd0, %rd1, 1, 1, "
    "1, 0, 0;\n";
const std::string kFence = "wgmma.fence.sync.aligned;\n",
                  kWaitProduct = "wgmma.wait_group.sync.aligned 0;\n";

TEST(RegisterHazards, Accumulators) {
  EXPECT_EQ(hazard(kFence + kProduct + "add.f32 %f8, %f1, %f9;\n"), "%f1");
  EXPECT_EQ(hazard(kFence + kProduct + "mov.f32 %f5, %f1;\nadd.f32 %f8, %f5, %f9;\n"), "%f5");
  EXPECT_EQ(hazard(kFence + kProduct + kWaitProduct + "add.f32 %f8, %f1, %f9;\n"), "");
  // A constant over an accumulator does not end the product.
  EXPECT_EQ(hazard(kFence + kProduct + "mov.f32 %f1, 0f00000000;\nadd.f32 %f8, %f1, %f9;\n"),
            "%f1");
}

TEST(RegisterHazards, AnAccumulatorChangedNeedsAFence) {
  const std::string start = kFence + kProduct + kWaitProduct;
  EXPECT_EQ(hazard(start + kProduct), "");
  EXPECT_EQ(hazard(start + "mul.f32 %f1, %f1, %f9;\n" + kProduct), "%f1.fence");
  EXPECT_EQ(hazard(start + "mul.f32 %f1, %f1, %f9;\n" + kFence + kProduct), "");
  // Changed under another name.
  EXPECT_EQ(
      hazard(start + "mov.f32 %f5, %f1;\nmul.f32 %f5, %f5, %f9;\nmov.f32 %f1, %f5;\n" + kProduct),
      "%f1.fence");
}

}  // namespace
}  // namespace vgpu::check
