// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies, tensor memory, cluster launch control, under every delivery policy.
#include <numeric>

#include "exec/harness.hpp"
#include "tma/tensor_map.hpp"

namespace vgpu::test {
namespace {

using exec::Delivery;

const char kRegisters[] = R"(
  .reg .pred %p<8>;
  .reg .b16 %h<4>;
  .reg .b32 %thr, %r<64>;
  .reg .b64 %rin, %rout, %ro, %rd<8>;
  .reg .b128 %q;
  mov.u32 %thr, %tid.x;
  ld.param.u64 %rin, [in];
  ld.param.u64 %rout, [out];
)";

template <typename Check>
void run_all(const std::string& body, Launch launch, Check check,
             const std::string& more_params = "", const std::vector<uint8_t>& more = {}) {
  auto text =
      kernel_text(".param .u64 in, .param .u64 out" + more_params, kRegisters + body + "\nret;");
  for (auto delivery : kDeliveries) {
    for (uint64_t seed : {1, 2}) {
      Buffers buffers;
      std::vector<uint32_t> input(1024);
      std::iota(input.begin(), input.end(), 100);
      uint64_t in = buffers.add(input), out = buffers.add(4096);
      launch.options.delivery = delivery;
      launch.options.seed = seed;
      Params params;
      params << in << out;
      params.bytes.resize(64);
      params.bytes.insert(params.bytes.end(), more.begin(), more.end());
      if (more.size() >= 128) {
        // A tensor map over the input: rows of 32 words.
        tma::TensorMap map;
        map.type = tma::DataType::uint32;
        map.rank = 2;
        map.address = in;
        map.dims[0] = map.dims[1] = 32;
        map.strides[0] = 4;
        map.strides[1] = 128;
        map.element_strides[0] = map.element_strides[1] = 1;
        map.box[0] = 8;
        map.box[1] = 4;
        ASSERT_EQ(tma::validate(map, 100), "");
        tma::encode(map, params.bytes.data() + 64);
      }
      auto result = run_module(text, params, buffers, launch);
      check(result, buffers.read<uint32_t>(out, 1024));
    }
  }
}

TEST(Async, ThreadCopies) {
  run_all(R"(
    .shared .align 16 .b8 tile[512];
    mul.wide.u32 %ro, %thr, 16;
    add.s64 %rd0, %rin, %ro;
    shl.b32 %r0, %thr, 4;
    mov.u32 %r1, tile;
    add.s32 %r1, %r1, %r0;
    cp.async.cg.shared.global [%r1], [%rd0], 16;
    cp.async.commit_group;
    cp.async.ca.shared.global [%r1+8], [%rd0], 8, 4;
    cp.async.commit_group;
    cp.async.wait_group 0;
    ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [%r1];
    add.s64 %rd1, %rout, %ro;
    st.global.v4.u32 [%rd1], {%r2, %r3, %r4, %r5};)",
          {}, [](auto& result, auto out) {
            ASSERT_EQ(result.cuda_error, 0) << result.report;
            for (uint32_t l = 0; l < 32; ++l) {
              EXPECT_EQ(out[4 * l], 100 + 4 * l);
              EXPECT_EQ(out[4 * l + 1], 101 + 4 * l);
              // The second copy may come before the first: only that its bytes were copied is sure.
              EXPECT_TRUE(out[4 * l + 3] == 0 || out[4 * l + 3] == 103 + 4 * l);
            }
          });
}

const char kBulkRoundTrip[] = R"(
    .shared .align 128 .b8 tile[1024];
    .shared .align 8 .b64 bar;
    setp.ne.u32 %p7, %thr, 0;
    @%p7 ret;
    mov.u32 %r0, tile;
    mov.u32 %r1, bar;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 1024;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%rin], 1024, [%r1];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r1], 0;
    @!%p0 bra WAIT;
    ld.shared.u32 %r2, [%r0+4];
    add.s32 %r2, %r2, 5000;
    st.shared.u32 [%r0+4], %r2;
    fence.proxy.async.shared::cta;
    cp.async.bulk.global.shared::cta.bulk_group [%rout], [%r0], 1024;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
    st.shared.u32 [%r0+8], 0;
    fence.proxy.async.shared::cta;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rout+1024], [%r0], 64;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;)";

TEST(Async, BulkCopies) {
  run_all(kBulkRoundTrip, {}, [](auto& result, auto out) {
    ASSERT_EQ(result.cuda_error, 0) << result.report;
    for (uint32_t k = 0; k < 256; ++k) EXPECT_EQ(out[k], 100 + k + (k == 1 ? 5000 : 0));
    EXPECT_EQ(out[256], 100u);
    EXPECT_EQ(out[258], 0u);
    EXPECT_EQ(result.tma_bytes, 1024u + 1024 + 64);
  });
}

