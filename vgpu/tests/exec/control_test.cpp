// SPDX-License-Identifier: Apache-2.0
// Control flow: divergence, loops, tables, calls, exits.
#include "exec/harness.hpp"

namespace vgpu::test {
namespace {

TEST(Control, VectorAdd) {
  Buffers buffers;
  const uint32_t n = 1000;
  std::vector<float> a(n), b(n);
  for (uint32_t k = 0; k < n; ++k) {
    a[k] = static_cast<float>(k), b[k] = 0.5f * static_cast<float>(k);
  }
  uint64_t pa = buffers.add(a), pb = buffers.add(b), pc = buffers.add(n * 4);
  auto text = kernel_text(".param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n", R"(
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<11>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [c];
    ld.param.u32 %r2, [n];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r1, %r3, %r4, %r5;
    setp.ge.s32 %p1, %r1, %r2;
    @%p1 bra $L__BB0_2;
    cvta.to.global.u64 %rd4, %rd1;
    mul.wide.s32 %rd5, %r1, 4;
    add.s64 %rd6, %rd4, %rd5;
    cvta.to.global.u64 %rd7, %rd2;
    add.s64 %rd8, %rd7, %rd5;
    ld.global.f32 %f1, [%rd8];
    ld.global.f32 %f2, [%rd6];
    add.f32 %f3, %f2, %f1;
    cvta.to.global.u64 %rd9, %rd3;
    add.s64 %rd10, %rd9, %rd5;
    st.global.f32 [%rd10], %f3;
$L__BB0_2:
    ret;)");
  Launch launch;
  launch.grid.x = 8;
  launch.block.x = 128;
  auto result = run_module(text, Params() << pa << pb << pc << n, buffers, launch);
  ASSERT_EQ(result.cuda_error, 0) << result.report;
  auto c = buffers.read<float>(pc, n);
  for (uint32_t k = 0; k < n; ++k) EXPECT_EQ(c[k], a[k] + b[k]) << k;
  EXPECT_GT(result.warp_instructions, 8u * 4 * 10);
}

const char kRegisters[] = R"(
  .reg .pred %p<4>;
  .reg .b32 %lane, %r<16>;
  .reg .b64 %rout, %ro, %rd<4>;
  mov.u32 %lane, %tid.x;
  ld.param.u64 %rout, [out];
  mul.wide.u32 %ro, %lane, 4;
  add.s64 %ro, %rout, %ro;
)";

std::vector<uint32_t> run_lanes(const std::string& body, const std::string& before = "") {
  Buffers buffers;
  uint64_t out = buffers.add(32 * 4);
  auto text = kernel_text(".param .u64 out", kRegisters + body + "\nret;", before);
  auto result = run_module(text, Params() << out, buffers);
  EXPECT_EQ(result.cuda_error, 0) << result.report;
  return buffers.read<uint32_t>(out, 32);
}

TEST(Control, LoopsOfDifferentLength) {
  // Lane l sums 0 .. l; inside, odd counts take another path; lanes meet again for the shuffle.
  auto out = run_lanes(R"(
    mov.u32 %r0, 0;
    mov.u32 %r1, 0;
LOOP:
    and.b32 %r2, %r0, 1;
    setp.eq.u32 %p0, %r2, 1;
    @%p0 bra ODD;
    add.s32 %r1, %r1, %r0;
    bra NEXT;
ODD:
    add.s32 %r1, %r1, %r0;
    add.s32 %r1, %r1, 100;
NEXT:
    add.s32 %r0, %r0, 1;
    setp.le.u32 %p1, %r0, %lane;
    @%p1 bra LOOP;
    shfl.sync.idx.b32 %r3, %r1, 31, 31, -1;
    add.s32 %r1, %r1, %r3;
    st.global.u32 [%ro], %r1;)");
  auto sum = [](uint32_t l) { return l * (l + 1) / 2 + (l + 1) / 2 * 100; };
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(out[l], sum(l) + sum(31)) << l;
}

TEST(Control, BranchTables) {
  auto out = run_lanes(R"(
    and.b32 %r0, %lane, 3;
targets: .branchtargets A, B, C, A;
    brx.idx %r0, targets;
A:  mov.u32 %r1, 10;
    bra DONE;
B:  mov.u32 %r1, 20;
    bra DONE;
C:  mov.u32 %r1, 30;
DONE:
    st.global.u32 [%ro], %r1;)");
  const uint32_t want[] = {10, 20, 30, 10};
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(out[l], want[l & 3]);
}

const char kFunctions[] = R"(
.func (.param .b32 result) twice(.param .b32 x)
{
  .reg .b32 %r<3>;
  ld.param.b32 %r0, [x];
  add.s32 %r1, %r0, %r0;
  st.param.b32 [result], %r1;
  ret;
}
.func (.param .b32 result) twice_plus(.param .b32 x, .param .align 4 .b8 block[8])
{
  .reg .pred %p;
  .reg .b32 %r<6>;
  ld.param.b32 %r0, [x];
  setp.gt.u32 %p, %r0, 20;
  @%p bra BIG;
  { .param .b32 a; .param .b32 b;
    st.param.b32 [a], %r0;
    call.uni (b), twice, (a);
    ld.param.b32 %r1, [b];
  }
  ld.param.b32 %r2, [block+4];
  add.s32 %r1, %r1, %r2;
  st.param.b32 [result], %r1;
  ret;
BIG:
  st.param.b32 [result], 7;
  ret;
}
)";

