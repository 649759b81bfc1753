// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "ptx.cuh"

/// What the two pipelined GEMMs share: the problem and its check, and the warp that loads.

/// Rows, columns and depth: of a problem or of a tile.
struct GemmShape {
  int m, n, k;
};

// ---- device

/// Position in a ring of `size` buffers: the parity flips with every lap.
struct Ring {
  int size;
  int index = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++index == size) {
      index = 0;
      parity ^= 1;
    }
  }
};

/// One thread loads the blocks of each of its CTA's tiles: kTile.m and kTile.n rows of
/// kTile.k elements into shared.a and shared.b, rings of stages with mbarriers `full` and `empty`.
template <GemmShape kTile, typename Shared>
__device__ void load_tiles(Shared& shared, Ring stage, const CUtensorMap& map_a,
                           const CUtensorMap& map_b, int tiles_n, int tiles, int blocks_k) {
  constexpr uint32_t kStageBytes = (kTile.m + kTile.n) * kTile.k * sizeof(__nv_bfloat16);
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    for (int block = 0; block < blocks_k; ++block, stage.next()) {
      uint64_t* full = &shared.full[stage.index];
      mbarrier_wait(&shared.empty[stage.index], stage.parity ^ 1);
      mbarrier_arrive_expect_tx(full, kStageBytes);
      tma_load_2d(shared.a[stage.index], &map_a, full, block * kTile.k, tile / tiles_n * kTile.m);
      tma_load_2d(shared.b[stage.index], &map_b, full, block * kTile.k, tile % tiles_n * kTile.n);
    }
  }
}

// ---- host

/// A small GEMM D[m, n] = sum over k of A[m, k] B[n, k] with integer-valued bf16 data, and its
/// check on the host: every value must match exactly.
class GemmProblem {
 public:
  /// The sizes may be given as arguments, in multiples of the tile.
  GemmProblem(int argc, char** argv, GemmShape usual, GemmShape tile) : size_(usual), tile_(tile) {
    if (argc > 3) size_ = {std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3])};
    if (!multiple(size_.m, tile.m) || !multiple(size_.n, tile.n) || !multiple(size_.k, tile.k)) {
      std::printf("usage: %s [m n k], multiples of %d, %d, %d\n", argv[0], tile.m, tile.n, tile.k);
      std::exit(2);
    }
    a_.resize(size_t(size_.m) * size_.k);
    b_.resize(size_t(size_.n) * size_.k);
    uint32_t state = 1;
    for (auto* matrix : {&a_, &b_}) {
      for (__nv_bfloat16& value : *matrix) {
        state = state * 1664525u + 1013904223u;
        value = __float2bfloat16(static_cast<float>(static_cast<int>(state >> 16) % 5 - 2));
      }
    }
    CHECK_CUDA(cudaMalloc(&device_a_, a_.size() * 2));
    CHECK_CUDA(cudaMalloc(&device_b_, b_.size() * 2));
    CHECK_CUDA(cudaMalloc(&device_d_, size_t(size_.m) * size_.n * 4));
    CHECK_CUDA(cudaMemcpy(device_a_, a_.data(), a_.size() * 2, cudaMemcpyHostToDevice));
    CHECK_CUDA(cudaMemcpy(device_b_, b_.data(), b_.size() * 2, cudaMemcpyHostToDevice));
    CHECK_CUDA(cudaMemset(device_d_, 0xff, size_t(size_.m) * size_.n * 4));
  }

  /// Runs the kernel on two CTAs; it is given the tensor maps of A, B and D, the tiles in a row and
  /// in all, and the blocks along k.
  template <typename Kernel>
  void run(Kernel kernel, int threads, uint32_t shared_bytes) const {
    CHECK_CUDA(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    const int tiles_n = size_.n / tile_.n, tiles = size_.m / tile_.m * tiles_n;
    const CUtensorMap d = make_tensor_map(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, device_d_, size_.n,
                                          size_.m, tile_.n, tile_.m, CU_TENSOR_MAP_SWIZZLE_NONE);
    kernel<<<2, threads, shared_bytes>>>(operand_map(device_a_, size_.m, tile_.m),
                                         operand_map(device_b_, size_.n, tile_.n), d, tiles_n,
                                         tiles, size_.k / tile_.k);
  }

  /// Waits for the kernel and compares. Returns the program's exit status.
  int check() const {
    CHECK_CUDA(cudaDeviceSynchronize());
    std::vector<float> d(size_t(size_.m) * size_.n);
    CHECK_CUDA(cudaMemcpy(d.data(), device_d_, d.size() * 4, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int row = 0; row < size_.m; ++row) {
      for (int column = 0; column < size_.n; ++column) {
        float sum = 0;
        for (int k = 0; k < size_.k; ++k) {
          sum += __bfloat162float(a_[size_t(row) * size_.k + k]) *
                 __bfloat162float(b_[size_t(column) * size_.k + k]);
        }
        wrong += !(d[size_t(row) * size_.n + column] == sum);  // NaN is wrong too
      }
    }
    std::printf("%d of %d values wrong\n", wrong, size_.m * size_.n);
    return wrong ? 1 : 0;
  }

 private:
  static bool multiple(int size, int of) { return size >= of && size % of == 0; }

  /// Boxes of `rows` x 64 elements: 128-byte rows, swizzled.
  CUtensorMap operand_map(void* base, int total_rows, uint32_t rows) const {
    return make_tensor_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, base, size_.k, total_rows, tile_.k,
                           rows, CU_TENSOR_MAP_SWIZZLE_128B);
  }

  GemmShape size_, tile_;
  std::vector<__nv_bfloat16> a_, b_;
  void *device_a_ = nullptr, *device_b_ = nullptr, *device_d_ = nullptr;
};
