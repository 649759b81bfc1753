// SPDX-License-Identifier: Apache-2.0
//
// Warpgroup matrix multiply-accumulate (PTX ISA "wgmma"): D[64, N] += A[64, 32 bytes]·B[32 bytes,
// N], A and B K-major in shared memory, D in the fp32 registers of 128 threads. Thread t of the
// warpgroup holds rows 16·(t / 32) + (t % 32) / 4 and that + 8: d[4j], d[4j + 1] are columns 8j +
// 2·(t % 4) and the next one of the first row, d[4j + 2], d[4j + 3] of the second.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace convoy::sm90 {

/// Before the first wgmma, and after touching its registers.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Wait until at most kPending committed groups are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Between a wait and the first use of what was waited for.
// NOTE: to the compiler an MMA's registers hold its result at once.
template <int kCount>
__device__ __forceinline__ void wgmma_results(float (&d)[kCount]) {
#pragma unroll
  for (float& value : d) asm volatile("" : "+f"(value)::"memory");
}

/// Shared-memory matrix descriptor of a K-major operand with the 128-byte swizzle (PTX ISA "Matrix
/// Descriptor Format"): rows of 128 bytes in groups of 8, `group_bytes` from one group to the next.
/// The leading-dimension offset is not used by this layout.
__device__ __forceinline__ std::uint64_t descriptor_128b(std::uint32_t shared_address,
                                                         std::uint32_t group_bytes) {
  constexpr std::uint64_t kSwizzle128 = 1ull << 62;
  return kSwizzle128 | (static_cast<std::uint64_t>(group_bytes >> 4) << 32) | (1ull << 16) |
         ((shared_address & 0x3ffffu) >> 4);
}

/// Wgmma<T, N>::mma(d, a, b, accumulate): T is __nv_bfloat16 or __half, 16 of K, or float, 8 of K
/// as TF32.
template <typename T, int N>
struct Wgmma;

// Accumulators as operands of assembly, in lists of 4: %0, %1, ... in its text, and what they are.
#define CONVOY_TEXT_0 "%0, %1, %2, %3"
#define CONVOY_TEXT_4 "%4, %5, %6, %7"
#define CONVOY_TEXT_8 "%8, %9, %10, %11"
#define CONVOY_TEXT_12 "%12, %13, %14, %15"
#define CONVOY_TEXT_16 "%16, %17, %18, %19"
#define CONVOY_TEXT_20 "%20, %21, %22, %23"
#define CONVOY_TEXT_24 "%24, %25, %26, %27"
#define CONVOY_TEXT_28 "%28, %29, %30, %31"
#define CONVOY_TEXT_32 "%32, %33, %34, %35"
#define CONVOY_TEXT_36 "%36, %37, %38, %39"
#define CONVOY_TEXT_40 "%40, %41, %42, %43"
#define CONVOY_TEXT_44 "%44, %45, %46, %47"
#define CONVOY_TEXT_48 "%48, %49, %50, %51"
#define CONVOY_TEXT_52 "%52, %53, %54, %55"
#define CONVOY_TEXT_56 "%56, %57, %58, %59"
#define CONVOY_TEXT_60 "%60, %61, %62, %63"
#define CONVOY_TEXT_64 "%64, %65, %66, %67"
#define CONVOY_TEXT_68 "%68, %69, %70, %71"
#define CONVOY_TEXT_72 "%72, %73, %74, %75"
#define CONVOY_TEXT_76 "%76, %77, %78, %79"
#define CONVOY_TEXT_80 "%80, %81, %82, %83"
#define CONVOY_TEXT_84 "%84, %85, %86, %87"
#define CONVOY_TEXT_88 "%88, %89, %90, %91"
#define CONVOY_TEXT_92 "%92, %93, %94, %95"
#define CONVOY_TEXT_96 "%96, %97, %98, %99"
#define CONVOY_TEXT_100 "%100, %101, %102, %103"
#define CONVOY_TEXT_104 "%104, %105, %106, %107"
#define CONVOY_TEXT_108 "%108, %109, %110, %111"
#define CONVOY_TEXT_112 "%112, %113, %114, %115"
#define CONVOY_TEXT_116 "%116, %117, %118, %119"
#define CONVOY_TEXT_120 "%120, %121, %122, %123"
#define CONVOY_TEXT_124 "%124, %125, %126, %127"
#define CONVOY_SUMS(I) "+f"(d[I]), "+f"(d[I + 1]), "+f"(d[I + 2]), "+f"(d[I + 3])

