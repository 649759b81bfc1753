// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm100/instance.cuh"
#include "sm100_configs.hpp"

namespace convoy::sm100 {
namespace {

using Bf16 = Conv2dConfig<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16>;
using Bf16ToFp32 = Conv2dConfig<__nv_bfloat16, __nv_bfloat16, float>;

constexpr Bf16 kEight = [] {
  Bf16 config = Bf16::default_bf16_1sm().with_split_reduction(8);
  config.block_tile_shape = {128, 64, 64};
  config.mma_shape = {128, 64, 16};
  return config;
}();
// Pairs of CTAs, an output tile narrower than a thread's piece, 64-byte swizzle, k groups.
constexpr Bf16ToFp32 kPairs = [] {
  Bf16ToFp32 config = Bf16ToFp32::default_bf16().with_split_reduction(2);
  config.block_tile_shape = {128, 32, 32};
  config.mma_shape = {256, 64, 16};
  config.output_tile_shape.n = 16;
  config.c_swizzle = 64;
  config.a_swizzle = config.b_swizzle = 64;
  config.k_group_size = 2;
  config.num_pipeline_stages = 6;
  config.num_accum_pipeline_stages = 1;
  return config;
}();

}  // namespace

Instance kernel_split_8() {
  return make_instance<kEight>();
}
Instance kernel_split_pairs() {
  return make_instance<kPairs>();
}

}  // namespace convoy::sm100
