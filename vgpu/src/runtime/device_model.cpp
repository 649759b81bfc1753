// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_model.hpp"

#include <cstdio>
#include <cstring>
#include <iterator>

namespace vgpu::runtime {
namespace {

// What compute capabilities 9.0 and 10.0 share.
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
  p.maxThreadsPerMultiProcessor = 2048;
  p.streamPrioritiesSupported = 1;
  p.globalL1CacheSupported = 1;
  p.localL1CacheSupported = 1;
  p.sharedMemPerMultiprocessor = 228 * 1024;
  p.sharedMemPerBlockOptin = 227 * 1024;
  p.reservedSharedMemPerBlock = 1024;
  p.managedMemory = 1;
  p.hostNativeAtomicSupported = 0;
  p.concurrentManagedAccess = 1;
  p.computePreemptionSupported = 1;
  p.canUseHostPointerForRegisteredMem = 1;
  p.cooperativeLaunch = 1;
  p.maxBlocksPerMultiProcessor = 32;
  p.accessPolicyMaxWindowSize = 134217728;
  p.hostRegisterSupported = 1;
  p.memoryPoolsSupported = 1;
  p.clusterLaunch = 1;
  p.unifiedFunctionPointers = 1;
}

void set_h200(DeviceModel& device) {
  device.arch = 90;
  cudaDeviceProp& p = device.properties;
  p.major = 9;
  p.multiProcessorCount = 132;
  p.totalGlobalMem = 150109880320;
  p.memoryBusWidth = 6016;
  p.l2CacheSize = 60 << 20;
  p.persistingL2CacheMaxSize = 39321600;
}

void set_b200(DeviceModel& device) {
  device.arch = 100;
  cudaDeviceProp& p = device.properties;
  p.major = 10;
  p.multiProcessorCount = 148;
  p.totalGlobalMem = 191503400960;
  p.memoryBusWidth = 8192;
  p.l2CacheSize = 126 << 20;
  p.persistingL2CacheMaxSize = 82575360;
}

// Source of the compute capability and of the targets that run on it: PTX ISA, "PTX Module
// Directives: .target", and CUDA C++ Programming Guide, "Compute Capabilities".
// NOTE: 148 SMs and the L2 cache of a B200, and the memory, are assumed: no B300 was asked.
void set_b300(DeviceModel& device) {
  set_b200(device);
  device.arch = 103;
  device.properties.minor = 3;
  device.properties.totalGlobalMem = uint64_t{275040} << 20;
}

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

DeviceModel make_device_model(const Options& options) {
  DeviceModel device;
  set_common(device.properties);
  const char* name = "B200";
  if (options.gpu == "h200") {
    name = "H200";
    set_h200(device);
  } else if (options.gpu == "b300") {
    name = "B300";
    set_b300(device);
  } else {
    set_b200(device);
  }
  cudaDeviceProp& p = device.properties;
  std::snprintf(p.name, sizeof p.name, "Virtual NVIDIA %s", name);
  std::memcpy(p.uuid.bytes, "virtual-gpu-0000", sizeof p.uuid.bytes);
  if (options.sm_count != 0) p.multiProcessorCount = static_cast<int>(options.sm_count);

  device.memory_bytes = p.totalGlobalMem;
  device.shared_per_sm = static_cast<uint32_t>(p.sharedMemPerMultiprocessor);
  device.reserved_shared = static_cast<uint32_t>(p.reservedSharedMemPerBlock);
  device.spec.name = name;
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
    // Where the two GPUs differ, or an option changes the number.
    case cudaDevAttrClockRate:
      value = device.arch >= 100 ? 1965000 : 1980000;
      break;
    case cudaDevAttrMultiProcessorCount:
      value = p.multiProcessorCount;
      break;
    case cudaDevAttrMemoryClockRate:
      value = device.arch >= 100 ? 3996000 : 3201000;
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
    default:
      value = kH200Attributes[index - 1];
      break;
  }
  return true;
}

}  // namespace vgpu::runtime
