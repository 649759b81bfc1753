// SPDX-License-Identifier: Apache-2.0
//
// One-line wrappers over the PTX instructions that only Blackwell (sm_100f) has: tensor memory and
// tcgen05, cluster launch control, tensor copies of a CTA pair. Section names are those of the PTX
// ISA, chapter "Instruction Set".
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/common/ptx.cuh"

namespace convoy::ptx {

// ---- Barriers of other CTAs -------------------------------------------------------------------
// NOTE: `barrier` is a shared::cluster address (map_shared_rank). These arrivals order no ordinary
// memory for the other CTA: what they guard is tensor memory (ordered by tcgen05.fence) or written
// by the async proxy (ordered by fence.proxy.async). So they keep the default semantics; with
// .release.cluster ptxas puts MEMBAR.ALL.GPU in front, and behind an .acquire.cluster wait
// CCTL.IVALL, in the loops of the load and MMA warps.

/// One arrival that announces `bytes` to come.
__device__ __forceinline__ void barrier_arrive_expect_cluster(std::uint32_t barrier,
                                                              std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_arrive_cluster(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Write 16 bytes into the shared memory of a CTA of the cluster and count them on a barrier of
/// the same CTA, both shared::cluster addresses.
__device__ __forceinline__ void store_async_v4(std::uint32_t address, const std::uint32_t* v,
                                               std::uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(address),
      "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]), "r"(barrier)
      : "memory");
}

// ---- Cluster launch control -------------------------------------------------------------------

/// 16 bytes of shared memory that a launch-control request is answered into.
struct alignas(16) ClcResponse {
  std::uint32_t words[4];
};

/// Ask for a cluster that has not been launched yet, to run its work here. The answer is written to
/// the same offset of every CTA of the cluster and completes 16 bytes on each one's barrier.
__device__ __forceinline__ void clc_try_cancel_multicast(ClcResponse* response, Barrier* barrier) {
  asm volatile(
      "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
      ".multicast::cluster::all.b128 [%0], [%1];" ::"r"(shared_address(response)),
      "r"(shared_address(barrier))
      : "memory");
}

/// The same within a cluster of one CTA.
__device__ __forceinline__ void clc_try_cancel(ClcResponse* response, Barrier* barrier) {
  asm volatile(
      "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 "
      "[%0], [%1];" ::"r"(shared_address(response)),
      "r"(shared_address(barrier))
      : "memory");
}

/// Read an answer: whether a cluster was obtained, and the x index of its first CTA.
__device__ __forceinline__ bool clc_query(const ClcResponse* response, std::uint32_t& first_cta_x) {
  std::uint32_t obtained;
  asm volatile(
      "{\n"
      ".reg .b128 answer;\n"
      ".reg .pred p;\n"
      ".reg .b32 y, z, w;\n"
      "ld.shared.b128 answer, [%2];\n"
      "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, answer;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "mov.u32 %1, 0;\n"
      "@p clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%1, y, z, w}, answer;\n"
      "}\n"
      : "=r"(obtained), "=&r"(first_cta_x)
      : "r"(shared_address(response))
      : "memory");
  return obtained != 0;
}

// ---- Tensor memory ----------------------------------------------------------------------------

/// Allocate `kColumns` columns and write their address to shared memory. Whole warp; with cta_group
/// 2 one warp of each CTA of the pair.
template <int kCtaGroup, int kColumns>
__device__ __forceinline__ void tmem_allocate(std::uint32_t* address) {
  if constexpr (kCtaGroup == 1) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                     shared_address(address)),
                 "n"(kColumns)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
  } else {
    asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                     shared_address(address)),
                 "n"(kColumns)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;" ::: "memory");
  }
}

template <int kCtaGroup, int kColumns>
__device__ __forceinline__ void tmem_free(std::uint32_t address) {
  if constexpr (kCtaGroup == 1) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address),
                 "n"(kColumns)
                 : "memory");
  } else {
    asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(address),
                 "n"(kColumns)
                 : "memory");
  }
}

/// Order this thread's tcgen05 accesses before / after a synchronisation with other threads.
__device__ __forceinline__ void tmem_fence_before_sync() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
__device__ __forceinline__ void tmem_fence_after_sync() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

/// Read 16 columns of this warp's 32 lanes: values[i] of lane l is column i, lane l.
/// The values are there after `tmem_wait_load`.
__device__ __forceinline__ void tmem_load_x16(std::uint32_t address, std::uint32_t* v) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x16.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15}, [%16];"
      : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]),
        "=r"(v[7]), "=r"(v[8]), "=r"(v[9]), "=r"(v[10]), "=r"(v[11]), "=r"(v[12]), "=r"(v[13]),
        "=r"(v[14]), "=r"(v[15])
      : "r"(address)
      : "memory");
}

