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

#define CONVOY_WGMMA_N32(TYPE, KIND, TRANSPOSED)                                                 \
  template <>                                                                                    \
  struct Wgmma<TYPE, 32> {                                                                       \
    static __device__ __forceinline__ void mma(float (&d)[16], std::uint64_t a, std::uint64_t b, \
                                               bool accumulate) {                                \
      asm volatile(                                                                              \
          "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"                                           \
          "wgmma.mma_async.sync.aligned.m64n32" KIND                                             \
          " {"                                                                                   \
          "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"                 \
          "}, %16, %17, p, 1, 1" TRANSPOSED ";\n}\n"                                             \
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),  \
            "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),           \
            "+f"(d[13]), "+f"(d[14]), "+f"(d[15])                                                \
          : "l"(a), "l"(b), "r"(static_cast<int>(accumulate))                                    \
          : "memory");                                                                           \
    }                                                                                            \
  };
CONVOY_WGMMA_N32(__nv_bfloat16, "k16.f32.bf16.bf16", ", 0, 0")
CONVOY_WGMMA_N32(__half, "k16.f32.f16.f16", ", 0, 0")
CONVOY_WGMMA_N32(float, "k8.f32.tf32.tf32", "")
#undef CONVOY_WGMMA_N32

#define CONVOY_WGMMA_N64(TYPE, KIND, TRANSPOSED)                                                 \
  template <>                                                                                    \
  struct Wgmma<TYPE, 64> {                                                                       \
    static __device__ __forceinline__ void mma(float (&d)[32], std::uint64_t a, std::uint64_t b, \
                                               bool accumulate) {                                \
      asm volatile(                                                                              \
          "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                           \
          "wgmma.mma_async.sync.aligned.m64n64" KIND                                             \
          " {"                                                                                   \
          "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "               \
          "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"       \
          "}, %32, %33, p, 1, 1" TRANSPOSED ";\n}\n"                                             \
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),  \
            "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),           \
            "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]),        \
            "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),        \
            "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),        \
            "+f"(d[31])                                                                          \
          : "l"(a), "l"(b), "r"(static_cast<int>(accumulate))                                    \
          : "memory");                                                                           \
    }                                                                                            \
  };
CONVOY_WGMMA_N64(__nv_bfloat16, "k16.f32.bf16.bf16", ", 0, 0")
CONVOY_WGMMA_N64(__half, "k16.f32.f16.f16", ", 0, 0")
CONVOY_WGMMA_N64(float, "k8.f32.tf32.tf32", "")
#undef CONVOY_WGMMA_N64

#define CONVOY_WGMMA_N80(TYPE, KIND, TRANSPOSED)                                                 \
  template <>                                                                                    \
  struct Wgmma<TYPE, 80> {                                                                       \
    static __device__ __forceinline__ void mma(float (&d)[40], std::uint64_t a, std::uint64_t b, \
                                               bool accumulate) {                                \
      asm volatile(                                                                              \
          "{\n.reg .pred p;\nsetp.ne.b32 p, %42, 0;\n"                                           \
          "wgmma.mma_async.sync.aligned.m64n80" KIND                                             \
          " {"                                                                                   \
          "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "               \
          "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "     \
          "%32, %33, %34, %35, %36, %37, %38, %39"                                               \
          "}, %40, %41, p, 1, 1" TRANSPOSED ";\n}\n"                                             \
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),  \
            "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),           \
            "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]),        \
            "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),        \
            "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),        \
            "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),        \
            "+f"(d[37]), "+f"(d[38]), "+f"(d[39])                                                \
          : "l"(a), "l"(b), "r"(static_cast<int>(accumulate))                                    \
          : "memory");                                                                           \
    }                                                                                            \
  };
CONVOY_WGMMA_N80(__nv_bfloat16, "k16.f32.bf16.bf16", ", 0, 0")
CONVOY_WGMMA_N80(__half, "k16.f32.f16.f16", ", 0, 0")
#undef CONVOY_WGMMA_N80

#define CONVOY_WGMMA_N96(TYPE, KIND, TRANSPOSED)                                                 \
  template <>                                                                                    \
  struct Wgmma<TYPE, 96> {                                                                       \
    static __device__ __forceinline__ void mma(float (&d)[48], std::uint64_t a, std::uint64_t b, \
                                               bool accumulate) {                                \
      asm volatile(                                                                              \
          "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"                                           \
          "wgmma.mma_async.sync.aligned.m64n96" KIND                                             \
          " {"                                                                                   \
          "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "               \
          "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "     \
          "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"       \
          "}, %48, %49, p, 1, 1" TRANSPOSED ";\n}\n"                                             \
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),  \
            "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),           \
            "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]),        \
            "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),        \
            "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),        \
            "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),        \
            "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),        \
            "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])                      \
          : "l"(a), "l"(b), "r"(static_cast<int>(accumulate))                                    \
          : "memory");                                                                           \
    }                                                                                            \
  };
