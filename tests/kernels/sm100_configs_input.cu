// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm100/instance.cuh"
#include "sm100_configs.hpp"

namespace convoy::sm100 {
namespace {

using Bf16 = Conv2dConfig<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16>;
using Fp16ToFp32 = Conv2dConfig<__half, __half, float>;

// One patch at a time, rings that wrap within a tile, room for a 5x5 filter's border.
constexpr Fp16ToFp32 kHalo1 = [] {
  Fp16ToFp32 config = Fp16ToFp32::default_bf16_1sm().with_halo();
  config.block_tile_shape.n = config.mma_shape.n = 64;
  config.num_act_stages = 1;
  config.num_pipeline_stages = 3;
  config.halo_pixels = 12 * 20;
  return config;
}();
constexpr Bf16 kHalo2 = [] {
  Bf16 config = Bf16::default_bf16().with_halo();
  config.block_tile_shape.n = 48;
  config.mma_shape.n = 96;
  config.num_output_stages = 3;
  config.num_source_stages = 3;
  config.block_swizzle_size = 2;
  return config;
}();
constexpr Bf16 kResident1 = [] {
  Bf16 config = Bf16::default_bf16_1sm().with_resident_filters(2);
  config.block_tile_shape.n = config.mma_shape.n = 32;
  config.num_source_stages = 1;
  return config;
}();
constexpr Bf16 kResident2 = Bf16::default_bf16().with_resident_filters(3);

}  // namespace

Instance kernel_halo_1sm() {
  return make_instance<kHalo1>();
}
Instance kernel_halo_2sm() {
  return make_instance<kHalo2>();
}
Instance kernel_resident_1sm() {
  return make_instance<kResident1>();
}
Instance kernel_resident_2sm() {
  return make_instance<kResident2>();
}

}  // namespace convoy::sm100
