// SPDX-License-Identifier: Apache-2.0
// A persistent, warp-specialised GEMM with TMA and wgmma: a subject for the checker and for
// `vgpu mutate`. Every synchronising instruction in it is needed.
#include "gemm_problem.cuh"

namespace {

constexpr int kTile = 64;    // of M and N
constexpr int kBlockK = 64;  // 128 bytes of bf16
constexpr int kStages = 3;
constexpr uint32_t kStageBytes = 2 * kTile * kBlockK * 2;
constexpr int kConsumers = 128;
constexpr int kThreads = kConsumers + 32;

struct Shared {
  alignas(1024) __nv_bfloat16 a[kStages][kTile * kBlockK];
  alignas(1024) __nv_bfloat16 b[kStages][kTile * kBlockK];
  alignas(128) float d[kTile * kTile];
  uint64_t full[kStages], empty[kStages];
};

/// Position in the ring of stages: the parity flips with every lap.
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
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
    for (int stage = 0; stage < kStages; stage++) {
      mbarrier_init(&shared.full[stage], 1);
      mbarrier_init(&shared.empty[stage], kConsumers / 32);
    }
    fence_mbarrier_init();
  }
  __syncthreads();

  Ring ring;
  if (warp == kConsumers / 32) {
    // Producer: one thread loads the blocks of every tile.
    if (lane == 0) {
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x)
        for (int block = 0; block < blocks_k; block++, ring.next()) {
          mbarrier_wait(&shared.empty[ring.stage], ring.parity ^ 1);
          mbarrier_arrive_expect_tx(&shared.full[ring.stage], kStageBytes);
          tma_load_2d(shared.a[ring.stage], &map_a, &shared.full[ring.stage], block * kBlockK,
                      tile / tiles_n * kTile);
          tma_load_2d(shared.b[ring.stage], &map_b, &shared.full[ring.stage], block * kBlockK,
                      tile % tiles_n * kTile);
        }
    }
    return;
  }

  // Consumers: one warpgroup multiplies and stores.
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float d[32];
    for (int block = 0; block < blocks_k; block++, ring.next()) {
      mbarrier_wait(&shared.full[ring.stage], ring.parity);
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      for (int k = 0; k < kBlockK; k += 16)
        wgmma_m64n64k16(d, wgmma_descriptor(&shared.a[ring.stage][k]),
                        wgmma_descriptor(&shared.b[ring.stage][k]), block + k != 0);
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      if (lane == 0) mbarrier_arrive(&shared.empty[ring.stage]);
    }
    // The store of the previous tile must have left the buffer.
    if (threadIdx.x == 0) bulk_wait_read();
    named_barrier(1, kConsumers);
    for (int i = 0; i < 32; i++) {
      int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      shared.d[row * kTile + column] = d[i];
    }
    fence_proxy_async();
    named_barrier(1, kConsumers);
    if (threadIdx.x == 0) {
      tma_store_2d(&map_d, shared.d, tile % tiles_n * kTile, tile / tiles_n * kTile);
      bulk_commit();
    }
  }
  if (threadIdx.x == 0) bulk_wait();
}

}  // namespace

int main(int argc, char** argv) {
  // Sizes may be given, in multiples of the tile.
  const int m = argc > 3 ? std::atoi(argv[1]) : 192, n = argc > 3 ? std::atoi(argv[2]) : 128,
            k = argc > 3 ? std::atoi(argv[3]) : 320;
  if (m < kTile || m % kTile || n < kTile || n % kTile || k < kBlockK || k % kBlockK) {
    std::printf("usage: wgmma_pipeline [m n k], multiples of %d, %d, %d\n", kTile, kTile, kBlockK);
    return 2;
  }
  GemmProblem problem(m, n, k);
  const uint32_t bytes = sizeof(Shared);
  CHECK_CUDA(cudaFuncSetAttribute(gemm, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  gemm<<<2, kThreads, bytes>>>(problem.map_a(kTile), problem.map_b(kTile),
                               problem.map_d(kTile, kTile), n / kTile, m / kTile * (n / kTile),
                               k / kBlockK);
  return problem.check();
}
