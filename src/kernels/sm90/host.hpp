// SPDX-License-Identifier: Apache-2.0
//
// Host twin of kernel.cuh: which problems an instance can run, how its launch is planned, and the
// launch itself.
#pragma once

#include <string>
#include <variant>

#include "convoy/export.h"
#include "core/candidate.hpp"
#include "core/geometry.hpp"
#include "kernels/common/launch.hpp"
#include "kernels/common/tensor_map.hpp"
#include "kernels/sm90/instances.hpp"
#include "kernels/sm90/params.hpp"
#include "kernels/sm90/statistics.hpp"

namespace convoy::sm90 {

/// Empty if `plan_launch` can bind the instance to the problem, else the reason: condition, value,
/// what is legal, the nearest. `packed_filter`: the filter comes in the kernel's own format.
std::string refusal(const Instance& instance, const ConvGeometry& geometry, bool packed_filter);

/// Empty if the instance normalises its patches so, else the reason; of a problem that `refusal`
/// lets pass.
std::string prologue_refusal(const Instance& instance, const ConvGeometry& geometry,
                             const PrologueKind& prologue);

/// The shortest path of the epilogue. `direct_store`: past TMA.
EpiloguePath path_of(const Config& config, const EpilogueKind& epilogue, bool direct_store);

/// The entry point of the instance that runs a path, of layers that are products of matrices the
/// one for such: its own, or one that computes more, or, where it is the only one, the general one;
/// none: null.
const void* entry_of(const Instance& instance, EpiloguePath path, bool is_matrix);

/// Epilogues for which the instance has an entry point, in words.
std::string legal_epilogues(const Instance& instance);

/// Empty if the instance has an entry point for the epilogue, else the reason; of a problem that
/// `refusal` lets pass.
std::string epilogue_refusal(const Instance& instance, const ConvGeometry& geometry,
                             const EpilogueKind& epilogue);

/// Empty if the instance takes statistics of its outputs by `groups` groups, else the reason; of a
/// problem that `refusal` lets pass.
std::string statistics_refusal(const Instance& instance, const ConvGeometry& geometry,
                               const EpilogueKind& epilogue, std::int64_t groups);

/// CTAs that share the K loop of a tile at most: what a cluster may have on any Hopper GPU.
inline constexpr int kMostSplits = 8;

/// What a plan depends on besides the problem.
struct LaunchOptions {
  bool packed_filter = false;  ///< The filter comes in the kernel's own format.
  int multiprocessors = 0;     ///< Of the device.
  int splits = 1;              ///< CTAs that share the K loop of a tile: 1 to kMostSplits.
  PrologueKind prologue;       ///< One that the instance takes (`prologue_refusal`).
  /// Groups of filters whose statistics are taken (`statistics_refusal`); 0: none.
  std::int64_t statistics_groups = 0;
};

/// How an instance walks a problem, and the tensors that it reads and writes. Made without a
/// device.
struct Tiling {
  Config config;
  Params params = {};  ///< Without tensor maps, epilogue and pointers.
  std::variant<TiledTensorMap, Im2colTensorMap> activation, cache;
  TiledTensorMap filter, output;
  TiledTensorMap inverse_rms;  ///< Of PrologueNorm::rms.
  int cluster_size = 1;
  int num_tiles = 0;  ///< Of CTAs: cluster tiles · cluster size.
};

/// Choose loader and tiling. Throws Error{unsupported} with `refusal`'s text, or with the limit of
/// tensor maps or of the device that the tiling breaks.
Tiling plan_tiling(const Instance& instance, const ConvGeometry& geometry,
                   const LaunchOptions& options);

/// Change how many clusters of M tiles are walked through all frames before the next.
void set_band(Params& params, int band);

/// CTAs whose tiles all have the same filters, for resident ones: tiles are numbered filters first,
/// and a CTA's next one is as many further as there are CTAs.
int resident_ctas(const Tiling& tiling, int multiprocessors);

/// An instance bound to a problem: everything of a launch except the pointers.
struct Launch {
  std::string name;  ///< For errors.
  Instance instance;
  /// Without epilogue and pointers; tensor maps with a placeholder for the address. The output's
  /// first map serves all phases and the residual.
  Params params = {};
  LaunchConfig config = {};         ///< Without name and stream.
  StatisticsMerge statistics = {};  ///< Without pointers; without groups: none are taken.
  /// Of the output, from its first element.
  std::int64_t phase_offset_bytes[kMaxPhases] = {};
};

/// `plan_tiling`, and the tensor maps encoded. Throws Error{unsupported} as that does.
CONVOY_API Launch plan_launch(const Instance& instance, const ConvGeometry& geometry,
                              const LaunchOptions& options);

/// Allow the kernels their shared memory on the current device; once, before launches. Throws
/// Error{launch_failure}.
CONVOY_API void prepare(const Instance& instance);

/// Enqueue the entry point with the shortest path that computes the epilogue, and with statistics
/// their merge (they take `statistics.workspace_bytes()` of workspace). `compute_op` and
/// `store_op` are the addresses of the ops' values. Throws Error{invalid_argument} for null or
/// misaligned pointers, Error{unsupported} for an epilogue of `epilogue_refusal`,
/// Error{launch_failure}.
CONVOY_API void launch(const Launch& plan, const RunPointers& pointers, const void* compute_op,
                       const void* store_op, cudaStream_t stream);

}  // namespace convoy::sm90