TEST(Async, WithoutItsWaitALoadComesLate) {
  // The same without waiting for the data: late delivery must show stale bytes.
  std::string body = kBulkRoundTrip;
  body.replace(body.find("@!%p0 bra WAIT;"), 15, "");
  body.replace(body.find("mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r1], 0;"), 55, "");
  auto text = kernel_text(".param .u64 in, .param .u64 out", kRegisters + body + "\nret;");
  Buffers buffers;
  std::vector<uint32_t> input(1024, 7);
  uint64_t in = buffers.add(input), out = buffers.add(4096);
  Launch launch;
  launch.options.delivery = Delivery::late;
  auto result = run_module(text, Params() << in << out, buffers, launch);
  EXPECT_EQ(result.cuda_error, 0) << result.report;
  EXPECT_NE(buffers.read<uint32_t>(out, 4)[1], 5007u);
}

TEST(Async, TensorCopiesAndMulticast) {
  // Both CTAs get the box at (8, 2); each stores its copy at another place through the same map.
  Launch launch;
  launch.grid.x = launch.cluster.x = 2;
  run_all(R"(
    .shared .align 128 .b8 tile[128];
    .shared .align 8 .b64 bar;
    mov.u32 %r0, tile;
    mov.u32 %r1, bar;
    mov.u32 %r10, %cluster_ctarank;
    setp.ne.u32 %p7, %thr, 0;
    @%p7 bra JOIN;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 128;
    fence.mbarrier_init.release.cluster;
JOIN:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    @%p7 bra DONE;
    mov.b64 %rd0, map;
    cvta.param.u64 %rd1, %rd0;
    prefetch.tensormap [%rd1];
    setp.eq.u32 %p1, %r10, 0;
    mov.u16 %h0, 3;
    mov.u32 %r4, 8;
    mov.u32 %r5, 2;
    @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r0], [%rd1, {%r4, %r5}], [%r1], %h0;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r1], 0;
    @!%p0 bra WAIT;
    ld.shared.u32 %r6, [%r0+36];
    mul.wide.u32 %ro, %r10, 4;
    add.s64 %ro, %rout, %ro;
    st.global.u32 [%ro], %r6;
    mad.lo.s32 %r7, %r10, 4, 28;
    mov.u32 %r8, 16;
    cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r8, %r7}], [%r0];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    setp.eq.u32 %p2, %r10, 0;
    ld.global.u32 %r9, [%rin+3648];
    @%p2 st.global.u32 [%rout+8], %r9;
DONE:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;)",
          launch,
          [](auto& result, auto out) {
            ASSERT_EQ(result.cuda_error, 0) << result.report;
            // Row 1, column 1 of the box: element (9, 3).
            EXPECT_EQ(out[0], 100u + 3 * 32 + 9);
            EXPECT_EQ(out[1], 100u + 3 * 32 + 9);
            // Element (16, 28) is now the box's first.
            EXPECT_EQ(out[2], 100u + 2 * 32 + 8);
          },
          ", .param .align 64 .b8 map[128]", std::vector<uint8_t>(128));
}

TEST(Async, RemoteStores) {
  Launch launch;
  launch.grid.x = launch.cluster.x = 2;
  run_all(R"(
    .shared .align 8 .b64 cell;
    .shared .align 8 .b64 bar;
    mov.u32 %r0, cell;
    mov.u32 %r1, bar;
    mov.u32 %r10, %cluster_ctarank;
    setp.ne.u32 %p7, %thr, 0;
    @%p7 bra JOIN;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 8;
    st.shared.u64 [%r0], 0;
JOIN:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    @%p7 bra DONE;
    xor.b32 %r2, %r10, 1;
    mapa.shared::cluster.u32 %r3, %r0, %r2;
    mapa.shared::cluster.u32 %r4, %r1, %r2;
    add.s32 %r5, %r10, 50;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r3], %r5, [%r4];
    red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r3+4], 3, [%r4];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r1], 0;
    @!%p0 bra WAIT;
    ld.shared.v2.u32 {%r6, %r7}, [%r0];
    mad.lo.s32 %r6, %r7, 1000, %r6;
    mul.wide.u32 %ro, %r10, 4;
    add.s64 %ro, %rout, %ro;
    st.global.u32 [%ro], %r6;
