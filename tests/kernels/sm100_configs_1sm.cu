// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm100/instance.cuh"
#include "sm100_configs.hpp"

namespace convoy::sm100 {
namespace {

using Bf16 = Conv2dConfig<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16>;
using Bf16ToFp32 = Conv2dConfig<__nv_bfloat16, __nv_bfloat16, float>;
using Fp16ToFp32 = Conv2dConfig<__half, __half, float>;

template <typename Config>
constexpr Config one_sm(int n, int k, GemmShape cluster) {
  Config config = Config::default_bf16_1sm();
  config.block_tile_shape = {128, n, k};
  config.mma_shape = {128, n, 16};
  config.cluster_shape = cluster;
  return config;
}

constexpr Bf16 k1x1 = Bf16::default_bf16_1sm();
// 64-byte swizzle, two stages a barrier, bands of two M tiles, four accumulators, 32-byte swizzle
// of the output.
constexpr Bf16 k1x2 = [] {
  Bf16 config = one_sm<Bf16>(64, 32, {1, 2, 1});
  config.a_swizzle = config.b_swizzle = 64;
  config.output_tile_shape.n = 16;
  config.c_swizzle = 32;
  config.k_group_size = 2;
  config.block_swizzle_size = 2;
  config.num_accum_pipeline_stages = 4;
  config.num_pipeline_stages = 6;
  return config;
}();
constexpr Bf16 k2x1 = one_sm<Bf16>(64, 64, {2, 1, 1});
// Eight filters a slice of the multicast, 64-byte swizzle.
constexpr Fp16ToFp32 k4x1 = [] {
  Fp16ToFp32 config = one_sm<Fp16ToFp32>(32, 64, {4, 1, 1});
  config.a_swizzle = config.b_swizzle = 64;
  return config;
}();
constexpr Bf16 k2x2 = one_sm<Bf16>(64, 64, {2, 2, 1});
// fp32 output, one accumulator, one launch-control stage, three output tiles.
constexpr Bf16ToFp32 k4x2 = [] {
  Bf16ToFp32 config = one_sm<Bf16ToFp32>(32, 64, {4, 2, 1});
  config.num_accum_pipeline_stages = 1;
  config.num_clc_pipeline_stages = 1;
  config.num_output_stages = 3;
  return config;
}();

}  // namespace

Instance kernel_1sm_1x1() {
  return make_instance<k1x1>();
}
Instance kernel_1sm_1x2() {
  return make_instance<k1x2>();
}
Instance kernel_1sm_2x1() {
  return make_instance<k2x1>();
}
Instance kernel_1sm_4x1() {
  return make_instance<k4x1>();
}
Instance kernel_1sm_2x2() {
  return make_instance<k2x2>();
}
Instance kernel_1sm_4x2() {
  return make_instance<k4x2>();
}

}  // namespace convoy::sm100
