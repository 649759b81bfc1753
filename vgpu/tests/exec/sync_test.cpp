// SPDX-License-Identifier: Apache-2.0
// Barriers, clusters, mbarriers, under every delivery policy and several seeds.
#include "exec/harness.hpp"

namespace vgpu::test {
namespace {

using exec::Delivery;

const char kRegisters[] = R"(
  .reg .pred %p<8>;
  .reg .b32 %thr, %rank, %r<32>;
  .reg .b64 %rout, %ro, %state, %rd<8>;
  mov.u32 %thr, %tid.x;
  mov.u32 %rank, %cluster_ctarank;
  ld.param.u64 %rout, [out];
)";

/// Runs `body` under all policies and seeds and gives each result to `check`.
template <typename Check>
void run_all(const std::string& body, size_t words, Launch launch, Check check) {
  auto text = kernel_text(".param .u64 out", kRegisters + body + "\nret;");
  for (auto delivery : kDeliveries) {
    for (uint64_t seed : {1, 2, 3}) {
      Buffers buffers;
      uint64_t out = buffers.add(words * 4);
      launch.options.delivery = delivery;
      launch.options.seed = seed;
      auto result = run_module(text, Params() << out, buffers, launch);
      check(result, buffers.read<uint32_t>(out, words));
    }
  }
}

Launch block_of(uint32_t threads) {
  Launch launch;
  launch.block.x = threads;
  return launch;
}

TEST(Sync, CtaBarriers) {
  // Each warp writes its number; after the barrier each thread sums what the others wrote.
  run_all(R"(
    .shared .align 4 .b8 cells[1024];
    shl.b32 %r0, %thr, 2;
    mov.u32 %r1, cells;
    add.s32 %r2, %r1, %r0;
    st.shared.u32 [%r2], %thr;
    bar.sync 0;
    xor.b32 %r3, %r0, 1020;
    add.s32 %r3, %r1, %r3;
    ld.shared.u32 %r4, [%r3];
    barrier.sync 3, 256;
    setp.lt.u32 %p0, %thr, 100;
    barrier.red.popc.u32 %r5, 1, %p0;
    bar.red.or.pred %p1, 2, %p0;
    bar.red.and.pred %p2, 4, %p0;
    selp.b32 %r6, 1, 0, %p1;
    selp.b32 %r7, 1, 0, %p2;
    shl.b32 %r5, %r5, 16;
    or.b32 %r4, %r4, %r5;
    shl.b32 %r6, %r6, 30;
    or.b32 %r4, %r4, %r6;
    shl.b32 %r7, %r7, 31;
    or.b32 %r4, %r4, %r7;
    mul.wide.u32 %ro, %thr, 4;
    add.s64 %ro, %rout, %ro;
    st.global.u32 [%ro], %r4;)",
          256, block_of(256), [](auto& result, auto out) {
            ASSERT_EQ(result.cuda_error, 0) << result.report;
            for (uint32_t t = 0; t < 256; ++t) EXPECT_EQ(out[t], (t ^ 255) | 100u << 16 | 1u << 30);
          });
}

TEST(Sync, ArriveAndSync) {
  // Warp 0 consumes what warp 1 produced; warp 1 does not wait.
  run_all(R"(
    .shared .align 4 .u32 cell;
    shr.u32 %r0, %thr, 5;
    setp.eq.u32 %p0, %r0, 0;
    @%p0 bra CONSUME;
    st.shared.u32 [cell], 42;
    bar.arrive 1, 64;
    bra DONE;
CONSUME:
    bar.sync 1, 64;
    ld.shared.u32 %r1, [cell];
    st.global.u32 [%rout], %r1;
DONE:)",
          1, block_of(64), [](auto& result, auto out) {
            ASSERT_EQ(result.cuda_error, 0) << result.report;
            EXPECT_EQ(out[0], 42u);
          });
}

TEST(Sync, BarrierCountsOutExitedWarps) {
  run_all(R"(
    setp.lt.u32 %p0, %thr, 32;
    @%p0 ret;
    bar.sync 0;
    st.global.u32 [%rout], 7;)",
          1, block_of(96), [](auto& result, auto out) {
            ASSERT_EQ(result.cuda_error, 0) << result.report;
            EXPECT_EQ(out[0], 7u);
          });
}

