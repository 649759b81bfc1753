// SPDX-License-Identifier: Apache-2.0
//
// From a configuration and a pair of ops to an Instance: what the host twin launches.
#pragma once

#include <type_traits>

#include "kernels/sm100/instances.hpp"
#include "kernels/sm100/kernel.cuh"

namespace convoy::sm100 {

/// Instantiate both entry points for `kConfig`, a Conv2dConfig<...> value.
template <auto kConfig, typename ComputeOp = NoComputeOp, typename StoreOp = NoStoreOp>
Instance make_instance() {
  // NOTE: ops hear the type of an output from the compiler.
  constexpr bool kHasOps =
      !std::is_same_v<ComputeOp, NoComputeOp> || !std::is_same_v<StoreOp, NoStoreOp>;
  constexpr Config kCode = kHasOps ? Config{kConfig} : code_of(kConfig);
  constexpr PackedConfig kPacked = validated_pack<kCode>();
  using Run = Conv2dSmem<kPacked.tiles, kPacked.pipeline, false>;
  using RunWithResidual = Conv2dSmem<kPacked.tiles, kPacked.pipeline, true>;
  static_assert(
      sizeof(Run) <= kSharedMemoryBudget && sizeof(RunWithResidual) <= kSharedMemoryBudget,
      "Conv2dConfig: the tiles do not fit in 227 KiB of shared memory");
  Instance instance;
  instance.config = kConfig;
  instance.run = reinterpret_cast<const void*>(
      &conv2d_fprop_run<kPacked.tiles, kPacked.pipeline, ComputeOp, StoreOp>);
  instance.run_with_residual = reinterpret_cast<const void*>(
      &conv2d_fprop_run_with_residual<kPacked.tiles, kPacked.pipeline, ComputeOp, StoreOp>);
  instance.shared_bytes = sizeof(Run);
  instance.shared_bytes_with_residual = sizeof(RunWithResidual);
  instance.has_hooks = kHasOps;
  return instance;
}

}  // namespace convoy::sm100
