// SPDX-License-Identifier: Apache-2.0
// What the author of a kernel reads: deadlocks, faults with source lines, printf, assert, refusals.
#include "exec/harness.hpp"

namespace vgpu::test {
namespace {

exec::LaunchResult run_body(const std::string& body, Launch launch = {},
                            const std::string& before = "") {
  Buffers buffers;
  uint64_t out = buffers.add(256);
  auto text = kernel_text(".param .u64 out",
                          ".reg .pred %p<4>; .reg .b32 %thr, %r<8>; .reg .b64 %rd<8>;\n"
                          "mov.u32 %thr, %tid.x;\nld.param.u64 %rd0, [out];\n" +
                              body + "\nret;",
                          before);
  return run_module(text, Params() << out, buffers, launch);
}

void expect_text(const exec::LaunchResult& result, std::initializer_list<const char*> texts) {
  for (auto* text : texts) {
    EXPECT_NE(result.report.find(text), std::string::npos) << text << " is not in:\n"
                                                           << result.report;
  }
}

TEST(Report, DeadlockNamesBarriersAndLines) {
  Launch launch;
  launch.block.x = 96;
  auto result = run_body(R"(
    .shared .align 8 .b64 bar;
    mov.u32 %r0, bar;
    setp.eq.u32 %p0, %thr, 0;
    .loc 1 17 5
    @%p0 mbarrier.init.shared::cta.b64 [%r0], 2;
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0], 512;
    bar.sync 0;
    setp.lt.u32 %p1, %thr, 64;
    .loc 1 23 5
    @!%p1 bar.sync 1;
WAIT:
    .loc 1 25 5
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r0], 0;
    @!%p2 bra WAIT;)",
                         launch, ".file 1 \"/somewhere/pipeline.cu\"");
  EXPECT_EQ(result.cuda_error, kLaunchTimeout);
  expect_text(result, {"deadlock", "pipeline.cu:25", "pipeline.cu:23", "warps 0,1 ", "warp 2 ",
                       "mbarrier at shared offset 0", "1 of 2 arrivals pending",
                       "512 bytes missing", "barrier 1: 32 of 96 threads"});
}

// A wait by parity misses a phase and the next one when both complete before it looks.
TEST(Report, ALappedWaiterIsNamed) {
  Launch launch;
  launch.block.x = 64;
  auto result = run_body(R"(
    .shared .align 8 .b64 bar;
    mov.u32 %r0, bar;
    setp.eq.u32 %p0, %thr, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%r0], 1;
    bar.sync 0;
    setp.lt.u32 %p1, %thr, 32;
    @%p1 bra TWICE;
    bar.arrive 1, 64;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r0], 0;
    @!%p2 bra WAIT;
    ret;
TWICE:
    bar.sync 1, 64;
    @%p0 mbarrier.arrive.shared::cta.b64 _, [%r0];
    @%p0 mbarrier.arrive.shared::cta.b64 _, [%r0];)",
                         launch);
  EXPECT_EQ(result.cuda_error, kLaunchTimeout);
  expect_text(result, {"deadlock", "warp 1 ", "lapped: 2 phases have completed"});
}

// Warps that fall asleep at random while they wait must not hide that nothing can happen.
TEST(Report, DeadlockOfManyWarpsIsFoundUnderRandomDelivery) {
  Launch launch;
  launch.block.x = 1024;
  launch.options.delivery = exec::Delivery::random;
  auto result = run_body(R"(
    .shared .align 8 .b64 bar;
    mov.u32 %r0, bar;
    setp.eq.u32 %p0, %thr, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%r0], 1;
    bar.sync 0;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r0], 0;
    @!%p2 bra WAIT;)",
                         launch);
  EXPECT_EQ(result.cuda_error, kLaunchTimeout);
  expect_text(result, {"deadlock: every warp waits", "1 of 1 arrivals pending"});
}

TEST(Report, PollingDeadlockIsFound) {
  auto result = run_body(R"(
    .shared .align 8 .b64 bar;
    mov.u32 %r0, bar;
    setp.eq.u32 %p0, %thr, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%r0], 1;
    bar.sync 0;
WAIT:
    mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r0], 0;
    @!%p2 bra WAIT;)");
  EXPECT_EQ(result.cuda_error, kLaunchTimeout);
  expect_text(result, {"mbarrier.test_wait", "1 of 1 arrivals pending"});
}

TEST(Report, SpinningForeverEnds) {
  Launch launch;
  launch.options.spin_limit = 100'000;
  auto result = run_body(
      "SPIN:\nld.volatile.global.u32 %r0, [%rd0];\nsetp.eq.u32 %p0, %r0, 0;\n"
      "@%p0 bra SPIN;",
      launch);
  EXPECT_EQ(result.cuda_error, kLaunchTimeout);
  expect_text(result, {"the cluster spins"});
}

// One warp polls global memory, asleep between, until another cluster has worked for many times the
// spin limit.
const char kLonePoller[] = R"(
    mov.u32 %r0, %ctaid.x;
    setp.ne.u32 %p0, %thr, 0;
    @%p0 ret;
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra WORK;
POLL:
    nanosleep.u32 1000;
    ld.relaxed.gpu.global.u32 %r1, [%rd0];
    setp.eq.u32 %p2, %r1, 0;
    @%p2 bra POLL;
    ret;
WORK:
    mov.u32 %r2, 0;
STEP:
    st.global.u32 [%rd0+4], %r2;
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p3, %r2, LIMIT;
    @%p3 bra STEP;
    st.release.gpu.global.u32 [%rd0], FLAG;)";

