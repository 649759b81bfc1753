// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fault.hpp"
#include "ptx/module.hpp"

namespace vgpu::ptx {
namespace {

const char kModule[] = R"(
// a comment
.version 9.0
.target sm_90a, debug
.address_size 64
.file 1 "a.cu"
.extern .shared .align 1024 .b8 dynamic[];
.const .align 4 .f32 factor[2] = {0f3F800000, 0d4000000000000000};
.visible .global .align 8 .u64 pointer = generic(factor)+4;
.func (.param .b32 result) helper(.param .b64 p, .param .align 16 .b8 block[32]);
.visible .entry kernel(.param .u64 .ptr .global .align 16 a, .param .u8 b,
                       .param .align 64 .b8 map[128])
.maxntid 384, 1, 1
.reqnctapercluster 2, 1, 1
.minnctapersm 2
{
  .reg .pred %p<3>;
  .reg .b32 %r<10>, %other;
  .reg .b64 %rd<4>;
  /* block
     comment */
  .loc 1 42 7, function_name $L__info0, inlined_at 1 3 4
  @!%p1 bra.uni $L_end;
  {
    .reg .b32 %r<2>;
    $L_end: mov.u32 %r1, %tid.x;
    bra $L_end;
  }
  ld.global.v2.u32 {%r1, _}, [%rd1+-8];
  cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd2, {%r3, %r4}], [%r5 + 16];
  elect.sync %r1|%p2, -1;
$L_end:
  ret;
}
.section .debug_str { $L__info0: .b8 97, 0 }
)";

TEST(Parser, Module) {
  auto module = parse(kModule);
  EXPECT_EQ(module->version_major, 9u);
  EXPECT_EQ(module->target, "sm_90a");
  ASSERT_EQ(module->functions.size(), 1u);
  auto& f = module->functions[0];
  EXPECT_TRUE(f.is_entry);
  EXPECT_EQ(f.maxntid[0], 384u);
  EXPECT_EQ(f.reqnctapercluster[0], 2u);
  EXPECT_EQ(f.minnctapersm, 2u);
  // Offsets: u64 at 0, u8 at 8, the 64-byte aligned map at 64.
  ASSERT_EQ(f.params.size(), 3u);
  EXPECT_EQ(module->variables[f.params[1]].offset, 8u);
  EXPECT_EQ(module->variables[f.params[2]].offset, 64u);
  EXPECT_EQ(f.param_bytes, 192u);
  ASSERT_EQ(f.code.size(), 7u);

  auto& branch = f.code[0];
  EXPECT_TRUE(branch.guard_negated);
  EXPECT_EQ(branch.loc_line, 42u);
  EXPECT_EQ(branch.loc_file, 1u);
  EXPECT_EQ(branch.inlined_file, 1u);
  EXPECT_EQ(branch.inlined_line, 3u);
  EXPECT_EQ(f.operands[branch.first].kind, Operand::Kind::label);
  EXPECT_EQ(f.operands[branch.first].index, 6u);  // the outer label
  auto& inner = f.code[2];
  EXPECT_EQ(f.operands[inner.first].index, 1u);  // the inner one hides it

  auto& load = f.code[3];
  EXPECT_EQ(module->forms[load.form].text, "ld.global.v2.u32");
  auto& vector = f.operands[load.first];
  ASSERT_EQ(vector.kind, Operand::Kind::vector);
  EXPECT_EQ(f.operands[vector.first + 1].kind, Operand::Kind::sink);
  EXPECT_EQ(f.operands[load.first + 1].value, -8);
  // The inner scope's %r1 is another register than the outer one's.
  EXPECT_NE(f.operands[vector.first].index, f.operands[f.code[1].first].index);

  auto& copy = f.code[4];
  auto& form = module->forms[copy.form];
  EXPECT_TRUE(form.has("shared::cluster"));
  EXPECT_TRUE(form.has("mbarrier::complete_tx::bytes"));
  auto& map = f.operands[copy.first + 1];
  ASSERT_EQ(map.count, 2u);
  EXPECT_EQ(f.operands[map.first + 1].kind, Operand::Kind::vector);
  EXPECT_EQ(f.operands[f.code[5].first].kind, Operand::Kind::pair);
}

