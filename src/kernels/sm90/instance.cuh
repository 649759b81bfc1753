// SPDX-License-Identifier: Apache-2.0
//
// The kernels of one configuration and one pair of ops as a value: what the host twin launches.
#pragma once

#include "kernels/sm90/instances.hpp"
#include "kernels/sm90/kernel.cuh"

namespace convoy::sm90 {

/// Which entry points an instance has; it refuses epilogues that take others (path_of).
enum class Entries {
  all,
  curved,    ///< Without the general one.
  uncurved,  ///< Without that of EpiloguePath::curved, which fp32 outputs never have.
  usual,     ///< Without either.
  general,   ///< One, which runs every epilogue, slower.
};

/// The kernel of one path, as a launch takes it.
template <Config kConfig, EpiloguePath kPath, typename ComputeOp, typename StoreOp>
const void* entry_point() {
  return reinterpret_cast<const void*>(
      &conv_fprop_kernel<Packed<kConfig>, kPath, ComputeOp, StoreOp>);
}

/// Instantiate the entry points for `kConfig` and describe them.
template <Config kConfig, typename ComputeOp = NoComputeOp, typename StoreOp = NoStoreOp,
          Entries kEntries = Entries::all>
Instance make_instance() {
  constexpr bool kHasOps = ComputeOp::kEnabled || StoreOp::kEnabled;
  constexpr bool kGeneral = kEntries != Entries::usual && kEntries != Entries::curved;
  constexpr bool kCurved = kEntries == Entries::all || kEntries == Entries::curved;
  static_assert(kGeneral || !kHasOps, "sm90::make_instance: ops take the general entry point");
  static_assert(
      !kGeneral || kConfig.takes_general_path(),
      "sm90::make_instance: tiles of MmaRows::filters, and of filters that are no multiple "
      "of 32, have no general entry point; legal: Entries::curved or usual");
  Instance instance{.config = kConfig, .shared_bytes = kConfig.shared_bytes()};
  const auto add = [&]<EpiloguePath kPath>() {
    instance.kernels[static_cast<int>(kPath)] = entry_point<kConfig, kPath, ComputeOp, StoreOp>();
  };
  const auto add_matrix = [&]<EpiloguePath kPath>() {
    auto& kernels = kConfig.is_resident() ? instance.kernels : instance.matrix_kernels;
    kernels[static_cast<int>(kPath)] =
        entry_point<of_matrices(kConfig), kPath, ComputeOp, StoreOp>();
  };
  if constexpr (kGeneral) add.template operator()<EpiloguePath::general>();
  static_assert(kEntries != Entries::curved || kConfig.out != DType::fp32,
                "sm90::make_instance: curved activations of fp32 outputs take the general entry "
                "point; legal: Entries::all or usual");
  if constexpr (kCurved && !kHasOps && kConfig.out != DType::fp32) {
    add.template operator()<EpiloguePath::curved>();
  }
  if constexpr (kEntries != Entries::general && !kHasOps) {
    // NOTE: a split tile is stored once for all of its CTAs: by `fused` no slower.
    if constexpr (!kConfig.splits_k()) add.template operator()<EpiloguePath::plain>();
    add.template operator()<EpiloguePath::fused>();
    if constexpr (kConfig.takes_statistics()) add.template operator()<EpiloguePath::statistics>();
    if constexpr (kConfig.takes_linear_path())
      add_matrix.template operator()<EpiloguePath::linear>();
    if constexpr (kConfig.takes_matrices_apart()) {
      if constexpr (!kConfig.splits_k()) add_matrix.template operator()<EpiloguePath::plain>();
      add_matrix.template operator()<EpiloguePath::fused>();
      if constexpr (kCurved) add_matrix.template operator()<EpiloguePath::curved>();
    }
  }
  return instance;
}

}  // namespace convoy::sm90
