// SPDX-License-Identifier: Apache-2.0
//
// How fast SMs take in the tiles of a GEMM by TMA, and whether clusters that multicast them take in
// more: the loads of C = A * B' without the MMAs. A is gm * rows_a x depth, B is gn * rows_b x
// depth, bf16; CTA (i, j) loads the rows of its tile of A and of B, 64 columns a stage, and gives
// each stage back at once. In a cluster of cm x cn CTAs each loads 1 / cn of the rows of A for the
// CTAs of its row and 1 / cm of those of B for its column.
//
//   nvcc -std=c++20 -O3 -I../../src -gencode arch=compute_90a,code=sm_90a -o intake intake.cu
//   ./intake            a table: tiles x clusters, operands in L2 and in device memory
//
// Bytes a cycle: of the CTA that takes longest, from its first load to its last full stage.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/common/ptx.cuh"

namespace ptx = convoy::ptx;

namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

constexpr int kMaxStages = 16;
constexpr int kStageColumns = 64;  // bf16, 128 bytes

struct Params {
  CUtensorMap a, b;
  int rows_a, rows_b, stages, blocks, cm, cn;
  unsigned* cycles;  // of each CTA
};

// kWarps: 1: one thread loads both operands; 2: a warp for each.
template <int kWarps>
__global__ void __launch_bounds__(96, 1) loads(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) std::uint8_t raw[];
  __shared__ ptx::Barrier full[kMaxStages], empty[kMaxStages];
  std::uint8_t* const ring = raw + (1024 - (ptx::shared_address(raw) & 1023)) % 1024;
  const int size = p.cm * p.cn, rank = size > 1 ? int(ptx::cluster_cta_rank()) : 0;
  const int i_in = rank % p.cm, j_in = rank / p.cm;  // place in the cluster
  const int cluster = int(blockIdx.x) / size;
  const int tile_m = int(blockIdx.y) * p.cm + i_in, tile_n = cluster * p.cn + j_in;
  const int slice_a = p.rows_a / p.cn, slice_b = p.rows_b / p.cm;
  const int stage_bytes = (p.rows_a + p.rows_b) * 128;
  if (threadIdx.x == 0) {
    for (int s = 0; s < p.stages; ++s) {
      ptx::barrier_init(&full[s], kWarps);
      ptx::barrier_init(&empty[s], p.cm + p.cn - 1);
    }
    ptx::fence_barrier_init();
    ptx::prefetch_tensor_map(&p.a);
    ptx::prefetch_tensor_map(&p.b);
  }
  __syncthreads();
  if (size > 1) ptx::cluster_sync();
  const long long begin = clock64();
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  if (warp < 2) {
    if (lane == 0 && warp < kWarps) {
      // CTAs of my row of the cluster: ranks i_in + cm * j; of my column: i + cm * j_in.
      std::uint16_t row = 0, column = 0;
      for (int j = 0; j < p.cn; ++j) row |= 1 << (i_in + p.cm * j);
      for (int i = 0; i < p.cm; ++i) column |= 1 << (i + p.cm * j_in);
      const int row_a = tile_m * p.rows_a + j_in * slice_a;
      const int row_b = tile_n * p.rows_b + i_in * slice_b;
      std::uint8_t* a = ring + j_in * slice_a * 128;
      std::uint8_t* b = ring + p.rows_a * 128 + i_in * slice_b * 128;
      int stage = 0, parity = 1;
      for (int k = 0; k < p.blocks; ++k) {
        ptx::barrier_wait(&empty[stage], parity);
        ptx::barrier_arrive_expect(
            &full[stage], kWarps == 1 ? stage_bytes : (warp == 0 ? p.rows_a : p.rows_b) * 128);
        if (kWarps == 1 || warp == 0) {
          if (p.cn == 1) {
            ptx::tma_load_2d(a + stage * stage_bytes, &p.a, &full[stage], ptx::kL2EvictNormal,
                             k * kStageColumns, row_a);
          } else {
            ptx::tma_load_2d_multicast(a + stage * stage_bytes, &p.a, &full[stage], row,
                                       ptx::kL2EvictNormal, k * kStageColumns, row_a);
          }
        }
        if (kWarps == 1 || warp == 1) {
          if (p.cm == 1) {
            ptx::tma_load_2d(b + stage * stage_bytes, &p.b, &full[stage], ptx::kL2EvictNormal,
                             k * kStageColumns, row_b);
          } else {
            ptx::tma_load_2d_multicast(b + stage * stage_bytes, &p.b, &full[stage], column,
                                       ptx::kL2EvictNormal, k * kStageColumns, row_b);
          }
        }
        if (++stage == p.stages) {
          stage = 0;
          parity ^= 1;
        }
      }
    }
  } else {
    const int i = lane % p.cm, j = lane / p.cm;
    const bool tells = lane < size && (i == i_in || j == j_in);
    int stage = 0, parity = 0;
    for (int k = 0; k < p.blocks; ++k) {
      ptx::barrier_wait(&full[stage], parity);
      __syncwarp();
      if (tells) {
        if (size == 1) {
          ptx::barrier_arrive(&empty[stage]);
        } else {
          ptx::barrier_release_remote(&empty[stage], lane);
        }
      }
      if (++stage == p.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    if (lane == 0) {
      p.cycles[blockIdx.y * gridDim.x + blockIdx.x] = unsigned(clock64() - begin);
    }
  }
  if (size > 1) {
    __syncwarp();
    ptx::cluster_sync();
  }
}

CUtensorMap map_of(void* data, int depth, int rows, int box_rows) {
  static auto* const encode = [] {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000,
                                           cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(address);
  }();
  CUtensorMap map;
  const cuuint64_t extents[2] = {cuuint64_t(depth), cuuint64_t(rows)};
  const cuuint64_t strides[1] = {cuuint64_t(depth) * 2};
  const cuuint32_t box[2] = {kStageColumns, cuuint32_t(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  if (encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, data, extents, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS) {
    std::fprintf(stderr, "a tensor map of %d rows in boxes of %d cannot be made\n", rows, box_rows);
    std::exit(1);
  }
  return map;
}

struct Result {
  double bytes_per_cycle = 0, us = 0;
};

Result measure(int gm, int gn, int rows_a, int rows_b, int depth, int stages, int cm, int cn,
               bool cold, int warps) {
  const auto kernel = warps == 1 ? &loads<1> : &loads<2>;
  static std::uint8_t* a = nullptr;
  static std::uint8_t* b = nullptr;
  static std::uint8_t* other = nullptr;
  static unsigned* cycles = nullptr;
  constexpr std::size_t kOther = std::size_t{256} << 20;
  if (a == nullptr) {
    check(cudaMalloc(&a, 64 << 20), "malloc");
    check(cudaMalloc(&b, 64 << 20), "malloc");
    check(cudaMalloc(&other, kOther), "malloc");
    check(cudaMalloc(&cycles, 4096), "malloc");
  }
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 220 << 10),
        "shared");
  Params p;
  p.a = map_of(a, depth, gm * rows_a, rows_a / cn);
  p.b = map_of(b, depth, gn * rows_b, rows_b / cm);
  p.rows_a = rows_a;
  p.rows_b = rows_b;
  p.stages = stages;
  p.blocks = depth / kStageColumns;
  p.cm = cm;
  p.cn = cn;
  p.cycles = cycles;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(gn * cm), unsigned(gm / cm));
  config.blockDim = 96;
  config.dynamicSmemBytes = std::size_t(stages * (rows_a + rows_b) * 128 + 1024);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {unsigned(cm * cn), 1, 1};
  config.attrs = &attribute;
  config.numAttrs = cm * cn > 1 ? 1 : 0;
  cudaEvent_t first, last;
  check(cudaEventCreate(&first), "event");
  check(cudaEventCreate(&last), "event");
  std::vector<double> rates, times;
  for (int run = 0; run < 11; ++run) {
    if (cold) check(cudaMemsetAsync(other, run, kOther), "flush");
    check(cudaEventRecord(first), "event");
    check(cudaLaunchKernelEx(&config, kernel, p), "launch");
    check(cudaEventRecord(last), "event");
    check(cudaDeviceSynchronize(), "loads");
    std::vector<unsigned> host(std::size_t(gm * gn));
    check(cudaMemcpy(host.data(), cycles, host.size() * 4, cudaMemcpyDeviceToHost), "copy");
    const double slowest = *std::max_element(host.begin(), host.end());
    float ms = 0;
    check(cudaEventElapsedTime(&ms, first, last), "event");
    rates.push_back(double(rows_a + rows_b) * 2 * depth / slowest);
    times.push_back(1e3 * ms);
  }
  std::sort(rates.begin(), rates.end());
  std::sort(times.begin(), times.end());
  return {rates[rates.size() / 2], times[times.size() / 2]};
}

}  // namespace

