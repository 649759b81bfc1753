// SPDX-License-Identifier: Apache-2.0
// Loads, stores, atomics, matrices in memory, exchange between lanes; bounds and alignment.
#include <bit>
#include <cmath>

#include "exec/harness.hpp"

namespace vgpu::test {
namespace {

/// One warp; `body` has %lane, %rout (64-bit address of `out`), %shared-free registers %r0-%r31,
/// %rd0-%rd7, %p0-%p3; returns `words` 32-bit words.
std::vector<uint32_t> run_words(const std::string& body, size_t words, uint32_t threads = 32,
                                const std::string& before = "") {
  Buffers buffers;
  uint64_t out = buffers.add(words * 4);
  auto text = kernel_text(".param .u64 out", R"(
    .reg .pred %p<4>;
    .reg .b32 %lane, %r<32>;
    .reg .b64 %rout, %ro, %rd<8>;
    mov.u32 %lane, %tid.x;
    ld.param.u64 %rout, [out];
    mul.wide.u32 %ro, %lane, 4;
    add.s64 %ro, %rout, %ro;
  )" + body + "\nret;",
                          before);
  Launch launch;
  launch.block.x = threads;
  auto result = run_module(text, Params() << out, buffers, launch);
  EXPECT_EQ(result.cuda_error, 0) << result.report;
  return buffers.read<uint32_t>(out, words);
}

/// The error and report of a kernel that must fail.
exec::LaunchResult run_fault(const std::string& body, const std::string& before = "") {
  Buffers buffers;
  uint64_t out = buffers.add(64);
  auto text = kernel_text(
      ".param .u64 out",
      ".reg .b32 %r<8>; .reg .b64 %rd<8>;\nld.param.u64 %rd0, [out];\n" + body + "\nret;", before);
  return run_module(text, Params() << out, buffers);
}

TEST(Memory, VectorsAndExtension) {
  auto out = run_words(R"(
    mov.u32 %r0, 0x80ff7f01;
    st.global.b32 [%ro], %r0;
    .reg .b16 %h<4>;
    ld.global.v4.s8 {%h0, %h1, %h2, %h3}, [%ro];
    cvt.s32.s16 %r1, %h2;
    ld.global.u8 %r2, [%ro+3];
    ld.global.s8 %r3, [%ro+3];
    add.s32 %r4, %r1, %r2;
    add.s32 %r4, %r4, %r3;
    st.global.u32 [%ro], %r4;)",
                       32);
  for (auto word : out) EXPECT_EQ(word, static_cast<uint32_t>(-1 + 0x80 - 0x80));
}

TEST(Memory, SharedLocalAndGeneric) {
  auto out = run_words(R"(
    .shared .align 16 .b8 tile[512];
    .local .align 8 .b8 frame[64];
    mov.u32 %r0, tile;
    shl.b32 %r1, %lane, 2;
    add.s32 %r2, %r0, %r1;
    mul.lo.s32 %r3, %lane, 3;
    st.shared.u32 [%r2], %r3;
    bar.warp.sync -1;
    xor.b32 %r4, %r1, 124;
    add.s32 %r4, %r0, %r4;
    ld.shared.u32 %r5, [%r4];
    mov.u64 %rd0, frame;
    cvta.local.u64 %rd1, %rd0;
    st.u32 [%rd1+8], %r5;
    ld.local.u32 %r6, [%rd0+8];
    mov.u64 %rd2, tile;
    cvta.shared.u64 %rd3, %rd2;
    ld.u32 %r7, [%rd3+128];
    mov.u32 %r7, 0;
    isspacep.shared %p0, %rd3;
    selp.b32 %r7, 1000, 0, %p0;
    add.s32 %r6, %r6, %r7;
    st.global.u32 [%ro], %r6;)",
                       32);
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(out[l], (l ^ 31) * 3 + 1000);
}

