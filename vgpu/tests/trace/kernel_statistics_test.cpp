// SPDX-License-Identifier: Apache-2.0
// What the statistics say of kernels whose numbers are known.
#include <numeric>

#include "exec/harness.hpp"
#include "trace/statistics.hpp"

namespace vgpu::test {
namespace {

std::string statistics_of(const std::string& body, uint32_t threads) {
  auto statistics = trace::make_statistics();
  Buffers buffers;
  const Params params = Params() << buffers.add(4096);
  // The report names lines of the program, which must live as long.
  const auto program = exec::Program::load(
      kernel_text(".param .u64 out",
                  ".reg .pred %p<4>; .reg .b32 %thr, %lane, %r<32>; .reg .b64 %rd<4>;\n"
                  "mov.u32 %thr, %tid.x;\nmov.u32 %lane, %laneid;\n"
                  "ld.param.u64 %rd0, [out];\n" +
                      body + "\nret;"));
  exec::LaunchRequest request;
  request.program = program.get();
  request.kernel = "k";
  request.params = params.bytes;
  request.block.x = threads;
  request.memory = &buffers;
  request.observer = statistics.get();
  const auto result = exec::launch(request);
  EXPECT_EQ(result.cuda_error, 0) << result.report;
  return statistics->report();
}

void expect_lines(const std::string& text, std::initializer_list<const char*> lines) {
  for (const char* line : lines) {
    EXPECT_NE(text.find(line), std::string::npos) << line << " is not in:\n" << text;
  }
}

TEST(KernelStatistics, BankConflictsFollowTheStride) {
  // Lanes `stride` words apart meet in gcd(stride, 32) passes.
  for (uint32_t stride : {1u, 2u, 3u, 4u, 6u, 8u, 12u, 16u, 17u, 24u, 32u, 33u}) {
    const uint32_t passes = std::gcd(stride, 32u);
    const std::string text = statistics_of(format(R"(
      .shared .align 16 .b8 tile[8192];
      mov.u32 %%r0, tile;
      mad.lo.u32 %%r0, %%lane, %u, %%r0;
      ld.shared.u32 %%r1, [%%r0];)",
                                                  4 * stride),
                                           64);
    EXPECT_NE(text.find(format("shared-memory accesses: 2, extra passes by bank conflicts: %u\n",
                               2 * (passes - 1))),
              std::string::npos)
        << stride << "\n"
        << text;
    const std::string line = format("%u.0 passes where 1.0 would do, 2 times: ", passes);
    EXPECT_EQ(text.find(line) != std::string::npos, passes > 1) << stride << "\n" << text;
  }
}

TEST(KernelStatistics, WideAccessesTakeTheirPasses) {
  const std::string text = statistics_of(R"(
    .shared .align 16 .b8 tile[8192];
    mov.u32 %r0, tile;
    mad.lo.u32 %r1, %lane, 16, %r0;
    st.shared.v4.u32 [%r1], {%r0, %r0, %r0, %r0};
    mad.lo.u32 %r1, %lane, 144, %r0;
    st.shared.v4.u32 [%r1], {%r0, %r0, %r0, %r0};
    mad.lo.u32 %r1, %lane, 128, %r0;
    st.shared.v4.u32 [%r1], {%r0, %r0, %r0, %r0};)",
                                         32);
  // Rows of 144 bytes are apart by 4 banks: no conflict. Rows of 128 bytes share their banks.
  expect_lines(text, {"shared-memory accesses: 3, extra passes by bank conflicts: 28",
                      "32.0 passes where 4.0 would do, 1 times"});
}

TEST(KernelStatistics, RolesCountTheirInstructions) {
  // Warps 0 and 1 add, warp 2 stores.
  const std::string text = statistics_of(R"(
    setp.lt.u32 %p0, %thr, 64;
    @!%p0 bra STORE;
    add.u32 %r0, %thr, 1;
    add.u32 %r0, %r0, 2;
    add.u32 %r0, %r0, 3;
    add.u32 %r0, %r0, 4;
    bra DONE;
STORE:
    st.global.u32 [%rd0], %thr;
    st.global.u32 [%rd0+4], %thr;
    st.global.u32 [%rd0+8], %thr;
    st.global.u32 [%rd0+12], %thr;
    st.global.u32 [%rd0+16], %thr;
DONE:)",
                                         96);
  // setp, four adds, a branch, ret, and what the harness puts in front.
  expect_lines(text, {"warps 0-1: ", "warp 2: ", "add and sub", "store"});
}

TEST(KernelStatistics, WaitsAndProducts) {
  const std::string text = statistics_of(R"(
    .shared .align 8 .b64 bar;
    setp.eq.u32 %p0, %thr, 0;
    @%p0 mbarrier.init.shared::cta.b64 [bar], 64;
    bar.sync 0;
    mbarrier.arrive.shared::cta.b64 _, [bar];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0;
    @!%p1 bra WAIT;
    mov.b32 %r0, 0;
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r1, %r2, %r3, %r4}, {%r0, %r0, %r0, %r0}, {%r0, %r0}, {%r0, %r0, %r0, %r0};)",
                                         64);
  // Two warps pass a barrier and an mbarrier each; 2 x 16 x 8 x 16 products.
  expect_lines(text, {"barrier waits passed: 4;",
                      "matrix products: 4 096 multiply-accumulates, "
                      "0.000 GFLOP"});
}

TEST(KernelStatistics, CopiesCountBytes) {
  const std::string text = statistics_of(R"(
    .shared .align 16 .b8 tile[1024];
    .shared .align 8 .b64 bar;
    setp.ne.u32 %p0, %thr, 0;
    @%p0 ret;
    mov.u32 %r0, tile;
    mov.u32 %r1, bar;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 1536;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%rd0], 1024, [%r1];
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%rd0], 512, [%r1];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
    @!%p1 bra WAIT;)",
                                         32);
  expect_lines(text, {"bulk load: 2, 1 536 bytes", "barrier waits passed: 1;"});
}

}  // namespace
}  // namespace vgpu::test