// Those of the first COUNT accumulators: 64 x N sums are N / 2 of a thread.
#define CONVOY_TEXTS_4 CONVOY_TEXT_0
#define CONVOY_TEXTS_8 CONVOY_TEXTS_4 ", " CONVOY_TEXT_4
#define CONVOY_TEXTS_12 CONVOY_TEXTS_8 ", " CONVOY_TEXT_8
#define CONVOY_TEXTS_16 CONVOY_TEXTS_12 ", " CONVOY_TEXT_12
#define CONVOY_TEXTS_20 CONVOY_TEXTS_16 ", " CONVOY_TEXT_16
#define CONVOY_TEXTS_24 CONVOY_TEXTS_20 ", " CONVOY_TEXT_20
#define CONVOY_TEXTS_28 CONVOY_TEXTS_24 ", " CONVOY_TEXT_24
#define CONVOY_TEXTS_32 CONVOY_TEXTS_28 ", " CONVOY_TEXT_28
#define CONVOY_TEXTS_36 CONVOY_TEXTS_32 ", " CONVOY_TEXT_32
#define CONVOY_TEXTS_40 CONVOY_TEXTS_36 ", " CONVOY_TEXT_36
#define CONVOY_TEXTS_44 CONVOY_TEXTS_40 ", " CONVOY_TEXT_40
#define CONVOY_TEXTS_48 CONVOY_TEXTS_44 ", " CONVOY_TEXT_44
#define CONVOY_TEXTS_52 CONVOY_TEXTS_48 ", " CONVOY_TEXT_48
#define CONVOY_TEXTS_56 CONVOY_TEXTS_52 ", " CONVOY_TEXT_52
#define CONVOY_TEXTS_60 CONVOY_TEXTS_56 ", " CONVOY_TEXT_56
#define CONVOY_TEXTS_64 CONVOY_TEXTS_60 ", " CONVOY_TEXT_60
#define CONVOY_TEXTS_68 CONVOY_TEXTS_64 ", " CONVOY_TEXT_64
#define CONVOY_TEXTS_72 CONVOY_TEXTS_68 ", " CONVOY_TEXT_68
#define CONVOY_TEXTS_76 CONVOY_TEXTS_72 ", " CONVOY_TEXT_72
#define CONVOY_TEXTS_80 CONVOY_TEXTS_76 ", " CONVOY_TEXT_76
#define CONVOY_TEXTS_84 CONVOY_TEXTS_80 ", " CONVOY_TEXT_80
#define CONVOY_TEXTS_88 CONVOY_TEXTS_84 ", " CONVOY_TEXT_84
#define CONVOY_TEXTS_92 CONVOY_TEXTS_88 ", " CONVOY_TEXT_88
#define CONVOY_TEXTS_96 CONVOY_TEXTS_92 ", " CONVOY_TEXT_92
#define CONVOY_TEXTS_100 CONVOY_TEXTS_96 ", " CONVOY_TEXT_96
#define CONVOY_TEXTS_104 CONVOY_TEXTS_100 ", " CONVOY_TEXT_100
#define CONVOY_TEXTS_108 CONVOY_TEXTS_104 ", " CONVOY_TEXT_104
#define CONVOY_TEXTS_112 CONVOY_TEXTS_108 ", " CONVOY_TEXT_108
#define CONVOY_TEXTS_116 CONVOY_TEXTS_112 ", " CONVOY_TEXT_112
#define CONVOY_TEXTS_120 CONVOY_TEXTS_116 ", " CONVOY_TEXT_116
#define CONVOY_TEXTS_124 CONVOY_TEXTS_120 ", " CONVOY_TEXT_120
#define CONVOY_TEXTS_128 CONVOY_TEXTS_124 ", " CONVOY_TEXT_124
#define CONVOY_SUMS_4 CONVOY_SUMS(0)
#define CONVOY_SUMS_8 CONVOY_SUMS_4, CONVOY_SUMS(4)
#define CONVOY_SUMS_12 CONVOY_SUMS_8, CONVOY_SUMS(8)
#define CONVOY_SUMS_16 CONVOY_SUMS_12, CONVOY_SUMS(12)
#define CONVOY_SUMS_20 CONVOY_SUMS_16, CONVOY_SUMS(16)
#define CONVOY_SUMS_24 CONVOY_SUMS_20, CONVOY_SUMS(20)
#define CONVOY_SUMS_28 CONVOY_SUMS_24, CONVOY_SUMS(24)
#define CONVOY_SUMS_32 CONVOY_SUMS_28, CONVOY_SUMS(28)
#define CONVOY_SUMS_36 CONVOY_SUMS_32, CONVOY_SUMS(32)
#define CONVOY_SUMS_40 CONVOY_SUMS_36, CONVOY_SUMS(36)
#define CONVOY_SUMS_44 CONVOY_SUMS_40, CONVOY_SUMS(40)
#define CONVOY_SUMS_48 CONVOY_SUMS_44, CONVOY_SUMS(44)
#define CONVOY_SUMS_52 CONVOY_SUMS_48, CONVOY_SUMS(48)
#define CONVOY_SUMS_56 CONVOY_SUMS_52, CONVOY_SUMS(52)
#define CONVOY_SUMS_60 CONVOY_SUMS_56, CONVOY_SUMS(56)
#define CONVOY_SUMS_64 CONVOY_SUMS_60, CONVOY_SUMS(60)
#define CONVOY_SUMS_68 CONVOY_SUMS_64, CONVOY_SUMS(64)
#define CONVOY_SUMS_72 CONVOY_SUMS_68, CONVOY_SUMS(68)
#define CONVOY_SUMS_76 CONVOY_SUMS_72, CONVOY_SUMS(72)
#define CONVOY_SUMS_80 CONVOY_SUMS_76, CONVOY_SUMS(76)
#define CONVOY_SUMS_84 CONVOY_SUMS_80, CONVOY_SUMS(80)
#define CONVOY_SUMS_88 CONVOY_SUMS_84, CONVOY_SUMS(84)
#define CONVOY_SUMS_92 CONVOY_SUMS_88, CONVOY_SUMS(88)
#define CONVOY_SUMS_96 CONVOY_SUMS_92, CONVOY_SUMS(92)
#define CONVOY_SUMS_100 CONVOY_SUMS_96, CONVOY_SUMS(96)
#define CONVOY_SUMS_104 CONVOY_SUMS_100, CONVOY_SUMS(100)
#define CONVOY_SUMS_108 CONVOY_SUMS_104, CONVOY_SUMS(104)
#define CONVOY_SUMS_112 CONVOY_SUMS_108, CONVOY_SUMS(108)
#define CONVOY_SUMS_116 CONVOY_SUMS_112, CONVOY_SUMS(112)
#define CONVOY_SUMS_120 CONVOY_SUMS_116, CONVOY_SUMS(116)
#define CONVOY_SUMS_124 CONVOY_SUMS_120, CONVOY_SUMS(120)
#define CONVOY_SUMS_128 CONVOY_SUMS_124, CONVOY_SUMS(124)

