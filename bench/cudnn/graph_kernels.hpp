// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <vector>

namespace convoy::bench {

/// A kernel of a captured graph.
struct KernelLaunch {
  std::string name;  // mangled, as the library has it
  dim3 grid;
  unsigned threads = 0;  // of a CTA
};

/// The kernels that `enqueue` launches: it is captured, not run. Throws what `enqueue` throws;
/// Error{launch_failure} where a capture fails.
std::vector<KernelLaunch> kernel_launches(const std::function<void(cudaStream_t)>& enqueue);

}  // namespace convoy::bench
