// SPDX-License-Identifier: Apache-2.0
//
// One-line wrappers over the PTX instructions that Hopper and Blackwell kernels share: mbarrier,
// bulk tensor copies (TMA), clusters, proxy fences, election, named barriers, dependent launch.
// NOTE: inline assembly rather than cuda::ptx, which lacks several of these forms (im2col offsets
// with multicast, cache hints on tensor copies) and adds seconds to every translation unit.
// Section names in comments are those of the PTX ISA, chapter "Instruction Set".
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace convoy::ptx {

/// An mbarrier object; lives in shared memory.
using Barrier = std::uint64_t;

/// 32-bit shared-window address of a pointer into shared memory.
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- Identity -------------------------------------------------------------------------------

/// True in exactly one thread of a converged warp.
__device__ __forceinline__ bool elect_one() {
  std::uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}\n"
               : "=r"(elected));
  return elected != 0;
}

__device__ __forceinline__ std::uint32_t lane_id() {
  std::uint32_t lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

/// Warp index in the block, the same register value in all lanes (so branches on it are uniform).
__device__ __forceinline__ std::uint32_t warp_id() {
  return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
}

// ---- Clusters -------------------------------------------------------------------------------

__device__ __forceinline__ std::uint32_t cluster_cta_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ std::uint32_t cluster_size() {
  std::uint32_t size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

/// Index of this cluster in the grid (one-dimensional grids).
__device__ __forceinline__ std::uint32_t cluster_id_x() {
  std::uint32_t id;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(id));
  return id;
}

__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
/// The same without ordering memory: enough after fence_barrier_init, and for a CTA that only has
/// to stay until the others are done. NOTE: the release costs a fence of the whole GPU.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/// All threads of all CTAs of the cluster; release / acquire.
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

/// Address, in the shared::cluster window, of `address` as CTA `rank` sees it.
__device__ __forceinline__ std::uint32_t map_shared_rank(std::uint32_t address,
                                                         std::uint32_t rank) {
  std::uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

__device__ __forceinline__ float4 load_shared_cluster_v4(std::uint32_t address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// ---- mbarrier -------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(Barrier* barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}

/// Make barrier initialisations visible to the other CTAs of the cluster and to the async proxy.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

/// Arrive on the same barrier of CTA `rank` of the cluster, with what this thread wrote before.
__device__ __forceinline__ void barrier_arrive_remote_release(Barrier* barrier,
                                                              std::uint32_t rank) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                   map_shared_rank(shared_address(barrier), rank))
               : "memory");
}

/// The same without ordering memory beyond this CTA: for consumers that only read, whose reads (by
/// the tensor core) have completed. NOTE: a release at cluster scope costs a fence of the whole GPU
/// (MEMBAR.ALL.GPU, some 500 cycles), an acquire an invalidation of L1.
__device__ __forceinline__ void barrier_arrive_remote(Barrier* barrier, std::uint32_t rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(
                   map_shared_rank(shared_address(barrier), rank))
               : "memory");
}

/// One arrival that also announces `bytes` of asynchronous copies to come.
__device__ __forceinline__ void barrier_arrive_expect(Barrier* barrier, std::uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

__device__ __forceinline__ bool barrier_try_wait(Barrier* barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

/// Wait for the phase of this parity to complete.
__device__ __forceinline__ void barrier_wait(Barrier* barrier, std::uint32_t parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}

/// The same, where the arrivals come from other CTAs of the cluster (acquire at cluster scope).
__device__ __forceinline__ void barrier_wait_cluster(Barrier* barrier, std::uint32_t parity) {
  std::uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
}

/// Store `v` where `to` lies in block `rank` of the cluster, completing on its barrier (st.async).
__device__ __forceinline__ void store_async(float4* to, Barrier* barrier, std::uint32_t rank,
                                            const float4& v) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
      "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(map_shared_rank(shared_address(to), rank)),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(map_shared_rank(shared_address(barrier), rank))
      : "memory");
}

// ---- Named barriers of a block --------------------------------------------------------------

