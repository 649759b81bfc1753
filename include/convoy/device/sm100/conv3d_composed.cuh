// SPDX-License-Identifier: Apache-2.0
//
// Q-slicing and im2col + matmul on Blackwell, with an epilogue of your own on 5-D coordinates
// (convoy/device/composed.cuh). Compiled as conv2d_fprop.cuh says.
#pragma once

#include "convoy/device/composed.cuh"
#include "convoy/device/sm100/conv2d_fprop.cuh"

namespace convoy::sm100 {

/// The configuration that Q-slices add into their accumulator with.
template <auto kConfig>
inline constexpr auto kSliceConfig = [] {
  auto config = Conv2dConfig<ActOf<kConfig>, FilterOf<kConfig>, float>::default_bf16();
  config.block_tile_shape = {128, 64, 64};
  config.mma_shape = {256, 128, 16};
  config.num_source_stages = 2;
  return config;
}();

namespace detail {

template <auto kConfig, typename Op>
void im2col_matmul(OutOf<kConfig>* output, const ActOf<kConfig>* activation,
                   const ActOf<kConfig>* cache, const FilterOf<kConfig>* filter,
                   const ConvGeometry& geometry, void* workspace, const Op& op, cudaStream_t stream,
                   std::size_t budget) {
  if (geometry.empty()) return;
  RunPointers pointers;
  pointers.output = output;
  pointers.activation = activation;
  pointers.cache = cache;
  pointers.filter = filter;
  pointers.workspace = workspace;
  composed::im2col_matmul(
      pointers, geometry, kConfig.act_dtype, kConfig.out_dtype, budget, op, stream,
      [&](const RunPointers& inner, const Conv2dProblemShape& problem, const auto& rows_op) {
        conv2d_fprop<kConfig>(static_cast<OutOf<kConfig>*>(inner.output),
                              static_cast<const ActOf<kConfig>*>(inner.activation),
                              static_cast<const FilterOf<kConfig>*>(inner.filter), problem, rows_op,
                              stream);
      });
}

}  // namespace detail

/// output = op(im2col(activation) · filterᵀ) in chunks of at most `budget` bytes of columns: any
/// stride, dilation, padding mode and C; tensors as conv2d_fprop's and conv3d_fprop's. `workspace`:
/// im2col_matmul_workspace_bytes, device memory aligned to 256 bytes. `op` gets (OutputIndex, first
/// filter, values). Throws Error{unsupported} for groups or K that is not a multiple of 16 bytes,
/// Error{launch_failure}.
template <auto kConfig, typename Op>
void im2col_matmul_conv2d(OutOf<kConfig>* output, const ActOf<kConfig>* activation,
                          const FilterOf<kConfig>* filter, const Conv2dProblemShape& problem,
                          void* workspace, const Op& op, cudaStream_t stream = nullptr,
                          std::size_t budget = composed::kIm2colScratchBytes) {
  detail::im2col_matmul<kConfig>(output, activation, static_cast<const ActOf<kConfig>*>(nullptr),
                                 filter, geometry_of(problem), workspace, op, stream, budget);
}

/// The same for volumes; `cache` as conv3d_fprop's.
template <auto kConfig, typename Op>
void im2col_matmul_conv3d(OutOf<kConfig>* output, const ActOf<kConfig>* activation,
                          const ActOf<kConfig>* cache, const FilterOf<kConfig>* filter,
                          const Conv3dProblemShape& problem, void* workspace, const Op& op,
                          cudaStream_t stream = nullptr,
                          std::size_t budget = composed::kIm2colScratchBytes) {
  detail::im2col_matmul<kConfig>(output, activation, cache, filter, geometry_of(problem), workspace,
                                 op, stream, budget);
}

/// output = op(sum over t of conv2d(activation frames z + t, filter depth t)), summed in fp32 and
/// cast once. What Q-slicing declines falls through to im2col_matmul_conv3d; the decision is
/// returned, and qslice_decision gives it beforehand. `layout` is the filter's: ktrsc, or trscf
/// ([T, R, S, C, K], also named QRSCF). `workspace`: qslice_workspace_bytes of that layout. Throws
/// Error{invalid_argument} for another layout.
template <auto kConfig, typename Op>
QsliceDecision qslice_conv3d(OutOf<kConfig>* output, const ActOf<kConfig>* activation,
                             const ActOf<kConfig>* cache, const FilterOf<kConfig>* filter,
                             const Conv3dProblemShape& problem, void* workspace, const Op& op,
                             cudaStream_t stream = nullptr,
                             FilterLayout layout = FilterLayout::ktrsc) {
  const QsliceDecision decision = qslice_decision(problem, kConfig.act_dtype);
  const ConvGeometry geometry = geometry_of(problem);
  if (geometry.empty()) return decision;
  composed::check_qslice_layout(layout);
  if (!decision.sliced) {
    const void* const ktrsc =
        composed::make_ktrsc_filter(workspace, filter, geometry, layout, stream);
    im2col_matmul_conv3d<kConfig>(
        output, activation, cache, static_cast<decltype(filter)>(ktrsc), problem,
        static_cast<char*>(workspace) + composed::ktrsc_filter_bytes(geometry, layout), op, stream);
    return decision;
  }
  RunPointers pointers;
  pointers.output = output;
  pointers.activation = activation;
  pointers.filter = filter;
  pointers.workspace = workspace;
  const Conv2dProblemShape slice_problem = composed::QsliceDriver(geometry, false).slice_problem();
  const TensorShape slice_shape = detail::output_shape(slice_problem, DType::fp32);
  composed::qslice<OutOf<kConfig>>(
      pointers, geometry, op, layout, stream, [&](const RunPointers& inner) {
        conv2d_fprop_with_residual<kSliceConfig<kConfig>, true>(
            static_cast<float*>(inner.output), static_cast<const ActOf<kConfig>*>(inner.activation),
            static_cast<const FilterOf<kConfig>*>(inner.filter),
            ConstTensorView(inner.epilogue.residual, slice_shape), inner.epilogue.beta,
            slice_problem, NoComputeOp{}, NoStoreOp{}, stream);
      });
  return decision;
}

}  // namespace convoy::sm100