// COUNT accumulators; A, B and P are the numbers of the operands behind them: COUNT, COUNT + 1 and
// COUNT + 2, which the preprocessor cannot add.
#define CONVOY_WGMMA(N, COUNT, A, B, P, TYPE, KIND, TRANSPOSED)                                \
  template <>                                                                                  \
  struct Wgmma<TYPE, N> {                                                                      \
    static __device__ __forceinline__ void mma(float (&d)[COUNT], std::uint64_t a,             \
                                               std::uint64_t b, bool accumulate) {             \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P                                     \
                   ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N KIND " {" CONVOY_TEXTS_##COUNT \
                   "}, %" #A ", %" #B ", p, 1, 1" TRANSPOSED ";\n}\n"                          \
                   : CONVOY_SUMS_##COUNT                                                       \
                   : "l"(a), "l"(b), "r"(static_cast<int>(accumulate))                         \
                   : "memory");                                                                \
    }                                                                                          \
  };
#define CONVOY_WGMMA_16BIT(N, COUNT, A, B, P)                                   \
  CONVOY_WGMMA(N, COUNT, A, B, P, __nv_bfloat16, "k16.f32.bf16.bf16", ", 0, 0") \
  CONVOY_WGMMA(N, COUNT, A, B, P, __half, "k16.f32.f16.f16", ", 0, 0")
