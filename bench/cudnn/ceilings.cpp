// SPDX-License-Identifier: Apache-2.0
#include "ceilings.hpp"

#include <cublas_v2.h>

#include "cuda_check.hpp"
#include "device_fill.hpp"
#include "device_memory.hpp"
#include "measure.hpp"

namespace convoy::bench {

Ceilings measure_ceilings() {
  constexpr int kSize = 8192;
  constexpr std::size_t kCopyBytes = std::size_t{2} << 30;
  const std::size_t bytes = std::size_t{kSize} * kSize * 2;
  const cli::DeviceMemory a(Device::cuda, bytes), b(Device::cuda, bytes), c(Device::cuda, bytes);
  const cli::DeviceMemory from(Device::cuda, kCopyBytes), into(Device::cuda, kCopyBytes);
  fill_random(a.data(), std::int64_t{kSize} * kSize, DType::bf16, 1, 1.0f, nullptr);
  fill_random(b.data(), std::int64_t{kSize} * kSize, DType::bf16, 2, 1.0f, nullptr);
  fill_random(from.data(), kCopyBytes / 2, DType::bf16, 3, 1.0f, nullptr);
  cli::check_cuda(cudaDeviceSynchronize(), "fill");

  cublasHandle_t handle = nullptr;
  if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS) {
    throw Error(Status::launch_failure, "cublasCreate failed");
  }
  const float one = 1.0f, zero = 0.0f;
  const cli::Variant variants[] = {
      {"cuBLAS 8192^3",
       [&](cudaStream_t stream) {
         cublasSetStream(handle, stream);
         const cublasStatus_t status =
             cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, kSize, kSize, kSize, &one, a.data(),
                          CUDA_R_16BF, kSize, b.data(), CUDA_R_16BF, kSize, &zero, c.data(),
                          CUDA_R_16BF, kSize, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
         if (status != CUBLAS_STATUS_SUCCESS) {
           throw Error(Status::launch_failure, "cublasGemmEx failed");
         }
       }},
      {"copy", [&](cudaStream_t stream) {
         cli::check_cuda(cudaMemcpyAsync(into.data(), from.data(), kCopyBytes,
                                         cudaMemcpyDeviceToDevice, stream),
                         "cudaMemcpyAsync");
       }}};
  const auto times = cli::measure(
      variants, {.device = Device::cuda, .seconds = 0.05, .min_runs = 20, .max_runs = 50});
  cublasDestroy(handle);
  // The best run: a ceiling is what the card can do.
  return {.gemm_tflops = 2.0 * kSize * kSize * kSize / times[0].min_us * 1e-6,
          .copy_gbs = 2.0 * double(kCopyBytes) / times[1].min_us * 1e-3};
}

}  // namespace convoy::bench