int main() {
  struct Case {
    int gm, gn, rows_a, rows_b, depth, stages;
  };
  // M x N tiles of CTAs; rows a tile; columns.
  const Case cases[] = {
      {8, 16, 64, 64, 2048, 4},   {8, 16, 64, 64, 2048, 8},   {8, 16, 64, 64, 2048, 12},
      {8, 8, 64, 64, 2048, 12},   {4, 8, 64, 64, 2048, 12},   {8, 12, 64, 72, 2048, 12},
      {8, 16, 64, 128, 2048, 8},  {4, 32, 64, 104, 1024, 9},  {4, 32, 128, 256, 2048, 4},
      {2, 64, 200, 128, 2048, 5}, {8, 16, 128, 128, 2048, 6}, {8, 16, 128, 128, 4096, 6},
      {8, 8, 128, 128, 2048, 6},
  };
  const std::pair<int, int> clusters[] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {4, 2}};
  std::printf(
      "tiles        rows     depth  stages  warps  cluster   L2: B/cycle     us   memory: B/cycle"
      "     us\n");
  for (const Case& c : cases) {
    for (const auto& [cm, cn] : clusters) {
      if (c.gm % cm != 0 || c.gn % cn != 0) continue;
      if (c.rows_a % (8 * cn) != 0 || c.rows_b % (8 * cm) != 0) continue;
      for (const int warps : {1, 2}) {
        const Result warm =
            measure(c.gm, c.gn, c.rows_a, c.rows_b, c.depth, c.stages, cm, cn, false, warps);
        const Result cold =
            measure(c.gm, c.gn, c.rows_a, c.rows_b, c.depth, c.stages, cm, cn, true, warps);
        std::printf("%2d x %2d  %3d + %3d  %6d  %6d  %5d   %d x %d  %14.1f %6.2f %17.1f %6.2f\n",
                    c.gm, c.gn, c.rows_a, c.rows_b, c.depth, c.stages, warps, cm, cn,
                    warm.bytes_per_cycle, warm.us, cold.bytes_per_cycle, cold.us);
      }
    }
  }
  return 0;
}
