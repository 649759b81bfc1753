// SPDX-License-Identifier: Apache-2.0
//
// The kernels of one configuration and one pair of ops as a value: what the host twin launches.
#pragma once

#include "kernels/sm90/instances.hpp"
#include "kernels/sm90/kernel.cuh"

namespace convoy::sm90 {

/// Which entry points an instance has.
enum class Entries {
  all,
  usual,    ///< Of the usual epilogues (is_usual) alone: it refuses others.
  general,  ///< One, which runs every epilogue, slower.
};

/// Instantiate the entry points for `kConfig` and describe them.
template <Config kConfig, typename ComputeOp = NoComputeOp, typename StoreOp = NoStoreOp,
          Entries kEntries = Entries::all>
Instance make_instance() {
  static_assert(kEntries != Entries::usual || (!ComputeOp::kEnabled && !StoreOp::kEnabled),
                "sm90::make_instance: ops take the general entry point");
  Instance instance{.config = kConfig, .shared_bytes = kConfig.shared_bytes()};
  const auto add = [&]<EpiloguePath kPath>() {
    instance.kernels[static_cast<int>(kPath)] = reinterpret_cast<const void*>(
        &conv_fprop_kernel<Packed<kConfig>, kPath, ComputeOp, StoreOp>);
  };
  if constexpr (kEntries != Entries::usual) add.template operator()<EpiloguePath::general>();
  if constexpr (kEntries == Entries::all && !ComputeOp::kEnabled && !StoreOp::kEnabled) {
    add.template operator()<EpiloguePath::curved>();
  }
  if constexpr (kEntries != Entries::general && !ComputeOp::kEnabled && !StoreOp::kEnabled) {
    add.template operator()<EpiloguePath::plain>();
    add.template operator()<EpiloguePath::fused>();
    if constexpr (kConfig.takes_statistics()) add.template operator()<EpiloguePath::statistics>();
  }
  return instance;
}

}  // namespace convoy::sm90
