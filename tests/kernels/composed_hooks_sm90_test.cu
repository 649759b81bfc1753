// SPDX-License-Identifier: Apache-2.0
#include "convoy/device/sm90/conv3d_composed.cuh"

namespace {

struct Arch {
  static constexpr int kMajor = 9;
  static constexpr convoy::sm90::Config kConfig = convoy::sm90::Default<__nv_bfloat16>;
  static auto qslice(auto& device, const auto& shape, const auto& op, convoy::FilterLayout layout) {
    return convoy::sm90::qslice_conv3d<kConfig>(
        device.out(), device.read(device.activation), device.read(device.cache),
        device.read(device.filter), shape, device.workspace.data(), op, nullptr, layout);
  }
  static void im2col_matmul(auto& device, const auto& shape, const auto& op, std::size_t budget) {
    convoy::sm90::im2col_matmul_conv2d<kConfig>(device.out(), device.read(device.activation),
                                                device.read(device.filter), shape,
                                                device.workspace.data(), op, nullptr, budget);
  }
};

}  // namespace

#define CONVOY_SUITE Sm90ComposedHooks
#include "composed_hooks.hpp"
