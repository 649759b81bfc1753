// SPDX-License-Identifier: Apache-2.0
// What wgmma does on the GPU at hand: one line a case, to be compared between a real H200 and the
// virtual one.
//
//   probe_wgmma [first [last]]          runs the cases (numbers from 0), prints
//                                       "<n> <case> <fnv hash of D>"      integer-valued data
//                                       "<n> <case> real <32 values>"     real data
//                                       "<n> <case> error <cuda error>"   and stops: the error
//                                       sticks
//   probe_wgmma --compare a.txt b.txt   integer-valued lines must be equal; real values may differ
//   by
//                                       2^-20 of the largest |value| of their line. Exit status 1
//                                       when they do not.
//
// Shared memory is filled with pseudo-random elements whatever the layout is, so a wrong address of
// any element changes the hash. Build: nvcc -std=c++20 -cudart shared
// -gencode arch=compute_90a,code=[sm_90a,compute_90a]
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

// ---- register lists "d0,d1,…" and what loads and stores them, for every N
#define REG4(a, b, c, d) "d" #a ",d" #b ",d" #c ",d" #d
#define LD1(i) "ld.global.b32 d" #i ", [p]; add.u64 p, p, 512;\n"
#define ST1(i) "st.global.b32 [p], d" #i "; add.u64 p, p, 512;\n"
#define LD4(a, b, c, d) LD1(a) LD1(b) LD1(c) LD1(d)
#define ST4(a, b, c, d) ST1(a) ST1(b) ST1(c) ST1(d)
#define EACH8(F, S) F(0, 1, 2, 3)
#define EACH16(F, S) EACH8(F, S) S F(4, 5, 6, 7)
#define EACH24(F, S) EACH16(F, S) S F(8, 9, 10, 11)
#define EACH32(F, S) EACH24(F, S) S F(12, 13, 14, 15)
#define EACH40(F, S) EACH32(F, S) S F(16, 17, 18, 19)
#define EACH48(F, S) EACH40(F, S) S F(20, 21, 22, 23)
#define EACH56(F, S) EACH48(F, S) S F(24, 25, 26, 27)
#define EACH64(F, S) EACH56(F, S) S F(28, 29, 30, 31)
#define EACH72(F, S) EACH64(F, S) S F(32, 33, 34, 35)
#define EACH80(F, S) EACH72(F, S) S F(36, 37, 38, 39)
#define EACH88(F, S) EACH80(F, S) S F(40, 41, 42, 43)
#define EACH96(F, S) EACH88(F, S) S F(44, 45, 46, 47)
#define EACH104(F, S) EACH96(F, S) S F(48, 49, 50, 51)
#define EACH112(F, S) EACH104(F, S) S F(52, 53, 54, 55)
#define EACH120(F, S) EACH112(F, S) S F(56, 57, 58, 59)
#define EACH128(F, S) EACH120(F, S) S F(60, 61, 62, 63)
#define EACH136(F, S) EACH128(F, S) S F(64, 65, 66, 67)
#define EACH144(F, S) EACH136(F, S) S F(68, 69, 70, 71)
#define EACH152(F, S) EACH144(F, S) S F(72, 73, 74, 75)
#define EACH160(F, S) EACH152(F, S) S F(76, 77, 78, 79)
#define EACH168(F, S) EACH160(F, S) S F(80, 81, 82, 83)
#define EACH176(F, S) EACH168(F, S) S F(84, 85, 86, 87)
#define EACH184(F, S) EACH176(F, S) S F(88, 89, 90, 91)
#define EACH192(F, S) EACH184(F, S) S F(92, 93, 94, 95)
#define EACH200(F, S) EACH192(F, S) S F(96, 97, 98, 99)
#define EACH208(F, S) EACH200(F, S) S F(100, 101, 102, 103)
#define EACH216(F, S) EACH208(F, S) S F(104, 105, 106, 107)
#define EACH224(F, S) EACH216(F, S) S F(108, 109, 110, 111)
#define EACH232(F, S) EACH224(F, S) S F(112, 113, 114, 115)
#define EACH240(F, S) EACH232(F, S) S F(116, 117, 118, 119)
#define EACH248(F, S) EACH240(F, S) S F(120, 121, 122, 123)
#define EACH256(F, S) EACH248(F, S) S F(124, 125, 126, 127)

