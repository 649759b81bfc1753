// SPDX-License-Identifier: Apache-2.0
//
// Host twin of kernel.cuh: which problems an instance can run, how its launch is planned, and the
// launch itself.
#pragma once

#include <string>

#include "core/candidate.hpp"
#include "core/geometry.hpp"
#include "kernels/mma/instances.hpp"
#include "kernels/mma/params.hpp"

namespace convoy::mma {

/// Empty if `plan_tiling` can bind the instance to the problem, else the reason: condition, value,
/// what is legal, the nearest. `packed_filter`: the filter comes in the kernel's own format.
std::string refusal(const Instance& instance, const ConvGeometry& geometry, bool packed_filter);

/// An instance bound to a problem: everything of a launch except the pointers.
struct Tiling {
  Instance instance;
  std::string name;            ///< Of the kernel, in errors; set by `prepare`.
  Params params = {};          ///< Without pointers and epilogue.
  bool walks = false;          ///< The instance's walking kernels run, else the listing one.
  bool has_rows = false;       ///< The input is a matrix.
  unsigned blocks = 0;         ///< Of one split, set by `prepare` too,
  unsigned linear_blocks = 0;  ///< and of the kernel of linear epilogues.
  int splits = 1;              ///< Blocks that share the reduction of a tile.
  int shared_bytes = 0;        ///< Of a block.
  std::int64_t sums = 0;       ///< Floats of one split's sums.

  /// None: that of all epilogues runs.
  const void* kernel(Epilogues epilogues) const {
    if (epilogues != Epilogues::linear) return walks ? instance.walking : instance.listing;
    if (!walks || splits > 1) return nullptr;
    return has_rows ? instance.rows : instance.linear;
  }
  std::size_t workspace_bytes() const {
    return splits == 1 ? 0 : static_cast<std::size_t>(splits * sums) * sizeof(float);
  }
};

/// How the instance walks the problem. `splits`: as many at most; each has a step at least.
Tiling plan_tiling(const Instance& instance, const ConvGeometry& geometry, bool packed_filter,
                   int splits);

/// Whether blocks of which `at_once` run at the same time take tile after tile; else each has one.
bool takes_turns(const Tiling& tiling, Epilogues epilogues, int at_once);

/// Allow the kernel its shared memory on the current device, and count the blocks that run at once;
/// once, before launches. Throws Error{launch_failure}.
void prepare(Tiling& tiling, int multiprocessors);

/// Enqueue. Throws Error{launch_failure}.
void launch(const Tiling& tiling, const RunPointers& pointers, DType output_dtype,
            cudaStream_t stream);

}  // namespace convoy::mma
