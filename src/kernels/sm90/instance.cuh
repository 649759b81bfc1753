// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/instances.hpp"
#include "kernels/sm90/kernel.cuh"

namespace convoy::sm90 {

template <typename T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<__nv_bfloat16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<__half>() {
  return DType::fp16;
}
template <>
constexpr DType dtype_of<float>() {
  return DType::fp32;
}

/// Instantiate the kernels for Config and describe them.
template <typename Config, typename ComputeOp = NoComputeOp, typename StoreOp = NoStoreOp>
FpropInstance describe_instance() {
  FpropInstance instance{.in = dtype_of<typename Config::In>(),
                         .out = dtype_of<typename Config::Out>(),
                         .block_m = Config::BLOCK_M,
                         .block_n = Config::BLOCK_N,
                         .consumers = Config::kConsumers,
                         .cluster = Config::kCluster,
                         .cluster_n = Config::kClusterN,
                         .halo = Config::kHalo,
                         .resident = Config::kResident,
                         .split = Config::kSplit,
                         .pingpong = Config::kPingPong,
                         .swapped = Config::kSwapped,
                         .stages = Config::kStages,
                         .act_stages = Config::kActStages,
                         .chunk_n = Config::kChunkN,
                         .chunk_rows = Config::kChunkRows,
                         .halo_pixels = Config::kHaloPixels,
                         .threads = Config::kThreads,
                         .shared_bytes = Config::kSharedBytes};
  const auto add = [&]<EpiloguePath kPath>() {
    instance.kernels[static_cast<int>(kPath)] =
        reinterpret_cast<const void*>(&conv_fprop_sm90<Config, kPath, ComputeOp, StoreOp>);
  };
  add.template operator()<EpiloguePath::general>();
  if constexpr (!ComputeOp::kEnabled && !StoreOp::kEnabled) {
    add.template operator()<EpiloguePath::plain>();
    add.template operator()<EpiloguePath::fused>();
    add.template operator()<EpiloguePath::curved>();
  }
  return instance;
}

}  // namespace convoy::sm90