constexpr uint32_t kSharedBytes = 96 * 1024;
constexpr uint32_t kThreads = 128;

/// What a launch needs; the matrices start at multiples of 1024 bytes of dynamic shared memory.
struct Operands {
  uint64_t a_descriptor, b_descriptor;  // start addresses relative to the first 1024-byte boundary
  uint32_t scale_d;
};

__device__ uint32_t aligned_shared(char* shared) {
  return (static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + 1023) & ~1023u;
}

/// Copies the fill into shared memory and makes it visible to the async proxy.
__device__ uint32_t fill_shared(char* shared, const uint32_t* fill) {
  uint32_t base = aligned_shared(shared);
  uint32_t words = (kSharedBytes - 1024) / 4;
  for (uint32_t i = threadIdx.x; i < words; i += kThreads)
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(base + 4 * i), "r"(fill[i]) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  return base;
}

// One kernel an opcode. D: 32-bit registers, element r of thread t at d[r * 128 + t].
#define KERNEL(NAME, N, LIST, OPCODE, TAIL)                                                      \
  __global__ void __launch_bounds__(128) NAME(uint32_t* d, const uint32_t* fill, Operands o) {   \
    extern __shared__ char shared[];                                                             \
    uint64_t base = fill_shared(shared, fill) >> 4;                                              \
    asm volatile(                                                                                \
        "{\n.reg .b32 d<128>;\n.reg .u64 p;\n.reg .pred s;\nsetp.ne.u32 s, %3, 0;\n"             \
        "mov.u64 p, %0;\n" LIST(LD4, ) "wgmma.fence.sync.aligned;\n" OPCODE " {" LIST(           \
            REG4, ",") "}, %1, %2, s" TAIL                                                       \
                       ";\nwgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n" \
                       "mov.u64 p, %0;\n" LIST(ST4, ) "}\n" ::"l"(d + threadIdx.x),              \
        "l"(o.a_descriptor + base), "l"(o.b_descriptor + base), "r"(o.scale_d)                   \
        : "memory");                                                                             \
  }
// The same with A in four registers, taken from the start of the fill.
#define KERNEL_RS(NAME, N, LIST, OPCODE, TAIL)                                                   \
  __global__ void __launch_bounds__(128) NAME(uint32_t* d, const uint32_t* fill, Operands o) {   \
    extern __shared__ char shared[];                                                             \
    uint64_t base = fill_shared(shared, fill) >> 4;                                              \
    const uint32_t* a = fill + threadIdx.x * 4;                                                  \
    asm volatile(                                                                                \
        "{\n.reg .b32 d<128>;\n.reg .u64 p;\n.reg .pred s;\nsetp.ne.u32 s, %2, 0;\n"             \
        "mov.u64 p, %0;\n" LIST(LD4, ) "wgmma.fence.sync.aligned;\n" OPCODE " {" LIST(           \
            REG4, ",") "}, {%3,%4,%5,%6}, %1, s" TAIL                                            \
                       ";\nwgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n" \
                       "mov.u64 p, %0;\n" LIST(ST4, ) "}\n" ::"l"(d + threadIdx.x),              \
        "l"(o.b_descriptor + base), "r"(o.scale_d), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])   \
        : "memory");                                                                             \
  }

#define WGMMA(N, K, TYPES) "wgmma.mma_async.sync.aligned.m64n" #N "k" #K "." TYPES
// Every N, bf16, A from shared memory and from registers.
#define EVERY_N(X)                                                                               \
  X(8)                                                                                           \
  X(16) X(24) X(32) X(40) X(48) X(56) X(64) X(72) X(80) X(88) X(96) X(104) X(112) X(120) X(128)  \
      X(136) X(144) X(152) X(160) X(168) X(176) X(184) X(192) X(200) X(208) X(216) X(224) X(232) \
          X(240) X(248) X(256)
