// SPDX-License-Identifier: Apache-2.0
// Control flow: divergence, loops, tables, calls, exits.
#include "exec/harness.hpp"

namespace vgpu::test {
namespace {

TEST(Control, VectorAdd) {
  Buffers buffers;
  const uint32_t n = 1000;
  std::vector<float> a(n), b(n);
  for (uint32_t k = 0; k < n; k++)
    a[k] = static_cast<float>(k), b[k] = 0.5f * static_cast<float>(k);
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
  for (uint32_t k = 0; k < n; k++) EXPECT_EQ(c[k], a[k] + b[k]) << k;
  EXPECT_GT(result.warp_instructions, 8u * 4 * 10);
}

}  // namespace
}  // namespace vgpu::test