TEST(Sync, ClusterBarrierAndDistributedMemory) {
  Launch launch;
  launch.grid.x = 8;
  launch.cluster.x = 4;
  run_all(R"(
    .shared .align 4 .u32 cell;
    mov.u32 %r9, %ctaid.x;
    mad.lo.s32 %r0, %r9, 10, 1;
    st.shared.u32 [cell], %r0;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    add.s32 %r1, %rank, 1;
    and.b32 %r1, %r1, 3;
    mov.u32 %r2, cell;
    mapa.shared::cluster.u32 %r3, %r2, %r1;
    ld.shared::cluster.u32 %r4, [%r3];
    getctarank.shared::cluster.u32 %r5, %r3;
    mad.lo.s32 %r4, %r5, 1000, %r4;
    mul.wide.u32 %ro, %r9, 4;
    add.s64 %ro, %rout, %ro;
    st.global.u32 [%ro], %r4;
    barrier.cluster.arrive.release;
    barrier.cluster.wait.acquire;)",
          8, launch, [](auto& result, auto out) {
            ASSERT_EQ(result.cuda_error, 0) << result.report;
            for (uint32_t c = 0; c < 8; ++c) {
              uint32_t next = c / 4 * 4 + (c + 1) % 4;
              EXPECT_EQ(out[c], next * 10 + 1 + 1000 * (next % 4));
            }
          });
}

TEST(Sync, MbarrierPhasesAndRemoteArrivals) {
  // Rank 1 arrives at rank 0's barrier three times; rank 0 waits for each phase by parity.
  Launch launch;
  launch.grid.x = launch.cluster.x = 2;
  run_all(R"(
    .shared .align 8 .b64 full;
    .shared .align 8 .b64 empty;
    setp.ne.u32 %p7, %thr, 0;
    mov.u32 %r0, full;
    mov.u32 %r1, empty;
    @%p7 bra READY;
    mbarrier.init.shared::cta.b64 [%r0], 1;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
READY:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    @%p7 bra DONE;
    xor.b32 %r2, %rank, 1;
    mapa.shared::cluster.u32 %r3, %r0, %r2;
    mapa.shared::cluster.u32 %r4, %r1, %r2;
    setp.eq.u32 %p0, %rank, 0;
    mov.u32 %r5, 0;
LOOP:
    and.b32 %r6, %r5, 1;
    @%p0 bra WAIT;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];
SPIN1:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r1], %r6;
    @!%p1 bra SPIN1;
    bra NEXT;
WAIT:
    mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r0], %r6;
    @!%p1 bra WAIT;
    add.s32 %r7, %r7, 1;
    mbarrier.arrive.shared::cluster.b64 _, [%r4];
NEXT:
    add.s32 %r5, %r5, 1;
    setp.lt.u32 %p2, %r5, 3;
    @%p2 bra LOOP;
    mul.wide.u32 %ro, %rank, 4;
    add.s64 %ro, %rout, %ro;
    st.global.u32 [%ro], %r5;
DONE:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;)",
          2, launch, [](auto& result, auto out) {
            ASSERT_EQ(result.cuda_error, 0) << result.report;
            EXPECT_EQ(out[0], 3u);
            EXPECT_EQ(out[1], 3u);
          });
}

const char kOneThread[] = R"(
    .shared .align 8 .b64 bar;
    setp.ne.u32 %p7, %thr, 0;
    @%p7 ret;
)";

TEST(Sync, MbarrierStateAndDrop) {
  run_all(std::string(kOneThread) + R"(
    mbarrier.init.shared.b64 [bar], 3;
    mbarrier.arrive.shared.b64 %state, [bar], 2;
    mbarrier.pending_count.b64 %r0, %state;
    mbarrier.test_wait.shared.b64 %p0, [bar], %state;
    mbarrier.arrive_drop.shared.b64 _, [bar];
    mbarrier.test_wait.shared.b64 %p1, [bar], %state;
    mbarrier.arrive.shared.b64 _, [bar];
    mbarrier.test_wait.parity.shared.b64 %p2, [bar], 1;
    mbarrier.arrive.shared.b64 _, [bar];
    mbarrier.test_wait.parity.shared.b64 %p3, [bar], 1;
    selp.b32 %r1, 1, 0, %p0;
    selp.b32 %r2, 2, 0, %p1;
    selp.b32 %r3, 4, 0, %p2;
    selp.b32 %r4, 8, 0, %p3;
    add.s32 %r1, %r1, %r2;
    add.s32 %r3, %r3, %r4;
    add.s32 %r1, %r1, %r3;
    st.global.u32 [%rout], %r0;
    st.global.u32 [%rout+4], %r1;)",
          2, block_of(32), [](auto& result, auto out) {
            ASSERT_EQ(result.cuda_error, 0) << result.report;
            EXPECT_EQ(out[0], 3u);
            EXPECT_EQ(out[1], 2u | 8u);
          });
}