__device__ __forceinline__ void tmem_load_x32(std::uint32_t address, std::uint32_t* v) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x32.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
      "%30, %31}, [%32];"
      : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]),
        "=r"(v[7]), "=r"(v[8]), "=r"(v[9]), "=r"(v[10]), "=r"(v[11]), "=r"(v[12]), "=r"(v[13]),
        "=r"(v[14]), "=r"(v[15]), "=r"(v[16]), "=r"(v[17]), "=r"(v[18]), "=r"(v[19]), "=r"(v[20]),
        "=r"(v[21]), "=r"(v[22]), "=r"(v[23]), "=r"(v[24]), "=r"(v[25]), "=r"(v[26]), "=r"(v[27]),
        "=r"(v[28]), "=r"(v[29]), "=r"(v[30]), "=r"(v[31])
      : "r"(address)
      : "memory");
}

/// Wait for this thread's tensor-memory loads. NOTE: the registers are named as in-out operands so
/// that no use of them is moved above the wait.
template <int kCount>
__device__ __forceinline__ void tmem_wait_load(std::uint32_t (&v)[kCount]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(v[i])::"memory");
}

// ---- tcgen05.mma ------------------------------------------------------------------------------

/// Shared-memory descriptor of a K-major operand whose rows are one swizzle span of `kSwizzle`
/// bytes: groups of 8 rows follow each other (PTX ISA, tcgen05 shared-memory descriptor). Bits 0-13
/// address / 16, 32-45 bytes between groups of 8 rows / 16, 46-48 constant 1, 61-63 swizzle.
/// `group_bytes`: between groups of 8 rows, any multiple of the swizzle span. The base offset (bits
/// 49-51) is 0, since the pattern starts at multiples of 1024 bytes wherever the operand starts.
template <int kSwizzle>
__device__ __forceinline__ std::uint64_t mma_operand(std::uint32_t address,
                                                     std::uint32_t group_bytes = 8 * kSwizzle) {
  static_assert(kSwizzle == 64 || kSwizzle == 128, "operand swizzle is 64 or 128 bytes");
  constexpr std::uint64_t kMode = kSwizzle == 128 ? 2 : 4;
  constexpr std::uint64_t kFixed = (std::uint64_t{1} << 46) | (kMode << 61);
  return kFixed | (std::uint64_t{group_bytes >> 4} << 32) | (address >> 4 & 0x3FFFu);
}

/// Instruction descriptor of kind::f16 (PTX ISA, tcgen05 instruction descriptor): fp32 accumulator,
/// A and B of one 16-bit type, both K-major.
constexpr std::uint32_t mma_instruction(bool bf16, int m, int n) {
  const std::uint32_t type = bf16 ? 1 : 0;
  return (1u << 4) | (type << 7) | (type << 10) | (static_cast<std::uint32_t>(n / 8) << 17) |
         (static_cast<std::uint32_t>(m / 16) << 24);
}

/// D = A·B + (accumulate ? D : 0), one instruction, by one thread (of the leader CTA of a pair).
template <int kCtaGroup>
__device__ __forceinline__ void mma_f16(std::uint32_t d, std::uint64_t a, std::uint64_t b,
                                        std::uint32_t instruction, bool accumulate) {
  if constexpr (kCtaGroup == 1) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
        "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}\n" ::"r"(d),
        "l"(a), "l"(b), "r"(instruction), "r"(static_cast<std::uint32_t>(accumulate))
        : "memory");
  } else {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
        "tcgen05.mma.cta_group::2.kind::f16 [%0], %1, %2, %3, p;\n}\n" ::"r"(d),
        "l"(a), "l"(b), "r"(instruction), "r"(static_cast<std::uint32_t>(accumulate))
        : "memory");
  }
}

/// Arrive once on `barrier`, in each CTA of `cta_mask`, when all MMAs of this thread so far are
/// done.
template <int kCtaGroup>
__device__ __forceinline__ void mma_commit(Barrier* barrier, std::uint16_t cta_mask) {
  if constexpr (kCtaGroup == 1) {
    asm volatile(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
        "[%0], %1;" ::"r"(shared_address(barrier)),
        "h"(cta_mask)
        : "memory");
  } else {
    asm volatile(
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
        "[%0], %1;" ::"r"(shared_address(barrier)),
        "h"(cta_mask)
        : "memory");
  }
}

/// The same on this CTA's barrier only.
__device__ __forceinline__ void mma_commit_local(Barrier* barrier) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
                   shared_address(barrier))
               : "memory");
}