TEST(Memory, GlobalsAndConstants) {
  auto out = run_words(R"(
    mov.u64 %rd0, table;
    mul.wide.u32 %rd1, %lane, 4;
    and.b64 %rd1, %rd1, 15;
    add.s64 %rd0, %rd0, %rd1;
    ld.const.u32 %r0, [%rd0];
    ld.global.u32 %r1, [cell+4];
    add.s32 %r0, %r0, %r1;
    st.global.u32 [%ro], %r0;)",
                       32, 32,
                       ".const .align 4 .u32 table[4] = {10, 20, 30, 40};\n"
                       ".visible .global .align 4 .u32 cell[2] = {1, 0x100};");
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(out[l], (l % 4 + 1) * 10 + 0x100);
}

TEST(Memory, WindowsOfParametersAndConstants) {
  // Parameters lie within the global window, constants do not.
  auto out = run_words(R"(
    mov.u64 %rd0, table;
    cvta.const.u64 %rd0, %rd0;
    isspacep.const %p0, %rd0;
    selp.b32 %r0, 1, 0, %p0;
    isspacep.global %p0, %rd0;
    @%p0 or.b32 %r0, %r0, 2;
    mov.u64 %rd1, out;
    cvta.param.u64 %rd1, %rd1;
    isspacep.param %p0, %rd1;
    @%p0 or.b32 %r0, %r0, 4;
    isspacep.global %p0, %rd1;
    @%p0 or.b32 %r0, %r0, 8;
    isspacep.const %p0, %rd1;
    @%p0 or.b32 %r0, %r0, 16;
    isspacep.global %p0, %ro;
    @%p0 or.b32 %r0, %r0, 32;
    st.global.u32 [%ro], %r0;)",
                       32, 32, ".const .align 4 .u32 table[4] = {10, 20, 30, 40};");
  EXPECT_EQ(out[0], 1u + 4 + 8 + 32);
}

TEST(Memory, MemoryMappedAccesses) {
  auto out = run_words(R"(
    st.mmio.relaxed.sys.global.u32 [%ro], %lane;
    ld.mmio.relaxed.sys.global.u32 %r0, [%ro];
    add.u32 %r0, %r0, 5;
    st.mmio.relaxed.sys.global.u32 [%ro], %r0;)",
                       32);
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(out[l], l + 5);
}

/// The sum of two subnormals: flushed in global memory, also through generic addresses, and kept
/// in shared memory.
TEST(Memory, FloatAtomicsFlushInGlobalMemory) {
  auto out = run_words(R"(
    .shared .align 4 .b32 sum;
    setp.eq.u32 %p0, %lane, 0;
    @!%p0 bra DONE;
    st.shared.u32 [sum], 1;
    red.shared.add.f32 [sum], 0f00000001;
    ld.shared.u32 %r0, [sum];
    st.global.u32 [%rout], %r0;
    mov.u64 %rd0, sum;
    cvta.shared.u64 %rd0, %rd0;
    red.add.f32 [%rd0], 0f00000001;
    ld.shared.u32 %r0, [sum];
    st.global.u32 [%rout+4], %r0;
    st.global.u32 [%rout+8], 1;
    red.global.add.f32 [%rout+8], 0f00000001;
    st.global.u32 [%rout+12], 0x80000001;
    red.add.f32 [%rout+12], 0f80000001;
    st.global.u32 [%rout+16], 0x00800001;
    red.global.add.f32 [%rout+16], 0f80800000;
    DONE:)",
                       5);
  EXPECT_EQ(out, (std::vector<uint32_t>{2, 3, 0, 0x80000000, 0}));
}

