// SPDX-License-Identifier: Apache-2.0
//
// Configurations that must not compile, one for each rule: CONVOY_CASE picks the line that breaks
// it; without one this is legal. tests/kernels/CMakeLists.txt says which text each must give.
#include "kernels/sm100/config.hpp"

namespace {

using bf16 = __nv_bfloat16;
#ifndef CONVOY_TYPES
#define CONVOY_TYPES bf16, bf16, bf16
#endif
#ifndef CONVOY_CASE
#define CONVOY_CASE (void)config
#endif

constexpr auto kConfig = [] {
  auto config = convoy::Conv2dConfig<CONVOY_TYPES>::default_bf16();
  CONVOY_CASE;
  return config;
}();

static_assert(convoy::sm100::unpack(convoy::sm100::validated_pack<kConfig>()) ==
              static_cast<const convoy::sm100::Config&>(kConfig));

}  // namespace