// ---- Tensor copies of a CTA pair --------------------------------------------------------------
// With .cta_group::2 the bytes may be counted on the barrier of either CTA of the destination's
// pair: `barrier` is a shared::cluster address, and its CTA's parity says which of the two (PTX
// ISA, cp.async.bulk.tensor). `cta_mask` is used with kMulticast only.

#define CONVOY_TMA_PAIR(dimension, mode, operands, ...)                                      \
  if constexpr (kCtaGroup == 2 && kMulticast) {                                              \
    asm volatile("cp.async.bulk.tensor." dimension ".shared::cluster.global." mode           \
                 ".mbarrier::complete_tx::bytes.multicast::cluster.cta_group::2"             \
                 ".L2::cache_hint " operands ", %3, %4;" ::"r"(shared_address(smem)),        \
                 "l"(map), "r"(barrier), "h"(cta_mask), "l"(policy), __VA_ARGS__             \
                 : "memory");                                                                \
  } else if constexpr (kCtaGroup == 2) {                                                     \
    asm volatile("cp.async.bulk.tensor." dimension ".shared::cluster.global." mode           \
                 ".mbarrier::complete_tx::bytes.cta_group::2.L2::cache_hint " operands       \
                 ", %4;" ::"r"(shared_address(smem)),                                        \
                 "l"(map), "r"(barrier), "h"(cta_mask), "l"(policy), __VA_ARGS__             \
                 : "memory");                                                                \
  } else if constexpr (kMulticast) {                                                         \
    asm volatile("cp.async.bulk.tensor." dimension ".shared::cluster.global." mode           \
                 ".mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint " operands \
                 ", %3, %4;" ::"r"(shared_address(smem)),                                    \
                 "l"(map), "r"(barrier), "h"(cta_mask), "l"(policy), __VA_ARGS__             \
                 : "memory");                                                                \
  } else {                                                                                   \
    asm volatile("cp.async.bulk.tensor." dimension ".shared::cluster.global." mode           \
                 ".mbarrier::complete_tx::bytes.L2::cache_hint " operands                    \
                 ", %4;" ::"r"(shared_address(smem)),                                        \
                 "l"(map), "r"(barrier), "h"(cta_mask), "l"(policy), __VA_ARGS__             \
                 : "memory");                                                                \
  }

/// Tiled load of rank 4.
template <int kCtaGroup, bool kMulticast>
__device__ __forceinline__ void tma_load_tiled_4d(void* smem, const CUtensorMap* map,
                                                  std::uint32_t barrier, std::uint16_t cta_mask,
                                                  std::uint64_t policy, int c0, int c1, int c2,
                                                  int c3) {
  CONVOY_TMA_PAIR("4d", "tile", "[%0], [%1, {%5, %6, %7, %8}], [%2]", "r"(c0), "r"(c1), "r"(c2),
                  "r"(c3))
}

/// im2col load of an NHWC tensor: first pixel (w, h, n), channel c, tap offsets in pixels.
template <int kCtaGroup, bool kMulticast>
__device__ __forceinline__ void tma_load_im2col_nhwc(void* smem, const CUtensorMap* map,
                                                     std::uint32_t barrier, std::uint16_t cta_mask,
                                                     std::uint64_t policy, int c, int w, int h,
                                                     int n, std::uint16_t offset_w,
                                                     std::uint16_t offset_h) {
  CONVOY_TMA_PAIR("4d", "im2col", "[%0], [%1, {%5, %6, %7, %8}], [%2], {%9, %10}", "r"(c), "r"(w),
                  "r"(h), "r"(n), "h"(offset_w), "h"(offset_h))
}

/// im2col load of an NDHWC tensor.
template <int kCtaGroup, bool kMulticast>
__device__ __forceinline__ void tma_load_im2col_ndhwc(void* smem, const CUtensorMap* map,
                                                      std::uint32_t barrier, std::uint16_t cta_mask,
                                                      std::uint64_t policy, int c, int w, int h,
                                                      int d, int n, std::uint16_t offset_w,
                                                      std::uint16_t offset_h,
                                                      std::uint16_t offset_d) {
  CONVOY_TMA_PAIR("5d", "im2col", "[%0], [%1, {%5, %6, %7, %8, %9}], [%2], {%10, %11, %12}", "r"(c),
                  "r"(w), "r"(h), "r"(d), "r"(n), "h"(offset_w), "h"(offset_h), "h"(offset_d))
}

#undef CONVOY_TMA_PAIR

/// im2col store of rank 4 without offsets: pixels follow each other through w, h, n.
__device__ __forceinline__ void tma_store_im2col_nhwc(const CUtensorMap* map, const void* smem,
                                                      int c, int w, int h, int n) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group "
      "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
      "r"(shared_address(smem)), "r"(c), "r"(w), "r"(h), "r"(n)
      : "memory");
}

}  // namespace convoy::ptx
