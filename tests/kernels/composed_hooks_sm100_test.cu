// SPDX-License-Identifier: Apache-2.0
#include "convoy/device/sm100/conv3d_composed.cuh"

namespace {

struct Arch {
  static constexpr int kMajor = 10;
  static constexpr auto kConfig =
      convoy::Conv2dConfig<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16>::default_bf16_1sm();
  static auto qslice(auto& device, const auto& shape, const auto& op, convoy::FilterLayout layout) {
    return convoy::sm100::qslice_conv3d<kConfig>(
        device.out(), device.read(device.activation), device.read(device.cache),
        device.read(device.filter), shape, device.workspace.data(), op, nullptr, layout);
  }
  static void im2col_matmul(auto& device, const auto& shape, const auto& op, std::size_t budget) {
    convoy::sm100::im2col_matmul_conv2d<kConfig>(device.out(), device.read(device.activation),
                                                 device.read(device.filter), shape,
                                                 device.workspace.data(), op, nullptr, budget);
  }
};

}  // namespace

#define CONVOY_SUITE Sm100ComposedHooks
#include "composed_hooks.hpp"
