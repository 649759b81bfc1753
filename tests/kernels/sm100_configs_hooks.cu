// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm100/instance.cuh"
#include "sm100_configs.hpp"

namespace convoy::sm100 {
namespace {

using Bf16 = Conv2dConfig<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16>;

constexpr Bf16 small_tiles(bool on_registers) {
  Bf16 config = Bf16::default_bf16_1sm();
  config.block_tile_shape = {128, 64, 64};
  config.mma_shape = {128, 64, 16};
  config.register_based_epilogue = on_registers;
  return config;
}

constexpr Bf16 kRegisters = small_tiles(true);
constexpr Bf16 kStaged = small_tiles(false);

}  // namespace

Instance kernel_1sm_1x1();
Instance kernel_1sm_1x2();
Instance kernel_1sm_2x1();
Instance kernel_1sm_4x1();
Instance kernel_1sm_2x2();
Instance kernel_1sm_4x2();
Instance kernel_2sm_2x1();
Instance kernel_2sm_2x2();
Instance kernel_2sm_4x1();
Instance kernel_2sm_4x2();
Instance kernel_split_8();
Instance kernel_split_pairs();
Instance kernel_halo_1sm();
Instance kernel_halo_2sm();
Instance kernel_resident_1sm();
Instance kernel_resident_2sm();

const std::vector<TestKernel>& test_kernels() {
  static const std::vector<TestKernel> kernels = {
      {"default_bf16: a CTA pair", kernel_2sm_2x1},
      {"default_bf16_1sm: no cluster", kernel_1sm_1x1},
      {"activation multicast, 64-byte swizzle, k groups, bands, four accumulators", kernel_1sm_1x2},
      {"activation and filter multicast", kernel_1sm_2x2},
      {"fp32 output, cluster of 8, single accumulator and launch-control stage", kernel_1sm_4x2},
      {"pairs of 64 rows, activation multicast", kernel_2sm_2x2},
      {"fp16, filter multicast between pairs, 64-byte swizzle, k groups of 4", kernel_2sm_4x1},
      {"fp32 output, pairs in a cluster of 8, both multicasts", kernel_2sm_4x2},
      {"reduction split 8 ways: 16 rows a CTA, 8 filters a thread", kernel_split_8},
      {"reduction split between two pairs, fp32 output, one accumulator", kernel_split_pairs},
      {"filter multicast between two CTAs", kernel_1sm_2x1},
      {"fp16, fp32 output, filter multicast between four CTAs, 64-byte swizzle", kernel_1sm_4x1},
      {"patches with their border, one stage of them, fp32 output", kernel_halo_1sm},
      {"patches with their border, of a pair; three source stages", kernel_halo_2sm},
      {"resident filters, two activation stages, one source stage", kernel_resident_1sm},
      {"resident filters of a pair", kernel_resident_2sm},
  };
  return kernels;
}

Instance hook_kernel(bool on_registers) {
  return on_registers ? make_instance<kRegisters, CoordinateOp>()
                      : make_instance<kStaged, CoordinateOp>();
}
Instance store_hook_kernel(bool on_registers) {
  return on_registers ? make_instance<kRegisters, NoComputeOp, CountingStore>()
                      : make_instance<kStaged, NoComputeOp, CountingStore>();
}

}  // namespace convoy::sm100
