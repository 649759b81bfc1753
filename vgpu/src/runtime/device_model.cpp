// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_model.hpp"

#include <cstdio>
#include <cstring>

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
  p.accessPolicyMaxWindowSize = 134213632;
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
  p.memoryBusWidth = 6144;
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

}  // namespace

DeviceModel make_device_model(const Options& options) {
  DeviceModel device;
  set_common(device.properties);
  const bool h200 = options.gpu == "h200";
  if (h200) {
    set_h200(device);
  } else {
    set_b200(device);
  }
  cudaDeviceProp& p = device.properties;
  std::snprintf(p.name, sizeof p.name, "Virtual NVIDIA %s", h200 ? "H200" : "B200");
  std::memcpy(p.uuid.bytes, "virtual-gpu-0000", sizeof p.uuid.bytes);
  if (options.sm_count != 0) p.multiProcessorCount = static_cast<int>(options.sm_count);

  device.memory_bytes = p.totalGlobalMem;
  device.shared_per_sm = static_cast<uint32_t>(p.sharedMemPerMultiprocessor);
  device.reserved_shared = static_cast<uint32_t>(p.reservedSharedMemPerBlock);
  device.spec.name = h200 ? "H200" : "B200";
  device.spec.compute_major = static_cast<uint32_t>(p.major);
  device.spec.compute_minor = static_cast<uint32_t>(p.minor);
  device.spec.sm_count = static_cast<uint32_t>(p.multiProcessorCount);
  device.spec.max_shared_per_block = static_cast<uint32_t>(p.sharedMemPerBlockOptin);
  device.spec.max_threads_per_block = static_cast<uint32_t>(p.maxThreadsPerBlock);
  device.spec.max_cluster_size = device.max_cluster;
  return device;
}

bool device_attribute(const DeviceModel& device, cudaDeviceAttr attribute, int& value) {
  const cudaDeviceProp& p = device.properties;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      value = p.maxThreadsPerBlock;
      return true;
    case cudaDevAttrMaxBlockDimX:
      value = p.maxThreadsDim[0];
      return true;
    case cudaDevAttrMaxBlockDimY:
      value = p.maxThreadsDim[1];
      return true;
    case cudaDevAttrMaxBlockDimZ:
      value = p.maxThreadsDim[2];
      return true;
    case cudaDevAttrMaxGridDimX:
      value = p.maxGridSize[0];
      return true;
    case cudaDevAttrMaxGridDimY:
      value = p.maxGridSize[1];
      return true;
    case cudaDevAttrMaxGridDimZ:
      value = p.maxGridSize[2];
      return true;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      value = int(p.sharedMemPerBlock);
      return true;
    case cudaDevAttrTotalConstantMemory:
      value = int(p.totalConstMem);
      return true;
    case cudaDevAttrWarpSize:
      value = p.warpSize;
      return true;
    case cudaDevAttrMaxPitch:
      value = int(p.memPitch);
      return true;
    case cudaDevAttrMaxRegistersPerBlock:
      value = p.regsPerBlock;
      return true;
    case cudaDevAttrClockRate:
      value = device.arch >= 100 ? 1965000 : 1980000;
      return true;
    case cudaDevAttrTextureAlignment:
      value = int(p.textureAlignment);
      return true;
    case cudaDevAttrMultiProcessorCount:
      value = p.multiProcessorCount;
      return true;
    case cudaDevAttrKernelExecTimeout:
      value = 0;
      return true;
    case cudaDevAttrIntegrated:
      value = p.integrated;
      return true;
    case cudaDevAttrCanMapHostMemory:
      value = p.canMapHostMemory;
      return true;
    case cudaDevAttrComputeMode:
      value = cudaComputeModeDefault;
      return true;
    case cudaDevAttrSurfaceAlignment:
      value = int(p.surfaceAlignment);
      return true;
    case cudaDevAttrConcurrentKernels:
      value = p.concurrentKernels;
      return true;
    case cudaDevAttrEccEnabled:
      value = p.ECCEnabled;
      return true;
    case cudaDevAttrPciBusId:
      value = p.pciBusID;
      return true;
    case cudaDevAttrPciDeviceId:
      value = p.pciDeviceID;
      return true;
    case cudaDevAttrPciDomainId:
      value = p.pciDomainID;
      return true;
    case cudaDevAttrTccDriver:
      value = p.tccDriver;
      return true;
    case cudaDevAttrMemoryClockRate:
      value = device.arch >= 100 ? 3996000 : 3201000;
      return true;
    case cudaDevAttrGlobalMemoryBusWidth:
      value = p.memoryBusWidth;
      return true;
    case cudaDevAttrL2CacheSize:
      value = p.l2CacheSize;
      return true;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      value = p.maxThreadsPerMultiProcessor;
      return true;
    case cudaDevAttrAsyncEngineCount:
      value = p.asyncEngineCount;
      return true;
    case cudaDevAttrUnifiedAddressing:
      value = p.unifiedAddressing;
      return true;
    case cudaDevAttrComputeCapabilityMajor:
      value = p.major;
      return true;
    case cudaDevAttrComputeCapabilityMinor:
      value = p.minor;
      return true;
    case cudaDevAttrStreamPrioritiesSupported:
      value = p.streamPrioritiesSupported;
      return true;
    case cudaDevAttrGlobalL1CacheSupported:
      value = p.globalL1CacheSupported;
      return true;
    case cudaDevAttrLocalL1CacheSupported:
      value = p.localL1CacheSupported;
      return true;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      value = int(p.sharedMemPerMultiprocessor);
      return true;
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      value = p.regsPerMultiprocessor;
      return true;
    case cudaDevAttrManagedMemory:
      value = p.managedMemory;
      return true;
    case cudaDevAttrIsMultiGpuBoard:
      value = p.isMultiGpuBoard;
      return true;
    case cudaDevAttrHostNativeAtomicSupported:
      value = p.hostNativeAtomicSupported;
      return true;
    case cudaDevAttrSingleToDoublePrecisionPerfRatio:
      value = 2;
      return true;
    case cudaDevAttrPageableMemoryAccess:
      value = p.pageableMemoryAccess;
      return true;
    case cudaDevAttrConcurrentManagedAccess:
      value = p.concurrentManagedAccess;
      return true;
    case cudaDevAttrComputePreemptionSupported:
      value = p.computePreemptionSupported;
      return true;
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
      value = p.canUseHostPointerForRegisteredMem;
      return true;
    case cudaDevAttrCooperativeLaunch:
      value = p.cooperativeLaunch;
      return true;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      value = int(p.sharedMemPerBlockOptin);
      return true;
    case cudaDevAttrHostRegisterSupported:
      value = p.hostRegisterSupported;
      return true;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      value = p.maxBlocksPerMultiProcessor;
      return true;
    case cudaDevAttrMaxPersistingL2CacheSize:
      value = p.persistingL2CacheMaxSize;
      return true;
    case cudaDevAttrMaxAccessPolicyWindowSize:
      value = p.accessPolicyMaxWindowSize;
      return true;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      value = int(p.reservedSharedMemPerBlock);
      return true;
    case cudaDevAttrMemoryPoolsSupported:
      value = p.memoryPoolsSupported;
      return true;
    case cudaDevAttrClusterLaunch:
      value = p.clusterLaunch;
      return true;
    default:
      return false;
  }
}

}  // namespace vgpu::runtime