TEST(Sync, LanesAndTheirMbarriers) {
  // Each lane of warp 0 waits for an mbarrier of its own and then arrives at that of the lane
  // below; warp 1 arrives at the last. Then both warps arrive at one whose phase ends among the
  // lanes of the second.
  run_all(R"(
    .shared .align 8 .b8 bars[264];
    mov.u32 %r0, bars;
    and.b32 %r1, %thr, 31;
    shl.b32 %r2, %r1, 3;
    add.s32 %r3, %r0, %r2;
    setp.lt.u32 %p0, %thr, 32;
    @%p0 mbarrier.init.shared::cta.b64 [%r3], 1;
    setp.eq.u32 %p1, %thr, 0;
    @%p1 mbarrier.init.shared::cta.b64 [%r0+256], 48;
    setp.eq.u32 %p3, %r1, 0;
    bar.sync 0;
    @!%p0 bra ARRIVE;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;
    @!%p2 bra WAIT;
    @!%p3 mbarrier.arrive.shared::cta.b64 _, [%r3+-8];
    bra JOIN;
ARRIVE:
    @%p3 mbarrier.arrive.shared::cta.b64 _, [%r0+248];
JOIN:
    bar.warp.sync -1;
    mbarrier.arrive.shared::cta.b64 _, [%r0+256];
    bar.sync 0;
    mbarrier.test_wait.parity.shared::cta.b64 %p5, [%r0+256], 0;
    selp.b32 %r7, 100, 0, %p5;
    @!%p1 bra DONE;
    mbarrier.arrive.shared::cta.b64 %state, [%r0+256];
    mbarrier.pending_count.b64 %r6, %state;
    add.s32 %r6, %r6, %r7;
    st.global.u32 [%rout], %r6;
DONE:)",
          1, block_of(64), [](auto& result, auto out) {
            EXPECT_EQ(result.cuda_error, 0) << result.report;
            EXPECT_EQ(out[0], 100u + 48 - 16);
          });
}

TEST(Sync, TransactionsHoldAPhase) {
  run_all(std::string(kOneThread) + R"(
    mbarrier.init.shared.b64 [bar], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 48;
    mbarrier.test_wait.parity.shared.b64 %p0, [bar], 0;
    mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [bar], 32;
    mbarrier.test_wait.parity.shared.b64 %p1, [bar], 0;
    mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [bar], 16;
    mbarrier.test_wait.parity.shared.b64 %p2, [bar], 0;
    selp.b32 %r1, 1, 0, %p0;
    selp.b32 %r2, 2, 0, %p1;
    selp.b32 %r3, 4, 0, %p2;
    add.s32 %r1, %r1, %r2;
    add.s32 %r1, %r1, %r3;
    st.global.u32 [%rout], %r1;)",
          1, block_of(32), [](auto& result, auto out) {
            ASSERT_EQ(result.cuda_error, 0) << result.report;
            EXPECT_EQ(out[0], 4u);
          });
}

TEST(Sync, TryWaitGivesUp) {
  // One thread waits for what only it can bring about: legal, since try_wait returns after a time.
  run_all(std::string(kOneThread) + R"(
    mbarrier.init.shared.b64 [bar], 1;
    mbarrier.try_wait.parity.shared.b64 %p0, [bar], 0;
    selp.b32 %r1, 1, 0, %p0;
    st.global.u32 [%rout], %r1;
    mbarrier.arrive.shared.b64 _, [bar];
    mbarrier.try_wait.parity.shared.b64 %p0, [bar], 0;
    selp.b32 %r1, 1, 0, %p0;
    st.global.u32 [%rout+4], %r1;)",
          2, block_of(32), [](auto& result, auto out) {
            ASSERT_EQ(result.cuda_error, 0) << result.report;
            EXPECT_EQ(out[0], 0u);
            EXPECT_EQ(out[1], 1u);
          });
}