TEST(Memory, Atomics) {
  auto out = run_words(R"(
    atom.global.add.u32 %r0, [%rout], 2;
    red.global.max.s32 [%rout+4], %lane;
    red.relaxed.gpu.global.add.f32 [%rout+8], 0f3F000000;
    atom.global.or.b32 %r1, [%rout+12], 5;
    atom.global.inc.u32 %r2, [%rout+16], 9;
    atom.global.cas.b32 %r3, [%rout+20], 0, 77;
    atom.global.exch.b32 %r4, [%rout+24], %lane;
    red.global.min.u32 [%rout+28], 0;
    .reg .b64 %w;
    mov.b64 %w, 0x100000001;
    red.global.add.u64 [%rout+32], %w;
    red.global.add.noftz.f16x2 [%rout+40], 0x3c003c00;)",
                       11);
  EXPECT_EQ(out[0], 64u);
  EXPECT_EQ(out[1], 31u);
  EXPECT_EQ(out[2], 0x41800000u);  // 16.0
  EXPECT_EQ(out[3], 5u);
  EXPECT_EQ(out[4], 2u);  // 32 increments that wrap after 9
  EXPECT_EQ(out[5], 77u);
  EXPECT_EQ(out[6], 31u);
  EXPECT_EQ(out[8], 32u);
  EXPECT_EQ(out[9], 32u);
  EXPECT_EQ(out[10], 0x50005000u);  // 32.0 twice
}

TEST(Memory, Matrices) {
  // Store a 8x8 matrix by rows, load it transposed: lane l gets elements (2 (l % 4) .. + 1, l / 4).
  auto out = run_words(R"(
    .shared .align 16 .b8 tile[1024];
    mov.u32 %r0, tile;
    shl.b32 %r1, %lane, 4;
    add.s32 %r1, %r0, %r1;
    shl.b32 %r2, %lane, 17;
    add.s32 %r2, %r2, 65536;
    shl.b32 %r3, %lane, 1;
    or.b32 %r2, %r2, %r3;
    stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1], {%r2};
    ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r4}, [%r1];
    movmatrix.sync.aligned.m8n8.trans.b16 %r5, %r4;
    xor.b32 %r6, %r5, %r2;
    st.global.u32 [%ro], %r4;
    st.global.u32 [%ro+128], %r6;)",
                       64);
  for (uint32_t l = 0; l < 32; ++l) {
    uint32_t low = 8 * (l % 4 * 2) + l / 4, high = low + 8;
    EXPECT_EQ(out[l], low | high << 16) << l;
    EXPECT_EQ(out[32 + l], 0u);
  }
}

/// 16 rows of 16 bytes at `tile`, byte c of row r is 16 r + c; %r0 is the address of row
/// %lane % 16.
constexpr char kByteRows[] = R"(
    .shared .align 16 .b8 tile[512];
    mov.u32 %r0, tile;
    and.b32 %r1, %lane, 15;
    shl.b32 %r1, %r1, 4;
    add.s32 %r0, %r0, %r1;
    mul.lo.s32 %r2, %r1, 0x01010101;
    add.s32 %r3, %r2, 0x03020100;
    add.s32 %r4, %r2, 0x07060504;
    add.s32 %r5, %r2, 0x0b0a0908;
    add.s32 %r6, %r2, 0x0f0e0d0c;
    st.shared.v4.b32 [%r0], {%r3, %r4, %r5, %r6};
    bar.warp.sync -1;
)";

TEST(Memory, MatricesOfBytes) {
  auto out = run_words(std::string(kByteRows) + R"(
    ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r7, %r8}, [%r0];
    st.global.u32 [%ro], %r7;
    st.global.u32 [%ro+128], %r8;
    ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8 {%r7, %r8, %r9, %r10}, [%r0];
    st.global.u32 [%ro+256], %r10;)",
                       96);
  // Of the transposed matrix, four columns of two rows: two columns of both in each register.
  for (uint32_t l = 0; l < 32; ++l) {
    for (uint32_t r = 0; r < 2; ++r) {
      uint32_t want = 0;
      for (uint32_t b = 0; b < 4; ++b) {
        const uint32_t column = l % 4 * 4 + 2 * r + b % 2, row = l / 4 + b / 2 * 8;
        want |= (16 * column + row) << 8 * b;
      }
      EXPECT_EQ(out[32 * r + l], want) << "lane " << l << " register " << r;
      if (r == 1) {
        EXPECT_EQ(out[64 + l], want);
      }
    }
  }
}