DONE:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;)",
          launch, [](auto& result, auto out) {
            ASSERT_EQ(result.cuda_error, 0) << result.report;
            EXPECT_EQ(out[0], 3051u);
            EXPECT_EQ(out[1], 3050u);
          });
}

TEST(Async, ClusterLaunchControl) {
  // Each running CTA takes further ones' work until none is left: every CTA number is done once.
  Launch launch;
  launch.grid.x = 20;
  run_all(R"(
    .shared .align 16 .b8 answer[16];
    .shared .align 8 .b64 bar;
    mov.u32 %r0, answer;
    mov.u32 %r1, bar;
    setp.ne.u32 %p7, %thr, 0;
    @%p7 ret;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    mov.u32 %r2, %ctaid.x;
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
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q;
    @!%p1 ret;
    clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r2, %r5, %r6, %r7}, %q;
    bra NEXT;)",
          launch, [](auto& result, auto out) {
            ASSERT_EQ(result.cuda_error, 0) << result.report;
            for (uint32_t c = 0; c < 20; ++c) EXPECT_EQ(out[c], 1u) << c;
          });
}

const char kTensorMemory[] = R"(
    .shared .align 4 .u32 address;
    mov.u32 %r0, address;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 32;
    tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
    ld.shared.u32 %r1, [%r0];
    mul.lo.s32 %r2, %thr, 10;
    add.s32 %r3, %r2, 1;
    tcgen05.st.sync.aligned.32x32b.x2.b32 [%r1], {%r2, %r3};
    tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r4}, [%r1+1];
    tcgen05.wait::ld.sync.aligned;
    mul.wide.u32 %ro, %thr, 4;
    add.s64 %ro, %rout, %ro;
    st.global.u32 [%ro], %r4;)";

TEST(Async, TensorMemory) {
  run_all(std::string(kTensorMemory) + "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 32;", {},
          [](auto& result, auto out) {
            ASSERT_EQ(result.cuda_error, 0) << result.report;
            for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(out[l], 10 * l + 1);
          });
}

TEST(Async, TensorMemoryLeak) {
  run_all(kTensorMemory, {}, [](auto& result, auto) {
    EXPECT_EQ(result.cuda_error, kTensorMemoryLeak);
    EXPECT_NE(result.report.find("columns 0..31"), std::string::npos) << result.report;
  });
}

TEST(Async, LateCopiesWithoutCommitFault) {
  // A copy into memory that is too small names both.
  run_all(R"(
    .shared .align 16 .b8 tile[16];
    .shared .align 8 .b64 bar;
    setp.ne.u32 %p7, %thr, 0;
    @%p7 ret;
    mov.u32 %r0, tile;
    mov.u32 %r1, bar;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%rin], 64, [%r1];)",
          {}, [](auto& result, auto) {
            EXPECT_EQ(result.cuda_error, kIllegalAddress);
            EXPECT_NE(result.report.find("cp.async.bulk"), std::string::npos) << result.report;
          });
}

TEST(Async, WarpMma) {
  // A = row number in column 0, B = column number in row 0: D = row * column.
  run_all(R"(
    shr.u32 %r0, %thr, 2;
    and.b32 %r1, %thr, 3;
    setp.eq.u32 %p0, %r1, 0;
    cvt.rn.f32.u32 %r2, %r0;
    add.s32 %r3, %r0, 8;
    cvt.rn.f32.u32 %r4, %r3;
    cvt.rn.f16x2.f32 %r5, 0f00000000, %r2;
    cvt.rn.f16x2.f32 %r6, 0f00000000, %r4;
    selp.b32 %r5, %r5, 0, %p0;
    selp.b32 %r6, %r6, 0, %p0;
    mov.b32 %r7, 0;
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r10, %r11, %r12, %r13}, {%r5, %r6, %r7, %r7}, {%r5, %r7}, {%r7, %r7, %r7, %r7};
    mul.wide.u32 %ro, %thr, 16;
    add.s64 %ro, %rout, %ro;
    st.global.v4.b32 [%ro], {%r10, %r11, %r12, %r13};)",
          {}, [](auto& result, auto out) {
            ASSERT_EQ(result.cuda_error, 0) << result.report;
            for (uint32_t l = 0; l < 32; ++l) {
              for (uint32_t c = 0; c < 4; ++c) {
                uint32_t row = l / 4 + c / 2 * 8, column = l % 4 * 2 + c % 2;
                EXPECT_EQ(std::bit_cast<float>(out[4 * l + c]), static_cast<float>(row * column));
              }
            }
          });
}

