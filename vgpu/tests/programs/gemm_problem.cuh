// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "ptx.cuh"

/// A small GEMM D[m, n] = sum over k of A[m, k] B[n, k] with integer-valued bf16 data, and its
/// check on the host: every value must match exactly.
class GemmProblem {
 public:
  GemmProblem(int m, int n, int k) : m_(m), n_(n), k_(k), a_(m * k), b_(n * k) {
    uint32_t state = 1;
    for (auto* matrix : {&a_, &b_})
      for (__nv_bfloat16& value : *matrix) {
        state = state * 1664525u + 1013904223u;
        value = __float2bfloat16(static_cast<float>(static_cast<int>(state >> 16) % 5 - 2));
      }
    CHECK_CUDA(cudaMalloc(&device_a, a_.size() * 2));
    CHECK_CUDA(cudaMalloc(&device_b, b_.size() * 2));
    CHECK_CUDA(cudaMalloc(&device_d, size_t(m) * n * 4));
    CHECK_CUDA(cudaMemcpy(device_a, a_.data(), a_.size() * 2, cudaMemcpyHostToDevice));
    CHECK_CUDA(cudaMemcpy(device_b, b_.data(), b_.size() * 2, cudaMemcpyHostToDevice));
    CHECK_CUDA(cudaMemset(device_d, 0xff, size_t(m) * n * 4));
  }

  CUtensorMap map_a(uint32_t rows) const { return operand_map(device_a, m_, rows); }
  CUtensorMap map_b(uint32_t rows) const { return operand_map(device_b, n_, rows); }
  CUtensorMap map_d(uint32_t columns, uint32_t rows) const {
    return make_tensor_map(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, device_d, n_, m_, columns, rows,
                           CU_TENSOR_MAP_SWIZZLE_NONE);
  }

  /// Waits for the kernel and compares. Returns the program's exit status.
  int check() const {
    CHECK_CUDA(cudaDeviceSynchronize());
    std::vector<float> d(size_t(m_) * n_);
    CHECK_CUDA(cudaMemcpy(d.data(), device_d, d.size() * 4, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int row = 0; row < m_; row++)
      for (int column = 0; column < n_; column++) {
        float sum = 0;
        for (int k = 0; k < k_; k++)
          sum += __bfloat162float(a_[row * k_ + k]) * __bfloat162float(b_[column * k_ + k]);
        wrong += !(d[size_t(row) * n_ + column] == sum);  // NaN is wrong too
      }
    std::printf("%d of %d values wrong\n", wrong, m_ * n_);
    return wrong ? 1 : 0;
  }

  void *device_a = nullptr, *device_b = nullptr, *device_d = nullptr;

 private:
  /// Boxes of `rows` x 64 elements: 128-byte rows, swizzled.
  CUtensorMap operand_map(void* base, int total_rows, uint32_t rows) const {
    return make_tensor_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, base, k_, total_rows, 64, rows,
                           CU_TENSOR_MAP_SWIZZLE_128B);
  }

  int m_, n_, k_;
  std::vector<__nv_bfloat16> a_, b_;
};
