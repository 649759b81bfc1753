// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// The probe: small kernels whose results, word for word, say what the hardware does. Its output on
/// an H200 is committed (h200.txt); the virtual H200 must print the same.
namespace probe {

/// What a case found: an error code, or words.
struct Result {
  std::string note;  ///< "encode 1": a host-side refusal, printed as it is
  cudaError_t error = cudaSuccess;
  std::vector<uint32_t> words;
};

struct Case {
  std::string name;
  std::function<void(Result&)> run;
};

/// The list that the case files fill.
std::vector<Case>& cases();
inline void add(std::string name, std::function<void(Result&)> run) {
  cases().push_back({std::move(name), std::move(run)});
}

void add_tma_load_cases();
void add_tma_store_cases();
void add_sync_cases();
void add_thread_cases();
void add_prefetch_cases();
void add_math_cases();
void add_wgmma_cases();
void add_host_cases();
/// Cases that h200.txt has no answers to: they run only when `--only open` asks for them.
void add_rule_cases();
void add_open_cases();

/// Device memory that frees itself.
class Buffer {
 public:
  explicit Buffer(size_t bytes) { cudaMalloc(&pointer_, bytes); }
  ~Buffer() { cudaFree(pointer_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  template <typename T = uint8_t>
  T* get() const {
    return static_cast<T*>(pointer_);
  }

 private:
  void* pointer_ = nullptr;
};

/// Waits for the kernels and fetches `words` 32-bit words, or the error.
inline void fetch(Result& result, const void* device, size_t words) {
  result.error = cudaDeviceSynchronize();
  if (result.error == cudaSuccess) result.error = cudaGetLastError();
  if (result.error != cudaSuccess) return;
  result.words.resize(words);
  cudaMemcpy(result.words.data(), device, words * 4, cudaMemcpyDeviceToHost);
}

/// A driver entry point by name.
void* driver_function(const char* name);

/// 16-bit source data: every element of 2^16 neighbours is different.
std::vector<uint16_t> pattern16(size_t count);
/// Small integers in [-4, 4] or [0, 8], reproducible.
uint32_t hash32(uint32_t value);

}  // namespace probe