#define BF16(N)                                                                \
  KERNEL(bf16_n##N, N, EACH##N, WGMMA(N, 16, "f32.bf16.bf16"), ", 1, 1, 0, 0") \
  KERNEL_RS(bf16_rs_n##N, N, EACH##N, WGMMA(N, 16, "f32.bf16.bf16"), ", 1, 1, 0")
EVERY_N(BF16)

// The other types on a few N (D lists of f16 accumulators are half as long).
#define SOME_N(X) X(8) X(24) X(64) X(128) X(208) X(256)
#define OTHERS(N)                                                              \
  KERNEL(f16_n##N, N, EACH##N, WGMMA(N, 16, "f32.f16.f16"), ", 1, 1, 0, 0")    \
  KERNEL(tf32_n##N, N, EACH##N, WGMMA(N, 8, "f32.tf32.tf32"), ", 1, 1")        \
  KERNEL_RS(tf32_rs_n##N, N, EACH##N, WGMMA(N, 8, "f32.tf32.tf32"), ", 1, 1")  \
  KERNEL(e4m3_n##N, N, EACH##N, WGMMA(N, 32, "f32.e4m3.e4m3"), ", 1, 1")       \
  KERNEL_RS(e4m3_rs_n##N, N, EACH##N, WGMMA(N, 32, "f32.e4m3.e4m3"), ", 1, 1") \
  KERNEL(e5m2_e4m3_n##N, N, EACH##N, WGMMA(N, 32, "f32.e5m2.e4m3"), ", 1, 1")  \
  KERNEL(s8_n##N, N, EACH##N, WGMMA(N, 32, "s32.s8.s8"), "")                   \
  KERNEL_RS(s8_u8_rs_n##N, N, EACH##N, WGMMA(N, 32, "s32.s8.u8"), "")
SOME_N(OTHERS)
KERNEL(f16acc_n16, 16, EACH8, WGMMA(16, 16, "f16.f16.f16"), ", 1, 1, 0, 0")
KERNEL(f16acc_n128, 128, EACH64, WGMMA(128, 16, "f16.f16.f16"), ", 1, 1, 0, 0")
KERNEL(f16acc_n256, 256, EACH128, WGMMA(256, 16, "f16.f16.f16"), ", 1, 1, 0, 0")
KERNEL_RS(f16acc_rs_n64, 64, EACH32, WGMMA(64, 16, "f16.f16.f16"), ", 1, 1, 0")
KERNEL(e4m3_f16acc_n64, 64, EACH32, WGMMA(64, 32, "f16.e4m3.e4m3"), ", 1, 1")
// Transposes, scales, saturation.
KERNEL(bf16_tn_n128, 128, EACH128, WGMMA(128, 16, "f32.bf16.bf16"), ", 1, 1, 1, 0")
KERNEL(bf16_nt_n128, 128, EACH128, WGMMA(128, 16, "f32.bf16.bf16"), ", 1, 1, 0, 1")
KERNEL(bf16_tt_n128, 128, EACH128, WGMMA(128, 16, "f32.bf16.bf16"), ", 1, 1, 1, 1")
KERNEL(f16_tt_n96, 96, EACH96, WGMMA(96, 16, "f32.f16.f16"), ", 1, 1, 1, 1")
KERNEL_RS(bf16_rs_t_n128, 128, EACH128, WGMMA(128, 16, "f32.bf16.bf16"), ", 1, 1, 1")
KERNEL(bf16_neg_a_n64, 64, EACH64, WGMMA(64, 16, "f32.bf16.bf16"), ", -1, 1, 0, 0")
KERNEL(bf16_neg_b_n64, 64, EACH64, WGMMA(64, 16, "f32.bf16.bf16"), ", 1, -1, 0, 0")
KERNEL(u8_sat_n64, 64, EACH64, WGMMA(64, 32, "s32.u8.u8.satfinite"), "")

using Kernel = void (*)(uint32_t*, const uint32_t*, Operands);
enum class Fill { bf16, f16, tf32, e4m3, e5m2, bytes, real_bf16 };
enum class Initial { f32, f16, s32, s32_large };

struct Case {
  std::string name;
  Kernel kernel;
  Fill fill;
  Initial initial;
  Operands operands;
};

uint64_t descriptor(uint32_t start, uint32_t lbo, uint32_t sbo, uint32_t swizzle,
                    uint32_t base_offset = 0) {
  return uint64_t{start >> 4} | uint64_t{lbo >> 4} << 16 | uint64_t{sbo >> 4} << 32 |
         uint64_t{base_offset} << 49 | uint64_t{swizzle} << 62;
}

std::vector<Case> make_cases() {
  std::vector<Case> cases;
  // K-major 128B: rows of 128 bytes; A at 0, B at 16 KiB.
  const Operands k128{descriptor(0, 16, 1024, 1), descriptor(16384, 16, 1024, 1), 1};
  auto add = [&](const std::string& name, Kernel kernel, Fill fill, Initial initial, Operands o) {
    cases.push_back({name, kernel, fill, initial, o});
  };
#define ADD_BF16(N)                                            \
  add("bf16 n" #N, bf16_n##N, Fill::bf16, Initial::f32, k128); \
  add("bf16 rs n" #N, bf16_rs_n##N, Fill::bf16, Initial::f32, k128);
  EVERY_N(ADD_BF16)
#define ADD_OTHERS(N)                                                    \
  add("f16 n" #N, f16_n##N, Fill::f16, Initial::f32, k128);              \
  add("tf32 n" #N, tf32_n##N, Fill::tf32, Initial::f32, k128);           \
  add("tf32 rs n" #N, tf32_rs_n##N, Fill::tf32, Initial::f32, k128);     \
  add("e4m3 n" #N, e4m3_n##N, Fill::e4m3, Initial::f32, k128);           \
  add("e4m3 rs n" #N, e4m3_rs_n##N, Fill::e4m3, Initial::f32, k128);     \
  add("e5m2.e4m3 n" #N, e5m2_e4m3_n##N, Fill::e4m3, Initial::f32, k128); \
  add("s8 n" #N, s8_n##N, Fill::bytes, Initial::s32, k128);              \
  add("s8.u8 rs n" #N, s8_u8_rs_n##N, Fill::bytes, Initial::s32, k128);
  SOME_N(ADD_OTHERS)
  add("f16 acc n16", f16acc_n16, Fill::f16, Initial::f16, k128);
  add("f16 acc n128", f16acc_n128, Fill::f16, Initial::f16, k128);
  add("f16 acc n256", f16acc_n256, Fill::f16, Initial::f16, k128);
  add("f16 acc rs n64", f16acc_rs_n64, Fill::f16, Initial::f16, k128);
  add("e4m3 f16 acc n64", e4m3_f16acc_n64, Fill::e4m3, Initial::f16, k128);
  add("bf16 neg a", bf16_neg_a_n64, Fill::bf16, Initial::f32, k128);
  add("bf16 neg b", bf16_neg_b_n64, Fill::bf16, Initial::f32, k128);
  add("u8 satfinite", u8_sat_n64, Fill::bytes, Initial::s32_large, k128);
  add("s8 wrap", s8_n64, Fill::bytes, Initial::s32_large, k128);
  Operands no_d = k128;
  no_d.scale_d = 0;
  add("bf16 scale-d 0", bf16_n64, Fill::bf16, Initial::f32, no_d);
  // Layouts: swizzle x strides, K-major and MN-major, with paddings.
  const char* names[] = {"none", "128B", "64B", "32B"};
  const uint32_t span[] = {16, 128, 64, 32};
  for (uint32_t swizzle = 0; swizzle < 4; swizzle++) {
    const uint32_t rows8 = 8 * span[swizzle];
    for (uint32_t padding : {0u, 1024u}) {
      std::string suffix =
          std::string(" ") + names[swizzle] + " padding " + std::to_string(padding);
      // K-major: SBO between groups of 8 rows; LBO (no swizzle) between the two 16-byte columns.
      uint64_t a = swizzle ? descriptor(0, 16, rows8 + padding, swizzle)
                           : descriptor(0, 128 + padding / 8, 256 + padding, 0);
      uint64_t b = swizzle ? descriptor(32768, 16, rows8 + padding, swizzle)
                           : descriptor(32768, 128 + padding / 8, 256 + padding, 0);
      add("bf16 K-major" + suffix, bf16_n128, Fill::bf16, Initial::f32, {a, b, 1});
      add("tf32 K-major" + suffix, tf32_n128, Fill::tf32, Initial::f32, {a, b, 1});
      add("e4m3 K-major" + suffix, e4m3_n128, Fill::e4m3, Initial::f32, {a, b, 1});
      // MN-major: two groups of 8 k; LBO (swizzled) between spans of MN, SBO between groups of k.
      uint64_t am = swizzle ? descriptor(0, 2 * rows8 + padding, rows8, swizzle)
                            : descriptor(0, 1024 + padding, 128, 0);
      uint64_t bm = swizzle ? descriptor(32768, 2 * rows8 + padding, rows8, swizzle)
                            : descriptor(32768, 2048 + padding, 128, 0);
      add("bf16 A MN-major" + suffix, bf16_tn_n128, Fill::bf16, Initial::f32, {am, b, 1});
      add("bf16 B MN-major" + suffix, bf16_nt_n128, Fill::bf16, Initial::f32, {a, bm, 1});
      add("bf16 both MN-major" + suffix, bf16_tt_n128, Fill::bf16, Initial::f32, {am, bm, 1});
      add("f16 both MN-major" + suffix, f16_tt_n96, Fill::f16, Initial::f32, {am, bm, 1});
      add("bf16 rs B MN-major" + suffix, bf16_rs_t_n128, Fill::bf16, Initial::f32, {am, bm, 1});
    }
  }
  // A start address inside the pattern (advancing along K), and not at its start in rows.
  for (uint32_t step : {32u, 64u, 96u})
    add("bf16 K step " + std::to_string(step), bf16_n64, Fill::bf16, Initial::f32,
        {descriptor(step, 16, 1024, 1), descriptor(16384 + step, 16, 1024, 1), 1});
  for (uint32_t row : {1u, 3u})
    for (uint32_t base_offset : {0u, row})
      add("bf16 start row " + std::to_string(row) + " base offset " + std::to_string(base_offset),
          bf16_n64, Fill::bf16, Initial::f32,
          {descriptor(row * 128, 16, 1024, 1, base_offset), descriptor(16384, 16, 1024, 1), 1});
  // Real data.
  add("bf16 n64", bf16_n64, Fill::real_bf16, Initial::f32, k128);
  add("bf16 rs n128", bf16_rs_n128, Fill::real_bf16, Initial::f32, k128);
  add("bf16 n256", bf16_n256, Fill::real_bf16, Initial::f32, no_d);
  return cases;
}

// ---- data

uint32_t next_random(uint32_t& state) {
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}

uint16_t bf16_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>(bits >> 16);
}

/// A word of elements that hold -4..4 (bytes: any).
uint32_t fill_word(Fill fill, uint32_t& state) {
  static const uint16_t f16[9] = {0xc400, 0xc200, 0xc000, 0xbc00, 0,
                                  0x3c00, 0x4000, 0x4200, 0x4400};
  static const uint8_t e4m3[9] = {0xc8, 0xc4, 0xc0, 0xb8, 0, 0x38, 0x40, 0x44, 0x48};
  uint32_t word = 0;
  auto small = [&] { return static_cast<int>(next_random(state) % 9) - 4; };
  switch (fill) {
    case Fill::bf16:
      for (int i = 0; i < 2; i++) word |= uint32_t{bf16_of(static_cast<float>(small()))} << 16 * i;
      return word;
    case Fill::f16:
      for (int i = 0; i < 2; i++) word |= uint32_t{f16[small() + 4]} << 16 * i;
      return word;
    case Fill::tf32: {
      float value = static_cast<float>(small());
      std::memcpy(&word, &value, 4);
      return word | (next_random(state) & 0x1fff);  // the hardware must ignore these bits
    }
    case Fill::e4m3:
    case Fill::e5m2:
      for (int i = 0; i < 4; i++) word |= uint32_t{e4m3[small() + 4]} << 8 * i;
      return word;
    case Fill::bytes:
      for (int i = 0; i < 4; i++) word |= (next_random(state) & 0xff) << 8 * i;
      return word;
    case Fill::real_bf16:
      for (int i = 0; i < 2; i++) {
        float value = static_cast<float>(next_random(state) % 65536) / 32768.0f - 1.0f;
        word |= uint32_t{bf16_of(value)} << 16 * i;
      }
      return word;
  }
  return 0;
}

uint32_t initial_word(Initial initial, uint32_t& state) {
  int value = static_cast<int>(next_random(state) % 17) - 8;
  float real = static_cast<float>(value);
  uint32_t word = 0;
  switch (initial) {
    case Initial::f32:
      std::memcpy(&word, &real, 4);
      return word;
    case Initial::f16:
      return value & 1 ? 0x3c00c000 : 0x44003c00;
    case Initial::s32:
      return static_cast<uint32_t>(value);
    case Initial::s32_large:
      return value & 1 ? 0x7ffffff0u : 0x80000010u;
  }
  return 0;
}

bool run_case(int number, const Case& test) {
  constexpr uint32_t kWords = 128 * kThreads;
  std::vector<uint32_t> fill(kSharedBytes / 4), d(kWords);
  uint32_t state = 12345;
  for (uint32_t& word : fill) word = fill_word(test.fill, state);
  for (uint32_t& word : d) word = initial_word(test.initial, state);
  uint32_t *device_fill, *device_d;
  cudaMalloc(&device_fill, fill.size() * 4);
  cudaMalloc(&device_d, d.size() * 4);
  cudaMemcpy(device_fill, fill.data(), fill.size() * 4, cudaMemcpyHostToDevice);
  cudaMemcpy(device_d, d.data(), d.size() * 4, cudaMemcpyHostToDevice);
  cudaFuncSetAttribute(test.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  test.kernel<<<1, kThreads, kSharedBytes>>>(device_d, device_fill, test.operands);
  cudaError_t error = cudaDeviceSynchronize();
  if (error != cudaSuccess) {
    std::printf("%d %s error %d %s\n", number, test.name.c_str(), static_cast<int>(error),
                cudaGetErrorName(error));
    return false;
  }
  cudaMemcpy(d.data(), device_d, d.size() * 4, cudaMemcpyDeviceToHost);
  cudaFree(device_fill);
  cudaFree(device_d);
  if (test.fill == Fill::real_bf16) {
    std::printf("%d %s real", number, test.name.c_str());
    for (uint32_t i = 0; i < 32; i++) {
      float value;
      std::memcpy(&value, &d[(i % 16) * kThreads + i * 4], 4);
      std::printf(" %a", value);
    }
    std::printf("\n");
    return true;
  }
  uint64_t hash = 14695981039346656037ull;
  for (uint32_t word : d) hash = (hash ^ word) * 1099511628211ull;
  std::printf("%d %s %016llx\n", number, test.name.c_str(), static_cast<unsigned long long>(hash));
  return true;
}

// ---- comparison of two outputs

std::vector<std::string> read_lines(const char* path) {
  std::vector<std::string> lines;
  std::FILE* file = std::fopen(path, "r");
  if (!file) {
    std::fprintf(stderr, "cannot read %s\n", path);
    std::exit(2);
  }
  char buffer[4096];
  while (std::fgets(buffer, sizeof buffer, file)) lines.push_back(buffer);
  std::fclose(file);
  return lines;
}

std::vector<double> real_values(const std::string& line) {
  std::vector<double> values;
  size_t at = line.find(" real ");
  if (at == std::string::npos) return values;
  const char* text = line.c_str() + at + 6;
  for (char* end;; text = end) {
    double value = std::strtod(text, &end);
    if (end == text) return values;
    values.push_back(value);
  }
}

bool same(const std::string& a, const std::string& b) {
  if (a == b) return true;
  std::vector<double> x = real_values(a), y = real_values(b);
  if (x.empty() || x.size() != y.size() ||
      a.substr(0, a.find(" real ")) != b.substr(0, b.find(" real ")))
    return false;
  double largest = 0, difference = 0;
  for (size_t i = 0; i < x.size(); i++) {
    largest = std::fmax(largest, std::fabs(x[i]));
    if (std::isnan(x[i]) || std::isnan(y[i])) return false;
    difference = std::fmax(difference, std::fabs(x[i] - y[i]));
  }
  return difference <= std::ldexp(largest, -20);
}

int compare(const char* first, const char* second) {
  std::vector<std::string> a = read_lines(first), b = read_lines(second);
  int different = 0;
  for (size_t i = 0; i < std::max(a.size(), b.size()); i++) {
    std::string x = i < a.size() ? a[i] : "(missing)\n", y = i < b.size() ? b[i] : "(missing)\n";
    if (same(x, y)) continue;
    different++;
    std::printf("< %s> %s", x.c_str(), y.c_str());
  }
  std::printf("%zu cases, %d different\n", std::max(a.size(), b.size()), different);
  return different != 0;
}

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "--compare") == 0) return compare(argv[2], argv[3]);
  std::vector<Case> cases = make_cases();
  int first = argc > 1 ? std::atoi(argv[1]) : 0;
  int last = argc > 2 ? std::atoi(argv[2]) : static_cast<int>(cases.size()) - 1;
  for (int i = first; i <= last && i < static_cast<int>(cases.size()); i++)
    if (!run_case(i, cases[static_cast<size_t>(i)])) return 1;
  return 0;
}
