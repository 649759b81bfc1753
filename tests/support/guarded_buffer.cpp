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

void copy(Device device, void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
#ifdef CONVOY_WITH_CUDA
  if (device == Device::cuda) {
    // NOTE: waits, since the host's memory may go before the device has read it.
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    return;
  }
#endif
  (void)device;
  (void)stream;
  std::memcpy(to, from, bytes);
}

void fill(Device device, void* to, int byte, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
#ifdef CONVOY_WITH_CUDA
  if (device == Device::cuda) {
    check(cudaMemsetAsync(to, byte, bytes, stream), "cudaMemsetAsync");
    return;
  }
#endif
  (void)device;
  (void)stream;
  std::memset(to, byte, bytes);
}

}  // namespace

int compute_capability() {
  int major = 0;
  int minor = 0;
#ifdef CONVOY_WITH_CUDA
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
    return 0;
  }
#endif
  return 10 * major + minor;
}

GuardedBuffer::GuardedBuffer(Device device, std::size_t bytes)
    : device_(device), bytes_(bytes), memory_(allocate(device, bytes + 2 * kGuard)) {
  fill(device_, memory_.get(), kGuardByte, bytes + 2 * kGuard, nullptr);
  fill_with_nan();
  synchronize(device_);
}

void* GuardedBuffer::data() const {
  return memory_ ? memory_.get() + kGuard : nullptr;
}

void GuardedBuffer::upload(const void* from, cudaStream_t stream) {
  copy(device_, data(), from, bytes_, stream);
}

void GuardedBuffer::fill_with_nan(cudaStream_t stream) {
  fill(device_, data(), 0xff, bytes_, stream);
}

std::vector<unsigned char> GuardedBuffer::download(cudaStream_t stream) const {
  return test::download(device_, data(), bytes_, stream);
}

bool GuardedBuffer::guards_intact(cudaStream_t stream) const {
  if (!memory_) return true;
  for (const std::size_t offset : {std::size_t{0}, kGuard + bytes_}) {
    const std::vector<unsigned char> guard =
        test::download(device_, memory_.get() + offset, kGuard, stream);
    if (std::any_of(guard.begin(), guard.end(), [](unsigned char b) { return b != kGuardByte; })) {
      return false;
    }
  }
  return true;
}

std::vector<unsigned char> download(Device device, const void* from, std::size_t bytes,
                                    cudaStream_t stream) {
  std::vector<unsigned char> out(bytes);
  copy(device, out.data(), from, bytes, stream);
  return out;
}

void synchronize(Device device) {
#ifdef CONVOY_WITH_CUDA
  if (device == Device::cuda) check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
#endif
  (void)device;
}

Stream::Stream(Device device) {
#ifdef CONVOY_WITH_CUDA
  if (device == Device::cuda) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
#endif
  (void)device;
}

Stream::~Stream() {
#ifdef CONVOY_WITH_CUDA
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
#endif
}

}  // namespace convoy::test