void expect_fault(const std::string& body, int error, const std::string& text) {
  run_all(std::string(kOneThread) + body, 1, block_of(32), [&](auto& result, auto) {
    EXPECT_EQ(result.cuda_error, error) << body;
    EXPECT_NE(result.report.find(text), std::string::npos) << result.report;
  });
}

TEST(Sync, MbarrierMisuse) {
  expect_fault("mbarrier.arrive.shared.b64 _, [bar];", kLaunchFailure, "no mbarrier");
  expect_fault("mbarrier.init.shared.b64 [bar], 1;\nmbarrier.arrive.shared.b64 _, [bar], 2;",
               kLaunchFailure, "only 1 of 1 are pending");
  expect_fault(
      "mbarrier.init.shared.b64 [bar], 1;\nst.shared.u32 [bar+4], 5;\n"
      "mbarrier.arrive.shared.b64 _, [bar];",
      kLaunchFailure, "overwritten");
  expect_fault(
      "mbarrier.init.shared.b64 [bar], 1;\nmbarrier.inval.shared.b64 [bar];\n"
      "mbarrier.arrive.shared.b64 _, [bar];",
      kLaunchFailure, "invalidated");
  expect_fault("mov.u32 %r0, bar;\nmbarrier.init.shared.b64 [%r0+4], 1;", kMisalignedAddress,
               "8-byte aligned");
}

// PTX asks the lanes of a member mask to name it, not all lanes of a warp to name one mask.
TEST(Sync, MemberMasksMayDifferByLane) {
  // Four tiles of eight lanes; what each instruction gives a lane goes to its own column.
  const std::string masks = R"(
    and.b32 %r0, %thr, 24;
    mov.u32 %r1, 255;
    shl.b32 %r1, %r1, %r0;          // the lane's tile
    mul.wide.u32 %ro, %thr, 32;
    add.s64 %ro, %rout, %ro;
    mov.u32 %r20, 0;)";
  const std::string body = R"(
    shfl.sync.down.b32 %r2|%p0, %thr, 4, 6175, %r1;   // segments of 8: 24 << 8 | 31
    and.b32 %r3, %thr, 1;
    setp.eq.u32 %p1, %r3, 0;
    vote.sync.ballot.b32 %r4, %p1, %r1;
    setp.eq.u32 %p2, %thr, 9;
    vote.sync.any.pred %p3, %p2, %r1;
    selp.u32 %r5, 1, 0, %p3;
    redux.sync.add.s32 %r6, %thr, %r1;
    shr.u32 %r7, %thr, 1;
    match.any.sync.b32 %r8, %r7, %r1;
    bar.warp.sync %r1;
    elect.sync %r9|%p4, %r1;
    st.global.u32 [%ro], %r2;
    st.global.u32 [%ro+4], %r4;
    st.global.u32 [%ro+8], %r5;
    st.global.u32 [%ro+12], %r6;
    st.global.u32 [%ro+16], %r8;
    st.global.u32 [%ro+20], %r9;)";
  auto check = [](auto& result, const auto& out) {
    ASSERT_EQ(result.cuda_error, 0) << result.report;
    for (uint32_t l = 0; l < 32; ++l) {
      const uint32_t tile = l & 24;
      EXPECT_EQ(out[l * 8], l % 8 < 4 ? l + 4 : l) << l;
      EXPECT_EQ(out[l * 8 + 1], 0x55u << tile) << l;
      EXPECT_EQ(out[l * 8 + 2], tile == 8) << l;
      EXPECT_EQ(out[l * 8 + 3], 8 * tile + 28) << l;
      EXPECT_EQ(out[l * 8 + 4], 3u << (l & ~1u)) << l;
      EXPECT_EQ(out[l * 8 + 5], tile) << l;
    }
  };
  run_all(masks + body, 256, block_of(32), check);
  // Tile 1 needs what tile 3 does after the exchanges; half of tile 3 comes to them late.
  run_all(masks + R"(
    .shared .align 4 .u32 flag;
    .shared .align 4 .u32 other;
    st.shared.u32 [flag], 0;
    st.shared.u32 [other], 0;
    bar.warp.sync -1;
    setp.lt.u32 %p5, %thr, 28;
    @%p5 bra EXCHANGE;
LATE:
    ld.volatile.shared.u32 %r10, [flag];
    setp.eq.u32 %p6, %r10, 0;
    @%p6 bra LATE;
EXCHANGE:)" + body +
              R"(
    setp.eq.u32 %p7, %thr, 8;
    @%p7 st.volatile.shared.u32 [flag], 1;)",
          256, block_of(32), check);
}

