// SPDX-License-Identifier: Apache-2.0
// A persistent, warp-specialised GEMM with TMA and wgmma: a subject for the checker and for
// `vgpu mutate`. Every synchronising instruction in it is needed.
#include "gemm_problem.cuh"

namespace {

constexpr GemmShape kTile{64, 64, 64};  // k: 128 bytes of bf16
constexpr int kStages = 3;
constexpr int kConsumers = 128;
constexpr int kThreads = kConsumers + 32;

struct Shared {
  alignas(1024) __nv_bfloat16 a[kStages][kTile.m * kTile.k];
  alignas(1024) __nv_bfloat16 b[kStages][kTile.n * kTile.k];
  alignas(128) float d[kTile.m * kTile.n];
  uint64_t full[kStages], empty[kStages];
};

__device__ void wgmma_m64n64k16(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
      "%25,%26,%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, 0, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b), "r"(accumulate));
}

__global__ void __launch_bounds__(kThreads)
    gemm(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
         const __grid_constant__ CUtensorMap map_d, int tiles_n, int tiles, int blocks_k) {
  extern __shared__ __align__(1024) uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(&shared.full[stage], 1);
      mbarrier_init(&shared.empty[stage], kConsumers / 32);
    }
    fence_mbarrier_init();
  }
  __syncthreads();

  Ring stage{kStages};
  if (warp == kConsumers / 32) {
    if (lane == 0) load_tiles<kTile>(shared, stage, map_a, map_b, tiles_n, tiles, blocks_k);
    return;
  }

  // Consumers: one warpgroup multiplies and stores.
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float d[32];
    for (int block = 0; block < blocks_k; ++block, stage.next()) {
      mbarrier_wait(&shared.full[stage.index], stage.parity);
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      for (int k = 0; k < kTile.k; k += 16) {
        wgmma_m64n64k16(d, wgmma_descriptor(&shared.a[stage.index][k]),
                        wgmma_descriptor(&shared.b[stage.index][k]), block + k != 0);
      }
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      if (lane == 0) mbarrier_arrive(&shared.empty[stage.index]);
    }
    // The store of the previous tile must have left the buffer.
    if (threadIdx.x == 0) bulk_wait_read();
    named_barrier(1, kConsumers);
    for (int i = 0; i < 32; ++i) {
      int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      shared.d[row * kTile.n + column] = d[i];
    }
    fence_proxy_async();
    named_barrier(1, kConsumers);
    if (threadIdx.x == 0) {
      tma_store_2d(&map_d, shared.d, tile % tiles_n * kTile.n, tile / tiles_n * kTile.m);
      bulk_commit();
    }
  }
  if (threadIdx.x == 0) bulk_wait();
}

}  // namespace

int main(int argc, char** argv) {
  GemmProblem problem(argc, argv, {192, 128, 320}, kTile);
  problem.run(gemm, kThreads, sizeof(Shared));
  return problem.check();
}
