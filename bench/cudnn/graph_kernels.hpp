// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <vector>

namespace convoy::bench {

/// Names of the kernels that `enqueue` launches, mangled as the library has them: it is captured,
/// not run. Throws what `enqueue` throws; Error{launch_failure} where a capture fails.
std::vector<std::string> kernel_names(const std::function<void(cudaStream_t)>& enqueue);

}  // namespace convoy::bench
