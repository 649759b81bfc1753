// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

/// One-line wrappers of the PTX that the test programs use, and their tensor maps.

#define CHECK_CUDA(call)                                                        \
  do {                                                                          \
    cudaError_t status = (call);                                                \
    if (status != cudaSuccess) {                                                \
      std::printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorName(status)); \
      std::exit(3);                                                             \
    }                                                                           \
  } while (0)

// ---- device

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void mbarrier_init(uint64_t* barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
               : "memory");
}
__device__ inline void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
__device__ inline void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
__device__ inline void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nWAIT_LOOP:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra WAIT_DONE;\nbra WAIT_LOOP;\nWAIT_DONE:\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void named_barrier(uint32_t number, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

__device__ inline void tma_load_2d(void* destination, const CUtensorMap* map, uint64_t* barrier,
                                   int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%3, %4}], [%2];" ::"r"(shared_address(destination)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
      : "memory");
}
__device__ inline void tma_store_2d(const CUtensorMap* map, const void* source, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(shared_address(source)), "r"(x), "r"(y)
      : "memory");
}
__device__ inline void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ inline void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ inline void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/// A K-major matrix of 128-byte rows with 128-byte swizzle, 8-row groups 1024 bytes apart.
__device__ inline uint64_t wgmma_descriptor(const void* start) {
  return uint64_t{(shared_address(start) & 0x3ffff) >> 4} | uint64_t{1} << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}
__device__ inline uint64_t tcgen05_descriptor(const void* start) {
  return uint64_t{(shared_address(start) & 0x3ffff) >> 4} | uint64_t{1} << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 46 | uint64_t{2} << 61;
}

// ---- host

/// A row-major matrix of `rows` x `columns` elements, moved in boxes.
inline CUtensorMap make_tensor_map(CUtensorMapDataType type, uint32_t element_bytes, void* base,
                                   uint64_t columns, uint64_t rows, uint32_t box_columns,
                                   uint32_t box_rows, CUtensorMapSwizzle swizzle) {
  using Encode =
      CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                   const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                   CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  CHECK_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                              cudaEnableDefault, &found));
  CUtensorMap map;
  const cuuint64_t sizes[2] = {columns, rows};
  const cuuint64_t strides[1] = {columns * element_bytes};
  const cuuint32_t box[2] = {box_columns, box_rows}, steps[2] = {1, 1};
  CUresult result = reinterpret_cast<Encode>(entry)(
      &map, type, 2, base, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
      CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    std::printf("cuTensorMapEncodeTiled: %d\n", static_cast<int>(result));
    std::exit(3);
  }
  return map;
}