TEST(Sync, MemberMasksMustAgreeAmongTheirLanes) {
  for (const auto& [mask, report] :
       {std::pair{"selp.b32 %r1, 15, 3, %p0;", "with another mask"},
        std::pair{"mov.u32 %r1, 1;", "whose member mask 0x1 lacks them"}}) {
    run_all(std::string("setp.lt.u32 %p0, %thr, 2;\nsetp.gt.u32 %p1, %thr, 3;\n@%p1 ret;\n") +
                mask + "\nbar.warp.sync %r1;",
            1, block_of(32), [&](auto& result, const auto&) {
              EXPECT_EQ(result.cuda_error, kIllegalInstruction) << result.report;
              EXPECT_NE(result.report.find(report), std::string::npos) << result.report;
            });
  }
}

// What cooperative groups reads: grid.sync() counts in the launch's workspace (%envreg1, 2),
// tiles of several warps in the KiB that is kept of shared memory.
TEST(Sync, CooperativeGrids) {
  const std::string body = R"(
    mov.u32 %r0, %envreg1;
    mov.u32 %r1, %envreg2;
    mov.b64 %rd0, {%r1, %r0};
    setp.ne.u32 %p0, %thr, 0;
    @%p0 ret;
    ld.u32 %r2, [%rd0];
    atom.add.release.gpu.u32 %r3, [%rd0+4], 1;
SPIN:
    ld.acquire.gpu.u32 %r4, [%rd0+4];
    setp.ne.u32 %p1, %r4, 40;
    @%p1 bra SPIN;
    red.global.add.u32 [%rout], %r2;)";
  Launch launch;
  launch.grid.x = 40;
  launch.cooperative = true;
  run_all(body, 1, launch, [](auto& result, auto out) {
    ASSERT_EQ(result.cuda_error, 0) << result.report;
    EXPECT_EQ(out[0], 640u);  // 16 bytes a CTA
  });
  launch.cooperative = false;
  run_all(body, 1, launch, [](auto& result, auto) {
    EXPECT_EQ(result.cuda_error, kIllegalAddress) << result.report;
  });
}

TEST(Sync, ReservedSharedMemory) {
  Launch launch;
  launch.grid.x = launch.cluster.x = 2;
  run_all(R"(
    mov.u32 %r0, %reserved_smem_offset_1;
    setp.ne.u32 %p0, %thr, 0;
    @%p0 bra DONE;
    cvt.u64.u32 %rd0, %r0;
    cvta.shared.u64 %rd0, %rd0;
    atom.add.u32 %r1, [%rd0+284], 5;
    ld.u32 %r2, [%rd0+284];
    mov.u32 %r3, %reserved_smem_offset_begin;
    mov.u32 %r4, %reserved_smem_offset_end;
    sub.u32 %r4, %r4, %r3;
    mad.lo.u32 %r2, %r4, 10, %r2;
    mov.u32 %r4, %reserved_smem_offset_cap;
    sub.u32 %r4, %r4, %r3;
    mad.lo.u32 %r2, %r4, 10000, %r2;
    mov.u32 %r4, %reserved_smem_offset_0;
    sub.u32 %r4, %r4, %r0;
    add.u32 %r2, %r2, %r4;
    mul.wide.u32 %ro, %rank, 4;
    add.s64 %ro, %rout, %ro;
    st.global.u32 [%ro], %r2;
DONE:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;)",
          2, launch, [](auto& result, auto out) {
            ASSERT_EQ(result.cuda_error, 0) << result.report;
            EXPECT_EQ(out[0], 10242885u);
            EXPECT_EQ(out[1], 10242885u);
          });
}

