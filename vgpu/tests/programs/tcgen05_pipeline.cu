// SPDX-License-Identifier: Apache-2.0
// A persistent, warp-specialised GEMM with TMA and tcgen05, two accumulators in TMEM: a subject
// for the checker and for `vgpu mutate`. Every synchronising instruction in it is needed.
#include "gemm_problem.cuh"

namespace {

constexpr GemmShape kTile{128, 64, 64};  // k: 128 bytes of bf16
constexpr int kStages = 3, kAccumulators = 2;
constexpr uint32_t kTmemColumns = kAccumulators * kTile.n;
constexpr int kLoadWarp = 0, kMmaWarp = 1, kAllocWarp = 2, kFirstEpilogueWarp = 4;
constexpr int kEpilogueThreads = 128, kThreads = 256;
// D f32, A and B bf16, K-major, N / 8, M / 16.
constexpr uint32_t kInstruction =
    1 << 4 | 1 << 7 | 1 << 10 | kTile.n / 8 << 17 | kTile.m / 16 << 24;

struct Shared {
  alignas(1024) __nv_bfloat16 a[kStages][kTile.m * kTile.k];
  alignas(1024) __nv_bfloat16 b[kStages][kTile.n * kTile.k];
  alignas(128) float d[kTile.m * kTile.n];
  uint64_t full[kStages], empty[kStages];
  uint64_t tmem_full[kAccumulators], tmem_empty[kAccumulators];
  uint32_t tmem_address;
};

__device__ void tcgen05_mma(uint32_t d, uint64_t a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(d),
      "l"(a), "l"(b), "r"(kInstruction), "r"(accumulate)
      : "memory");
}
__device__ void tcgen05_commit(uint64_t* barrier) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
                   shared_address(barrier))
               : "memory");
}
__device__ void tcgen05_fence_after() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}
__device__ void tcgen05_fence_before() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
__device__ void tcgen05_ld_x16(uint32_t (&r)[16], uint32_t address) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x16.b32 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, [%16];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]),
        "=r"(r[7]), "=r"(r[8]), "=r"(r[9]), "=r"(r[10]), "=r"(r[11]), "=r"(r[12]), "=r"(r[13]),
        "=r"(r[14]), "=r"(r[15])
      : "r"(address));
}

__global__ void __launch_bounds__(kThreads)
    gemm(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
         const __grid_constant__ CUtensorMap map_d, int tiles_n, int tiles, int blocks_k) {
  extern __shared__ __align__(1024) uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(&shared.full[i], 1);
      mbarrier_init(&shared.empty[i], 1);
    }
    for (int i = 0; i < kAccumulators; ++i) {
      mbarrier_init(&shared.tmem_full[i], 1);
      mbarrier_init(&shared.tmem_empty[i], kEpilogueThreads / 32);
    }
    fence_mbarrier_init();
  }
  if (warp == kAllocWarp) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                     shared_address(&shared.tmem_address)),
                 "r"(kTmemColumns)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
  }
  __syncthreads();
  const uint32_t tmem = *reinterpret_cast<volatile uint32_t*>(&shared.tmem_address);

  Ring stage{kStages}, accumulator{kAccumulators};
  if (warp == kLoadWarp && lane == 0) {
    load_tiles<kTile>(shared, stage, map_a, map_b, tiles_n, tiles, blocks_k);
  } else if (warp == kMmaWarp && lane == 0) {
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, accumulator.next()) {
      mbarrier_wait(&shared.tmem_empty[accumulator.index], accumulator.parity ^ 1);
      tcgen05_fence_after();
      for (int block = 0; block < blocks_k; ++block, stage.next()) {
        mbarrier_wait(&shared.full[stage.index], stage.parity);
        for (int k = 0; k < kTile.k; k += 16) {
          tcgen05_mma(tmem + accumulator.index * kTile.n,
                      tcgen05_descriptor(&shared.a[stage.index][k]),
                      tcgen05_descriptor(&shared.b[stage.index][k]), block + k != 0);
        }
        tcgen05_commit(&shared.empty[stage.index]);
      }
      tcgen05_commit(&shared.tmem_full[accumulator.index]);
    }
  } else if (warp >= kFirstEpilogueWarp) {
    const int quarter = warp % 4, thread = threadIdx.x - kFirstEpilogueWarp * 32;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, accumulator.next()) {
      mbarrier_wait(&shared.tmem_full[accumulator.index], accumulator.parity);
      tcgen05_fence_after();
      uint32_t d[kTile.n / 16][16];
      for (int i = 0; i < kTile.n / 16; ++i) {
        tcgen05_ld_x16(d[i], tmem + accumulator.index * kTile.n + i * 16 + (quarter * 32 << 16));
      }
      asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
      tcgen05_fence_before();
      if (lane == 0) mbarrier_arrive(&shared.tmem_empty[accumulator.index]);
      // The store of the previous tile must have left the buffer.
      if (thread == 0) bulk_wait_read();
      named_barrier(1, kEpilogueThreads);
      for (int i = 0; i < kTile.n; ++i) {
        reinterpret_cast<uint32_t*>(shared.d)[thread * kTile.n + i] = d[i / 16][i % 16];
      }
      fence_proxy_async();
      named_barrier(1, kEpilogueThreads);
      if (thread == 0) {
        tma_store_2d(&map_d, shared.d, tile % tiles_n * kTile.n, tile / tiles_n * kTile.m);
        bulk_commit();
      }
    }
    if (thread == 0) bulk_wait();
  }
  tcgen05_fence_before();
  __syncthreads();
  tcgen05_fence_after();
  if (warp == kAllocWarp) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(tmem),
                 "r"(kTmemColumns));
  }
}

}  // namespace

int main(int argc, char** argv) {
  GemmProblem problem(argc, argv, {256, 256, 320}, kTile);
  problem.run(gemm, kThreads, sizeof(Shared));
  return problem.check();
}
