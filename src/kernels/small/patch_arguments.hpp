// SPDX-License-Identifier: Apache-2.0
//
// The arguments of kernels that stage patches of the input in shared memory.
#pragma once

#include "kernels/common/device_geometry.cuh"
#include "kernels/common/output.hpp"

namespace convoy::small {

/// What a kernel is launched with: `Layout` is what its host works out.
template <typename Layout>
struct PatchArguments {
  const void* activation;
  const void* cache;
  const void* filter;
  DeviceGeometry geometry;
  ConvOutput output;
  Layout layout;
};

}  // namespace convoy::small
