// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm100/instance.cuh"
#include "sm100_configs.hpp"

namespace convoy::sm100 {
namespace {

using Bf16 = Conv2dConfig<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16>;
using Fp16 = Conv2dConfig<__half, __half, __half>;
using Bf16ToFp32 = Conv2dConfig<__nv_bfloat16, __nv_bfloat16, float>;

template <typename Config>
constexpr Config two_sm(int m, int n, int k, GemmShape cluster) {
  Config config;
  config.block_tile_shape = {m / 2, n / 2, k};
  config.mma_shape = {m, n, 16};
  config.cta_group = 2;
  config.cluster_shape = cluster;
  config.output_tile_shape.m = m / 2;
  return config;
}

constexpr Bf16 kPair2x1 = Bf16::default_bf16();
// 64 rows a CTA: tensor memory split by columns.
constexpr Bf16 kPair2x2 = two_sm<Bf16>(128, 128, 64, {2, 2, 1});
constexpr Fp16 kPair4x1 = [] {
  Fp16 config = two_sm<Fp16>(256, 128, 32, {4, 1, 1});
  config.a_swizzle = config.b_swizzle = 64;
  config.k_group_size = 4;
  return config;
}();
constexpr Bf16ToFp32 kPair4x2 = two_sm<Bf16ToFp32>(256, 64, 64, {4, 2, 1});

}  // namespace

Instance kernel_2sm_2x1() {
  return make_instance<kPair2x1>();
}
Instance kernel_2sm_2x2() {
  return make_instance<kPair2x2>();
}
Instance kernel_2sm_4x1() {
  return make_instance<kPair4x1>();
}
Instance kernel_2sm_4x2() {
  return make_instance<kPair4x2>();
}

}  // namespace convoy::sm100