TEST(Control, CallsFromDifferentPlaces) {
  auto out = run_lanes(R"(
    .param .b32 a;
    .param .align 4 .b8 c[8];
    .param .b32 b;
    setp.lt.u32 %p0, %lane, 8;
    st.param.b32 [c+0], 0;
    st.param.b32 [c+4], 1000;
    @%p0 bra FIRST;
    st.param.b32 [a], %lane;
    call (b), twice_plus, (a, c);
    ld.param.b32 %r1, [b];
    bra DONE;
FIRST:
    add.s32 %r0, %lane, 2;
    st.param.b32 [a], %r0;
    call (b), twice, (a);
    ld.param.b32 %r1, [b];
DONE:
    st.global.u32 [%ro], %r1;)",
                       kFunctions);
  for (uint32_t l = 0; l < 32; ++l) {
    EXPECT_EQ(out[l], l < 8 ? 2 * (l + 2) : l > 20 ? 7 : 2 * l + 1000) << l;
  }
}

// Functions by pointer, from code and from a table; lanes of a warp may go to different ones.
TEST(Control, CallsThroughPointers) {
  const std::string functions = R"(
.func (.param .b32 r) plus(.param .b32 a) {
  .reg .b32 %v; ld.param.b32 %v, [a]; add.u32 %v, %v, 100; st.param.b32 [r], %v; ret;
}
.func (.param .b32 r) times(.param .b32 a) {
  .reg .b32 %v; ld.param.b32 %v, [a]; mul.lo.u32 %v, %v, 3; st.param.b32 [r], %v; ret;
}
.func other(.param .b64 a) { ret; }
)";
  const auto body = [](const char* third) {
    return std::string(R"(
    .param .b32 a;
    .param .b32 b;
    .reg .b64 %f, %g;
    mov.u64 %f, plus;
    mov.u64 %g, times;
    setp.lt.u32 %p0, %lane, 8;
    selp.b64 %f, %f, %g, %p0;
    setp.eq.u32 %p0, %lane, 31;
    )") + third +
           R"(
    st.param.b32 [a], %lane;
    call (b), %f, (a), prototype;
    ld.param.b32 %r1, [b];
    st.param.b32 [a], %r1;
    call (b), plus, (a);
    ld.param.b32 %r1, [b];
prototype: .callprototype (.param .b32 _) _ (.param .b32 _);
    st.global.u32 [%ro], %r1;)";
  };
  const auto out = run_lanes(body(""), functions);
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(out[l], (l < 8 ? l + 100 : 3 * l) + 100) << l;
  auto report = [&](const char* third) {
    Buffers buffers;
    const std::string text = kernel_text(
        ".param .u64 out",
        ".reg .pred %p0;\n.reg .b32 %lane, %r1;\n.reg .b64 %ro;\nmov.u32 %lane, %tid.x;\n"
        "ld.param.u64 %ro, [out];\n" +
            body(third) + "\nret;",
        functions);
    const auto result = run_module(text, Params() << buffers.add(256), buffers);
    EXPECT_EQ(result.cuda_error, kInvalidPc);
    return result.report;
  };
  EXPECT_NE(report("@%p0 mov.u64 %f, other;").find("other takes other arguments"),
            std::string::npos);
  EXPECT_NE(report("@%p0 mov.u64 %f, 0;").find("by lane 31: it is the address of no device"),
            std::string::npos);
}