CONVOY_WGMMA_N96(__nv_bfloat16, "k16.f32.bf16.bf16", ", 0, 0")
CONVOY_WGMMA_N96(__half, "k16.f32.f16.f16", ", 0, 0")
CONVOY_WGMMA_N96(float, "k8.f32.tf32.tf32", "")
#undef CONVOY_WGMMA_N96

#define CONVOY_WGMMA_N128(TYPE, KIND, TRANSPOSED)                                                \
  template <>                                                                                    \
  struct Wgmma<TYPE, 128> {                                                                      \
    static __device__ __forceinline__ void mma(float (&d)[64], std::uint64_t a, std::uint64_t b, \
                                               bool accumulate) {                                \
      asm volatile(                                                                              \
          "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                           \
          "wgmma.mma_async.sync.aligned.m64n128" KIND                                            \
          " {"                                                                                   \
          "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "               \
          "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "     \
          "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "     \
          "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"       \
          "}, %64, %65, p, 1, 1" TRANSPOSED ";\n}\n"                                             \
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),  \
            "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),           \
            "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]),        \
            "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),        \
            "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),        \
            "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),        \
            "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),        \
            "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),        \
            "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]),        \
            "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]),        \
            "+f"(d[61]), "+f"(d[62]), "+f"(d[63])                                                \
          : "l"(a), "l"(b), "r"(static_cast<int>(accumulate))                                    \
          : "memory");                                                                           \
    }                                                                                            \
  };
CONVOY_WGMMA_N128(__nv_bfloat16, "k16.f32.bf16.bf16", ", 0, 0")
CONVOY_WGMMA_N128(__half, "k16.f32.f16.f16", ", 0, 0")
CONVOY_WGMMA_N128(float, "k8.f32.tf32.tf32", "")
#undef CONVOY_WGMMA_N128

#define CONVOY_WGMMA_N160(TYPE, KIND, TRANSPOSED)                                                \
  template <>                                                                                    \
  struct Wgmma<TYPE, 160> {                                                                      \
    static __device__ __forceinline__ void mma(float (&d)[80], std::uint64_t a, std::uint64_t b, \
                                               bool accumulate) {                                \
      asm volatile(                                                                              \
          "{\n.reg .pred p;\nsetp.ne.b32 p, %82, 0;\n"                                           \
          "wgmma.mma_async.sync.aligned.m64n160" KIND                                            \
          " {"                                                                                   \
          "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "               \
          "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "     \
          "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "     \
          "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "     \
          "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"       \
          "}, %80, %81, p, 1, 1" TRANSPOSED ";\n}\n"                                             \
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),  \
            "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),           \
            "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]),        \
            "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),        \
            "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),        \
            "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),        \
            "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),        \
            "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),        \
            "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]),        \
            "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]),        \
            "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]),        \
            "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]),        \
            "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]),        \
            "+f"(d[79])                                                                          \
          : "l"(a), "l"(b), "r"(static_cast<int>(accumulate))                                    \
          : "memory");                                                                           \
    }                                                                                            \
  };