exec::LaunchResult run_lone_poller(uint32_t threads, uint64_t spin_limit, const char* flag) {
  std::string body = kLonePoller;
  body.replace(body.find("LIMIT"), 5, "400000");
  body.replace(body.find("FLAG"), 4, flag);
  Launch launch;
  launch.grid.x = 2;
  launch.options.threads = threads;
  launch.options.resident_clusters = 2;  // one on each thread
  launch.options.spin_limit = spin_limit;
  return run_body("mov.u32 %r7, 1;\nmov.u32 %r6, 0;\n" + body, launch);
}

TEST(Report, ALonePollerIsNoDeadlock) {
  // NOTE: with two threads the other one may sleep for a while: no small limit there.
  for (auto [threads, limit] : {std::pair{1u, 2'000u}, std::pair{2u, 100'000'000u}}) {
    auto result = run_lone_poller(threads, limit, "%r7");
    EXPECT_EQ(result.cuda_error, 0) << threads << " threads\n" << result.report;
  }
}

TEST(Report, APollerThatNobodyAnswersIs) {
  for (uint32_t threads : {1u, 2u}) {
    auto result = run_lone_poller(threads, 2'000, "%r6");
    EXPECT_EQ(result.cuda_error, kLaunchTimeout) << threads;
    expect_text(result, {"the cluster spins", "warp 0"});
  }
}

TEST(Report, ALockThatIsNeverFreedIsFound) {
  // The second CAS finds the lock taken; so does an addition of zero that waits for a counter.
  for (const char* poll : {"atom.global.cas.b32 %r0, [%rd0], 0, 1;",
                           "atom.global.add.u32 %r0, [%rd0+4], 0;\nadd.u32 %r0, %r0, 1;"}) {
    Launch launch;
    launch.block.x = 1;
    launch.options.spin_limit = 20'000;
    auto result = run_body("atom.global.cas.b32 %r0, [%rd0], 0, 1;\nSPIN:\n" + std::string(poll) +
                               "\nsetp.ne.u32 %p0, %r0, 0;\n@%p0 bra SPIN;",
                           launch);
    EXPECT_EQ(result.cuda_error, kLaunchTimeout) << poll;
    expect_text(result, {"the cluster spins"});
  }
}

TEST(Report, FaultNamesThreadAndLine) {
  Launch launch;
  launch.block.x = 64;
  launch.grid.x = 2;
  auto result = run_body(R"(
    setp.eq.u32 %p0, %thr, 37;
    .loc 1 99 1
    @%p0 st.global.u32 [%rd0+4096], %r0;)",
                         launch, ".file 1 \"kernel.cu\"");
  EXPECT_EQ(result.cuda_error, kIllegalAddress);
  expect_text(result, {"kernel.cu:99", "warp 1, lanes 0x00000020", "st.global.u32 [%rd0+4096]"});
}

TEST(Report, Trap) {
  auto result = run_body("setp.eq.u32 %p0, %thr, 5;\n@%p0 trap;");
  EXPECT_EQ(result.cuda_error, kLaunchFailure);
  expect_text(result, {"trap executed by lanes 0x20"});
}

TEST(Report, Printf) {
  std::string printed;
  Launch launch;
  launch.printed = &printed;
  auto result = run_body(
      R"(
    .local .align 8 .b8 args[24];
    setp.ne.u32 %p0, %thr, 2;
    @%p0 bra DONE;
    mov.u64 %rd1, args;
    cvta.local.u64 %rd2, %rd1;
    st.local.u32 [%rd1], %thr;
    mov.u64 %rd3, 0d3FF8000000000000;
    st.local.u64 [%rd1+8], %rd3;
    mov.u64 %rd4, fmt;
    cvta.global.u64 %rd5, %rd4;
    { .param .b64 a; .param .b64 b; .param .b32 r;
    st.param.b64 [a+0], %rd5;
    st.param.b64 [b+0], %rd2;
    call.uni (r), vprintf, (a, b);
    ld.param.b32 %r1, [r+0];
    }
    st.global.u32 [%rd0], %r1;
DONE:)",
      launch,
      ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n"
      ".global .align 1 .b8 fmt[12] = {108, 97, 110, 101, 32, 37, 100, 32, 37, 46, 50, 102};\n"
      ".global .align 1 .b8 pad[4] = {0, 0, 0, 0};");
  EXPECT_EQ(result.cuda_error, 0) << result.report;
  EXPECT_EQ(printed.substr(0, 11), "lane 2 1.50");
}

TEST(Report, Refusals) {
  Launch launch;
  launch.block.x = 2048;
  EXPECT_EQ(run_body("", launch).cuda_error, kInvalidConfiguration);
  launch.block.x = 32;
  launch.cluster.x = 2;
  launch.grid.x = 3;
  EXPECT_EQ(run_body("", launch).cuda_error, kInvalidConfiguration);
  launch.grid.x = launch.cluster.x = 32;
  EXPECT_EQ(run_body("", launch).cuda_error, kInvalidClusterSize);
  launch = {};
  launch.dynamic_shared = 300'000;
  EXPECT_EQ(run_body("", launch).cuda_error, kInvalidValue);
}

TEST(Report, AllMissingFormsAtOnce) {
  auto text =
      kernel_text("", ".reg .b32 %r; .reg .f32 %f;\nfoo.b32 %r;\nadd.bar.s32 %r, %r, %r;\nret;");
  const std::string refusal = exec::Program::load(text)->refusals();
  for (const char* part : {"foo.b32", "add.bar.s32", "2 instruction forms"}) {
    EXPECT_NE(refusal.find(part), std::string::npos) << refusal;
  }
}

}  // namespace
}  // namespace vgpu::test
