// SPDX-License-Identifier: Apache-2.0
//
// Host twin of kernel.cuh: which problems an instance can run, how its launch is planned, and the
// launch itself.
#pragma once

#include <cstdint>
#include <string>

#include "convoy/export.h"
#include "core/candidate.hpp"
#include "core/geometry.hpp"
#include "kernels/common/launch.hpp"
#include "kernels/sm100/instances.hpp"
#include "kernels/sm100/params.hpp"

namespace convoy::sm100 {

/// Empty if 4-D im2col copies can read the frames of the problem, else which limit of descriptor or
/// offsets is broken: then the kernel loads patches.
std::string im2col_refusal(const Config& config, const ConvGeometry& geometry);

/// How the rows of a problem that the configuration can run are laid over the output.
struct RowLayout {
  RowGroups row_groups = RowGroups::images;
  std::int64_t groups = 1;
  std::int64_t rows = 0;  ///< Of a group.
};
RowLayout row_layout(const Config& config, const ConvGeometry& geometry);

/// Empty if `plan_launch` can bind the instance to the problem, else the reason: condition, value,
/// what is legal, the nearest. `packed_filter`: the filter comes in the kernel's own format.
std::string refusal(const Instance& instance, const ConvGeometry& geometry, bool packed_filter);

/// Empty if the instance applies the prologue to a problem that it can run otherwise.
std::string prologue_refusal(const Instance& instance, const ConvGeometry& geometry,
                             const PrologueKind& prologue);

/// An instance bound to a problem: everything of a launch except the pointers.
struct Launch {
  std::string name;  ///< For errors.
  Instance instance;
  /// Without epilogue and pointers; tensor maps with a placeholder for the address. The output's
  /// first map serves all phases and the residual.
  Params params = {};
  LaunchConfig config = {};  ///< Without name and stream; shared memory as without a residual.
  /// Of the output, from its first element.
  std::int64_t phase_offset_bytes[kMaxPhases] = {};
};

/// Lay out the rows, check and encode the tensor maps. Throws Error{unsupported} with `refusal`'s
/// text.
CONVOY_API Launch plan_launch(const Instance& instance, const ConvGeometry& geometry,
                              bool packed_filter, const PrologueKind& prologue = {});

/// Allow the kernels their shared memory on the current device; once, before launches. Throws
/// Error{launch_failure}.
CONVOY_API void prepare(const Instance& instance);

/// Enqueue: run_with_residual where the epilogue has a residual and beta is not 0, else run.
/// `compute_op` and `store_op` are the addresses of the ops' values. Throws Error{invalid_argument}
/// for null or misaligned pointers, Error{launch_failure}.
CONVOY_API void launch(const Launch& plan, const RunPointers& pointers, const void* compute_op,
                       const void* store_op, cudaStream_t stream);

}  // namespace convoy::sm100
