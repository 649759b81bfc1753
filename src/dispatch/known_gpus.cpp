// SPDX-License-Identifier: Apache-2.0
//
// Sources: what an H200 answers to cudaDeviceGetAttribute; NVIDIA's datasheets and white papers of
// the A100 SXM4, the GeForce RTX 3090, the L40S, the GeForce RTX 4090, the H100 SXM5, the B200 (of
// HGX) and the GeForce RTX 5090 for multiprocessors, L2 and memory; CUDA C++ Programming Guide,
// "Technical Specifications per Compute Capability", for shared memory.
#include "convoy/error.hpp"
#include "convoy/info.hpp"
#include "core/text.hpp"

namespace convoy {

const std::vector<KnownGpu>& known_gpus() {
  const auto gpu = [](const char* name, const char* full_name, int capability, int multiprocessors,
                      int shared_kib, int l2_mib, double memory_gbs) {
    return KnownGpu{name,
                    {.kind = Device::cuda,
                     .index = -1,
                     .name = full_name,
                     .compute_capability = capability,
                     .multiprocessors = multiprocessors,
                     .shared_memory = static_cast<std::size_t>(shared_kib) << 10,
                     .l2_bytes = static_cast<std::size_t>(l2_mib) << 20,
                     .memory_gbs = memory_gbs}};
  };
  static const std::vector<KnownGpu> all = {
      gpu("a100", "NVIDIA A100-SXM4-80GB", 80, 108, 163, 40, 2039),
      gpu("rtx3090", "NVIDIA GeForce RTX 3090", 86, 82, 99, 6, 936),
      gpu("l40s", "NVIDIA L40S", 89, 142, 99, 96, 864),
      gpu("rtx4090", "NVIDIA GeForce RTX 4090", 89, 128, 99, 72, 1008),
      gpu("h100", "NVIDIA H100 80GB HBM3", 90, 132, 227, 50, 3352),
      gpu("h200", "NVIDIA H200", 90, 132, 227, 60, 4814),
      gpu("b200", "NVIDIA B200", 100, 148, 227, 126, 8000),
      gpu("rtx5090", "NVIDIA GeForce RTX 5090", 120, 170, 99, 96, 1792),
  };
  return all;
}

const DeviceInfo& known_gpu(const std::string& name) {
  std::string names;
  for (const KnownGpu& gpu : known_gpus()) {
    if (gpu.name == name) return gpu.device;
    names += (names.empty() ? "" : ", ") + gpu.name;
  }
  throw_invalid("GPU '", name.substr(0, 40), "' is not known; legal: ", names);
}

}  // namespace convoy
