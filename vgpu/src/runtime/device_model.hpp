// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "exec/launch.hpp"
#include "runtime/options.hpp"

namespace vgpu::runtime {

/// The GPU that programs see: its numbers and its limits.
struct DeviceModel {
  uint32_t arch = 100;    ///< compute capability, ten times: 80 to 120
  exec::DeviceSpec spec;  ///< what exec needs
  cudaDeviceProp properties{};
  uint64_t memory_bytes = 0;
  uint32_t max_blocks_per_sm = 32;
  uint32_t max_warps_per_sm = 64;
  uint32_t shared_per_sm = 0;     ///< bytes
  uint32_t reserved_shared = 0;   ///< bytes a block, on top of what it asks for
  uint32_t portable_cluster = 8;  ///< largest cluster without the non-portable opt-in
  uint32_t max_cluster = 16;      ///< 1: no clusters
  int clock_khz = 0, memory_clock_khz = 0;
};

/// The GPUs that there are models of: "a100, rtx3090, ...".
std::string known_gpus();
bool is_known_gpu(const std::string& gpu);

/// The model of options.gpu, a known one.
DeviceModel make_device_model(const Options& options);

/// A cudaDevAttr value; false for an attribute that is not modelled.
bool device_attribute(const DeviceModel& device, cudaDeviceAttr attribute, int& value);

}  // namespace vgpu::runtime
