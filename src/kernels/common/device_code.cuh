// SPDX-License-Identifier: Apache-2.0
//
// What kernels for every GPU since Ampere share on the device: tensor-core steps (mma.sync) of
// 16-bit types and TF32, and asynchronous copies of 4 to 16 bytes.
// Section names in comments are those of the PTX ISA, chapter "Instruction Set".
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace convoy {

// ---- Tensor cores ---------------------------------------------------------------------------

/// d += a · b for one 16×8×16 step: a is 16×16 (row-major fragments), b is 16×8 (column-major).
/// Lane i holds of a the rows i / 4 and i / 4 + 8 at columns 2·(i % 4) + {0, 1} and + 8, of b
/// column i / 4, of d the rows i / 4 and + 8 at columns 2·(i % 4) + {0, 1}
/// (Matrix Fragments for mma.m16n8k16).
template <typename Element>
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4],
                                            std::uint32_t b0, std::uint32_t b1);
template <>
__device__ __forceinline__ void mma_16x8x16<__nv_bfloat16>(float (&d)[4],
                                                           const std::uint32_t (&a)[4],
                                                           std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma_16x8x16<__half>(float (&d)[4], const std::uint32_t (&a)[4],
                                                    std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The same 16×8×8 in TF32, of fp32 registers: element for element the fragments hold as many bytes
/// at the same places (Matrix Fragments for mma.m16n8k8).
__device__ __forceinline__ void mma_16x8x8_tf32(float (&d)[4], const std::uint32_t (&a)[4],
                                                std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Fp32 to TF32, nearest, ties to even. NOTE: tensor cores cut the lower 13 bits off.
__device__ __forceinline__ std::uint32_t rounded_to_tf32(std::uint32_t x) {
  const std::uint32_t rounded = x + 0xfffu + (x >> 13 & 1u);
  return fabsf(__uint_as_float(x)) < INFINITY ? rounded : x;
}

/// The same product alone: what `d` held does not count.
__device__ __forceinline__ void mma_16x8x8_tf32_first(float (&d)[4], const std::uint32_t (&a)[4],
                                                      std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// ---- Asynchronous copies --------------------------------------------------------------------

/// Copy kBytes (4, 8 or 16, both sides aligned to it) from global to shared memory, or write
/// zeros where `valid` is false: then nothing is read (cp.async, src-size).
template <int kBytes>
__device__ __forceinline__ void copy_async(std::uint32_t shared, const void* global, bool valid) {
  const int source_bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(source_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global),
                 "n"(kBytes), "r"(source_bytes)
                 : "memory");
  }
}
/// The same where `runs`, else nothing.
template <int kBytes>
__device__ __forceinline__ void copy_async_if(bool runs, std::uint32_t shared, const void* global,
                                              bool valid) {
  static_assert(kBytes == 16 || kBytes == 8 || kBytes == 4);
  if constexpr (kBytes == 16) {
    asm volatile(
        "{\n .reg .pred runs, zeros;\n setp.ne.b32 runs, %2, 0;\n setp.eq.b32 zeros, %3, 0;\n"
        " @runs cp.async.cg.shared.global [%0], [%1], 16, zeros;\n}" ::"r"(shared),
        "l"(global), "r"(static_cast<int>(runs)), "r"(static_cast<int>(valid))
        : "memory");
  } else {
    asm volatile(
        "{\n .reg .pred runs, zeros;\n setp.ne.b32 runs, %2, 0;\n setp.eq.b32 zeros, %3, 0;\n"
        " @runs cp.async.ca.shared.global [%0], [%1], %4, zeros;\n}" ::"r"(shared),
        "l"(global), "r"(static_cast<int>(runs)), "r"(static_cast<int>(valid)), "n"(kBytes)
        : "memory");
  }
}
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Wait until at most `kPending` of this thread's groups are still under way.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace convoy