TEST(Sync, LaneGroupsThatNeedEachOther) {
  // Lane 0 spins on a flag that lane 1 of the same warp sets later in the text.
  run_all(R"(
    .shared .align 4 .u32 flag;
    st.shared.u32 [flag], 0;
    bar.warp.sync -1;
    setp.eq.u32 %p0, %thr, 0;
    @!%p0 bra OTHERS;
SPIN:
    ld.volatile.shared.u32 %r0, [flag];
    setp.eq.u32 %p1, %r0, 0;
    @%p1 bra SPIN;
    st.global.u32 [%rout], %r0;
    bra DONE;
OTHERS:
    setp.eq.u32 %p2, %thr, 1;
    @%p2 st.volatile.shared.u32 [flag], 9;
DONE:
    bar.warp.sync -1;)",
          1, block_of(32), [](auto& result, auto out) {
            ASSERT_EQ(result.cuda_error, 0) << result.report;
            EXPECT_EQ(out[0], 9u);
          });
}

TEST(Sync, TwoWorkersShareAGrid) {
  Launch launch;
  launch.grid.x = 64;
  launch.options.threads = 2;
  Buffers buffers;
  uint64_t out = buffers.add(64 * 4 + 4);
  auto text = kernel_text(".param .u64 out", std::string(kRegisters) + R"(
    mov.u32 %r0, %ctaid.x;
    setp.ne.u32 %p0, %thr, 0;
    @%p0 ret;
    mul.wide.u32 %ro, %r0, 4;
    add.s64 %ro, %rout, %ro;
    red.global.add.u32 [%rout+256], 1;
    st.global.u32 [%ro], %r0;
    ret;)");
  auto result = run_module(text, Params() << out, buffers, launch);
  ASSERT_EQ(result.cuda_error, 0) << result.report;
  auto words = buffers.read<uint32_t>(out, 65);
  for (uint32_t c = 0; c < 64; ++c) EXPECT_EQ(words[c], c);
  EXPECT_EQ(words[64], 64u);
}

TEST(Sync, ClustersThatWaitForOthersBecomeResident) {
  // CTA 0 waits for a flag that the last CTA sets.
  Launch launch;
  launch.grid.x = 12;
  run_all(R"(
    mov.u32 %r0, %ctaid.x;
    setp.ne.u32 %p0, %thr, 0;
    @%p0 ret;
    setp.eq.u32 %p1, %r0, 11;
    @%p1 st.release.gpu.global.u32 [%rout], 5;
SPIN:
    ld.acquire.gpu.global.u32 %r1, [%rout];
    setp.eq.u32 %p2, %r1, 0;
    @%p2 bra SPIN;)",
          1, launch, [](auto& result, auto out) {
            ASSERT_EQ(result.cuda_error, 0) << result.report;
            EXPECT_EQ(out[0], 5u);
          });
}

// A grid whose polls only the outside can answer pauses, and goes on when they have been.
TEST(Sync, AGridPausesUntilItsPollsAreAnswered) {
  const std::string count = R"(
    setp.ne.u32 %p0, %thr, 0;
    @%p0 ret;
    red.global.add.u32 [%rout+4], 1;)";
  const std::string poll = R"(
SPIN:
    ld.volatile.global.u32 %r1, [%rout];
    setp.eq.u32 %p2, %r1, 0;
    @%p2 bra SPIN;)" + count;
  for (uint32_t threads : {1u, 2u}) {
    for (bool polls : {false, true}) {
      auto program =
          exec::Program::load(kernel_text(".param .u64 out", kRegisters + (polls ? poll : count)));
      Buffers buffers;
      const uint64_t out = buffers.add(8);
      const Params params = Params() << out;
      exec::LaunchRequest request;
      request.program = program.get();
      request.kernel = "k";
      request.params = params.bytes;
      request.grid.x = 300;
      request.block.x = 32;
      request.memory = &buffers;
      request.options.threads = threads;
      request.options.resident_clusters = 40;
      request.options.pause_after = 2000;
      exec::Launch launch(request);
      if (polls) {
        EXPECT_FALSE(launch.run());
        EXPECT_FALSE(launch.run());
        EXPECT_FALSE(launch.progressed());
        EXPECT_EQ(buffers.read<uint32_t>(out, 2)[1], 0u);
        *reinterpret_cast<uint32_t*>(out) = 1;
      }
      EXPECT_TRUE(launch.run());
      EXPECT_EQ(launch.result().cuda_error, 0) << launch.result().report;
      EXPECT_EQ(buffers.read<uint32_t>(out, 2)[1], 300u) << threads << polls;
    }
  }
}

}  // namespace
}  // namespace vgpu::test
