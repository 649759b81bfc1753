// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "convoy/types.hpp"

namespace convoy::test {

/// Compute capability of the current CUDA device, 90 for 9.0; 0 where there is no device.
int compute_capability();

/// Memory on a device between two guard zones. It starts as all ones, which is NaN in every type,
/// so that an element nobody wrote shows. Copies are in the order of `stream`, and `download`,
/// `guards_intact` wait for it. Throws std::runtime_error where the device fails.
class GuardedBuffer {
 public:
  GuardedBuffer() = default;
  /// `bytes` on the CPU or the current CUDA device.
  GuardedBuffer(Device device, std::size_t bytes);
  /// On the current CUDA device.
  explicit GuardedBuffer(std::size_t bytes) : GuardedBuffer(Device::cuda, bytes) {}

  void* data() const;
  std::size_t bytes() const { return bytes_; }
  void upload(const void* from, cudaStream_t stream = nullptr);
  void fill_with_nan(cudaStream_t stream = nullptr);
  std::vector<unsigned char> download(cudaStream_t stream = nullptr) const;
  /// Whether nothing was written around it.
  bool guards_intact(cudaStream_t stream = nullptr) const;

 private:
  Device device_ = Device::cpu;
  std::size_t bytes_ = 0;
  std::shared_ptr<unsigned char> memory_;
};

/// Bytes of any memory of a device.
std::vector<unsigned char> download(Device device, const void* from, std::size_t bytes,
                                    cudaStream_t stream = nullptr);

/// Wait for the device. Throws std::runtime_error where something failed on it.
void synchronize(Device device);

/// A stream that waits for no other one; null on the CPU.
class Stream {
 public:
  explicit Stream(Device device);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace convoy::test
