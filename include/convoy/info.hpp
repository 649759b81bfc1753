// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "convoy/export.h"
#include "convoy/types.hpp"

namespace convoy {

// What this library holds, and what it sees of the machine.

/// A device that plans can be made for.
struct DeviceInfo {
  Device kind = Device::cpu;      ///< The CPU or a CUDA device.
  int index = -1;                 ///< CUDA device number.
  std::string name;               ///< "NVIDIA H200", "Intel(R) Xeon(R) ...".
  int compute_capability = 0;     ///< 90, 100; 0 on the CPU.
  int multiprocessors = 0;        ///< SMs, or CPU threads.
  std::size_t shared_memory = 0;  ///< Bytes a block may opt in to.
  std::size_t l2_bytes = 0;       ///< Of the L2 cache; 0 on the CPU.
  double memory_gbs = 0;          ///< GB/s of the device memory at most; 0 where that is not known.
};

/// This machine's processor.
CONVOY_API DeviceInfo cpu_device();

/// CUDA devices that can be used; 0 with the reason where there is none.
CONVOY_API int cuda_device_count(std::string* reason = nullptr);

/// CUDA device `index`, or the current one for -1. Nothing, with the reason, where there is no CUDA
/// device. Throws Error{invalid_argument} for an index past the last device.
CONVOY_API std::optional<DeviceInfo> cuda_device(int index, std::string* reason = nullptr);

/// A GPU that `candidates` answers for on any machine.
struct KnownGpu {
  std::string name;   ///< "h200"
  DeviceInfo device;  ///< What a plan would be told of it; index -1.
};

/// A100, RTX 3090, L40S, RTX 4090, H100 (SXM), H200, B200 and RTX 5090.
CONVOY_API const std::vector<KnownGpu>& known_gpus();

/// The one of them with this name, in lower case. Throws Error{invalid_argument} that lists them.
CONVOY_API const DeviceInfo& known_gpu(const std::string& name);

/// A group of kernels that was built.
struct BackendInfo {
  std::string name;    ///< "cpu (oneDNN 2.6.3)", "cuda sm_90a (Hopper)".
  std::string absent;  ///< Why it cannot be used here; empty where it can.
};

/// Every group of kernels that was built. Loads the CPU backend.
CONVOY_API std::vector<BackendInfo> backends();

/// A kernel of this library: a legal PlanOptions::kernel.
struct KernelInfo {
  std::string name;             ///< As `candidates` has it.
  Device device = Device::cpu;  ///< Where it runs.
};

/// Every kernel, those of CUDA first. `candidates` tells what each says of a problem.
CONVOY_API std::vector<KernelInfo> kernels();

}  // namespace convoy