TEST(Memory, MatricesOfPackedElements) {
  // Bytes 0..15 of a row as sixteen elements of 6 or 4 bits, lowest bits first.
  auto element = [](uint32_t row, uint32_t column, uint32_t bits) {
    uint32_t value = 0;
    for (uint32_t i = 0; i < bits; ++i) {
      const uint32_t at = column * bits + i, byte = 16 * row + at / 8;
      value |= (byte >> at % 8 & 1) << i;
    }
    return value;
  };
  for (uint32_t bits : {6u, 4u}) {
    const std::string form = bits == 6 ? "b8x16.b6x16_p32" : "b8x16.b4x16_p64";
    auto out = run_words(std::string(kByteRows) + "ldmatrix.sync.aligned.m8n16.x2.shared." + form +
                             " {%r7, %r8}, [%r0];\n" +
                             "ldmatrix.sync.aligned.m16n16.x1.trans.shared." + form +
                             R"( {%r9, %r10}, [%r0];
    st.global.u32 [%ro], %r7;
    st.global.u32 [%ro+128], %r8;
    st.global.u32 [%ro+256], %r9;
    st.global.u32 [%ro+384], %r10;)",
                         128);
    for (uint32_t l = 0; l < 32; ++l) {
      for (uint32_t r = 0; r < 2; ++r) {
        uint32_t plain = 0, transposed = 0;
        for (uint32_t b = 0; b < 4; ++b) {
          plain |= element(8 * r + l / 4, l % 4 * 4 + b, bits) << 8 * b;
          transposed |= element(l % 4 * 4 + 2 * r + b % 2, l / 4 + b / 2 * 8, bits) << 8 * b;
        }
        EXPECT_EQ(out[32 * r + l], plain) << form << " lane " << l;
        EXPECT_EQ(out[64 + 32 * r + l], transposed) << form << " lane " << l;
      }
    }
  }
}

TEST(Memory, StoredMatricesOfBytes) {
  // Accumulators of a 16x8 matrix, byte of element (r, c) 8 r + c, stored by columns.
  auto out = run_words(R"(
    .shared .align 16 .b8 tile[128];
    mov.u32 %r0, tile;
    and.b32 %r1, %lane, 7;
    shl.b32 %r1, %r1, 4;
    add.s32 %r1, %r0, %r1;
    shl.b32 %r2, %lane, 1;
    mad.lo.s32 %r2, %r2, 0x01010101, 0x41400100;
    stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r1], {%r2};
    bar.warp.sync -1;
    shl.b32 %r3, %lane, 2;
    add.s32 %r3, %r0, %r3;
    ld.shared.u32 %r4, [%r3];
    st.global.u32 [%ro], %r4;)",
                       32);
  for (uint32_t l = 0; l < 32; ++l) {
    for (uint32_t b = 0; b < 4; ++b) {
      const uint32_t column = l / 4, row = l % 4 * 4 + b;
      EXPECT_EQ(out[l] >> 8 * b & 0xff, 8 * row + column);
    }
  }
}

