// SPDX-License-Identifier: Apache-2.0
//
// The kernels of one configuration as a value: what the host twin launches.
#pragma once

#include "kernels/mma/instances.hpp"
#include "kernels/mma/kernel.cuh"

namespace convoy::mma {

/// Instantiate the kernel for `kConfig` and describe it.
template <Config kConfig>
Instance make_instance() {
  Instance instance{
      .config = kConfig,
      .listing = reinterpret_cast<const void*>(&conv_fprop_kernel<Packed<kConfig>, List>)};
  if constexpr (kConfig.can_walk()) {
    instance.walking = reinterpret_cast<const void*>(&conv_fprop_kernel<Packed<kConfig>, Walk>);
  }
  return instance;
}

}  // namespace convoy::mma
