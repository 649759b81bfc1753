// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "convoy/export.h"
#include "core/candidate.hpp"
#include "core/geometry.hpp"
#include "kernels/common/tensor_map.hpp"
#include "kernels/sm90/instances.hpp"
#include "kernels/sm90/params.hpp"

namespace convoy::sm90 {

/// An instance bound to a problem: everything of a launch except the pointers.
struct FpropPlan {
  FpropInstance instance;
  FpropParams params = {};  ///< Without tensor maps, epilogue and pointers.
  bool im2col = false;      ///< Whether the activation's maps are `act_im2col` or `act_tiled`.
  Im2colTensorMap act_im2col, cache_im2col;
  TiledTensorMap act_tiled, cache_tiled;
  TiledTensorMap filter, output;
  std::int64_t phase_offset_bytes[kMaxPhases] = {};  ///< Of the output, from its first element.
  int cluster_size = 1;
  int num_tiles = 0;  ///< Of CTAs: cluster tiles · cluster size.
};

/// Empty if `plan_fprop` can bind the instance to the problem, else the reason.
/// `packed_filter`: the filter will come in this kernel's format (needed to fold upsampling).
std::string fprop_refusal(const ConvGeometry& geometry, const FpropInstance& instance,
                          bool packed_filter);

/// Choose loader and tiling. Throws Error{unsupported} with `fprop_refusal`'s text.
/// `splits`: CTAs that share the K loop of a tile (split instances; 1..8).
CONVOY_API FpropPlan plan_fprop(const ConvGeometry& geometry, const FpropInstance& instance,
                                bool packed_filter, int multiprocessors, int splits);

/// Change how many clusters of M tiles are walked through all frames before the next.
void set_band(FpropParams& params, int band);

/// CTAs whose tiles all have the same filters, for a resident instance: tiles are numbered filters
/// first, and a CTA's next one is as many further as there are CTAs.
int resident_ctas(const FpropPlan& plan, int multiprocessors);

/// Raise the kernel's limit of dynamic shared memory on the current device; once, before launches.
/// Throws Error{launch_failure}.
CONVOY_API void prepare_fprop(const FpropInstance& instance);

/// Encode the tensor maps for these pointers and enqueue the kernel. `compute_op` and `store_op`
/// point to the ops that the instance's kernel was compiled with.
CONVOY_API void launch_fprop(const FpropPlan& plan, const RunPointers& pointers,
                             int multiprocessors, const void* compute_op, const void* store_op,
                             cudaStream_t stream);

/// The same for an instance of the table, whose ops do nothing.
inline void launch_fprop(const FpropPlan& plan, const RunPointers& pointers, int multiprocessors,
                         cudaStream_t stream) {
  const NoComputeOp compute_op;
  const NoStoreOp store_op;
  launch_fprop(plan, pointers, multiprocessors, &compute_op, &store_op, stream);
}

}  // namespace convoy::sm90