TEST(Memory, LaneExchange) {
  auto out = run_words(R"(
    shfl.sync.up.b32 %r0|%p0, %lane, 3, 0, -1;
    selp.b32 %r1, 100, 0, %p0;
    add.s32 %r0, %r0, %r1;
    st.global.u32 [%ro], %r0;
    shfl.sync.bfly.b32 %r0, %lane, 5, 0x1f, -1;
    st.global.u32 [%ro+128], %r0;
    shfl.sync.down.b32 %r0, %lane, 2, 0x181f, -1;
    st.global.u32 [%ro+256], %r0;
    setp.gt.u32 %p1, %lane, 20;
    vote.sync.ballot.b32 %r0, %p1, -1;
    st.global.u32 [%ro+384], %r0;
    and.b32 %r2, %lane, 3;
    match.any.sync.b32 %r0, %r2, -1;
    st.global.u32 [%ro+512], %r0;
    redux.sync.add.s32 %r0, %lane, -1;
    st.global.u32 [%ro+640], %r0;
    elect.sync %r3|%p2, -1;
    selp.b32 %r0, 1, 0, %p2;
    st.global.u32 [%ro+768], %r0;
    vote.sync.all.pred %p3, %p1, -1;
    vote.sync.any.pred %p2, %p1, -1;
    selp.b32 %r0, 1, 0, %p3;
    selp.b32 %r1, 2, 0, %p2;
    add.s32 %r0, %r0, %r1;
    st.global.u32 [%ro+896], %r0;)",
                       256);
  for (uint32_t l = 0; l < 32; ++l) {
    EXPECT_EQ(out[l], l >= 3 ? l - 3 + 100 : l);
    EXPECT_EQ(out[32 + l], l ^ 5);
    EXPECT_EQ(out[64 + l], l % 8 < 6 ? l + 2 : l);
    EXPECT_EQ(out[96 + l], 0xffe00000u);
    EXPECT_EQ(out[128 + l], 0x11111111u << (l & 3));
    EXPECT_EQ(out[160 + l], 496u);
    EXPECT_EQ(out[192 + l], l == 0);
    EXPECT_EQ(out[224 + l], 2u);
  }
}

TEST(Memory, ReduceFloats) {
  const float kNan = NAN;
  auto reduce = [](const std::string& form, std::vector<float> lanes, uint32_t members = ~0u) {
    lanes.resize(32, lanes.back());
    const std::string body = format(
        ".reg .pred %%p;\n.reg .b32 %%m;\nmov.f32 %%out, 0f00000000;\nshr.u32 %%m, %u, %%lane;\n"
        "and.b32 %%m, %%m, 1;\nsetp.eq.u32 %%p, %%m, 1;\n@%%p redux.sync.%s.f32 %%out, %%in, %u;\n",
        members, form.c_str(), members);
    auto out = map_lanes<uint32_t>("f32", "f32", body, lanes);
    for (uint32_t l = 0; l < 32; ++l) {
      EXPECT_EQ(out[l], members >> l & 1 ? out[std::countr_zero(members)] : 0u);
    }
    return out[std::countr_zero(members)];
  };
  auto bits = [](float value) { return std::bit_cast<uint32_t>(value); };
  EXPECT_EQ(reduce("min", {3, -5, 7, 1}), bits(-5));
  EXPECT_EQ(reduce("max", {3, -5, 7, 1}), bits(7));
  EXPECT_EQ(reduce("max", {3, -5, 7, 1}, 0b1011), bits(3));
  EXPECT_EQ(reduce("min.abs", {3, -5, 7, -2}), bits(2));
  EXPECT_EQ(reduce("max.abs", {3, -9, 7, 1}), bits(9));
  EXPECT_EQ(reduce("min", {0.0f, -0.0f, 0.0f}), bits(-0.0f));
  EXPECT_EQ(reduce("max", {-0.0f, 0.0f, -0.0f}), bits(0.0f));
  EXPECT_EQ(reduce("min", {kNan, 1e-40f, kNan, 4}), bits(1e-40f));
  EXPECT_EQ(reduce("max.NaN", {1, 2, kNan, 4}), 0x7fffffffu);
  EXPECT_EQ(reduce("max.abs.NaN", {1, 2, 3, -4}), bits(4));
  EXPECT_EQ(reduce("min", {-kNan}), 0x7fffffffu);
}

