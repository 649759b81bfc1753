// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_fp16.h>

#include <cstring>

#include "device.cuh"
#include "probe.hpp"

// Operands of the wgmma cases and what their kernels share.
//
// Shared memory is filled with data of the operand types everywhere, A's in the first 16 KiB and
// B's behind: whatever a descriptor addresses is a legal operand, so the result tells which
// elements the hardware reads without a layout being assumed.
namespace probe {

constexpr uint32_t kImageWordsA = 4096;
constexpr uint32_t kWgmmaImageWords = 40960;  // 160 KiB

__device__ inline void load_image(const uint32_t* image, uint32_t* shared, uint64_t& desc_a,
                                  uint64_t& desc_b) {
  for (uint32_t i = threadIdx.x; i < kWgmmaImageWords; i += blockDim.x) shared[i] = image[i];
  fence_proxy_async();
  __syncthreads();
  desc_a += shared_address(shared) >> 4;
  desc_b += (shared_address(shared) >> 4) + kImageWordsA / 4;
}

__device__ inline uint32_t half_pair(int value) {
  const __half2 pair = __floats2half2_rn(static_cast<float>(value), static_cast<float>(-value));
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ inline uint32_t word_of(float value) {
  return __float_as_uint(value);
}
__device__ inline uint32_t word_of(uint32_t value) {
  return value;
}

struct WgmmaCase {
  const char *a, *b;  // element types
  const char* data;   // "integers": sums are exact; "real"
  uint32_t layout;    // descriptor bits 62 and 63
  uint32_t lead;      // leading byte offset / 16
  uint32_t stride;    // stride byte offset
  int scale_d;
  uint32_t registers;  // result words a thread
};

// One word of elements of a type.
inline uint32_t operand_word(const std::string& type, bool real, uint32_t index) {
  const uint32_t h = hash32(index * 2 + 1), g = hash32(index * 2 + 2);
  static constexpr uint8_t kE4m3[] = {0x00, 0x38, 0x40, 0x44, 0x48, 0xb8, 0xc0, 0xc4, 0xc8};
  static constexpr uint8_t kE5m2[] = {0x00, 0x3c, 0x40, 0x42, 0x44, 0xbc, 0xc0, 0xc2, 0xc4};
  if (type == "s8" || type == "u8") return h;
  if (type == "e4m3" || type == "e5m2") {
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) {
      const uint32_t byte = h >> 8 * i & 0xff;
      // Real: any finite number that is not huge.
      const uint32_t element = real ? byte & 0xdf : (type == "e4m3" ? kE4m3 : kE5m2)[byte % 9];
      word |= element << 8 * i;
    }
    return word;
  }
  const float small = static_cast<float>(static_cast<int>(h % 9) - 4);
  uint32_t bits;
  std::memcpy(&bits, &small, sizeof bits);
  if (type == "tf32") {
    // Real: all 23 mantissa bits, of which tf32 has 10.
    return real ? (h & 0x807fffff) | (120 + g % 10) << 23 : bits;
  }
  const auto half = [&](uint32_t k) -> uint32_t {
    const float value = static_cast<float>(static_cast<int>((h >> 8 * k) % 9) - 4);
    uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    const uint32_t x = k ? h : g;
    if (type == "bf16") return real ? (x & 0x807f) | (120 + x / 256 % 10) << 7 : word >> 16;
    if (real) return (x & 0x83ff) | (10 + x / 4096 % 8) << 10;
    return value == 0
               ? 0
               : (word >> 16 & 0x8000) | ((word >> 23 & 0xff) - 112) << 10 | (word >> 13 & 0x3ff);
  };
  return half(0) | half(1) << 16;
}

using WgmmaKernel = void (*)(const uint32_t*, uint64_t, uint64_t, int, uint32_t*);

inline void add_wgmma_case(const char* name, WgmmaKernel kernel, WgmmaCase c) {
  add(name, [=](Result& result) {
    const bool real = std::string(c.data) == "real";
    std::vector<uint32_t> image(kWgmmaImageWords);
    for (uint32_t i = 0; i < kWgmmaImageWords; ++i) {
      image[i] = operand_word(i < kImageWordsA ? c.a : c.b, real, i);
    }
    const uint64_t descriptor =
        uint64_t{c.layout} << 62 | uint64_t{c.stride >> 4} << 32 | uint64_t{c.lead} << 16;
    const uint32_t words = 128 * c.registers, bytes = kWgmmaImageWords * 4;
    Buffer in(bytes), out(words * 4);
    cudaMemcpy(in.get(), image.data(), bytes, cudaMemcpyHostToDevice);
    cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                         cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    kernel<<<1, 128, bytes>>>(in.get<uint32_t>(), descriptor, descriptor, c.scale_d,
                              out.get<uint32_t>());
    fetch(result, out.get(), words);
  });
}

}  // namespace probe
