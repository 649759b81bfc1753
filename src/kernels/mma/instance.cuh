// SPDX-License-Identifier: Apache-2.0
//
// The kernels of one configuration as a value: what the host twin launches.
#pragma once

#include "kernels/mma/instances.hpp"
#include "kernels/mma/kernel.cuh"

namespace convoy::mma {

/// Instantiate the kernels for `kConfig` and describe them; with `kLists` that for any input too.
template <Config kConfig, bool kLists>
Instance make_instance(Gpus gpus = Gpus::any) {
  using Kernel = void (*)(Params);
  const auto address = [](Kernel kernel) { return reinterpret_cast<const void*>(kernel); };
  constexpr Epilogues kWalked = kConfig.has_linear() ? Epilogues::others : Epilogues::all;
  static_assert(kLists || kConfig.can_walk(),
                "mma::make_instance: what does not walk its taps lists them");
  Instance instance{.config = kConfig, .gpus = gpus};
  if constexpr (kLists) {
    instance.listing = address(&conv_fprop_kernel<Packed<kConfig>, List, Epilogues::all>);
  }
  if constexpr (kConfig.can_walk()) {
    instance.walking = address(&conv_fprop_kernel<Packed<kConfig>, Walk, kWalked>);
  }
  if constexpr (kConfig.has_linear()) {
    instance.linear = address(&conv_fprop_kernel<Packed<kConfig>, Walk, Epilogues::linear>);
    instance.rows = address(&conv_fprop_kernel<Packed<kConfig>, Rows, Epilogues::linear>);
  }
  return instance;
}

}  // namespace convoy::mma
