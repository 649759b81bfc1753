// SPDX-License-Identifier: Apache-2.0
//
// The kernel of one configuration as a value: what the host twin launches.
#pragma once

#include "kernels/mma/instances.hpp"
#include "kernels/mma/kernel.cuh"

namespace convoy::mma {

/// Instantiate the kernel for `kConfig` and describe it.
template <Config kConfig>
Instance make_instance() {
  return {.config = kConfig,
          .kernel = reinterpret_cast<const void*>(&conv_fprop_kernel<Packed<kConfig>>)};
}

}  // namespace convoy::mma