TEST(Memory, OutOfBoundsGlobal) {
  auto result = run_fault("ld.global.u32 %r0, [%rd0+64];");
  EXPECT_EQ(result.cuda_error, kIllegalAddress);
  EXPECT_NE(result.report.find("ld.global.u32 %r0, [%rd0+64];"), std::string::npos)
      << result.report;
  EXPECT_EQ(run_fault("ld.global.u32 %r0, [%rd0+60];").cuda_error, 0);
}

TEST(Memory, Misaligned) {
  auto result = run_fault("st.global.v2.u32 [%rd0+4], {%r0, %r1};");
  EXPECT_EQ(result.cuda_error, kMisalignedAddress);
  EXPECT_EQ(run_fault("st.global.v2.u32 [%rd0+8], {%r0, %r1};").cuda_error, 0);
}

TEST(Memory, OutOfBoundsSharedAndLocal) {
  std::string shared = ".shared .align 4 .b8 tile[16];\nmov.u32 %r0, tile;\n";
  EXPECT_EQ(run_fault(shared + "st.shared.u32 [%r0+16], %r1;").cuda_error, kIllegalAddress);
  EXPECT_EQ(run_fault(shared + "st.shared.u32 [%r0-4], %r1;").cuda_error, kIllegalAddress);
  EXPECT_EQ(run_fault(shared + "st.shared.u32 [%r0+12], %r1;").cuda_error, 0);
  std::string local = ".local .align 16 .b8 frame[16];\nmov.u64 %rd1, frame;\n";
  EXPECT_EQ(run_fault(local + "st.local.u32 [%rd1+16], %r1;").cuda_error, kIllegalAddress);
  EXPECT_EQ(run_fault(local + "st.local.u32 [%rd1+12], %r1;").cuda_error, 0);
}

TEST(Memory, ConstantsAndParametersAreReadOnly) {
  EXPECT_EQ(
      run_fault("mov.u64 %rd1, out;\ncvta.param.u64 %rd2, %rd1;\nst.u32 [%rd2], %r0;").cuda_error,
      kIllegalAddress);
  EXPECT_EQ(
      run_fault("mov.u64 %rd1, out;\ncvta.param.u64 %rd2, %rd1;\nld.u32 %r0, [%rd2];").cuda_error,
      0);
}

// `.reg .v2` and `.v4` (PTX ISA, "Vectors"): all of it, or one element.
TEST(Memory, VectorRegisters) {
  auto out = map_lanes<uint64_t>("b64", "b64", R"(
    .reg .v2 .b32 %pair;
    .reg .v4 .b16 %four;
    mov.b64 %pair, %in;
    add.u32 %pair.x, %pair.y, 1;
    mov.b64 %out, %pair;
    mov.b64 %four, %out;
    mov.u16 %four.w, %four.b;
    mov.b64 %out, {%four.x, %four.g, %four.z, %four.a};)",
                                 std::vector<uint64_t>{0x1111222233334444ull});
  EXPECT_EQ(out[0], 0x2222222211112223ull);
  EXPECT_THROW(exec::Program::load(kernel_text("", ".reg .v2 .b32 %p; mov.u32 %p.z, 1;")), Fault);
}

// Ordered accesses of 128 bits (PTX ISA, "ld", "st": .b128 with a scope).
TEST(Memory, OrderedAccessesOf128Bits) {
  Buffers buffers;
  const uint64_t data = buffers.add(std::vector<uint64_t>{1, 2, 3, 4});
  auto text = kernel_text(".param .u64 data", R"(
    .reg .b64 %rd;
    .reg .b128 %wide;
    ld.param.u64 %rd, [data];
    ld.acquire.gpu.global.b128 %wide, [%rd];
    st.release.gpu.global.b128 [%rd+16], %wide;)");
  auto result = run_module(text, Params() << data, buffers);
  ASSERT_EQ(result.cuda_error, 0) << result.report;
  EXPECT_EQ(buffers.read<uint64_t>(data, 4), (std::vector<uint64_t>{1, 2, 1, 2}));
}

}  // namespace
}  // namespace vgpu::test
