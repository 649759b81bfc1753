// SPDX-License-Identifier: Apache-2.0
#include "support/guarded_buffer.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#ifdef CONVOY_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace convoy::test {
namespace {

constexpr std::size_t kGuard = 1024;
constexpr unsigned char kGuardByte = 0xa5;

#ifdef CONVOY_WITH_CUDA
void check(cudaError_t error, const char* doing) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(doing) + ": " + cudaGetErrorString(error));
  }
}
#endif

std::shared_ptr<unsigned char> allocate(Device device, std::size_t bytes) {
#ifdef CONVOY_WITH_CUDA
  if (device == Device::cuda) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes), "cudaMalloc");
    return {static_cast<unsigned char*>(memory), [](unsigned char* p) { (void)cudaFree(p); }};
  }
#endif
  if (device != Device::cpu) throw std::runtime_error("this build has no CUDA");
  constexpr std::align_val_t kAlignment{64};
  auto* memory = static_cast<unsigned char*>(::operator new(bytes, kAlignment));
  return {memory, [](unsigned char* p) { ::operator delete(p, kAlignment); }};
}

void copy(Device device, void* to, const void* from, std::size_t bytes) {
#ifdef CONVOY_WITH_CUDA
  if (device == Device::cuda) {
    check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
    return;
  }
#endif
  (void)device;
  std::memcpy(to, from, bytes);
}

}  // namespace

GuardedBuffer::GuardedBuffer(Device device, std::size_t bytes)
    : device_(device), bytes_(bytes), memory_(allocate(device, bytes + 2 * kGuard)) {
  const std::vector<unsigned char> guards(bytes + 2 * kGuard, kGuardByte);
  copy(device_, memory_.get(), guards.data(), guards.size());
  fill_with_nan();
}

void* GuardedBuffer::data() const {
  return memory_ ? memory_.get() + kGuard : nullptr;
}

void GuardedBuffer::upload(const void* from) {
  if (bytes_ > 0) copy(device_, data(), from, bytes_);
}

void GuardedBuffer::fill_with_nan() {
  const std::vector<unsigned char> ones(bytes_, 0xff);
  upload(ones.data());
}

std::vector<unsigned char> GuardedBuffer::download() const {
  std::vector<unsigned char> out(bytes_);
  if (bytes_ > 0) copy(device_, out.data(), data(), bytes_);
  return out;
}

bool GuardedBuffer::guards_intact() const {
  if (!memory_) return true;
  std::vector<unsigned char> guard(kGuard);
  for (const std::size_t offset : {std::size_t{0}, kGuard + bytes_}) {
    copy(device_, guard.data(), memory_.get() + offset, kGuard);
    if (std::any_of(guard.begin(), guard.end(), [](unsigned char b) { return b != kGuardByte; })) {
      return false;
    }
  }
  return true;
}

void synchronize(Device device) {
#ifdef CONVOY_WITH_CUDA
  if (device == Device::cuda) check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
#endif
  (void)device;
}

}  // namespace convoy::test
