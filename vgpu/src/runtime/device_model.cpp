// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_model.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>

namespace vgpu::runtime {
namespace {

// What all have alike.
void set_common(cudaDeviceProp& p) {
  p.sharedMemPerBlock = 49152;
  p.regsPerBlock = 65536;
  p.regsPerMultiprocessor = 65536;
  p.warpSize = 32;
  p.memPitch = 2147483647;
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 2147483647;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.totalConstMem = 65536;
  p.textureAlignment = 512;
  p.texturePitchAlignment = 32;
  p.canMapHostMemory = 1;
  p.surfaceAlignment = 512;
  p.concurrentKernels = 1;
  p.ECCEnabled = 1;
  p.asyncEngineCount = 3;
  p.unifiedAddressing = 1;
  p.streamPrioritiesSupported = 1;
  p.globalL1CacheSupported = 1;
  p.localL1CacheSupported = 1;
  p.reservedSharedMemPerBlock = 1024;
  p.managedMemory = 1;
  p.hostNativeAtomicSupported = 0;
  p.concurrentManagedAccess = 1;
  p.computePreemptionSupported = 1;
  p.canUseHostPointerForRegisteredMem = 1;
  p.cooperativeLaunch = 1;
  p.accessPolicyMaxWindowSize = 134217728;
  p.hostRegisterSupported = 1;
  p.memoryPoolsSupported = 1;
  p.unifiedFunctionPointers = 1;
}

// What tells one GPU from another.
struct Chip {
  const char* gpu;   // As --gpu names it,
  const char* name;  // and as it names itself.
  uint32_t arch;
  int sms;
  int shared_kib;       // Of a multiprocessor; a block gets one less.
  int threads, blocks;  // That a multiprocessor holds.
  int max_cluster;      // 1: none.
  uint64_t memory_bytes;
  int memory_bus_bits, memory_khz, clock_khz;
  int l2_bytes, persisting_l2_bytes;
};

constexpr uint64_t kGiB = uint64_t{1} << 30;

// Sources: probe/h200.txt; CUDA C++ Programming Guide, "Compute Capabilities", for what follows
// from the compute capability; NVIDIA's datasheets and white papers of the chips for
// multiprocessors, L2 and memory.
// NOTE: 148 SMs and the L2 cache of a B200, and the memory, are assumed of the B300: none was
// asked.
// NOTE: three quarters of the L2 cache may be set aside for persisting accesses, as on the B200.
constexpr Chip kChips[] = {
    {"a100", "A100", 80, 108, 164, 2048, 32, 1, 80 * kGiB, 5120, 1593000, 1410000, 40 << 20,
     30 << 20},
    {"rtx3090", "GeForce RTX 3090", 86, 82, 100, 1536, 16, 1, 24 * kGiB, 384, 9751000, 1695000,
     6 << 20, 4718592},
    {"l40s", "L40S", 89, 142, 100, 1536, 24, 1, 48 * kGiB, 384, 9001000, 2520000, 96 << 20,
     69206016},
    {"rtx4090", "GeForce RTX 4090", 89, 128, 100, 1536, 24, 1, 24 * kGiB, 384, 10501000, 2520000,
     72 << 20, 54 << 20},
    {"h200", "H200", 90, 132, 228, 2048, 32, 16, 150109880320, 6016, 3201000, 1980000, 60 << 20,
     39321600},
    {"b200", "B200", 100, 148, 228, 2048, 32, 16, 191503400960, 8192, 3996000, 1965000, 126 << 20,
     82575360},
    {"b300", "B300", 103, 148, 228, 2048, 32, 16, uint64_t{275040} << 20, 8192, 3996000, 1965000,
     126 << 20, 82575360},
    {"rtx5090", "GeForce RTX 5090", 120, 170, 100, 1536, 24, 8, 32 * kGiB, 512, 14001000, 2407000,
     96 << 20, 69206016},
};

// What an H200 answers to attributes 1 to 147 (probe/h200.txt, "host attributes"), with the
// identity of the one that was asked (PCI address and ids) left out.
constexpr int kH200Attributes[] = {
    1024,       1024,    1024,    64,    2147483647, 65535,   65535,  49152,    65536,     32,
    2147483647, 65536,   1980000, 512,   1,          132,     0,      0,        1,         0,
    131072,     131072,  65536,   16384, 16384,      16384,   32768,  32768,    2048,      512,
    1,          1,       0,       0,     0,          3201000, 6016,   62914560, 2048,      3,
    1,          32768,   2048,    1,     32768,      32768,   8192,   8192,     32768,     0,
    32,         32768,   32768,   2046,  32768,      131072,  65536,  16384,    16384,     16384,
    32768,      2048,    32768,   32768, 2048,       32768,   32768,  2046,     268435456, 131072,
    65000,      2097120, 32768,   32768, 9,          0,       32768,  1,        1,         1,
    233472,     65536,   1,       0,     0,          0,       2,      0,        1,         1,
    1,          0,       0,       0,     1,          1,       232448, 0,        1,         0,
    0,          1,       1,       0,     0,          32,      1,      39321600, 134217728, 1,
    1024,       1,       1,       1,     1,          1,       1,      100,      9,         1,
    1,          1,       1,       1,     1,          4,       1,      1,        1,         0,
    -1,         0,       0,       0,     0,          0,       0,      0,        0,         0,
    1,          1,       0,       1,     1,          0,       0,
};

}  // namespace

std::string known_gpus() {
  std::string names;
  for (const Chip& chip : kChips) names += (names.empty() ? "" : ", ") + std::string(chip.gpu);
  return names;
}

bool is_known_gpu(const std::string& gpu) {
  return std::any_of(std::begin(kChips), std::end(kChips),
                     [&](const Chip& chip) { return gpu == chip.gpu; });
}

DeviceModel make_device_model(const Options& options) {
  const Chip& chip = *std::find_if(std::begin(kChips), std::end(kChips),
                                   [&](const Chip& c) { return options.gpu == c.gpu; });
  DeviceModel device;
  device.arch = chip.arch;
  device.max_blocks_per_sm = static_cast<uint32_t>(chip.blocks);
  device.max_warps_per_sm = static_cast<uint32_t>(chip.threads / 32);
  device.max_cluster = static_cast<uint32_t>(chip.max_cluster);
  device.portable_cluster = std::min(device.portable_cluster, device.max_cluster);
  device.clock_khz = chip.clock_khz;
  device.memory_clock_khz = chip.memory_khz;
  cudaDeviceProp& p = device.properties;
  set_common(p);
  p.major = static_cast<int>(chip.arch / 10);
  p.minor = static_cast<int>(chip.arch % 10);
  p.multiProcessorCount = chip.sms;
  p.sharedMemPerMultiprocessor = static_cast<size_t>(chip.shared_kib) * 1024;
  p.sharedMemPerBlockOptin = static_cast<size_t>(chip.shared_kib - 1) * 1024;
  p.maxThreadsPerMultiProcessor = chip.threads;
  p.maxBlocksPerMultiProcessor = chip.blocks;
  p.clusterLaunch = chip.max_cluster > 1 ? 1 : 0;
  p.totalGlobalMem = chip.memory_bytes;
  p.memoryBusWidth = chip.memory_bus_bits;
  p.l2CacheSize = chip.l2_bytes;
  p.persistingL2CacheMaxSize = chip.persisting_l2_bytes;
  std::snprintf(p.name, sizeof p.name, "Virtual NVIDIA %s", chip.name);
  std::memcpy(p.uuid.bytes, "virtual-gpu-0000", sizeof p.uuid.bytes);
  if (options.sm_count != 0) p.multiProcessorCount = static_cast<int>(options.sm_count);

  device.memory_bytes = p.totalGlobalMem;
  device.shared_per_sm = static_cast<uint32_t>(p.sharedMemPerMultiprocessor);
  device.reserved_shared = static_cast<uint32_t>(p.reservedSharedMemPerBlock);
  device.spec.name = chip.name;
  device.spec.compute_major = static_cast<uint32_t>(p.major);
  device.spec.compute_minor = static_cast<uint32_t>(p.minor);
  device.spec.sm_count = static_cast<uint32_t>(p.multiProcessorCount);
  device.spec.max_shared_per_block = static_cast<uint32_t>(p.sharedMemPerBlockOptin);
  device.spec.max_threads_per_block = static_cast<uint32_t>(p.maxThreadsPerBlock);
  device.spec.max_cluster_size = device.max_cluster;
  return device;
}

bool device_attribute(const DeviceModel& device, cudaDeviceAttr attribute, int& value) {
  const int index = static_cast<int>(attribute);
  if (index < 1 || index > static_cast<int>(std::size(kH200Attributes))) return false;
  const cudaDeviceProp& p = device.properties;
  switch (attribute) {
    // Where the GPUs differ, or an option changes the number.
    case cudaDevAttrClockRate:
      value = device.clock_khz;
      break;
    case cudaDevAttrMultiProcessorCount:
      value = p.multiProcessorCount;
      break;
    case cudaDevAttrMemoryClockRate:
      value = device.memory_clock_khz;
      break;
    case cudaDevAttrGlobalMemoryBusWidth:
      value = p.memoryBusWidth;
      break;
    case cudaDevAttrL2CacheSize:
      value = p.l2CacheSize;
      break;
    case cudaDevAttrMaxPersistingL2CacheSize:
      value = p.persistingL2CacheMaxSize;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      value = p.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      value = p.minor;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      value = p.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      value = p.maxBlocksPerMultiProcessor;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      value = static_cast<int>(p.sharedMemPerMultiprocessor);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      value = static_cast<int>(p.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrClusterLaunch:
      value = p.clusterLaunch;
      break;
    default:
      value = kH200Attributes[index - 1];
      break;
  }
  return true;
}

}  // namespace vgpu::runtime
