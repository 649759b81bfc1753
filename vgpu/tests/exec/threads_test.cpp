// SPDX-License-Identifier: Apache-2.0
// Clusters on several host threads: what they share are global memory, the grid's clusters and the
// observers. ThreadSanitizer runs these too (preset "tsan").
#include "check/checker.hpp"
#include "exec/harness.hpp"

namespace vgpu::test {
namespace {

using exec::Delivery;

const char kRegisters[] = R"(
  .reg .pred %p<8>;
  .reg .b32 %thr, %cta, %r<32>;
  .reg .b64 %rout, %ro, %rd<8>;
  .reg .b128 %q;
  mov.u32 %thr, %tid.x;
  mov.u32 %cta, %ctaid.x;
  ld.param.u64 %rout, [out];
)";

constexpr uint32_t kClusters = 24;

/// Runs `body` in 24 clusters under every delivery policy, on two and three threads, with and
/// without the checks; `check` gets the words of `out`.
template <typename Check>
void run_all(const std::string& body, Check check, std::string* printed = nullptr) {
  const auto text = kernel_text(".param .u64 out", kRegisters + body + "\nret;");
  const auto checker = check::make_checker(check::CheckOptions::parse("all"), nullptr, {});
  for (auto delivery : kDeliveries) {
    for (uint32_t threads : {2u, 3u}) {
      for (bool checked : {false, true}) {
        Buffers buffers;
        const uint64_t out = buffers.add(4096);
        Launch launch;
        launch.grid.x = kClusters;
        launch.block.x = 64;
        launch.options.delivery = delivery;
        launch.options.threads = threads;
        launch.observer = checked ? checker.get() : nullptr;
        if (printed) printed->clear();
        launch.printed = printed;
        const auto result = run_module(text, Params() << out, buffers, launch);
        ASSERT_EQ(result.cuda_error, 0) << result.report;
        check(buffers.read<uint32_t>(out, 1024));
      }
    }
  }
}

TEST(Threads, ChainThroughGlobalFlags) {
  // Each cluster waits for its predecessor's flag, adds one to its value and passes both on.
  run_all(R"(
    setp.ne.u32 %p0, %thr, 0;
    @%p0 ret;
    mul.wide.u32 %ro, %cta, 8;
    add.s64 %rd0, %rout, %ro;
    mov.u32 %r0, 0;
    setp.eq.u32 %p1, %cta, 0;
    @%p1 bra OWN;
WAIT:
    ld.acquire.gpu.global.u32 %r1, [%rd0+-4];
    setp.eq.u32 %p2, %r1, 0;
    @%p2 bra WAIT;
    ld.global.u32 %r0, [%rd0+-8];
OWN:
    add.s32 %r0, %r0, 1;
    st.global.u32 [%rd0], %r0;
    mov.u32 %r2, 1;
    st.release.gpu.global.u32 [%rd0+4], %r2;)",
          [](const auto& out) {
            for (uint32_t c = 0; c < kClusters; ++c) EXPECT_EQ(out[2 * c], c + 1);
          });
}

TEST(Threads, PingPongBehindFences) {
  // Neighbours take turns on a counter that plain stores write, a fence and a relaxed flag order.
  run_all(R"(
    setp.ne.u32 %p0, %thr, 0;
    @%p0 ret;
    and.b32 %r0, %cta, 1;
    shr.u32 %r1, %cta, 1;
    mul.wide.u32 %ro, %r1, 8;
    add.s64 %rd0, %rout, %ro;
    mov.u32 %r2, 0;
TURN:
    shl.b32 %r3, %r2, 1;
    add.s32 %r3, %r3, %r0;
WAIT:
    ld.relaxed.gpu.global.u32 %r4, [%rd0+4];
    setp.ne.u32 %p1, %r4, %r3;
    @%p1 bra WAIT;
    fence.acq_rel.gpu;
    ld.global.u32 %r5, [%rd0];
    add.s32 %r5, %r5, 3;
    st.global.u32 [%rd0], %r5;
    fence.acq_rel.gpu;
    add.s32 %r3, %r3, 1;
    st.relaxed.gpu.global.u32 [%rd0+4], %r3;
    add.s32 %r2, %r2, 1;
    setp.lt.u32 %p2, %r2, 20;
    @%p2 bra TURN;)",
          [](const auto& out) {
            for (uint32_t pair = 0; pair < kClusters / 2; ++pair) EXPECT_EQ(out[2 * pair], 120u);
          });
}

TEST(Threads, AtomicsAndBulkReductions) {
  // All clusters add to the same words: threads with atomics, a lock, and copies with reductions.
  run_all(R"(
    .shared .align 16 .b8 tile[64];
    mov.u32 %r0, tile;
    red.global.add.u32 [%rout], 1;
    setp.ge.u32 %p0, %thr, 16;
    shl.b32 %r1, %thr, 2;
    add.s32 %r1, %r0, %r1;
    @!%p0 st.shared.u32 [%r1], %thr;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    setp.ne.u32 %p1, %thr, 0;
    @%p1 ret;
    add.s64 %rd0, %rout, 64;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd0], [%r0], 64;
    cp.async.bulk.commit_group;
LOCK:
    atom.acquire.gpu.global.cas.b32 %r2, [%rout+8], 0, 1;
    setp.ne.u32 %p2, %r2, 0;
    @%p2 bra LOCK;
    ld.global.u32 %r3, [%rout+4];
    add.s32 %r3, %r3, 1;
    st.global.u32 [%rout+4], %r3;
    atom.release.gpu.global.exch.b32 %r2, [%rout+8], 0;
    cp.async.bulk.wait_group 0;)",
          [](const auto& out) {
            EXPECT_EQ(out[0], kClusters * 64);
            EXPECT_EQ(out[1], kClusters);
            for (uint32_t k = 0; k < 16; ++k) EXPECT_EQ(out[16 + k], kClusters * k);
          });
}

TEST(Threads, ClusterLaunchControl) {
  run_all(R"(
    .shared .align 16 .b8 answer[16];
    .shared .align 8 .b64 bar;
    mov.u32 %r0, answer;
    mov.u32 %r1, bar;
    setp.ne.u32 %p7, %thr, 0;
    @%p7 ret;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
    mov.u32 %r2, %cta;
    mov.u32 %r3, 0;
NEXT:
    mul.wide.u32 %ro, %r2, 4;
    add.s64 %ro, %rout, %ro;
    red.global.add.u32 [%ro], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 16;
    clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r0], [%r1];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r1], %r3;
    @!%p0 bra WAIT;
    xor.b32 %r3, %r3, 1;
    ld.shared.b128 %q, [%r0];
    fence.proxy.async.shared::cta;
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q;
    @!%p1 ret;
    clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r2, %r5, %r6, %r7}, %q;
    bra NEXT;)",
          [](const auto& out) {
            for (uint32_t c = 0; c < kClusters; ++c) EXPECT_EQ(out[c], 1u) << c;
          });
}

TEST(Threads, AFaultStopsAllOnce) {
  Buffers buffers;
  const uint64_t out = buffers.add(64);
  const auto text = kernel_text(".param .u64 out", std::string(kRegisters) + R"(
    mov.u32 %r0, 1;
    st.global.u32 [%rout+4096], %r0;
    ret;)");
  Launch launch;
  launch.grid.x = kClusters;
  launch.options.threads = 3;
  const auto result = run_module(text, Params() << out, buffers, launch);
  EXPECT_NE(result.cuda_error, 0);
  EXPECT_NE(result.report.find("out of bounds"), std::string::npos) << result.report;
}

}  // namespace
}  // namespace vgpu::test