#define CONVOY_WGMMA_ALL(N, COUNT, A, B, P) \
  CONVOY_WGMMA_16BIT(N, COUNT, A, B, P)     \
  CONVOY_WGMMA(N, COUNT, A, B, P, float, "k8.f32.tf32.tf32", "")

CONVOY_WGMMA_16BIT(16, 8, 8, 9, 10)
CONVOY_WGMMA_ALL(32, 16, 16, 17, 18)
CONVOY_WGMMA_16BIT(40, 20, 20, 21, 22)
CONVOY_WGMMA_16BIT(48, 24, 24, 25, 26)
CONVOY_WGMMA_16BIT(56, 28, 28, 29, 30)
CONVOY_WGMMA_ALL(64, 32, 32, 33, 34)
CONVOY_WGMMA_16BIT(72, 36, 36, 37, 38)
CONVOY_WGMMA_16BIT(80, 40, 40, 41, 42)
CONVOY_WGMMA_16BIT(88, 44, 44, 45, 46)
CONVOY_WGMMA_ALL(96, 48, 48, 49, 50)
CONVOY_WGMMA_16BIT(104, 52, 52, 53, 54)
CONVOY_WGMMA_16BIT(112, 56, 56, 57, 58)
CONVOY_WGMMA_16BIT(120, 60, 60, 61, 62)
CONVOY_WGMMA_ALL(128, 64, 64, 65, 66)
CONVOY_WGMMA_16BIT(136, 68, 68, 69, 70)
CONVOY_WGMMA_16BIT(144, 72, 72, 73, 74)
CONVOY_WGMMA_16BIT(152, 76, 76, 77, 78)
CONVOY_WGMMA_ALL(160, 80, 80, 81, 82)
CONVOY_WGMMA_16BIT(168, 84, 84, 85, 86)
CONVOY_WGMMA_16BIT(176, 88, 88, 89, 90)
CONVOY_WGMMA_16BIT(184, 92, 92, 93, 94)
CONVOY_WGMMA_ALL(192, 96, 96, 97, 98)
CONVOY_WGMMA_16BIT(200, 100, 100, 101, 102)
CONVOY_WGMMA_16BIT(208, 104, 104, 105, 106)
CONVOY_WGMMA_16BIT(216, 108, 108, 109, 110)
CONVOY_WGMMA_16BIT(224, 112, 112, 113, 114)
CONVOY_WGMMA_16BIT(232, 116, 116, 117, 118)
CONVOY_WGMMA_16BIT(240, 120, 120, 121, 122)
CONVOY_WGMMA_16BIT(248, 124, 124, 125, 126)
CONVOY_WGMMA_ALL(256, 128, 128, 129, 130)

#undef CONVOY_WGMMA_ALL
#undef CONVOY_WGMMA_16BIT
#undef CONVOY_WGMMA

}  // namespace convoy::sm90