// Registers that a sum is not wanted of, and constants in place of C, as row sums are written.
TEST(Async, WarpMmaWithSinksAndConstants) {
  run_all(R"(
    mov.b32 %r1, 0x3c003c00;
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r10, _, %r12, _}, {%r1, %r1, %r1, %r1}, {%r1, %r1}, {0., 1.5e+1, 2.5, 1e2};
    mul.wide.u32 %ro, %thr, 8;
    add.s64 %ro, %rout, %ro;
    st.global.v2.b32 [%ro], {%r10, %r12};)",
          {}, [](auto& result, auto out) {
            ASSERT_EQ(result.cuda_error, 0) << result.report;
            for (uint32_t l = 0; l < 32; ++l) {
              EXPECT_EQ(std::bit_cast<float>(out[2 * l]), 16.0f);
              EXPECT_EQ(std::bit_cast<float>(out[2 * l + 1]), 18.5f);
            }
          });
}

/// The value of row r, column k of A or of row k, column c of B, in the lane that holds it.
std::string load_double(const std::string& to, const std::string& row, uint32_t first_row,
                        const std::string& column, uint32_t first_column) {
  // 32 (row + first row) + column + first column + 1, as a double.
  return "mad.lo.u32 %r5, " + row + ", 32, " + column + ";\nadd.u32 %r5, %r5, " +
         std::to_string(32 * first_row + first_column + 1) + ";\ncvt.rn.f64.u32 " + to + ", %r5;\n";
}

// mma.sync of doubles: A[r][k] = 32 r + k + 1, B[k][c] = 32 k + c + 1, C[r][c] = r + c / 2.
TEST(Async, WarpMmaOfDoubles) {
  struct Shape {
    uint32_t m, k;
  };
  for (const auto [m, k] : {Shape{8, 4}, Shape{16, 4}, Shape{16, 8}, Shape{16, 16}}) {
    const uint32_t halves = m / 8;
    std::string ptx =
        "{\n.reg .f64 %a<8>, %b<4>, %c<4>;\n"
        "shr.u32 %r0, %thr, 2;\nand.b32 %r1, %thr, 3;\n";
    std::string a, b, c;
    auto name = [](std::string& list, char letter, uint32_t number) {
      const std::string one = std::string("%") + letter + std::to_string(number);
      list += (list.empty() ? "" : ", ") + one;
      return one;
    };
    for (uint32_t r = 0; r < halves * k / 4; ++r) {
      ptx += load_double(name(a, 'a', r), "%r0", r % halves * 8, "%r1", r / halves * 4);
    }
    for (uint32_t r = 0; r < k / 4; ++r) {
      ptx += load_double(name(b, 'b', r), "%r1", r * 4, "%r0", 0);
    }
    for (uint32_t r = 0; r < 2 * halves; ++r) {
      ptx += "add.u32 %r5, %r0, " + std::to_string(r / 2 * 8) + ";\nadd.u32 %r5, %r5, %r1;\n" +
             "cvt.rn.f64.u32 " + name(c, 'c', r) + ", %r5;\n";
    }
    ptx += "mma.sync.aligned.m" + std::to_string(m) + "n8k" + std::to_string(k) +
           ".row.col.f64.f64.f64.f64 {" + c + "}, {" + a + "}, {" + b + "}, {" + c + "};\n";
    ptx +=
        "mul.wide.u32 %ro, %thr, " + std::to_string(8 * halves) + ";\nadd.s64 %ro, %rout, %ro;\n";
    for (uint32_t r = 0; r < 2 * halves; ++r) {
      ptx += "cvt.rni.u32.f64 %r5, %c" + std::to_string(r) + ";\nst.global.u32 [%ro+" +
             std::to_string(4 * r) + "], %r5;\n";
    }
    run_all(ptx + "}", {}, [&](auto& result, auto out) {
      ASSERT_EQ(result.cuda_error, 0) << result.report;
      for (uint32_t l = 0; l < 32; ++l) {
        for (uint32_t r = 0; r < 2 * halves; ++r) {
          const uint32_t row = l / 4 + r / 2 * 8, column = l % 4 * 2 + r % 2;
          uint32_t sum = row + column / 2;
          for (uint32_t i = 0; i < k; ++i) sum += (32 * row + i + 1) * (32 * i + column + 1);
          EXPECT_EQ(out[2 * halves * l + r], sum) << m << " " << k << " " << l << " " << r;
        }
      }
    });
  }
}

}  // namespace
}  // namespace vgpu::test