TEST(Parser, Variables) {
  auto module = parse(kModule);
  ASSERT_EQ(module->globals.size(), 2u);
  auto& factor = module->variables[module->globals[0]];
  EXPECT_EQ(factor.space, Space::constant);
  const std::vector<uint8_t> ones = {0, 0, 0x80, 0x3f, 0, 0, 0, 0x40};
  EXPECT_EQ(factor.init, ones);
  auto& pointer = module->variables[module->globals[1]];
  ASSERT_EQ(pointer.relocations.size(), 1u);
  EXPECT_EQ(pointer.relocations[0].symbol, "factor");
  EXPECT_EQ(pointer.relocations[0].addend, 4);
}

TEST(Parser, DisplacementsWrapAround) {
  auto module = parse(
      ".entry k() { .reg .b64 %r; "
      "ld.u8 %r, [%r+9223372036854775807+9223372036854775807+3]; }");
  auto& f = module->functions[0];
  EXPECT_EQ(f.operands[f.code[0].first + 1].value, 1);
}

void expect_error(const std::string& text, const std::string& part) {
  try {
    parse(text);
    ADD_FAILURE() << "accepted: " << text;
  } catch (const Fault& fault) {
    EXPECT_EQ(fault.cuda_error, kInvalidPtx);
    EXPECT_NE(fault.text.find(part), std::string::npos) << fault.text;
  }
}

// PTX ISA, "Floating-Point Constants": the fraction and the exponent are optional.
TEST(Parser, FloatingPointConstants) {
  const auto value = [](const std::string& text) {
    const auto module = parse(
        ".version 9.0\n.target sm_90a\n.address_size 64\n"
        ".visible .entry k() {\n.reg .f64 %d;\nmov.f64 %d, " +
        text + ";\nret;\n}\n");
    const Function& f = module->functions[0];
    const Operand& operand = f.operands[f.code[0].first + 1];
    EXPECT_EQ(operand.float_imm, Operand::FloatImm::f64) << text;
    return std::bit_cast<double>(operand.value);
  };
  EXPECT_EQ(value("0."), 0.0);
  EXPECT_EQ(value("-3."), -3.0);
  EXPECT_EQ(value("1.5"), 1.5);
  EXPECT_EQ(value("1e2"), 100.0);
  EXPECT_EQ(value("25E-2"), 0.25);
  EXPECT_EQ(value("-1.5e+1"), -15.0);
  EXPECT_EQ(value("2.e3"), 2000.0);
  EXPECT_THROW(value("1.5x"), Fault);
  EXPECT_THROW(value("1e"), Fault);
}

TEST(Parser, Errors) {
  expect_error("hello", "line 1");
  expect_error(".version 9.0\n.entry k() { add.s32 %r0, %r1 }", "line 2");
  expect_error(".entry k() { mov.u32 %r0, [%tid.x }", "expected ']'");
  expect_error(".entry k() { .reg .b32 %r; @%r bra X; X: ret; }", "not a predicate");
  expect_error(".entry k() {", "'}'");
  expect_error(".global .align 3 .b8 x[4];", "power of two");
  expect_error(".entry k() { mov.b32 x, " + std::string(100000, '(') + "; }", "nested");
  expect_error(".global .b8 x[99999999999][99999999999];", "too large");
  expect_error(".entry k(.param .b8 x[4294967296][4294967296]) {}", "parameter too large");
  expect_error(".entry k(.param .b8 x[-1]) {}", "parameter too large");
  expect_error(".global .b8 x[0] = {1};", "too many initial values");
}

}  // namespace
}  // namespace vgpu::ptx