// A function that runs is not entered again: found when it happens, since pointers tell no sooner.
TEST(Control, RecursionThroughPointersIsNamed) {
  const std::string functions = R"(
.visible .global .align 8 .u64 table[1] = {again};
.func again(.param .b32 a) {
  .reg .b64 %f; .reg .b32 %v; .reg .pred %p; .param .b32 b;
  ld.param.b32 %v, [a]; setp.eq.u32 %p, %v, 0; @%p ret;
  sub.u32 %v, %v, 1; st.param.b32 [b], %v;
  mov.u64 %f, again; call %f, (b), prototype; ret;
prototype: .callprototype _ (.param .b32 _);
}
)";
  for (uint32_t depth : {0u, 1u}) {
    Buffers buffers;
    const auto result =
        run_module(kernel_text("",
                               ".param .b32 a;\nst.param.b32 [a], " + std::to_string(depth) +
                                   ";\ncall again, (a);\nret;",
                               functions),
                   Params(), buffers);
    EXPECT_EQ(result.cuda_error, depth ? kNotSupported : 0) << result.report;
    EXPECT_EQ(result.report.find("again is called while it runs") != std::string::npos, depth != 0)
        << result.report;
  }
}

TEST(Control, RecursionAndUnknownCalleesAreRefused) {
  std::string recursive = ".func f() { call.uni f; ret; }\n";
  std::string refusal =
      exec::Program::load(kernel_text("", "call.uni f;\nret;", recursive))->refusals();
  EXPECT_NE(refusal.find("f is recursive"), std::string::npos) << refusal;
  std::string external = ".extern .func g();\n";
  refusal = exec::Program::load(kernel_text("", "call.uni g;\nret;", external))->refusals();
  EXPECT_NE(refusal.find("call of g"), std::string::npos) << refusal;
}

TEST(Control, SomeLanesExitEarly) {
  auto out = run_lanes(R"(
    setp.lt.u32 %p0, %lane, 5;
    @%p0 exit;
    vote.sync.ballot.b32 %r0, %p0, 0xffffffe0;
    activemask.b32 %r1;
    bar.warp.sync 0xffffffff;
    st.global.u32 [%ro], %r1;)");
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(out[l], l < 5 ? 0 : 0xffffffe0u);
}

TEST(Control, SpecialRegisters) {
  Buffers buffers;
  uint64_t out = buffers.add(4096);
  auto text = kernel_text(".param .u64 out", R"(
    .reg .b32 %r<12>;
    .reg .b64 %rd<4>;
    .reg .pred %p;
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %tid.y;
    mov.u32 %r2, %ntid.x;
    mad.lo.s32 %r3, %r1, %r2, %r0;
    mov.u32 %r4, %laneid;
    mov.u32 %r5, %warpid;
    shl.b32 %r5, %r5, 8;
    or.b32 %r4, %r4, %r5;
    mov.u32 %r6, %lanemask_lt;
    popc.b32 %r6, %r6;
    shl.b32 %r6, %r6, 16;
    or.b32 %r4, %r4, %r6;
    mov.u32 %r7, %clusterid.x;
    mov.u32 %r8, %cluster_ctarank;
    mov.u32 %r9, %ctaid.x;
    mad.lo.s32 %r10, %r9, 64, %r3;
    mul.wide.u32 %rd1, %r10, 4;
    add.s64 %rd2, %rd0, %rd1;
    shl.b32 %r7, %r7, 24;
    shl.b32 %r8, %r8, 28;
    or.b32 %r4, %r4, %r7;
    or.b32 %r4, %r4, %r8;
    st.global.u32 [%rd2], %r4;
    ret;)");
  Launch launch;
  launch.grid.x = 4;
  launch.cluster.x = 2;
  launch.block = {16, 4, 1};
  auto result = run_module(text, Params() << out, buffers, launch);
  ASSERT_EQ(result.cuda_error, 0) << result.report;
  auto words = buffers.read<uint32_t>(out, 256);
  for (uint32_t c = 0; c < 4; ++c) {
    for (uint32_t t = 0; t < 64; ++t) {
      EXPECT_EQ(words[c * 64 + t],
                (t % 32) | (t / 32) << 8 | (t % 32) << 16 | (c / 2) << 24 | (c % 2) << 28);
    }
  }
}

}  // namespace
}  // namespace vgpu::test