/// Wait until `threads` threads (a multiple of 32) have come to barrier `id` (1..15).
__device__ __forceinline__ void named_barrier_sync(std::uint32_t id, std::uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// Come to barrier `id` without waiting.
__device__ __forceinline__ void named_barrier_arrive(std::uint32_t id, std::uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- Fences and register budget -------------------------------------------------------------

/// Order this thread's ordinary shared-memory accesses before later accesses of the async proxy.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int kRegisters>
__device__ __forceinline__ void set_max_registers_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void set_max_registers_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- Programmatic dependent launch ----------------------------------------------------------

// Before sm_90 launches do not overlap (launch.cpp), and these are nothing.

/// Wait until the kernels this one depends on have finished and their writes are visible.
__device__ __forceinline__ void dependent_launch_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Let the kernels that depend on this one start (they still wait for its end before reading).
__device__ __forceinline__ void dependent_launch_trigger() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- Bulk copies ----------------------------------------------------------------------------

/// Copy `bytes` that lie together into shared memory, completing on the barrier; addresses and size
/// are multiples of 16.
__device__ __forceinline__ void bulk_load(void* smem, const void* from, std::uint32_t bytes,
                                          Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(smem)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

/// Copy `bytes` of shared memory to where they lie together too, in this thread's bulk group;
/// addresses and size are multiples of 16.
__device__ __forceinline__ void bulk_store(void* to, const void* smem, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(smem)), "r"(bytes)
               : "memory");
}

// ---- Tensor copies (TMA) --------------------------------------------------------------------
// Coordinates are in elements, innermost first. The address of a map is that of the kernel's
// __grid_constant__ parameter. A copy completes `bytes of the whole box` on the barrier, elements
// outside the tensor included (they are written as zero).

/// L2 policies of tensor copies: encodings of createpolicy.fractional with fraction 1.
inline constexpr std::uint64_t kL2EvictNormal = 0x1000000000000000ull;
inline constexpr std::uint64_t kL2EvictFirst = 0x12F0000000000000ull;
inline constexpr std::uint64_t kL2EvictLast = 0x14F0000000000000ull;

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

#define CONVOY_TMA_LOAD "cp.async.bulk.tensor"
#define CONVOY_TMA_TILED "shared::cluster.global.tile.mbarrier::complete_tx::bytes"
#define CONVOY_TMA_IM2COL "shared::cluster.global.im2col.mbarrier::complete_tx::bytes"

__device__ __forceinline__ void tma_load_2d(void* smem, const CUtensorMap* map, Barrier* barrier,
                                            std::uint64_t policy, int c0, int c1) {
  asm volatile(CONVOY_TMA_LOAD
               ".2d." CONVOY_TMA_TILED
               ".L2::cache_hint [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(shared_address(smem)),
               "l"(map), "r"(shared_address(barrier)), "l"(policy), "r"(c0), "r"(c1)
               : "memory");
}

__device__ __forceinline__ void tma_load_3d(void* smem, const CUtensorMap* map, Barrier* barrier,
                                            std::uint64_t policy, int c0, int c1, int c2) {
  asm volatile(CONVOY_TMA_LOAD
               ".3d." CONVOY_TMA_TILED
               ".L2::cache_hint [%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(shared_address(smem)),
               "l"(map), "r"(shared_address(barrier)), "l"(policy), "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}

__device__ __forceinline__ void tma_load_4d(void* smem, const CUtensorMap* map, Barrier* barrier,
                                            std::uint64_t policy, int c0, int c1, int c2, int c3) {
  asm volatile(
      CONVOY_TMA_LOAD
      ".4d." CONVOY_TMA_TILED
      ".L2::cache_hint [%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(shared_address(smem)),
      "l"(map), "r"(shared_address(barrier)), "l"(policy), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

__device__ __forceinline__ void tma_load_5d(void* smem, const CUtensorMap* map, Barrier* barrier,
                                            std::uint64_t policy, int c0, int c1, int c2, int c3,
                                            int c4) {
  asm volatile(CONVOY_TMA_LOAD ".5d." CONVOY_TMA_TILED
                               ".L2::cache_hint [%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(
                                   shared_address(smem)),
               "l"(map), "r"(shared_address(barrier)), "l"(policy), "r"(c0), "r"(c1), "r"(c2),
               "r"(c3), "r"(c4)
               : "memory");
}

/// Tiled load into the same shared-memory offset of every CTA in `cta_mask`, completing on the
/// barrier at the same offset of each of them.
__device__ __forceinline__ void tma_load_2d_multicast(void* smem, const CUtensorMap* map,
                                                      Barrier* barrier, std::uint16_t cta_mask,
                                                      std::uint64_t policy, int c0, int c1) {
  asm volatile(CONVOY_TMA_LOAD
               ".2d." CONVOY_TMA_TILED
               ".multicast::cluster.L2::cache_hint [%0], [%1, {%5, %6}], [%2], %3, %4;" ::"r"(
                   shared_address(smem)),
               "l"(map), "r"(shared_address(barrier)), "h"(cta_mask), "l"(policy), "r"(c0), "r"(c1)
               : "memory");
}

__device__ __forceinline__ void tma_load_3d_multicast(void* smem, const CUtensorMap* map,
                                                      Barrier* barrier, std::uint16_t cta_mask,
                                                      std::uint64_t policy, int c0, int c1,
                                                      int c2) {
  asm volatile(CONVOY_TMA_LOAD
               ".3d." CONVOY_TMA_TILED
               ".multicast::cluster.L2::cache_hint [%0], [%1, {%5, %6, %7}], [%2], %3, %4;" ::"r"(
                   shared_address(smem)),
               "l"(map), "r"(shared_address(barrier)), "h"(cta_mask), "l"(policy), "r"(c0), "r"(c1),
               "r"(c2)
               : "memory");
}

/// im2col load of a 4-D NHWC tensor: (c, w, h, n) is the first pixel's coordinate before the
/// filter offset, (offset_w, offset_h) the tap's position (tap · dilation).
__device__ __forceinline__ void tma_load_im2col_4d(void* smem, const CUtensorMap* map,
                                                   Barrier* barrier, std::uint64_t policy, int c,
                                                   int w, int h, int n, std::uint16_t offset_w,
                                                   std::uint16_t offset_h) {
  asm volatile(CONVOY_TMA_LOAD
               ".4d." CONVOY_TMA_IM2COL
               ".L2::cache_hint [%0], [%1, {%4, %5, %6, %7}], [%2], {%8, %9}, %3;" ::"r"(
                   shared_address(smem)),
               "l"(map), "r"(shared_address(barrier)), "l"(policy), "r"(c), "r"(w), "r"(h), "r"(n),
               "h"(offset_w), "h"(offset_h)
               : "memory");
}

/// im2col load of a 5-D NDHWC tensor.
__device__ __forceinline__ void tma_load_im2col_5d(void* smem, const CUtensorMap* map,
                                                   Barrier* barrier, std::uint64_t policy, int c,
                                                   int w, int h, int d, int n,
                                                   std::uint16_t offset_w, std::uint16_t offset_h,
                                                   std::uint16_t offset_d) {
  asm volatile(CONVOY_TMA_LOAD
               ".5d." CONVOY_TMA_IM2COL
               ".L2::cache_hint [%0], [%1, {%4, %5, %6, %7, %8}], [%2], {%9, %10, %11}, %3;" ::"r"(
                   shared_address(smem)),
               "l"(map), "r"(shared_address(barrier)), "l"(policy), "r"(c), "r"(w), "r"(h), "r"(d),
               "r"(n), "h"(offset_w), "h"(offset_h), "h"(offset_d)
               : "memory");
}

/// Tiled stores from shared memory; elements outside the tensor are not written.
__device__ __forceinline__ void tma_store_4d(const CUtensorMap* map, const void* smem, int c0,
                                             int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], "
      "[%1];" ::"l"(map),
      "r"(shared_address(smem)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
__device__ __forceinline__ void tma_store_5d(const CUtensorMap* map, const void* smem, int c0,
                                             int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], "
      "[%1];" ::"l"(map),
      "r"(shared_address(smem)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

#undef CONVOY_TMA_LOAD
#undef CONVOY_TMA_TILED
#undef CONVOY_TMA_IM2COL

/// Close this thread's group of bulk and tensor stores.
__device__ __forceinline__ void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Wait until at most `kPending` of this thread's groups still have shared memory to read.
template <int kPending>
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
/// Wait until at most `kPending` of this thread's groups are not yet written to global memory.
template <int kPending>
__device__ __forceinline__ void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- Matrix descriptors ---------------------------------------------------------------------

/// The shared-memory matrix descriptor (of wgmma or tcgen05) of what lies `bytes` behind.
// NOTE: addresses are in the low word, which has no carry: one addition instead of two.
__device__ __forceinline__ std::uint64_t descriptor_behind(std::uint64_t descriptor,
                                                           std::uint32_t bytes) {
  const std::uint32_t low = static_cast<std::uint32_t>(descriptor) + (bytes >> 4);
  return (descriptor & 0xffffffff00000000ull) | low;
}

// ---- Matrix fragments in shared memory ------------------------------------------------------

/// Store / load four 8×8 matrices of 16-bit elements; lane i gives the address of row i % 8 of
/// matrix i / 8.
__device__ __forceinline__ void store_matrix_x4(std::uint32_t address, std::uint32_t r0,
                                                std::uint32_t r1, std::uint32_t r2,
                                                std::uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}
__device__ __forceinline__ void load_matrix_x4(std::uint32_t address, std::uint32_t& r0,
                                               std::uint32_t& r1, std::uint32_t& r2,
                                               std::uint32_t& r3) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
               : "r"(address)
               : "memory");
}

/// Two matrices, whose rows the first 16 lanes point at.
__device__ __forceinline__ void store_matrix_x2(std::uint32_t address, std::uint32_t r0,
                                                std::uint32_t r1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(r0),
               "r"(r1)
               : "memory");
}
__device__ __forceinline__ void load_matrix_x2(std::uint32_t address, std::uint32_t& r0,
                                               std::uint32_t& r1) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r0), "=r"(r1)
               : "r"(address)
               : "memory");
}

/// Four, transposing each matrix: a lane's pair of neighbours in a row of the fragment is one
/// in a column of shared memory.
__device__ __forceinline__ void store_matrix_x4_transposed(std::uint32_t address, std::uint32_t r0,
                                                           std::uint32_t r1, std::uint32_t r2,
                                                           std::uint32_t r3) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(r0), "r"(r1), "r"(r2), "r"(r3)
      : "memory");
}
__device__ __forceinline__ void load_matrix_x4_transposed(std::uint32_t address, std::uint32_t& r0,
                                                          std::uint32_t& r1, std::uint32_t& r2,
                                                          std::uint32_t& r3) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
               : "r"(address)
               : "memory");
}

}  // namespace convoy::ptx
