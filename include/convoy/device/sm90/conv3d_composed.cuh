// SPDX-License-Identifier: Apache-2.0
//
// Q-slicing and im2col + matmul on Hopper, with an epilogue of your own on 5-D coordinates
// (convoy/device/composed.cuh). Compiled as conv_fprop.cuh says.
#pragma once

#include "convoy/device/composed.cuh"
#include "convoy/device/sm90/conv_fprop.cuh"

namespace convoy::sm90 {

namespace detail {

template <Config kConfig, typename Op>
void im2col_matmul(Element<kConfig.out>* output, const Element<kConfig.in>* activation,
                   const Element<kConfig.in>* cache, const Element<kConfig.in>* filter,
                   const ConvGeometry& geometry, void* workspace, const Op& op, cudaStream_t stream,
                   std::size_t budget) {
  if (geometry.empty()) return;
  RunPointers pointers;
  pointers.output = output;
  pointers.activation = activation;
  pointers.cache = cache;
  pointers.filter = filter;
  pointers.workspace = workspace;
  using In = Element<kConfig.in>;
  using Out = Element<kConfig.out>;
  composed::im2col_matmul(
      pointers, geometry, kConfig.in, kConfig.out, budget, op, stream,
      [&](const RunPointers& inner, const Conv2dProblemShape& problem, const auto& rows_op) {
        conv_fprop<kConfig>(
            static_cast<Out*>(inner.output), static_cast<const In*>(inner.activation),
            static_cast<const In*>(inner.filter), problem, {}, rows_op, NoStoreOp{}, stream);
      });
}

}  // namespace detail

/// output = op(im2col(activation) · filterᵀ) in chunks of at most `budget` bytes of columns: any
/// stride, dilation, padding mode and C; tensors as conv_fprop's. `workspace`:
/// im2col_matmul_workspace_bytes, device memory aligned to 256 bytes. `op` gets (OutputIndex, first
/// filter, values). Throws Error{unsupported} for groups, Error{launch_failure}.
template <Config kConfig, typename Op>
void im2col_matmul_conv2d(Element<kConfig.out>* output, const Element<kConfig.in>* activation,
                          const Element<kConfig.in>* filter, const Conv2dProblemShape& problem,
                          void* workspace, const Op& op, cudaStream_t stream = nullptr,
                          std::size_t budget = composed::kIm2colScratchBytes) {
  detail::im2col_matmul<kConfig>(output, activation,
                                 static_cast<const Element<kConfig.in>*>(nullptr), filter,
                                 geometry_of(problem), workspace, op, stream, budget);
}

/// The same for volumes; `cache` as FpropExtras has it.
template <Config kConfig, typename Op>
void im2col_matmul_conv3d(Element<kConfig.out>* output, const Element<kConfig.in>* activation,
                          const Element<kConfig.in>* cache, const Element<kConfig.in>* filter,
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
template <Config kConfig, typename Op>
QsliceDecision qslice_conv3d(Element<kConfig.out>* output, const Element<kConfig.in>* activation,
                             const Element<kConfig.in>* cache, const Element<kConfig.in>* filter,
                             const Conv3dProblemShape& problem, void* workspace, const Op& op,
                             cudaStream_t stream = nullptr,
                             FilterLayout layout = FilterLayout::ktrsc) {
  const QsliceDecision decision = qslice_decision(problem, kConfig.in);
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
  using In = Element<kConfig.in>;
  const Conv2dProblemShape slice_problem = composed::QsliceDriver(geometry, false).slice_problem();
  composed::qslice<Element<kConfig.out>>(
      pointers, geometry, op, layout, stream, [&](const RunPointers& inner) {
        FpropExtras extras;
        extras.epilogue = inner.epilogue;
        conv_fprop<Default<In, float>>(static_cast<float*>(inner.output),
                                       static_cast<const In*>(inner.activation),
                                       static_cast<const In*>(inner.filter), slice_problem, extras,
                                       NoComputeOp{}, NoStoreOp{}, stream);
      });
  return decision;
}

}  // namespace convoy::sm90