CONVOY_WGMMA_N160(__nv_bfloat16, "k16.f32.bf16.bf16", ", 0, 0")
CONVOY_WGMMA_N160(__half, "k16.f32.f16.f16", ", 0, 0")
CONVOY_WGMMA_N160(float, "k8.f32.tf32.tf32", "")
#undef CONVOY_WGMMA_N160

#define CONVOY_WGMMA_N192(TYPE, KIND, TRANSPOSED)                                                \
  template <>                                                                                    \
  struct Wgmma<TYPE, 192> {                                                                      \
    static __device__ __forceinline__ void mma(float (&d)[96], std::uint64_t a, std::uint64_t b, \
                                               bool accumulate) {                                \
      asm volatile(                                                                              \
          "{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"                                           \
          "wgmma.mma_async.sync.aligned.m64n192" KIND                                            \
          " {"                                                                                   \
          "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "               \
          "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "     \
          "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "     \
          "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "     \
          "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "     \
          "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"       \
          "}, %96, %97, p, 1, 1" TRANSPOSED ";\n}\n"                                             \
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),  \
            "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),           \
            "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]),        \
            "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),        \
            "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),        \
            "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),        \
            "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),        \
            "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),        \
            "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]),        \
            "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]),        \
            "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]),        \
            "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]),        \
            "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]),        \
            "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]),        \
            "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]),        \
            "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])                      \
          : "l"(a), "l"(b), "r"(static_cast<int>(accumulate))                                    \
          : "memory");                                                                           \
    }                                                                                            \
  };
CONVOY_WGMMA_N192(__nv_bfloat16, "k16.f32.bf16.bf16", ", 0, 0")
CONVOY_WGMMA_N192(__half, "k16.f32.f16.f16", ", 0, 0")
CONVOY_WGMMA_N192(float, "k8.f32.tf32.tf32", "")
#undef CONVOY_WGMMA_N192

#define CONVOY_WGMMA_N256(TYPE, KIND, TRANSPOSED)                                                  \
  template <>                                                                                      \
  struct Wgmma<TYPE, 256> {                                                                        \
    static __device__ __forceinline__ void mma(float (&d)[128], std::uint64_t a, std::uint64_t b,  \
                                               bool accumulate) {                                  \
      asm volatile(                                                                                \
          "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"                                            \
          "wgmma.mma_async.sync.aligned.m64n256" KIND                                              \
          " {"                                                                                     \
          "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                 \
          "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "       \
          "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "       \
          "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "       \
          "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "       \
          "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "       \
          "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
          "%111, "                                                                                 \
          "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "   \
          "%126, %127"                                                                             \
          "}, %128, %129, p, 1, 1" TRANSPOSED ";\n}\n"                                             \
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),    \
            "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),             \
            "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]),          \
            "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),          \
            "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),          \
            "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),          \
            "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),          \
            "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),          \
            "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]),          \
            "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]),          \
            "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]),          \
            "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]),          \
            "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]),          \
            "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]),          \
            "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]),          \
            "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]),          \
            "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]),       \
            "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]),    \
            "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]),    \
            "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]),    \
            "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]),    \
            "+f"(d[127])                                                                           \
          : "l"(a), "l"(b), "r"(static_cast<int>(accumulate))                                      \
          : "memory");                                                                             \
    }                                                                                              \
  };
CONVOY_WGMMA_N256(__nv_bfloat16, "k16.f32.bf16.bf16", ", 0, 0")
CONVOY_WGMMA_N256(__half, "k16.f32.f16.f16", ", 0, 0")
CONVOY_WGMMA_N256(float, "k8.f32.tf32.tf32", "")
#undef CONVOY_WGMMA_N256

}  // namespace convoy::sm90
